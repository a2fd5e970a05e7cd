//! What a runner does that was taken over, and what its host makes of that. This program is both: it starts itself as
//! the runner of an instance (`runner`), which keeps to the protocol until it has the instance to run, and not from then
//! on.
//!
//! Whatever it does, the host goes on, holds no more memory for it, and knows its end: by itself where the protocol was
//! broken, and by a kill otherwise. Its process is gone then. Beside it, an instance in a real runner goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure in a test is a panic")]
#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

mod runner;

use baton_test_support::{gone, guests, patience};

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use baton_election::{ElectionName, End, StopReason, Time};
use baton_runtime::Folder;
use baton_runtime::confine::missing;
use baton_runtime::{
    CLAIM_AHEAD, Engine, Grants, HttpPolicy, Instance, Launcher, Limits, MAKE_RUNNERS, Module, Notice, Output, Policy,
    Postmortem, PostmortemWriter, Processes, Purpose, Runners, RunningInstances, Templates, make_runners,
};
use baton_store::clock::Clock;
use baton_store::gate::Watchdog;
use baton_store::state;
use baton_store::{LockFile, MemoryStore};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Handle;

use gone::gone;
use guests::Guest;
use patience::Patience;
use runner::{BADLY_READY, EVIL, NEIGHBOUR, NEVER_READY, PORT};

/// Longer than any test takes, for deadlines that are not meant to come. Nothing is measured by it.
const GUARD: Duration = Duration::from_secs(300);

/// More than this no runner makes its host hold, in KiB: what a message may have, a few times.
const MEMORY: u64 = 64 << 10;

/// What an instance of the test has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    /// The network.
    Plain,
    /// A folder, too.
    Folder,
    /// State that is kept of it.
    Stateful,
    /// A core dump and a profile are kept.
    Kept,
    /// It never says that it is ready.
    NeverReady,
    /// It says something else.
    BadlyReady,
}

/// What becomes of an instance.
#[derive(Debug)]
enum Then {
    /// It is gone by itself, since its runner breaks the protocol in that way.
    Breaks(&'static str),
    /// It is gone by itself, having failed for that reason.
    Crashes(&'static str),
    /// It is gone by itself, and was done.
    IsDone,
    /// It stays until it is killed, after this line, and while another instance goes on.
    Stays(&'static str),
}

use Setting::{BadlyReady, Folder as Granted, Kept, NeverReady, Plain, Stateful};
use Then::{Breaks, Crashes, IsDone, Stays};

const CASES: &[(&str, Setting, Then)] = &[
    ("prints nonsense", Plain, Breaks("a message")),
    ("prints ones", Plain, Breaks("a message of 4294967295 bytes")),
    ("announces 4 GiB", Plain, Breaks("a message of 4294967295 bytes")),
    ("announces nothing", Plain, Breaks("a message that is invalid")),
    ("never finishes a message", Plain, Stays("pid")),
    ("dies in a message", Plain, Crashes("exited with status 7")),
    ("says more than a message", Plain, Breaks("extra bytes after it")),
    ("says something unknown", Plain, Breaks("a message that is invalid")),
    ("is ready again", Plain, Breaks("it reported twice that it is ready")),
    ("fails to get ready when it is", Plain, Breaks("it reported twice that it is ready")),
    ("commits twice at once", Stateful, Breaks("it sent a commit during another commit")),
    ("commits without a state", Plain, Breaks("it sent a commit for an election without state")),
    ("commits very many changes", Stateful, Breaks("a commit of 2097152 changes")),
    ("commits fewer changes than it says", Stateful, Breaks("a message that is invalid")),
    // What it waits for between two of them may be too short.
    ("commits and does not read", Stateful, Breaks("it ")),
    ("looks up very much", Plain, Breaks("it has too many DNS lookups in flight")),
    ("looks up what it may not", Plain, Stays("all is tried")),
    ("floods lines", Plain, Breaks("it sent too many messages")),
    ("floods half as much as is taken", Plain, Stays("x")),
    ("prints a long line", Plain, Breaks("a line of 100000 bytes")),
    ("prints no text", Plain, Breaks("a message that is invalid")),
    ("prints to an unknown stream", Plain, Breaks("a message that is invalid")),
    ("floods its log", Plain, Breaks("a message of 83886")),
    ("floods its log", Stateful, Stays("pid")),
    ("floods denials", Plain, Breaks("it repeated notices that it may send only once")),
    ("floods limits", Plain, Breaks("it repeated notices that it may send only once")),
    ("drops as much as can be said", Plain, Stays("pid")),
    ("begins twice", Plain, Breaks("it reported twice that it started")),
    ("begins for ever", Plain, Breaks("it reported twice that it started")),
    ("steps down for ever", Plain, Breaks("it asked twice to step down")),
    ("panics at length", Plain, Crashes("the runner panicked: xxx")),
    ("ends twice", Plain, IsDone),
    ("ends and goes on", Plain, IsDone),
    ("begins and could not begin", Plain, Breaks("it reported a failed start after the start")),
    ("is killed though nobody kills it", Plain, Crashes("before the deadline")),
    ("is late though it is not", Plain, Crashes("exited with status 3")),
    ("says that it was refused", Plain, Crashes("exited with status 9")),
    ("lies about what it leaves", Kept, IsDone),
    ("closes its pipe and goes on", Plain, Crashes("signal 9")),
    ("closes its pipes and stops", Plain, Crashes("signal 9")),
    ("stops itself", Plain, Stays("pid")),
    ("spins", Plain, Stays("pid")),
    ("does not read", Plain, Stays("pid")),
    ("fills the tally", Plain, Stays("filled")),
    ("attacks the page", Plain, Stays("all is tried")),
    ("attacks the page", Granted, Stays("all is tried")),
    ("attacks others", Plain, Stays("all is tried")),
    ("attacks others", Granted, Stays("all is tried")),
    ("gives its lock up", Plain, Stays("its lock is held")),
    ("gives its lock up", Granted, Stays("its lock is held")),
    ("connects", Plain, Stays("connected")),
    ("prints for ever", Plain, Stays("line 20")),
    ("spins", NeverReady, Stays("")),
    ("spins", BadlyReady, Crashes("it violated the protocol")),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // The template is ours: nothing of a stranger runs in it.
        [MAKE_RUNNERS, "--parent", host] => drop(make_runners(host.parse().unwrap(), runner::be_one)),
        _ => {
            let trial = Trial::test("host_survives_every_hostile_runner", || {
                assert!(missing().is_empty(), "this kernel lacks what is tested here: {:?}", missing());
                with_runtime(test());
                Ok(())
            });
            libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit()
        }
    }
}

fn with_runtime(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

async fn test() {
    let [beats, keeps] = [Guest::Beats, Guest::KeepsHistory].map(Guest::module);
    let host = Host::new([&beats, &keeps]);
    let mut neighbour = host.neighbour();
    neighbour.goes_on("it begins").await;
    for (evil, setting, then) in CASES {
        let case = format!("{evil}, {setting:?}");
        host.case(evil, *setting, then, &mut neighbour).await;
        neighbour.goes_on(&case).await;
        println!("{case}: {then:?}");
    }
    its_time_is_over(&host).await;
    println!("prints after its deadline: not put out");
    neighbour.goes_on("at the end").await;
    neighbour.instance.kill();
    assert_eq!(gone(&mut neighbour.instance).await.end, End::Killed);
    println!("{} cases", CASES.len() + 1);
}

/// What all instances of the test have in common.
struct Host {
    clock: Clock,
    watchdog: Arc<Watchdog>,
    processes: Processes,
    /// That keeps no state, and one that does.
    /// One that beats, one that keeps state, and the first compiled to be profiled.
    modules: [Module; 3],
    /// Who takes connections.
    server: TcpListener,
    folder: PathBuf,
    /// By which others know that its runners are there.
    lock_file: Arc<LockFile>,
    _locks: tempfile::TempDir,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Host {
    fn new([beats, keeps]: [&Path; 2]) -> Self {
        let clock = Clock::default();
        let watchdog = Watchdog::start(clock.clone(), |why, _| eprintln!("the watchdog ends this process: {why}"));
        let [engine, profiling] = [Purpose::default(), Purpose { core_dump: true, profile: true }]
            .map(|purpose| Engine::new(purpose).unwrap());
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        server.set_nonblocking(true).unwrap();
        let folder = runner::granted(std::process::id());
        fs::create_dir_all(&folder).unwrap();
        let locks = tempfile::tempdir().unwrap();
        let lock_file = Arc::new(LockFile::make(locks.path(), "host").unwrap());
        Self {
            clock,
            watchdog: Arc::new(watchdog.unwrap()),
            processes: Processes::new().unwrap(),
            modules: [(&engine, beats), (&engine, keeps), (&profiling, beats)]
                .map(|(engine, path)| Module::load(engine, path).unwrap()),
            server,
            folder,
            lock_file,
            _locks: locks,
        }
    }

    fn launcher(&self, program: &Path, policy: Policy, env: &[(&str, &str)]) -> Launcher {
        let lock_file = Some(Arc::clone(&self.lock_file));
        let templates = Templates::with_lock_file(program.to_owned(), &self.processes, lock_file);
        Launcher {
            election: ElectionName::new("fleet").unwrap(),
            node: "alpha".to_owned(),
            runners: Runners::new(policy, &templates, &Handle::current()),
            states: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))),
            handover: state::Handover::default(),
            read_ahead: state::ReadAhead::default(),
            claim_ahead: CLAIM_AHEAD,
            postmortem: Postmortem::default(),
            arguments: Vec::new(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            config: Vec::new(),
            secrets: Vec::new(),
            running: RunningInstances::default(),
            clock: self.clock.clone(),
            watchdog: Arc::clone(&self.watchdog),
        }
    }

    /// One that is up to no good.
    fn evil(&self, evil: &str, setting: Setting, neighbour: &str) -> Launcher {
        let mut grants = vec!["http://localhost", "http://*.granted.test"];
        match setting {
            NeverReady => grants.push(NEVER_READY),
            BadlyReady => grants.push(BADLY_READY),
            _ => {}
        }
        let grants = Grants::new(grants.into_iter().map(|grant| grant.parse().unwrap()).collect());
        let folder = (setting == Granted).then(|| Folder::at(self.folder.clone(), "/data".to_owned(), false).unwrap());
        let policy = Policy {
            lease: Duration::ZERO,
            limits: Limits { memory: 16 << 20, ..Limits::default() },
            state_limits: state::Limits { value: 16, ..state::Limits::default() },
            folders: folder.into_iter().collect(),
            http: HttpPolicy::new(grants, 10, None).unwrap(),
            core_dump: setting == Kept,
            profile: setting == Kept,
        };
        let port = self.server.local_addr().unwrap().port().to_string();
        let env = [(EVIL, evil), (PORT, &port), (NEIGHBOUR, neighbour)];
        self.launcher(&std::env::current_exe().unwrap(), policy, &env)
    }

    fn start(&self, launcher: &Launcher, module: &Module, remaining: Duration) -> (Instance, Arc<Seen>) {
        let now = self.clock.now();
        let seen = Arc::new(Seen { clock: self.clock.clone(), noticed: Mutex::default() });
        let output: Arc<dyn Output> = Arc::<Seen>::clone(&seen);
        (launcher.start(module, 1, now + remaining, now + remaining + GUARD, output), seen)
    }

    /// An instance that does as it should, in a runner that does, too.
    fn neighbour(&self) -> Neighbour {
        let env = [("BEHAVIOUR", "beat"), ("BEAT_MS", "5")];
        let launcher = self.launcher(Path::new(env!("CARGO_BIN_EXE_baton")), Policy::default(), &env);
        let (instance, seen) = self.start(&launcher, &self.modules[0], GUARD * 10);
        Neighbour { instance, seen, _launcher: launcher }
    }

    async fn case(&self, evil: &str, setting: Setting, then: &Then, neighbour: &mut Neighbour) {
        let case = format!("{evil}, {setting:?}");
        let its_neighbour = neighbour.pid().to_string();
        let kept = tempfile::tempdir().unwrap();
        let writer = PostmortemWriter::start().unwrap();
        let mut launcher = self.evil(evil, setting, &its_neighbour);
        if setting == Kept {
            let (dumps, profile) = (kept.path().to_owned(), kept.path().join("profile"));
            launcher.postmortem = Postmortem::new(Some(dumps), Some(profile), &writer).unwrap();
        }
        let module = match setting {
            Stateful => &self.modules[1],
            Kept => &self.modules[2],
            _ => &self.modules[0],
        };
        forget_the_peak();
        let before = memory("VmHWM");
        let (mut instance, seen) = self.start(&launcher, module, GUARD * 10);
        let mut connections = Vec::new();
        if let Stays(line) = then {
            let said = || seen.noticed().lines.iter().any(|(_, said)| said.starts_with(line));
            Patience::poll(EVERY, || (line.is_empty() || said()).then_some(()))
                .unwrap_or_else(|_| panic!("{case}: {seen:?}"));
            if evil == "does not read" {
                // More than a pipe holds, and a message that is never read.
                instance.stop(StopReason::StepDown, "x".repeat(4 << 20), self.clock.now(), None);
            }
            connections.extend(std::iter::repeat_with(|| self.server.accept()).map_while(Result::ok));
            assert_eq!(connections.len(), if evil == "connects" { 20 } else { 0 });
            // Beside all that it does.
            neighbour.goes_on(&case).await;
            if let Ok(ended) = tokio::time::timeout(EVERY, gone(&mut instance)).await {
                panic!("{case}: it was not killed: {ended:?}");
            }
            assert!(instance.remaining() > GUARD, "{case}: its time is what its host says");
            assert!(instance.last_progress() <= self.clock.now(), "{case}");
            instance.kill();
            seen.is_killed();
        }
        let gone = gone(&mut instance).await;
        let process = seen.pid();
        if let Some(pid) = process {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{case}: its process is there when it is gone");
        }
        for (connection, _) in connections {
            is_closed(connection);
        }
        match (&gone.end, then) {
            (End::Crashed(why), Breaks(how)) => {
                assert!(why.contains("violated the protocol: ") && why.contains(how), "{case}: {why}");
            }
            (End::Crashed(why), Crashes(how)) => assert!(why.contains(how), "{case}: {:.200}", why),
            (End::Done, IsDone) | (End::Killed, Stays(_)) => {}
            (end, _) => panic!("{case}: {end:?}; {seen:?}"),
        }
        let usage = instance.usage();
        assert_eq!(usage.files == u64::MAX, evil == "fills the tally" || evil == "says that it was refused");
        drop((instance, launcher));
        assert!(writer.shutdown(GUARD), "{case}");
        let grew = memory("VmHWM").saturating_sub(before);
        assert!(grew < MEMORY, "{case}: its host held {grew} KiB more");
        seen.judge(&case);
        if setting == Kept {
            assert_eq!(fs::read_dir(kept.path()).unwrap().count(), 0, "nothing is kept of who lies");
            assert_eq!(seen.noticed().not_saved, 2, "{seen:?}");
        }
    }
}

/// How often something is looked at.
const EVERY: Duration = Duration::from_millis(5);

/// What was let known of an instance.
#[derive(Debug)]
struct Seen {
    clock: Clock,
    noticed: Mutex<Noticed>,
}

#[derive(Default, Debug)]
struct Noticed {
    lines: Vec<(Time, String)>,
    /// How many there were when it was killed.
    lines_when_killed: Option<usize>,
    logged: usize,
    not_saved: usize,
    others: usize,
}

impl Output for Seen {
    fn notice(&self, notice: Notice<'_>) {
        let now = self.clock.now();
        let mut noticed = self.noticed();
        match notice {
            Notice::Line(_, line) => noticed.lines.push((now, line.to_owned())),
            Notice::Log { .. } => noticed.logged += 1,
            Notice::NotSaved { .. } => noticed.not_saved += 1,
            _ => noticed.others += 1,
        }
    }
}

impl Seen {
    fn noticed(&self) -> MutexGuard<'_, Noticed> {
        self.noticed.lock().unwrap()
    }

    fn is_killed(&self) {
        let mut noticed = self.noticed();
        noticed.lines_when_killed = Some(noticed.lines.len());
    }

    /// The number of the process, as it said first.
    fn pid(&self) -> Option<u32> {
        self.noticed().lines.iter().find_map(|(_, line)| line.strip_prefix("pid ")?.parse().ok())
    }

    fn judge(&self, case: &str) {
        let noticed = self.noticed();
        for (_, line) in &noticed.lines {
            let is_allowed = !line.ends_with(": done") || line == "localhost: done";
            assert!(is_allowed, "{case}: it does what it may not: {line}\n{noticed:#?}");
        }
        assert!(noticed.others <= 70, "{case}: much is told of it: {}", noticed.others);
        if let Some(before) = noticed.lines_when_killed {
            // One may have passed the gate before, and be put out right then.
            assert!(noticed.lines.len() <= before + 1, "{case}: it prints when it was killed");
        }
    }
}

struct Neighbour {
    instance: Instance,
    seen: Arc<Seen>,
    /// Keeps what made its runner.
    _launcher: Launcher,
}

impl Neighbour {
    /// Prints more.
    async fn goes_on(&mut self, case: &str) {
        let lines = || self.seen.noticed().lines.len();
        let before = lines();
        Patience::poll(EVERY, || (lines() > before + 10).then_some(()))
            .unwrap_or_else(|_| panic!("{case}: {:?}", self.seen));
    }

    /// The number of its process: the child of this one that is no other of this program.
    fn pid(&self) -> u32 {
        let is_real =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "baton-runner\n");
        children_of(std::process::id()).into_iter().find(is_real).expect("it runs")
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()) == Some(parent)
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

/// Its deadline passes, and it goes on printing as if it had not.
async fn its_time_is_over(host: &Host) {
    let launcher = host.evil("prints after its deadline", Plain, "0");
    launcher.runners.make_ready(&host.modules[0]).await.unwrap();
    let mut remaining = Duration::from_millis(600);
    // On a busy machine it prints nothing before, for once.
    while printed_until(host, &launcher, remaining).await < 3 {
        remaining *= 2;
        assert!(remaining < Duration::from_secs(60), "it prints nothing");
    }
}

/// Has so much time. Returns how much it printed before that was over.
async fn printed_until(host: &Host, launcher: &Launcher, remaining: Duration) -> usize {
    let deadline = host.clock.now() + remaining;
    let (mut instance, seen) = host.start(launcher, &host.modules[0], remaining);
    // A taken-over runner does not end itself, so its host kills it, late here.
    while host.clock.now() < deadline + EVERY * 4 {
        tokio::time::sleep(EVERY).await;
    }
    instance.kill();
    let ended = gone(&mut instance).await;
    assert!(ended.end == End::Killed && host.clock.now() >= deadline, "{ended:?}");
    let late = seen.noticed().lines.iter().filter(|(at, _)| *at > deadline + EVERY).count();
    // One may have passed the gate before, on a thread that had to wait then.
    assert!(late <= 1, "{late} lines are put out when its time is over: {seen:?}");
    seen.noticed().lines.len() - late
}

/// Waits for the other end of a connection to be closed.
fn is_closed(mut connection: TcpStream) {
    connection.set_nonblocking(true).unwrap();
    let mut read = [0; 1 << 16];
    Patience::poll(EVERY, || match connection.read(&mut read) {
        Ok(0) => Some(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
        _ => None,
    })
    .expect("the connection is closed");
}

/// Has the peak of this process' memory begin with what it has now.
fn forget_the_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// A size of this process, in KiB.
fn memory(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("it says so");
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}
