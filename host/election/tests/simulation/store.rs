//! The simulated store: one object with a lease, in real time, with Azure's semantics.
//!
//! - An acquire names the object's version. While the lease is held and not abandoned, only an acquire with the
//!   holder's id succeeds. While the lease is breaking, no acquire succeeds.
//! - A renewal after the expiry succeeds as long as nobody has written the object or acquired the lease.
//! - Lease requests leave the version unchanged. Each write changes the version, and no version occurs twice.
//! - A write needs the lease's id, a valid lease (a breaking lease is still valid) and the current version.
//! - A release with the lease's id frees the lease immediately, even if the lease has expired or was broken.
//! - The world may act as a witness of deaths. A lease counts as abandoned only if its dead holder has written a record
//!   under this lease. A record that only says that the holder is waiting is enough.
//! - Instead of a witness, all hosts may run on one machine and keep notes. From the notes, a host concludes that a
//!   lease is reclaimable. Only one host at a time can reclaim a lease: the others must wait until that host has
//!   written its term.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_election::{LeaseId, LeaseState, Op, Recalled, Record, Reply, Snapshot, StoreError, Version};

/// Real time since the start of the run. No host knows this time.
pub type Instant = Duration;

#[derive(Clone, Debug, Default, Hash)]
pub struct Store {
    pub object: Option<Object>,
    /// The lease ids of holders known to be dead.
    pub gone: BTreeSet<u128>,
    pub notes: Notes,
    versions: u64,
}

/// The notes that the hosts of one machine keep about the lease. Incarnations are named as in the record.
#[derive(Clone, Debug, Default, Hash)]
pub struct Notes {
    /// The ids under which an incarnation may hold the lease, including the ids of a host that is reclaiming the lease
    /// from this incarnation. The newest id is last.
    pub ids: BTreeMap<String, Vec<LeaseId>>,
    /// Incarnations known to be dead.
    pub gone: BTreeSet<String>,
    /// The incarnation whose note was taken, and the incarnation that took it.
    pub taken: Option<(String, String)>,
}

impl Notes {
    /// The state of a held lease with this record, as `reader` sees it.
    pub fn judged(&self, record: Option<&Record>, reader: &str) -> LeaseState {
        let noted = record.and_then(|record| Some((&record.incarnation, *self.ids.get(&record.incarnation)?.last()?)));
        match noted {
            Some((incarnation, holder))
                if incarnation != reader
                    && self.gone.contains(incarnation)
                    && self.taken.as_ref().is_none_or(|(taken, _)| taken != incarnation) =>
            {
                LeaseState::Reclaimable { holder }
            }
            _ => LeaseState::Held,
        }
    }

    /// Takes the note whose newest id is `from` on behalf of `by`, and adds `id` to the note. Returns false if `by`
    /// cannot take the note, for example because another host has taken it.
    pub fn take(&mut self, from: LeaseId, id: LeaseId, record: Option<&Record>, by: &str) -> bool {
        let is_noted = |of: &String| self.ids.get(of).is_some_and(|ids| ids.last() == Some(&id));
        if self.taken.as_ref().is_some_and(|(of, taker)| taker == by && is_noted(of)) {
            return true;
        }
        let incarnation = record.map(|record| record.incarnation.clone()).unwrap_or_default();
        let is_free = self.judged(record, by) == (LeaseState::Reclaimable { holder: from });
        if is_free {
            self.ids.entry(incarnation.clone()).or_default().push(id);
            self.taken = Some((incarnation, by.to_string()));
        }
        is_free
    }

    /// True if one note contains both ids. A host that has taken this note tries both ids.
    fn are_of_one(&self, one: LeaseId, other: LeaseId) -> bool {
        self.ids.values().any(|ids| ids.contains(&one) && ids.contains(&other))
    }

    /// Puts back the note that `by` had taken, because `by` is dead. Another host may then take the note.
    pub fn give_back(&mut self, by: &str) {
        self.taken.take_if(|(_, taker)| taker == by);
    }

    /// Removes the note that `by` has taken, because `by` has written its term or is about to release the lease.
    pub fn remove(&mut self, by: &str) {
        if let Some((of, _)) = self.taken.take_if(|(_, taker)| taker == by) {
            self.ids.remove(&of);
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub struct Object {
    pub version: u64,
    pub record: Option<Record>,
    /// The id of the lease under which the record was written.
    pub under: Option<LeaseId>,
    pub lease: Lease,
}

/// The lease. There is no separate state for an expired lease: it is a held lease whose end has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lease {
    Free,
    Held { id: LeaseId, length: Duration, until: Instant, version_at_start: u64 },
    Forever { id: LeaseId },
    Breaking { id: LeaseId, until: Instant },
    Broken { id: LeaseId },
}

impl Store {
    pub fn execute(&mut self, now: Instant, op: &Op) -> Result<Reply, StoreError> {
        self.settle(now);
        match op {
            Op::Read => Ok(Reply::Read(self.snapshot(now))),
            Op::Recall => Ok(Reply::Recalled(Recalled::from_record(self.record()))),
            Op::Survey => {
                let read = self.snapshot(now);
                Ok(Reply::Surveyed { recalled: Recalled::from_record(self.record()), read, steering: None })
            }
            Op::Create { record } => self.create(Some(record.clone())),
            Op::Acquire { id, length, version, instead_of } => self.acquire(now, *id, *length, version, *instead_of),
            Op::Reclaim { from, id, version } => self.reclaim(now, *from, *id, version),
            Op::Renew { id } => self.renew(now, *id),
            Op::Write { id, version, record } => self.write(now, *id, version, record),
            Op::Release { id } => self.release(*id),
        }
    }

    pub fn snapshot(&mut self, now: Instant) -> Snapshot {
        self.settle(now);
        let Some(object) = &self.object else { return Snapshot::Nothing };
        let lease = match object.lease {
            Lease::Free => LeaseState::Free,
            Lease::Held { until, .. } if until <= now => LeaseState::Expired,
            Lease::Held { id, .. } if self.is_abandoned(object) => LeaseState::Abandoned { holder: id },
            Lease::Held { .. } => LeaseState::Held,
            Lease::Forever { .. } => LeaseState::HeldForever,
            Lease::Breaking { .. } => LeaseState::Breaking,
            Lease::Broken { .. } => LeaseState::Broken,
        };
        Snapshot::Object { lease, version: version(object.version), record: object.record.clone() }
    }

    fn is_abandoned(&self, object: &Object) -> bool {
        match object.lease {
            Lease::Held { id, .. } => object.under == Some(id) && self.gone.contains(&id.as_u128()),
            _ => false,
        }
    }

    pub fn record(&self) -> Option<&Record> {
        self.object.as_ref()?.record.as_ref()
    }

    pub fn lease_end(&self) -> Option<Instant> {
        match self.object.as_ref()?.lease {
            Lease::Held { until, .. } => Some(until),
            _ => None,
        }
    }

    // ---- outsiders ----

    /// `record` is `None` if an outsider creates the object.
    pub fn create(&mut self, record: Option<Record>) -> Result<Reply, StoreError> {
        if self.object.is_some() {
            return Err(StoreError::Conflict);
        }
        self.versions += 1;
        self.object = Some(Object { version: self.versions, record, under: None, lease: Lease::Free });
        Ok(Reply::Version(version(self.versions)))
    }

    /// Writes the record if nobody holds the lease. This frees a broken or expired lease. Returns true if the record
    /// was written.
    pub fn rewrite(&mut self, now: Instant, record: Record) -> bool {
        self.settle(now);
        let Some(object) = &mut self.object else { return false };
        let is_held = match object.lease {
            Lease::Held { until, .. } => until > now,
            Lease::Forever { .. } | Lease::Breaking { .. } => true,
            Lease::Free | Lease::Broken { .. } => false,
        };
        if !is_held {
            self.versions += 1;
            *object = Object { version: self.versions, record: Some(record), under: None, lease: Lease::Free };
        }
        !is_held
    }

    pub fn break_lease(&mut self, now: Instant, period: Duration) {
        let Some(object) = &mut self.object else { return };
        object.lease = match object.lease {
            Lease::Held { id, until, .. } if until > now && !period.is_zero() => {
                Lease::Breaking { id, until: until.min(now + period) }
            }
            Lease::Forever { id } if !period.is_zero() => Lease::Breaking { id, until: now + period },
            Lease::Held { id, .. } | Lease::Forever { id } | Lease::Breaking { id, .. } => Lease::Broken { id },
            other => other,
        };
    }

    /// Acquires the lease for an outside client, if possible. A `length` of `None` means that the lease never expires.
    /// Returns true if the client now holds the lease.
    pub fn take_outside(&mut self, now: Instant, id: LeaseId, length: Option<Duration>) -> bool {
        let Some(object) = &mut self.object else { return false };
        let is_free = match object.lease {
            Lease::Free | Lease::Broken { .. } => true,
            Lease::Held { until, .. } => until <= now,
            _ => false,
        };
        if is_free {
            object.lease = match length {
                Some(length) => Lease::Held { id, length, until: now + length, version_at_start: object.version },
                None => Lease::Forever { id },
            };
        }
        is_free
    }

    // ---- hosts ----

    fn acquire(
        &mut self,
        now: Instant,
        id: LeaseId,
        length: Duration,
        wanted: &Version,
        instead_of: Option<LeaseId>,
    ) -> Result<Reply, StoreError> {
        let is_abandoned = self.object.as_ref().is_some_and(|object| self.is_abandoned(object));
        let object = self.object.as_mut().ok_or(StoreError::Conflict)?;
        if version(object.version) != *wanted {
            return Err(StoreError::Conflict);
        }
        match object.lease {
            Lease::Held { id: holder, .. } if is_abandoned && instead_of == Some(holder) => {}
            Lease::Held { id: holder, until, .. } if holder != id && until > now => return Err(StoreError::Held),
            Lease::Forever { .. } | Lease::Breaking { .. } => return Err(StoreError::Held),
            _ => {}
        }
        object.lease = Lease::Held { id, length, until: now + length, version_at_start: object.version };
        Ok(Reply::Done)
    }

    fn renew(&mut self, now: Instant, wanted: LeaseId) -> Result<Reply, StoreError> {
        let object = self.object.as_mut().ok_or_else(missing)?;
        match &mut object.lease {
            Lease::Held { id, until, version_at_start, length } if *id == wanted => {
                if *until <= now && *version_at_start != object.version {
                    return Err(StoreError::Lost("it expired, and the object was written since".to_string()));
                }
                *until = now + *length;
                Ok(Reply::Done)
            }
            lease => Err(StoreError::Lost(format!("not held under this id: {lease:?}"))),
        }
    }

    /// Replaces the holder's id with a new id. Fails if the lease has expired, unless the lease already has the new id.
    fn reclaim(&mut self, now: Instant, from: LeaseId, fresh: LeaseId, wanted: &Version) -> Result<Reply, StoreError> {
        let holder = match self.object.as_ref().ok_or_else(missing)? {
            object if version(object.version) != *wanted => return Err(StoreError::Conflict),
            Object { lease: Lease::Held { id, until, .. }, .. } if *id == fresh || *until > now => *id,
            Object { lease, .. } => return Err(StoreError::Lost(format!("nobody holds it: {lease:?}"))),
        };
        if ![from, fresh].contains(&holder) && !self.notes.are_of_one(from, holder) {
            return Err(StoreError::Lost(format!("held under another id: {holder:?}")));
        }
        if let Some(Object { lease: Lease::Held { id, .. }, .. }) = &mut self.object {
            *id = fresh;
        }
        self.renew(now, fresh)
    }

    fn write(&mut self, now: Instant, wanted: LeaseId, old: &Version, record: &Record) -> Result<Reply, StoreError> {
        let object = self.object.as_mut().ok_or_else(missing)?;
        match object.lease {
            Lease::Held { id, until, .. } if id == wanted && until > now => {}
            Lease::Breaking { id, .. } if id == wanted => {}
            lease => return Err(StoreError::Lost(format!("not held under this id: {lease:?}"))),
        }
        if version(object.version) != *old {
            return Err(StoreError::Conflict);
        }
        self.versions += 1;
        object.version = self.versions;
        object.record = Some(record.clone());
        object.under = Some(wanted);
        if let Lease::Held { version_at_start, .. } = &mut object.lease {
            *version_at_start = self.versions;
        }
        Ok(Reply::Version(version(self.versions)))
    }

    fn release(&mut self, wanted: LeaseId) -> Result<Reply, StoreError> {
        let object = self.object.as_mut().ok_or_else(missing)?;
        match object.lease {
            Lease::Held { id, .. } | Lease::Forever { id } | Lease::Breaking { id, .. } | Lease::Broken { id }
                if id == wanted =>
            {
                object.lease = Lease::Free;
                Ok(Reply::Done)
            }
            lease => Err(StoreError::Lost(format!("not held under this id: {lease:?}"))),
        }
    }

    /// Completes a break if its period has passed.
    fn settle(&mut self, now: Instant) {
        if let Some(object) = &mut self.object
            && let Lease::Breaking { id, until } = object.lease
            && until <= now
        {
            object.lease = Lease::Broken { id };
        }
    }
}

fn version(number: u64) -> Version {
    Version(format!("v{number}"))
}

fn missing() -> StoreError {
    StoreError::Lost("the object is gone".to_string())
}
