//! The cases for versioned objects: one for each guarantee and each kind of object, each in its own election.

use std::sync::Arc;

use crate::{ObjectStore, Reading, VersionedObject};
use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use tokio::task::JoinSet;

/// The default limit for a coordinator's state, in bytes.
const LARGE: usize = 4 << 20;

/// Runs all cases on a store. `open` opens a handle to the store for another host.
pub async fn run(open: impl Fn() -> Arc<dyn ObjectStore>) {
    for object in VersionedObject::ALL {
        object_is_sent_only_if_it_has_changed(&*open(), object).await;
        write_needs_the_version(&*open(), object).await;
        one_of_many_writers_succeeds_in_each_round(&open, object).await;
        large_object_is_kept_whole(&*open(), object).await;
        versions_are_never_reused(&*open(), object).await;
        object_is_deleted_only_if_unchanged(&*open(), object).await;
    }
    elections_and_objects_are_separate(&*open()).await;
}

async fn object_is_sent_only_if_it_has_changed(store: &dyn ObjectStore, object: VersionedObject) {
    let job = election("conditional");
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing));
    assert_eq!(store.read(object, &job, Some(&stale)).await, Ok(Reading::Nothing));
    let first = store.write(object, &job, None, text("a")).await.unwrap();
    assert_eq!(store.read(object, &job, None).await, found(&first, "a"));
    assert_eq!(store.read(object, &job, Some(&stale)).await, found(&first, "a"));
    for _ in 0..3 {
        assert_eq!(store.read(object, &job, Some(&first)).await, Ok(Reading::Unchanged));
    }
    let second = store.write(object, &job, Some(&first), text("b")).await.unwrap();
    assert_eq!(store.read(object, &job, Some(&first)).await, found(&second, "b"));
    assert_eq!(store.read(object, &job, Some(&second)).await, Ok(Reading::Unchanged));
}

async fn write_needs_the_version(store: &dyn ObjectStore, object: VersionedObject) {
    let job = election("version");
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.write(object, &job, Some(&stale), text("a")).await, Err(StoreError::Conflict));
    assert_eq!(store.read(object, &job, None).await, Ok(Reading::Nothing));
    let first = store.write(object, &job, None, text("a")).await.unwrap();
    assert_eq!(store.write(object, &job, None, text("b")).await, Err(StoreError::Conflict));
    let second = store.write(object, &job, Some(&first), text("b")).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(store.write(object, &job, Some(&first), text("c")).await, Err(StoreError::Conflict));
    assert_eq!(store.read(object, &job, None).await, found(&second, "b"));
}

async fn one_of_many_writers_succeeds_in_each_round(open: &impl Fn() -> Arc<dyn ObjectStore>, object: VersionedObject) {
    let job = election("race");
    let mut expected = None;
    for round in 0..5 {
        let mut writers = JoinSet::new();
        for writer in 0..16 {
            let (store, job, expected) = (open(), job.clone(), expected.clone());
            writers.spawn(async move {
                let content = text(&format!("{round} {writer}"));
                loop {
                    // A busy store has not written anything, as the read at the end of the round confirms.
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
        let [(content, version)] = won[..] else { panic!("not one has won round {round}: {answers:?}") };
        assert_eq!(lost, 15, "{answers:?}");
        let read = open().read(object, &job, expected.as_ref()).await;
        assert_eq!(read, Ok(Reading::Found(version.clone(), content.clone())));
        expected = Some(version.clone());
    }
}

async fn large_object_is_kept_whole(store: &dyn ObjectStore, object: VersionedObject) {
    let job = election("large");
    let content: Bytes = (0..LARGE).map(|n| (n % 251) as u8).collect();
    let version = store.write(object, &job, None, content.clone()).await.unwrap();
    let Ok(Reading::Found(read, found)) = store.read(object, &job, None).await else { panic!("it is not there") };
    assert!(read == version && found == content, "{} bytes came back", found.len());
    let empty = store.write(object, &job, Some(&version), Bytes::new()).await.unwrap();
    assert_eq!(store.read(object, &job, None).await, Ok(Reading::Found(empty, Bytes::new())));
}

async fn versions_are_never_reused(store: &dyn ObjectStore, object: VersionedObject) {
    let job = election("versions");
    let mut seen = vec![store.write(object, &job, None, text("same")).await.unwrap()];
    for _ in 0..20 {
        let next = store.write(object, &job, seen.last(), text("same")).await.unwrap();
        assert!(!seen.contains(&next), "{next:?} was there before");
        seen.push(next);
    }
}

async fn object_is_deleted_only_if_unchanged(store: &dyn ObjectStore, object: VersionedObject) {
    let job = election("deleted");
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.delete(object, &job, &stale).await, Ok(()), "there is none");
    let first = store.write(object, &job, None, text("a")).await.unwrap();
    let second = store.write(object, &job, Some(&first), text("b")).await.unwrap();
    assert_eq!(store.delete(object, &job, &first).await, Err(StoreError::Conflict));
    assert_eq!(store.read(object, &job, None).await, found(&second, "b"));
    assert_eq!(store.delete(object, &job, &second).await, Ok(()));
    assert_eq!(store.read(object, &job, Some(&second)).await, Ok(Reading::Nothing));
    assert!(!store.elections_with(object).await.unwrap().contains(&job));
    let third = store.write(object, &job, None, text("a")).await.unwrap();
    assert!(third != first && third != second, "{third:?} was there before");
}

async fn elections_and_objects_are_separate(store: &dyn ObjectStore) {
    let objects = VersionedObject::ALL;
    // The first name is also the name of a folder, and the other two share a prefix.
    let names = ["modules", "one", "one-more"].map(election);
    let mut written = Vec::new();
    for (name, object) in names.iter().flat_map(|name| objects.map(|object| (name, object))) {
        let content = format!("{name} {object:?}");
        let version = store.write(object, name, None, text(&content)).await.unwrap();
        written.push((name, object, version, content));
    }
    for (at, (name, object, ..)) in written.iter().enumerate() {
        let (_, _, of_another, _) = &written[(at + 1) % written.len()];
        assert_eq!(store.write(*object, name, Some(of_another), text("x")).await, Err(StoreError::Conflict));
    }
    for (name, object, version, content) in &written {
        assert_eq!(store.read(*object, name, None).await, found(version, content));
    }
    let alone = election("alone");
    store.write(VersionedObject::State, &alone, None, text("x")).await.unwrap();
    for object in objects {
        let with = store.elections_with(object).await.unwrap();
        assert!(with.is_sorted() && names.iter().all(|name| with.contains(name)), "{with:?}");
        assert_eq!(with.contains(&alone), object == VersionedObject::State, "{with:?}");
    }
}

fn found(version: &Version, content: &str) -> Result<Reading, StoreError> {
    Ok(Reading::Found(version.clone(), text(content)))
}

/// Returns the election of a case.
pub fn election(name: &str) -> ElectionName {
    ElectionName::new(name).unwrap()
}

/// Returns `content` as bytes.
pub fn text(content: &str) -> Bytes {
    Bytes::copy_from_slice(content.as_bytes())
}
