//! Tests of real guests, with this process as their host and without a lease: how instances end, and how they make
//! requests to the host.

mod files;
mod http;
mod requests;
mod successions;

use baton_test_support::{gone, guests, patience};

use std::io::BufRead as _;
use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::gate::{Gate, Watchdog};
use baton_election::{ElectionName, End, StopReason};
use baton_runtime::{
    CLAIM_AHEAD, Engine, Instance, InstanceHandle as _, Launcher, Limits, Module, Notice, Output, Policy, Processes,
    Runners, RunningInstances, Templates,
};
use baton_store::MemoryStore;
use baton_store::state;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use gone::gone;
use guests::Guest;
use patience::Patience;

/// A time that is longer than any test takes. Use it for deadlines that must not pass, but not for measurements.
const GUARD: Duration = Duration::from_secs(30);

/// The length of the lease in the tests of the watchdog.
const D: Duration = Duration::from_secs(60);

fn launcher(behaviour: &str) -> Launcher {
    launcher_under(Policy { limits: Limits { memory: 64 << 20, ..Limits::default() }, ..Policy::default() }, behaviour)
}

fn launcher_under(policy: Policy, behaviour: &str) -> Launcher {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |why, _| eprintln!("the watchdog ends this process: {why}"));
    Launcher {
        election: ElectionName::new("fleet").unwrap(),
        shards: 1,
        node: "alpha".to_owned(),
        runners: runners(policy),
        states: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))),
        handover: state::Handover::default(),
        read_ahead: state::ReadAhead::default(),
        claim_ahead: CLAIM_AHEAD,
        arguments: Vec::new(),
        env: vec![("BEHAVIOUR".to_owned(), behaviour.to_owned()), ("BEAT_MS".to_owned(), "5".to_owned())],
        config: Vec::new(),
        secrets: Vec::new(),
        running: RunningInstances::default(),
        clock,
        watchdog: Arc::new(watchdog.unwrap()),
    }
}

/// Returns runners that run the real binary, with this process as their host.
fn runners(policy: Policy) -> Runners {
    let templates = Templates::new(env!("CARGO_BIN_EXE_baton").into(), &Processes::new().unwrap());
    Runners::new(policy, &templates, &Handle::current())
}

fn engine() -> Engine {
    Engine::new().unwrap()
}

fn module() -> Module {
    Module::load(&engine(), &Guest::Beats.module()).unwrap()
}

/// Starts an instance whose deadline is `deadline` from now. Also returns the lines that the instance prints.
fn start(behaviour: &str, deadline: Duration) -> (Instance, mpsc::UnboundedReceiver<String>) {
    let (module, launcher) = (module(), launcher(behaviour));
    let (sender, lines) = mpsc::unbounded_channel();
    let now = launcher.clock.now();
    (launcher.start(&module, 1, None, now + deadline, now + deadline + GUARD * 10, Arc::new(Lines(sender))), lines)
}

struct Lines(mpsc::UnboundedSender<String>);

impl Output for Lines {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Line(_, line) = notice {
            // Sending fails in tests that have dropped the receiver.
            let _ = self.0.send(line.to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_guest_without_host_calls_can_be_killed() {
    let (mut instance, mut lines) = start("busy", GUARD * 10);
    // After this line, the guest makes no more calls to the host. Therefore, no refused call can end the guest.
    assert_eq!(Patience::of_future(lines.recv()).await.unwrap().as_deref(), Some("busy in term 1"));
    instance.stop(StopReason::Shutdown, "no answer is expected".to_owned(), instance.started(), None);
    instance.kill();
    assert_eq!(gone(&mut instance).await.end, End::Killed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_busy_guests_on_few_threads_can_be_killed() {
    let mut instances: Vec<_> = (0..6).map(|_| start("busy", GUARD * 10)).collect();
    for (instance, lines) in &mut instances {
        Patience::of_future(lines.recv()).await.expect("each gets its turn").expect("a line");
        instance.kill();
    }
    for (instance, _) in &mut instances {
        assert_eq!(gone(instance).await.end, End::Killed);
    }
}

/// Checks that the host reports an instance as killed if it runs past its deadline. The test does not kill the
/// instance: it ends by itself, because the host refuses its effects.
async fn assert_reported_as_killed(behaviour: &str) {
    let (mut patience, mut deadline) = (Patience::default(), Duration::from_millis(300));
    loop {
        let (mut instance, mut lines) = start(behaviour, deadline);
        let gone = gone(&mut instance).await;
        assert_eq!((gone.end, gone.backtrace), (End::Killed, None));
        if lines.recv().await.is_some() {
            return;
        }
        // On a busy machine, the instance may be too slow to write before its deadline. If so, try a later deadline.
        assert!(patience.lasts(), "nothing is written within {deadline:?}");
        deadline *= 2;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_counts_as_killed_if_it_traps_after_refused_write() {
    assert_reported_as_killed("mutter").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_counts_as_killed_if_it_fails_after_refused_write() {
    assert_reported_as_killed("refused").await;
}

/// Runs in a child process of the test below, which checks how the watchdog ends this process.
#[test]
#[ignore = "ends its process"]
fn watchdog_ends_this_process() {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |_, longest| {
        println!("\nasked {}", longest.as_nanos());
        loop {
            std::thread::park();
        }
    });
    let watchdog = watchdog.unwrap();
    let now = clock.now();
    // A deadline is 0.8 D after the last renewal. This deadline passed 0.13 D ago, so 0.93 D have passed since the
    // renewal. At that time, the watchdog ends the process.
    let overdue = Arc::new(Gate::new(clock, now - D * 13 / 100, now));
    watchdog.watch(&overdue);
    std::thread::sleep(GUARD * 10);
}

#[test]
fn watchdog_kills_process_whose_last_message_blocks() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "instances::watchdog_ends_this_process"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let status = Patience::poll(Duration::from_millis(5), || child.try_wait().unwrap()).unwrap_or_else(|_| {
        child.kill().unwrap();
        panic!("the watchdog waits for its message");
    });
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{status:?}");
    let output = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let asked = output.lines().find_map(|line| line.strip_prefix("asked ")).expect("the watchdog asks for a message");
    let longest = Duration::from_nanos(asked.parse().unwrap());
    assert!(longest > D / 50 && longest < D * 7 / 200, "the message had {longest:?} of the 0.07 D after 0.93 D");
}

/// Runs in a child process of the test below, which checks that the watchdog ends this process.
#[test]
#[ignore = "ends its process"]
fn watchdog_ends_this_process_despite_pauses() {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |_, _| {}).unwrap();
    let now = clock.now();
    let gate = Arc::new(Gate::new(clock, now + Duration::from_secs(1), now + Duration::from_secs(2)));
    watchdog.watch(&gate);
    println!("\nwatched");
    std::thread::sleep(GUARD * 10);
}

#[test]
fn watchdog_kills_host_that_is_paused_repeatedly() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("instances::watchdog_ends_this_process_despite_pauses")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "watched"));
    let pid = Pid::from_child(&child);
    // The watchdog recognizes pauses longer than 0.5 s, and may need one second to kill the process. Between two
    // pauses, the process runs for far less than one second.
    let mut patience = Patience::default();
    let ended = loop {
        kill_process(pid, Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_millis(700));
        kill_process(pid, Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if !patience.lasts() {
            child.kill().unwrap();
            panic!("the watchdog does not kill the process");
        }
    };
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap_is_reported_with_a_backtrace() {
    let (mut instance, _lines) = start("panic", GUARD * 10);
    let gone = gone(&mut instance).await;
    assert!(matches!(&gone.end, End::Crashed(why) if why.contains("unreachable")), "{gone:?}");
    assert!(gone.backtrace.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guest_cannot_pass_unlimited_data_in_one_call() {
    let (mut instance, mut lines) = start("long-reason", GUARD * 10);
    let gone = gone(&mut instance).await;
    assert!(matches!(&gone.end, End::Crashed(why) if why.contains("fuel")), "{gone:?}");
    while let Some(line) = lines.recv().await {
        assert_ne!(line, "the host took it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_is_reported_without_an_invented_number() {
    let (mut instance, _lines) = start("exit", GUARD * 10);
    assert_eq!(gone(&mut instance).await.end, End::Failed("the coordinator exited with an error status".to_owned()));
}
