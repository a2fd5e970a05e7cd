//! The election that is tried: its name is random, nobody else uses it, and it is removed in the end.
//!
//! A verdict about a lease must hold on any machine, however busy: whatever is asked of the holder's time is compared
//! with the clock by which a holder judges itself ([`Clock::now`]), from before its last renewal was sent. If that does
//! not show that the lease had to be held, nothing is said, and the check begins anew.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, LeaseId, LeaseState, Op, Record, Reply, Snapshot, StoreError, Time, Version};
use tokio::sync::watch;
use tokio::time::timeout;

use baton_store::clock::{Clock, wall};
use baton_store::{PlainObject, Store};

/// How long one answer is waited for. The elector itself gives a try up after 2 s at the latest.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often the store is asked where it learns nothing, and how long is waited in between.
const TRIES: u32 = 2;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// The shortest lease that is tried, where the store keeps shorter ones: several requests have to fit into it.
const SHORTEST: Duration = Duration::from_secs(3);
/// How long the end waits for the removal.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);

/// The election, on a store.
#[derive(Clone)]
pub(super) struct Scratch {
    pub store: Arc<dyn Store>,
    pub election: ElectionName,
    /// How long its leases last.
    pub length: Duration,
    pub clock: Clock,
    /// When it was begun, by the wall clock.
    since: Duration,
    ended: Arc<watch::Sender<bool>>,
}

/// Why a check tells nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Untold {
    /// The store does not answer, or refuses.
    Store(StoreError),
    /// The store is not as it must be for this check to begin.
    Odd(String),
    /// The lease may have run out meanwhile, by its holder's count.
    Slow,
    /// The command is told to end.
    Ended,
}

/// An answer, and between which moments it was given.
pub(super) struct Answer<T> {
    pub result: Result<T, StoreError>,
    pub sent: Time,
    pub answered: Time,
}

/// A lease that was taken.
#[derive(Clone)]
pub(super) struct Held {
    pub id: LeaseId,
    pub version: Version,
    /// When its last acquire or renewal was sent, and answered.
    pub sent: Time,
    pub answered: Time,
}

/// What is read.
pub(super) struct Seen {
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
        // Such a name is one.
        let election = ElectionName::new(&name).map_err(|_| getrandom::Error::UNEXPECTED)?;
        let length = store.lease_range().0.max(SHORTEST);
        let since = Duration::from_secs(wall().as_secs());
        Ok(Self { store, election, length, clock: Clock::default(), since, ended: Arc::default() })
    }

    /// Lets nothing more be asked but to remove it. What is under way goes on to its answer.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits, unless all is to end.
    pub async fn sleep(&self, time: Duration) -> Result<(), Untold> {
        // The sender lives as long as this.
        match timeout(time, self.ended.subscribe().wait_for(|ended| *ended)).await {
            Ok(_) => Err(Untold::Ended),
            Err(_) => Ok(()),
        }
    }

    /// Asks until the store says something. What may have been written or given up is not asked for again.
    pub async fn ask(&self, op: Op) -> Result<Answer<Reply>, Untold> {
        let once = matches!(op, Op::Write { .. } | Op::Create { .. } | Op::Release { .. });
        let tries = if once { 1 } else { TRIES };
        self.tried(tries, async || self.store.request(&self.election, op.clone()).await).await
    }

    /// The same for any request.
    pub async fn tried<T>(
        &self,
        tries: u32,
        request: impl AsyncFn() -> Result<T, StoreError>,
    ) -> Result<Answer<T>, Untold> {
        self.tried_within(ANSWER_WITHIN, tries, request).await
    }

    /// The same for one that may take so long.
    pub async fn tried_within<T>(
        &self,
        within: Duration,
        tries: u32,
        request: impl AsyncFn() -> Result<T, StoreError>,
    ) -> Result<Answer<T>, Untold> {
        let mut left = tries;
        loop {
            if *self.ended.borrow() {
                return Err(Untold::Ended);
            }
            left -= 1;
            let sent = self.clock.now();
            let late = || Err(StoreError::Unknown(format!("no response within {within:?}")));
            let result = timeout(within, request()).await.unwrap_or_else(|_| late());
            let answered = self.clock.now();
            match result {
                Err(StoreError::Unknown(_)) if left > 0 => self.sleep(BETWEEN_TRIES).await?,
                Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_))) => {
                    return Err(Untold::Store(error));
                }
                result => return Ok(Answer { result, sent, answered }),
            }
        }
    }

    /// Reads the object, which must be there.
    pub async fn see(&self) -> Result<Seen, Untold> {
        let Answer { result, answered, .. } = self.ask(Op::Read).await?;
        match result {
            Ok(Reply::Read(Snapshot::Object { lease, version, record })) => {
                Ok(Seen { lease, version, record, answered })
            }
            other => Err(Untold::Odd(format!("cannot read the record that was created: {}", said(&other)))),
        }
    }

    /// Takes the lease under a new id, from whoever has it.
    pub async fn held(&self) -> Result<Held, Untold> {
        self.free().await?;
        let version = self.see().await?.version;
        let id = random_id()?;
        let Answer { result, sent, answered } = self.acquire(id, &version).await?;
        match result {
            Ok(_) => Ok(Held { id, version, sent, answered }),
            other => Err(Untold::Odd(format!("a broken lease cannot be acquired: {}", said(&other)))),
        }
    }

    /// Breaks the lease, if somebody has it.
    pub async fn free(&self) -> Result<(), Untold> {
        let broken = self.tried(TRIES, async || self.store.break_now(&self.election).await).await?;
        match broken.result {
            Ok(()) | Err(StoreError::Lost(_)) => Ok(()),
            other => Err(Untold::Odd(format!("the lease cannot be broken: {}", said(&other)))),
        }
    }

    pub async fn acquire(&self, id: LeaseId, version: &Version) -> Result<Answer<Reply>, Untold> {
        self.ask(Op::Acquire { id, length: self.length, version: version.clone(), instead_of: None }).await
    }

    /// Renews, and notes that.
    pub async fn renew(&self, held: &mut Held) -> Result<Result<Reply, StoreError>, Untold> {
        let Answer { result, sent, answered } = self.ask(Op::Renew { id: held.id }).await?;
        if result.is_ok() {
            (held.sent, held.answered) = (sent, answered);
        }
        Ok(result)
    }

    pub async fn write(&self, id: LeaseId, version: &Version, term: u64) -> Result<Answer<Reply>, Untold> {
        self.ask(Op::Write { id, version: version.clone(), record: self.record(term) }).await
    }

    /// A record that no election has.
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

    /// What a node says of itself there.
    pub fn announcement(&self) -> PlainObject {
        PlainObject::Announcement(self.election.clone(), "doctor".to_owned())
    }

    /// That the lease certainly had to be held when something was answered, with a hundredth for what clocks differ.
    pub fn still(&self, held: &Held, answered: Time) -> Result<(), Untold> {
        if answered.since(held.sent) < self.length * 99 / 100 { Ok(()) } else { Err(Untold::Slow) }
    }

    /// Removes all of it, and waits for that a bounded time.
    pub async fn remove(&self) -> Result<(), StoreError> {
        let removed = async {
            let mut answer = self.removed().await;
            for _ in 1..TRIES {
                match answer {
                    Err(StoreError::Unknown(_) | StoreError::Lost(_)) => tokio::time::sleep(BETWEEN_TRIES).await,
                    answer => return answer,
                }
                answer = self.removed().await;
            }
            answer
        };
        let late = || StoreError::Unknown(format!("no response within {REMOVED_WITHIN:?}"));
        timeout(REMOVED_WITHIN, removed).await.unwrap_or_else(|_| Err(late()))
    }

    async fn removed(&self) -> Result<(), StoreError> {
        // A lease that nobody holds cannot be broken, and need not be.
        let _ = self.store.break_now(&self.election).await;
        self.store.remove_election(&self.election).await?;
        self.store.remove(&self.announcement(), None).await.map(drop)
    }
}

/// The random id of one acquisition.
pub(super) fn random_id() -> Result<LeaseId, Untold> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| Untold::Odd(format!("cannot get random numbers from the system: {error}")))?;
    Ok(LeaseId::from_random(u128::from_le_bytes(bits)))
}

/// What an answer says, for people.
pub(super) fn said<T>(answer: &Result<T, StoreError>) -> String {
    match answer {
        Ok(_) => "the store accepts the request".to_owned(),
        Err(error) => format!("the store reports: {error}"),
    }
}
