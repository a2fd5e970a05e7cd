//! What is kept beside leases: written under conditions, or put, listed and removed.

use baton_election::StoreError;
use bytes::Bytes;

use super::scratch::{Scratch, Untold, said};
use super::verdict::{Seen, Verdict, broken, kept, may_not_list};
use baton_store::{Listing, Reading, VersionedObject};

/// A coordinator's state is written as the control object is.
const OBJECT: VersionedObject = VersionedObject::Control;

/// That an object is written only if there is none, or only on top of what was read.
pub(super) async fn object_version(scratch: Scratch) -> Verdict {
    let election = &scratch.election;
    let write = async |version, text: &'static str| {
        let content = Bytes::from_static(text.as_bytes());
        let write = async || scratch.store.write(OBJECT, election, version, content.clone()).await;
        scratch.tried(1, write).await.map(|answer| answer.result)
    };
    let read = async |known| {
        let read = async || scratch.store.read(OBJECT, election, known).await;
        scratch.tried(2, read).await.map(|answer| answer.result)
    };
    // An earlier try of this check may have written it.
    let first = match read(None).await? {
        Ok(Reading::Found(version, _)) => version,
        _ => match write(None, "first").await? {
            Ok(version) => version,
            other => return broken(format!("cannot create an object that does not exist: {}", said(&other))),
        },
    };
    let again = write(None, "again").await?;
    if again != Err(StoreError::Conflict) {
        return broken(format!(
            "creating an object that exists did not fail with a conflict (If-None-Match): {}",
            said(&again)
        ));
    }
    let second = match write(Some(&first), "second").await? {
        Ok(version) if version != first => version,
        other => return broken(format!("a write over the current version made no new version: {}", said(&other))),
    };
    let stale = write(Some(&first), "stale").await?;
    if stale != Err(StoreError::Conflict) {
        return broken(format!(
            "a write over a replaced version did not fail with a conflict (If-Match): {}",
            said(&stale)
        ));
    }
    match (read(None).await?, read(Some(&second)).await?) {
        (Ok(Reading::Found(version, content)), Ok(Reading::Unchanged)) if version == second && content == "second" => {
            kept("an object is created once, and replaced only at the version that was read")
        }
        (found, unchanged) => {
            broken(format!("an object does not read back as it was written: {}, {}", said(&found), said(&unchanged)))
        }
    }
}

/// That what a node says of itself is kept, listed and withdrawn.
pub(super) async fn announcements(scratch: Scratch) -> Verdict {
    let (object, content) = (scratch.announcement(), Bytes::from_static(b"{}"));
    let listing = Listing::Announcements(scratch.election.clone());
    let put = scratch.tried(2, async || scratch.store.put(&object, content.clone()).await).await?.result;
    if put.is_err() {
        return broken(format!("cannot put an object: {}", said(&put)));
    }
    let got = scratch.tried(2, async || scratch.store.get(&object, 100).await).await?.result;
    if got.as_ref().ok().and_then(Option::as_ref) != Some(&content) {
        return broken(format!("an object does not read back as it was put: {}", said(&got)));
    }
    let listed = match scratch.tried(2, async || scratch.store.list(&listing).await).await {
        Err(Untold::Store(StoreError::Misconfigured(found))) => return may_not_list(found),
        listed => listed?.result,
    };
    if !listed.as_ref().is_ok_and(|listed| listed.len() == 1 && listed[0].object == object) {
        return broken(format!("an object that was put is not listed: {}", said(&listed)));
    }
    kept("announcements are kept and listed")
}

/// That it can be removed: not every signature allows that.
pub(super) async fn removal(scratch: Scratch) -> Verdict {
    let object = scratch.announcement();
    match scratch.tried(1, async || scratch.store.remove(&object, None).await).await {
        Ok(answer) if answer.result == Ok(true) => kept("an object can be removed"),
        Ok(answer) => broken(format!("the store did not remove an object that exists: {}", said(&answer.result))),
        Err(Untold::Store(StoreError::Misconfigured(why))) => Ok(Seen::Refused {
            found: why,
            means: "`baton prune` removes nothing, `baton push` cannot replace a damaged module, stopped nodes stay \
                    listed, and the test election stays in the store",
            right: "to delete (d)",
        }),
        Err(untold) => Err(untold),
    }
}
