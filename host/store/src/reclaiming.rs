//! Reclaims the leases of dead hosts on this machine, in a store that is shared by hosts on many machines.
//!
//! When this host requests a lease, it writes the lease's id to a note next to its lock file ([`Notes`]). Suppose that
//! the lease is held, and the record names an incarnation on this machine. If this incarnation left a note, and its
//! host and all its runners are dead, the lease is [`Reclaimable`](LeaseState::Reclaimable). A host on this machine
//! then gives the lease a fresh id ([`Op::Reclaim`]) and begins the next term.
//!
//! The store still decides: it changes the id only if the client sends the current id and the record's version. If the
//! holder is alive after all, its next renewal fails. So the old and the new holder overlap for at most D/6, the
//! renewal interval, where D is the lease duration. A holder that cannot reach the store ends at its deadline.
//!
//! - If two hosts find the same note, only one of them can take the note. This host keeps the note until it has written
//!   its own term, because the record names the dead holder until then. The host adds the fresh id to the note before
//!   it sends the request. So if this host dies as well, the next host can still reclaim the lease.
//! - When a holder releases its lease, it removes its note while it marks the record as released, before the release
//!   itself. If the note cannot be removed, the mark makes the note useless.
//! - A note does not count if the record names no node, or another incarnation than the note.
//! - A slow disk delays no request for long: each disk operation has a timeout, and most run while the request to the
//!   store is under way. If a note is not written in time, other hosts cannot detect the host's death. If a host is
//!   killed after it has acquired a lease but before its note is written, other hosts must wait for the lease to
//!   expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Record, Reply, Snapshot, StoreError, Version};
use tokio::sync::Semaphore;

use crate::witness::notes::{Note, Notes, Taken};
use crate::witness::{Deaths, LockFile, boot_id};
use crate::{LeaseStore, StoreUrl};

const DISK_WITHIN: Duration = Duration::from_millis(100);

pub(crate) struct Reclaiming {
    store: Arc<dyn LeaseStore>,
    /// `None` if the boot id is unknown.
    notes: Option<Arc<Notes>>,
    deaths: Deaths,
    /// Permit for one file system call at a time. If a call hangs, only other file system calls wait.
    asks: Arc<Semaphore>,
    disk_within: Duration,
    known: Mutex<HashMap<ElectionName, ReclaimState>>,
}

#[derive(Default)]
struct ReclaimState {
    noted: Option<LeaseId>,
    /// True if this host has removed all notes about the election's lease that it has written or taken.
    has_left: bool,
    /// The incarnation in the record, if it has left no usable note. The incarnation cannot write a note later, because
    /// a host writes its note before its record. So this host need not look for the note again.
    without_note: Option<String>,
    /// The dead holder's note, as found by the last read of the lease.
    found: Option<Note>,
    /// The dead holder's note, which this host has taken. Set from the reclaim until this host has written its term.
    taken: Option<Taken>,
    /// True once the folder has been searched for notes of other hosts.
    has_looked: bool,
    is_tidy: bool,
}

impl Reclaiming {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, url: &StoreUrl, own: Arc<LockFile>) -> Self {
        let deaths = Deaths::new(own.folder().to_owned(), Arc::default());
        let notes = boot_id().map(|boot| Arc::new(Notes::new(own, boot, url.to_string())));
        Self {
            store,
            notes,
            deaths,
            asks: Arc::new(Semaphore::new(1)),
            disk_within: DISK_WITHIN,
            known: Mutex::default(),
        }
    }

    /// Runs a disk operation on another thread. Returns `None` if the operation does not end in time.
    async fn ask<T: Send + 'static>(&self, question: impl FnOnce(&Notes) -> T + Send + 'static) -> Option<T> {
        let notes = Arc::clone(self.notes.as_ref()?);
        let asks = Arc::clone(&self.asks);
        let asked = async {
            // The thread keeps the permit even if the caller has given up. `acquire_owned` fails only if the semaphore
            // is closed, which never happens.
            let permit = asks.acquire_owned().await;
            let asked = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                question(&notes)
            });
            asked.await.ok()
        };
        tokio::time::timeout(self.disk_within, asked).await.ok().flatten()
    }

    fn known<T>(&self, election: &ElectionName, with: impl FnOnce(&mut ReclaimState) -> T) -> T {
        let mut known: MutexGuard<'_, _> = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        with(known.entry(election.clone()).or_default())
    }

    fn is_own(&self, incarnation: &str) -> bool {
        self.notes.as_ref().is_some_and(|notes| notes.is_own(incarnation))
    }

    async fn judged(&self, election: &ElectionName, read: Snapshot) -> Snapshot {
        let Snapshot::Object { lease, version, record: Some(record) } = read else {
            self.deaths.holds(election, None);
            return read;
        };
        if self.known(election, |known| !std::mem::replace(&mut known.is_tidy, true)) {
            let (election, holder) = (election.clone(), record.incarnation.clone());
            let _ = self.ask(move |notes| notes.tidy_up(&election, &holder)).await;
        }
        let lease = if lease == LeaseState::Held { self.judge(election, &record).await } else { lease };
        if lease != LeaseState::Held {
            self.known(election, |known| known.taken = None);
        }
        Snapshot::Object { lease, version, record: Some(record) }
    }

    /// Decides whether a lease that the store reports as held can be reclaimed, and returns the state of the lease.
    async fn judge(&self, election: &ElectionName, record: &Record) -> LeaseState {
        let of_taken = |known: &mut ReclaimState| {
            known.taken.take_if(|taken| taken.note.place.incarnation != record.incarnation);
            known.taken.is_some()
        };
        // This host has reclaimed the lease, but has not written its term yet. The record still names the dead holder.
        if self.known(election, of_taken) {
            return LeaseState::Held;
        }
        let begun = record.node.is_some() && !record.released && !self.is_own(&record.incarnation);
        let is_without = |known: &mut ReclaimState| known.without_note.as_ref() == Some(&record.incarnation);
        let found = if begun && !self.known(election, is_without) {
            let (incarnation, of) = (record.incarnation.clone(), election.clone());
            let look = move |notes: &Notes| {
                let note = notes.find(&incarnation, &of)?;
                let can_be_taken = notes.can_be_taken(&note);
                Some((note, can_be_taken))
            };
            let found = self.ask(look).await;
            if matches!(found, Some(None)) {
                self.known(election, |known| known.without_note = Some(record.incarnation.clone()));
            }
            found.flatten()
        } else {
            None
        };
        self.deaths.holds(election, found.as_ref().map(|(note, _)| note.place.clone()));
        let found = found.filter(|(_, can_be_taken)| *can_be_taken).map(|(note, _)| note);
        let lease = found.as_ref().map_or(LeaseState::Held, |note| {
            note.newest_id().map_or(LeaseState::Held, |holder| LeaseState::Reclaimable { holder })
        });
        self.known(election, |known| known.found = found);
        lease
    }

    async fn note(&self, election: &ElectionName, id: LeaseId) {
        if self.known(election, |known| known.noted == Some(id)) {
            return;
        }
        let of = election.clone();
        self.known(election, |known| known.has_left = false);
        let is_noted = matches!(self.ask(move |notes| notes.write(&of, id)).await, Some(Ok(())));
        self.known(election, |known| known.noted = Some(id).filter(|_| is_noted));
    }

    async fn reclaim(
        &self,
        election: &ElectionName,
        from: LeaseId,
        id: LeaseId,
        version: Version,
    ) -> Result<Reply, StoreError> {
        let (taken, found) = self.known(election, |known| {
            let taken =
                known.taken.as_ref().map(|taken| taken.note.clone()).filter(|note| note.newest_id() == Some(id));
            (taken, known.found.clone().filter(|note| note.newest_id() == Some(from)))
        });
        let note = if let Some(note) = taken {
            note
        } else {
            let Some(note) = found else { return Err(StoreError::Held) };
            let taken = match self.ask(move |notes| notes.take(&note, id)).await {
                Some(Some(taken)) => taken,
                // Another host on this machine is reclaiming the lease, or the holder is alive.
                Some(None) => return Err(StoreError::Held),
                // The disk did not respond in time, so nothing was sent to the store. Report a conflict, because it
                // makes the elector read again.
                None => return Err(StoreError::Conflict),
            };
            let note = taken.note.clone();
            self.known(election, |known| known.taken = Some(taken));
            note
        };
        self.note(election, id).await;
        let mut answer = Err(StoreError::Held);
        // Try the ids from the newest to the oldest, because the lease is most likely held under the newest. Skip the
        // last id in the note, because it is the fresh id.
        for from in note.ids.iter().rev().skip(1).copied() {
            answer = self.store.request(election, Op::Reclaim { from, id, version: version.clone() }).await;
            if !matches!(answer, Err(StoreError::Lost(_))) {
                break;
            }
        }
        self.known(election, |known| {
            if !matches!(answer, Ok(_) | Err(StoreError::Unknown(_))) {
                known.taken = None;
            }
            // The lease is not held under any id in the note: it has ended, or another client holds it. The note is
            // therefore useless.
            if matches!(answer, Err(StoreError::Lost(_))) {
                known.without_note = Some(note.place.incarnation);
            }
        });
        answer
    }

    /// Removes the taken note after this host has written its term. From then on, the record names this host instead of
    /// the dead holder, so no host needs the dead holder's note.
    async fn begins(&self, election: &ElectionName) {
        if let Some(taken) = self.known(election, |known| known.taken.take()) {
            let _ = self.ask(move |notes| notes.remove_taken(taken)).await;
        }
    }

    /// Removes the notes of a lease that is about to be released.
    async fn leaves(&self, election: &ElectionName) {
        let (has_left, taken) = self.known(election, |known| {
            known.noted = None;
            (known.has_left, known.taken.take())
        });
        if has_left {
            return;
        }
        let of = election.clone();
        let remove = move |notes: &Notes| {
            taken.map(|taken| notes.remove_taken(taken)).transpose()?;
            notes.remove(&of)
        };
        let is_removed = matches!(self.ask(remove).await, Some(Ok(())));
        self.known(election, |known| known.has_left = is_removed);
    }
}

#[async_trait]
impl LeaseStore for Reclaiming {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        match op {
            Op::Read => match self.store.request(election, Op::Read).await {
                Ok(Reply::Read(read)) => Ok(Reply::Read(self.judged(election, read).await)),
                answer => answer,
            },
            Op::Survey => match self.store.request(election, Op::Survey).await {
                Ok(Reply::Surveyed { read, recalled, steering }) => {
                    Ok(Reply::Surveyed { read: self.judged(election, read).await, recalled, steering })
                }
                answer => answer,
            },
            // Wait for the note as well: once the record names this host, other hosts look for the note only once.
            Op::Acquire { id, .. } => futures::join!(self.note(election, id), self.store.request(election, op)).1,
            Op::Reclaim { from, id, version } => self.reclaim(election, from, id, version).await,
            Op::Write { ref record, .. } if record.released => {
                futures::join!(self.leaves(election), self.store.request(election, op)).1
            }
            Op::Write { ref record, .. } => {
                let begins = record.node.is_some() && self.is_own(&record.incarnation);
                let answer = self.store.request(election, op).await;
                if begins && answer.is_ok() {
                    self.begins(election).await;
                }
                answer
            }
            Op::Release { .. } => {
                self.leaves(election).await;
                self.store.request(election, op).await
            }
            op @ (Op::Recall | Op::Create { .. } | Op::Renew { .. }) => self.store.request(election, op).await,
        }
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.store.break_now(election).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.store.elections().await
    }

    async fn create(&self) -> Result<(), StoreError> {
        self.store.create().await
    }

    fn lease_range(&self) -> (Duration, Duration) {
        self.store.lease_range()
    }

    fn slow_step(&self) -> Option<String> {
        self.store.slow_step()
    }

    async fn hint(&self, election: &ElectionName) {
        if self.known(election, |known| !known.has_looked) {
            let of = election.clone();
            let has_others = self.ask(move |notes| notes.has_others(&of)).await;
            self.known(election, |known| known.has_looked = true);
            // The host that left one of these notes may be dead, so the caller must read the lease now.
            if has_others == Some(true) {
                return;
            }
        }
        self.deaths.next(election).await;
    }
}

#[cfg(test)]
mod tests;
