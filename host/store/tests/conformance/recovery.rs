//! Tests of the embedded store while its disk hangs or cannot be written, and after the disk has recovered.

use std::path::Path;
use std::time::Duration;

use baton_election::{Op, Reply, StoreError};
use baton_store::{LeaseStore, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::patience::Patience;
use crate::sqlite::{Disk, mount};
use crate::suite::{a, job, record};
use crate::version_of;

async fn held(folder: &Path) -> SqliteStore {
    let store = SqliteStore::new(folder);
    store.create().await.unwrap();
    let version = version_of(store.request(&job(), Op::Create { record: record(0) }).await);
    let acquire = Op::Acquire { id: a(), length: store.lease_range().1, version, instead_of: None };
    assert_eq!(store.request(&job(), acquire).await, Ok(Reply::Done));
    store
}

async fn renew(store: &SqliteStore) -> Result<Reply, StoreError> {
    store.request(&job(), Op::Renew { id: a() }).await
}

/// Starts a transaction of another client. The transaction ends when the returned connection is dropped.
fn locked(folder: &Path) -> Connection {
    let other = Connection::open(folder.join("lease.db")).unwrap();
    other.busy_timeout(Duration::from_secs(5)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    other
}

#[tokio::test]
async fn handle_writes_again_when_the_disk_becomes_writable() {
    let Some(disk) = Disk::mount() else { return };
    // Close the store first: a disk cannot become read-only while a file on it is open for writing.
    drop(held(disk.path()).await);
    assert!(mount(&["-o", "remount,ro"], disk.path()), "root may remount");
    let store = SqliteStore::new(disk.path());
    let renewed = renew(&store).await;
    assert!(matches!(renewed, Err(StoreError::Misconfigured(_))), "{renewed:?}");
    // This read opens a read-only connection. The store must not use this connection for the next request.
    assert!(store.request(&job(), Op::Read).await.is_ok());
    assert!(mount(&["-o", "remount,rw"], disk.path()), "root may remount");
    assert_eq!(renew(&store).await, Ok(Reply::Done));
}

#[tokio::test]
async fn store_writes_again_when_the_full_disk_has_room() {
    let Some(disk) = Disk::mount() else { return };
    let store = held(disk.path()).await;
    let filler = disk.path().join("filler");
    let fills = || assert!(std::fs::write(&filler, [0; 1 << 17]).is_err(), "the disk is not full");
    fills();
    // The renewal succeeds: SQLite has kept its journal file, which has enough room.
    assert_eq!(renew(&store).await, Ok(Reply::Done));
    std::fs::remove_file(disk.path().join("lease.db-journal")).unwrap();
    fills();
    let renewed = renew(&store).await;
    assert!(matches!(&renewed, Err(StoreError::Unknown(why)) if why.contains("full")), "{renewed:?}");
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(renew(&store).await, Ok(Reply::Done));
}

#[tokio::test]
async fn endless_lock_is_reported_before_the_try_ends() {
    let folder = TempDir::new().unwrap();
    let store = held(folder.path()).await;
    let _lock = locked(folder.path());
    let answer = Patience::of_future(renew(&store)).await;
    assert!(matches!(&answer, Ok(Err(StoreError::Unknown(why))) if why.contains("is locked")), "{answer:?}");
}

#[tokio::test]
async fn given_up_tries_do_not_pile_up_while_the_disk_hangs() {
    const THREADS: &str = "given-up";
    const TRIES: usize = 200;
    let folder = TempDir::new().unwrap();
    let store = held(folder.path()).await;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let lock = locked(folder.path());
    for _ in 0..TRIES {
        let store = store.clone();
        let give_up = async move {
            let answer = tokio::time::timeout(Duration::from_millis(1), renew(&store)).await;
            assert!(matches!(answer, Err(_) | Ok(Err(StoreError::Unknown(_)))), "{answer:?}");
        };
        runtime.spawn(give_up).await.unwrap();
    }
    // One of the threads is the runtime's worker. The other threads run requests. They exit only some time after their
    // last request, so all of them are counted.
    let requests = threads_named(THREADS) - 1;
    drop(lock);
    runtime.shutdown_background();
    // A thread that has just finished a request may not be ready for the next one yet. So there may be more threads
    // than pending requests, and many more on a slow machine. But there must not be one thread for each try.
    assert!((1..=TRIES / 2).contains(&requests), "{requests} threads");
}

fn threads_named(name: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|comm| comm.trim() == name)
        .count()
}
