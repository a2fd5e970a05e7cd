//! The embedded store: the suite, and what happens to files, disks, boots and processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton::store::{LeaseStore, SqliteStore};
use baton_election::{LeaseState, Op, Refusal, Reply};
use tempfile::TempDir;

use super::suite::{self, Backend, Bench, a, assert_lost, b, job};

/// A store in a folder of its own, and a handle for each [`Backend::open`], as other processes have.
struct Folder(TempDir);

async fn folder() -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    SqliteStore::new(folder.0.path()).create().await.unwrap();
    SqliteStore::new(folder.0.path()).create().await.expect("a second create is harmless");
    folder
}

impl Folder {
    fn handle(&self) -> SqliteStore {
        SqliteStore::new(self.0.path())
    }
}

#[async_trait]
impl Backend for Folder {
    fn open(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.handle())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), Refusal> {
        self.handle().break_lease(&job(), period).await
    }

    async fn delete(&self) {
        self.handle().delete(&job()).await.unwrap();
    }

    async fn wait_out(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

#[tokio::test]
async fn passes_the_suite() {
    suite::run(folder).await;
}

async fn held() -> (std::path::PathBuf, Bench) {
    let folder = folder().await;
    let path = folder.0.path().join("lease.db");
    let bench = Bench { store: folder.open(), backend: Arc::new(folder) };
    bench.held_by(a()).await;
    (path, bench)
}

#[tokio::test]
async fn a_holder_whose_file_was_moved_away_has_lost() {
    let (path, bench) = held().await;
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.release(a()).await);
    let answer = bench.ask(Op::Read).await;
    assert!(matches!(answer, Err(Refusal::Misconfigured(_) | Refusal::Unknown(_))), "{answer:?}");
    // Nothing was put in its place behind the operator's back.
    assert!(!path.exists());
}

#[tokio::test]
async fn a_holder_whose_file_was_replaced_has_lost() {
    let (path, bench) = held().await;
    // The copy says the same, and it is not the file that the lease was taken in.
    std::fs::copy(&path, path.with_extension("copy")).unwrap();
    std::fs::rename(path.with_extension("copy"), &path).unwrap();
    assert_lost(&bench.renew(a()).await);
}

#[tokio::test]
async fn what_is_not_a_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = SqliteStore::new(dir.path()).request(&job(), Op::Read).await;
    assert!(matches!(&missing, Err(Refusal::Misconfigured(why)) if why.contains("--create")), "{missing:?}");
    write_text(&dir.path().join("lease.db"));
    let store = SqliteStore::new(dir.path());
    let (read, create) = (store.request(&job(), Op::Read).await, store.create().await);
    assert!(matches!(&read, Err(Refusal::Misconfigured(why)) if why.contains("not a database")), "{read:?}");
    assert!(matches!(&create, Err(Refusal::Misconfigured(why)) if why.contains("not a database")), "{create:?}");
}

fn write_text(path: &Path) {
    std::fs::write(path, "This is somebody's diary. ".repeat(500)).unwrap();
}

#[tokio::test]
async fn a_lease_of_another_boot_counts_from_when_it_was_first_seen() {
    for (boot, namespace) in [(Some("another"), None), (None, Some("another"))] {
        let (path, bench) = held().await;
        let mut elsewhere = baton::store::sqlite::Boot::current();
        boot.map(|boot| elsewhere.id = boot.to_owned());
        namespace.map(|namespace| elsewhere.time_namespace = namespace.to_owned());
        let store = SqliteStore::with_boot(path.parent().unwrap(), elsewhere);
        let there = Bench { store: Arc::new(store), backend: Arc::clone(&bench.backend) };
        bench.backend.wait_out(bench.shortest()).await;
        assert_eq!(bench.see().await.lease, LeaseState::Expired, "on its own boot");
        assert_eq!(there.see().await.lease, LeaseState::Held, "first seen now");
        assert_eq!(there.acquire(b()).await, Err(Refusal::Held));
        there.outlive().await;
        assert_eq!(there.acquire(b()).await, Ok(Reply::Done));
        assert_lost(&bench.renew(a()).await);
    }
}
