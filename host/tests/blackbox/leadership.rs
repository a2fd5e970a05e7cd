//! Changes of leader: the old leader dies, hands off, is paused, or loses its lease.

use std::time::Duration;

use rustix::process::Signal;
use time::OffsetDateTime;

use crate::fleet::Fleet;
use crate::frozen::wait_until_log_blocks;
use crate::guests::Guest;
use crate::node::Event;
use crate::scenarios;
use crate::sources::announced;

scenarios! {
    on_both_stores: [
        killed_leader_is_replaced,
        terminated_leader_hands_off,
        broken_lease_ends_instance_and_delays_next_leader,
        instance_ends_and_terms_rise_when_record_is_deleted,
    ],
    on_sqlite: [
        paused_leader_causes_no_effect_when_it_wakes,
        unread_lines_are_dropped_after_their_term,
        unread_lines_do_not_delay_hand_off,
        new_node_waits_for_leader_whose_record_is_deleted,
    ],
}

fn killed_leader_is_replaced(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    a.signal(Signal::KILL);
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    fleet.check_promises();
}

fn terminated_leader_hands_off(fleet: Fleet) {
    // With this long lease, a quick takeover shows that beta acquired the released lease at its next poll, and did not
    // wait until it expired.
    let lease = Duration::from_secs(60);
    // The grace is long, so that the guest's last line is printed even on a busy machine.
    let launch = |name| fleet.launch_with(name, &[("--lease", "60s"), ("--grace", "20s")]).start();
    let mut a = launch("alpha");
    let term = fleet.beat_above(0).term;
    let b = launch("beta");
    b.event("to follow alpha", |event| event.name == "standby" && event.text("reason").contains("alpha"));
    let status = a.terminate();
    assert_eq!(status.code(), Some(0), "a clean shutdown exits with 0");
    let stopping = a.after(0, "stopping");
    assert_eq!(stopping.text("reason"), "shutdown", "{stopping:?}");
    let ended = a.event("ended", |event| event.name == "ended" && event.term == term);
    let released = a.event("released", |event| event.name == "released");
    let next = b.after(term, "elected");
    assert!(next.ts >= ended.ts, "{next:?} before {ended:?}");
    let events = fleet.journal.events();
    let own = |name: &str| events.iter().position(|event| event.from == "alpha" && event.name == name);
    let last = events.iter().position(|event| event.from == "alpha" && event.text("line").starts_with("stop: "));
    // If the host could not write the last line in time, it reports the line as dropped.
    let last = last.or_else(|| own("output_dropped")).unwrap_or_else(|| fleet.journal.fail("the last line is lost"));
    assert!(Some(last) < own("released"), "{:?} after the release", events[last]);
    assert!(next.ts - released.ts < lease * 4 / 5, "{next:?} came when the lease of {released:?} had run out");
    fleet.beat_above(term);
    fleet.check_promises();
}

fn paused_leader_causes_no_effect_when_it_wakes(fleet: Fleet) {
    // The guest ignores the request to stop. The host is paused after it has received only a part of the guest's
    // current line. It must not print that line after it resumes.
    let fleet = fleet.with(Guest::IgnoresStop);
    let (a, term) = fleet.leader("alpha");
    let mut b = fleet.standby("beta", &a);
    a.pause();
    let next = fleet.beat_above(term);
    assert_eq!(next.from, "beta");
    let woken = OffsetDateTime::now_utc();
    a.resume();
    let ended = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts >= woken, "{ended:?}");
    a.event("standby after it woke", |event| event.name == "standby" && event.ts >= ended.ts);
    fleet.check_promises();
    let late = fleet.journal.events().into_iter().find(|e| e.name == "output" && e.term == term && e.ts >= woken);
    assert!(late.is_none(), "an effect of a term that is over: {late:?}");
    assert_eq!(b.terminate().code(), Some(0));
    // On a slow machine, beta may have lost its lease and acquired it again. So the test waits for a term that is
    // higher than beta's last term.
    let events = fleet.journal.events();
    let last = events.iter().filter(|event| event.from == "beta").map(|event| event.term).max();
    let again = fleet.beat_above(last.unwrap_or(0).max(next.term));
    assert_eq!(again.from, "alpha");
    fleet.check_promises();
}

fn unread_lines_are_dropped_after_their_term(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsItsLog);
    let mut a = fleet.launch("alpha").start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    // Once the pipe for alpha's log is full, output that has already passed the gate waits in alpha's process. Alpha
    // must drop this output when it resumes after its term.
    wait_until_log_blocks(&a, "baton-log");
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
    // On a slow machine, earlier terms may also have lost lines, so reports about earlier terms do not count.
    let is_report = |event: &Event| {
        event.name == "output_dropped" && event.term >= term && event.text("reason").contains("deadline")
    };
    let dropped = a.event("the report of dropped lines", is_report);
    assert!(dropped.fields["lines"].as_u64() > Some(0), "{dropped:?}");
    fleet.check_promises();
}

fn unread_lines_do_not_delay_hand_off(fleet: Fleet) {
    let fleet = fleet.with(Guest::FloodsItsLog);
    let mut a = fleet.launch("alpha").start_unread();
    let held = fleet.status_until("a leader", |status| status["lease"] == "held" && status["node"] == "alpha");
    let term = held["term"].as_u64().expect("a term");
    wait_until_log_blocks(&a, "baton-log");
    let _b = fleet.standby("beta", &a);
    a.signal(Signal::TERM);
    // Alpha must hand off although its log is unread. Alpha must also exit, and must never write the output that waits
    // for a reader.
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

fn broken_lease_ends_instance_and_delays_next_leader(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    let before = OffsetDateTime::now_utc();
    fleet.store.break_lease();
    let broken = OffsetDateTime::now_utc();
    let lost = a.after(0, "leadership_lost");
    assert!(!lost.text("reason").is_empty(), "{lost:?}");
    let ended = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < broken + fleet.lease(), "{ended:?} later than D after the break at {broken}");
    // The next leader cannot know when the old leader's instance ends, so it waits for D, the lease duration.
    let next = fleet.beat_above(term);
    assert!(next.ts > before + fleet.lease(), "{next:?} earlier than D after the break at {before}");
    fleet.check_promises();
}

/// The test deletes the leader's record, but the leader's announcement still contains the term. A new node must wait,
/// because the leader's instance may still run.
fn new_node_waits_for_leader_whose_record_is_deleted(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    announced(&fleet, "alpha", |announcement| announcement.term >= term);
    a.pause();
    fleet.store.delete_record();
    let b = fleet.node("beta");
    let settling = b.event("to wait", |event| event.name == "waiting_for_previous_lease");
    assert!(settling.fields["wait_s"].as_f64() >= Some(fleet.lease().as_secs_f64()), "{settling:?}");
    let is_early =
        |event: &Event| event.from == "beta" && event.name == "elected" && event.ts < settling.ts + fleet.lease();
    let early = fleet.journal.events().into_iter().find(is_early);
    assert!(early.is_none(), "{early:?}");
    // Long before beta leads, beta must announce a term that is at least as high as alpha's.
    announced(&fleet, "beta", |announcement| announcement.term >= term);
    a.resume();
    a.event("ended", |event| event.name == "ended" && event.term == term);
    fleet.check_promises();
}

fn instance_ends_and_terms_rise_when_record_is_deleted(fleet: Fleet) {
    let (a, term) = fleet.leader("alpha");
    let _b = fleet.standby("beta", &a);
    fleet.store.delete_record();
    let deleted = OffsetDateTime::now_utc();
    let ended = a.event("ended", |event| event.name == "ended" && event.term == term);
    assert!(ended.ts < deleted + fleet.lease(), "{ended:?} later than D after the deletion at {deleted}");
    fleet.beat_above(term);
    fleet.check_promises();
}
