//! The suite's cases about versioned objects. Each case runs for each kind of object.

use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use tokio::task::JoinSet;

use super::bench::{Finding, Verdict, ensure, ensure_eq};
use super::suite::{StoreBench, accepted, job};
use crate::{Reading, VersionedObject};

/// The default limit for a coordinator's state, in bytes.
const LARGE: usize = 4 << 20;

pub(super) async fn object_is_absent_until_written(bench: StoreBench) -> Verdict {
    let (store, job) = (&bench.store, job());
    let stale = Version("\"0x0\"".to_owned());
    for object in VersionedObject::ALL {
        ensure_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing));
        ensure_eq!(store.read(object, &job, Some(&stale)).await, Ok(Reading::Nothing));
        ensure_eq!(store.write(object, &job, Some(&stale), text("a")).await, Err(StoreError::Conflict));
        ensure_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing));
        let first = accepted!(store.write(object, &job, None, text("a")).await);
        ensure_eq!(store.read(object, &job, Some(&stale)).await, found(&first, "a"));
        for _ in 0..3 {
            ensure_eq!(store.read(object, &job, Some(&first)).await, Ok(Reading::Unchanged));
        }
    }
    Ok(())
}

pub(super) async fn one_of_many_writers_succeeds_in_each_round(bench: StoreBench) -> Verdict {
    for object in VersionedObject::ALL {
        race(&bench, object).await?;
    }
    Ok(())
}

async fn race(bench: &StoreBench, object: VersionedObject) -> Verdict {
    let job = job();
    let mut expected = None;
    for round in 0..5 {
        let mut writers = JoinSet::new();
        for writer in 0..16 {
            let (store, job, expected) = (bench.open(), job.clone(), expected.clone());
            writers.spawn(async move {
                let content = text(&format!("{round} {writer}"));
                loop {
                    // A busy store has not written anything. The read at the end of the round checks this.
                    match store.write(object, &job, expected.as_ref(), content.clone()).await {
                        Err(StoreError::Unknown(_)) => {}
                        answer => return (content, answer),
                    }
                }
            });
        }
        let answers = writers.join_all().await;
        let won: Vec<_> =
            answers.iter().filter_map(|(content, answer)| Some((content, answer.as_ref().ok()?))).collect();
        let lost = answers.iter().filter(|(_, answer)| *answer == Err(StoreError::Conflict)).count();
        let [(content, version)] = won[..] else {
            return Err(Finding::broken(format!("round {round} has no single winner: {answers:?}")));
        };
        ensure_eq!(lost, 15, "{answers:?}");
        let read = bench.open().read(object, &job, expected.as_ref()).await;
        ensure_eq!(read, Ok(Reading::Found(version.clone(), content.clone())));
        expected = Some(version.clone());
    }
    Ok(())
}

pub(super) async fn large_object_is_kept_whole(bench: StoreBench) -> Verdict {
    let (store, job) = (&bench.store, job());
    for object in VersionedObject::ALL {
        let content: Bytes = (0..LARGE).map(|n| (n % 251) as u8).collect();
        let version = accepted!(store.write(object, &job, None, content.clone()).await);
        let Reading::Found(read, found) = accepted!(store.read(object, &job, None).await) else {
            return Err(Finding::broken("an object that was written does not exist"));
        };
        ensure!(read == version && found == content, "{} bytes came back", found.len());
        let empty = accepted!(store.write(object, &job, Some(&version), Bytes::new()).await);
        ensure_eq!(store.read(object, &job, None).await, Ok(Reading::Found(empty, Bytes::new())));
    }
    Ok(())
}

pub(super) async fn versions_are_never_reused(bench: StoreBench) -> Verdict {
    let (store, job) = (&bench.store, job());
    for object in VersionedObject::ALL {
        let mut seen = vec![accepted!(store.write(object, &job, None, text("same")).await)];
        for _ in 0..20 {
            let next = accepted!(store.write(object, &job, seen.last(), text("same")).await);
            ensure!(!seen.contains(&next), "{next:?} was there before");
            seen.push(next);
        }
    }
    Ok(())
}

pub(super) async fn object_is_deleted_only_if_unchanged(bench: StoreBench) -> Verdict {
    let (store, job) = (&bench.store, job());
    for object in VersionedObject::ALL {
        let stale = Version("\"0x0\"".to_owned());
        ensure_eq!(store.delete(object, &job, &stale).await, Ok(()), "there is none");
        let first = accepted!(store.write(object, &job, None, text("a")).await);
        let second = accepted!(store.write(object, &job, Some(&first), text("b")).await);
        ensure_eq!(store.delete(object, &job, &first).await, Err(StoreError::Conflict));
        ensure_eq!(store.read(object, &job, None).await, found(&second, "b"));
        ensure_eq!(store.delete(object, &job, &second).await, Ok(()));
        ensure_eq!(store.read(object, &job, Some(&second)).await, Ok(Reading::Nothing));
        let with = accepted!(store.elections_with(object).await);
        ensure!(!with.contains(&job), "{with:?}");
        let third = accepted!(store.write(object, &job, None, text("a")).await);
        ensure!(third != first && third != second, "{third:?} was there before");
    }
    Ok(())
}

pub(super) async fn elections_and_objects_are_separate(bench: StoreBench) -> Verdict {
    let store = &bench.store;
    let objects = VersionedObject::ALL;
    // A store could confuse these names: the first is also the name of a folder in the store, and the other two share a
    // prefix.
    let names = ["modules", "one", "one-more"].map(election);
    let mut written = Vec::new();
    for (name, object) in names.iter().flat_map(|name| objects.map(|object| (name, object))) {
        let content = format!("{name} {object:?}");
        let version = accepted!(store.write(object, name, None, text(&content)).await);
        written.push((name, object, version, content));
    }
    for (at, (name, object, ..)) in written.iter().enumerate() {
        let (_, _, of_another, _) = &written[(at + 1) % written.len()];
        ensure_eq!(store.write(*object, name, Some(of_another), text("x")).await, Err(StoreError::Conflict));
    }
    for (name, object, version, content) in &written {
        ensure_eq!(store.read(*object, name, None).await, found(version, content));
    }
    let alone = election("alone");
    accepted!(store.write(VersionedObject::State, &alone, None, text("x")).await);
    for object in objects {
        let with = accepted!(store.elections_with(object).await);
        ensure!(with.is_sorted() && names.iter().all(|name| with.contains(name)), "{with:?}");
        ensure_eq!(with.contains(&alone), object == VersionedObject::State, "{with:?}");
    }
    Ok(())
}

fn found(version: &Version, content: &str) -> Result<Reading, StoreError> {
    Ok(Reading::Found(version.clone(), text(content)))
}

pub(super) fn election(name: &str) -> ElectionName {
    ElectionName::new(name).unwrap()
}

/// Returns `content` as bytes.
pub fn text(content: &str) -> Bytes {
    Bytes::copy_from_slice(content.as_bytes())
}
