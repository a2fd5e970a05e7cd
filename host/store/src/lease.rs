//! The rules of an Azure blob lease, for stores that keep leases themselves.
//!
//! Nothing in this module reads a clock. A lease is measured from its last change (an acquire, a renewal or a break).
//! The store passes in a lower bound on the time since that change. If this bound is too low, the lease ends late,
//! which is safe.

use std::time::Duration;

use baton_election::{LeaseId, LeaseState, Op, Recalled, Record, Reply, Snapshot, StoreError, Version};

/// One election's object: its lease and its record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseObject {
    /// The object's version. It changes with each write of the record, and only then.
    pub version: Version,
    /// The object's record. `None` if a client other than Baton created the object.
    pub record: Option<Record>,
    /// The lease.
    pub lease: Lease,
}

/// A lease, as of its last change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lease {
    /// The id of the current or last holder; `None` if the lease was never held or was released.
    pub holder: Option<LeaseId>,
    /// The time from the last change to the expiry; `None` if the lease never expires.
    pub length: Option<Duration>,
    /// The time from the last change until the break takes effect, if the lease is being broken.
    pub broken_after: Option<Duration>,
    /// True if the holder and all processes that it started are known to have exited. Determined at each read, and
    /// never saved.
    pub is_abandoned: bool,
    /// The number of changes that have restarted the lease's time. If two reads return the same number, the lease was
    /// not renewed in between.
    pub changes: u64,
}

impl Lease {
    /// Returns the state of the lease, given that at least `elapsed` has passed since the last change.
    pub fn state(&self, elapsed: Duration) -> LeaseState {
        match (self.holder, self.broken_after, self.length) {
            (None, _, _) => LeaseState::Free,
            (Some(_), Some(end), _) if elapsed >= end => LeaseState::Broken,
            (Some(_), Some(_), _) => LeaseState::Breaking,
            (Some(_), None, None) => LeaseState::HeldForever,
            (Some(_), None, Some(length)) if elapsed >= length => LeaseState::Expired,
            (Some(holder), None, Some(_)) if self.is_abandoned => LeaseState::Abandoned { holder },
            (Some(_), None, Some(_)) => LeaseState::Held,
        }
    }

    /// Breaks the lease after `period`, or when it would have expired, whichever is earlier. If `period` is zero,
    /// breaks the lease at once.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease to break.
    pub fn break_after(&mut self, period: Duration, elapsed: Duration) -> Result<(), StoreError> {
        let left = |end: Option<Duration>| end.map_or(period, |end| period.min(end.saturating_sub(elapsed)));
        let wait = match self.state(elapsed) {
            LeaseState::Free => return Err(lost("there is no lease to break")),
            LeaseState::Broken => return Ok(()),
            LeaseState::Breaking => left(self.broken_after),
            LeaseState::Held
            | LeaseState::HeldForever
            | LeaseState::Abandoned { .. }
            | LeaseState::Reclaimable { .. }
            | LeaseState::Expired => left(self.length),
        };
        self.broken_after = Some(wait);
        self.changes = self.changes.wrapping_add(1);
        Ok(())
    }

    fn start(&mut self, id: LeaseId, length: Option<Duration>) {
        let changes = self.changes.wrapping_add(1);
        *self = Self { holder: Some(id), length, broken_after: None, is_abandoned: false, changes };
    }

    fn acquire(
        &mut self,
        id: LeaseId,
        length: Duration,
        instead_of: Option<LeaseId>,
        elapsed: Duration,
    ) -> Result<(), StoreError> {
        match self.state(elapsed) {
            LeaseState::Free | LeaseState::Expired | LeaseState::Broken => {}
            // The client already holds the lease. It repeats its request because the first answer may have been lost.
            LeaseState::Held | LeaseState::HeldForever if self.holder == Some(id) => {}
            LeaseState::Abandoned { holder } if instead_of == Some(holder) => {}
            LeaseState::Held
            | LeaseState::HeldForever
            | LeaseState::Abandoned { .. }
            | LeaseState::Reclaimable { .. }
            | LeaseState::Breaking => {
                return Err(StoreError::Held);
            }
        }
        self.start(id, Some(length));
        Ok(())
    }

    fn renew(&mut self, id: LeaseId, elapsed: Duration) -> Result<(), StoreError> {
        self.held_by(id)?;
        match self.state(elapsed) {
            // Even an expired lease can be renewed: its last holder is this client, so no other client has acquired the
            // lease.
            LeaseState::Held
            | LeaseState::HeldForever
            | LeaseState::Abandoned { .. }
            | LeaseState::Reclaimable { .. }
            | LeaseState::Expired => {}
            LeaseState::Breaking | LeaseState::Broken => return Err(lost("the lease was broken")),
            LeaseState::Free => return Err(lost(RELEASED)),
        }
        self.start(id, self.length);
        Ok(())
    }

    fn reclaim(&mut self, from: LeaseId, id: LeaseId, elapsed: Duration) -> Result<(), StoreError> {
        // This client already holds the lease under the new id. The answer to an earlier request must have been lost.
        if self.holder == Some(id) {
            return self.renew(id, elapsed);
        }
        self.held_by(from)?;
        if self.state(elapsed) == LeaseState::Expired {
            return Err(lost("the lease has expired"));
        }
        let mut reclaimed = Self { holder: Some(id), ..self.clone() };
        reclaimed.renew(id, elapsed)?;
        *self = reclaimed;
        Ok(())
    }

    fn release(&mut self, id: LeaseId) -> Result<(), StoreError> {
        self.held_by(id)?;
        *self = Self { changes: self.changes.wrapping_add(1), ..Self::default() };
        Ok(())
    }

    fn allows_writes(&self, id: LeaseId, elapsed: Duration) -> Result<(), StoreError> {
        self.held_by(id)?;
        match self.state(elapsed) {
            LeaseState::Held
            | LeaseState::HeldForever
            | LeaseState::Abandoned { .. }
            | LeaseState::Reclaimable { .. }
            | LeaseState::Breaking => Ok(()),
            LeaseState::Expired => Err(lost("the lease has expired")),
            LeaseState::Broken => Err(lost("the lease was broken")),
            LeaseState::Free => Err(lost(RELEASED)),
        }
    }

    fn held_by(&self, id: LeaseId) -> Result<(), StoreError> {
        match self.holder {
            Some(holder) if holder == id => Ok(()),
            Some(_) => Err(lost("another client has taken the lease")),
            None => Err(lost(RELEASED)),
        }
    }
}

impl LeaseObject {
    fn read(&self, elapsed: Duration) -> Snapshot {
        Snapshot::Object {
            lease: self.lease.state(elapsed),
            version: self.version.clone(),
            record: self.record.clone(),
        }
    }
}

/// Carries out one request on an election's object. `object` is `None` if the election has no object.
///
/// `elapsed` is a lower bound on the time since the lease's last change. `next` is a version that was never used
/// before. The answer to a recall or a survey covers only this object, so the caller must [complete](Reply::completed)
/// the answer. If this call changes [`Lease::changes`], the store must measure the lease from this call. If this call
/// returns an error, the object is unchanged.
///
/// # Errors
/// Returns the [`StoreError`] that the request's contract defines.
pub fn apply(object: &mut Option<LeaseObject>, op: Op, elapsed: Duration, next: Version) -> Result<Reply, StoreError> {
    let (row, op) = match (object.as_mut(), op) {
        (None, Op::Read) => return Ok(Reply::Read(Snapshot::Nothing)),
        (None, Op::Recall) => return Ok(Reply::Recalled(Recalled::default())),
        (None, Op::Survey) => {
            let (read, recalled) = (Snapshot::Nothing, Recalled::default());
            return Ok(Reply::Surveyed { read, recalled, steering: None });
        }
        (None, Op::Create { record }) => {
            *object = Some(LeaseObject { version: next.clone(), record: Some(record), lease: Lease::default() });
            return Ok(Reply::Version(next));
        }
        (None, _) => return Err(lost("the record was deleted")),
        (Some(row), op) => (row, op),
    };
    match op {
        Op::Read => Ok(Reply::Read(row.read(elapsed))),
        Op::Recall => Ok(Reply::Recalled(Recalled::from_record(row.record.as_ref()))),
        Op::Survey => {
            let recalled = Recalled::from_record(row.record.as_ref());
            Ok(Reply::Surveyed { read: row.read(elapsed), recalled, steering: None })
        }
        Op::Create { .. } => Err(StoreError::Conflict),
        Op::Acquire { version, .. } | Op::Reclaim { version, .. } if version != row.version => {
            Err(StoreError::Conflict)
        }
        Op::Acquire { id, length, instead_of, .. } => {
            row.lease.acquire(id, length, instead_of, elapsed).map(|()| Reply::Done)
        }
        Op::Reclaim { from, id, .. } => row.lease.reclaim(from, id, elapsed).map(|()| Reply::Done),
        Op::Renew { id } => row.lease.renew(id, elapsed).map(|()| Reply::Done),
        Op::Release { id } => row.lease.release(id).map(|()| Reply::Done),
        Op::Write { id, version, record } => {
            // Check the lease before the version. After a lost lease, the instance must end at once, whereas after a
            // conflict, the host only reads again.
            row.lease.allows_writes(id, elapsed)?;
            if version != row.version {
                return Err(StoreError::Conflict);
            }
            row.record = Some(record);
            row.version = next.clone();
            Ok(Reply::Version(next))
        }
    }
}

/// Writes the record of an election's object on behalf of a client without a lease id.
///
/// # Errors
/// [`StoreError::Lost`] while the lease is held, or if there is no object.
pub fn overwrite(
    object: &mut Option<LeaseObject>,
    record: Record,
    elapsed: Duration,
    next: Version,
) -> Result<Version, StoreError> {
    let row = removable(object, elapsed)?.ok_or_else(|| lost("the record was deleted"))?;
    row.lease = Lease { changes: row.lease.changes.wrapping_add(1), ..Lease::default() };
    row.record = Some(record);
    row.version = next.clone();
    Ok(next)
}

/// Returns the object if a client without a lease id may change or remove it.
///
/// # Errors
/// [`StoreError::Lost`] while the lease is held.
pub fn removable(object: &mut Option<LeaseObject>, elapsed: Duration) -> Result<Option<&mut LeaseObject>, StoreError> {
    match object {
        Some(row) if row.lease.state(elapsed).is_held() => Err(lost("the lease is held, and the request has no id")),
        object => Ok(object.as_mut()),
    }
}

const RELEASED: &str = "the lease is free";

fn lost(why: &str) -> StoreError {
    StoreError::Lost(why.to_owned())
}

#[cfg(test)]
mod tests;
