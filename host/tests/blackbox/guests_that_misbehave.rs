//! Whatever the guest does, it is gone before D, and the host goes on.

use std::time::Duration;

use rustix::process::Signal;
use time::OffsetDateTime;

use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::frozen::writes_in_vain;
use crate::guests::Guest;
use crate::node::{Event, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        a_guest_that_loops_for_ever,
        a_guest_that_ignores_the_stop,
        a_log_that_nobody_reads_costs_lines_and_nothing_else,
        a_log_that_nobody_reads_delays_no_kill,
    ],
}

/// A fleet with that guest on the embedded store.
fn fleet(guest: Guest) -> Fleet {
    Fleet::new(Store::sqlite()).with(guest)
}

/// A leader whose guest does not heed a stop: gone in time when the store is away, when the lease is
/// broken and when the host is asked to end; and the host survives the first two.
fn is_ended_in_time(fleet: &Fleet) {
    let mut node = fleet.node("alpha");
    let first = node.after(0, "started");

    let outage = fleet.store.cut();
    // Until here a renewal may have succeeded.
    gone_before_d(fleet, first.term, OffsetDateTime::now_utc());
    drop(outage);

    let second = node.after(first.term, "started");
    fleet.store.break_lease();
    gone_before_d(fleet, second.term, OffsetDateTime::now_utc());

    let third = node.after(second.term, "started");
    assert_eq!(node.terminate().code(), Some(0), "killing a guest is not the host's end");
    let stopping = fleet.journal.event("stopping", |event| event.name == "stopping" && event.term == third.term);
    gone_before_d(fleet, third.term, stopping.ts);
    fleet.check_promises();
}

/// Waits until that term's instance is gone, killed or because its effects are refused, and checks that
/// this took less than D from a moment at which the lease was still safe.
fn gone_before_d(fleet: &Fleet, term: u64, safe: OffsetDateTime) {
    let gone = fleet.journal.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < safe + fleet.lease(), "{gone:?} is not within D of {safe}");
}

fn a_guest_that_loops_for_ever(fleet: Fleet) {
    is_ended_in_time(&fleet.with(Guest::Loops));
}

fn a_guest_that_ignores_the_stop(fleet: Fleet) {
    is_ended_in_time(&fleet.with(Guest::IgnoresStop));
}

#[test]
fn a_guest_that_waits_for_ever_in_a_host_call() {
    is_ended_in_time(&fleet(Guest::WaitsForEver));
}

#[test]
fn a_guest_that_floods_its_output() {
    is_ended_in_time(&fleet(Guest::Floods));
}

#[test]
fn lines_that_come_too_fast_are_counted_and_told_of_once_a_second() {
    let fleet = fleet(Guest::Floods);
    let node = fleet.launch_with("alpha", &[("--lease", "60s")]).start();
    let dropped = |events: &[Event]| -> Vec<Event> {
        let is_told = |event: &&Event| event.name == "output_dropped" && event.text("reason").contains("--max-output");
        events.iter().filter(is_told).cloned().collect()
    };
    let told = fleet.journal.wait("eight counts", |events| Some(dropped(events)).filter(|told| told.len() >= 8));
    // The flood began after the election, and one count comes at once.
    let seconds = (told[7].ts - node.after(0, "elected").ts).whole_seconds();
    assert!(seconds + 2 >= 8, "8 counts within {seconds} s: {told:?}");
    assert!(told.iter().all(|event| event.fields["lines"].as_u64() > Some(0)), "{told:?}");
    drop(node);
    fleet.check_promises();
}

/// A guest that fails by itself: the next term follows under the same lease, and the host says why.
fn fails_and_is_started_again(guest: Guest, says: &str) {
    let fleet = fleet(guest);
    let node = fleet.node("alpha");
    let first = node.after(0, "started");
    let gone = node.event("ended", |event| event.name == "ended" && event.term == first.term);
    assert!(gone.raw.contains(says), "`{says}` is not said: {gone:?}");
    let second = node.after(first.term, "started").term;
    let released = fleet.journal.events().iter().any(|event| event.name == "released" && event.term < second);
    assert!(!released, "one failure does not cost the lease: {:?}", fleet.journal.events());
    fleet.check_promises();
}

#[test]
fn a_guest_that_traps() {
    fails_and_is_started_again(Guest::Traps, "unreachable");
}

#[test]
fn a_guest_that_recurses_without_end() {
    fails_and_is_started_again(Guest::Recurses, "wasm trap");
}

#[test]
fn a_guest_that_allocates_without_end() {
    fails_and_is_started_again(Guest::Allocates, "memory");
}

#[test]
fn a_guest_that_exits_with_a_status() {
    fails_and_is_started_again(Guest::Exits, "the coordinator exited with an error status");
}

#[test]
fn a_guest_that_returns_a_retryable_failure() {
    fails_and_is_started_again(Guest::FailsRetryable, "try me again");
}

#[test]
fn a_guest_that_steps_down_hands_off() {
    let fleet = fleet(Guest::StepsDown);
    let a = fleet.node("alpha");
    let first = fleet.beat_above(0);
    let b = fleet.node("beta");
    // Where beta takes long to start, alpha leads once more, as what has been free for long.
    let next = b.after(first.term, "elected");
    a.event("a hand-off", |event| event.name == "released" && event.term < next.term);
    let stopping = fleet.journal.event("stopping", |event| event.name == "stopping");
    assert_eq!(stopping.text("reason"), "step-down", "{stopping:?}");
    assert!(stopping.raw.contains("this guest wants to"), "{stopping:?}");
    fleet.check_promises();
}

#[test]
fn a_guest_that_fails_fatally_costs_its_node_the_leadership() {
    let fleet = fleet(Guest::FailsFatally);
    let node = fleet.node("alpha");
    node.after(0, "ended");
    node.event("released", |event| event.name == "released");
    fleet.check_promises();
}

fn a_log_that_nobody_reads_costs_lines_and_nothing_else(fleet: Fleet) {
    let fleet = fleet.with(Guest::Floods);
    // Nobody reads the log, which would say where the endpoint is.
    let endpoint = Endpoint::free();
    let admin = endpoint.0.to_string();
    let mut a = fleet.launch_with("alpha", &[("--admin", &admin), ("--lease", "60s")]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    writes_in_vain(&a, "baton-log");
    // Somebody else tries, and the leader goes on renewing.
    let b = fleet.standby("beta", &a);
    let name = format!("baton_store_requests_total{{election=\"{ELECTION}\",operation=\"renew\",result=\"ok\"}}");
    let renewals = || sample(&endpoint.ask("/metrics").body, &name);
    let before = renewals();
    until("two renewals", || Some(renewals()).filter(|now| *now >= before + 2.0).ok_or(before));
    let status = fleet.status();
    let expected = (&"held".into(), &"alpha".into(), &term.into());
    assert_eq!((&status["lease"], &status["node"], &status["term"]), expected, "{status}");
    // The pipe is as full as it gets: the orderly end does not wait for it.
    assert_eq!(a.terminate().code(), Some(0));
    assert_eq!(b.after(term, "started").from, "beta");
}

/// The host's log writer hangs in a full pipe when the store goes away. A host that waited for the writer would find its
/// instance still there at 0.93 D, and end itself.
fn a_log_that_nobody_reads_delays_no_kill(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsThenLoops);
    // Nobody reads the log, which would say where the endpoint is.
    let endpoint = Endpoint::free();
    let admin = endpoint.0.to_string();
    let mut node = fleet.launch_with("alpha", &[("--admin", &admin)]).start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    writes_in_vain(&node, "baton-log");
    let outage = fleet.store.cut();
    let killed = format!("baton_instance_ends_total{{election=\"{ELECTION}\",outcome=\"killed\"}}");
    until("its instance to be killed", || {
        let page = endpoint.ask("/metrics").body;
        if sample(&page, &killed) > 0.0 { Ok(()) } else { Err(page) }
    });
    assert!(node.is_running(), "its instance was not gone in time");
    drop(outage);
    let term = held["term"].as_u64();
    fleet.status_until("the next term", |status| status["lease"] == "held" && status["term"].as_u64() > term);
    assert!(node.is_running(), "without a restart");
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn a_second_signal_skips_the_grace() {
    let fleet = fleet(Guest::IgnoresStop);
    let mut node = fleet.launch_with("alpha", &[("--grace", "10m")]).start();
    node.after(0, "started");
    node.signal(Signal::TERM);
    let stopping = node.after(0, "stopping");
    let running = node.is_running();
    assert!(running, "the grace is not over");
    node.signal(Signal::INT);
    assert_eq!(node.wait().code(), Some(0));
    let gone = node.after(0, "ended");
    assert!(gone.ts - stopping.ts < Duration::from_secs(600), "{gone:?} came with the grace, not with the signal");
    let order: Vec<String> = fleet.journal.events().into_iter().map(|event: Event| event.name).collect();
    let at = |name: &str| order.iter().position(|other| other == name);
    assert!(at("ended") < at("released") && at("released").is_some(), "the order stays: {order:?}");
    fleet.check_promises();
}

#[test]
fn a_moved_lease_file_ends_the_instance_and_the_way_back_heals() {
    let fleet = fleet(Guest::Beats);
    let (mut node, term) = fleet.leader("alpha");
    let (here, away) = (fleet.store.lease_file(), fleet.store.folder().join("away.db"));
    std::fs::rename(&here, &away).expect("the file is moved");
    let moved = OffsetDateTime::now_utc();
    let gone = node.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < moved + fleet.lease(), "{gone:?} later than D after the move at {moved}");
    assert!(node.is_running(), "the host survives");
    std::fs::rename(&away, &here).expect("the file is moved back");
    fleet.beat_above(term);
    fleet.check_promises();
}
