//! The election that a case uses, and the verdict of a case.

use std::fmt::{Debug, Display};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Record, Reply, Snapshot, StoreError, Time, Version};

use crate::Store;
use baton_base::clock::Clock;

/// Interval between reads of a lease that is about to end.
pub(super) const POLL: Duration = Duration::from_millis(50);

/// Reason why a case has not passed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{found}")]
pub struct Finding {
    /// States what the store did and what the case expected.
    pub found: String,
    /// The store's error, if the store was unreachable or misconfigured. The case then proves nothing.
    pub no_answer: Option<StoreError>,
    /// The source code line that reports the finding.
    pub at: &'static Location<'static>,
}

impl Finding {
    /// Creates the finding for a store that breaks a promise.
    #[track_caller]
    pub fn broken(found: impl Into<String>) -> Self {
        Self { found: found.into(), no_answer: None, at: Location::caller() }
    }

    #[track_caller]
    fn answered<T>(found: impl Display, answer: &Result<T, StoreError>) -> Self {
        let (report, no_answer) = match answer {
            Ok(_) => ("the store accepts the request".to_owned(), None),
            Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_))) => {
                (format!("the store reports: {error}"), Some(error.clone()))
            }
            Err(error) => (format!("the store reports: {error}"), None),
        };
        Self { found: format!("{found}: {report}"), no_answer, at: Location::caller() }
    }
}

/// The result of a case, or of a step of a case.
pub type Verdict<T = ()> = Result<T, Finding>;

/// Ends a case with a finding if the condition does not hold. If no message is given, the finding contains the
/// condition.
macro_rules! ensure {
    ($condition:expr $(,)?) => { ensure!($condition, "not true: {}", stringify!($condition)) };
    ($condition:expr, $($found:tt)+) => {
        if !$condition {
            return Err($crate::conformance::bench::Finding::broken(format!($($found)+)));
        }
    };
}

/// Ends a case with a finding if the two values differ. If no message is given, the finding contains the first
/// expression.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr $(,)?) => { ensure_eq!($found, $expected, "`{}`", stringify!($found)) };
    ($found:expr, $expected:expr, $($what:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                ensure!(*found == *expected, "{}: {found:?} instead of {expected:?}", format_args!($($what)+));
            }
        }
    };
}

pub(super) use {ensure, ensure_eq};

/// Checks the answer to a request. `what` describes the request in the finding.
pub trait Expect<T>: Sized {
    /// Returns the value of the answer, which must not be an error.
    ///
    /// # Errors
    /// Returns a finding if the answer is an error. All methods of this trait return a finding if the answer is not the
    /// expected one.
    fn accepted(self, what: impl Display) -> Verdict<T>;
    /// Expects that the lease is lost.
    fn lost(self, what: impl Display) -> Verdict;
    /// Expects that another id holds the lease.
    fn held(self, what: impl Display) -> Verdict;
    /// Expects a conflict: the `condition` of the request does not hold.
    fn conflict(self, what: impl Display, condition: &str) -> Verdict;
}

impl<T> Expect<T> for Result<T, StoreError> {
    #[track_caller]
    fn accepted(self, what: impl Display) -> Verdict<T> {
        match self {
            Ok(value) => Ok(value),
            Err(_) => Err(Finding::answered(format_args!("{what} failed"), &self)),
        }
    }

    #[track_caller]
    fn lost(self, what: impl Display) -> Verdict {
        let is_lost = matches!(self, Err(StoreError::Lost(_)));
        refused(is_lost, &self, format_args!("{what} did not fail with \"lease lost\""))
    }

    #[track_caller]
    fn held(self, what: impl Display) -> Verdict {
        let is_held = matches!(self, Err(StoreError::Held));
        refused(is_held, &self, format_args!("{what} did not fail with \"lease held\""))
    }

    #[track_caller]
    fn conflict(self, what: impl Display, condition: &str) -> Verdict {
        let is_conflict = matches!(self, Err(StoreError::Conflict));
        refused(is_conflict, &self, format_args!("{what} did not fail with a conflict ({condition})"))
    }
}

#[track_caller]
fn refused<T>(is_expected: bool, answer: &Result<T, StoreError>, found: impl Display) -> Verdict {
    if is_expected { Ok(()) } else { Err(Finding::answered(found, answer)) }
}

#[track_caller]
pub(super) fn version_of(what: impl Display, answer: Result<Reply, StoreError>) -> Verdict<Version> {
    match answer.accepted(&what)? {
        Reply::Version(version) => Ok(version),
        other => Err(Finding::broken(format!("{what} returned no version: {other:?}"))),
    }
}

/// The passage of time on a store's clock.
#[async_trait]
pub trait Passage: Send + Sync {
    /// Waits until `time` has passed.
    async fn wait_out(&self, time: Duration);

    /// Returns the time on the store's clock, or `None` if the store uses a real clock.
    fn set_time(&self) -> Option<Duration> {
        None
    }
}

/// An election under test, whose name no other client knows.
pub struct Bench {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The election.
    pub election: ElectionName,
    /// Length of a lease in the cases. The cases wait for leases to end, so the length is short. A slow machine must
    /// still be able to send several requests before the lease ends.
    pub length: Duration,
    /// Additional time to wait for a lease that should have ended. If the lease is still held then, it counts as
    /// endless.
    pub patience: Duration,
    /// The lease ids of three hosts.
    pub ids: [LeaseId; 3],
    /// The record to write. Each write sets its own term.
    pub record: Record,
    /// Makes a case wait on the store's clock.
    pub passage: Arc<dyn Passage>,
    clock: Clock,
    /// The time at which the lease's last acquire or renewal was sent, and the lease's length.
    held: Mutex<Option<(Time, Duration)>>,
    is_late: AtomicBool,
    pub(super) lease_end: OnceLock<LeaseEnd>,
}

/// The end of a lease in the store, relative to its expiry on the holder's clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseEnd {
    /// Time from the expiry to another client's last attempt to acquire the lease that the store refused.
    pub held_for: Duration,
    /// Time from the expiry to another client's successful attempt to acquire the lease.
    pub free_within: Duration,
    /// True if the machine polled often enough for a precise measurement.
    pub is_precise: bool,
}

/// The lease and the record of the election under test, as a read has returned them.
pub struct Seen {
    /// The state of the lease.
    pub lease: LeaseState,
    /// The version of the record.
    pub version: Version,
    /// The record; `None` if another client created the object.
    pub record: Option<Record>,
}

impl Bench {
    /// Creates a bench for an election. The records that the bench writes are copies of `record` with other terms.
    pub fn new(
        store: Arc<dyn Store>,
        election: ElectionName,
        length: Duration,
        ids: [LeaseId; 3],
        record: Record,
        passage: Arc<dyn Passage>,
    ) -> Self {
        Self {
            store,
            election,
            length,
            patience: Duration::ZERO,
            ids,
            record,
            passage,
            clock: Clock::default(),
            held: Mutex::default(),
            is_late: AtomicBool::default(),
            lease_end: OnceLock::new(),
        }
    }

    /// True if a lease may have expired, by the holder's clock, while the case still relied on the lease. The machine
    /// or the store was then too slow, and the verdict proves nothing.
    pub fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// Returns the measurement made by the case `renewed_lease_lasts_for_its_length`, if the case has passed.
    pub fn lease_end(&self) -> Option<&LeaseEnd> {
        self.lease_end.get()
    }

    /// Returns the time on this bench's clock. Less time may have passed: the clock is an upper bound.
    pub fn now(&self) -> Time {
        self.passage.set_time().map_or_else(|| self.clock.now(), Time)
    }

    /// Returns a lower bound on the time that has passed on this bench's clock.
    pub(super) fn least(&self) -> Duration {
        self.passage.set_time().unwrap_or_else(|| self.clock.least())
    }

    /// Waits until `time` has passed. The lease may expire during the wait, so the case must not rely on the lease
    /// afterwards.
    pub async fn wait_out(&self, time: Duration) {
        *self.held() = None;
        self.passage.wait_out(time).await;
    }

    fn held(&self) -> MutexGuard<'_, Option<(Time, Duration)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record to write for this term.
    pub fn record(&self, term: u64) -> Record {
        Record { term, ..self.record.clone() }
    }

    /// Sends a request. Also notes if the lease may have expired before the answer arrived; see [`Self::is_late`].
    pub async fn ask(&self, op: Op) -> Result<Reply, StoreError> {
        let sent = self.now();
        let answer = self.store.request(&self.election, op.clone()).await;
        let answered = self.now();
        let mut held = self.held();
        // Leave a margin of 1% for the difference between the clocks of the store and of this machine.
        if held.is_some_and(|(since, length)| answered.since(since) >= length * 99 / 100) {
            self.is_late.store(true, Ordering::Relaxed);
        }
        match op {
            _ if answer.is_err() => {}
            Op::Acquire { length, .. } => *held = Some((sent, length)),
            Op::Renew { .. } | Op::Reclaim { .. } => *held = held.map(|(_, length)| (sent, length)),
            Op::Release { .. } => *held = None,
            _ => {}
        }
        answer
    }

    /// Reads the election's lease and record, which must exist. Also checks that a survey returns the same lease and
    /// record, unless the survey cannot read the terms in the election's other objects.
    pub async fn see(&self) -> Verdict<Seen> {
        let read = self.ask(Op::Read).await;
        let surveyed = self.ask(Op::Survey).await;
        // Compare the read and the survey only if a second read returns the same result as the first. Otherwise, the
        // lease may have expired in between.
        if self.ask(Op::Read).await == read {
            match surveyed {
                Ok(Reply::Surveyed { read: surveyed, .. }) => {
                    ensure_eq!(Ok(Reply::Read(surveyed)), read, "a survey found another object than a read");
                }
                Err(StoreError::Misconfigured(_)) => {}
                other => drop(other.accepted("a survey")?),
            }
        }
        match read.accepted("a read of the record")? {
            Reply::Read(Snapshot::Object { lease, version, record }) => Ok(Seen { lease, version, record }),
            other => Err(Finding::broken(format!("cannot read the record that was created: {other:?}"))),
        }
    }

    /// Creates the record, or replaces it if it exists. Afterwards, the lease is free.
    pub async fn create(&self) -> Verdict<Version> {
        let record = self.record(0);
        if self.ask(Op::Read).await.accepted("a read of the record")? == Reply::Read(Snapshot::Nothing) {
            return version_of("the creation of a record", self.ask(Op::Create { record }).await);
        }
        match self.break_now().await {
            Err(StoreError::Lost(_)) => {}
            answer => answer.accepted("a break of the lease")?,
        }
        self.store
            .overwrite(&self.election, record)
            .await
            .accepted("a write of the record while nobody holds its lease")
    }

    /// Breaks the lease.
    pub async fn break_now(&self) -> Result<(), StoreError> {
        *self.held() = None;
        self.store.break_now(&self.election).await
    }

    /// Reads the object's current version, and acquires the lease if the object still has that version.
    pub async fn acquire(&self, id: LeaseId) -> Result<Reply, StoreError> {
        match self.ask(Op::Read).await? {
            Reply::Read(Snapshot::Object { version, .. }) => self.acquire_at(id, &version).await,
            _ => Err(StoreError::Lost("there is no record".to_owned())),
        }
    }

    /// Acquires the lease if the object has this version.
    pub async fn acquire_at(&self, id: LeaseId, version: &Version) -> Result<Reply, StoreError> {
        self.ask(Op::Acquire { id, length: self.length, version: version.clone(), instead_of: None }).await
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

    /// Replaces this version of the record with the record for `term`.
    pub async fn write(&self, id: LeaseId, version: &Version, term: u64) -> Result<Reply, StoreError> {
        self.ask(Op::Write { id, version: version.clone(), record: self.record(term) }).await
    }

    /// Creates the record and acquires its lease.
    pub async fn held_by(&self, id: LeaseId) -> Verdict<Version> {
        let version = self.create().await?;
        self.acquire_at(id, &version).await.accepted("an acquire of a free lease")?;
        Ok(version)
    }

    /// Waits until a lease that has just been acquired or renewed has expired.
    pub async fn outlive(&self) -> Verdict {
        self.wait_out(self.length).await;
        let gives_up = self.least() + self.patience;
        let mut seen = self.see().await?;
        while seen.lease == LeaseState::Held && self.least() < gives_up {
            self.wait_out(POLL).await;
            seen = self.see().await?;
        }
        ensure_eq!(seen.lease, LeaseState::Expired, "a lease that was not renewed for {:?}", self.length);
        Ok(())
    }
}
