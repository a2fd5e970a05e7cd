//! Tests that a host survives hostile runners, such as those that a guest has taken over. This program is both host and
//! runner. The runner (module `runner`) follows the protocol until it receives its instance, and then attacks.
//!
//! Whatever the runner does, the host must continue, and its memory must not grow. If the runner breaks the protocol,
//! the host ends the instance. Otherwise, the test kills the instance. In both cases, the runner's process must have
//! exited afterwards. Meanwhile, an instance in a real runner must keep running.
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

use baton_base::clock::Clock;
use baton_base::gate::Watchdog;
use baton_election::{ElectionName, End, StopReason, Time};
use baton_runtime::Folder;
use baton_runtime::confine::missing;
use baton_runtime::{
    CLAIM_AHEAD, Engine, Grants, HttpPolicy, Instance, InstanceHandle as _, Launcher, Limits, MAKE_RUNNERS, Module,
    Notice, Output, Policy, Processes, Runners, RunningInstances, Templates, make_runners,
};
use baton_store::state;
use baton_store::{LockFile, MemoryStore};
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Handle;

use gone::gone;
use guests::Guest;
use patience::Patience;
use runner::{BADLY_READY, EVIL, NEIGHBOUR, NEVER_READY, PORT};

/// A time that is longer than any test takes. Use it for deadlines that must not pass, but not for measurements.
const GUARD: Duration = Duration::from_secs(300);

/// The limit on the growth of the host's memory during a case, in KiB. It allows for a few messages of the maximum
/// length.
const MEMORY: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setting {
    /// The instance is granted the network.
    Plain,
    /// The instance is granted the network and a folder.
    Folder,
    /// The instance is granted the network, and uses state.
    Stateful,
    /// The instance is granted the network. Its runner never reports that it is ready.
    NeverReady,
    /// The instance is granted the network. Its runner sends another message instead of reporting that it is ready.
    BadlyReady,
}

#[derive(Debug)]
enum Outcome {
    /// The runner breaks the protocol, and the host's reason for ending the instance contains this text.
    Breaks(&'static str),
    /// The instance fails, and the reason that the host reports contains this text.
    Crashes(&'static str),
    IsDone,
    /// The instance prints a line that starts with this text, and runs until the test kills it. Meanwhile, another
    /// instance keeps running.
    Stays(&'static str),
}

use Outcome::{Breaks, Crashes, IsDone, Stays};
use Setting::{BadlyReady, Folder as Granted, NeverReady, Plain, Stateful};

const CASES: &[(&str, Setting, Outcome)] = &[
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
    // The error message depends on whether the host is still busy with the previous commit, so accept each message.
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
    ("is late though it is not", Plain, Crashes("exited with status 3")),
    ("says that it was refused", Plain, Crashes("exited with status 9")),
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
        // The template process does not attack: no guest runs in it, so a guest cannot have taken it over.
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
    neighbour.keeps_printing("at the start").await;
    for (evil, setting, outcome) in CASES {
        let case = format!("{evil}, {setting:?}");
        host.case(evil, *setting, outcome, &mut neighbour).await;
        neighbour.keeps_printing(&case).await;
        println!("{case}: {outcome:?}");
    }
    output_stops_at_deadline(&host).await;
    println!("prints after its deadline: the output is dropped");
    neighbour.keeps_printing("at the end").await;
    neighbour.instance.kill();
    assert_eq!(gone(&mut neighbour.instance).await.end, End::Killed);
    println!("{} cases", CASES.len() + 1);
}

struct Host {
    clock: Clock,
    watchdog: Arc<Watchdog>,
    processes: Processes,
    /// A module that uses no state, and one that uses state.
    modules: [Module; 2],
    /// A server that hostile runners connect to.
    server: TcpListener,
    folder: PathBuf,
    /// The lock file. While a runner holds a lock on it, other hosts know that the runner is alive.
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
        let engine = Engine::new().unwrap();
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
            modules: [beats, keeps].map(|path| Module::load(&engine, path).unwrap()),
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
            shards: 1,
            node: "alpha".to_owned(),
            runners: Runners::new(policy, &templates, &Handle::current()),
            states: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))),
            handover: state::Handover::default(),
            read_ahead: state::ReadAhead::default(),
            claim_ahead: CLAIM_AHEAD,
            arguments: Vec::new(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            config: Vec::new(),
            secrets: Vec::new(),
            running: RunningInstances::default(),
            clock: self.clock.clone(),
            watchdog: Arc::clone(&self.watchdog),
        }
    }

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
            state_limits: state::Limits::default(),
            folders: folder.into_iter().collect(),
            http: HttpPolicy::new(grants, 10, None).unwrap(),
        };
        let port = self.server.local_addr().unwrap().port().to_string();
        let env = [(EVIL, evil), (PORT, &port), (NEIGHBOUR, neighbour)];
        self.launcher(&std::env::current_exe().unwrap(), policy, &env)
    }

    fn start(&self, launcher: &Launcher, module: &Module, remaining: Duration) -> (Instance, Arc<Recorder>) {
        let now = self.clock.now();
        let recorder = Arc::new(Recorder { clock: self.clock.clone(), notices: Mutex::default() });
        let output: Arc<dyn Output> = Arc::<Recorder>::clone(&recorder);
        (launcher.start(module, 1, None, now + remaining, now + remaining + GUARD, output), recorder)
    }

    /// Starts a harmless instance in a real runner.
    fn neighbour(&self) -> Neighbour {
        let env = [("BEHAVIOUR", "beat"), ("BEAT_MS", "5")];
        let launcher = self.launcher(Path::new(env!("CARGO_BIN_EXE_baton")), Policy::default(), &env);
        let (instance, recorder) = self.start(&launcher, &self.modules[0], GUARD * 10);
        Neighbour { instance, recorder, _launcher: launcher }
    }

    async fn case(&self, evil: &str, setting: Setting, outcome: &Outcome, neighbour: &mut Neighbour) {
        let case = format!("{evil}, {setting:?}");
        let launcher = self.evil(evil, setting, &neighbour.pid().to_string());
        let module = match setting {
            Stateful => &self.modules[1],
            _ => &self.modules[0],
        };
        reset_peak_memory();
        let before = memory("VmHWM");
        let (mut instance, recorder) = self.start(&launcher, module, GUARD * 10);
        let mut connections = Vec::new();
        if let Stays(start) = outcome {
            let has_printed = || recorder.notices().lines.iter().any(|(_, line)| line.starts_with(start));
            Patience::poll(POLL_INTERVAL, || (start.is_empty() || has_printed()).then_some(()))
                .unwrap_or_else(|_| panic!("{case}: {recorder:?}"));
            if evil == "does not read" {
                // This message does not fit into the pipe, and the runner does not read it.
                instance.stop(StopReason::StepDown, "x".repeat(4 << 20), self.clock.now(), None);
            }
            connections.extend(std::iter::repeat_with(|| self.server.accept()).map_while(Result::ok));
            assert_eq!(connections.len(), if evil == "connects" { 20 } else { 0 });
            neighbour.keeps_printing(&case).await;
            if let Ok(ended) = tokio::time::timeout(POLL_INTERVAL, gone(&mut instance)).await {
                panic!("{case}: the instance ended before the kill: {ended:?}");
            }
            assert!(instance.remaining() > GUARD, "{case}: the runner has changed its deadline");
            assert!(instance.last_progress() <= self.clock.now(), "{case}");
            instance.kill();
            recorder.note_kill();
        }
        let gone = gone(&mut instance).await;
        if let Some(pid) = recorder.pid() {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{case}: the process outlives its instance");
        }
        for (connection, _) in connections {
            wait_until_closed(connection);
        }
        match (&gone.end, outcome) {
            (End::Crashed(why), Breaks(how)) => {
                assert!(why.contains("violated the protocol: ") && why.contains(how), "{case}: {why}");
            }
            (End::Crashed(why), Crashes(how)) => assert!(why.contains(how), "{case}: {:.200}", why),
            (End::Done, IsDone) | (End::Killed, Stays(_)) => {}
            (end, _) => panic!("{case}: {end:?}; {recorder:?}"),
        }
        let usage = instance.usage();
        assert_eq!(usage.files == u64::MAX, evil == "fills the tally" || evil == "says that it was refused");
        drop((instance, launcher));
        let grew = memory("VmHWM").saturating_sub(before);
        assert!(grew < MEMORY, "{case}: its host held {grew} KiB more");
        recorder.judge(&case);
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Recorder {
    clock: Clock,
    notices: Mutex<Notices>,
}

#[derive(Default, Debug)]
struct Notices {
    lines: Vec<(Time, String)>,
    /// The number of lines that the instance had printed when the test killed it.
    lines_when_killed: Option<usize>,
    logged: usize,
    others: usize,
}

impl Output for Recorder {
    fn notice(&self, notice: Notice<'_>) {
        let now = self.clock.now();
        let mut notices = self.notices();
        match notice {
            Notice::Line(_, line) => notices.lines.push((now, line.to_owned())),
            Notice::Log { .. } => notices.logged += 1,
            _ => notices.others += 1,
        }
    }
}

impl Recorder {
    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.notices.lock().unwrap()
    }

    fn note_kill(&self) {
        let mut notices = self.notices();
        notices.lines_when_killed = Some(notices.lines.len());
    }

    /// Returns the runner's pid, which is in the first line that the runner prints.
    fn pid(&self) -> Option<u32> {
        self.notices().lines.iter().find_map(|(_, line)| line.strip_prefix("pid ")?.parse().ok())
    }

    fn judge(&self, case: &str) {
        let notices = self.notices();
        for (_, line) in &notices.lines {
            let is_allowed = !line.ends_with(": done") || line == "localhost: done";
            assert!(is_allowed, "{case}: a forbidden attempt succeeded: {line}\n{notices:#?}");
        }
        assert!(notices.others <= 70, "{case}: too many notices: {}", notices.others);
        if let Some(before) = notices.lines_when_killed {
            // The host may have accepted one more line before the kill, but record the line only after the kill.
            assert!(notices.lines.len() <= before + 1, "{case}: the instance prints after the kill");
        }
    }
}

struct Neighbour {
    instance: Instance,
    recorder: Arc<Recorder>,
    /// Keeps the template process of the runner alive.
    _launcher: Launcher,
}

impl Neighbour {
    async fn keeps_printing(&mut self, case: &str) {
        let lines = || self.recorder.notices().lines.len();
        let before = lines();
        Patience::poll(POLL_INTERVAL, || (lines() > before + 10).then_some(()))
            .unwrap_or_else(|_| panic!("{case}: {:?}", self.recorder));
    }

    /// Returns the pid of the real runner. It is the only child of this process with the name of a real runner.
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

/// Tests that the host drops lines that an instance prints after its deadline.
async fn output_stops_at_deadline(host: &Host) {
    let launcher = host.evil("prints after its deadline", Plain, "0");
    launcher.runners.make_ready(&host.modules[0]).await.unwrap();
    let mut remaining = Duration::from_millis(600);
    // On a busy machine, the runner may not print before its deadline. If so, try a later deadline.
    while printed_until(host, &launcher, remaining).await < 3 {
        remaining *= 2;
        assert!(remaining < Duration::from_secs(60), "it prints nothing");
    }
}

/// Runs an instance whose deadline passes after `remaining`. Returns the number of lines printed before the deadline.
async fn printed_until(host: &Host, launcher: &Launcher, remaining: Duration) -> usize {
    let deadline = host.clock.now() + remaining;
    let (mut instance, recorder) = host.start(launcher, &host.modules[0], remaining);
    // A hostile runner does not exit at its deadline. The test therefore kills the instance a little later.
    while host.clock.now() < deadline + POLL_INTERVAL * 4 {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    instance.kill();
    let ended = gone(&mut instance).await;
    assert!(ended.end == End::Killed && host.clock.now() >= deadline, "{ended:?}");
    let late = recorder.notices().lines.iter().filter(|(at, _)| *at > deadline + POLL_INTERVAL).count();
    // The host may accept one line before the deadline, but record the line late, because its thread must wait for a
    // CPU.
    assert!(late <= 1, "{late} lines come out after the deadline: {recorder:?}");
    recorder.notices().lines.len() - late
}

fn wait_until_closed(mut connection: TcpStream) {
    connection.set_nonblocking(true).unwrap();
    let mut read = [0; 1 << 16];
    Patience::poll(POLL_INTERVAL, || match connection.read(&mut read) {
        Ok(0) => Some(()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(()),
        _ => None,
    })
    .expect("the connection is closed");
}

/// Resets the peak of this process's memory (`VmHWM`) to the current size.
fn reset_peak_memory() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Returns a memory size of this process, in KiB. `name` is the size's name in `/proc/self/status`.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel reports the size");
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}
