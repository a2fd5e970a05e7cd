//! The test election. Its name is random, so nobody else uses it, and it is removed at the end.
//!
//! A verdict about a lease must be right on any machine, however busy. So the checks measure the holder's time with the
//! same clock as holders ([`Clock::now`]), starting before the last renewal was sent. If the lease may have expired by
//! that clock, the check gives no verdict and starts over.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, LeaseId, LeaseState, Op, Record, Reply, Snapshot, StoreError, Time, Version};
use tokio::sync::watch;
use tokio::time::timeout;

use baton_store::clock::{Clock, wall};
use baton_store::{PlainObject, Store};

/// Timeout for one response. The elector itself gives up after 2 s at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Number of attempts at a request while its outcome is unknown, and the pause between attempts.
const TRIES: u32 = 2;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Shortest lease for a test, even if the store permits shorter ones. Several requests must fit into the lease.
const SHORTEST: Duration = Duration::from_secs(3);
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Scratch {
    pub store: Arc<dyn Store>,
    pub election: ElectionName,
    pub length: Duration,
    pub clock: Clock,
    since: Duration,
    ended: Arc<watch::Sender<bool>>,
}

/// Reason why a check has no verdict.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NoVerdict {
    /// The store does not respond, or refuses the request.
    Store(StoreError),
    /// The store does not meet a precondition of the check.
    Odd(String),
    /// The lease may have expired during the check, by the holder's clock.
    Slow,
    /// A signal ended the command.
    Ended,
}

/// A response, with the times at which the request was sent and the response arrived.
pub(super) struct Answer<T> {
    pub result: Result<T, StoreError>,
    pub sent: Time,
    pub answered: Time,
}

#[derive(Clone)]
pub(super) struct Held {
    pub id: LeaseId,
    pub version: Version,
    /// The times at which the last acquisition or renewal was sent and its response arrived.
    pub sent: Time,
    pub answered: Time,
}

pub(super) struct ObjectState {
    pub lease: LeaseState,
    pub version: Version,
    pub record: Option<Record>,
    pub answered: Time,
}

impl Scratch {
    pub fn new(store: Arc<dyn Store>) -> Result<Self, getrandom::Error> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)?;
        let name = format!("doctor-{:016x}", u64::from_le_bytes(bits));
        let election = ElectionName::new(&name).map_err(|_| getrandom::Error::UNEXPECTED)?;
        let length = store.lease_range().0.max(SHORTEST);
        let since = Duration::from_secs(wall().as_secs());
        Ok(Self { store, election, length, clock: Clock::default(), since, ended: Arc::default() })
    }

    /// Makes new requests fail, except for the removal. Requests in flight continue.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Sleeps. Returns an error if the command ends in the meantime.
    pub async fn sleep(&self, time: Duration) -> Result<(), NoVerdict> {
        // The sender cannot be dropped while `self` is borrowed.
        match timeout(time, self.ended.subscribe().wait_for(|ended| *ended)).await {
            Ok(_) => Err(NoVerdict::Ended),
            Err(_) => Ok(()),
        }
    }

    /// Sends a request. Retries it while its outcome is unknown, except for writes and releases, which may already have
    /// taken effect.
    pub async fn ask(&self, op: Op) -> Result<Answer<Reply>, NoVerdict> {
        let once = matches!(op, Op::Write { .. } | Op::Create { .. } | Op::Release { .. });
        let tries = if once { 1 } else { TRIES };
        self.attempt(tries, async || self.store.request(&self.election, op.clone()).await).await
    }

    pub async fn attempt<T>(
        &self,
        tries: u32,
        request: impl AsyncFn() -> Result<T, StoreError>,
    ) -> Result<Answer<T>, NoVerdict> {
        self.attempt_within(ANSWER_WITHIN, tries, request).await
    }

    pub async fn attempt_within<T>(
        &self,
        within: Duration,
        tries: u32,
        request: impl AsyncFn() -> Result<T, StoreError>,
    ) -> Result<Answer<T>, NoVerdict> {
        let mut left = tries;
        loop {
            if *self.ended.borrow() {
                return Err(NoVerdict::Ended);
            }
            left -= 1;
            let sent = self.clock.now();
            let late = || Err(StoreError::Unknown(format!("no response within {within:?}")));
            let result = timeout(within, request()).await.unwrap_or_else(|_| late());
            let answered = self.clock.now();
            match result {
                Err(StoreError::Unknown(_)) if left > 0 => self.sleep(BETWEEN_TRIES).await?,
                Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_))) => {
                    return Err(NoVerdict::Store(error));
                }
                result => return Ok(Answer { result, sent, answered }),
            }
        }
    }

    /// Reads the lease and the record. The record must exist.
    pub async fn read_object(&self) -> Result<ObjectState, NoVerdict> {
        let Answer { result, answered, .. } = self.ask(Op::Read).await?;
        match result {
            Ok(Reply::Read(Snapshot::Object { lease, version, record })) => {
                Ok(ObjectState { lease, version, record, answered })
            }
            other => Err(NoVerdict::Odd(format!("cannot read the record that was created: {}", describe(&other)))),
        }
    }

    /// Acquires the lease under a new id. If the lease is held, breaks it first.
    pub async fn held(&self) -> Result<Held, NoVerdict> {
        self.free().await?;
        let version = self.read_object().await?.version;
        let id = random_id()?;
        let Answer { result, sent, answered } = self.acquire(id, &version).await?;
        match result {
            Ok(_) => Ok(Held { id, version, sent, answered }),
            other => Err(NoVerdict::Odd(format!("a broken lease cannot be acquired: {}", describe(&other)))),
        }
    }

    pub async fn free(&self) -> Result<(), NoVerdict> {
        let broken = self.attempt(TRIES, async || self.store.break_now(&self.election).await).await?;
        match broken.result {
            Ok(()) | Err(StoreError::Lost(_)) => Ok(()),
            other => Err(NoVerdict::Odd(format!("the lease cannot be broken: {}", describe(&other)))),
        }
    }

    pub async fn acquire(&self, id: LeaseId, version: &Version) -> Result<Answer<Reply>, NoVerdict> {
        self.ask(Op::Acquire { id, length: self.length, version: version.clone(), instead_of: None }).await
    }

    pub async fn renew(&self, held: &mut Held) -> Result<Result<Reply, StoreError>, NoVerdict> {
        let Answer { result, sent, answered } = self.ask(Op::Renew { id: held.id }).await?;
        if result.is_ok() {
            (held.sent, held.answered) = (sent, answered);
        }
        Ok(result)
    }

    pub async fn write(&self, id: LeaseId, version: &Version, term: u64) -> Result<Answer<Reply>, NoVerdict> {
        self.ask(Op::Write { id, version: version.clone(), record: self.record(term) }).await
    }

    pub fn record(&self, term: u64) -> Record {
        Record {
            term,
            node: Some("doctor".to_owned()),
            incarnation: format!("doctor-{term}"),
            since: self.since,
            lease: self.length,
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            rests_until: None,
        }
    }

    pub fn announcement(&self) -> PlainObject {
        PlainObject::Announcement(self.election.clone(), "doctor".to_owned())
    }

    /// Fails unless the lease was certainly held at `answered`. Allows 1% for differences between the clocks.
    pub fn ensure_held(&self, held: &Held, answered: Time) -> Result<(), NoVerdict> {
        if answered.since(held.sent) < self.length * 99 / 100 { Ok(()) } else { Err(NoVerdict::Slow) }
    }

    /// Removes all objects of the election. Takes a limited time.
    pub async fn remove(&self) -> Result<(), StoreError> {
        let attempts = async {
            let mut answer = self.try_remove().await;
            for _ in 1..TRIES {
                match answer {
                    Err(StoreError::Unknown(_) | StoreError::Lost(_)) => tokio::time::sleep(BETWEEN_TRIES).await,
                    answer => return answer,
                }
                answer = self.try_remove().await;
            }
            answer
        };
        let late = || StoreError::Unknown(format!("no response within {REMOVED_WITHIN:?}"));
        timeout(REMOVED_WITHIN, attempts).await.unwrap_or_else(|_| Err(late()))
    }

    async fn try_remove(&self) -> Result<(), StoreError> {
        // Breaking the lease fails if nobody holds it, which is fine.
        let _ = self.store.break_now(&self.election).await;
        self.store.remove_election(&self.election).await?;
        self.store.remove(&self.announcement(), None).await.map(drop)
    }
}

pub(super) fn random_id() -> Result<LeaseId, NoVerdict> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| NoVerdict::Odd(format!("cannot get random numbers from the system: {error}")))?;
    Ok(LeaseId::from_random(u128::from_le_bytes(bits)))
}

pub(super) fn describe<T>(answer: &Result<T, StoreError>) -> String {
    match answer {
        Ok(_) => "the store accepts the request".to_owned(),
        Err(error) => format!("the store reports: {error}"),
    }
}
