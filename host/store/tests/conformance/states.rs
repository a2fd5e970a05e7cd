//! What every store does with coordinators' state, one case for each promise, each in an election of its own.

use std::sync::Arc;

use baton_election::{ElectionName, Refusal, Version};
use baton_store::state::StateStore;
use bytes::Bytes;
use tokio::task::JoinSet;

/// As much as a coordinator may keep by default.
const LARGE: usize = 4 << 20;

/// Runs every case on a store of which `open` makes another host's handle.
pub async fn run(open: impl Fn() -> Arc<dyn StateStore>) {
    nothing_is_there_before_the_first_write(&*open()).await;
    a_write_needs_the_version(&*open()).await;
    of_many_writers_one_succeeds(&open).await;
    elections_are_apart(&*open()).await;
    what_is_large_is_kept_whole(&*open()).await;
    versions_never_come_back(&*open()).await;
}

async fn nothing_is_there_before_the_first_write(store: &dyn StateStore) {
    let job = election("first");
    assert_eq!(store.read(&job).await, Ok(None));
    let stale = Version("\"0x0\"".to_owned());
    assert_eq!(store.write(&job, Some(&stale), text("a")).await, Err(Refusal::Conflict));
    assert_eq!(store.read(&job).await, Ok(None));
    let version = store.write(&job, None, text("a")).await.unwrap();
    assert_eq!(store.read(&job).await, Ok(Some((version, text("a")))));
}

async fn a_write_needs_the_version(store: &dyn StateStore) {
    let job = election("version");
    let first = store.write(&job, None, text("a")).await.unwrap();
    assert_eq!(store.write(&job, None, text("b")).await, Err(Refusal::Conflict));
    let second = store.write(&job, Some(&first), text("b")).await.unwrap();
    assert_ne!(first, second);
    assert_eq!(store.write(&job, Some(&first), text("c")).await, Err(Refusal::Conflict));
    assert_eq!(store.read(&job).await, Ok(Some((second, text("b")))));
}

async fn of_many_writers_one_succeeds(open: &impl Fn() -> Arc<dyn StateStore>) {
    let job = election("race");
    let version = open().write(&job, None, text("start")).await.unwrap();
    for expected in [None, Some(version)] {
        let mut writers = JoinSet::new();
        for writer in 0..16 {
            let (store, job, expected) = (open(), job.clone(), expected.clone());
            writers.spawn(async move {
                loop {
                    // A store that is busy has not written, as the reading in the end shows.
                    match store.write(&job, expected.as_ref(), text(&writer.to_string())).await {
                        Err(Refusal::Unknown(_)) => {}
                        answer => return (writer, answer),
                    }
                }
            });
        }
        let answers = writers.join_all().await;
        let won: Vec<_> = answers.iter().filter_map(|(writer, answer)| Some((writer, answer.as_ref().ok()?))).collect();
        let lost = answers.iter().filter(|(_, answer)| *answer == Err(Refusal::Conflict)).count();
        let Some(expected) = expected else {
            assert_eq!((won.len(), lost), (0, 16), "{answers:?}");
            continue;
        };
        let [(writer, version)] = won[..] else { panic!("not one has won: {answers:?}") };
        assert!(lost == 15 && *version != expected, "{answers:?}");
        assert_eq!(open().read(&job).await, Ok(Some((version.clone(), text(&writer.to_string())))));
    }
}

async fn elections_are_apart(store: &dyn StateStore) {
    let (one, other) = (election("one"), election("other"));
    let of_one = store.write(&one, None, text("1")).await.unwrap();
    let of_other = store.write(&other, None, text("2")).await.unwrap();
    assert_eq!(store.write(&one, Some(&of_other), text("3")).await, Err(Refusal::Conflict));
    assert_eq!(store.read(&one).await, Ok(Some((of_one, text("1")))));
    assert_eq!(store.read(&other).await, Ok(Some((of_other, text("2")))));
}

async fn what_is_large_is_kept_whole(store: &dyn StateStore) {
    let job = election("large");
    let content: Bytes = (0..LARGE).map(|n| (n % 251) as u8).collect();
    let version = store.write(&job, None, content.clone()).await.unwrap();
    let (read, found) = store.read(&job).await.unwrap().unwrap();
    assert!(read == version && found == content, "{} bytes came back", found.len());
    let empty = store.write(&job, Some(&version), Bytes::new()).await.unwrap();
    assert_eq!(store.read(&job).await, Ok(Some((empty, Bytes::new()))));
}

async fn versions_never_come_back(store: &dyn StateStore) {
    let job = election("versions");
    let mut seen = vec![store.write(&job, None, text("same")).await.unwrap()];
    for _ in 0..20 {
        let next = store.write(&job, seen.last(), text("same")).await.unwrap();
        assert!(!seen.contains(&next), "{next:?} was there before");
        seen.push(next);
    }
}

pub fn election(name: &str) -> ElectionName {
    ElectionName::new(name).unwrap()
}

pub fn text(content: &str) -> Bytes {
    Bytes::copy_from_slice(content.as_bytes())
}
