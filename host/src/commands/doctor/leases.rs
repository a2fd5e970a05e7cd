//! Checks of a lease and its record that need no waiting. Each check starts with a newly acquired lease and sends
//! requests that can fail for only one reason. The conformance suite has the same cases and more.

use baton_election::{LeaseState, Op, Reply, StoreError, Version};

use super::scratch::{Answer, Scratch, describe, random_id};
use super::verdict::{Verdict, broken, kept};

/// Checks that an acquired lease is held, and that each renewal keeps it.
pub(super) async fn lease_kept(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    for _ in 0..3 {
        let seen = scratch.read_object().await?;
        scratch.ensure_held(&held, seen.answered)?;
        if seen.lease != LeaseState::Held {
            return broken(format!("a lease of {:?} that was just taken is {:?}", scratch.length, seen.lease));
        }
        let renewed = scratch.renew(&mut held).await?;
        if renewed.is_err() {
            return broken(format!("the holder cannot renew a lease that was just taken: {}", describe(&renewed)));
        }
    }
    kept("the holder keeps the lease and can renew it")
}

/// Checks that no other id can acquire a held lease.
pub(super) async fn lease_exclusive(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.acquire(random_id()?, &held.version).await?;
    scratch.ensure_held(&held, answered)?;
    match result {
        Err(StoreError::Held) => {}
        Ok(_) => {
            let both = scratch.renew(&mut held).await?.is_ok();
            let first = if both { ", and the first can still renew it" } else { "" };
            return broken(format!("two ids hold the lease: a second acquired it while the first held it{first}"));
        }
        other => {
            return broken(format!(
                "acquiring a lease that another id holds did not fail with \"lease held\": {}",
                describe(&other)
            ));
        }
    }
    let renewed = scratch.renew(&mut held).await?;
    if renewed.is_err() {
        return broken(format!(
            "a refused acquire ended the lease: the holder cannot renew it: {}",
            describe(&renewed)
        ));
    }
    kept("while one id holds the lease, the store refuses another id")
}

/// Checks that the holder can acquire the lease again, as it must after a lost response.
pub(super) async fn lease_own_id(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.acquire(held.id, &held.version).await?;
    scratch.ensure_held(&held, answered)?;
    match result {
        Ok(_) => kept("the holder can acquire the lease again with its own id"),
        other => broken(format!("cannot acquire the lease again with the holder's own id: {}", describe(&other))),
    }
}

/// Checks that an id that does not hold the lease can neither renew nor release it.
pub(super) async fn lease_wrong_id(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let other = random_id()?;
    for op in [Op::Renew { id: other }, Op::Release { id: other }] {
        let what = op.to_string();
        let Answer { result, answered, .. } = scratch.ask(op).await?;
        scratch.ensure_held(&held, answered)?;
        if !matches!(result, Err(StoreError::Lost(_))) {
            return broken(format!(
                "a {what} under an id that does not hold the lease did not fail with \"lease lost\": {}",
                describe(&result)
            ));
        }
    }
    let renewed = scratch.renew(&mut held).await?;
    if renewed.is_err() {
        return broken(format!(
            "a request under a wrong id ended the lease: the holder cannot renew it: {}",
            describe(&renewed)
        ));
    }
    kept("an id that does not hold the lease can neither renew nor release it")
}

pub(super) async fn lease_release(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let released = scratch.ask(Op::Release { id: held.id }).await?.result;
    if released.is_err() {
        return broken(format!("the holder cannot release the lease: {}", describe(&released)));
    }
    let lease = scratch.read_object().await?.lease;
    if lease != LeaseState::Free {
        return broken(format!("a lease that was released is {lease:?}"));
    }
    let renewed = scratch.ask(Op::Renew { id: held.id }).await?.result;
    if !matches!(renewed, Err(StoreError::Lost(_))) {
        return broken(format!("renewing a released lease did not fail with \"lease lost\": {}", describe(&renewed)));
    }
    kept("a release frees the lease at once and invalidates its id")
}

/// Checks that a lease's id can be changed, as a reclaiming host does, and that the previous id becomes invalid.
pub(super) async fn lease_reclaim(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let (id, version) = (random_id()?, &held.version);
    let reclaim = |from, id| Op::Reclaim { from, id, version: version.clone() };
    let Answer { result, answered, .. } = scratch.ask(reclaim(random_id()?, id)).await?;
    scratch.ensure_held(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a request to change the lease's id, made without holding the lease, did not fail with \"lease lost\" as \
             it should: {}",
            describe(&result)
        ));
    }
    let Answer { result, answered, .. } = scratch.ask(reclaim(held.id, id)).await?;
    scratch.ensure_held(&held, answered)?;
    if result.is_err() {
        return broken(format!("the holder cannot change the lease's id: {}", describe(&result)));
    }
    let Answer { result, .. } = scratch.ask(Op::Renew { id: held.id }).await?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!(
            "renewing a lease under its previous id did not fail with \"lease lost\": {}",
            describe(&result)
        ));
    }
    kept("a lease whose id was changed can be renewed only under the new id")
}

pub(super) async fn lease_break(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    scratch.free().await?;
    let renewed = scratch.renew(&mut held).await?;
    if !matches!(renewed, Err(StoreError::Lost(_))) {
        return broken(format!("renewing a broken lease did not fail with \"lease lost\": {}", describe(&renewed)));
    }
    let written = scratch.write(held.id, &held.version, 2).await?.result;
    if !matches!(written, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a write of the record under a broken lease did not fail with \"lease lost\": {}",
            describe(&written)
        ));
    }
    let taken = scratch.acquire(random_id()?, &held.version).await?.result;
    match taken {
        Ok(_) => kept("a break ends the lease at once, and another id can acquire it"),
        other => broken(format!("a broken lease cannot be acquired: {}", describe(&other))),
    }
}

pub(super) async fn write_lease(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let overwrite = async || scratch.store.overwrite(&scratch.election, scratch.record(3)).await;
    let Answer { result, answered, .. } = scratch.attempt(1, overwrite).await?;
    scratch.ensure_held(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a write of a held record without the lease did not fail with \"lease lost\": {}",
            describe(&result)
        ));
    }
    let Answer { result, answered, .. } = scratch.write(random_id()?, &held.version, 3).await?;
    scratch.ensure_held(&held, answered)?;
    if !matches!(result, Err(StoreError::Lost(_))) {
        return broken(format!(
            "a write of the record under an id that does not hold the lease did not fail with \"lease lost\": {}",
            describe(&result)
        ));
    }
    if scratch.read_object().await?.version != held.version {
        return broken("a refused write changed the record".to_owned());
    }
    kept("only the lease's holder can write the record")
}

/// Checks that a write requires the version that was read (`If-Match`), and that a written record reads back unchanged.
pub(super) async fn write_version(scratch: Scratch) -> Verdict {
    let mut held = scratch.held().await?;
    let first = held.version.clone();
    let Answer { result, answered, .. } = scratch.write(held.id, &first, 4).await?;
    scratch.ensure_held(&held, answered)?;
    let second = match result {
        Ok(Reply::Version(version)) => version,
        other => return broken(format!("the lease's holder cannot write the record: {}", describe(&other))),
    };
    let renewed = scratch.renew(&mut held).await?;
    let seen = scratch.read_object().await?;
    scratch.ensure_held(&held, seen.answered)?;
    if renewed.is_err() || second == first || seen.version != second || seen.record != Some(scratch.record(4)) {
        let read = seen.record.map_or("nothing".to_owned(), |record| format!("term {}", record.term));
        let Version(written) = second;
        return broken(format!(
            "the record was written as version {written} of term 4, but reads as version {} of {read}",
            seen.version.0
        ));
    }
    let Answer { result, answered, .. } = scratch.write(held.id, &first, 5).await?;
    scratch.ensure_held(&held, answered)?;
    match result {
        Err(StoreError::Conflict) => kept("a write over a replaced version is refused (If-Match)"),
        other => broken(format!(
            "a write over a replaced version did not fail with a conflict (If-Match): {}",
            describe(&other)
        )),
    }
}

/// Checks that acquiring the lease requires the version that was read (`If-Match`).
pub(super) async fn acquire_version(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    let Answer { result, answered, .. } = scratch.write(held.id, &held.version, 6).await?;
    scratch.ensure_held(&held, answered)?;
    if result.is_err() {
        return broken(format!("the lease's holder cannot write the record: {}", describe(&result)));
    }
    scratch.free().await?;
    match scratch.acquire(random_id()?, &held.version).await?.result {
        Err(StoreError::Conflict) => kept("a lease can be acquired only at the version that was read (If-Match)"),
        other => broken(format!(
            "acquiring a lease at a replaced version did not fail with a conflict (If-Match): {}",
            describe(&other)
        )),
    }
}

/// Checks that an existing record cannot be created again (`If-None-Match`), whether or not its lease is held.
pub(super) async fn create_once(scratch: Scratch) -> Verdict {
    let held = scratch.held().await?;
    for _ in 0..2 {
        let again = scratch.ask(Op::Create { record: scratch.record(7) }).await?.result;
        if again != Err(StoreError::Conflict) {
            return broken(format!(
                "creating a record that exists did not fail with a conflict (If-None-Match): {}",
                describe(&again)
            ));
        }
        scratch.free().await?;
    }
    if scratch.read_object().await?.version != held.version {
        return broken("a refused creation changed the record".to_owned());
    }
    kept("a record that exists is not created again (If-None-Match)")
}
