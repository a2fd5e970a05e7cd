//! `baton rerun` in each state that the lease of a finished election can be in. It must never let the next
//! instance run while the last one might.

use std::time::Duration;

use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Finished, Node};
use crate::scenarios;

scenarios! {
    on_both_stores: [
        a_broken_lease_is_taken_and_given_back,
    ],
    on_sqlite: [
        a_free_lease_is_taken_and_given_back,
        an_expired_lease_is_taken_and_given_back,
        a_held_lease_is_left_alone,
        a_lease_that_is_being_broken_is_left_alone,
        a_lease_without_an_end_is_left_alone,
        an_election_that_is_not_finished_is_left_alone,
    ],
}

/// D, on both stores: long enough to be seen by several commands on a machine that has more to do.
const LEASE: &str = "15s";

/// A fleet whose election is finished, the node that did so and waits, and its term.
fn finished(fleet: Fleet) -> (Fleet, Node, u64) {
    let fleet = fleet.with(Guest::Done);
    let alpha = fleet.launch_with("alpha", &[("--restart", "on-failure"), ("--lease", LEASE)]).start();
    let term = alpha.after(0, "started").term;
    alpha.event("released", |event| event.name == "released");
    assert_eq!(is(&fleet, "free")["outcome"], "done");
    (fleet, alpha, term)
}

/// The status, whose lease is so.
#[track_caller]
fn is(fleet: &Fleet, lease: &str) -> Value {
    let status = fleet.status();
    assert_eq!(status["lease"], lease, "{status}");
    status
}

fn start(fleet: &Fleet) -> Finished {
    fleet.command(&["rerun", ELECTION])
}

/// Starts it, and sees the next term and only that.
#[track_caller]
fn runs_again(fleet: &Fleet, alpha: &mut Node, term: u64) {
    let started = start(fleet);
    assert_eq!((started.code, started.stdout.as_str()), (Some(0), "fleet will run again\n"), "{started:?}");
    let terms: Vec<u64> =
        fleet.journal.events().iter().filter(|event| event.name == "started").map(|event| event.term).collect();
    assert!(terms.iter().all(|other| *other == term || *other == term + 1), "{terms:?}");
    assert_eq!(alpha.after(term, "started").term, term + 1);
    fleet.check_promises();
}

/// Tries to start it in vain: that is said with these words, and neither the record nor the lease changes.
#[track_caller]
fn left_alone(fleet: &Fleet, lease: &str, says: &[&str]) {
    let before = is(fleet, lease);
    let refused = start(fleet);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    for word in [&["the lease of fleet", "try again"], says].concat() {
        assert!(refused.stderr.contains(word), "`{word}` is not said: {refused:?}");
    }
    assert_eq!(is(fleet, lease), before);
}

fn a_free_lease_is_taken_and_given_back(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    runs_again(&fleet, &mut alpha, term);
}

fn an_expired_lease_is_taken_and_given_back(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    // Azure keeps no shorter lease than D.
    fleet.store.hold(if fleet.store.is_sqlite() { Duration::from_secs(2) } else { fleet.lease() });
    fleet.status_until("an expired lease", |status| status["lease"] == "expired");
    runs_again(&fleet, &mut alpha, term);
}

fn a_held_lease_is_left_alone(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    left_alone(&fleet, "held", &["is held", "baton status fleet"]);
}

fn a_lease_that_is_being_broken_is_left_alone(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    fleet.store.break_lease_after(Duration::from_secs(50));
    left_alone(&fleet, "breaking", &["is being broken"]);
}

/// Nobody else takes it, and under a finished record nothing runs.
fn a_broken_lease_is_taken_and_given_back(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    fleet.store.break_lease();
    assert_eq!(is(&fleet, "broken")["outcome"], "done");
    runs_again(&fleet, &mut alpha, term);
}

fn a_lease_without_an_end_is_left_alone(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold_for_ever();
    left_alone(&fleet, "outside", &["without a time limit", "client other than Baton", "baton break-lease"]);
}

fn an_election_that_is_not_finished_is_left_alone(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    // What the instance uses goes on growing.
    let lease = || {
        let mut status = is(&fleet, "held");
        status["usage"].take();
        status
    };
    let before = lease();
    let nothing = start(&fleet);
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert_eq!(nothing.stdout, "fleet is not finished: there is nothing to rerun\n");
    assert_eq!(lease(), before);
    // Nor does a broken lease make it finished.
    drop(alpha);
    fleet.store.break_lease();
    assert_eq!(start(&fleet).code, Some(0));
    assert_eq!(is(&fleet, "broken")["term"], term);
}
