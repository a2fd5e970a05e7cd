//! Checks of objects other than leases: conditional writes, listing, and removal.

use baton_election::StoreError;
use bytes::Bytes;

use super::scratch::{NoVerdict, Scratch, describe};
use super::verdict::{Outcome, Verdict, broken, kept, may_not_list};
use baton_store::{Listing, Reading, VersionedObject};

/// The object to check. The state of coordinators is written under the same conditions.
const OBJECT: VersionedObject = VersionedObject::Control;

/// Checks that an object can be written only if it does not exist, or if it still has the version that was read.
pub(super) async fn object_version(scratch: Scratch) -> Verdict {
    let election = &scratch.election;
    let write = async |version, text: &'static str| {
        let content = Bytes::from_static(text.as_bytes());
        let write = async || scratch.store.write(OBJECT, election, version, content.clone()).await;
        scratch.attempt(1, write).await.map(|answer| answer.result)
    };
    let read = async |known| {
        let read = async || scratch.store.read(OBJECT, election, known).await;
        scratch.attempt(2, read).await.map(|answer| answer.result)
    };
    // An earlier attempt at this check may have created the object.
    let first = match read(None).await? {
        Ok(Reading::Found(version, _)) => version,
        _ => match write(None, "first").await? {
            Ok(version) => version,
            other => return broken(format!("cannot create an object that does not exist: {}", describe(&other))),
        },
    };
    let again = write(None, "again").await?;
    if again != Err(StoreError::Conflict) {
        return broken(format!(
            "creating an object that exists did not fail with a conflict (If-None-Match): {}",
            describe(&again)
        ));
    }
    let second = match write(Some(&first), "second").await? {
        Ok(version) if version != first => version,
        other => return broken(format!("a write over the current version made no new version: {}", describe(&other))),
    };
    let stale = write(Some(&first), "stale").await?;
    if stale != Err(StoreError::Conflict) {
        return broken(format!(
            "a write over a replaced version did not fail with a conflict (If-Match): {}",
            describe(&stale)
        ));
    }
    match (read(None).await?, read(Some(&second)).await?) {
        (Ok(Reading::Found(version, content)), Ok(Reading::Unchanged)) if version == second && content == "second" => {
            kept("an object is created once, and replaced only at the version that was read")
        }
        (found, unchanged) => broken(format!(
            "an object does not read back as it was written: {}, {}",
            describe(&found),
            describe(&unchanged)
        )),
    }
}

/// Checks that an announcement is kept and listed.
pub(super) async fn announcements(scratch: Scratch) -> Verdict {
    let (object, content) = (scratch.announcement(), Bytes::from_static(b"{}"));
    let listing = Listing::Announcements(scratch.election.clone());
    let put = scratch.attempt(2, async || scratch.store.put(&object, content.clone()).await).await?.result;
    if put.is_err() {
        return broken(format!("cannot put an object: {}", describe(&put)));
    }
    let got = scratch.attempt(2, async || scratch.store.get(&object, 100).await).await?.result;
    if got.as_ref().ok().and_then(Option::as_ref) != Some(&content) {
        return broken(format!("an object does not read back as it was put: {}", describe(&got)));
    }
    let listed = match scratch.attempt(2, async || scratch.store.list(&listing).await).await {
        Err(NoVerdict::Store(StoreError::Misconfigured(found))) => return may_not_list(found),
        listed => listed?.result,
    };
    if !listed.as_ref().is_ok_and(|listed| listed.len() == 1 && listed[0].object == object) {
        return broken(format!("an object that was put is not listed: {}", describe(&listed)));
    }
    kept("announcements are kept and listed")
}

/// Checks that an object can be removed. Not every shared access signature permits this.
pub(super) async fn removal(scratch: Scratch) -> Verdict {
    let object = scratch.announcement();
    match scratch.attempt(1, async || scratch.store.remove(&object, None).await).await {
        Ok(answer) if answer.result == Ok(true) => kept("an object can be removed"),
        Ok(answer) => broken(format!("the store did not remove an object that exists: {}", describe(&answer.result))),
        Err(NoVerdict::Store(StoreError::Misconfigured(why))) => Ok(Outcome::Refused {
            found: why,
            means: "`baton prune` removes nothing, `baton push` cannot replace a damaged module, stopped nodes stay \
                    listed, and the test election stays in the store",
            right: "to delete (d)",
        }),
        Err(no_verdict) => Err(no_verdict),
    }
}
