//! An instance that does not end takes its host with it before the lease ends, and nothing is released.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::frozen::{freeze, hold, writes_in_vain};
use crate::guests::Guest;
use crate::node::{Event, Launch, Node, until};
use crate::store::Store;

/// D. From 0.93 D, when a host ends itself, to D there is little; more than on a busy machine may be lost.
const LEASE: Duration = Duration::from_secs(40);

fn launch(fleet: &Fleet) -> Launch {
    fleet.launch_with("alpha", &[("--lease", "40s")])
}

/// Waits for the end of a host that was last renewed before `safe`, and checks that it came by its own hand and before the
/// store could give the lease away.
fn ends_itself(node: &mut Node, safe: OffsetDateTime) {
    let status = node.wait();
    let ended = OffsetDateTime::now_utc();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status:?}");
    assert!(ended < safe + LEASE, "it ended {} after its last safe moment", ended - safe);
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
    for never in ["gone", "released"] {
        assert!(events.iter().all(|event| event.name != never), "{events:?}");
    }
    events.into_iter().find(|event| event.name == "aborting").expect("it says why it ends")
}

#[test]
fn an_instance_whose_process_cannot_be_reaped_takes_its_host_with_it() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = launch(&fleet).start();
    let term = node.after(0, "started").term;
    let _held = hold(&node);
    let outage = fleet.store.cut();
    // No renewal succeeds after this.
    let safe = OffsetDateTime::now_utc();
    let killed = node.after(0, "killed");
    ends_itself(&mut node, safe);
    drop(outage);
    is_not_released(&fleet, term);
    let words = last_words(&fleet);
    assert!(words.text("reason").contains("not gone"), "{words:?}");
    assert!(words.ts - killed.ts > LEASE / 10, "0.93 D, not the kill, is its time: {words:?} {killed:?}");
    let _b = fleet.node("beta");
    fleet.journal.event("the next term", |event| event.name == "started" && event.term > term);
    fleet.check_promises();
}

#[test]
fn a_host_whose_supervisor_does_not_run_is_ended_by_its_watchdog() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::Loops);
    let mut node = launch(&fleet).start();
    let term = node.after(0, "started").term;
    // What ends at its deadline all the same is not gone before it is reaped.
    let _held = hold(&node);
    // Nobody renews, stops or kills any more.
    freeze(&node, "control");
    ends_itself(&mut node, OffsetDateTime::now_utc());
    is_not_released(&fleet, term);
    let words = last_words(&fleet);
    assert!(words.text("reason").contains("the host ends itself"), "{words:?}");
    fleet.check_promises();
}

#[test]
fn words_that_nobody_reads_do_not_delay_the_end() {
    let fleet = Fleet::new(Store::sqlite()).with(Guest::FloodsThenLoops);
    let mut node = launch(&fleet).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    writes_in_vain(&node, "baton-log");
    let _held = hold(&node);
    freeze(&node, "control");
    ends_itself(&mut node, OffsetDateTime::now_utc());
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
    node.event("its end", |event| event.name == "gone" && event.term == term);
    fleet.check_promises();
}

#[test]
fn an_instance_ends_at_its_deadline_though_its_host_is_stopped() {
    ends_at_its_deadline(|node| {
        node.pause_host();
        kill_process(node.warden(), Signal::STOP).expect("it can be stopped");
    });
}

#[test]
fn a_runner_that_does_not_end_itself_is_ended_by_the_warden() {
    ends_at_its_deadline(|node| {
        node.pause();
        kill_process(node.warden(), Signal::CONT).expect("it can go on");
    });
}
