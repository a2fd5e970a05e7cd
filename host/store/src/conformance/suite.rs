//! The conformance suite: all cases, each on a store of its own.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, Op, Outcome, Record, Reply, Snapshot, StoreError};
use tokio::task::JoinSet;

use super::bench::{Bench, Finding, Passage, Verdict, ensure, ensure_eq};
pub use super::modules::large;
pub use super::versioned::text;
use super::{CHECKS, Run};
use crate::{Intercept, Interceptor, Store, StoreAnswer, StoreCall};

/// A store under test, with the operations of an operator and the passage of time.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Opens a handle to the store for another host.
    fn open(&self) -> Arc<dyn Store>;
    /// Breaks the lease of the election `job` after `period`, on behalf of an operator who does not know the lease id.
    async fn break_lease(&self, period: Duration) -> Result<(), StoreError>;
    /// Deletes the election `job`.
    async fn delete(&self);
    /// Waits until `time` has passed on the store's clock.
    async fn wait_out(&self, time: Duration);
    /// Returns the time on the store's clock, if that clock advances only in [`Backend::wait_out`].
    fn set_time(&self) -> Option<Duration> {
        None
    }
}

/// Runs all cases at the same time, each on a store created by `make`. See [`findings`].
///
/// # Panics
/// Panics with the findings if a case has not passed.
pub async fn run<B: Backend + 'static>(make: impl AsyncFn() -> B) {
    let findings = findings(make, |_| true).await;
    assert!(findings.is_empty(), "{} cases failed:\n{}", findings.len(), findings.join("\n"));
}

/// Runs the cases of each check whose name `takes` accepts, each case on a store created by `make`. Returns a line for
/// each case that has not passed.
pub async fn findings<B: Backend + 'static>(make: impl AsyncFn() -> B, takes: impl Fn(&str) -> bool) -> Vec<String> {
    let mut running = JoinSet::new();
    for check in CHECKS.iter().filter(|check| takes(check.name)) {
        for case in check.cases {
            let bench = StoreBench::new(make().await);
            running.spawn(async move {
                let election = Arc::clone(&bench.bench);
                let verdict = match case.run {
                    Run::AtOnce(run) | Run::AfterExpiry(run) => run(Arc::clone(&election)).await,
                    Run::OnOwnStore(run) => run(bench).await,
                };
                verdict.err().map(|finding| {
                    let late = if election.is_late() { ", on a machine that was too slow" } else { "" };
                    format!("{} ({}{late}): {finding}; {}", case.name, finding.at, check.means)
                })
            });
        }
    }
    running.join_all().await.into_iter().flatten().collect()
}

/// A store that only one case uses. Dereferences to the [`Bench`] of the election `job`.
pub struct StoreBench {
    /// The store.
    pub backend: Arc<dyn Backend>,
    bench: Arc<Bench>,
}

impl StoreBench {
    /// Creates the bench of a store.
    pub fn new(backend: impl Backend + 'static) -> Self {
        let store = backend.open();
        Self::with_handle(store, Arc::new(backend))
    }

    /// Creates the bench of a store. The cases use the store through the handle `store`.
    pub fn with_handle(store: Arc<dyn Store>, backend: Arc<dyn Backend>) -> Self {
        // Short, but long enough for a slow machine to run a case before the lease expires.
        let length = store.lease_range().0.max(Duration::from_secs(6));
        let passage = Arc::new(BackendTime(Arc::clone(&backend)));
        let bench = Bench::new(persistent(store), job(), length, [a(), b(), c()], record(0), passage);
        Self { backend, bench: Arc::new(bench) }
    }

    /// Opens a handle to the store for another host.
    pub fn open(&self) -> Arc<dyn Store> {
        persistent(self.backend.open())
    }

    /// Waits for slightly more than half of the length of a lease. After one wait, the lease is still held, even on a
    /// slow machine. Two waits together are longer than the lease.
    pub async fn most_of_it(&self) {
        self.wait_out(self.length / 2 + Duration::from_millis(500)).await;
    }
}

impl Deref for StoreBench {
    type Target = Bench;

    fn deref(&self) -> &Bench {
        &self.bench
    }
}

struct BackendTime(Arc<dyn Backend>);

#[async_trait]
impl Passage for BackendTime {
    async fn wait_out(&self, time: Duration) {
        self.0.wait_out(time).await;
    }

    fn set_time(&self) -> Option<Duration> {
        self.0.set_time()
    }
}

/// Returns a handle that repeats a request if the store is busy. The repetition is safe, because a store that reports
/// that it is busy has not carried out the request.
pub fn persistent(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(Intercept { store, interceptor: WhileLocked })
}

struct WhileLocked;

#[async_trait]
impl Interceptor<dyn Store> for WhileLocked {
    async fn intercept(&self, call: StoreCall, store: &dyn Store) -> Result<StoreAnswer, StoreError> {
        for _ in 0..100 {
            match call.clone().send(store).await {
                Err(StoreError::Unknown(why)) if why.contains(crate::LOCKED) => {}
                answer => return answer,
            }
        }
        call.send(store).await
    }
}

macro_rules! ensure_lost {
    ($answer:expr) => {
        $crate::conformance::Expect::lost($answer, concat!("`", stringify!($answer), "`"))?
    };
}

macro_rules! accepted {
    ($answer:expr) => {
        $crate::conformance::Expect::accepted($answer, concat!("`", stringify!($answer), "`"))?
    };
}

macro_rules! version_in {
    ($answer:expr) => {
        $crate::conformance::bench::version_of(concat!("`", stringify!($answer), "`"), $answer)?
    };
}

pub(super) use {accepted, ensure_lost, version_in};

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

/// The election that the cases use.
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
        paused_until: None,
        progress: None,
    }
}

pub(super) async fn one_of_many_candidates_wins(bench: StoreBench) -> Verdict {
    let version = bench.create().await?;
    let mut candidates = JoinSet::new();
    for n in 0..12 {
        let store = bench.open();
        let op = Op::Acquire {
            id: LeaseId::from_random(n),
            length: bench.length,
            version: version.clone(),
            instead_of: None,
        };
        candidates.spawn(async move { (n, store.request(&job(), op).await) });
    }
    let answers = candidates.join_all().await;
    let winners: Vec<_> = answers.iter().filter(|(_, answer)| *answer == Ok(Reply::Done)).collect();
    ensure_eq!(winners.len(), 1, "{answers:?}");
    ensure!(answers.iter().all(|(_, answer)| matches!(answer, Ok(Reply::Done) | Err(StoreError::Held))), "{answers:?}");
    ensure_eq!(bench.renew(LeaseId::from_random(winners[0].0)).await, Ok(Reply::Done));
    Ok(())
}

pub(super) async fn one_of_many_creators_succeeds(bench: StoreBench) -> Verdict {
    ensure_eq!(bench.ask(Op::Read).await, Ok(Reply::Read(Snapshot::Nothing)));
    let mut creators = JoinSet::new();
    for term in 0..8 {
        let store = bench.open();
        creators.spawn(async move { (term, store.request(&job(), Op::Create { record: record(term) }).await) });
    }
    let answers = creators.join_all().await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, answer)| answer.is_ok());
    ensure!(refused.iter().all(|(_, answer)| *answer == Err(StoreError::Conflict)), "{refused:?}");
    let [(term, Ok(Reply::Version(version)))] = made[..] else {
        return Err(Finding::broken(format!("not exactly one creation succeeded: {answers:?}")));
    };
    let seen = bench.see().await?;
    ensure_eq!((&seen.version, seen.record), (version, Some(record(*term))));
    Ok(())
}

pub(super) async fn elections_are_listed_sorted(bench: StoreBench) -> Verdict {
    ensure_eq!(bench.store.elections().await, Ok(vec![]));
    let names: Vec<_> = ["backup", "job", "a-report"].iter().map(|name| ElectionName::new(name).unwrap()).collect();
    for name in &names {
        version_in!(bench.store.request(name, Op::Create { record: record(0) }).await);
    }
    let sorted = [&names[2], &names[0], &names[1]].map(ElectionName::clone).to_vec();
    ensure_eq!(bench.open().elections().await, Ok(sorted));
    // Elections do not share a lease.
    ensure_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    ensure_lost!(bench.store.request(&names[0], Op::Renew { id: a() }).await);
    Ok(())
}

pub(super) async fn record_is_read_as_it_was_written(bench: StoreBench) -> Verdict {
    let version = bench.held_by(a()).await?;
    let full = Record {
        node: Some("Knoten-1".to_owned()),
        failures: u32::MAX,
        released: true,
        paused_until: Some(Duration::from_micros(1_700_000_060_000_001)),
        progress: "1 3 1700000000 1700000060 0 0 2 * * * UTC".parse().ok().map(Box::new),
        ..record(u64::MAX)
    };
    let bare = Record { node: None, module: None, outcome: None, failures: 0, ..record(1) };
    let mut version = version;
    for record in [full, bare] {
        version = version_in!(bench.ask(Op::Write { id: a(), version, record: record.clone() }).await);
        ensure_eq!(bench.see().await?.record, Some(record));
    }
    Ok(())
}
