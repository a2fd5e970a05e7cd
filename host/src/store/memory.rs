//! A store in this process's memory, for tests: its time is the test's, and requests get lost on demand.
//!
//! It keeps leases by the same rules as the stores that keep them themselves, and passes the same
//! conformance suite, so what is shown with it holds for them too.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Refusal, Reply, Version};
use bytes::Bytes;

use super::lease::{Row, apply};
use super::{LeaseStore, check_length};
use crate::state::StateStore;

/// The shortest and the longest lease of a [`MemoryStore`].
pub const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Says what time it is, since some fixed moment. It must not go back.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// What becomes of one request. Whoever sent it learns nothing: the answer is [`Refusal::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It never arrives.
    LoseRequest,
    /// It is carried out and its answer does not arrive.
    LoseAnswer,
    /// It arrives when [`MemoryStore::deliver`] says so.
    Hold,
}

/// A store for the tests of one process. Clones are the same store.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Clock,
    state: Arc<Mutex<State>>,
}

impl MemoryStore {
    /// An empty store whose leases count by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// Lets the next request that has no fault yet meet this one.
    pub fn fail_next(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Carries out, in their order, all requests that were held, and returns what nobody was told.
    pub fn deliver(&self) -> Vec<Result<Reply, Refusal>> {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held);
        held.into_iter().map(|(election, op)| state.carry_out(election, op, (self.clock)())).collect()
    }

    /// The same for writes of state.
    pub fn deliver_writes(&self) -> Vec<Result<Version, Refusal>> {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held_writes);
        held.into_iter().map(|write| state.save(write)).collect()
    }

    /// Breaks the lease of `election`: at once if `period` is zero, else after `period` or when it ends
    /// by itself, if that is earlier.
    ///
    /// # Errors
    /// [`Refusal::Lost`] if there is no lease to break.
    pub fn break_lease(&self, election: &ElectionName, period: Duration) -> Result<(), Refusal> {
        let mut state = self.state();
        let now = (self.clock)();
        let Some(object) = state.objects.get_mut(election) else {
            return Err(Refusal::Lost("there is no lease to break".to_owned()));
        };
        object.row.lease.break_after(period, now.saturating_sub(object.changed))?;
        object.changed = now;
        Ok(())
    }

    /// Deletes an election with its lease and record, held or not. Harmless if there is none.
    pub fn delete(&self, election: &ElectionName) {
        self.state().objects.remove(election);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A step that panicked is a test that has failed already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, Refusal> {
        if let Op::Acquire { length, .. } = &op {
            check_length(*length, LEASE_RANGE, &"memory")?;
        }
        let mut state = self.state();
        match state.faults.pop_front() {
            None => return state.carry_out(election.clone(), op, (self.clock)()),
            Some(Fault::LoseRequest) => {}
            // That nobody learns the answer is the fault.
            Some(Fault::LoseAnswer) => drop(state.carry_out(election.clone(), op, (self.clock)())),
            Some(Fault::Hold) => state.held.push((election.clone(), op)),
        }
        Err(Refusal::Unknown("the request or its answer was lost".to_owned()))
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, Refusal> {
        Ok(self.state().objects.keys().cloned().collect())
    }

    async fn create(&self) -> Result<(), Refusal> {
        Ok(())
    }

    fn lease_range(&self) -> (Duration, Duration) {
        LEASE_RANGE
    }
}

#[async_trait]
impl StateStore for MemoryStore {
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal> {
        Ok(self.state().states.get(election).cloned())
    }

    async fn write(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        let write = StateWrite { election: election.clone(), version: version.cloned(), content };
        let mut state = self.state();
        match state.faults.pop_front() {
            None => return state.save(write),
            Some(Fault::LoseRequest) => {}
            Some(Fault::LoseAnswer) => drop(state.save(write)),
            Some(Fault::Hold) => state.held_writes.push(write),
        }
        Err(Refusal::Unknown("the request or its answer was lost".to_owned()))
    }
}

/// A conditional write of an election's state.
struct StateWrite {
    election: ElectionName,
    version: Option<Version>,
    content: Bytes,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ElectionName, Object>,
    states: BTreeMap<ElectionName, (Version, Bytes)>,
    held_writes: Vec<StateWrite>,
    versions: u64,
    faults: VecDeque<Fault>,
    held: Vec<(ElectionName, Op)>,
}

struct Object {
    row: Row,
    /// When its lease last changed.
    changed: Duration,
}

impl State {
    fn save(&mut self, StateWrite { election, version, content }: StateWrite) -> Result<Version, Refusal> {
        if self.states.get(&election).map(|(version, _)| version) != version.as_ref() {
            return Err(Refusal::Conflict);
        }
        self.versions += 1;
        let next = Version(format!("v{}", self.versions));
        self.states.insert(election, (next.clone(), content));
        Ok(next)
    }

    fn carry_out(&mut self, election: ElectionName, op: Op, now: Duration) -> Result<Reply, Refusal> {
        self.versions += 1;
        let next = Version(format!("v{}", self.versions));
        let before = self.objects.remove(&election);
        let changed = before.as_ref().map_or(now, |object| object.changed);
        let changes = before.as_ref().map(|object| object.row.lease.changes);
        let mut row = before.map(|object| object.row);
        let answer = apply(&mut row, op, now.saturating_sub(changed), next);
        if let Some(row) = row {
            let changed = if changes == Some(row.lease.changes) { changed } else { now };
            self.objects.insert(election, Object { row, changed });
        }
        answer
    }
}
