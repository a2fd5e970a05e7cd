//! Tests of the embedded store: the conformance suite, and faults of files, disks, boots and processes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Recalled, Record, Reply, Snapshot, StoreError, Version};
use baton_store::sqlite::BootClock;
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore as _, Reading, VersionedObject, withdraw_gone};
use baton_store::{LeaseStore, SqliteStore, Store};
use tempfile::TempDir;

use super::suite::{self, Backend, StoreBench, a, b, job, record, text};
use super::{assert_lost, version_of};
use crate::skipped::skipped;

/// Each call to [`Backend::open`] returns a new handle, like that of another process.
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
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.handle())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), StoreError> {
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

/// An earlier version of Baton created folders without a file for state.
#[tokio::test]
async fn state_file_is_added_to_an_older_folder() {
    let folder = folder().await;
    std::fs::remove_file(folder.0.path().join("state.db")).unwrap();
    let store = folder.handle();
    let job = job();
    assert!(matches!(store.read(VersionedObject::State, &job, None).await, Err(StoreError::Misconfigured(_))));
    store.create().await.unwrap();
    store.write(VersionedObject::State, &job, None, text("x")).await.unwrap();
}

#[tokio::test]
async fn lock_on_the_state_delays_no_renewal() {
    let folder = folder().await;
    let (store, lock) = (folder.handle(), rusqlite::Connection::open(folder.0.path().join("state.db")).unwrap());
    let bench = StoreBench::with_handle(Arc::new(store.clone()), Arc::new(folder));
    bench.held_by(a()).await.unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let answer = store.write(VersionedObject::State, &job(), None, text("x")).await;
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    lock.execute_batch("ROLLBACK").unwrap();
    store.write(VersionedObject::State, &job(), None, text("x")).await.unwrap();
}

/// A host that is frozen during a write keeps its lock on the file.
#[tokio::test]
async fn lock_on_control_delays_neither_announcements_nor_a_recall() {
    let folder = folder().await;
    let (store, lock) = (folder.handle(), rusqlite::Connection::open(folder.0.path().join("control.db")).unwrap());
    let bench = StoreBench::with_handle(Arc::new(store.clone()), Arc::new(folder));
    bench.held_by(a()).await.unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let said = Announcement { term: 9, ..Announcement::now("node", "i", "", Vec::new(), None) };
    store.announce(&job(), "node", said.encode()).await.unwrap();
    assert_eq!(store.request(&job(), Op::Recall).await, Ok(Reply::Recalled(Recalled { term: 9, progress: None })));
}

/// An earlier version of Baton created folders without files for modules.
#[tokio::test]
async fn module_files_are_added_to_an_older_folder() {
    let folder = folder().await;
    for file in ["control.db", "modules.db"] {
        std::fs::remove_file(folder.0.path().join(file)).unwrap();
    }
    std::fs::remove_dir(folder.0.path().join("nodes")).unwrap();
    let (store, job) = (folder.handle(), job());
    for answer in [
        store.read_control(&job, None).await.map(drop),
        store.write_control(&job, None, text("x")).await.map(drop),
        store.announce(&job, "node", text("x")).await,
        store.put_module(&Digest::of(b"x"), text("x")).await,
        store.modules().await.map(drop),
    ] {
        let Err(StoreError::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        assert!(
            why.contains(folder.0.path().to_str().unwrap())
                && why.contains("start a host or run `baton push` to create"),
            "{why}"
        );
    }
    store.create().await.unwrap();
    store.write_control(&job, None, text("x")).await.unwrap();
    store.announce(&job, "node", text("x")).await.unwrap();
    store.put_module(&Digest::of(b"x"), text("x")).await.unwrap();
}

#[tokio::test]
async fn damaged_module_files_are_named() {
    let folder = folder().await;
    let (store, job) = (folder.handle(), job());
    for file in ["control.db", "modules.db"] {
        write_text(&folder.0.path().join(file));
    }
    for (file, answer) in [
        ("control.db", store.read_control(&job, None).await.map(drop)),
        ("control.db", store.write_control(&job, None, text("x")).await.map(drop)),
        ("modules.db", store.get_module(&Digest::of(b"x"), 10).await.map(drop)),
        ("modules.db", store.put_module(&Digest::of(b"x"), text("x")).await),
    ] {
        let Err(StoreError::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        assert!(why.contains(file) && why.contains("move it out of the way"), "{why}");
    }
    // Leases and state do not depend on the module files.
    let bench = StoreBench::new(folder);
    bench.held_by(a()).await.unwrap();
    store.write(VersionedObject::State, &job, None, text("x")).await.unwrap();
}

/// A client that takes a long time to write a module must not block other clients.
#[tokio::test]
async fn lock_on_modules_delays_no_renewal_and_no_control_reading() {
    let folder = folder().await;
    let (store, job) = (folder.handle(), ElectionName::new("other").unwrap());
    let lock = rusqlite::Connection::open(folder.0.path().join("modules.db")).unwrap();
    let bench = StoreBench::with_handle(Arc::new(store.clone()), Arc::new(folder));
    bench.held_by(a()).await.unwrap();
    lock.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let digest = Digest::of(b"x");
    let putting = tokio::spawn({
        let store = store.clone();
        async move { store.put_module(&digest, text("x")).await }
    });
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    let version = store.write_control(&job, None, text("c")).await.unwrap();
    assert_eq!(store.read_control(&job, Some(&version)).await, Ok(Reading::Unchanged));
    assert!(!putting.is_finished(), "it waits for the lock");
    lock.execute_batch("ROLLBACK").unwrap();
    assert_eq!(putting.await.unwrap(), Ok(()));
    assert_eq!(store.get_module(&digest, 10).await, Ok(Some(text("x"))));
}

async fn held() -> (std::path::PathBuf, StoreBench) {
    let folder = folder().await;
    let path = folder.0.path().join("lease.db");
    let bench = StoreBench::new(folder);
    bench.held_by(a()).await.unwrap();
    (path, bench)
}

#[tokio::test]
async fn holder_has_lost_when_the_file_was_moved_away() {
    let (path, bench) = held().await;
    std::fs::rename(&path, path.with_extension("away")).unwrap();
    assert_lost(&bench.renew(a()).await);
    assert_lost(&bench.release(a()).await);
    let answer = bench.ask(Op::Read).await;
    assert!(matches!(answer, Err(StoreError::Misconfigured(_) | StoreError::Unknown(_))), "{answer:?}");
    // The store must not silently create a new file.
    assert!(!path.exists());
}

#[tokio::test]
async fn holder_has_lost_when_the_file_was_replaced() {
    let (path, bench) = held().await;
    // The copy has the same content, but is not the file in which the lease was acquired.
    std::fs::copy(&path, path.with_extension("copy")).unwrap();
    std::fs::rename(path.with_extension("copy"), &path).unwrap();
    assert_lost(&bench.renew(a()).await);
}

#[tokio::test]
async fn file_that_is_no_database_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = SqliteStore::new(dir.path()).request(&job(), Op::Read).await;
    assert!(matches!(&missing, Err(StoreError::Misconfigured(why)) if why.contains("--store")), "{missing:?}");
    write_text(&dir.path().join("lease.db"));
    let store = SqliteStore::new(dir.path());
    let (read, create) = (store.request(&job(), Op::Read).await, store.create().await);
    assert!(matches!(&read, Err(StoreError::Misconfigured(why)) if why.contains("not a database")), "{read:?}");
    assert!(matches!(&create, Err(StoreError::Misconfigured(why)) if why.contains("not a database")), "{create:?}");
}

fn write_text(path: &Path) {
    std::fs::write(path, "This is somebody's diary. ".repeat(500)).unwrap();
}

#[tokio::test]
async fn lease_of_another_boot_counts_from_its_first_reading() {
    let (here, another) = (BootClock::current(), || "another".to_owned());
    for elsewhere in [BootClock { id: another(), ..here.clone() }, BootClock { time_namespace: another(), ..here }] {
        let (path, bench) = held().await;
        let store = SqliteStore::with_boot(path.parent().unwrap(), elsewhere);
        let there = StoreBench::with_handle(Arc::new(store), Arc::clone(&bench.backend));
        bench.backend.wait_out(bench.length).await;
        assert_eq!(bench.see().await.unwrap().lease, LeaseState::Expired, "on its own boot");
        assert_eq!(there.see().await.unwrap().lease, LeaseState::Held, "first seen now");
        assert_eq!(there.acquire(b()).await, Err(StoreError::Held));
        there.outlive().await.unwrap();
        assert_eq!(there.acquire(b()).await, Ok(Reply::Done));
        assert_lost(&bench.renew(a()).await);
    }
}

/// The environment variable that turns this test binary into one of many competing processes.
const RACER: &str = "BATON_TEST_RACER";

#[tokio::test]
async fn one_of_many_processes_wins() {
    if let Ok(racer) = std::env::var(RACER) {
        return race(&racer).await;
    }
    let folder = folder().await;
    let dir = folder.0.path().to_owned();
    let bench = StoreBench::new(folder);
    let version = bench.create().await.unwrap();
    let racers: Vec<_> = (0..6)
        .map(|n| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "sqlite::one_of_many_processes_wins", "--nocapture"])
                .env(RACER, format!("{n} {} {}", version.0, dir.display()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for n in 0..6 {
        wait_for(&dir.join(format!("ready-{n}"))).await;
    }
    std::fs::write(dir.join("start"), "").unwrap();
    let told: Vec<_> =
        racers.into_iter().map(|racer| String::from_utf8(racer.wait_with_output().unwrap().stdout).unwrap()).collect();
    let count = |answer: &str| told.iter().filter(|told| told.contains(answer)).count();
    assert_eq!((count("racer: Ok(Done)"), count("racer: Err(Held)")), (1, 5), "{told:?}");
    assert_eq!(bench.see().await.unwrap().lease, LeaseState::Held);
}

async fn race(racer: &str) {
    let [n, version, folder] = racer.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let store = SqliteStore::new(folder);
    let folder = Path::new(folder);
    std::fs::write(folder.join(format!("ready-{n}")), "").unwrap();
    wait_for(&folder.join("start")).await;
    let id = LeaseId::from_random(n.parse().unwrap());
    // Use the longest lease, so that the race ends before the lease expires, even on a slow machine.
    let op = Op::Acquire { id, length: store.lease_range().1, version: Version(version.to_owned()), instead_of: None };
    println!("racer: {:?}", suite::persistent(Arc::new(store)).request(&job(), op).await);
}

async fn wait_for(file: &Path) {
    for _ in 0..60_000 {
        if file.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("nobody made {}", file.display());
}

pub struct Disk(TempDir);

impl Disk {
    /// Returns `None`, and prints a message, if this process has no right to mount.
    pub fn mount() -> Option<Self> {
        Self::mount_with("size=512k")
    }

    fn mount_with(options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        // Set the mode: by default, other users may write to a tmpfs.
        if mount(&["-t", "tmpfs", "-o", &format!("{options},mode=700"), "tmpfs"], dir.path()) {
            return Some(Self(dir));
        }
        skipped("only root can mount the small disk that it needs");
        None
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn store(&self) -> SqliteStore {
        SqliteStore::new(self.0.path())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Unmount lazily: another thread may still be closing the last connection.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

pub fn mount(arguments: &[&str], at: &Path) -> bool {
    Command::new("mount").args(arguments).arg(at).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn fill(dir: &Path) {
    let mut file = std::fs::File::create(dir.join("fill")).unwrap();
    while file.write(&[0; 512]).is_ok_and(|written| written > 0) {}
}

/// Returns the answers to a renewal and to a read after `trouble`.
async fn on_a_disk(trouble: impl FnOnce(&Path)) -> Option<(Result<Reply, StoreError>, Result<Reply, StoreError>)> {
    let disk = Disk::mount()?;
    let store = disk.store();
    store.create().await.unwrap();
    let made = version_of(store.request(&job(), Op::Create { record: record(0) }).await);
    let acquire = Op::Acquire { id: a(), length: store.lease_range().1, version: made, instead_of: None };
    assert_eq!(store.request(&job(), acquire).await, Ok(Reply::Done));
    drop(store);
    trouble(disk.0.path());
    let store = disk.store();
    let renewed = store.request(&job(), Op::Renew { id: a() }).await;
    Some((renewed, store.request(&job(), Op::Read).await))
}

#[tokio::test]
async fn disk_that_takes_no_files_is_reported_with_a_remedy() {
    let protect = |dir: &Path| assert!(mount(&["-o", "remount,ro"], dir));
    type Trouble<'a> = &'a dyn Fn(&Path);
    let cases: [(_, Trouble<'_>, _); 3] = [
        ("size=96k", &fill, "is full: make room"),
        ("size=96k,nr_inodes=1", &|_| {}, "has no free inodes"),
        ("size=96k", &protect, "mounted read-only"),
    ];
    for (options, trouble, remedy) in cases {
        let Some(disk) = Disk::mount_with(options) else { return };
        trouble(disk.path());
        for store in [disk.store(), SqliteStore::new(disk.path().join("folder"))] {
            let made = store.create().await;
            let Err(StoreError::Misconfigured(why) | StoreError::Unknown(why)) = &made else { panic!("{made:?}") };
            assert!(why.contains(remedy), "{why}");
        }
    }
}

#[tokio::test]
async fn full_disk_is_unknown_and_can_still_be_read() {
    let fill_all = |dir: &Path| {
        // Remove the journal file that SQLite has kept: it has enough room for the renewal.
        std::fs::remove_file(dir.join("lease.db-journal")).unwrap();
        fill(dir);
    };
    let Some((renewed, read)) = on_a_disk(fill_all).await else { return };
    assert!(matches!(&renewed, Err(StoreError::Unknown(why)) if why.contains("disk")), "{renewed:?}");
    assert!(matches!(read, Ok(Reply::Read(_))), "{read:?}");
}

/// A takeover writes more than a renewal: it also writes the record and, at the end, marks the record as released. The
/// table for such marks does not exist yet.
#[tokio::test]
async fn lease_is_taken_over_while_the_disk_is_full() {
    let Some(disk) = Disk::mount() else { return };
    let store = disk.store();
    store.create().await.unwrap();
    let made = version_of(store.request(&job(), Op::Create { record: record(0) }).await);
    let length = store.lease_range().0;
    let acquire = |id, version| Op::Acquire { id, length, version, instead_of: None };
    assert_eq!(store.request(&job(), acquire(a(), made)).await, Ok(Reply::Done));
    drop(store);
    fill(disk.path());
    let store = disk.store();
    let version = loop {
        match store.request(&job(), Op::Read).await {
            Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Expired, version, .. })) => break version,
            read => assert!(matches!(read, Ok(Reply::Read(_))), "{read:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(store.request(&job(), acquire(b(), version.clone())).await, Ok(Reply::Done));
    let write = |version, record| Op::Write { id: b(), version, record };
    let begun = store.request(&job(), write(version, record(1))).await;
    let marked = Record { released: true, ..record(1) };
    version_of(store.request(&job(), write(version_of(begun), marked)).await);
    assert_eq!(store.request(&job(), Op::Release { id: b() }).await, Ok(Reply::Done));
}

#[tokio::test]
async fn read_only_disk_is_reported() {
    let protect = |dir: &Path| assert!(mount(&["-o", "remount,ro"], dir), "root may remount");
    let Some((renewed, _)) = on_a_disk(protect).await else { return };
    assert!(
        matches!(&renewed, Err(StoreError::Misconfigured(why)) if why.contains("cannot be written")),
        "{renewed:?}"
    );
}

/// This store does not record when an announcement was written, so the time that the node put into the announcement
/// counts.
#[tokio::test]
async fn announcements_of_dead_nodes_are_withdrawn_by_their_own_time() {
    let folder = folder().await;
    let store = folder.handle();
    for (node, at) in
        [("fresh", "2026-11-02T12:00:00Z"), ("gone", "2026-11-01T11:00:00Z"), ("slow", "2026-11-01T13:00:00Z")]
    {
        let said = Announcement { at: at.to_owned(), ..Announcement::now(node, "i", "", Vec::new(), None) };
        store.announce(&job(), node, said.encode()).await.unwrap();
    }
    assert_eq!(withdraw_gone(&store, &store, &job()).await, Ok(1));
    let left: Vec<_> = store.announcements(&job()).await.unwrap().into_iter().map(|(node, _)| node).collect();
    assert_eq!(left, ["fresh", "slow"]);
}
