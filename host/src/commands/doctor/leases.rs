//! What a lease and its record must do at once. Each check begins with a lease that was just taken, and lets a request
//! fail for one reason alone; the conformance suite has the same cases, and more.

use baton_election::{LeaseState, Op, Reply, StoreError, Version};

use super::scratch::{Answer, Scratch, random_id, said};
use super::verdict::{Verdict, broken, kept};

/// That a lease that was taken is held, and goes on with each renewal.
pub(super) async fn lease_kept(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    for _ in 0..3 {
        let seen = scratch.see().await?;
        scratch.still(&held, seen.answered)?;
        if seen.lease != LeaseState::Held {
            return broken(format!("a lease of {:?} that was just taken is {:?}", scratch.length, seen.lease));
        }
        let renewed = scratch.renew(&mut held).await?;
        if renewed.is_err() {
            return broken(format!("the holder of a lease that was just taken renews it, and {}", said(&renewed)));
        }
    }
    kept("a lease that is taken is held, and its holder renews it")
}

/// That nobody else gets it meanwhile.
pub(super) async fn lease_exclusive(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.acquire(random_id()?, &held.version).await?;
    scratch.still(&held, answered)?;
    match result {
        Err(StoreError::Held) => {}
        Ok(_) => {
            let both = scratch.renew(&mut held).await?.is_ok();
            let first = if both { ", and the first renews it still" } else { "" };
            return broken(format!("two ids hold the lease: a second took it while the first held it{first}"));
        }
        other => {
            return broken(format!(
                "an acquire of a lease that another holds is not refused as held: {}",
                said(&other)
            ));
        }
    }
    let renewed = scratch.renew(&mut held).await?;
    if renewed.is_err() {
        return broken(format!("a refused acquire has ended the lease: its holder renews, and {}", said(&renewed)));
    }
    kept("while it is held, another id is refused")
}

/// That who has lost an answer may ask again.
pub(super) async fn lease_own_id(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.acquire(held.id, &held.version).await?;
    scratch.still(&held, answered)?;
    match result {
        Ok(_) => kept("the id that holds it acquires it again"),
        other => broken(format!("the id that holds the lease acquires it again, and {}", said(&other))),
    }
}

/// That an id which does not hold it neither renews nor releases it.
pub(super) async fn lease_wrong_id(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let other = random_id()?;
    for op in [Op::Renew { id: other }, Op::Release { id: other }] {
        let what = op.to_string();
        let Answer { result, answered, .. } = scratch.ask(op).await?;
        scratch.still(&held, answered)?;
        if !matches!(result, Err(StoreError::Lost(_))) {
            return broken(format!("a {what} under an id that does not hold the lease: {}", said(&result)));
        }
    }
    let renewed = scratch.renew(&mut held).await?;
    if renewed.is_err() {
        return broken(format!(
            "a request under a wrong id has ended the lease: its holder renews, and {}",
            said(&renewed)
        ));
    }
    kept("an id that does not hold it neither renews nor releases it")
}

/// That a release frees it, for good.
pub(super) async fn lease_release(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let released = scratch.ask(Op::Release { id: held.id }).await?.result;
    if released.is_err() {
        return broken(format!("the holder of the lease releases it, and {}", said(&released)));
    }
    let lease = scratch.see().await?.lease;
    if lease != LeaseState::Free {
        return broken(format!("a lease that was released is {lease:?}"));
    }
    let renewed = scratch.ask(Op::Renew { id: held.id }).await?.result;
    if !matches!(renewed, Err(StoreError::Lost(_))) {
        return broken(format!("a lease that was released is renewed: {}", said(&renewed)));
    }
    kept("a release frees it at once, and its id is of no use any more")
}

/// Checks that a lease can be given another id, as a host does that reclaims a dead host's lease, and that the id before is
/// of no use any more.
pub(super) async fn lease_reclaim(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let (id, version) = (random_id()?, &held.version);
    let reclaim = |from, id| Op::Reclaim { from, id, version: version.clone() };
    let Answer { result, answered, .. } = scratch.ask(reclaim(random_id()?, id)).await?;
    scratch.still(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!("a lease is given another id by a client that does not hold it: {}", said(&result)));
    }
    let Answer { result, answered, .. } = scratch.ask(reclaim(held.id, id)).await?;
    scratch.still(&held, answered)?;
    if result.is_err() {
        return broken(format!("the holder of a lease gives it another id, and {}", said(&result)));
    }
    let Answer { result, .. } = scratch.ask(Op::Renew { id: held.id }).await?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!("a lease is renewed under the id that it had before: {}", said(&result)));
    }
    kept("a lease whose id is changed is renewed under the new id alone")
}

/// That an operator can take it away.
pub(super) async fn lease_break(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    scratch.free().await?;
    let renewed = scratch.renew(&mut held).await?;
    if !matches!(renewed, Err(StoreError::Lost(_))) {
        return broken(format!("a lease that was broken is renewed: {}", said(&renewed)));
    }
    let written = scratch.write(held.id, &held.version, 2).await?.result;
    if !matches!(written, Err(StoreError::Lost(_))) {
        return broken(format!("the record is written under a lease that was broken: {}", said(&written)));
    }
    let taken = scratch.acquire(random_id()?, &held.version).await?.result;
    match taken {
        Ok(_) => kept("a break ends it at once, and another takes it"),
        other => broken(format!("a lease that was broken cannot be taken: {}", said(&other))),
    }
}

/// That the record is written by its holder alone.
pub(super) async fn write_lease(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let overwrite = async || scratch.store.overwrite(&scratch.election, scratch.record(3)).await;
    let Answer { result, answered, .. } = scratch.tried(1, overwrite).await?;
    scratch.still(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!("the record is written without the lease, while somebody holds it: {}", said(&result)));
    }
    let Answer { result, answered, .. } = scratch.write(random_id()?, &held.version, 3).await?;
    scratch.still(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!("the record is written under an id that does not hold the lease: {}", said(&result)));
    }
    if scratch.see().await?.version != held.version {
        return broken("a write that was refused has changed the record".to_owned());
    }
    kept("only the holder of the lease writes the record")
}

/// That the record is written on top of what was read alone (`If-Match`), and then is what was written.
pub(super) async fn write_version(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let first = held.version.clone();
    let Answer { result, answered, .. } = scratch.write(held.id, &first, 4).await?;
    scratch.still(&held, answered)?;
    let second = match result {
        Ok(Reply::Version(version)) => version,
        other => return broken(format!("the holder of the lease writes the record, and {}", said(&other))),
    };
    let renewed = scratch.renew(&mut held).await?;
    let seen = scratch.see().await?;
    scratch.still(&held, seen.answered)?;
    if renewed.is_err() || second == first || seen.version != second || seen.record != Some(scratch.record(4)) {
        let read = seen.record.map_or("nothing".to_owned(), |record| format!("term {}", record.term));
        let Version(written) = second;
        return broken(format!(
            "what was written as version {written} of term 4 reads as {} of {read}",
            seen.version.0
        ));
    }
    let Answer { result, answered, .. } = scratch.write(held.id, &first, 5).await?;
    scratch.still(&held, answered)?;
    match result {
        Err(StoreError::Conflict) => kept("a write on top of a version that is gone is refused (If-Match)"),
        other => broken(format!("a write on top of a version that is gone (If-Match): {}", said(&other))),
    }
}

/// That the lease is taken of what was read alone (`If-Match`).
pub(super) async fn acquire_version(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.write(held.id, &held.version, 6).await?;
    scratch.still(&held, answered)?;
    if result.is_err() {
        return broken(format!("the holder of the lease writes the record, and {}", said(&result)));
    }
    scratch.free().await?;
    match scratch.acquire(random_id()?, &held.version).await?.result {
        Err(StoreError::Conflict) => kept("a lease is taken only of the version that was read (If-Match)"),
        other => broken(format!("an acquire of a version that is gone (If-Match): {}", said(&other))),
    }
}

/// That a record is created once (`If-None-Match`), whether its lease is held or not.
pub(super) async fn create_once(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    for _ in 0..2 {
        let again = scratch.ask(Op::Create { record: scratch.record(7) }).await?.result;
        if again != Err(StoreError::Conflict) {
            return broken(format!("a record that is there is created again (If-None-Match): {}", said(&again)));
        }
        scratch.free().await?;
    }
    if scratch.see().await?.version != held.version {
        return broken("a creation that was refused has changed the record".to_owned());
    }
    kept("a record that is there is not created again (If-None-Match)")
}
