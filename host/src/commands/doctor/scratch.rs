//! Creates test elections with random names, so that no other client uses these elections. The command removes them at
//! the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, Op, Record, StoreError, Time};
use tokio::sync::watch;
use tokio::time::timeout;

use baton_base::clock::{Clock, wall};
use baton_store::conformance::{Bench, NODE, Passage};
use baton_store::{Intercept, Interceptor, PlainObject, Store, StoreAnswer, StoreCall};

/// Timeout for a single response, longer than the elector's timeout, which is at most 2 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const LISTED_WITHIN: Duration = Duration::from_secs(60);
/// Pause before retrying a request whose outcome is unknown.
const BETWEEN_TRIES: Duration = Duration::from_millis(200);
/// Number of attempts to remove the elections, and the timeout for all attempts together.
const REMOVAL_TRIES: u32 = 2;
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// Shortest lease for a test, even if the store permits shorter leases. Several requests must fit into the duration of
/// the lease.
const SHORTEST: Duration = Duration::from_secs(3);
/// Maximum number of requests and maximum time for all checks together. Each limit is several times what the checks
/// need on a slow store.
const MOST_REQUESTS: u32 = 5_000;
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(super) struct Scratch {
    /// The store, with the limits of [`Patience`]. All requests fail once the command ends or a limit is reached.
    pub store: Arc<dyn Store>,
    pub elections: Vec<ElectionName>,
    pub length: Duration,
    raw: Arc<dyn Store>,
    since: Duration,
    ended: Arc<watch::Sender<bool>>,
}

impl Scratch {
    pub fn new(store: Arc<dyn Store>, count: usize) -> Result<Self, getrandom::Error> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)?;
        let name = format!("doctor-{:016x}", u64::from_le_bytes(bits));
        let names = (0..count).map(|n| if n == 0 { name.clone() } else { format!("{name}-{n}") });
        let elections = names.map(|name| ElectionName::new(&name).map_err(|_| getrandom::Error::UNEXPECTED));
        let ended: Arc<watch::Sender<bool>> = Arc::default();
        let clock = Clock::default();
        let began = clock.now();
        let patience = Patience { ended: Arc::clone(&ended), requests: AtomicU32::new(0), clock, began };
        Ok(Self {
            store: Arc::new(Intercept { store: Arc::clone(&store), interceptor: patience }),
            elections: elections.collect::<Result<_, _>>()?,
            length: store.lease_range().0.max(SHORTEST),
            raw: store,
            since: Duration::from_secs(wall().as_secs()),
            ended,
        })
    }

    /// Makes new requests fail, except the requests that remove the test elections. Requests in flight continue.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub fn bench(&self, election: &ElectionName) -> Result<Bench, getrandom::Error> {
        let mut ids = [LeaseId::from_random(0); 3];
        for id in &mut ids {
            let mut bits = [0; 16];
            getrandom::fill(&mut bits)?;
            *id = LeaseId::from_random(u128::from_le_bytes(bits));
        }
        let (store, passage) = (Arc::clone(&self.store), Arc::new(self.clone()));
        let mut bench = Bench::new(store, election.clone(), self.length, ids, self.record(), passage);
        bench.patience = self.length * 2;
        Ok(bench)
    }

    pub fn record(&self) -> Record {
        Record {
            term: 0,
            node: Some("doctor".to_owned()),
            incarnation: "doctor".to_owned(),
            since: self.since,
            lease: self.length,
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        }
    }

    pub async fn remove(&self) -> Result<(), StoreError> {
        let attempts = async {
            let mut left = REMOVAL_TRIES;
            loop {
                left -= 1;
                match futures::future::try_join_all(self.elections.iter().map(|name| self.try_remove(name))).await {
                    Err(StoreError::Unknown(_) | StoreError::Lost(_)) if left > 0 => {
                        tokio::time::sleep(BETWEEN_TRIES).await;
                    }
                    answer => return answer.map(drop),
                }
            }
        };
        let late = || StoreError::Unknown(format!("no response within {REMOVED_WITHIN:?}"));
        timeout(REMOVED_WITHIN, attempts).await.unwrap_or_else(|_| Err(late()))
    }

    async fn try_remove(&self, election: &ElectionName) -> Result<(), StoreError> {
        // Ignore errors: breaking the lease fails if no client holds it.
        let _ = self.raw.break_now(election).await;
        self.raw.remove_election(election).await?;
        let announcement = PlainObject::Announcement(election.clone(), NODE.to_owned());
        self.raw.remove(&announcement, None).await.map(drop)
    }
}

#[async_trait]
impl Passage for Scratch {
    /// Sleeps for this time, or until the command ends.
    async fn wait_out(&self, time: Duration) {
        sleep(&self.ended, time).await;
    }
}

async fn sleep(ended: &watch::Sender<bool>, time: Duration) {
    // Ignore the result: a timeout only means that the command has not ended.
    let _ = timeout(time, ended.subscribe().wait_for(|ended| *ended)).await;
}

/// Limits the time of each request, and the number and the total time of all requests. Repeats a request once if its
/// outcome is unknown, but never repeats a request that writes, deletes or releases, or that lists the elections.
struct Patience {
    ended: Arc<watch::Sender<bool>>,
    requests: AtomicU32,
    clock: Clock,
    began: Time,
}

#[async_trait]
impl Interceptor<dyn Store> for Patience {
    async fn intercept(&self, call: StoreCall, store: &dyn Store) -> Result<StoreAnswer, StoreError> {
        let within = if call == StoreCall::Elections { LISTED_WITHIN } else { ANSWER_WITHIN };
        let mut tries = match &call {
            StoreCall::Request(_, Op::Write { .. } | Op::Create { .. } | Op::Release { .. })
            | StoreCall::Elections
            | StoreCall::Write { .. }
            | StoreCall::Delete { .. }
            | StoreCall::Overwrite(..)
            | StoreCall::RemoveElection(_) => 1,
            _ => 2,
        };
        loop {
            if *self.ended.borrow() {
                return Err(StoreError::Unknown("the command was interrupted".to_owned()));
            }
            let requests = self.requests.fetch_add(1, Ordering::Relaxed);
            let elapsed = self.clock.now().since(self.began);
            if requests >= MOST_REQUESTS || elapsed > LONGEST {
                return Err(StoreError::Unknown(format!(
                    "the checks have not ended after {requests} requests and {elapsed:.0?}"
                )));
            }
            tries -= 1;
            match timeout(within, call.clone().send(store)).await {
                Ok(Err(StoreError::Unknown(_))) | Err(_) if tries > 0 => sleep(&self.ended, BETWEEN_TRIES).await,
                Ok(answer) => return answer,
                Err(_) => return Err(StoreError::Unknown(format!("no response within {within:?}"))),
            }
        }
    }
}
