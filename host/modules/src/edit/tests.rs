//! Tests of edits to a list, in a store that loses requests and responses.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use baton_election::StoreError;
use futures::FutureExt;

use super::*;
use crate::{Publication, Pushed, RollbackError, RolledBack};
use baton_store::memory::{Fault, MemoryStore};
use baton_store::{Digest, ModuleStore as _, Reading};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Versions(#[from] VersionListError),
    #[error(transparent)]
    Rollback(#[from] RollbackError),
}

fn empty_store() -> MemoryStore {
    MemoryStore::new(Arc::new(|| Duration::ZERO))
}

/// Returns a store with an empty list, whose serial is 0. The first pushed version gets serial 1.
fn store() -> MemoryStore {
    let store = empty_store();
    store.write_control(&job(), None, VersionList::default().encode()).now_or_never().unwrap().unwrap();
    store
}

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn publication(name: &str) -> Publication {
    let digest = Digest::of(name.as_bytes());
    Publication { digest, size: 1, by: "ann@desk".to_owned(), at: String::new(), signature: None }
}

async fn push(store: &MemoryStore, name: &str) -> Result<Pushed, Failed> {
    edit_versions(store, &job(), |control| Ok(control.push(publication(name))?)).await
}

async fn rollback(store: &MemoryStore) -> Result<RolledBack, Failed> {
    edit_versions(store, &job(), |control| Ok(control.rollback(None)?)).await
}

async fn holds(store: &MemoryStore, names: &[&str], serial: u64) {
    let control = read_versions(store, &job()).await.unwrap().unwrap();
    let pushed: Vec<Digest> = control.pushed.iter().map(|entry| entry.digest).collect();
    let expected: Vec<Digest> = names.iter().map(|name| Digest::of(name.as_bytes())).collect();
    assert_eq!((pushed, control.serial), (expected, serial));
}

#[tokio::test]
async fn edit_without_a_change_is_not_written() {
    let store = empty_store();
    assert_eq!(read_versions(&store, &job()).await, Ok(None));
    assert_eq!(edit_versions(&store, &job(), |_| Ok::<_, Failed>(7)).await, Ok(7));
    assert_eq!(read_versions(&store, &job()).await, Ok(None));
    assert_eq!(rollback(&store).await, Err(Failed::Rollback(RollbackError::Empty)));
    assert_eq!(push(&store, "a").await, Ok(Pushed::Current));
    let version = async || match store.read_control(&job(), None).await {
        Ok(Reading::Found(version, _)) => version,
        other => panic!("{other:?}"),
    };
    let before = version().await;
    assert_eq!(push(&store, "a").await, Ok(Pushed::Already));
    assert_eq!(version().await, before);
}

#[tokio::test]
async fn edit_is_made_once_when_request_or_response_is_lost() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        let store = store();
        store.fail_next(fault);
        assert_eq!(push(&store, "a").await, Ok(Pushed::Current), "{fault:?}");
        push(&store, "b").await.unwrap();
        store.fail_next(fault);
        // A second rollback would restore the original version, so the edit must not repeat the rollback.
        assert_eq!(rollback(&store).await, Ok(RolledBack::To(Digest::of(b"a"))), "{fault:?}");
        holds(&store, &["b", "a"], 3).await;
    }
}

#[tokio::test]
async fn new_list_has_serials_above_those_of_a_deleted_one() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        let mut serials = Vec::new();
        // The second store has no list, like a store whose list was deleted. Its new list must continue above the
        // serials of the first store's list.
        for _ in 0..2 {
            let store = empty_store();
            store.fail_next(fault);
            assert_eq!(push(&store, "a").await, Ok(Pushed::Current), "{fault:?}");
            assert_eq!(push(&store, "b").await, Ok(Pushed::Current));
            let control = read_versions(&store, &job()).await.unwrap().unwrap();
            serials.extend(control.pushed.iter().map(|entry| entry.serial));
            assert_eq!(serials.last(), Some(&control.serial));
        }
        assert!(serials.is_sorted_by(|one, next| one < next), "{serials:?}");
        assert!(u128::from(serials[0]) + 60_000_000 > wall().as_micros(), "{serials:?}");
    }
}

#[tokio::test]
async fn edit_with_a_lost_response_is_found_below_later_edits() {
    let store = store();
    push(&store, "a").await.unwrap();
    push(&store, "b").await.unwrap();
    store.fail_next(Fault::LoseAnswer);
    let (election, mut calls) = (job(), 0);
    let edited = edit_versions(&store, &election, |control| {
        calls += 1;
        Ok::<_, Failed>(control.rollback(None)?)
    });
    // The edit does not yield before its response is lost, so the push runs after the lost response.
    let (edited, other) = tokio::join!(edited, push(&store, "c"));
    assert_eq!((edited, other), (Ok(RolledBack::To(Digest::of(b"a"))), Ok(Pushed::Current)));
    assert_eq!(calls, 1);
    holds(&store, &["b", "a", "c"], 4).await;
}

#[tokio::test]
async fn request_that_arrives_late_does_not_count_twice() {
    let store = store();
    push(&store, "a").await.unwrap();
    push(&store, "b").await.unwrap();
    store.fail_next(Fault::Hold);
    let (edited, late) = tokio::join!(rollback(&store), async { store.deliver_writes() });
    assert_eq!(edited, Ok(RolledBack::To(Digest::of(b"a"))));
    assert!(matches!(late.as_slice(), [Ok(_)]), "{late:?}");
    holds(&store, &["b", "a"], 3).await;

    // This time, the first request arrives after the next attempt, which has already changed the object's version. The
    // first request therefore conflicts.
    store.fail_next(Fault::Hold);
    assert_eq!(rollback(&store).await, Ok(RolledBack::To(Digest::of(b"b"))));
    assert_eq!(store.deliver_writes(), [Err(StoreError::Conflict)]);
    holds(&store, &["a", "b"], 4).await;
}

#[tokio::test]
async fn edit_does_not_overwrite_a_faster_writer() {
    let store = store();
    let (election, mut calls) = (job(), 0);
    let edited = edit_versions(&store, &election, |control| {
        calls += 1;
        if calls <= 3 {
            let faster = push(&store, &calls.to_string()).now_or_never();
            assert_eq!(faster, Some(Ok(Pushed::Current)));
        }
        Ok::<_, Failed>(control.push(publication("a"))?)
    });
    assert_eq!(edited.await, Ok(Pushed::Current));
    assert_eq!(calls, 4);
    holds(&store, &["1", "2", "3", "a"], 4).await;
}

#[tokio::test]
async fn edit_reports_unknown_outcome_when_the_store_stays_away() {
    let store = store();
    (0..20).for_each(|_| store.fail_next(Fault::LoseRequest));
    let failed = push(&store, "a").await.unwrap_err();
    assert!(matches!(failed, Failed::Edit(EditError::Unknown(_))), "{failed:?}");
    assert!(failed.to_string().contains("baton modules"), "{failed}");
}

#[tokio::test]
async fn damaged_list_is_not_overwritten() {
    let store = empty_store();
    store.write_control(&job(), None, "nothing of ours".into()).await.unwrap();
    let failed = push(&store, "a").await.unwrap_err();
    assert!(matches!(failed, Failed::Edit(EditError::Unusable(VersionListError::Damaged(_)))), "{failed:?}");
    let found = store.read_control(&job(), None).await;
    assert!(matches!(&found, Ok(Reading::Found(_, content)) if content == "nothing of ours"), "{found:?}");
}
