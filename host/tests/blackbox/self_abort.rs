//! Hosts whose instance does not end in time. Such a host never releases the lease. There are two cases:
//!
//! - If the instance may still run, the host kills itself before the lease expires.
//! - If the host has killed the instance, but the kernel does not end it, the host gives up leadership and keeps
//!   running.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::{freeze, hold, wait_until_log_blocks};
use crate::guests::Guest;
use crate::node::{Event, Launch, Node, until};
use crate::store::Store;

const LEASE: Duration = Duration::from_secs(40);

fn launch(fleet: &Fleet) -> Launch {
    fleet.launch_with("alpha", &[("--lease", "40s")])
}

fn ends_itself(node: &mut Node) {
    let status = node.wait();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status:?}");
}

fn is_not_released(fleet: &Fleet, term: u64) {
    let status = fleet.status();
    assert_eq!(status["term"], term, "{status}");
    assert_ne!(status["lease"], "free", "{status}");
}

/// Returns the event `aborting`, which the host logs just before it kills itself. Checks that the host logged neither
/// `ended` nor `released`.
fn last_words(fleet: &Fleet) -> Event {
    let events = fleet.journal.events();
    for never in ["ended", "released"] {
        assert!(events.iter().all(|event| event.name != never), "{events:?}");
    }
    events.into_iter().find(|event| event.name == "aborting").expect("the event `aborting`")
}

/// Starts a leader whose instance cannot be reaped until the returned sender is dropped.
fn held(fleet: &Fleet) -> (Node, u64, mpsc::Sender<()>) {
    let node = launch(fleet).start();
    let term = node.after(0, "started").term;
    let held = hold(&node);
    (node, term, held)
}

fn leaves_its_lease(node: &Node) -> Event {
    node.event("to leave its lease", |event| {
        event.name == "leadership_lost" && event.text("reason").contains("does not end")
    })
}

#[test]
fn host_survives_when_kernel_does_not_end_killed_instance() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let (mut node, term, held) = held(&fleet);
    fleet.store.renewed();
    let cut = OffsetDateTime::now_utc();
    let outage = fleet.store.cut();
    let killed = node.after(0, "killed");
    let left = leaves_its_lease(&node);
    // The host kills the instance soon after 0.7 D, and gives up leadership at 0.93 D, where D is the lease duration.
    // The check at 0.8 D shows that the host did not give up when it killed the instance.
    assert!(left.ts > cut + LEASE * 8 / 10, "the host gave up before 0.93 D: {left:?} {killed:?}");
    drop(outage);
    is_not_released(&fleet, term);
    let mut beta = fleet.node("beta");
    let next = beta.after(term, "started").term;
    let is_end = |event: &Event| event.from == "alpha" && event.name == "ended";
    assert!(!fleet.journal.events().iter().any(is_end), "the instance is still held");
    // Once the instance has ended, the node takes part in the election again.
    drop(held);
    node.after(0, "ended");
    node.event("to follow beta", |event| event.name == "standby" && event.text("leader") == "beta");
    assert_eq!(beta.terminate().code(), Some(0));
    node.after(next, "started");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn host_gives_up_when_its_dead_instance_is_not_reaped() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let (mut node, term, held) = held(&fleet);
    let beta = fleet.standby("beta", &node);
    // The test cannot see which of the runners runs the instance, so it kills both.
    for runner in node.runners() {
        kill_process(runner, Signal::KILL).expect("a running process");
    }
    // The host gives up leadership although its renewals still succeed.
    leaves_its_lease(&node);
    beta.after(term, "started");
    // After SIGTERM, the host does not wait for the instance, either.
    assert_eq!(node.terminate().code(), Some(0));
    drop(held);
    fleet.check_promises();
}

/// Stops the runners with SIGSTOP, so that the instance cannot end itself at its deadline.
fn stop_runners(node: &Node) {
    for runner in node.runners() {
        kill_process(runner, Signal::STOP).expect("a running process");
    }
}

#[test]
fn watchdog_ends_host_when_its_supervisor_is_stopped() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = launch(&fleet).start();
    let term = node.after(0, "started").term;
    stop_runners(&node);
    // Without its control threads, the host cannot renew its lease, and cannot stop or kill its instance.
    freeze(&node, "control");
    let safe = OffsetDateTime::now_utc();
    ends_itself(&mut node);
    is_not_released(&fleet, term);
    let words = last_words(&fleet);
    // The host logged its last event before the lease could have expired.
    assert!(words.ts < safe + LEASE, "{words:?} is not within D of {safe}");
    assert!(words.text("reason").contains("the host exits"), "{words:?}");
    fleet.check_promises();
}

#[test]
fn unread_log_does_not_delay_self_abort() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::FloodsThenLoops);
    // With this long lease, the host kills itself about 4 s before the lease expires, at 0.93 of the lease duration. So
    // the test has enough time to notice the end of the host.
    let lease = Duration::from_secs(60);
    let mut node = fleet.launch_with("alpha", &[("--lease", "60s")]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    wait_until_log_blocks(&node, "baton-log");
    stop_runners(&node);
    freeze(&node, "control");
    let safe = OffsetDateTime::now_utc();
    ends_itself(&mut node);
    let ended = OffsetDateTime::now_utc();
    assert!(ended < safe + lease, "the host ended {} after its last safe moment", ended - safe);
    is_not_released(&fleet, held["term"].as_u64().expect("a term"));
}

fn one_has_ended(node: &Node, runners: &[Pid]) {
    until("an instance to end at its deadline", || {
        let left = node.runners();
        if runners.iter().all(|runner| left.contains(runner)) { Err(left) } else { Ok(()) }
    });
}

fn ends_at_its_deadline(stop: impl FnOnce(&Node)) {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let node = launch(&fleet).start();
    let term = node.after(0, "started").term;
    let _standby = fleet.standby("beta", &node);
    // One runner runs the instance. The other one waits for the next term.
    let runners = until("a runner for the next term", || {
        let runners = node.runners();
        if runners.len() == 2 { Ok(runners) } else { Err(runners) }
    });
    stop(&node);
    one_has_ended(&node, &runners);
    assert!(node.runners().iter().any(|runner| runners.contains(runner)), "the waiting runner has no deadline");
    fleet.journal.event("the next term", |event| event.name == "started" && event.term > term);
    node.resume();
    node.event("its end", |event| event.name == "ended" && event.term == term);
    fleet.check_promises();
}

/// Asks a host how much time is left until its deadline, and then stops the host with SIGSTOP. Returns how long after
/// that deadline the runner ended. The result may be too high by up to the duration of the request. It is too low only
/// if the clocks of the host and the test differ.
fn ends_late_by() -> time::Duration {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = fleet.launch_with("alpha", &[("--lease", "4s")]).start();
    node.after(0, "started");
    let (at, runners) = (Endpoint::of(&node), node.runners());
    // The host computes the remaining time after this moment, so the test never estimates the deadline too late.
    let before = OffsetDateTime::now_utc();
    let left = sample(&at.ask("/metrics").body, &format!("baton_lease_remaining_seconds{{election=\"{ELECTION}\"}}"));
    node.signal(Signal::STOP);
    while runners.iter().all(|runner| node.runners().contains(runner)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = OffsetDateTime::now_utc() - (before + Duration::from_secs_f64(left));
    node.signal(Signal::KILL);
    node.wait();
    late
}

#[test]
fn runner_ends_within_50_ms_of_deadline_when_host_is_stopped() {
    const BAR: time::Duration = time::Duration::milliseconds(50);
    // The host uses the fastest of its clocks, but the test uses the wall clock. So the runner may seem to end slightly
    // early.
    const EARLY: time::Duration = time::Duration::milliseconds(-20);
    // In a single try, the runner may end late, because the machine is busy, or because a renewal moves the deadline
    // after the host has reported it. A runner with a coarser timer would be late in every try.
    let mut tries = Vec::new();
    while tries.len() < 20 && tries.iter().all(|late| *late >= BAR) {
        tries.push(ends_late_by());
    }
    assert!(tries.iter().all(|late| *late > EARLY), "{tries:?}");
    assert!(tries.iter().any(|late| *late < BAR), "{tries:?}");
}

#[test]
fn instance_ends_at_its_deadline_when_host_is_stopped() {
    ends_at_its_deadline(Node::pause_host);
}
