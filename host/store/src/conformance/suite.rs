//! The cases for lease stores: one for each guarantee, each on its own store.
//!
//! No request in a case has two reasons to fail. Otherwise, stores could report different reasons.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::{LeaseStore, Store};
use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Outcome, Record, Reply, Snapshot, StoreError, Version};
use tokio::task::JoinSet;

use super::leases::*;
use super::terms::*;

/// A store under test, with the operations of an operator and the passage of time.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens a handle to the store for another host.
    fn open(&self) -> Arc<dyn Store>;
    /// Breaks the lease on the election `job` once `period` has elapsed, on behalf of an operator who has no id.
    async fn break_lease(&self, period: Duration) -> Result<(), StoreError>;
    /// Deletes the election `job`.
    async fn delete(&self);
    /// Waits until `time` has passed on the store's clock.
    async fn wait_out(&self, time: Duration);
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A case and its name.
pub type Case = (&'static str, fn(CaseBench) -> Running);

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// All cases.
        pub const CASES: &[Case] = &[$((stringify!($name), |bench| Box::pin($name(bench)))),*];
    };
}

cases![
    one_of_many_candidates_wins,
    record_is_created_once,
    one_of_many_creators_succeeds,
    elections_are_listed_sorted,
    record_is_read_as_it_was_written,
    acquire_is_idempotent_for_its_id_and_held_for_others,
    lease_expires_sooner_when_reacquired_for_less_time,
    acquire_on_an_old_version_conflicts,
    lease_is_refused_when_its_length_is_out_of_range,
    lease_requests_leave_the_version_alone,
    write_changes_the_version,
    write_needs_the_id,
    write_needs_the_version,
    renewal_and_release_with_a_wrong_id_are_lost,
    renewal_of_an_untouched_expired_lease_succeeds,
    renewal_of_an_expired_lease_with_a_wrong_id_is_lost,
    renewal_restarts_the_lease,
    late_renewal_is_lost_when_another_has_acquired,
    reclaimed_lease_has_an_id_unknown_to_the_old_holder,
    reclaim_is_lost_when_the_lease_ended_or_changed_hands,
    write_under_an_expired_lease_is_lost,
    lease_broken_at_once_is_free_for_others,
    breaking_lease_is_free_after_the_period,
    host_breaks_a_lease_without_its_id,
    break_of_an_expired_lease_takes_effect_at_once,
    break_of_a_broken_lease_changes_nothing,
    second_break_never_takes_longer,
    release_frees_the_lease_at_once,
    client_without_an_id_changes_only_what_is_not_held,
    deleted_record_leaves_nothing_behind,
    lost_answer_is_recovered_by_repeating_the_request,
    late_requests_do_no_harm,
    mark_stays_until_a_write_without_it,
    recreated_record_has_no_mark,
    recall_names_the_highest_term_in_the_store,
    recall_fails_when_the_state_is_unreadable,
];

/// Runs all cases at the same time, each on a store created by `make`, and reports all failed cases.
pub async fn run<B: Backend + 'static>(make: impl AsyncFn() -> B) {
    let mut running = JoinSet::new();
    let mut names = Vec::new();
    for (name, case) in CASES {
        let backend = make().await;
        let case = case(CaseBench { store: backend.open(), backend: Arc::new(backend) });
        names.push((running.spawn(case).id(), *name));
    }
    let mut failed = Vec::new();
    while let Some(done) = running.join_next().await {
        if let Err(error) = done {
            let name = names.iter().find(|(id, _)| *id == error.id()).map_or("?", |(_, name)| name);
            failed.push(format!("{name}: {error}"));
        }
    }
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}

/// A case's store and a handle to it.
pub struct CaseBench {
    /// The store.
    pub backend: Arc<dyn Backend>,
    /// The handle.
    pub store: Arc<dyn Store>,
}

/// The lease id of one host.
pub fn a() -> LeaseId {
    LeaseId::from_random(0xa)
}

/// The lease id of another host.
pub fn b() -> LeaseId {
    LeaseId::from_random(0xb)
}

/// The lease id of a third host.
pub fn c() -> LeaseId {
    LeaseId::from_random(0xc)
}

/// The election of every case.
pub fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

/// Returns a record of the term, with a value in every field.
pub fn record(term: u64) -> Record {
    Record {
        term,
        node: Some("web-1-0".to_owned()),
        incarnation: "i1".to_owned(),
        since: Duration::from_micros(1_700_000_000_123_456),
        lease: Duration::from_secs(15),
        module: Some(format!("sha256:{}", "0123456789abcdef".repeat(4))),
        outcome: Some(Outcome::Done),
        failures: 3,
        released: false,
        rests_until: None,
    }
}

/// The object, as a read returned it.
pub struct Seen {
    /// The state of the lease.
    pub lease: LeaseState,
    /// The version of the record.
    pub version: Version,
    /// The record; `None` if another client created the object.
    pub record: Option<Record>,
}

/// Repeats a request until the store is not busy. A busy store has not carried out the request.
pub async fn ask(store: &dyn LeaseStore, op: Op) -> Result<Reply, StoreError> {
    let mut answer = store.request(&job(), op.clone()).await;
    for _ in 0..100 {
        match &answer {
            Err(StoreError::Unknown(why)) if why.contains(crate::LOCKED) => {
                answer = store.request(&job(), op.clone()).await
            }
            _ => break,
        }
    }
    answer
}

impl CaseBench {
    /// Returns the length of a case's lease: short enough to expire during the test, but long enough for a slow machine
    /// to send its requests first.
    pub fn brief(&self) -> Duration {
        self.store.lease_range().0.max(Duration::from_secs(6))
    }

    /// Waits for slightly more than half of a case's lease. Two of these waits are longer than the lease. After one
    /// wait, the lease is still held, even on a slow machine.
    pub async fn most_of_it(&self) {
        self.backend.wait_out(self.brief() / 2 + Duration::from_millis(500)).await;
    }

    /// Repeats a request until the store is not busy.
    pub async fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        ask(self.store.as_ref(), op).await
    }

    /// Reads the object, which must exist. A survey must return the same object, unless the survey cannot read the
    /// other terms.
    pub async fn see(&self) -> Seen {
        let read = self.ask(Op::Read).await;
        let surveyed = self.ask(Op::Survey).await;
        // The lease may have expired meanwhile.
        if self.ask(Op::Read).await == read {
            match surveyed {
                Ok(Reply::Surveyed { read: surveyed, .. }) => assert_eq!(Ok(Reply::Read(surveyed)), read),
                Err(StoreError::Misconfigured(_)) => {}
                other => panic!("it cannot be surveyed: {other:?}"),
            }
        }
        match read {
            Ok(Reply::Read(Snapshot::Object { lease, version, record })) => Seen { lease, version, record },
            other => panic!("the record cannot be read: {other:?}"),
        }
    }

    /// Creates the record.
    pub async fn create(&self) -> Version {
        version_of(self.ask(Op::Create { record: record(0) }).await)
    }

    /// Acquires the lease for [`Self::brief`], on the current version.
    pub async fn acquire(&self, id: LeaseId) -> Result<Reply, StoreError> {
        let version = self.see().await.version;
        self.ask(Op::Acquire { id, length: self.brief(), version, instead_of: None }).await
    }

    /// Renews the lease.
    pub async fn renew(&self, id: LeaseId) -> Result<Reply, StoreError> {
        self.ask(Op::Renew { id }).await
    }

    /// Reclaims the lease that is held under the id `from`.
    pub async fn reclaim(&self, from: LeaseId, id: LeaseId, version: &Version) -> Result<Reply, StoreError> {
        self.ask(Op::Reclaim { from, id, version: version.clone() }).await
    }

    /// Releases the lease.
    pub async fn release(&self, id: LeaseId) -> Result<Reply, StoreError> {
        self.ask(Op::Release { id }).await
    }

    /// Replaces this version of the record with a record of the term.
    pub async fn write(&self, id: LeaseId, version: &Version, term: u64) -> Result<Reply, StoreError> {
        self.ask(Op::Write { id, version: version.clone(), record: record(term) }).await
    }

    /// Creates the record and acquires its lease.
    pub async fn held_by(&self, id: LeaseId) -> Version {
        let version = self.create().await;
        assert_eq!(self.acquire(id).await, Ok(Reply::Done));
        version
    }

    /// Waits until a lease that was just acquired or renewed has expired.
    pub async fn outlive(&self) {
        self.backend.wait_out(self.brief()).await;
        assert_eq!(self.see().await.lease, LeaseState::Expired);
    }
}

/// Returns the version in an answer, which must contain a version.
#[track_caller]
pub fn version_of(answer: Result<Reply, StoreError>) -> Version {
    match answer {
        Ok(Reply::Version(version)) => version,
        other => panic!("a version was expected: {other:?}"),
    }
}

#[track_caller]
/// Asserts that the lease is lost.
pub fn assert_lost(answer: &Result<Reply, StoreError>) {
    assert!(matches!(answer, Err(StoreError::Lost(_))), "Lost was expected: {answer:?}");
}

pub(super) async fn one_of_many_candidates_wins(bench: CaseBench) {
    let version = bench.create().await;
    let mut candidates = JoinSet::new();
    for n in 0..12 {
        let store = bench.backend.open();
        let op = Op::Acquire {
            id: LeaseId::from_random(n),
            length: bench.brief(),
            version: version.clone(),
            instead_of: None,
        };
        candidates.spawn(async move { (n, ask(store.as_ref(), op).await) });
    }
    let answers = candidates.join_all().await;
    let winners: Vec<_> = answers.iter().filter(|(_, answer)| *answer == Ok(Reply::Done)).collect();
    assert_eq!(winners.len(), 1, "{answers:?}");
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Ok(Reply::Done) | Err(StoreError::Held))), "{answers:?}");
    assert_eq!(bench.renew(LeaseId::from_random(winners[0].0)).await, Ok(Reply::Done));
}

pub(super) async fn one_of_many_creators_succeeds(bench: CaseBench) {
    let mut creators = JoinSet::new();
    for term in 0..8 {
        let store = bench.backend.open();
        creators.spawn(async move { (term, ask(store.as_ref(), Op::Create { record: record(term) }).await) });
    }
    let answers = creators.join_all().await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(_, answer)| answer.is_ok());
    assert!(refused.iter().all(|(_, answer)| *answer == Err(StoreError::Conflict)), "{refused:?}");
    let [(term, answer)] = made.try_into().unwrap();
    let seen = bench.see().await;
    assert_eq!((seen.version, seen.record), (version_of(answer), Some(record(term))));
}

pub(super) async fn record_is_created_once(bench: CaseBench) {
    assert_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    let version = bench.create().await;
    assert_eq!(bench.ask(Op::Create { record: record(9) }).await, Err(StoreError::Conflict));
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    assert_eq!(bench.ask(Op::Create { record: record(9) }).await, Err(StoreError::Conflict), "while it is held");
    let seen = bench.see().await;
    assert_eq!((seen.version, seen.record), (version, Some(record(0))));
}

pub(super) async fn elections_are_listed_sorted(bench: CaseBench) {
    assert_eq!(bench.store.elections().await, Ok(vec![]));
    let names: Vec<_> = ["backup", "job", "a-report"].iter().map(|name| ElectionName::new(name).unwrap()).collect();
    for name in &names {
        version_of(bench.store.request(name, Op::Create { record: record(0) }).await);
    }
    let sorted = [&names[2], &names[0], &names[1]].map(ElectionName::clone).to_vec();
    assert_eq!(bench.backend.open().elections().await, Ok(sorted));
    // Elections do not share a lease.
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    assert_lost(&bench.store.request(&names[0], Op::Renew { id: a() }).await);
}

pub(super) async fn record_is_read_as_it_was_written(bench: CaseBench) {
    let version = bench.held_by(a()).await;
    let full = Record {
        node: Some("Knoten-1".to_owned()),
        failures: u32::MAX,
        released: true,
        rests_until: Some(Duration::from_micros(1_700_000_060_000_001)),
        ..record(u64::MAX)
    };
    let bare = Record { node: None, module: None, outcome: None, failures: 0, ..record(1) };
    let mut version = version;
    for record in [full, bare] {
        version = version_of(bench.ask(Op::Write { id: a(), version, record: record.clone() }).await);
        assert_eq!(bench.see().await.record, Some(record));
    }
}
