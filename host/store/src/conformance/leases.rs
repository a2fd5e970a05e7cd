//! The suite's cases about leases.

use std::time::Duration;

use baton_election::{LeaseState, Op, Reply, Snapshot, StoreError};

use super::suite::{CaseBench, a, ask, assert_lost, b, c, job, record, version_of};
use super::versioned::text;
use crate::{Reading, VersionedObject};

pub(super) async fn acquire_is_idempotent_for_its_id_and_held_for_others(bench: CaseBench) {
    bench.held_by(a()).await;
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done), "its own id again");
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    assert_eq!(bench.see().await.lease, LeaseState::Held);
}

/// While a node waits for another lease to expire, its own lease may be longer than usual. To lead, the node acquires
/// the lease again with the usual length.
pub(super) async fn lease_expires_sooner_when_reacquired_for_less_time(bench: CaseBench) {
    let version = bench.create().await;
    for length in [bench.store.lease_range().1, bench.brief()] {
        assert_eq!(
            bench.ask(Op::Acquire { id: a(), length, version: version.clone(), instead_of: None }).await,
            Ok(Reply::Done)
        );
    }
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    bench.outlive().await;
    assert_eq!(bench.see().await.lease, LeaseState::Expired);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
}

pub(super) async fn acquire_on_an_old_version_conflicts(bench: CaseBench) {
    let old = bench.held_by(a()).await;
    let new = version_of(bench.write(a(), &old, 1).await);
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    let acquire = |version| Op::Acquire { id: b(), length: bench.brief(), version, instead_of: None };
    assert_eq!(bench.ask(acquire(old)).await, Err(StoreError::Conflict));
    assert_eq!(bench.see().await.lease, LeaseState::Free);
    assert_eq!(bench.ask(acquire(new)).await, Ok(Reply::Done));
}

pub(super) async fn lease_is_refused_when_its_length_is_out_of_range(bench: CaseBench) {
    let version = bench.create().await;
    let (shortest, longest) = bench.store.lease_range();
    let second = Duration::from_secs(1);
    for length in [shortest.saturating_sub(second), longest + second] {
        let answer = bench.ask(Op::Acquire { id: a(), length, version: version.clone(), instead_of: None }).await;
        assert!(matches!(answer, Err(StoreError::Misconfigured(_) | StoreError::Unknown(_))), "{length:?}: {answer:?}");
        assert_eq!(bench.see().await.lease, LeaseState::Free);
    }
    for length in [shortest, longest] {
        let op = Op::Acquire { id: a(), length, version: version.clone(), instead_of: None };
        assert_eq!(bench.ask(op).await, Ok(Reply::Done), "{length:?}");
    }
}

pub(super) async fn lease_requests_leave_the_version_alone(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    assert_eq!(bench.see().await.version, version, "after an acquire");
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    assert_eq!(bench.see().await.version, version, "after a renewal");
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_eq!(bench.see().await.version, version, "after a release");
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    assert_eq!(bench.see().await.version, version, "after a break");
}

pub(super) async fn write_changes_the_version(bench: CaseBench) {
    let mut versions = vec![bench.held_by(a()).await];
    for term in 1..4 {
        // Writing the same record again changes the version, too.
        for _ in 0..2 {
            let version = version_of(bench.write(a(), &versions[versions.len() - 1], term).await);
            assert!(!versions.contains(&version), "{version:?} was there before: {versions:?}");
            let seen = bench.see().await;
            assert_eq!((&seen.version, seen.record), (&version, Some(record(term))));
            versions.push(version);
        }
    }
    assert_eq!(bench.see().await.lease, LeaseState::Held);
}

pub(super) async fn write_needs_the_id(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    assert_lost(&bench.write(b(), &version, 1).await);
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_lost(&bench.write(a(), &version, 1).await);
    let seen = bench.see().await;
    assert_eq!((seen.version, seen.record), (version, Some(record(0))));
}

pub(super) async fn write_needs_the_version(bench: CaseBench) {
    let old = bench.held_by(a()).await;
    let new = version_of(bench.write(a(), &old, 1).await);
    assert_eq!(bench.write(a(), &old, 2).await, Err(StoreError::Conflict));
    let seen = bench.see().await;
    assert_eq!((seen.version, seen.record), (new, Some(record(1))));
}

pub(super) async fn renewal_and_release_with_a_wrong_id_are_lost(bench: CaseBench) {
    bench.held_by(a()).await;
    assert_lost(&bench.renew(b()).await);
    assert_lost(&bench.release(b()).await);
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
}

pub(super) async fn renewal_of_an_untouched_expired_lease_succeeds(bench: CaseBench) {
    bench.held_by(a()).await;
    bench.outlive().await;
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    assert_eq!(bench.see().await.lease, LeaseState::Held);
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));
}

/// The Azure emulator renews an expired lease for the last holder, even if the request contains another id. The store
/// must not report this as a success.
pub(super) async fn renewal_of_an_expired_lease_with_a_wrong_id_is_lost(bench: CaseBench) {
    bench.held_by(a()).await;
    bench.outlive().await;
    assert_lost(&bench.renew(b()).await);
}

pub(super) async fn renewal_restarts_the_lease(bench: CaseBench) {
    bench.held_by(a()).await;
    bench.most_of_it().await;
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    bench.most_of_it().await;
    assert_eq!(bench.see().await.lease, LeaseState::Held);
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));
}

pub(super) async fn late_renewal_is_lost_when_another_has_acquired(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    bench.outlive().await;
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done), "an expired lease is free at once");
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.release(a()).await);
    assert_lost(&bench.write(a(), &version, 1).await);
    assert_eq!(bench.renew(b()).await, Ok(Reply::Done));
}

pub(super) async fn reclaimed_lease_has_an_id_unknown_to_the_old_holder(bench: CaseBench) {
    let old = bench.held_by(a()).await;
    let new = version_of(bench.write(a(), &old, 1).await);
    assert_eq!(bench.reclaim(a(), b(), &old).await, Err(StoreError::Conflict), "the holder has written since");
    assert_lost(&bench.reclaim(b(), c(), &new).await);
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done), "nothing has changed so far");
    // A reclaim restarts the lease and keeps the version.
    bench.most_of_it().await;
    assert_eq!(bench.reclaim(a(), b(), &new).await, Ok(Reply::Done));
    bench.most_of_it().await;
    let seen = bench.see().await;
    assert_eq!((seen.lease, seen.version), (LeaseState::Held, new.clone()));
    // The store now refuses every operation of the previous holder.
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.write(a(), &new, 2).await);
    assert_lost(&bench.release(a()).await);
    // A repeated reclaim succeeds, because the first answer may have been lost. A further reclaim under another id also
    // succeeds.
    assert_eq!(bench.reclaim(a(), b(), &new).await, Ok(Reply::Done));
    bench.most_of_it().await;
    assert_eq!(bench.reclaim(b(), c(), &new).await, Ok(Reply::Done));
    assert_lost(&bench.reclaim(a(), b(), &new).await);
    assert!(matches!(bench.write(c(), &new, 2).await, Ok(Reply::Version(_))));
}

/// An acquire would succeed in each of these cases.
pub(super) async fn reclaim_is_lost_when_the_lease_ended_or_changed_hands(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_lost(&bench.reclaim(a(), c(), &version).await);
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    assert_lost(&bench.reclaim(a(), c(), &version).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_lost(&bench.reclaim(a(), c(), &version).await);
    bench.outlive().await;
    assert_lost(&bench.reclaim(b(), c(), &version).await);
    assert_eq!(bench.release(b()).await, Ok(Reply::Done));
    assert_eq!(bench.see().await.version, version, "nobody has written");
    assert_lost(&bench.reclaim(a(), c(), &version).await);
}

pub(super) async fn write_under_an_expired_lease_is_lost(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    bench.outlive().await;
    assert_lost(&bench.write(a(), &version, 1).await);
    assert_eq!(bench.see().await.record, Some(record(0)));
}

pub(super) async fn lease_broken_at_once_is_free_for_others(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    assert_eq!(bench.see().await.lease, LeaseState::Broken);
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.write(a(), &version, 1).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_lost(&bench.renew(a()).await);
}

pub(super) async fn host_breaks_a_lease_without_its_id(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    for _ in 0..2 {
        assert_eq!(bench.backend.open().break_now(&job()).await, Ok(()));
        let seen = bench.see().await;
        assert_eq!((seen.lease, &seen.version), (LeaseState::Broken, &version));
    }
    assert_lost(&bench.renew(a()).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_eq!(bench.release(b()).await, Ok(Reply::Done));
    assert_lost(&bench.store.break_now(&job()).await.map(|()| Reply::Done));
}

pub(super) async fn breaking_lease_is_free_after_the_period(bench: CaseBench) {
    let version = bench.create().await;
    let length = bench.store.lease_range().1;
    assert_eq!(
        bench.ask(Op::Acquire { id: a(), length, version: version.clone(), instead_of: None }).await,
        Ok(Reply::Done)
    );
    // Long enough for a slow machine to read the lease before the period ends.
    let period = Duration::from_secs(5);
    assert_eq!(bench.backend.break_lease(period).await, Ok(()));
    assert_eq!(bench.see().await.lease, LeaseState::Breaking);
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    assert_lost(&bench.renew(a()).await);
    version_of(bench.write(a(), &version, 1).await);
    bench.backend.wait_out(period).await;
    assert_eq!(bench.see().await.lease, LeaseState::Broken);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
}

/// The holder of an expired lease could still renew it. After a break, the operator can be sure that the holder cannot.
pub(super) async fn break_of_an_expired_lease_takes_effect_at_once(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    bench.outlive().await;
    assert_eq!(bench.backend.break_lease(bench.brief()).await, Ok(()), "whatever the period");
    assert_eq!(bench.see().await.lease, LeaseState::Broken);
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.write(a(), &version, 1).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    let seen = bench.see().await;
    assert_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, version, Some(record(0))));
}

pub(super) async fn break_of_a_broken_lease_changes_nothing(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    for period in [Duration::ZERO, Duration::ZERO, bench.brief()] {
        assert_eq!(bench.backend.break_lease(period).await, Ok(()));
        let seen = bench.see().await;
        assert_eq!((seen.lease, &seen.version), (LeaseState::Broken, &version), "{period:?}");
    }
    assert_lost(&bench.renew(a()).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
}

pub(super) async fn second_break_never_takes_longer(bench: CaseBench) {
    bench.held_by(a()).await;
    let period = bench.brief() / 2;
    assert_eq!(bench.backend.break_lease(period).await, Ok(()));
    assert_eq!(bench.backend.break_lease(bench.brief()).await, Ok(()));
    assert_eq!(bench.see().await.lease, LeaseState::Breaking);
    bench.backend.wait_out(period).await;
    assert_eq!(bench.see().await.lease, LeaseState::Broken);
    // A second break may take effect sooner.
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_eq!(bench.backend.break_lease(period).await, Ok(()));
    assert_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    assert_eq!(bench.see().await.lease, LeaseState::Broken);
}

pub(super) async fn release_frees_the_lease_at_once(bench: CaseBench) {
    bench.held_by(a()).await;
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_eq!(bench.see().await.lease, LeaseState::Free);
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.backend.break_lease(Duration::ZERO).await.map(|()| Reply::Done));
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
}

pub(super) async fn client_without_an_id_changes_only_what_is_not_held(bench: CaseBench) {
    let (store, job) = (&bench.store, job());
    assert_lost(&store.overwrite(&job, record(1)).await.map(Reply::Version));
    assert_eq!(store.remove_election(&job).await, Ok(()), "there is none");
    let version = bench.held_by(a()).await;
    assert_lost(&store.overwrite(&job, record(1)).await.map(Reply::Version));
    assert_lost(&store.remove_election(&job).await.map(|()| Reply::Done));
    let seen = bench.see().await;
    assert_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, version.clone(), Some(record(0))));

    assert_eq!(store.break_now(&job).await, Ok(()));
    let written = store.overwrite(&job, record(1)).await.unwrap();
    let seen = bench.see().await;
    assert_eq!((seen.lease, &seen.version, seen.record), (LeaseState::Free, &written, Some(record(1))));
    assert_ne!(version, written);
    assert_lost(&bench.renew(a()).await);

    for object in VersionedObject::ALL {
        store.write(object, &job, None, text("kept")).await.unwrap();
    }
    assert_eq!(store.remove_election(&job).await, Ok(()));
    assert_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    for object in VersionedObject::ALL {
        assert_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing), "{object:?}");
    }
}

pub(super) async fn deleted_record_leaves_nothing_behind(bench: CaseBench) {
    let old = bench.held_by(a()).await;
    bench.backend.delete().await;
    assert_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    assert_eq!(bench.store.elections().await, Ok(vec![]));
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.release(a()).await);
    // For a request with a version, both errors are correct, and both make the host read again.
    let acquire = Op::Acquire { id: b(), length: bench.brief(), version: old.clone(), instead_of: None };
    for answer in [bench.write(a(), &old, 1).await, bench.ask(acquire).await] {
        assert!(matches!(answer, Err(StoreError::Lost(_) | StoreError::Conflict)), "{answer:?}");
    }
    // A recreated record is a different record, with its own lease.
    let new = bench.create().await;
    assert_ne!(old, new);
    assert_eq!(bench.see().await.lease, LeaseState::Free);
    assert_lost(&bench.renew(a()).await);
}

/// A client that receives no answer repeats the request, and so learns the outcome of its first attempt.
pub(super) async fn lost_answer_is_recovered_by_repeating_the_request(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done), "an acquire");
    let written = version_of(bench.write(a(), &version, 1).await);
    assert_eq!(bench.write(a(), &version, 1).await, Err(StoreError::Conflict), "a write");
    let seen = bench.see().await;
    assert_eq!((seen.version, seen.record), (written, Some(record(1))), "the write is the writer's own");
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_lost(&bench.release(a()).await);
    assert_eq!(bench.see().await.lease, LeaseState::Free);
}

/// Sends each request again after the state has changed, as if the network had delayed it.
pub(super) async fn late_requests_do_no_harm(bench: CaseBench) {
    let first = bench.held_by(a()).await;
    let second = version_of(bench.write(a(), &first, 1).await);
    let late = bench.backend.open();
    let late = late.as_ref();
    let write = Op::Write { id: a(), version: first.clone(), record: record(7) };
    assert_eq!(ask(late, write).await, Err(StoreError::Conflict), "a write after the next one");
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    let acquire = Op::Acquire { id: a(), length: bench.brief(), version: first, instead_of: None };
    assert_eq!(ask(late, acquire).await, Err(StoreError::Conflict), "an acquire after the release");
    assert_lost(&ask(late, Op::Renew { id: a() }).await);
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    assert_lost(&ask(late, Op::Renew { id: a() }).await);
    assert_lost(&ask(late, Op::Release { id: a() }).await);
    assert_lost(&ask(late, Op::Write { id: a(), version: second.clone(), record: record(7) }).await);
    assert_eq!(ask(late, Op::Create { record: record(7) }).await, Err(StoreError::Conflict));
    let seen = bench.see().await;
    assert_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, second, Some(record(1))));
    assert_eq!(bench.renew(b()).await, Ok(Reply::Done));
}
