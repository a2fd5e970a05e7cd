//! What happens to a host whose instance is not gone in time. One that may still run takes its host with it, before the
//! lease ends. One that was killed, and that the system does not end, costs its own lease and nothing else. Nothing is
//! released.

use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::{freeze, hold, writes_in_vain};
use crate::guests::Guest;
use crate::node::{Event, Launch, Node, until};
use crate::store::Store;

/// D.
const LEASE: Duration = Duration::from_secs(40);

fn launch(fleet: &Fleet) -> Launch {
    fleet.launch_with("alpha", &[("--lease", "40s")])
}

/// Waits for the end of a host, and checks that it came by its own hand.
fn ends_itself(node: &mut Node) {
    let status = node.wait();
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{status:?}");
}

/// Checks that the lease of a host that has ended itself was left to run out.
fn is_not_released(fleet: &Fleet, term: u64) {
    let lease = fleet.status();
    assert_eq!(lease["term"], term, "{lease}");
    assert_ne!(lease["lease"], "free", "{lease}");
}

/// What the host said before it ended itself.
fn last_words(fleet: &Fleet) -> Event {
    let events = fleet.journal.events();
    for never in ["ended", "released"] {
        assert!(events.iter().all(|event| event.name != never), "{events:?}");
    }
    events.into_iter().find(|event| event.name == "aborting").expect("it says why it ends")
}

/// A leader whose instance cannot be reaped, the term, and what lets go of the instance.
fn held(fleet: &Fleet) -> (Node, u64, mpsc::Sender<()>) {
    let node = launch(fleet).start();
    let term = node.after(0, "started").term;
    let held = hold(&node);
    (node, term, held)
}

/// Waits until a node has left its lease to run out, since the system does not end its instance.
fn leaves_its_lease(node: &Node) -> Event {
    node.event("to leave its lease", |event| {
        event.name == "leadership_lost" && event.text("reason").contains("does not end")
    })
}

#[test]
fn a_killed_instance_that_the_system_does_not_end_costs_its_lease_and_not_its_host() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let (mut node, term, held) = held(&fleet);
    fleet.store.renewed();
    let cut = OffsetDateTime::now_utc();
    let outage = fleet.store.cut();
    let killed = node.after(0, "killed");
    let left = leaves_its_lease(&node);
    // The kill comes soon after 0.7 D.
    assert!(left.ts > cut + LEASE * 8 / 10, "0.93 D, not the kill, is its time: {left:?} {killed:?}");
    drop(outage);
    is_not_released(&fleet, term);
    let mut beta = fleet.node("beta");
    let next = beta.after(term, "started").term;
    let gone = |event: &Event| event.from == "alpha" && event.name == "ended";
    assert!(!fleet.journal.events().iter().any(gone), "it is held still");
    // Once it has ended the node takes part again.
    drop(held);
    node.after(0, "ended");
    node.event("to follow beta", |event| event.name == "standby" && event.text("leader") == "beta");
    assert_eq!(beta.terminate().code(), Some(0));
    node.after(next, "started");
    assert_eq!(node.terminate().code(), Some(0));
    fleet.check_promises();
}

#[test]
fn an_instance_that_ends_by_itself_and_is_not_gone_does_not_lead_for_ever() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let (mut node, term, held) = held(&fleet);
    let beta = fleet.standby("beta", &node);
    // Which of them runs the instance is not seen from outside, and the other one is not missed.
    for runner in node.runners() {
        kill_process(runner, Signal::KILL).expect("it is there");
    }
    // The store is well, and the lease could be renewed for as long as one likes.
    leaves_its_lease(&node);
    beta.after(term, "started");
    // It does not wait for that when it is to end, either.
    assert_eq!(node.terminate().code(), Some(0));
    drop(held);
    fleet.check_promises();
}

/// Keeps an instance from ending itself at its deadline.
fn is_ended_by_nobody(node: &Node) {
    for runner in node.runners() {
        kill_process(runner, Signal::STOP).expect("it can be stopped");
    }
}

#[test]
fn a_host_whose_supervisor_does_not_run_is_ended_by_its_watchdog() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = launch(&fleet).start();
    let term = node.after(0, "started").term;
    is_ended_by_nobody(&node);
    // Nobody renews, stops or kills any more.
    freeze(&node, "control");
    let safe = OffsetDateTime::now_utc();
    ends_itself(&mut node);
    is_not_released(&fleet, term);
    let words = last_words(&fleet);
    // The store could not give the lease away yet.
    assert!(words.ts < safe + LEASE, "{words:?} is not within D of {safe}");
    assert!(words.text("reason").contains("the host ends itself"), "{words:?}");
    fleet.check_promises();
}

#[test]
fn words_that_nobody_reads_do_not_delay_the_end() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::FloodsThenLoops);
    // From 0.93 D, when a host ends itself, there are 4 s to D.
    let lease = Duration::from_secs(60);
    let mut node = fleet.launch_with("alpha", &[("--lease", "60s")]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    writes_in_vain(&node, "baton-log");
    is_ended_by_nobody(&node);
    freeze(&node, "control");
    let safe = OffsetDateTime::now_utc();
    ends_itself(&mut node);
    let ended = OffsetDateTime::now_utc();
    assert!(ended < safe + lease, "it ended {} after its last safe moment", ended - safe);
    is_not_released(&fleet, held["term"].as_u64().expect("a term"));
}

/// Waits until one of these, of which one runs an instance, has ended.
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
    // The second one waits for the next term, and goes on to wait.
    let runners = until("a runner for the next term", || {
        let runners = node.runners();
        if runners.len() == 2 { Ok(runners) } else { Err(runners) }
    });
    stop(&node);
    one_has_ended(&node, &runners);
    assert!(node.runners().iter().any(|runner| runners.contains(runner)), "the other one has no deadline");
    fleet.journal.event("the next term", |event| event.name == "started" && event.term > term);
    node.resume();
    node.event("its end", |event| event.name == "ended" && event.term == term);
    fleet.check_promises();
}

/// Stops a host that has reported the time left to its deadline. Returns the time from that deadline to the end of
/// its runner, plus at most what the question took.
fn ends_late_by() -> time::Duration {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = fleet.launch_with("alpha", &[("--lease", "4s")]).start();
    node.after(0, "started");
    let (at, runners) = (Endpoint::of(&node), node.runners());
    // The host computes the time left later than this.
    let asked = OffsetDateTime::now_utc();
    let left = sample(&at.ask("/metrics").body, &format!("baton_lease_remaining_seconds{{election=\"{ELECTION}\"}}"));
    node.signal(Signal::STOP);
    while runners.iter().all(|runner| node.runners().contains(runner)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let late = OffsetDateTime::now_utc() - (asked + Duration::from_secs_f64(left));
    node.signal(Signal::KILL);
    node.wait();
    late
}

#[test]
fn runner_ends_within_50_ms_of_its_deadline_while_its_host_is_stopped() {
    const BAR: time::Duration = time::Duration::milliseconds(50);
    // The wall clock may be slewed, and the host counts by its fastest clock.
    const EARLY: time::Duration = time::Duration::milliseconds(-20);
    // A renewal between the question and the stop moves the deadline, and a busy machine is late: but not each time. A
    // runner whose timer is coarser never meets the bar.
    let mut tries = Vec::new();
    while tries.len() < 20 && tries.iter().all(|late| *late >= BAR) {
        tries.push(ends_late_by());
    }
    assert!(tries.iter().all(|late| *late > EARLY), "{tries:?}");
    assert!(tries.iter().any(|late| *late < BAR), "{tries:?}");
}

#[test]
fn an_instance_ends_at_its_deadline_though_its_host_is_stopped() {
    ends_at_its_deadline(Node::pause_host);
}
