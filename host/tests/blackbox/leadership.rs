//! How leadership moves, on both stores: the leader dies, hands off, is paused, is robbed of its lease.

use std::time::Duration;

use rustix::process::Signal;
use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::frozen::writes_in_vain;
use crate::guests::Guest;
use crate::node::Event;
use crate::scenarios;
use crate::sources::announced;

scenarios! {
    on_both_stores: [
        a_killed_leader_is_replaced,
        a_terminated_leader_hands_off,
        a_broken_lease_ends_the_instance_and_is_waited_out,
        a_deleted_record_ends_the_instance_and_terms_still_rise,
    ],
    on_sqlite: [
        a_paused_leader_causes_no_effect_when_it_wakes,
        lines_that_wait_for_their_reader_are_not_written_after_their_term,
        lines_that_nobody_reads_hold_up_no_hand_off,
        a_deleted_record_is_known_to_a_node_that_has_never_seen_it,
    ],
}

fn a_killed_leader_is_replaced(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    a.signal(Signal::KILL);
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    fleet.check_promises();
}

fn a_terminated_leader_hands_off(fleet: Fleet) {
    // A released lease is taken at the next poll, not when it would have run out: that would be much later.
    let lease = Duration::from_secs(60);
    // And a grace in which a busy machine gets to the guest's last line.
    let launch = |name| fleet.launch_with(name, &[("--lease", "60s"), ("--grace", "20s")]).start();
    let mut a = launch("alpha");
    let term = fleet.beat_above(0).term;
    let b = launch("beta");
    b.event("to follow alpha", |event| event.name == "standby" && event.text("reason").contains("alpha"));
    let status = a.terminate();
    assert_eq!(status.code(), Some(0), "an orderly end exits with 0");
    let stopping = a.after(0, "stopping");
    assert_eq!(stopping.text("reason"), "shutdown", "{stopping:?}");
    let gone = a.event("ended", |event| event.name == "ended" && event.term == term);
    let released = a.event("released", |event| event.name == "released");
    let next = b.after(term, "elected");
    assert!(next.ts >= gone.ts, "{next:?} before {gone:?}");
    // What its instance has printed is out by then, to the last line.
    let events = fleet.journal.events();
    let own = |name: &str| events.iter().position(|event| event.from == "alpha" && event.name == name);
    let last = events.iter().position(|event| event.from == "alpha" && event.text("line").starts_with("stop: "));
    // On a machine that does not get to it, it is counted at least.
    let last = last.or_else(|| own("output_dropped")).unwrap_or_else(|| fleet.journal.fail("its last line is lost"));
    assert!(Some(last) < own("released"), "{:?} after the release", events[last]);
    assert!(next.ts - released.ts < lease * 4 / 5, "{next:?} came when the lease of {released:?} had run out");
    fleet.beat_above(term);
    fleet.check_promises();
}

fn a_paused_leader_causes_no_effect_when_it_wakes(fleet: Fleet) {
    // It heeds no stop, and when it is paused the host has half a line of it.
    let fleet = fleet.with(Guest::IgnoresStop);
    let (a, term) = fleet.leader("alpha");
    let mut b = fleet.standby("beta", &a);
    a.pause();
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let woken = OffsetDateTime::now_utc();
    a.resume();
    let gone = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts >= woken, "{gone:?}");
    a.event("standby after it woke", |event| event.name == "standby" && event.ts >= gone.ts);
    // `one at a time` is the point here: no line of the old term after the new one's first.
    fleet.check_promises();
    let late = fleet.journal.events().into_iter().find(|e| e.name == "output" && e.term == term && e.ts >= woken);
    assert!(late.is_none(), "an effect of a term that is over: {late:?}");
    // It has lost nothing but the term: it leads again when its turn comes.
    assert_eq!(b.terminate().code(), Some(0));
    // A machine that is slow may have cost that one its lease meanwhile, and given it another.
    let events = fleet.journal.events();
    let last = events.iter().filter(|event| event.from == "beta").map(|event| event.term).max();
    let again = fleet.beat_above(last.unwrap_or(0).max(next.term));
    assert_eq!(again.from, "alpha");
    fleet.check_promises();
}

fn lines_that_wait_for_their_reader_are_not_written_after_their_term(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsItsLog);
    let mut a = fleet.launch("alpha").start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    // From here on its lines wait in the process: they have passed the gate.
    writes_in_vain(&a, "baton-log");
    let _b = fleet.standby("beta", &a);
    a.pause();
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let before = a.written();
    assert!(before.iter().any(|line| line.contains(r#""event":"output""#)), "{before:?}");
    a.read();
    a.resume();
    a.event("to follow", |event| event.name == "standby" && event.text("reason").contains("beta"));
    let late = fleet.journal.events().into_iter().find(|event| event.from == "alpha" && event.name == "output");
    assert!(late.is_none(), "an effect of a term that is over: {late:?}");
    // On a machine that is slow, terms before that one may have lost lines, too.
    let is_told = |event: &Event| {
        event.name == "output_dropped" && event.term >= term && event.text("reason").contains("deadline")
    };
    let dropped = a.event("what was dropped", is_told);
    assert!(dropped.fields["lines"].as_u64() > Some(0), "{dropped:?}");
    fleet.check_promises();
}

fn lines_that_nobody_reads_hold_up_no_hand_off(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsItsLog);
    let mut a = fleet.launch("alpha").start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    writes_in_vain(&a, "baton-log");
    let _b = fleet.standby("beta", &a);
    a.signal(Signal::TERM);
    // The host ends though nobody reads, and what it has not written by then never is.
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let before = a.written();
    a.read();
    let status = a.wait();
    assert_eq!(status.code(), Some(0), "{before:?}");
    let late = fleet.journal.events().into_iter().find(|event| event.from == "alpha" && event.name == "output");
    assert!(late.is_none(), "an effect of a term that is over: {late:?}");
    fleet.check_promises();
}

fn a_broken_lease_ends_the_instance_and_is_waited_out(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    let before = OffsetDateTime::now_utc();
    fleet.store.break_lease();
    let broken = OffsetDateTime::now_utc();
    let lost = a.after(0, "leadership_lost");
    assert!(!lost.text("reason").is_empty(), "{lost:?}");
    let gone = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < broken + fleet.lease(), "{gone:?} later than D after the break at {broken}");
    // Who takes a broken lease cannot know when the instance under it ends: it waits D.
    let next = fleet.beat_above(term);
    assert!(next.ts > before + fleet.lease(), "{next:?} earlier than D after the break at {before}");
    fleet.check_promises();
}

/// Nothing is left of the record; but the leader has announced its term, and its instance may still run.
fn a_deleted_record_is_known_to_a_node_that_has_never_seen_it(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    announced(&fleet, "alpha", |said| said.term >= term);
    a.pause();
    fleet.store.delete_record();
    let b = fleet.node("beta");
    let settling = b.event("to wait", |event| event.name == "waiting_for_previous_lease");
    assert!(settling.fields["wait_s"].as_f64() >= Some(fleet.lease().as_secs_f64()), "{settling:?}");
    let is_early =
        |event: &Event| event.from == "beta" && event.name == "elected" && event.ts < settling.ts + fleet.lease();
    let early = fleet.journal.events().into_iter().find(is_early);
    assert!(early.is_none(), "{early:?}");
    // What it announces itself is no lower, long before it leads.
    announced(&fleet, "beta", |said| said.term >= term);
    a.resume();
    a.event("ended", |event| event.name == "ended" && event.term == term);
    fleet.check_promises();
}

fn a_deleted_record_ends_the_instance_and_terms_still_rise(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    fleet.store.delete_record();
    let deleted = OffsetDateTime::now_utc();
    let gone = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(gone.ts < deleted + fleet.lease(), "{gone:?} later than D after the deletion at {deleted}");
    fleet.beat_above(term);
    fleet.check_promises();
}
