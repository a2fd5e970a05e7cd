//! Misbehaving guests. The instance always ends within D, the duration of the lease, and the host keeps running.

use std::time::Duration;

use rustix::process::Signal;
use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::wait_until_log_blocks;
use crate::guests::Guest;
use crate::node::{Event, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        looping_guest_is_ended_in_time,
        guest_that_ignores_stop_is_ended_in_time,
        unread_log_costs_only_lines,
        unread_log_does_not_delay_kill,
    ],
}

fn fleet(guest: Guest) -> Fleet {
    Fleet::new(Store::sqlite()).with(guest)
}

/// Checks that the host ends its guest in time, even if the guest ignores stop requests. There are three cases: the
/// store is cut off, the lease is broken, and the host shuts down. The host must survive the first two.
fn ends_in_time(fleet: &Fleet) {
    let mut node = fleet.node("alpha");
    let first = node.after(0, "started");

    let outage = fleet.store.cut();
    // The last successful renewal may have come just before the outage began. The lease lasts for D from that renewal,
    // so the test measures D from here.
    ends_within_d(fleet, first.term, OffsetDateTime::now_utc());
    drop(outage);

    let second = node.after(first.term, "started");
    fleet.store.break_lease();
    ends_within_d(fleet, second.term, OffsetDateTime::now_utc());

    let third = node.after(second.term, "started");
    assert_eq!(node.terminate().code(), Some(0), "the host exits cleanly after killing a guest");
    let stopping = fleet.journal.event("stopping", |event| event.name == "stopping" && event.term == third.term);
    ends_within_d(fleet, third.term, stopping.ts);
    fleet.check_promises();
}

/// Waits until the term's instance has ended. Checks that the instance ended less than D after `safe`, the time at
/// which the host lost the store or the lease, or began to shut down.
fn ends_within_d(fleet: &Fleet, term: u64, safe: OffsetDateTime) {
    let ended = fleet.journal.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < safe + fleet.lease(), "{ended:?} is not within D after {safe}");
}

fn looping_guest_is_ended_in_time(fleet: Fleet) {
    ends_in_time(&fleet.with(Guest::Loops));
}

fn guest_that_ignores_stop_is_ended_in_time(fleet: Fleet) {
    ends_in_time(&fleet.with(Guest::IgnoresStop));
}

#[test]
fn guest_that_blocks_in_host_call_is_ended_in_time() {
    ends_in_time(&fleet(Guest::WaitsForEver));
}

#[test]
fn flooding_guest_is_ended_in_time() {
    ends_in_time(&fleet(Guest::Floods));
}

#[test]
fn dropped_lines_are_reported_once_a_second() {
    let fleet = fleet(Guest::Floods);
    let node = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    let dropped = |events: &[Event]| -> Vec<Event> {
        let is_count = |event: &&Event| event.name == "output_dropped" && event.text("reason").contains("--max-output");
        events.iter().filter(is_count).cloned().collect()
    };
    let counts = fleet.journal.wait("eight counts", |events| Some(dropped(events)).filter(|counts| counts.len() >= 8));
    // The flood began after the election. The host reports the first count of dropped lines at once, and then one count
    // per second. So 8 counts take at least 7 s. The check tolerates 1 s less.
    let seconds = (counts[7].ts - node.after(0, "elected").ts).whole_seconds();
    assert!(seconds + 2 >= 8, "8 counts within {seconds} s: {counts:?}");
    assert!(counts.iter().all(|event| event.fields["lines"].as_u64() > Some(0)), "{counts:?}");
    drop(node);
    fleet.check_promises();
}

/// Checks that the host restarts a failed guest under the same lease.
fn fails_and_is_restarted(guest: Guest, says: &str) {
    let fleet = fleet(guest);
    let node = fleet.node("alpha");
    let first = node.after(0, "started");
    let ended = node.event("ended", |event| event.name == "ended" && event.term == first.term);
    assert!(ended.raw.contains(says), "no `{says}` in {ended:?}");
    let second = node.after(first.term, "started").term;
    let released = fleet.journal.events().iter().any(|event| event.name == "released" && event.term < second);
    assert!(!released, "a failure does not cost the lease: {:?}", fleet.journal.events());
    fleet.check_promises();
}

#[test]
fn trapping_guest_is_restarted() {
    fails_and_is_restarted(Guest::Traps, "unreachable");
}

#[test]
fn endlessly_recursing_guest_is_restarted() {
    fails_and_is_restarted(Guest::Recurses, "wasm trap");
}

#[test]
fn endlessly_allocating_guest_is_restarted() {
    fails_and_is_restarted(Guest::Allocates, "memory");
}

#[test]
fn guest_is_restarted_when_it_exits_with_status() {
    fails_and_is_restarted(Guest::Exits, "the coordinator exited with an error status");
}

#[test]
fn guest_is_restarted_after_retryable_failure() {
    fails_and_is_restarted(Guest::FailsRetryable, "try me again");
}

#[test]
fn stepping_down_guest_hands_off() {
    let fleet = fleet(Guest::StepsDown);
    let a = fleet.node("alpha");
    let first = fleet.beat_above(0);
    let b = fleet.node("beta");
    // If beta starts slowly, alpha may acquire the released lease again before beta does.
    let next = b.after(first.term, "elected");
    a.event("a hand-off", |event| event.name == "released" && event.term < next.term);
    let stopping = fleet.journal.event("stopping", |event| event.name == "stopping");
    assert_eq!(stopping.text("reason"), "step-down", "{stopping:?}");
    assert!(stopping.raw.contains("this guest wants to"), "{stopping:?}");
    fleet.check_promises();
}

#[test]
fn fatal_failure_costs_node_the_leadership() {
    let fleet = fleet(Guest::FailsFatally);
    let node = fleet.node("alpha");
    node.after(0, "ended");
    node.event("released", |event| event.name == "released");
    fleet.check_promises();
}

fn unread_log_costs_only_lines(fleet: Fleet) {
    let fleet = fleet.with(Guest::Floods);
    // The host would report the address of its endpoint in the log, but this test does not read the log. So the test
    // chooses the address.
    let endpoint = Endpoint::free();
    let admin = endpoint.0.to_string();
    let mut a = fleet.launch_with("alpha", &[("--admin", &admin), ("--lease", "60s")]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    wait_until_log_blocks(&a, "baton-log");
    let b = fleet.standby("beta", &a);
    let name = format!("baton_store_requests_total{{election=\"{ELECTION}\",operation=\"renew\",result=\"ok\"}}");
    let renewals = || sample(&endpoint.ask("/metrics").body, &name);
    let before = renewals();
    until("two renewals", || Some(renewals()).filter(|now| *now >= before + 2.0).ok_or(before));
    let status = fleet.status();
    let expected = (&"held".into(), &"alpha".into(), &term.into());
    assert_eq!((&status["lease"], &status["node"], &status["term"]), expected, "{status}");
    // The pipe is full, but a clean shutdown does not wait for a reader.
    assert_eq!(a.terminate().code(), Some(0));
    assert_eq!(b.after(term, "started").from, "beta");
}

/// The test cuts off the store while the host's log writer is blocked on a full pipe. If the host waited for the
/// writer, the host could not kill the instance in time. At 0.93 D, where D is the lease duration, it would end itself.
fn unread_log_does_not_delay_kill(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsThenLoops);
    // The host would report the address of its endpoint in the log, but this test does not read the log. So the test
    // chooses the address.
    let endpoint = Endpoint::free();
    let admin = endpoint.0.to_string();
    let mut node = fleet.launch_with("alpha", &[("--admin", &admin)]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    wait_until_log_blocks(&node, "baton-log");
    let outage = fleet.store.cut();
    let killed = format!("baton_instance_ends_total{{election=\"{ELECTION}\",outcome=\"killed\"}}");
    until("the instance to be killed", || {
        let page = endpoint.ask("/metrics").body;
        if sample(&page, &killed) > 0.0 { Ok(()) } else { Err(page) }
    });
    assert!(node.is_running(), "the host ended itself");
    drop(outage);
    let term = held["term"].as_u64();
    fleet.status_until("the next term", |status| status["lease"] == "held" && status["term"].as_u64() > term);
    assert!(node.is_running(), "the host exited");
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn second_signal_skips_grace() {
    let fleet = fleet(Guest::IgnoresStop);
    let mut node = fleet.launch_with("alpha", &[("--grace", "10m")]).start();
    node.after(0, "started");
    node.signal(Signal::TERM);
    let stopping = node.after(0, "stopping");
    let running = node.is_running();
    assert!(running, "the grace is not over");
    node.signal(Signal::INT);
    assert_eq!(node.wait().code(), Some(0));
    let ended = node.after(0, "ended");
    assert!(ended.ts - stopping.ts < Duration::from_secs(600), "{ended:?} came after the grace, not at the signal");
    let order: Vec<String> = fleet.journal.events().into_iter().map(|event: Event| event.name).collect();
    let at = |name: &str| order.iter().position(|other| other == name);
    assert!(at("ended") < at("released") && at("released").is_some(), "the release comes last: {order:?}");
    fleet.check_promises();
}

#[test]
fn moved_lease_file_ends_instance_until_it_is_restored() {
    let fleet = fleet(Guest::Beats);
    let (mut node, term) = fleet.leader("alpha");
    let (here, away) = (fleet.store.lease_file(), fleet.store.folder().join("away.db"));
    std::fs::rename(&here, &away).expect("the file is moved");
    let moved = OffsetDateTime::now_utc();
    let ended = node.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < moved + fleet.lease(), "{ended:?} is later than D after the move at {moved}");
    assert!(node.is_running(), "the host survives");
    std::fs::rename(&away, &here).expect("the file is moved back");
    fleet.beat_above(term);
    fleet.check_promises();
}
