//! The suite's cases about leases.

use std::time::Duration;

use baton_election::{LeaseState, Op, Reply, Snapshot, StoreError};

use super::bench::{Verdict, ensure, ensure_eq};
use super::suite::{StoreBench, a, accepted, b, c, ensure_lost, job, record, version_in};
use super::versioned::text;
use crate::{Reading, VersionedObject};

/// A node that waits for an earlier lease to expire may hold a longer lease than usual. Before it leads, the node
/// acquires this lease again with the usual length.
pub(super) async fn lease_expires_sooner_when_reacquired_for_less_time(bench: StoreBench) -> Verdict {
    let version = bench.create().await?;
    for length in [bench.store.lease_range().1, bench.length] {
        ensure_eq!(
            bench.ask(Op::Acquire { id: a(), length, version: version.clone(), instead_of: None }).await,
            Ok(Reply::Done)
        );
    }
    ensure_eq!(bench.renew(a()).await, Ok(Reply::Done));
    bench.outlive().await?;
    ensure_eq!(bench.see().await?.lease, LeaseState::Expired);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    Ok(())
}

pub(super) async fn lease_is_refused_when_its_length_is_out_of_range(bench: StoreBench) -> Verdict {
    let version = bench.create().await?;
    let (shortest, longest) = bench.store.lease_range();
    let second = Duration::from_secs(1);
    for length in [shortest.saturating_sub(second), longest + second] {
        let answer = bench.ask(Op::Acquire { id: a(), length, version: version.clone(), instead_of: None }).await;
        ensure!(matches!(answer, Err(StoreError::Misconfigured(_) | StoreError::Unknown(_))), "{length:?}: {answer:?}");
        ensure_eq!(bench.see().await?.lease, LeaseState::Free);
    }
    for length in [shortest, longest] {
        let op = Op::Acquire { id: a(), length, version: version.clone(), instead_of: None };
        ensure_eq!(bench.ask(op).await, Ok(Reply::Done), "{length:?}");
    }
    Ok(())
}

pub(super) async fn lease_requests_leave_the_version_alone(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    ensure_eq!(bench.see().await?.version, version, "after an acquire");
    ensure_eq!(bench.renew(a()).await, Ok(Reply::Done));
    ensure_eq!(bench.see().await?.version, version, "after a renewal");
    ensure_eq!(bench.release(a()).await, Ok(Reply::Done));
    ensure_eq!(bench.see().await?.version, version, "after a release");
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    ensure_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    ensure_eq!(bench.see().await?.version, version, "after a break");
    Ok(())
}

pub(super) async fn write_changes_the_version(bench: StoreBench) -> Verdict {
    let mut versions = vec![bench.held_by(a()).await?];
    for term in 1..4 {
        // Writing the same record again changes the version, too.
        for _ in 0..2 {
            let version = version_in!(bench.write(a(), &versions[versions.len() - 1], term).await);
            ensure!(!versions.contains(&version), "{version:?} was there before: {versions:?}");
            let seen = bench.see().await?;
            ensure_eq!((&seen.version, seen.record), (&version, Some(record(term))));
            versions.push(version);
        }
    }
    ensure_eq!(bench.see().await?.lease, LeaseState::Held);
    Ok(())
}

pub(super) async fn renewal_of_an_untouched_expired_lease_succeeds(bench: StoreBench) -> Verdict {
    bench.held_by(a()).await?;
    bench.outlive().await?;
    ensure_eq!(bench.renew(a()).await, Ok(Reply::Done));
    ensure_eq!(bench.see().await?.lease, LeaseState::Held);
    ensure_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    Ok(())
}

pub(super) async fn renewal_restarts_the_lease(bench: StoreBench) -> Verdict {
    bench.held_by(a()).await?;
    bench.most_of_it().await;
    ensure_eq!(bench.renew(a()).await, Ok(Reply::Done));
    bench.most_of_it().await;
    ensure_eq!(bench.see().await?.lease, LeaseState::Held);
    ensure_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    Ok(())
}

pub(super) async fn reclaim_restarts_the_lease(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    for (from, id) in [(a(), b()), (a(), b()), (b(), c())] {
        bench.most_of_it().await;
        ensure_eq!(bench.reclaim(from, id, &version).await, Ok(Reply::Done));
    }
    bench.most_of_it().await;
    ensure_eq!(bench.see().await?.lease, LeaseState::Held);
    Ok(())
}

/// A reclaim must fail in each of these situations. In some of them, an acquire would succeed, for example after a
/// release.
pub(super) async fn reclaim_is_lost_when_the_lease_ended_or_changed_hands(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    ensure_eq!(bench.release(a()).await, Ok(Reply::Done));
    ensure_lost!(bench.reclaim(a(), c(), &version).await);
    ensure_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    ensure_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    ensure_lost!(bench.reclaim(a(), c(), &version).await);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    ensure_lost!(bench.reclaim(a(), c(), &version).await);
    bench.outlive().await?;
    ensure_lost!(bench.reclaim(b(), c(), &version).await);
    ensure_eq!(bench.release(b()).await, Ok(Reply::Done));
    ensure_eq!(bench.see().await?.version, version, "nobody has written");
    ensure_lost!(bench.reclaim(a(), c(), &version).await);
    Ok(())
}

pub(super) async fn lease_broken_at_once_is_free_for_others(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    ensure_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    ensure_eq!(bench.see().await?.lease, LeaseState::Broken);
    ensure_lost!(bench.renew(a()).await);
    ensure_lost!(bench.write(a(), &version, 1).await);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    ensure_lost!(bench.renew(a()).await);
    Ok(())
}

pub(super) async fn breaking_lease_is_free_after_the_period(bench: StoreBench) -> Verdict {
    let version = bench.create().await?;
    let length = bench.store.lease_range().1;
    let op = Op::Acquire { id: a(), length, version: version.clone(), instead_of: None };
    ensure_eq!(bench.ask(op).await, Ok(Reply::Done));
    // This period is long enough for a slow machine to read the lease before the period ends.
    let period = Duration::from_secs(5);
    ensure_eq!(bench.backend.break_lease(period).await, Ok(()));
    ensure_eq!(bench.see().await?.lease, LeaseState::Breaking);
    ensure_eq!(bench.acquire(b()).await, Err(StoreError::Held));
    ensure_lost!(bench.renew(a()).await);
    version_in!(bench.write(a(), &version, 1).await);
    bench.wait_out(period).await;
    ensure_eq!(bench.see().await?.lease, LeaseState::Broken);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    Ok(())
}

/// The holder of an expired lease can still renew the lease. An operator who breaks the lease relies on the break to
/// prevent such a renewal.
pub(super) async fn break_of_an_expired_lease_takes_effect_at_once(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    bench.outlive().await?;
    ensure_eq!(bench.backend.break_lease(bench.length).await, Ok(()), "whatever the period");
    ensure_eq!(bench.see().await?.lease, LeaseState::Broken);
    ensure_lost!(bench.renew(a()).await);
    ensure_lost!(bench.write(a(), &version, 1).await);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    let seen = bench.see().await?;
    ensure_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, version, Some(record(0))));
    Ok(())
}

pub(super) async fn break_of_a_broken_lease_changes_nothing(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    for period in [Duration::ZERO, Duration::ZERO, bench.length] {
        ensure_eq!(bench.backend.break_lease(period).await, Ok(()));
        let seen = bench.see().await?;
        ensure_eq!((seen.lease, &seen.version), (LeaseState::Broken, &version), "{period:?}");
    }
    ensure_lost!(bench.renew(a()).await);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    Ok(())
}

pub(super) async fn second_break_never_takes_longer(bench: StoreBench) -> Verdict {
    bench.held_by(a()).await?;
    let period = bench.length / 2;
    ensure_eq!(bench.backend.break_lease(period).await, Ok(()));
    ensure_eq!(bench.backend.break_lease(bench.length).await, Ok(()));
    ensure_eq!(bench.see().await?.lease, LeaseState::Breaking);
    bench.wait_out(period).await;
    ensure_eq!(bench.see().await?.lease, LeaseState::Broken);
    // A second break with a shorter period takes effect sooner than the first one would have.
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    ensure_eq!(bench.backend.break_lease(period).await, Ok(()));
    ensure_eq!(bench.backend.break_lease(Duration::ZERO).await, Ok(()));
    ensure_eq!(bench.see().await?.lease, LeaseState::Broken);
    Ok(())
}

pub(super) async fn client_without_an_id_changes_only_what_is_not_held(bench: StoreBench) -> Verdict {
    let (store, job) = (&bench.store, job());
    ensure_lost!(store.overwrite(&job, record(1)).await);
    ensure_eq!(store.remove_election(&job).await, Ok(()), "there is none");
    let version = bench.held_by(a()).await?;
    ensure_lost!(store.remove_election(&job).await);
    let seen = bench.see().await?;
    ensure_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, version.clone(), Some(record(0))));

    ensure_eq!(store.break_now(&job).await, Ok(()));
    let written = accepted!(store.overwrite(&job, record(1)).await);
    let seen = bench.see().await?;
    ensure_eq!((seen.lease, &seen.version, seen.record), (LeaseState::Free, &written, Some(record(1))));
    ensure!(version != written);
    ensure_lost!(bench.renew(a()).await);

    for object in VersionedObject::ALL {
        accepted!(store.write(object, &job, None, text("kept")).await);
    }
    ensure_eq!(store.remove_election(&job).await, Ok(()));
    ensure_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    for object in VersionedObject::ALL {
        ensure_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing), "{object:?}");
    }
    Ok(())
}

pub(super) async fn deleted_record_leaves_nothing_behind(bench: StoreBench) -> Verdict {
    let old = bench.held_by(a()).await?;
    bench.backend.delete().await;
    ensure_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    ensure_eq!(bench.store.elections().await, Ok(vec![]));
    ensure_lost!(bench.renew(a()).await);
    ensure_lost!(bench.release(a()).await);
    // Either error is correct for a request with a version, because a host reads again after both.
    let acquire = Op::Acquire { id: b(), length: bench.length, version: old.clone(), instead_of: None };
    for answer in [bench.write(a(), &old, 1).await, bench.ask(acquire).await] {
        ensure!(matches!(answer, Err(StoreError::Lost(_) | StoreError::Conflict)), "{answer:?}");
    }
    // The new record has another version and its own lease, which is free.
    let new = bench.create().await?;
    ensure!(old != new);
    ensure_eq!(bench.see().await?.lease, LeaseState::Free);
    ensure_lost!(bench.renew(a()).await);
    Ok(())
}

/// A client that receives no answer repeats its request. The second answer must show the outcome of the first attempt.
pub(super) async fn lost_answer_is_recovered_by_repeating_the_request(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    ensure_eq!(bench.acquire(a()).await, Ok(Reply::Done), "an acquire");
    let written = version_in!(bench.write(a(), &version, 1).await);
    ensure_eq!(bench.write(a(), &version, 1).await, Err(StoreError::Conflict), "a write");
    let seen = bench.see().await?;
    ensure_eq!((seen.version, seen.record), (written, Some(record(1))), "the write is the writer's own");
    ensure_eq!(bench.release(a()).await, Ok(Reply::Done));
    ensure_lost!(bench.release(a()).await);
    ensure_eq!(bench.see().await?.lease, LeaseState::Free);
    Ok(())
}

/// Sends each request a second time after the state has changed, as if the network had delayed the request.
pub(super) async fn late_requests_do_no_harm(bench: StoreBench) -> Verdict {
    let first = bench.held_by(a()).await?;
    let second = version_in!(bench.write(a(), &first, 1).await);
    let late = async |op| bench.open().request(&job(), op).await;
    let write = Op::Write { id: a(), version: first.clone(), record: record(7) };
    ensure_eq!(late(write).await, Err(StoreError::Conflict), "a write after the next one");
    ensure_eq!(bench.release(a()).await, Ok(Reply::Done));
    let acquire = Op::Acquire { id: a(), length: bench.length, version: first, instead_of: None };
    ensure_eq!(late(acquire).await, Err(StoreError::Conflict), "an acquire after the release");
    ensure_lost!(late(Op::Renew { id: a() }).await);
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    ensure_lost!(late(Op::Renew { id: a() }).await);
    ensure_lost!(late(Op::Release { id: a() }).await);
    ensure_lost!(late(Op::Write { id: a(), version: second.clone(), record: record(7) }).await);
    ensure_eq!(late(Op::Create { record: record(7) }).await, Err(StoreError::Conflict));
    let seen = bench.see().await?;
    ensure_eq!((seen.lease, seen.version, seen.record), (LeaseState::Held, second, Some(record(1))));
    ensure_eq!(bench.renew(b()).await, Ok(Reply::Done));
    Ok(())
}
