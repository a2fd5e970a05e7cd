//! Instances of real guests in processes of their own, whose host is this one, without a lease: how they end, and what

//! they may ask of the host.

mod files;
mod http;
mod requests;
mod successions;

use baton_test_support::{gone, guests, patience};

use std::io::BufRead as _;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, End, StopReason};
use baton_runtime::{
    CLAIM_AHEAD, Engine, Instance, Launcher, Limits, Module, Notice, Output, Policy, Postmortem, Processes, Purpose,
    Runners, RunningInstances, Templates,
};
use baton_store::MemoryStore;
use baton_store::clock::Clock;
use baton_store::gate::{Gate, Watchdog};
use baton_store::state;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use gone::gone;
use guests::Guest;
use patience::Patience;

/// Longer than any test takes, for deadlines that are not meant to come. Nothing is measured by it.
const GUARD: Duration = Duration::from_secs(30);

/// The length of a lease where one counts.
const D: Duration = Duration::from_secs(60);

/// A launcher of the fixture that behaves as it is told.
fn launcher(behaviour: &str) -> Launcher {
    launcher_under(Policy { limits: Limits { memory: 64 << 20, ..Limits::default() }, ..Policy::default() }, behaviour)
}

/// The same under another policy.
fn launcher_under(policy: Policy, behaviour: &str) -> Launcher {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |why, _| eprintln!("the watchdog ends this process: {why}"));
    Launcher {
        election: ElectionName::new("fleet").unwrap(),
        node: "alpha".to_owned(),
        runners: runners(policy),
        states: Arc::new(MemoryStore::new(Arc::new(|| Duration::ZERO))),
        handover: state::Handover::default(),
        read_ahead: state::ReadAhead::default(),
        claim_ahead: CLAIM_AHEAD,
        postmortem: Postmortem::default(),
        arguments: Vec::new(),
        env: vec![("BEHAVIOUR".to_owned(), behaviour.to_owned()), ("BEAT_MS".to_owned(), "5".to_owned())],
        config: Vec::new(),
        secrets: Vec::new(),
        running: RunningInstances::default(),
        clock,
        watchdog: Arc::new(watchdog.unwrap()),
    }
}

/// Runners of the real program, whose host is this process.
fn runners(policy: Policy) -> Runners {
    let templates = Templates::new(env!("CARGO_BIN_EXE_baton").into(), &Processes::new().unwrap());
    Runners::new(policy, &templates, &Handle::current())
}

fn engine() -> Engine {
    Engine::new(Purpose::default()).unwrap()
}

/// The fixture.
fn module() -> Module {
    Module::load(&engine(), &Guest::Beats.module()).unwrap()
}

/// An instance with so long to its deadline, and the lines that it prints.
fn start(behaviour: &str, deadline: Duration) -> (Instance, mpsc::UnboundedReceiver<String>) {
    let (module, launcher) = (module(), launcher(behaviour));
    let (sender, lines) = mpsc::unbounded_channel();
    let now = launcher.clock.now();
    (launcher.start(&module, 1, now + deadline, now + deadline + GUARD * 10, Arc::new(Lines(sender))), lines)
}

struct Lines(mpsc::UnboundedSender<String>);

impl Output for Lines {
    fn notice(&self, notice: Notice<'_>) {
        if let Notice::Line(_, line) = notice {
            // Some tests do not listen.
            let _ = self.0.send(line.to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_guest_without_host_calls_is_ended() {
    let (mut instance, mut lines) = start("busy", GUARD * 10);
    // The last thing that it asks of the host. From here on no call of it comes by where it could be dropped.
    assert_eq!(Patience::of_future(lines.recv()).await.unwrap().as_deref(), Some("busy in term 1"));
    instance.stop(StopReason::Shutdown, "no answer is expected".to_owned(), instance.started(), None);
    instance.kill();
    assert_eq!(gone(&mut instance).await.end, End::Killed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_busy_guests_on_few_threads_are_all_ended() {
    let mut instances: Vec<_> = (0..6).map(|_| start("busy", GUARD * 10)).collect();
    for (instance, lines) in &mut instances {
        Patience::of_future(lines.recv()).await.expect("each gets its turn").expect("a line");
        // Dropped store after dropped store: the threads go on with the others meanwhile.
        instance.kill();
    }
    for (instance, _) in &mut instances {
        assert_eq!(gone(instance).await.end, End::Killed);
    }
}

/// Its deadline passes and nobody kills it: it ends by itself, since its effects are refused.
async fn is_reported_as_killed(behaviour: &str) {
    let (mut patience, mut deadline) = (Patience::default(), Duration::from_millis(300));
    loop {
        let (mut instance, mut lines) = start(behaviour, deadline);
        let gone = gone(&mut instance).await;
        assert_eq!((gone.end, gone.backtrace), (End::Killed, None));
        if lines.recv().await.is_some() {
            return;
        }
        // On a busy machine it had no time before.
        assert!(patience.lasts(), "nothing is written within {deadline:?}");
        deadline *= 2;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_traps_since_its_write_was_refused_was_killed() {
    is_reported_as_killed("mutter").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_fails_since_its_write_was_refused_was_killed() {
    is_reported_as_killed("refused").await;
}

/// The process that the test below starts.
#[test]
#[ignore = "ends its process"]
fn the_watchdog_ends_this_process() {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |_, longest| {
        println!("\nasked {}", longest.as_nanos());
        loop {
            std::thread::park();
        }
    });
    let watchdog = watchdog.unwrap();
    let now = clock.now();
    // 0.93 of a lease of 60 s.
    let overdue = Arc::new(Gate::new(clock, now - D * 13 / 100, now));
    watchdog.watch(&overdue);
    std::thread::sleep(GUARD * 10);
}

#[test]
fn last_words_that_block_keep_the_process_for_a_part_of_what_is_left_of_the_lease() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture", "instances::the_watchdog_ends_this_process"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let status = Patience::poll(Duration::from_millis(5), || child.try_wait().unwrap()).unwrap_or_else(|_| {
        child.kill().unwrap();
        panic!("the watchdog waits for its own words");
    });
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL), "{status:?}");
    let said = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
    let asked = said.lines().find_map(|line| line.strip_prefix("asked ")).expect("it was asked for its last words");
    let longest = Duration::from_nanos(asked.parse().unwrap());
    assert!(longest > D / 50 && longest < D * 7 / 200, "the words had {longest:?} of the 0.07 D after 0.93 D");
}

/// The process that the test below starts.
#[test]
#[ignore = "ends its process"]
fn the_watchdog_of_a_host_that_is_paused_again_and_again_ends_this_process() {
    let clock = Clock::default();
    let watchdog = Watchdog::start(clock.clone(), |_, _| {}).unwrap();
    let now = clock.now();
    let gate = Arc::new(Gate::new(clock, now + Duration::from_secs(1), now + Duration::from_secs(2)));
    watchdog.watch(&gate);
    println!("\nwatched");
    std::thread::sleep(GUARD * 10);
}

#[test]
fn a_host_that_is_paused_again_and_again_ends_itself_all_the_same() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "--nocapture"])
        .arg("instances::the_watchdog_of_a_host_that_is_paused_again_and_again_ends_this_process")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "watched"));
    let pid = Pid::from_child(&child);
    // Each pause is longer than the half of a second by which one is told, and what it runs between two is far less
    // than the second that a kill has.
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
            panic!("it goes on after its pauses");
        }
    };
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(libc::SIGKILL), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_traps_by_itself_has_failed_with_a_backtrace() {
    let (mut instance, _lines) = start("panic", GUARD * 10);
    let gone = gone(&mut instance).await;
    assert!(matches!(&gone.end, End::Crashed(why) if why.contains("unreachable")), "{gone:?}");
    assert!(gone.backtrace.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_call_cannot_make_the_host_hold_as_much_as_the_guest_likes() {
    let (mut instance, mut lines) = start("long-reason", GUARD * 10);
    let gone = gone(&mut instance).await;
    assert!(matches!(&gone.end, End::Crashed(why) if why.contains("fuel")), "{gone:?}");
    while let Some(line) = lines.recv().await {
        assert_ne!(line, "the host took it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exit_has_no_number_that_nobody_said() {
    let (mut instance, _lines) = start("exit", GUARD * 10);
    assert_eq!(gone(&mut instance).await.end, End::Failed("the coordinator exited with an error status".to_owned()));
}
