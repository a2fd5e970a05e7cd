//! The embedded store: a folder with SQLite files for the hosts on one machine. Nothing needs to be installed.
//!
//! `lease.db` holds the leases and their records, `state.db` the coordinators' state, `control.db` control and steering
//! objects, `history.db` the past terms, `modules.db` the modules, and `nodes/` the nodes' announcements.
//!
//! The store measures leases on the boot clock. All processes share this clock until the machine restarts, and nobody
//! can set it. A lease's stamp is the time of the lease's last change. A stamp is unusable if it is in the future, or
//! from another boot clock (before a reboot, or in another time namespace). The store then measures the lease from the
//! moment when it first saw the stamp, by a lower bound on the elapsed time.

mod announcements;
mod batch;
mod boot;
mod database;
mod file;
mod lock_holders;
mod moves;
mod objects;
mod operator;
mod readings;
mod renewals;
mod rights;
mod row;
pub(crate) mod untrusted;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, Op, Recalled, Reply, StoreError, Version};
use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::file_events::FileEvents;
use super::lease::{LeaseObject, apply};
use super::modules::LONGEST_ANNOUNCEMENT;
use super::witness::{self, Deaths, LockFile, LockFileId};
use super::{LeaseStore, VersionedObject, check_length, recall};
use announcements::Announcements;
pub use boot::BootClock;
use database::{Database, FILES, Intent, Step, files_in};
use moves::MoveWatch;
use readings::ReadCache;
use renewals::Renewals;
use row::Stamp;

/// Maximum number of requests for one election that run at the same time. The number is more than 1, so that a short
/// request does not have to wait for a long request. There is a limit because each attempt on a hung disk leaves a
/// blocked thread behind, and all these threads would continue at once when the disk recovers. Further requests wait
/// without a thread, and are not carried out if their caller has given up.
const LANES: usize = 4;

/// Timeout for a lease request that waits for another client's transaction. The timeout can be short: a transaction
/// takes only a few syncs of a tiny file, and the elector retries anyway.
const LEASES_BUSY: Duration = Duration::from_millis(100);

/// Timeout for a state request that waits for another client's transaction. A coordinator that commits continuously
/// leaves only short gaps, and an operator's request must find a gap. The timeout must also be shorter than the 2 s
/// after which a standby's recall times out, so that the error that names the lock's holder comes first.
const STATES_BUSY: Duration = Duration::from_millis(1500);

/// Timeout for a request for control objects, steering objects or history that waits for another client's transaction.
/// These objects have many readers and few writers.
const CONTROL_BUSY: Duration = STATES_BUSY;

/// Timeout for a request for modules that waits for another client's transaction. On a slow disk, another client may
/// need this long to write a large module. Commands have an even longer timeout, so that they can report this error.
const MODULES_BUSY: Duration = Duration::from_secs(8);

pub use super::url::SQLITE_LEASE_RANGE as LEASE_RANGE;
pub use rights::Exposure;

/// The store `sqlite:DIR`. Clones share the store. Needs a Tokio runtime: each request runs on one of the runtime's
/// blocking threads, on its own connection.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Databases>,
}

impl SqliteStore {
    /// Creates a handle to the store in the folder `dir`. Does not yet access the disk.
    pub fn new(dir: impl AsRef<Path>) -> Self {
        Self::with_boot(dir, BootClock::current())
    }

    /// True if the folder `dir` contains a database of a store.
    #[must_use]
    pub fn is_in(dir: impl AsRef<Path>) -> bool {
        files_in(dir.as_ref()).next().is_some()
    }

    /// Returns the missing parts of the store in the folder `dir`. Returns no parts if the lease database is missing as
    /// well: `create` creates this database last, so the store may not be complete yet.
    #[must_use]
    pub fn lost(dir: impl AsRef<Path>) -> Vec<PathBuf> {
        let [leases, others @ ..] = FILES.map(|name| dir.as_ref().join(name));
        let parts = others.into_iter().chain([dir.as_ref().join(announcements::FOLDER)]);
        if leases.exists() { parts.filter(|part| !part.exists()).collect() } else { Vec::new() }
    }

    /// Returns the part of the store in the folder `dir` that other users of the machine can access, if any.
    #[must_use]
    pub fn reached_by_others(dir: impl AsRef<Path>) -> Option<Exposure> {
        rights::reached_by_others(dir.as_ref())
    }

    /// Creates a handle to the store in the folder `dir`, with the given boot clock. Does not access the disk yet.
    pub fn with_boot(dir: impl AsRef<Path>, boot: BootClock) -> Self {
        Self::with(dir.as_ref(), boot, None)
    }

    /// Creates a handle to the store in the folder `dir` for the host that owns `lock_file`. The handle detects when a
    /// host that holds a lease has exited, and lets other hosts detect when this host has exited. Use it only for this
    /// host's own elections.
    pub fn with_lock_file(dir: impl AsRef<Path>, boot: BootClock, lock_file: Arc<LockFile>) -> Self {
        Self::with(dir.as_ref(), boot, Some(lock_file))
    }

    fn with(dir: &Path, boot: BootClock, lock_file: Option<Arc<LockFile>>) -> Self {
        // If the working directory no longer exists, a relative path stays as it is.
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let [leases, states, control, history, modules] = FILES.map(|name| dir.join(name));
        let asked = "the pushed versions, their results and the steering commands, such as a suspension";
        let leases = Database::new(leases, "the leases and their terms", row::SCHEMA, LEASES_BUSY);
        let states = Database::new(states, "the state that coordinators saved", objects::STATES_SCHEMA, STATES_BUSY);
        let control = Database::new(control, asked, objects::CONTROL_SCHEMA, CONTROL_BUSY);
        let history = Database::new(history, "the past terms", objects::HISTORY_SCHEMA, CONTROL_BUSY);
        let modules = Database::new(modules, "the modules", objects::MODULES_SCHEMA, MODULES_BUSY);
        // The watches for deaths and for moves share one inotify queue, because a user can have only a few queues.
        let events = Arc::<FileEvents>::default();
        Self {
            shared: Arc::new(Databases {
                leases,
                states,
                control,
                history,
                modules,
                announcements: Announcements::new(dir.join(announcements::FOLDER)),
                boot,
                witness: lock_file
                    .map(|own| Witness { own, deaths: Deaths::new(dir.join(witness::FOLDER), Arc::clone(&events)) }),
                watched: Mutex::default(),
                lanes: Mutex::default(),
                renewals: Renewals::default(),
                readings: ReadCache::default(),
                moves: MoveWatch::new(events),
                module_lane: Arc::new(Semaphore::new(LANES)),
                announcement_lane: Arc::new(Semaphore::new(LANES)),
            }),
        }
    }

    /// Breaks the lease of `election` on behalf of an operator. The break takes effect after `period`, or when the
    /// lease would have expired, whichever is earlier. Until then, no client can renew or acquire the lease.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease to break, or any error that a request can return.
    pub async fn break_lease(&self, election: &ElectionName, period: Duration) -> Result<(), StoreError> {
        let election = election.clone();
        self.blocking(move |shared| {
            shared.leases.transact(Intent::Write, |db| {
                shared.change(db, &election, |object, elapsed| match object {
                    Some(row) => Ok(row.lease.break_after(period, elapsed)),
                    None => Ok(Err(StoreError::Lost("there is no lease to break".to_owned()))),
                })
            })
        })
        .await
    }

    /// Deletes an election's lease and record, even if the lease is held. Does nothing if the election does not exist.
    ///
    /// # Errors
    /// Any error that a request can return.
    pub async fn delete(&self, election: &ElectionName) -> Result<(), StoreError> {
        let election = election.clone();
        self.blocking(move |shared| shared.leases.transact(Intent::Write, |db| row::delete(db, &election).map(Ok)))
            .await
    }

    async fn in_lane<T: Send + 'static>(
        &self,
        election: &ElectionName,
        work: impl FnOnce(&Databases) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.in_turn(self.shared.lane(election), work).await
    }

    fn module_lane(&self) -> Arc<Semaphore> {
        Arc::clone(&self.shared.module_lane)
    }

    /// Returns the semaphore that limits requests for announcements. The announcements of all elections share one
    /// semaphore, because a host reads many announcements at once, and these reads must not delay lease requests.
    fn announcement_lane(&self) -> Arc<Semaphore> {
        Arc::clone(&self.shared.announcement_lane)
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        lane: Arc<Semaphore>,
        work: impl FnOnce(&Databases) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // The thread keeps the permit even if the caller has given up. `acquire_owned` fails only if the semaphore is
        // closed, which never happens.
        let permit = lane.acquire_owned().await;
        self.blocking(move |shared| {
            let _permit = permit;
            work(shared)
        })
        .await
    }

    /// Runs `work` on a thread that may block. If the future is dropped, the work continues: by the store's contract, a
    /// dropped request may still take effect.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Databases) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(answer) => answer,
            Err(error) => Err(StoreError::Unknown(format!("the request to the store was cut off: {error}"))),
        }
    }
}

#[async_trait]
impl LeaseStore for SqliteStore {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        if let Op::Renew { id } = op {
            return self.renew(election, id).await;
        }
        let name = election.clone();
        self.in_lane(election, move |shared| shared.request(&name, op)).await
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.break_lease(election, Duration::ZERO).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.blocking(|shared| {
            shared.leases.transact(Intent::Read, |db| {
                let mut names = db.prepare_cached("SELECT election FROM lease ORDER BY election")?;
                elections(names.query_map([], |row| row.get(0))?).map(Ok)
            })
        })
        .await
    }

    async fn create(&self) -> Result<(), StoreError> {
        self.blocking(|shared| {
            // Create the lease database last: a node that can read leases must also be able to recall terms from the
            // other files. Create it even if another file could not be created.
            let others = [&shared.states, &shared.control, &shared.history, &shared.modules].map(Database::create);
            let announcements = shared.announcements.create();
            let leases = shared.leases.create();
            others.into_iter().chain([announcements, leases]).collect::<Result<(), _>>()?;
            shared.tidy_up();
            Ok(())
        })
        .await
    }

    async fn hint(&self, election: &ElectionName) {
        let a_death = async {
            match &self.shared.witness {
                Some(witness) => witness.deaths.next(election).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = a_death => {}
            () = self.leases_moved(election) => {}
        }
    }

    fn lease_range(&self) -> (Duration, Duration) {
        LEASE_RANGE
    }
}

struct Databases {
    leases: Database,
    states: Database,
    control: Database,
    history: Database,
    modules: Database,
    announcements: Announcements,
    boot: BootClock,
    witness: Option<Witness>,
    /// The leases whose stamps are unusable.
    watched: Mutex<HashMap<ElectionName, Watched>>,
    lanes: Mutex<HashMap<ElectionName, Arc<Semaphore>>>,
    renewals: Renewals,
    readings: ReadCache,
    moves: MoveWatch,
    module_lane: Arc<Semaphore>,
    announcement_lane: Arc<Semaphore>,
}

struct Witness {
    own: Arc<LockFile>,
    deaths: Deaths,
}

struct Watched {
    lease: (Stamp, Option<LeaseId>, u64),
    since: Duration,
}

impl Databases {
    fn lane(&self, election: &ElectionName) -> Arc<Semaphore> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lanes.entry(election.clone()).or_insert_with(|| Arc::new(Semaphore::new(LANES))))
    }

    fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        if let Op::Acquire { length, .. } = &op {
            check_length(*length, LEASE_RANGE, &self.leases)?;
        }
        let access = match op {
            Op::Read | Op::Recall | Op::Survey => Intent::Read,
            Op::Create { .. } | Op::Acquire { .. } => Intent::Write,
            Op::Reclaim { .. } | Op::Renew { .. } | Op::Write { .. } | Op::Release { .. } => Intent::Holder,
        };
        let reply = self.leases.transact(access, |db| self.apply(db, election, op))?;
        reply
            .completed(|recalled| self.recall(election, recalled), || self.version(VersionedObject::Steering, election))
    }

    fn apply(&self, db: &Connection, election: &ElectionName, op: Op) -> Step<Reply> {
        let next = match new_version() {
            Ok(next) => next,
            Err(error) => return Ok(Err(error)),
        };
        // Only a client that wants the lease needs to know whether the holder has exited.
        let asks = matches!(op, Op::Read | Op::Survey | Op::Acquire { .. });
        let noted = self.noted_for(&op);
        let answer = self.change(db, election, |object, elapsed| {
            let found = object.as_mut().filter(|_| asks);
            if let Some(row) = found {
                row.lease.is_abandoned = self.is_abandoned(db, election, row)?;
            }
            Ok(apply(object, op, elapsed, next))
        })?;
        if let (Ok(Reply::Version(version)), Some((id, place))) = (&answer, noted) {
            row::note_holder(db, election, id, version, place, &self.boot.id)?;
        }
        Ok(answer)
    }

    /// Returns the lease id and the lock file for the note about the holder, if `op` writes the record of a term that
    /// this host has begun. A host that is still waiting for another instance to end has not begun its term, so there
    /// is no note yet.
    fn noted_for(&self, op: &Op) -> Option<(LeaseId, &LockFileId)> {
        let place = self.witness.as_ref()?.own.place();
        match op {
            Op::Write { id, record, .. } if record.node.is_some() && record.incarnation == place.incarnation => {
                Some((*id, place))
            }
            _ => None,
        }
    }

    /// True if the lease's holder and all runners of the holder are known to have exited.
    fn is_abandoned(&self, db: &Connection, election: &ElectionName, row: &LeaseObject) -> rusqlite::Result<bool> {
        let Some(Witness { own, deaths }) = &self.witness else { return Ok(false) };
        let holder = row::holder(db, election, row, &self.boot.id)?;
        let holder = holder.filter(|place| place.incarnation != own.place().incarnation);
        deaths.holds(election, holder.clone());
        Ok(holder.is_some_and(|place| place.is_gone(deaths.folder())))
    }

    /// Removes the lock files that no host needs any more. If this fails, the files stay until another host starts.
    fn tidy_up(&self) {
        let Some(Witness { deaths, .. }) = &self.witness else { return };
        if let Ok(named) = self.leases.transact(Intent::Read, |db| row::holders(db).map(Ok)) {
            let _ = witness::tidy_up(deaths.folder(), |incarnation| named.iter().any(|name| name == incarnation));
        }
    }

    fn recall(&self, election: &ElectionName, recalled: &mut Recalled) -> Result<(), StoreError> {
        let state = self.states.transact(Intent::Read, |db| objects::state_head(db, election).map(Ok))?;
        let announced = self.announcements.all(election, LONGEST_ANNOUNCEMENT)?;
        recall::add(recalled, state.as_deref(), announced.iter().map(|content| recall::announced(content, election)))
    }

    /// Calls `step`, which may change an election's object, and saves the changes.
    fn change<T>(
        &self,
        db: &Connection,
        election: &ElectionName,
        step: impl FnOnce(&mut Option<LeaseObject>, Duration) -> Step<T>,
    ) -> Step<T> {
        let (before, stamp) = row::load(db, election)?.unzip();
        // Read the clock inside the transaction. Otherwise, a transaction that had to wait for the lock could replace a
        // newer stamp with an older one.
        let now = self.boot.now();
        let elapsed = match (&before, &stamp) {
            (Some(row), Some(stamp)) => self.elapsed(election, row, stamp, now),
            _ => Duration::ZERO,
        };
        let mut object = before.clone();
        let answer = step(&mut object, elapsed)?;
        // `is_abandoned` is determined at each read and never saved.
        object.iter_mut().for_each(|row| row.lease.is_abandoned = false);
        if answer.is_ok()
            && object != before
            && let Some(row) = &object
        {
            let unchanged = before.is_some_and(|before| before.lease.changes == row.lease.changes);
            let stamp = stamp.filter(|_| unchanged).unwrap_or_else(|| Stamp {
                at: now,
                boot: self.boot.id.clone(),
                time_namespace: self.boot.time_namespace.clone(),
            });
            row::save(db, election, row, &stamp)?;
        }
        Ok(answer)
    }

    /// Returns a lower bound on the time since a lease's last change.
    fn elapsed(&self, election: &ElectionName, row: &LeaseObject, stamp: &Stamp, now: Duration) -> Duration {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        // The holder of a watched lease may use other clocks than this process, so only the lower bound is safe here.
        let least = (self.boot.least)();
        let lease = (stamp.clone(), row.lease.holder, row.lease.changes);
        // A watched lease stays watched, even after the boot clock has reached a stamp that was in the future.
        // Otherwise, the elapsed time would start at 0 again, and an expired lease would count as held.
        if let Some(seen) = watched.get(election).filter(|seen| seen.lease == lease) {
            return least.saturating_sub(seen.since);
        }
        let is_own = (&stamp.boot, &stamp.time_namespace) == (&self.boot.id, &self.boot.time_namespace);
        // A stamp may be ahead of this boot clock if the machine was reset to an earlier state, or if another program
        // wrote the row. Such a stamp is unusable: the lease would not end before the clock reaches the stamp.
        match now.checked_sub(stamp.at).filter(|_| is_own) {
            // If the boot clock is slewed, a lease may end early. This is safe: the holder's clock is never slower than
            // the boot clock, so the holder has already stopped.
            Some(elapsed) => {
                watched.remove(election);
                elapsed
            }
            None => {
                watched.insert(election.clone(), Watched { lease, since: least });
                Duration::ZERO
            }
        }
    }
}

/// Skips names that Baton could not have written.
fn elections(names: impl Iterator<Item = rusqlite::Result<String>>) -> rusqlite::Result<Vec<ElectionName>> {
    names.filter_map(|name| name.map(|name| ElectionName::new(&name).ok()).transpose()).collect()
}

fn new_version() -> Result<Version, StoreError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        StoreError::Misconfigured(format!("the system provides no random numbers ({error}): allow getrandom"))
    })?;
    Ok(Version(format!("{:032x}", u128::from_be_bytes(bits))))
}

#[cfg(test)]
mod tests;
