#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_election::{LeaseState, Record, Snapshot};
use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::{ObjectStore as _, Reading, VersionedObject};

mod abandoned;

const D: Duration = Duration::from_secs(2);

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn id(n: u128) -> LeaseId {
    LeaseId::from_random(n)
}

fn record(term: u64) -> Record {
    Record {
        term,
        node: Some("web-1-0".to_owned()),
        incarnation: "i".to_owned(),
        since: Duration::from_nanos(1_700_000_000_123_456_789),
        lease: D,
        module: Some("sha256:00".to_owned()),
        outcome: Some(baton_election::Outcome::Done),
        failures: 3,
        released: false,
        paused_until: None,
        progress: None,
    }
}

fn boot(name: &str, namespace: &str, seconds: &Arc<AtomicU64>) -> BootClock {
    let seconds = Arc::clone(seconds);
    let clock = Arc::new(move || Duration::from_secs(seconds.load(Ordering::SeqCst)));
    BootClock { id: name.to_owned(), time_namespace: namespace.to_owned(), clock: clock.clone(), least: clock }
}

async fn read(store: &SqliteStore) -> (LeaseState, Version, Option<Record>) {
    match settled(store, Op::Read).await {
        Ok(Reply::Read(Snapshot::Object { lease, version, record })) => (lease, version, record),
        other => panic!("{other:?}"),
    }
}

async fn settled(store: &SqliteStore, op: Op) -> Result<Reply, StoreError> {
    loop {
        match store.request(&job(), op.clone()).await {
            Err(StoreError::Unknown(why)) if why.contains(crate::LOCKED) => {}
            answer => return answer,
        }
    }
}

async fn acquire(store: &SqliteStore, n: u128) -> Result<Reply, StoreError> {
    let (_, version, _) = read(store).await;
    settled(store, Op::Acquire { id: id(n), length: D, version, instead_of: None }).await
}

async fn created(store: &SqliteStore) {
    store.create().await.unwrap();
    store.request(&job(), Op::Create { record: record(0) }).await.unwrap();
}

#[tokio::test]
async fn records_and_leases_are_shared_by_two_handles_on_one_folder() {
    let dir = TempDir::new().unwrap();
    let (one, other) = (SqliteStore::new(dir.path()), SqliteStore::new(dir.path()));
    created(&one).await;
    other.create().await.unwrap();
    acquire(&one, 1).await.unwrap();
    let (state, version, seen) = read(&other).await;
    assert_eq!((state, seen), (LeaseState::Held, Some(record(0))));
    assert_eq!(acquire(&other, 2).await, Err(StoreError::Held));
    let written = one.request(&job(), Op::Write { id: id(1), version, record: record(u64::MAX) }).await.unwrap();
    let (_, version, seen) = read(&other).await;
    assert_eq!((written, seen), (Reply::Version(version), Some(record(u64::MAX))));
    other.break_lease(&job(), Duration::ZERO).await.unwrap();
    assert_eq!(read(&one).await.0, LeaseState::Broken);
    assert_eq!(acquire(&other, 2).await, Ok(Reply::Done));
    assert_eq!(other.elections().await, Ok(vec![job()]));
    other.delete(&job()).await.unwrap();
    assert_eq!(one.request(&job(), Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
}

#[test]
fn one_of_eight_racing_handles_wins() {
    let dir = TempDir::new().unwrap();
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single().block_on(created(&SqliteStore::new(dir.path())));
    let start = std::sync::Barrier::new(8);
    let race = |n: u128| {
        let store = SqliteStore::new(dir.path());
        let runtime = single();
        let (_, version, _) = runtime.block_on(read(&store));
        start.wait();
        runtime.block_on(settled(
            &store,
            Op::Acquire { id: id(n << 90), length: Duration::from_secs(60), version, instead_of: None },
        ))
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=8).map(|n| scope.spawn(move || race(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| **answer == Ok(Reply::Done)).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| **answer == Err(StoreError::Held)).count(), 7, "{answers:?}");
}

#[tokio::test]
async fn lease_expires_by_the_boot_clock_and_no_write_extends_it() {
    let dir = TempDir::new().unwrap();
    let clock = Arc::new(AtomicU64::new(100));
    let store = SqliteStore::with_boot(dir.path(), boot("b", "n", &clock));
    let other = SqliteStore::with_boot(dir.path(), boot("b", "n", &clock));
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    clock.store(101, Ordering::SeqCst);
    store.request(&job(), Op::Renew { id: id(1) }).await.unwrap();
    clock.store(102, Ordering::SeqCst);
    let (state, version, _) = read(&other).await;
    assert_eq!(state, LeaseState::Held);
    store.request(&job(), Op::Write { id: id(1), version, record: record(1) }).await.unwrap();
    clock.store(103, Ordering::SeqCst);
    assert_eq!(read(&other).await.0, LeaseState::Expired);
    assert_eq!(acquire(&other, 2).await, Ok(Reply::Done));
    assert!(matches!(store.request(&job(), Op::Renew { id: id(1) }).await, Err(StoreError::Lost(_))));
}

#[tokio::test]
async fn slewed_boot_clock_does_not_shorten_the_watch_of_a_lease() {
    let dir = TempDir::new().unwrap();
    let (boot_clock, least) = (Arc::new(AtomicU64::new(100)), Arc::new(AtomicU64::new(50)));
    let slewed = BootClock { least: boot("b", "n", &least).clock, ..boot("b", "n", &boot_clock) };
    let store = SqliteStore::with_boot(dir.path(), slewed);
    let holder = SqliteStore::with_boot(dir.path(), boot("other", "n", &Arc::default()));
    created(&holder).await;
    acquire(&holder, 1).await.unwrap();
    assert_eq!(read(&store).await.0, LeaseState::Held);
    boot_clock.store(200, Ordering::SeqCst);
    least.store(51, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Held);
    least.store(52, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Expired);
}

#[tokio::test]
async fn lease_of_another_boot_expires_after_it_was_seen_unchanged() {
    for (id_there, namespace_there) in [("other", "n"), ("b", "other")] {
        let dir = TempDir::new().unwrap();
        let (here, there) = (Arc::new(AtomicU64::new(9_000)), Arc::new(AtomicU64::new(5)));
        let store = SqliteStore::with_boot(dir.path(), boot("b", "n", &here));
        let holder = SqliteStore::with_boot(dir.path(), boot(id_there, namespace_there, &there));
        created(&holder).await;
        acquire(&holder, 1).await.unwrap();
        assert_eq!(read(&store).await.0, LeaseState::Held);
        here.store(9_001, Ordering::SeqCst);
        holder.request(&job(), Op::Renew { id: id(1) }).await.unwrap();
        assert_eq!(read(&store).await.0, LeaseState::Held);
        here.store(9_002, Ordering::SeqCst);
        assert_eq!(acquire(&store, 2).await, Err(StoreError::Held));
        here.store(9_003, Ordering::SeqCst);
        assert_eq!(read(&store).await.0, LeaseState::Expired);
        assert_eq!(acquire(&store, 2).await, Ok(Reply::Done));
    }
}

#[tokio::test]
async fn lease_stamped_in_the_future_expires_and_stays_expired() {
    let dir = TempDir::new().unwrap();
    let (ahead, here) = (Arc::new(AtomicU64::new(1_000)), Arc::new(AtomicU64::new(100)));
    // Both clocks have the same boot id, but the second clock lags behind the first, as if the machine had been reset
    // to an earlier state.
    let holder = SqliteStore::with_boot(dir.path(), boot("b", "n", &ahead));
    let store = SqliteStore::with_boot(dir.path(), boot("b", "n", &here));
    created(&holder).await;
    acquire(&holder, 1).await.unwrap();
    assert_eq!(read(&store).await.0, LeaseState::Held);
    here.store(101, Ordering::SeqCst);
    assert_eq!(acquire(&store, 2).await, Err(StoreError::Held));
    // After a renewal, the store measures the full length of the lease again, even if the renewal was late.
    ahead.store(1_001, Ordering::SeqCst);
    holder.request(&job(), Op::Renew { id: id(1) }).await.unwrap();
    here.store(102, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Held);
    here.store(103, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Held);
    here.store(104, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Expired);
    // This clock passes the timestamp of the last renewal, which was in the future until now. The lease must not count
    // as held again.
    here.store(1_002, Ordering::SeqCst);
    assert_eq!(read(&store).await.0, LeaseState::Expired);
    assert_eq!(acquire(&store, 2).await, Ok(Reply::Done));
    // The last acquire left a timestamp from the clock `here`. Another handle with this clock can therefore judge the
    // lease immediately.
    let other = SqliteStore::with_boot(dir.path(), boot("b", "n", &here));
    here.store(1_004, Ordering::SeqCst);
    assert_eq!(read(&other).await.0, LeaseState::Expired);
}

#[tokio::test]
async fn renewal_is_lost_when_the_file_was_moved_or_replaced() {
    let dir = TempDir::new().unwrap();
    let (file, away) = (dir.path().join("lease.db"), dir.path().join("away.db"));
    let store = SqliteStore::new(dir.path());
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    std::fs::rename(&file, &away).unwrap();
    let missing = store.request(&job(), Op::Read).await;
    assert!(matches!(&missing, Err(StoreError::Misconfigured(why)) if why.contains("put it back")), "{missing:?}");
    // The copy contains the same lease, but it is not the file in which the holder acquired the lease.
    std::fs::copy(&away, &file).unwrap();
    let renewed = store.request(&job(), Op::Renew { id: id(1) }).await;
    assert!(matches!(&renewed, Err(StoreError::Lost(why)) if why.contains("moved or replaced")), "{renewed:?}");
    std::fs::remove_file(&file).unwrap();
    store.create().await.unwrap();
    assert_eq!(store.request(&job(), Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    // Now that the old file is back, the store must not use its connection to the new file.
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(read(&store).await.0, LeaseState::Held);
}

#[tokio::test]
async fn move_of_the_lease_file_is_hinted_at_once() {
    for harm in ["removed", "moved away", "replaced", "its folder moved", "a folder of its name put in its place"] {
        let dir = TempDir::new().unwrap();
        let (folder, away) = (dir.path().join("store"), dir.path().join("away"));
        let file = folder.join("lease.db");
        let store = SqliteStore::new(&folder);
        created(&store).await;
        acquire(&store, 1).await.unwrap();
        let heard = tokio::spawn({
            let store = store.clone();
            async move { store.hint(&job()).await }
        });
        while store.shared.moves.looked_after(&job()).is_none() {
            tokio::task::yield_now().await;
        }
        acquire(&store, 1).await.unwrap();
        assert!(!heard.is_finished(), "of any use of the file");
        match harm {
            "removed" => std::fs::remove_file(&file).unwrap(),
            "moved away" => std::fs::rename(&file, &away).unwrap(),
            "replaced" => {
                std::fs::copy(&file, &away).unwrap();
                std::fs::rename(&away, &file).unwrap();
            }
            "its folder moved" => std::fs::rename(&folder, &away).unwrap(),
            _ => {
                std::fs::rename(&folder, &away).unwrap();
                created(&SqliteStore::new(&folder)).await;
            }
        }
        tokio::time::timeout(Duration::from_secs(60), heard).await.expect(harm).unwrap();
        let renewed = store.request(&job(), Op::Renew { id: id(1) }).await;
        assert!(matches!(&renewed, Err(StoreError::Lost(_))), "{harm}: {renewed:?}");
    }
}

#[tokio::test]
async fn missing_file_is_reported_with_its_former_content() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::new(dir.path());
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    for (name, was_in_it) in [("state.db", "the state that coordinators saved"), ("nodes", "the terms")] {
        std::fs::rename(dir.path().join(name), dir.path().join("away")).unwrap();
        let recalled = store.request(&job(), Op::Recall).await;
        let Err(StoreError::Misconfigured(why)) = &recalled else { panic!("{recalled:?}") };
        assert!(why.contains(name) && why.contains("put it back") && why.contains(was_in_it), "{why}");
        std::fs::rename(dir.path().join("away"), dir.path().join(name)).unwrap();
        assert_eq!(store.request(&job(), Op::Recall).await, Ok(Reply::Recalled(Recalled { term: 0, progress: None })));
    }
}

#[tokio::test]
async fn invalid_store_is_reported_with_its_path_and_a_remedy() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lease.db");
    let ask = async |way_out: &str| {
        let answer = SqliteStore::new(dir.path()).request(&job(), Op::Read).await;
        let Err(StoreError::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        assert!(why.contains(file.to_str().unwrap()) && why.contains(way_out), "{why}");
    };
    ask("correct `--store`").await;
    std::fs::create_dir(&file).unwrap();
    let made_anew = async || SqliteStore::new(dir.path()).create().await;
    let says_the_kind =
        |made| matches!(made, Err(StoreError::Misconfigured(why)) if why.contains("is not a regular file"));
    ask("is not a regular file").await;
    assert!(says_the_kind(made_anew().await));
    std::fs::remove_dir(&file).unwrap();
    // Nobody opens the other end of this pipe, so the store must not wait for it.
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    ask("is not a regular file").await;
    assert!(says_the_kind(made_anew().await));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "").unwrap();
    ask("start a host on this store").await;
    std::fs::write(&file, "no database".repeat(100)).unwrap();
    ask("move it out of the way").await;
    std::fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)").unwrap();
    ask("name another folder").await;
    assert!(matches!(SqliteStore::new(dir.path()).create().await, Err(StoreError::Misconfigured(_))));
    let journal = |db: Connection| db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    assert_eq!(journal(Connection::open(&file).unwrap()), Ok("wal".to_owned()));
    std::fs::remove_file(&file).unwrap();
    SqliteStore::new(dir.path()).create().await.unwrap();
    Connection::open(&file).unwrap().pragma_update(None, "user_version", 2).unwrap();
    ask("has format 2").await;
    let nowhere = SqliteStore::new("/proc/baton").create().await;
    assert!(matches!(&nowhere, Err(StoreError::Misconfigured(why)) if why.contains("/proc/baton")), "{nowhere:?}");
}

#[tokio::test]
async fn new_folder_is_private_and_lease_length_is_checked() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("a/b");
    let store = SqliteStore::new(&folder);
    created(&store).await;
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let (_, version, _) = read(&store).await;
    for length in [Duration::from_millis(1999), Duration::from_secs(61)] {
        let answer =
            store.request(&job(), Op::Acquire { id: id(1), length, version: version.clone(), instead_of: None }).await;
        assert!(matches!(answer, Err(StoreError::Misconfigured(_))), "{answer:?}");
    }
}

/// The statements with which an older host creates the file, including the header that identifies it. The older version
/// of Baton cannot mark a lease as released.
const OLDER_FILE: &str = "
CREATE TABLE lease (
  election TEXT PRIMARY KEY, version TEXT NOT NULL,
  term INTEGER, node TEXT, incarnation TEXT, since INTEGER, lease INTEGER, module TEXT, outcome TEXT, failures INTEGER,
  holder BLOB, length INTEGER, broken_after INTEGER, changes INTEGER NOT NULL,
  changed INTEGER NOT NULL, boot TEXT NOT NULL, time_namespace TEXT NOT NULL
) STRICT, WITHOUT ROWID;
PRAGMA application_id = 1113683054;
PRAGMA user_version = 1;
INSERT INTO lease VALUES ('job', '5f1d', 4, 'web-2-0', '00c0ffee', 1700000000123456789, 2000000000,
  'sha256:00', NULL, 1, NULL, NULL, NULL, 9, 100000000000, 'b', 'n');";

/// The statements with which an older host reads and writes a row.
const OLDER_READ: &str = "SELECT * FROM lease WHERE election = ?1";
const OLDER_WRITE: &str = "INSERT OR REPLACE INTO lease VALUES (:election, :version,
           :term, :node, :incarnation, :since, :lease, :module, :outcome, :failures,
           :holder, :length, :broken_after, :changes, :changed, :boot, :time_namespace)";

/// Changes a row as an older host does: reads all columns by name, writes all columns by position, and keeps the
/// prepared statements for the next change.
fn older_host_writes(db: &Connection, version: Option<&str>, term: i64) {
    use rusqlite::types::Value;

    let mut read = db.prepare_cached(OLDER_READ).unwrap();
    let names: Vec<String> = read.column_names().map(str::to_owned).collect();
    let mut row: Vec<(String, Value)> = read
        .query_row(["job"], |row| names.iter().map(|name| Ok((name.clone(), row.get(name.as_str())?))).collect())
        .unwrap();
    assert_eq!(row.len(), 17);
    row[2].1 = Value::Integer(term);
    if let Some(version) = version {
        row[1].1 = Value::Text(version.to_owned());
    }
    let named: Vec<_> = row.iter().map(|(name, value)| (format!(":{name}"), value)).collect();
    let named: Vec<(&str, &dyn rusqlite::ToSql)> =
        named.iter().map(|(name, value)| (name.as_str(), *value as &dyn rusqlite::ToSql)).collect();
    assert_eq!(db.prepare_cached(OLDER_WRITE).unwrap().execute(&named[..]), Ok(1));
}

#[tokio::test]
async fn file_of_an_older_host_is_shared_with_it() {
    let dir = TempDir::new().unwrap();
    let older = Connection::open(dir.path().join("lease.db")).unwrap();
    older.execute_batch(OLDER_FILE).unwrap();
    let clock = Arc::new(AtomicU64::new(200));
    let store = SqliteStore::with_boot(dir.path(), boot("b", "n", &clock));
    let of_older = Record {
        term: 4,
        node: Some("web-2-0".to_owned()),
        incarnation: "00c0ffee".to_owned(),
        outcome: None,
        failures: 1,
        ..record(4)
    };
    let found = read(&store).await;
    assert_eq!(found, (LeaseState::Free, Version("5f1d".to_owned()), Some(of_older.clone())));
    let tables = || older.query_row("SELECT count(*) FROM sqlite_schema WHERE type = 'table'", [], |row| row.get(0));
    assert_eq!(tables(), Ok(1), "who only reads changes nothing");

    older_host_writes(&older, Some("5f1e"), 5);
    store.create().await.unwrap();
    acquire(&store, 1).await.unwrap();
    let marked = |term| Record { term, released: true, ..of_older.clone() };
    let mark = async |term| {
        let version = read(&store).await.1;
        store.request(&job(), Op::Write { id: id(1), version, record: marked(term) }).await.unwrap();
        assert_eq!(read(&store).await.2, Some(marked(term)));
    };
    mark(6).await;
    // If an older host acquires, renews or releases the lease, the version does not change, and the mark stays valid.
    older_host_writes(&older, None, 6);
    assert_eq!(read(&store).await.2, Some(marked(6)));
    older_host_writes(&older, Some("5f1f"), 7);
    assert_eq!(read(&store).await.2, Some(Record { term: 7, ..of_older.clone() }), "a write voids the mark");
    mark(8).await;
    assert_eq!(tables(), Ok(2));
    // The header is still the one that the older host wrote.
    let number = |name| older.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    assert_eq!((number("application_id"), number("user_version")), (Ok(1_113_683_054), Ok(1)));
    // While the store is open, an older file replaces this file. The store can read and mark the older file as well.
    std::fs::remove_file(dir.path().join("lease.db")).unwrap();
    Connection::open(dir.path().join("lease.db")).unwrap().execute_batch(OLDER_FILE).unwrap();
    assert_eq!(read(&store).await.2, Some(of_older.clone()));
    acquire(&store, 1).await.unwrap();
    mark(9).await;
}

async fn leased(store: &SqliteStore, elections: u128) -> Vec<(ElectionName, LeaseId)> {
    store.create().await.unwrap();
    let mut leased = Vec::new();
    for n in 0..elections {
        let (name, id) = (ElectionName::new(&format!("job{n}")).unwrap(), id(n << 90));
        let Ok(Reply::Version(version)) = store.request(&name, Op::Create { record: record(0) }).await else {
            panic!()
        };
        store.request(&name, Op::Acquire { id, length: D, version, instead_of: None }).await.unwrap();
        leased.push((name, id));
    }
    leased
}

/// Returns the number of transactions that have changed the file, from the counter in its header
/// (<https://www.sqlite.org/fileformat.html#file_change_counter>).
fn commits(dir: &TempDir) -> u32 {
    let bytes = std::fs::read(dir.path().join("lease.db")).unwrap();
    u32::from_be_bytes(bytes[24..28].try_into().unwrap())
}

#[tokio::test]
async fn waiting_renewals_share_one_commit_and_get_own_answers() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::new(dir.path());
    let leased = leased(&store, 50).await;
    // One of the leases is broken, one row cannot be read, and the sender of one renewal gives up waiting.
    let (broken, unreadable, given_up) = (7, 11, 13);
    store.break_lease(&leased[broken].0, Duration::ZERO).await.unwrap();
    let db = Connection::open(dir.path().join("lease.db")).unwrap();
    db.execute("UPDATE lease SET outcome = 'strange' WHERE election = ?1", [leased[unreadable].0.as_str()]).unwrap();
    let changes = |election: &ElectionName| -> i64 {
        db.query_row("SELECT changes FROM lease WHERE election = ?1", [election.as_str()], |row| row.get(0)).unwrap()
    };
    let before = (commits(&dir), changes(&leased[given_up].0));

    let queue = store.shared.renewals.of(&store.shared.leases);
    let turn = Arc::clone(&queue.turn).acquire_owned().await.unwrap();
    let renew = |(name, id): &(ElectionName, LeaseId)| {
        let (store, name, id) = (store.clone(), name.clone(), *id);
        tokio::spawn(async move { store.request(&name, Op::Renew { id }).await })
    };
    let mut renewals: Vec<_> = leased.iter().map(renew).collect();
    while queue.waiting.lock().unwrap().len() < renewals.len() {
        tokio::task::yield_now().await;
    }
    let gone = renewals.remove(given_up);
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    drop(turn);

    for (n, renewal) in renewals.into_iter().enumerate() {
        let answer = renewal.await.unwrap();
        match n {
            _ if n == broken => assert!(matches!(answer, Err(StoreError::Lost(_))), "{answer:?}"),
            _ if n == unreadable => assert!(matches!(answer, Err(StoreError::Misconfigured(_))), "{answer:?}"),
            _ => assert_eq!(answer, Ok(Reply::Done)),
        }
    }
    assert_eq!((commits(&dir), changes(&leased[given_up].0)), (before.0 + 1, before.1));
}

#[tokio::test]
async fn waiting_readings_share_one_transaction() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::new(dir.path());
    created(&store).await;
    let (control, content) = (VersionedObject::Control, Bytes::from_static(b"{}"));
    let written = store.write(control, &job(), None, content.clone()).await.unwrap();
    let queue = store.shared.readings.batches.of(&store.shared.control);
    let turn = Arc::clone(&queue.turn).acquire_owned().await.unwrap();
    let read = |(object, known): (VersionedObject, Option<Version>)| {
        let store = store.clone();
        tokio::spawn(async move { store.read(object, &job(), known.as_ref()).await })
    };
    let readings = [(control, None), (control, Some(written.clone())), (VersionedObject::Steering, None)].map(read);
    while queue.waiting.lock().unwrap().len() < readings.len() {
        tokio::task::yield_now().await;
    }
    drop(turn);
    let [found, unchanged, nothing] = readings;
    assert_eq!(found.await.unwrap(), Ok(Reading::Found(written, content)));
    assert_eq!(unchanged.await.unwrap(), Ok(Reading::Unchanged));
    assert_eq!(nothing.await.unwrap(), Ok(Reading::Nothing), "it was written by nobody");
    assert!(queue.waiting.lock().unwrap().is_empty());
}

#[tokio::test]
async fn renewals_in_a_new_file_proceed_while_the_old_one_hangs() {
    let dir = TempDir::new().unwrap();
    let store = SqliteStore::new(dir.path());
    created(&store).await;
    // Occupy the queue for renewals of the old file, as a renewal that hangs would.
    let hung = store.shared.renewals.of(&store.shared.leases);
    let _turn = Arc::clone(&hung.turn).acquire_owned().await.unwrap();
    std::fs::remove_file(dir.path().join("lease.db")).unwrap();
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    let name = job();
    let renewed = store.request(&name, Op::Renew { id: id(1) });
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), renewed).await, Ok(Ok(Reply::Done)));
}

#[tokio::test]
async fn journal_is_deleted_when_a_group_has_more_rights_than_others() {
    for (mode, stays) in [(0o600, true), (0o644, true), (0o666, true), (0o640, false), (0o660, false), (0o664, false)] {
        let dir = TempDir::new().unwrap();
        created(&SqliteStore::new(dir.path())).await;
        let file = dir.path().join("lease.db");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        acquire(&SqliteStore::new(dir.path()), 1).await.unwrap();
        assert_eq!(dir.path().join("lease.db-journal").exists(), stays, "{mode:o}");
    }
}

/// Returns the texts in backticks in a table cell of the documentation.
fn code(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn docs_list_every_table_and_its_file() {
    let dir = TempDir::new().unwrap();
    let lock_file = LockFile::make(&dir.path().join(witness::FOLDER), "i").unwrap();
    let store = SqliteStore::with_lock_file(dir.path(), BootClock::current(), Arc::new(lock_file));
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    let version = read(&store).await.1;
    // The tables for marks, pauses and notes are not created until the first mark, pause or note.
    let paused_until = Some(Duration::from_secs(1));
    let marked = Record { released: true, paused_until, ..record(1) };
    store.request(&job(), Op::Write { id: id(1), version, record: marked }).await.unwrap();

    let mut in_code: Vec<String> = Vec::new();
    for file in std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".db") {
            let db = Connection::open(&file).unwrap();
            let mut tables = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
            let tables = tables.query_map([], |row| row.get::<_, String>(0)).unwrap();
            in_code.extend(tables.map(|table| format!("{} in DIR/{name}", table.unwrap())));
        }
    }
    let docs = include_str!("../../../../docs/store.md");
    let rows = docs.lines().filter(|line| line.starts_with("| `") && line.contains(".db`"));
    let mut in_docs: Vec<String> = Vec::new();
    for row in rows {
        let mut tables = code(row.split('|').nth(2).unwrap());
        let file = tables.pop().unwrap();
        in_docs.extend(tables.iter().map(|table| format!("{table} in {file}")));
    }
    in_code.sort_unstable();
    in_docs.sort_unstable();
    assert_eq!(in_docs, in_code);
}
