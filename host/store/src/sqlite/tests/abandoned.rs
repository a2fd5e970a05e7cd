//! Tests of leases whose holders have exited. The tests use real processes that hold real locks.

use baton_test_support::patience::Patience;

use super::*;
use crate::witness::tests::Runner;

/// The parts of a host that matter to other hosts: its lock file, and its handle to the store.
struct Host {
    lock_file: Arc<LockFile>,
    store: SqliteStore,
}

impl Host {
    fn new(folder: &TempDir, incarnation: &str) -> Self {
        Self::on(folder, incarnation, &same_boot())
    }

    fn on(folder: &TempDir, incarnation: &str, boot: &BootClock) -> Self {
        let lock_file = LockFile::make(&folder.path().join(witness::FOLDER), incarnation).unwrap();
        let lock_file = Arc::new(lock_file);
        let store = SqliteStore::with_lock_file(folder.path(), boot.clone(), Arc::clone(&lock_file));
        Self { lock_file, store }
    }

    /// Ends the host. Returns its runner, which is still running.
    fn dies(self) -> Runner {
        Runner::holding(self.lock_file.for_runner().unwrap())
    }

    fn record(&self, term: u64) -> Record {
        Record { incarnation: self.lock_file.place().incarnation.clone(), outcome: None, ..super::record(term) }
    }

    async fn holds(&self, n: u128, record: Record) {
        let version = version(&self.store).await;
        acquires(&self.store, n, version.clone(), None).await.unwrap();
        settled(&self.store, Op::Write { id: id(n), version, record }).await.unwrap();
    }
}

/// Returns a boot clock that stands still, so that no lease expires.
fn same_boot() -> BootClock {
    boot("this", "n", &Arc::new(AtomicU64::new(1)))
}

async fn made() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::new(folder.path());
    store.create().await.unwrap();
    settled(&store, Op::Create { record: record(0) }).await.unwrap();
    folder
}

async fn version(store: &SqliteStore) -> Version {
    match settled(store, Op::Read).await.unwrap() {
        Reply::Read(Snapshot::Object { version, .. }) => version,
        other => panic!("{other:?}"),
    }
}

async fn acquires(
    store: &SqliteStore,
    n: u128,
    version: Version,
    instead_of: Option<LeaseId>,
) -> Result<Reply, StoreError> {
    settled(store, Op::Acquire { id: id(n), length: D, version, instead_of }).await
}

async fn state(store: &SqliteStore) -> LeaseState {
    read(store).await.0
}

/// Waits until the lease is abandoned. This may take a moment: if another test starts a program at this time, the
/// program briefly inherits all descriptors, and with them the locks.
async fn is_seen_abandoned(store: &SqliteStore, n: u128) {
    let sees = async {
        while state(store).await != (LeaseState::Abandoned { holder: id(n) }) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    Patience::of_future(sees).await.expect("it is seen");
}

#[tokio::test]
async fn lease_is_abandoned_when_host_and_runner_have_exited() {
    let folder = made().await;
    let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
    one.holds(1, one.record(1)).await;
    assert_eq!(state(&other.store).await, LeaseState::Held);
    assert_eq!(state(&one.store).await, LeaseState::Held);
    let runner = one.dies();
    assert_eq!(state(&other.store).await, LeaseState::Held, "its runner is there");
    drop(runner);
    is_seen_abandoned(&other.store, 1).await;
    // A handle without its own lock file does not check the locks, and sees only the stored state of the lease.
    assert_eq!(state(&SqliteStore::with_boot(folder.path(), same_boot())).await, LeaseState::Held);
    let version = version(&other.store).await;
    for instead_of in [None, Some(id(2)), Some(id(3))] {
        assert_eq!(acquires(&other.store, 2, version.clone(), instead_of).await, Err(StoreError::Held));
    }
    let stale = Version("stale".to_owned());
    assert_eq!(acquires(&other.store, 2, stale, Some(id(1))).await, Err(StoreError::Conflict));
    assert_eq!(acquires(&other.store, 2, version.clone(), Some(id(1))).await, Ok(Reply::Done));
    // A late request to replace the dead holder does not replace the new holder.
    assert_eq!(acquires(&other.store, 3, version.clone(), Some(id(1))).await, Err(StoreError::Held));
    assert_eq!(acquires(&other.store, 2, version, Some(id(1))).await, Ok(Reply::Done), "repeated");
}

#[tokio::test]
async fn exit_of_the_holder_is_hinted_without_polling() {
    let folder = made().await;
    let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
    one.holds(1, one.record(1)).await;
    assert_eq!(state(&other.store).await, LeaseState::Held);
    let election = job();
    let mut hint = std::pin::pin!(other.store.hint(&election));
    assert!(futures::poll!(&mut hint).is_pending());
    drop(one);
    Patience::of_future(hint).await.expect("it is heard");
    is_seen_abandoned(&other.store, 1).await;
}

#[tokio::test]
async fn lease_without_a_begun_term_is_not_abandoned() {
    let waits = |host: &Host| Record { node: None, ..host.record(1) };
    let of_another = |host: &Host| Record { incarnation: "another".to_owned(), ..host.record(1) };
    for record in [waits as fn(&Host) -> Record, of_another] {
        let folder = made().await;
        let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
        one.holds(1, record(&one)).await;
        drop(one);
        assert_eq!(state(&other.store).await, LeaseState::Held);
    }
    // In this folder, the holder has acquired the lease again under another id, but has not written a record since. Its
    // note is therefore about an earlier term.
    let folder = made().await;
    let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
    one.holds(1, one.record(1)).await;
    settled(&one.store, Op::Release { id: id(1) }).await.unwrap();
    let version = version(&one.store).await;
    acquires(&one.store, 2, version, None).await.unwrap();
    drop(one);
    assert_eq!(state(&other.store).await, LeaseState::Held);
}

#[tokio::test]
async fn lease_is_not_abandoned_when_an_older_host_voided_the_note() {
    let folder = made().await;
    let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
    let before = SqliteStore::with_boot(folder.path(), same_boot());
    one.holds(1, one.record(1)).await;
    settled(&one.store, Op::Release { id: id(1) }).await.unwrap();
    let record = one.record(2);
    drop(one);
    // The older host acquires the lease under another id, and writes a record with the incarnation of the host `one`.
    // The note of `one` must not count, because it contains the earlier id.
    let seen = version(&before).await;
    acquires(&before, 2, seen.clone(), None).await.unwrap();
    assert_eq!(state(&other.store).await, LeaseState::Held);
    settled(&before, Op::Write { id: id(2), version: seen, record }).await.unwrap();
    assert_eq!(state(&other.store).await, LeaseState::Held);
}

#[tokio::test]
async fn lease_is_not_abandoned_when_the_exit_is_uncertain() {
    let gone = async || {
        let folder = made().await;
        let one = Host::new(&folder, "one");
        one.holds(1, one.record(1)).await;
        drop(one);
        folder
    };
    let folder = gone().await;
    is_seen_abandoned(&Host::new(&folder, "other").store, 1).await;
    // A note from another boot does not count. It may be from before a reboot, which releases all locks, or from
    // another machine, whose locks this kernel does not know.
    let elsewhere = boot("elsewhere", "n", &Arc::new(AtomicU64::new(1)));
    assert_eq!(state(&Host::on(&folder, "elsewhere", &elsewhere).store).await, LeaseState::Held);
    std::fs::remove_file(folder.path().join("holders/one")).unwrap();
    assert_eq!(state(&Host::new(&folder, "another").store).await, LeaseState::Held);
    // In a copy of the folder, nobody holds the locks. So a lock file in the copy does not prove that the holder is
    // dead.
    let (folder, copy) = (gone().await, tempfile::tempdir().unwrap());
    std::fs::create_dir(copy.path().join("holders")).unwrap();
    for name in ["lease.db", "holders/one"] {
        std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
    }
    assert_eq!(state(&Host::new(&copy, "other").store).await, LeaseState::Held);
}

#[tokio::test]
async fn broken_or_new_lease_keeps_its_state_when_the_holder_exits() {
    let folder = made().await;
    let (one, other) = (Host::new(&folder, "one"), Host::new(&folder, "other"));
    one.holds(1, one.record(1)).await;
    drop(one);
    other.store.break_lease(&job(), Duration::ZERO).await.unwrap();
    assert_eq!(state(&other.store).await, LeaseState::Broken);
    other.store.delete(&job()).await.unwrap();
    settled(&other.store, Op::Create { record: record(0) }).await.unwrap();
    assert_eq!(state(&other.store).await, LeaseState::Free);
}

#[tokio::test]
async fn starting_host_removes_unneeded_lock_files() {
    let folder = made().await;
    let (one, two) = (Host::new(&folder, "one"), Host::new(&folder, "two"));
    one.holds(1, one.record(1)).await;
    drop((one, two));
    let other = Host::new(&folder, "other");
    other.store.create().await.unwrap();
    let is_there = |name: &str| folder.path().join("holders").join(name).exists();
    assert_eq!(["one", "two", "other"].map(is_there), [true, false, true]);
    is_seen_abandoned(&other.store, 1).await;
}
