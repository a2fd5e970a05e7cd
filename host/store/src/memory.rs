//! A store in this process's memory, for tests and `baton dev`. A test can set the time and inject faults.
//!
//! The store follows the rules of [`lease`](crate::lease), and passes the conformance suite like any other store.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Recalled, Record, Reply, StoreError, Version};
use bytes::Bytes;
use time::OffsetDateTime;

use super::lease::{LeaseObject, apply, overwrite, removable};
use super::{LeaseStore, check_length, recall};
use crate::{Listed, Listing, ObjectStore, OperatorStore, PlainObject, Reading, VersionedObject};
use baton_base::clock::TimeSource;

/// The shortest and the longest lease of a [`MemoryStore`].
pub const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A fault that affects one request. The caller always gets [`StoreError::Unknown`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request never arrives.
    LoseRequest,
    /// The request is carried out, but its answer is lost.
    LoseAnswer,
    /// The request arrives only at the next call to [`MemoryStore::deliver`] or [`MemoryStore::deliver_writes`].
    Hold,
}

/// A store in memory. Clones share the store.
///
/// # Example
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use baton_election::{ElectionName, Op, Reply, Snapshot, StoreError};
/// use baton_store::{LeaseStore, MemoryStore, ObjectStore, VersionedObject};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
/// let election = ElectionName::new("nightly-report")?;
/// assert_eq!(store.request(&election, Op::Read).await?, Reply::Read(Snapshot::Nothing));
///
/// // Every change of an object names the version that it replaces; here, the object must not exist yet.
/// let version = store.write(VersionedObject::State, &election, None, "1".into()).await?;
/// let conflict = store.write(VersionedObject::State, &election, None, "2".into()).await;
/// assert_eq!(conflict, Err(StoreError::Conflict));
/// store.write(VersionedObject::State, &election, Some(&version), "2".into()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    clock: TimeSource,
    state: Arc<Mutex<State>>,
}

impl MemoryStore {
    /// Creates an empty store that measures leases with `clock`.
    pub fn new(clock: TimeSource) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// Injects a fault into the next request. Several calls affect several requests, in order.
    pub fn fail_next(&self, fault: Fault) {
        self.state().faults.push_back(fault);
    }

    /// Carries out the held requests in order, and returns the answers that their callers did not get.
    pub fn deliver(&self) -> Vec<Result<Reply, StoreError>> {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held);
        held.into_iter().map(|(election, op)| state.carry_out(election, op, (self.clock)())).collect()
    }

    /// Carries out the held writes of versioned objects in order, and returns their answers.
    pub fn deliver_writes(&self) -> Vec<Result<Version, StoreError>> {
        let mut state = self.state();
        let held = std::mem::take(&mut state.held_writes);
        held.into_iter().map(|write| state.save(write)).collect()
    }

    /// Breaks the lease of `election` after `period`, or when the lease would have expired, whichever is earlier. If
    /// `period` is zero, breaks the lease at once.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease to break.
    pub fn break_lease(&self, election: &ElectionName, period: Duration) -> Result<(), StoreError> {
        let mut state = self.state();
        let now = (self.clock)();
        let Some(object) = state.objects.get_mut(election) else {
            return Err(StoreError::Lost("there is no lease to break".to_owned()));
        };
        object.row.lease.break_after(period, now.saturating_sub(object.changed))?;
        object.changed = now;
        Ok(())
    }

    /// Deletes an election's lease and record, even if the lease is held. Does nothing if the election does not exist.
    pub fn delete(&self, election: &ElectionName) {
        self.state().objects.remove(election);
    }

    fn write_or_fail(&self, write: Write) -> Result<Version, StoreError> {
        let mut state = self.state();
        match state.faults.pop_front() {
            None => return state.save(write),
            Some(Fault::LoseRequest) => {}
            Some(Fault::LoseAnswer) => drop(state.save(write)),
            Some(Fault::Hold) => state.held_writes.push(write),
        }
        Err(StoreError::Unknown("the request or its response was lost".to_owned()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // If the lock is poisoned, another thread has panicked and reports the failure.
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
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        if let Op::Acquire { length, .. } = &op {
            check_length(*length, LEASE_RANGE, &"memory")?;
        }
        let mut state = self.state();
        match state.faults.pop_front() {
            None => return state.carry_out(election.clone(), op, (self.clock)()),
            Some(Fault::LoseRequest) => {}
            Some(Fault::LoseAnswer) => drop(state.carry_out(election.clone(), op, (self.clock)())),
            Some(Fault::Hold) => state.held.push((election.clone(), op)),
        }
        Err(StoreError::Unknown("the request or its response was lost".to_owned()))
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.break_lease(election, Duration::ZERO)
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        Ok(self.state().objects.keys().cloned().collect())
    }

    async fn create(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn lease_range(&self) -> (Duration, Duration) {
        LEASE_RANGE
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        Ok(match self.state().versioned.get(&place(object, election)) {
            None => Reading::Nothing,
            Some((version, _)) if Some(version) == known => Reading::Unchanged,
            Some((version, content)) => Reading::Found(version.clone(), content.clone()),
        })
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        self.write_or_fail(Write { place: place(object, election), version: version.cloned(), content })
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        let place = place(object, election);
        match state.versioned.get(&place) {
            Some((found, _)) if found != version => Err(StoreError::Conflict),
            _ => {
                state.versioned.remove(&place);
                Ok(())
            }
        }
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        let state = self.state();
        let places = state.versioned.keys().filter(|(kept, _)| *kept == object);
        Ok(places.map(|(_, election)| election.clone()).collect())
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        let now = (self.clock)();
        let mut state = self.state();
        match (object, state.plain.get_mut(object)) {
            (PlainObject::Module(_), Some((put, _))) => *put = now,
            _ => drop(state.plain.insert(object.clone(), (now, content))),
        }
        Ok(())
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.state().plain.get(object).map(|(_, content)| content.slice(..content.len().min(limit))))
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        let is_listed = |object: &PlainObject| match (object, listing) {
            (PlainObject::Announcement(election, _), Listing::Announcements(of)) => election.group() == of.group(),
            (PlainObject::Module(_), Listing::Modules) => true,
            _ => false,
        };
        let state = self.state();
        let listed = state.plain.iter().filter(|(object, _)| is_listed(object)).map(|(object, (put, content))| {
            Listed { object: object.clone(), size: content.len() as u64, put: Some(OffsetDateTime::UNIX_EPOCH + *put) }
        });
        Ok(listed.collect())
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        let is_later = |put: Duration| put_until.is_some_and(|until| OffsetDateTime::UNIX_EPOCH + put > until);
        let mut state = self.state();
        let stays = state.plain.get(object).is_some_and(|(put, _)| is_later(*put));
        if !stays {
            state.plain.remove(object);
        }
        Ok(!stays)
    }
}

#[async_trait]
impl OperatorStore for MemoryStore {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        self.state().change(election, (self.clock)(), |object, elapsed, next| overwrite(object, record, elapsed, next))
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        let mut state = self.state();
        state.change(election, (self.clock)(), |object, elapsed, _| {
            removable(object, elapsed)?;
            *object = None;
            Ok(())
        })?;
        state.versioned.retain(|(_, of), _| of != election);
        Ok(())
    }
}

/// The place of an election's object. The shards of a group share some objects.
fn place(object: VersionedObject, election: &ElectionName) -> (VersionedObject, ElectionName) {
    let is_own = object.owner(election) == election.as_str();
    (object, if is_own { election.clone() } else { election.without_shard() })
}

struct Write {
    place: (VersionedObject, ElectionName),
    version: Option<Version>,
    content: Bytes,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ElectionName, Object>,
    versioned: BTreeMap<(VersionedObject, ElectionName), (Version, Bytes)>,
    held_writes: Vec<Write>,
    /// The modules and announcements, each with its content and the time at which it was stored.
    plain: BTreeMap<PlainObject, (Duration, Bytes)>,
    versions: u64,
    faults: VecDeque<Fault>,
    held: Vec<(ElectionName, Op)>,
}

struct Object {
    row: LeaseObject,
    changed: Duration,
}

impl State {
    fn save(&mut self, Write { place, version, content }: Write) -> Result<Version, StoreError> {
        if self.versioned.get(&place).map(|(version, _)| version) != version.as_ref() {
            return Err(StoreError::Conflict);
        }
        self.versions += 1;
        let next = Version(format!("v{}", self.versions));
        self.versioned.insert(place, (next.clone(), content));
        Ok(next)
    }

    fn carry_out(&mut self, election: ElectionName, op: Op, now: Duration) -> Result<Reply, StoreError> {
        let reply = self.change(&election, now, |object, elapsed, next| apply(object, op, elapsed, next))?;
        let steering = place(VersionedObject::Steering, &election);
        reply.completed(
            |recalled| self.recall(election, recalled),
            || Ok(self.versioned.get(&steering).map(|(version, _)| version.clone())),
        )
    }

    /// Calls `step`, which may change an election's object. `step` receives the time since the lease last changed, and
    /// a new version.
    fn change<T>(
        &mut self,
        election: &ElectionName,
        now: Duration,
        step: impl FnOnce(&mut Option<LeaseObject>, Duration, Version) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.versions += 1;
        let next = Version(format!("v{}", self.versions));
        let before = self.objects.remove(election);
        let changed = before.as_ref().map_or(now, |object| object.changed);
        let changes = before.as_ref().map(|object| object.row.lease.changes);
        let mut row = before.map(|object| object.row);
        let answer = step(&mut row, now.saturating_sub(changed), next);
        if let Some(row) = row {
            let changed = if changes == Some(row.lease.changes) { changed } else { now };
            self.objects.insert(election.clone(), Object { row, changed });
        }
        answer
    }

    fn recall(&self, election: ElectionName, recalled: &mut Recalled) -> Result<(), StoreError> {
        let said = self
            .plain
            .iter()
            .filter(|(object, _)| matches!(object, PlainObject::Announcement(of, _) if of.group() == election.group()));
        let said = said.map(|(_, (_, content))| recall::announced(content, &election));
        let state = self.versioned.get(&(VersionedObject::State, election.clone())).map(|(_, content)| &content[..]);
        recall::add(recalled, state, said)
    }
}
