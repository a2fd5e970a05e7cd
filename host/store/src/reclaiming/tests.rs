#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use baton_test_support::patience::Patience;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;
use crate::MemoryStore;
use crate::witness::tests::Runner;

const D: Duration = Duration::from_secs(15);

/// A machine with hosts, and a store on another machine. Each host uses its own handle to the store.
struct Machine {
    folder: TempDir,
    store: MemoryStore,
}

impl Machine {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), store: MemoryStore::new(Arc::new(|| Duration::from_secs(100))) }
    }

    fn leases(&self) -> PathBuf {
        self.folder.path().join("leases")
    }

    fn note(&self, incarnation: &str) -> PathBuf {
        self.leases().join(format!("{incarnation}-job"))
    }

    /// Returns a newly started host, and its lock file. The host counts as alive until all copies of the `Arc` have
    /// been dropped. The host has no timeout for its disk, because other tests may slow the disk down more than a real
    /// host would tolerate.
    fn host(&self, incarnation: &str) -> (Reclaiming, Arc<LockFile>) {
        let (store, lock_file) =
            (Arc::new(self.store.clone()), Arc::new(LockFile::make(&self.leases(), incarnation).unwrap()));
        let mut host = Reclaiming::new(store, &url("azure://account/container"), Arc::clone(&lock_file));
        host.disk_within = Duration::MAX;
        (host, lock_file)
    }

    /// Returns a host that leads in term 1, under the lease id `number`.
    async fn leader(&self, incarnation: &str, number: u128) -> (Reclaiming, Arc<LockFile>) {
        let (host, lock_file) = self.host(incarnation);
        let created =
            host.request(&job(), Op::Create { record: Record { node: None, ..record(0, incarnation) } }).await;
        assert!(matches!(created, Ok(Reply::Version(_)) | Err(StoreError::Conflict)), "{created:?}");
        let (_, version) = see(&host).await;
        let acquire = Op::Acquire { id: id(number), length: D, version, instead_of: None };
        assert_eq!(host.request(&job(), acquire).await, Ok(Reply::Done));
        writes(&host, id(number), record(1, incarnation)).await;
        (host, lock_file)
    }
}

fn url(text: &str) -> StoreUrl {
    text.parse().unwrap()
}

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn id(number: u128) -> LeaseId {
    LeaseId::from_random(number)
}

fn record(term: u64, incarnation: &str) -> Record {
    Record {
        term,
        node: Some("node".to_owned()),
        incarnation: incarnation.to_owned(),
        since: Duration::ZERO,
        lease: D,
        module: None,
        outcome: None,
        failures: 0,
        released: false,
        paused_until: None,
        progress: None,
    }
}

/// Reads the lease and then surveys it. Returns the result of the survey, because the earlier read may still show the
/// lease as held.
async fn see(host: &Reclaiming) -> (LeaseState, Version) {
    let (read, surveyed) = (host.request(&job(), Op::Read).await, host.request(&job(), Op::Survey).await);
    match (read, surveyed) {
        (
            Ok(Reply::Read(Snapshot::Object { lease: before, .. })),
            Ok(Reply::Surveyed { read: Snapshot::Object { lease, version, .. }, .. }),
        ) => {
            assert!(before == lease || before == LeaseState::Held, "{before:?}, {lease:?}");
            (lease, version)
        }
        other => panic!("it cannot be read: {other:?}"),
    }
}

async fn writes(host: &Reclaiming, id: LeaseId, record: Record) {
    let (_, version) = see(host).await;
    let written = host.request(&job(), Op::Write { id, version, record }).await;
    assert!(matches!(written, Ok(Reply::Version(_))), "{written:?}");
}

fn reclaim(version: Version) -> Op {
    Op::Reclaim { from: id(1), id: id(2), version }
}

/// Waits until the lease is reclaimable. This may take a moment: if another test starts a program at this time, the
/// program briefly inherits all descriptors, and with them the locks.
async fn is_reclaimable(host: &Reclaiming, number: u128) -> Version {
    let mut patience = Patience::default();
    loop {
        match see(host).await {
            (LeaseState::Reclaimable { holder }, version) if holder == id(number) => return version,
            (lease, _) => assert!(patience.lasts(), "{lease:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn lease_is_reclaimed_once_holder_and_runners_are_dead() {
    let machine = Machine::new();
    let (alpha, lock_file) = machine.leader("alpha", 1).await;
    let runner = Runner::holding(lock_file.for_runner().unwrap());
    let ((beta, _beta), (gamma, _gamma)) = (machine.host("beta"), machine.host("gamma"));
    assert_eq!(see(&beta).await.0, LeaseState::Held);
    assert_eq!(see(&alpha).await.0, LeaseState::Held, "its own");
    drop((alpha, lock_file));
    runner.stop();
    assert_eq!(see(&beta).await.0, LeaseState::Held, "its runner may go on");
    drop(runner);
    let version = is_reclaimable(&beta, 1).await;
    is_reclaimable(&gamma, 1).await;
    let reclaim = |from, fresh| Op::Reclaim { from: id(from), id: id(fresh), version: version.clone() };
    assert_eq!(beta.request(&job(), reclaim(2, 3)).await, Err(StoreError::Held), "no note names that");
    assert_eq!(beta.request(&job(), reclaim(1, 2)).await, Ok(Reply::Done));
    // Until `beta` has written its term, no other host can reclaim the lease. `beta` itself may repeat its request.
    assert_eq!(gamma.request(&job(), reclaim(1, 3)).await, Err(StoreError::Held));
    assert_eq!(see(&gamma).await.0, LeaseState::Held);
    assert_eq!(see(&beta).await.0, LeaseState::Held);
    assert_eq!(beta.request(&job(), reclaim(1, 2)).await, Ok(Reply::Done));
    writes(&beta, id(2), record(2, "beta")).await;
    assert!(!machine.note("alpha").exists() && machine.note("beta").exists());
    drop((beta, _beta));
    is_reclaimable(&gamma, 2).await;
}

#[tokio::test]
async fn only_one_of_several_hosts_reclaims_the_lease() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    let ((beta, _beta), (gamma, _gamma)) = (machine.host("beta"), machine.host("gamma"));
    let version = is_reclaimable(&beta, 1).await;
    is_reclaimable(&gamma, 1).await;
    let reclaim = |from, fresh| Op::Reclaim { from: id(from), id: id(fresh), version: version.clone() };
    assert_eq!(beta.request(&job(), reclaim(1, 2)).await, Ok(Reply::Done));
    drop((beta, _beta));
    is_reclaimable(&gamma, 2).await;
    assert_eq!(gamma.request(&job(), reclaim(2, 3)).await, Ok(Reply::Done));
    writes(&gamma, id(3), record(2, "gamma")).await;
    let (delta, _delta) = machine.host("delta");
    assert_eq!(delta.request(&job(), reclaim(3, 4)).await, Err(StoreError::Held));
    assert_eq!(machine.store.request(&job(), reclaim(3, 4)).await, Err(StoreError::Conflict));
}

/// The note also contains the ids of two other hosts, whose requests never reached the store.
#[tokio::test]
async fn lease_is_reclaimed_under_any_noted_id() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    for (host, from, fresh) in [("beta", 1, 2), ("gamma", 2, 3)] {
        let (host, _lock_file) = machine.host(host);
        let version = is_reclaimable(&host, from).await;
        machine.store.fail_next(crate::memory::Fault::LoseRequest);
        let reclaim = Op::Reclaim { from: id(from), id: id(fresh), version };
        assert!(matches!(host.request(&job(), reclaim).await, Err(StoreError::Unknown(_))));
    }
    let (delta, _delta) = machine.host("delta");
    let version = is_reclaimable(&delta, 3).await;
    assert_eq!(delta.request(&job(), Op::Reclaim { from: id(3), id: id(4), version }).await, Ok(Reply::Done));
    writes(&delta, id(4), record(2, "delta")).await;
    assert!(!machine.note("alpha").exists());
}

#[tokio::test]
async fn lease_is_not_reclaimed_when_note_is_full() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    let text = fs::read_to_string(machine.note("alpha")).unwrap();
    let line = text.lines().last().unwrap();
    fs::write(machine.note("alpha"), text.clone() + &format!("{line}\n").repeat(15)).unwrap();
    let (beta, _beta) = machine.host("beta");
    let version = is_reclaimable(&beta, 1).await;
    let reclaim = Op::Reclaim { from: id(1), id: id(2), version };
    assert_eq!(beta.request(&job(), reclaim).await, Err(StoreError::Held));
    assert_eq!(fs::read_to_string(machine.note("alpha")).unwrap().lines().count(), text.lines().count() + 15);
}

#[tokio::test]
async fn reclaim_fails_when_another_client_held_the_lease() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    let (beta, _beta) = machine.host("beta");
    let version = is_reclaimable(&beta, 1).await;
    // A client on another machine breaks the lease and acquires it, but writes no record. So the record still names the
    // dead holder.
    machine.store.break_now(&job()).await.unwrap();
    let acquire = Op::Acquire { id: id(9), length: D, version: version.clone(), instead_of: None };
    assert_eq!(machine.store.request(&job(), acquire).await, Ok(Reply::Done));
    is_reclaimable(&beta, 1).await;
    let answer = beta.request(&job(), reclaim(version)).await;
    assert!(matches!(answer, Err(StoreError::Lost(_))), "{answer:?}");
    // The failed reclaim has added its fresh id to the note. The host must not try the ids in the note again.
    assert_eq!(see(&beta).await.0, LeaseState::Held);
}

#[tokio::test]
async fn lease_stays_held_when_record_does_not_name_dead_holder() {
    let nobody = Record { node: None, ..record(1, "alpha") };
    let marked = Record { released: true, ..record(1, "alpha") };
    for other in [nobody, marked, record(1, "omega"), record(1, "../alpha")] {
        let machine = Machine::new();
        let (alpha, lock_file) = machine.leader("alpha", 1).await;
        writes(&alpha, id(1), other.clone()).await;
        let place = lock_file.place().clone();
        drop((alpha, lock_file));
        let (beta, _beta) = machine.host("beta");
        Patience::poll(Duration::from_millis(1), || place.is_gone(&machine.leases()).then_some(()))
            .expect("it is gone");
        assert_eq!(see(&beta).await.0, LeaseState::Held, "{other:?}");
    }
}

#[tokio::test]
async fn lease_stays_held_when_note_is_foreign_or_damaged() {
    type Damage = fn(&str, &PathBuf);
    let changed: [(&str, Damage); 12] = [
        ("of another boot", |text, path| fs::write(path, replaced(text, "boot", "0")).unwrap()),
        ("of another store", |text, path| fs::write(path, replaced(text, "store", "azure://a/c")).unwrap()),
        ("of another election", |text, path| fs::write(path, replaced(text, "election", "other")).unwrap()),
        ("of another incarnation", |text, path| fs::write(path, replaced(text, "incarnation", "omega")).unwrap()),
        ("of a copied folder", |text, path| fs::write(path, replaced(text, "inode", "1")).unwrap()),
        ("truncated", |text, path| fs::write(path, &text[..text.len() - 1]).unwrap()),
        ("empty", |_, path| fs::write(path, "").unwrap()),
        ("huge", |text, path| {
            fs::write(path, text).unwrap();
            fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap();
        }),
        ("no text", |_, path| fs::write(path, [0xff; 300]).unwrap()),
        ("a link", |text, path| {
            let elsewhere = path.with_file_name("elsewhere");
            fs::write(&elsewhere, text).unwrap();
            fs::remove_file(path).unwrap();
            symlink(elsewhere, path).unwrap();
        }),
        // Nobody writes to this pipe, so opening it for reading would block.
        ("a pipe", |_, path| {
            fs::remove_file(path).unwrap();
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }),
        ("a folder", |_, path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (what, damage) in changed {
        let machine = Machine::new();
        let (alpha, lock_file) = machine.leader("alpha", 1).await;
        let place = lock_file.place().clone();
        drop((alpha, lock_file));
        Patience::poll(Duration::from_millis(1), || place.is_gone(&machine.leases()).then_some(()))
            .expect("it is gone");
        let text = fs::read_to_string(machine.note("alpha")).unwrap();
        damage(&text, &machine.note("alpha"));
        let (beta, _beta) = machine.host("beta");
        assert_eq!(see(&beta).await.0, LeaseState::Held, "{what}");
        let (_, version) = see(&beta).await;
        assert_eq!(beta.request(&job(), reclaim(version)).await, Err(StoreError::Held), "{what}");
    }
}

#[tokio::test]
async fn hanging_disk_costs_a_note_and_no_lease() {
    let machine = Machine::new();
    let (mut alpha, _alpha) = machine.host("alpha");
    alpha.disk_within = DISK_WITHIN;
    let hangs = Arc::clone(&alpha.asks).acquire_owned().await.unwrap();
    machine.store.request(&job(), Op::Create { record: record(0, "nobody") }).await.unwrap();
    let (_, version) = see(&alpha).await;
    let acquire = Op::Acquire { id: id(1), length: D, version, instead_of: None };
    let election = job();
    let mut acquires = std::pin::pin!(alpha.request(&election, acquire));
    assert!(futures::poll!(&mut acquires).is_pending());
    let read = machine.store.request(&job(), Op::Read).await;
    let is_held = matches!(read, Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Held, .. })));
    assert!(is_held, "the store is asked before the disk has answered");
    assert_eq!(acquires.await, Ok(Reply::Done));
    writes(&alpha, id(1), record(1, "alpha")).await;
    assert_eq!(alpha.request(&job(), Op::Renew { id: id(1) }).await, Ok(Reply::Done));
    assert!(!machine.note("alpha").exists());
    let (_, version) = see(&alpha).await;
    let mark = Op::Write { id: id(1), version, record: Record { released: true, ..record(1, "alpha") } };
    assert!(matches!(alpha.request(&job(), mark).await, Ok(Reply::Version(_))));
    assert_eq!(alpha.request(&job(), Op::Release { id: id(1) }).await, Ok(Reply::Done));
    drop(hangs);
}

#[tokio::test]
async fn hanging_disk_during_a_reclaim_costs_a_reading() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    let (mut beta, _beta) = machine.host("beta");
    let version = is_reclaimable(&beta, 1).await;
    let hangs = Arc::clone(&beta.asks).acquire_owned().await.unwrap();
    beta.disk_within = DISK_WITHIN;
    let reclaim = reclaim(version);
    assert_eq!(beta.request(&job(), reclaim.clone()).await, Err(StoreError::Conflict));
    beta.disk_within = Duration::MAX;
    drop(hangs);
    is_reclaimable(&beta, 1).await;
    assert_eq!(beta.request(&job(), reclaim).await, Ok(Reply::Done));
}

#[tokio::test]
async fn note_is_removed_before_its_lease_is_released() {
    let machine = Machine::new();
    let (alpha, _alpha) = machine.leader("alpha", 1).await;
    assert!(machine.note("alpha").exists());
    let (_, version) = see(&alpha).await;
    let mark = Op::Write { id: id(1), version, record: Record { released: true, ..record(1, "alpha") } };
    machine.store.fail_next(crate::memory::Fault::LoseRequest);
    assert!(alpha.request(&job(), mark).await.is_err());
    assert!(!machine.note("alpha").exists(), "it goes while the record is marked");
    alpha.note(&job(), id(1)).await;
    assert!(machine.note("alpha").exists());
    // The request never reaches the store, but the host cannot know that.
    machine.store.fail_next(crate::memory::Fault::LoseRequest);
    assert!(alpha.request(&job(), Op::Release { id: id(1) }).await.is_err());
    assert!(!machine.note("alpha").exists());
}

#[tokio::test]
async fn release_of_a_reclaimed_lease_removes_both_notes() {
    let machine = Machine::new();
    drop(machine.leader("alpha", 1).await);
    let (beta, _beta) = machine.host("beta");
    let version = is_reclaimable(&beta, 1).await;
    assert_eq!(beta.request(&job(), reclaim(version)).await, Ok(Reply::Done));
    assert!(machine.note("alpha").exists() && machine.note("beta").exists());
    assert_eq!(beta.request(&job(), Op::Release { id: id(2) }).await, Ok(Reply::Done));
    assert!(!machine.note("alpha").exists() && !machine.note("beta").exists());
}

#[tokio::test]
async fn hint_resolves_for_old_notes_and_when_holder_dies() {
    let machine = Machine::new();
    let (alone, _alone) = machine.host("alone");
    assert!(futures::poll!(std::pin::pin!(alone.hint(&job()))).is_pending());
    let alpha = machine.leader("alpha", 1).await;
    let (beta, _beta) = machine.host("beta");
    Patience::of_future(beta.hint(&job())).await.expect("there is a note");
    assert_eq!(see(&beta).await.0, LeaseState::Held);
    let job = job();
    let mut hint = std::pin::pin!(beta.hint(&job));
    for _ in 0..100 {
        assert!(futures::poll!(&mut hint).is_pending());
        tokio::task::yield_now().await;
    }
    drop(alpha);
    Patience::of_future(hint).await.expect("its end is heard");
}

#[tokio::test]
async fn tidying_removes_only_useless_notes_and_lock_files() {
    let machine = Machine::new();
    let (alpha, lock_file) = machine.leader("alpha", 1).await;
    let text = fs::read_to_string(machine.note("alpha")).unwrap();
    for incarnation in ["before", "rebooted", "elsewhere"] {
        drop(machine.host(incarnation));
    }
    let of = |incarnation: &str| {
        let place = LockFile::make(&machine.leases(), incarnation).unwrap().place().clone();
        let text = replaced(&text, "incarnation", incarnation);
        replaced(&text, "inode", &place.inode.to_string())
    };
    fs::write(machine.note("before"), of("before")).unwrap();
    fs::write(machine.note("rebooted"), replaced(&of("rebooted"), "boot", "0")).unwrap();
    fs::write(machine.note("elsewhere"), replaced(&of("elsewhere"), "store", "azure://a/c")).unwrap();
    fs::write(machine.note("nobody"), "damaged").unwrap();
    fs::write(machine.leases().join("Not-ours"), "").unwrap();
    let (beta, _beta) = machine.host("beta");
    see(&beta).await;
    let left = || {
        let entries = fs::read_dir(machine.leases()).unwrap();
        let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        left
    };
    assert_eq!(left(), ["Not-ours", "alpha", "alpha-job", "beta", "elsewhere", "elsewhere-job"]);
    drop((alpha, lock_file));
    is_reclaimable(&beta, 1).await;
}

fn replaced(text: &str, name: &str, value: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once('=') {
        Some((found, _)) if found == name => format!("{name}={value}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}
