//! `baton start` in each state that the lease of a finished election can be in. It must never let the next
//! instance run while the last one might.

use std::time::Duration;

use serde_json::Value;

use crate::guests::Guest;
use crate::node::{Finished, Node};
use crate::on_both_stores;
use crate::stage::{ELECTION, Stage};

on_both_stores![
    a_free_lease_is_taken_and_given_back,
    an_expired_lease_is_taken_and_given_back,
    a_held_lease_is_left_alone,
    a_lease_that_is_being_broken_is_left_alone,
    a_broken_lease_is_taken_and_given_back,
    a_lease_without_an_end_is_left_alone,
    an_election_that_is_not_finished_is_left_alone,
];

/// D, on both stores: long enough to be seen by several commands on a machine that has more to do.
const LEASE: &str = "15s";

/// A stage whose election is finished, the node that did so and waits, and its term.
fn finished(stage: Stage) -> (Stage, Node, u64) {
    let stage = stage.with(Guest::Done);
    let alpha = stage.launch_with("alpha", &[("--on-done", "finish"), ("--lease", LEASE)]).start();
    let term = alpha.after(0, "started").term;
    alpha.event("released", |event| event.name == "released");
    assert_eq!(is(&stage, "free")["outcome"], "done");
    (stage, alpha, term)
}

/// The status, whose lease is so.
#[track_caller]
fn is(stage: &Stage, lease: &str) -> Value {
    let status = stage.status();
    assert_eq!(status["lease"], lease, "{status}");
    status
}

fn start(stage: &Stage) -> Finished {
    stage.command(&["start", ELECTION])
}

/// Starts it, and sees the next term and only that.
#[track_caller]
fn runs_again(stage: &Stage, alpha: &mut Node, term: u64) {
    let started = start(stage);
    assert_eq!((started.code, started.stdout.as_str()), (Some(0), "stage will run again\n"), "{started:?}");
    let terms: Vec<u64> =
        stage.journal.events().iter().filter(|event| event.name == "started").map(|event| event.term).collect();
    assert!(terms.iter().all(|other| *other == term || *other == term + 1), "{terms:?}");
    assert_eq!(alpha.after(term, "started").term, term + 1);
    stage.check_promises();
}

/// Tries to start it in vain: that is said with these words, and neither the record nor the lease changes.
#[track_caller]
fn left_alone(stage: &Stage, lease: &str, says: &[&str]) {
    let before = is(stage, lease);
    let refused = start(stage);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    for word in [&["the lease of stage", "try again"], says].concat() {
        assert!(refused.stderr.contains(word), "`{word}` is not said: {refused:?}");
    }
    assert_eq!(is(stage, lease), before);
}

fn a_free_lease_is_taken_and_given_back(stage: Stage) {
    let (stage, mut alpha, term) = finished(stage);
    runs_again(&stage, &mut alpha, term);
}

fn an_expired_lease_is_taken_and_given_back(stage: Stage) {
    let (stage, mut alpha, term) = finished(stage);
    stage.store.hold(stage.lease());
    stage.status_until("an expired lease", |status| status["lease"] == "expired");
    runs_again(&stage, &mut alpha, term);
}

fn a_held_lease_is_left_alone(stage: Stage) {
    let (stage, _alpha, _) = finished(stage);
    stage.store.hold(Duration::from_secs(60));
    left_alone(&stage, "held", &["is held", "baton status stage"]);
}

fn a_lease_that_is_being_broken_is_left_alone(stage: Stage) {
    let (stage, _alpha, _) = finished(stage);
    stage.store.hold(Duration::from_secs(60));
    stage.store.break_lease_after(Duration::from_secs(50));
    left_alone(&stage, "breaking", &["is being broken"]);
}

/// Nobody else takes it, and under a finished record nothing runs.
fn a_broken_lease_is_taken_and_given_back(stage: Stage) {
    let (stage, mut alpha, term) = finished(stage);
    stage.store.hold(Duration::from_secs(60));
    stage.store.break_lease();
    assert_eq!(is(&stage, "broken")["outcome"], "done");
    runs_again(&stage, &mut alpha, term);
}

fn a_lease_without_an_end_is_left_alone(stage: Stage) {
    let (stage, _alpha, _) = finished(stage);
    stage.store.hold_for_ever();
    left_alone(&stage, "outside", &["without an end", "no host of Baton", "released or broken"]);
}

fn an_election_that_is_not_finished_is_left_alone(stage: Stage) {
    let (alpha, term) = stage.leader("alpha");
    // What the instance uses goes on growing.
    let lease = || {
        let mut status = is(&stage, "held");
        status["usage"].take();
        status
    };
    let before = lease();
    let nothing = start(&stage);
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert_eq!(nothing.stdout, "stage is not finished: there is nothing to start\n");
    assert_eq!(lease(), before);
    // Nor does a broken lease make it finished.
    drop(alpha);
    stage.store.break_lease();
    assert_eq!(start(&stage).code, Some(0));
    assert_eq!(is(&stage, "broken")["term"], term);
}
