//! `baton rerun` of a finished election, tested in every state that the lease can be in. The next instance must not
//! start while the previous one may still be running.

use std::time::Duration;

use serde_json::Value;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Finished, Node};
use crate::scenarios;

scenarios! {
    on_both_stores: [
        rerun_succeeds_when_lease_is_broken,
    ],
    on_sqlite: [
        rerun_succeeds_when_lease_is_free,
        rerun_succeeds_when_lease_is_expired,
        rerun_is_refused_when_lease_is_held,
        rerun_is_refused_when_lease_is_breaking,
        rerun_is_refused_when_lease_has_no_time_limit,
        rerun_changes_nothing_when_election_is_not_finished,
    ],
}

/// Lease duration on both kinds of stores: long enough to run several commands on a busy machine.
const LEASE: &str = "15s";

/// Runs an election until it is finished. The node keeps running.
fn finished(fleet: Fleet) -> (Fleet, Node, u64) {
    let fleet = fleet.with(Guest::Done);
    let alpha = fleet.launch_with("alpha", &[("--restart", "on-failure"), ("--lease", LEASE)]).start();
    let term = alpha.after(0, "started").term;
    alpha.event("released", |event| event.name == "released");
    assert_eq!(status_with_lease(&fleet, "free")["outcome"], "done");
    (fleet, alpha, term)
}

#[track_caller]
fn status_with_lease(fleet: &Fleet, lease: &str) -> Value {
    let status = fleet.status();
    assert_eq!(status["lease"], lease, "{status}");
    status
}

fn rerun(fleet: &Fleet) -> Finished {
    fleet.command(&["rerun", ELECTION])
}

/// Checks that `baton rerun` succeeds, and that exactly one more term follows.
#[track_caller]
fn runs_again(fleet: &Fleet, alpha: &mut Node, term: u64) {
    let finished = rerun(fleet);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(0), "fleet will run again\n"), "{finished:?}");
    let terms: Vec<u64> =
        fleet.journal.events().iter().filter(|event| event.name == "started").map(|event| event.term).collect();
    assert!(terms.iter().all(|other| *other == term || *other == term + 1), "{terms:?}");
    assert_eq!(alpha.after(term, "started").term, term + 1);
    fleet.check_promises();
}

/// Checks that `baton rerun` is refused, and does not change the election's status.
#[track_caller]
fn is_refused(fleet: &Fleet, lease: &str, error: &[&str]) {
    let before = status_with_lease(fleet, lease);
    let refused = rerun(fleet);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    for word in [&["the lease of fleet", "try again"], error].concat() {
        assert!(refused.stderr.contains(word), "`{word}` is missing: {refused:?}");
    }
    assert_eq!(status_with_lease(fleet, lease), before);
}

fn rerun_succeeds_when_lease_is_free(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    runs_again(&fleet, &mut alpha, term);
}

fn rerun_succeeds_when_lease_is_expired(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    // On Azurite, the test uses the fleet's lease duration of 15 s, because Azure supports no shorter lease.
    fleet.store.hold(if fleet.store.is_sqlite() { Duration::from_secs(2) } else { fleet.lease() });
    fleet.status_until("an expired lease", |status| status["lease"] == "expired");
    runs_again(&fleet, &mut alpha, term);
}

fn rerun_is_refused_when_lease_is_held(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    is_refused(&fleet, "held", &["is held", "baton status fleet"]);
}

fn rerun_is_refused_when_lease_is_breaking(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    fleet.store.break_lease_after(Duration::from_secs(50));
    is_refused(&fleet, "breaking", &["is being broken"]);
}

/// A broken lease usually means that the holder's instance may still be running. Here, the election is finished, so no
/// node acquires its lease, and no instance is running.
fn rerun_succeeds_when_lease_is_broken(fleet: Fleet) {
    let (fleet, mut alpha, term) = finished(fleet);
    fleet.store.hold(Duration::from_secs(60));
    fleet.store.break_lease();
    assert_eq!(status_with_lease(&fleet, "broken")["outcome"], "done");
    runs_again(&fleet, &mut alpha, term);
}

fn rerun_is_refused_when_lease_has_no_time_limit(fleet: Fleet) {
    let (fleet, _alpha, _) = finished(fleet);
    fleet.store.hold_for_ever();
    is_refused(&fleet, "outside", &["without a time limit", "client other than Baton", "baton break-lease"]);
}

fn rerun_changes_nothing_when_election_is_not_finished(fleet: Fleet) {
    let (alpha, term) = fleet.leader("alpha");
    // The instance's resource usage changes constantly, so the comparison excludes it.
    let lease = || {
        let mut status = status_with_lease(&fleet, "held");
        status["usage"].take();
        status
    };
    let before = lease();
    let nothing = rerun(&fleet);
    assert_eq!(nothing.code, Some(0), "{nothing:?}");
    assert_eq!(nothing.stdout, "fleet is not finished: there is nothing to rerun\n");
    assert_eq!(lease(), before);
    drop(alpha);
    fleet.store.break_lease();
    assert_eq!(rerun(&fleet).code, Some(0));
    assert_eq!(status_with_lease(&fleet, "broken")["term"], term);
}
