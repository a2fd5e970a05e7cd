#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU64, Ordering};

use baton_election::{LeaseState, Record, Snapshot};
use tempfile::TempDir;

use super::*;

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
    }
}

/// A boot clock that the test moves, in seconds.
fn boot(name: &str, namespace: &str, seconds: &Arc<AtomicU64>) -> Boot {
    let seconds = Arc::clone(seconds);
    let clock = Arc::new(move || Duration::from_secs(seconds.load(Ordering::SeqCst)));
    Boot { id: name.to_owned(), time_namespace: namespace.to_owned(), clock }
}

async fn read(store: &SqliteStore) -> (LeaseState, Version, Option<Record>) {
    match settled(store, Op::Read).await {
        Ok(Reply::Read(Snapshot::Object { lease, version, record })) => (lease, version, record),
        other => panic!("{other:?}"),
    }
}

/// Asks until the store is not busy with somebody else's request.
async fn settled(store: &SqliteStore, op: Op) -> Result<Reply, Refusal> {
    loop {
        match store.request(&job(), op.clone()).await {
            Err(Refusal::Unknown(why)) if why.contains("is busy") => {}
            answer => return answer,
        }
    }
}

async fn acquire(store: &SqliteStore, n: u128) -> Result<Reply, Refusal> {
    let (_, version, _) = read(store).await;
    settled(store, Op::Acquire { id: id(n), length: D, version }).await
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
    assert_eq!(acquire(&other, 2).await, Err(Refusal::Held));
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
fn of_eight_that_race_one_wins() {
    let dir = TempDir::new().unwrap();
    let single = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    single().block_on(created(&SqliteStore::new(dir.path())));
    let start = std::sync::Barrier::new(8);
    let race = |n: u128| {
        let store = SqliteStore::new(dir.path());
        let runtime = single();
        let (_, version, _) = runtime.block_on(read(&store));
        start.wait();
        runtime.block_on(settled(&store, Op::Acquire { id: id(n << 90), length: Duration::from_secs(60), version }))
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=8).map(|n| scope.spawn(move || race(n))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| **answer == Ok(Reply::Done)).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| **answer == Err(Refusal::Held)).count(), 7, "{answers:?}");
}

#[tokio::test]
async fn a_lease_expires_by_the_boot_clock_and_a_write_does_not_extend_it() {
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
    assert!(matches!(store.request(&job(), Op::Renew { id: id(1) }).await, Err(Refusal::Lost(_))));
}

#[tokio::test]
async fn a_lease_of_another_boot_clock_expires_only_after_it_was_seen_unchanged() {
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
        assert_eq!(acquire(&store, 2).await, Err(Refusal::Held));
        here.store(9_003, Ordering::SeqCst);
        assert_eq!(read(&store).await.0, LeaseState::Expired);
        assert_eq!(acquire(&store, 2).await, Ok(Reply::Done));
    }
}

#[tokio::test]
async fn a_renewal_finds_out_that_the_file_was_moved_and_others_use_the_new_one() {
    let dir = TempDir::new().unwrap();
    let (file, away) = (dir.path().join("lease.db"), dir.path().join("away.db"));
    let store = SqliteStore::new(dir.path());
    created(&store).await;
    acquire(&store, 1).await.unwrap();
    std::fs::rename(&file, &away).unwrap();
    let missing = store.request(&job(), Op::Read).await;
    assert!(matches!(&missing, Err(Refusal::Misconfigured(why)) if why.contains("correct --store")), "{missing:?}");
    // A copy holds the same lease, and is another file all the same.
    std::fs::copy(&away, &file).unwrap();
    let renewed = store.request(&job(), Op::Renew { id: id(1) }).await;
    assert!(matches!(&renewed, Err(Refusal::Lost(why)) if why.contains("moved or replaced")), "{renewed:?}");
    std::fs::remove_file(&file).unwrap();
    store.create().await.unwrap();
    assert_eq!(store.request(&job(), Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    // The connection that has just been used must not answer for the file that comes next.
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(read(&store).await.0, LeaseState::Held);
}

#[tokio::test]
async fn what_is_no_store_is_said_with_its_path_and_a_way_out() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("lease.db");
    let ask = async |way_out: &str| {
        let answer = SqliteStore::new(dir.path()).request(&job(), Op::Read).await;
        let Err(Refusal::Misconfigured(why)) = &answer else { panic!("{answer:?}") };
        assert!(why.contains(file.to_str().unwrap()) && why.contains(way_out), "{why}");
    };
    ask("correct --store").await;
    std::fs::write(&file, "").unwrap();
    ask("let a host run on it").await;
    std::fs::write(&file, "no database".repeat(100)).unwrap();
    ask("move it away").await;
    std::fs::remove_file(&file).unwrap();
    Connection::open(&file).unwrap().execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE theirs (x)").unwrap();
    ask("name another folder").await;
    assert!(matches!(SqliteStore::new(dir.path()).create().await, Err(Refusal::Misconfigured(_))));
    let journal = |db: Connection| db.pragma_query_value(None, "journal_mode", |row| row.get::<_, String>(0));
    assert_eq!(journal(Connection::open(&file).unwrap()), Ok("wal".to_owned()));
    std::fs::remove_file(&file).unwrap();
    SqliteStore::new(dir.path()).create().await.unwrap();
    Connection::open(&file).unwrap().pragma_update(None, "user_version", 2).unwrap();
    ask("has format 2").await;
    let nowhere = SqliteStore::new("/proc/baton").create().await;
    assert!(matches!(&nowhere, Err(Refusal::Misconfigured(why)) if why.contains("/proc/baton")), "{nowhere:?}");
}

#[tokio::test]
async fn a_new_folder_is_closed_to_others_and_lengths_out_of_range_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("a/b");
    let store = SqliteStore::new(&folder);
    created(&store).await;
    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    let (_, version, _) = read(&store).await;
    for length in [Duration::from_millis(1999), Duration::from_secs(61)] {
        let answer = store.request(&job(), Op::Acquire { id: id(1), length, version: version.clone() }).await;
        assert!(matches!(answer, Err(Refusal::Misconfigured(_))), "{answer:?}");
    }
}
