//! The cases that need only one election and its lease. `baton doctor` can run them on a store that is in use. Each
//! case starts with [`Bench::create`], so that several cases can share an election.
//!
//! In these cases, no request has two reasons to fail, because stores could differ in the error that they report.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{LeaseState, Op, StoreError};
use bytes::Bytes;

use super::bench::{Bench, Expect as _, Finding, LeaseEnd, POLL, Verdict, ensure, ensure_eq, version_of};
use crate::{Listing, PlainObject, Reading, VersionedObject};

/// The node for which the cases write an announcement.
pub const NODE: &str = "node";

pub(super) async fn acquired_lease_is_kept_and_renewed(bench: Arc<Bench>) -> Verdict {
    let [a, ..] = bench.ids;
    bench.held_by(a).await?;
    for _ in 0..3 {
        ensure_eq!(bench.see().await?.lease, LeaseState::Held, "a lease that was just acquired or renewed");
        bench.renew(a).await.accepted("a renewal by the holder")?;
    }
    Ok(())
}

pub(super) async fn held_lease_is_refused_to_another_id(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    bench.held_by(a).await?;
    bench.acquire(b).await.held("an acquire of a lease that another id holds")?;
    ensure_eq!(bench.see().await?.lease, LeaseState::Held, "a lease after a refused acquire");
    bench.renew(a).await.accepted("a renewal by the holder after a refused acquire").map(drop)
}

/// Simulates a client that sends its request again because it did not receive the answer to the first one.
pub(super) async fn acquire_is_idempotent_for_its_id(bench: Arc<Bench>) -> Verdict {
    let [a, ..] = bench.ids;
    bench.held_by(a).await?;
    bench.acquire(a).await.accepted("a second acquire under the holder's id").map(drop)
}

pub(super) async fn renewal_and_release_with_a_wrong_id_are_lost(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    bench.held_by(a).await?;
    bench.renew(b).await.lost("a renewal under an id that does not hold the lease")?;
    bench.release(b).await.lost("a release under an id that does not hold the lease")?;
    bench.renew(a).await.accepted("a renewal by the holder after requests under a wrong id").map(drop)
}

pub(super) async fn reclaimed_lease_has_an_id_unknown_to_the_old_holder(bench: Arc<Bench>) -> Verdict {
    let [a, b, c] = bench.ids;
    let old = bench.held_by(a).await?;
    let new = version_of("a write by the holder", bench.write(a, &old, 1).await)?;
    bench.reclaim(a, b, &old).await.conflict("a reclaim at a replaced version", "If-Match")?;
    bench.reclaim(b, c, &new).await.lost("a reclaim of a lease that another id holds")?;
    bench.renew(a).await.accepted("a renewal by the holder after refused reclaims")?;
    // Reclaim twice, like a client that did not receive the answer to its first reclaim.
    for _ in 0..2 {
        bench.reclaim(a, b, &new).await.accepted("a reclaim")?;
        let seen = bench.see().await?;
        ensure_eq!((seen.lease, &seen.version), (LeaseState::Held, &new), "the lease after a reclaim");
    }
    bench.renew(a).await.lost("a renewal under the previous id of a reclaimed lease")?;
    bench.write(a, &new, 2).await.lost("a write under the previous id of a reclaimed lease")?;
    bench.release(a).await.lost("a release under the previous id of a reclaimed lease")?;
    bench.reclaim(b, c, &new).await.accepted("a reclaim of a reclaimed lease")?;
    bench.reclaim(a, b, &new).await.lost("a late reclaim under the first id")?;
    version_of("a write under the new id", bench.write(c, &new, 2).await).map(drop)
}

pub(super) async fn release_frees_the_lease_at_once(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    bench.held_by(a).await?;
    bench.release(a).await.accepted("a release by the holder")?;
    ensure_eq!(bench.see().await?.lease, LeaseState::Free, "a lease that was released");
    bench.renew(a).await.lost("a renewal of a released lease")?;
    bench.break_now().await.lost("a break of a released lease")?;
    bench.acquire(b).await.accepted("an acquire of a released lease").map(drop)
}

pub(super) async fn host_breaks_a_lease_without_its_id(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    let version = bench.held_by(a).await?;
    for _ in 0..2 {
        bench.break_now().await.accepted("a break of the lease")?;
        let seen = bench.see().await?;
        ensure_eq!((seen.lease, &seen.version), (LeaseState::Broken, &version), "a lease that was broken");
    }
    bench.renew(a).await.lost("a renewal of a broken lease")?;
    bench.write(a, &version, 1).await.lost("a write of the record under a broken lease")?;
    bench.acquire(b).await.accepted("an acquire of a broken lease")?;
    bench.renew(a).await.lost("a renewal of a broken lease that another id holds")
}

pub(super) async fn record_is_created_once(bench: Arc<Bench>) -> Verdict {
    let [a, ..] = bench.ids;
    let version = bench.create().await?;
    let again = async || bench.ask(Op::Create { record: bench.record(9) }).await;
    again().await.conflict("a second creation of a record", "If-None-Match")?;
    bench.acquire_at(a, &version).await.accepted("an acquire after a refused creation")?;
    again().await.conflict("a second creation of a record while its lease is held", "If-None-Match")?;
    let seen = bench.see().await?;
    ensure_eq!((seen.version, seen.record), (version, Some(bench.record(0))), "the record after a refused creation");
    Ok(())
}

pub(super) async fn acquire_on_an_old_version_conflicts(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    let old = bench.held_by(a).await?;
    let new = version_of("a write by the holder", bench.write(a, &old, 1).await)?;
    bench.release(a).await.accepted("a release by the holder")?;
    bench.acquire_at(b, &old).await.conflict("an acquire at a replaced version", "If-Match")?;
    ensure_eq!(bench.see().await?.lease, LeaseState::Free, "a lease after a refused acquire");
    bench.acquire_at(b, &new).await.accepted("an acquire at the current version").map(drop)
}

pub(super) async fn write_needs_the_id(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    let version = bench.held_by(a).await?;
    bench.write(b, &version, 1).await.lost("a write of the record under an id that does not hold the lease")?;
    bench.release(a).await.accepted("a release by the holder")?;
    bench.write(a, &version, 1).await.lost("a write of the record under a released lease")?;
    let seen = bench.see().await?;
    ensure_eq!((seen.version, seen.record), (version, Some(bench.record(0))), "the record after refused writes");
    Ok(())
}

pub(super) async fn overwrite_is_lost_while_the_lease_is_held(bench: Arc<Bench>) -> Verdict {
    let [a, ..] = bench.ids;
    let version = bench.held_by(a).await?;
    let overwritten = bench.store.overwrite(&bench.election, bench.record(1)).await;
    overwritten.lost("a write of the record without the lease while an id holds it")?;
    let seen = bench.see().await?;
    let found = (seen.lease, seen.version, seen.record);
    ensure_eq!(found, (LeaseState::Held, version, Some(bench.record(0))), "the record after a refused write");
    Ok(())
}

pub(super) async fn write_needs_the_version(bench: Arc<Bench>) -> Verdict {
    let [a, ..] = bench.ids;
    let old = bench.held_by(a).await?;
    let new = version_of("a write by the holder", bench.write(a, &old, 1).await)?;
    ensure!(new != old, "a write by the holder kept the version {new:?}");
    let unchanged = async || {
        let seen = bench.see().await?;
        ensure_eq!((&seen.version, seen.record), (&new, Some(bench.record(1))), "the record that was written");
        Ok(())
    };
    unchanged().await?;
    bench.write(a, &old, 2).await.conflict("a write over a replaced version", "If-Match")?;
    unchanged().await
}

pub(super) async fn object_is_written_only_at_its_version(bench: Arc<Bench>) -> Verdict {
    let (store, election) = (&bench.store, &bench.election);
    for object in VersionedObject::ALL {
        let write = async |version, content| store.write(object, election, version, content).await;
        let [first_content, content] = ["first", "second"].map(|text| Bytes::from_static(text.as_bytes()));
        // An earlier run of this case may have created the object.
        let found = match store.read(object, election, None).await.accepted("a read of an object")? {
            Reading::Found(version, _) => Some(version),
            _ => None,
        };
        let first = write(found.as_ref(), first_content.clone()).await.accepted("a write at the current version")?;
        let again = write(None, content.clone()).await;
        again.conflict("the creation of an object that exists", "If-None-Match")?;
        let second = write(Some(&first), content.clone()).await.accepted("a write at the current version")?;
        ensure!(second != first, "a write of an object kept the version {first:?}");
        let stale = write(Some(&first), first_content).await;
        stale.conflict("a write over a replaced version", "If-Match")?;
        for (known, expected) in [
            (None, Reading::Found(second.clone(), content.clone())),
            (Some(&first), Reading::Found(second.clone(), content)),
            (Some(&second), Reading::Unchanged),
        ] {
            let found = store.read(object, election, known).await.accepted("a read of an object")?;
            ensure_eq!(found, expected, "an object that was written");
        }
    }
    Ok(())
}

pub(super) async fn announcement_is_kept_and_listed(bench: Arc<Bench>) -> Verdict {
    let (object, content) = (announcement(&bench), Bytes::from_static(b"{}"));
    bench.store.put(&object, content.clone()).await.accepted("a write of an object")?;
    let found = bench.store.get(&object, 100).await.accepted("a read of an object")?;
    ensure_eq!(found, Some(content), "an object that was written");
    let listing = Listing::Announcements(bench.election.clone());
    let listed = bench.store.list(&listing).await.accepted("a listing")?;
    ensure!(listed.len() == 1 && listed[0].object == object, "a listing lacks an object that was written: {listed:?}");
    Ok(())
}

pub(super) async fn announcement_is_removed(bench: Arc<Bench>) -> Verdict {
    let object = announcement(&bench);
    bench.store.put(&object, Bytes::from_static(b"{}")).await.accepted("a write of an object")?;
    let is_absent = bench.store.remove(&object, None).await.accepted("the removal of an object")?;
    let found = bench.store.get(&object, 100).await.accepted("a read of an object")?;
    ensure!(is_absent && found.is_none(), "an object is still there after its removal");
    Ok(())
}

fn announcement(bench: &Bench) -> PlainObject {
    PlainObject::Announcement(bench.election.clone(), NODE.to_owned())
}

/// Tries to acquire the lease under another id until an attempt succeeds. The clock gives only an upper and a lower
/// bound on the elapsed time, so the case uses the bound that is better for the store:
///
/// - The lease ended too early if even the upper bound is below 99% of the lease's length.
/// - The lease ended too late if even the lower bound exceeds the lease's length by the bench's patience, or by another
///   length if that is longer.
///
/// A refusal proves that the lease was held when the attempt was sent, even if the refusal arrives late.
pub(super) async fn renewed_lease_lasts_for_its_length(bench: Arc<Bench>) -> Verdict {
    let ([a, b, _], length) = (bench.ids, bench.length);
    let version = bench.held_by(a).await?;
    bench.wait_out(length / 2).await;
    let sent = bench.now();
    bench.renew(a).await.accepted("a renewal by the holder")?;
    let ends = bench.least() + length;
    let gives_up = ends + bench.patience.max(length);
    let mut polls = [length / 2, length * 4 / 5, length * 19 / 20].map(|after| sent + after).into_iter();
    let mut refused = Duration::ZERO;
    loop {
        bench.wait_out(polls.next().map_or(POLL, |moment| moment.since(bench.now()))).await;
        let polled = bench.least();
        let answer = bench.acquire_at(b, &version).await;
        let after = bench.now().since(sent);
        match answer {
            Ok(_) if after < length * 99 / 100 => {
                return Err(Finding::broken(format!(
                    "another id acquired a lease of {length:?} only {after:.2?} after it was renewed, while the \
                     holder could rely on it"
                )));
            }
            Ok(_) => {
                let _ = bench.lease_end.set(LeaseEnd {
                    held_for: refused.saturating_sub(ends),
                    free_within: polled.saturating_sub(ends),
                    // If this machine was paused between the last two attempts, the time at which the lease ended is
                    // not known precisely.
                    is_precise: polled.saturating_sub(refused.max(ends)) < POLL * 20,
                });
                return Ok(());
            }
            Err(StoreError::Held) if polled < gives_up => refused = polled,
            Err(StoreError::Held) => {
                let late = polled.saturating_sub(ends);
                return Err(Finding::broken(format!(
                    "a lease of {length:?} is still held {late:.1?} after it should have expired"
                )));
            }
            other => drop(other.accepted("an acquire of a lease that another id holds or held")?),
        }
    }
}

pub(super) async fn late_requests_are_lost_when_another_has_acquired(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    let version = bench.held_by(a).await?;
    bench.outlive().await?;
    bench.acquire(b).await.accepted("an acquire of an expired lease")?;
    bench.renew(a).await.lost("a renewal by the former holder of a lease that another id holds")?;
    bench.write(a, &version, 1).await.lost("a write by the former holder of a lease that another id holds")?;
    bench.release(a).await.lost("a release by the former holder of a lease that another id holds")?;
    bench.renew(b).await.accepted("a renewal by the new holder of an expired lease").map(drop)
}

/// If a lease has expired, the Azure emulator renews it for the last holder even if the request contains another id.
/// The store must not report such a renewal as a success.
pub(super) async fn expired_lease_refuses_writes_and_other_ids(bench: Arc<Bench>) -> Verdict {
    let [a, b, _] = bench.ids;
    let version = bench.held_by(a).await?;
    bench.outlive().await?;
    bench.write(a, &version, 1).await.lost("a write of the record under an expired lease")?;
    ensure_eq!(bench.see().await?.record, Some(bench.record(0)), "the record after a refused write");
    bench.renew(b).await.lost("a renewal of an expired lease under an id that never held it")
}
