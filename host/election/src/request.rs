//! The elector's requests to the lease store, and the store's possible answers.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::record::{LeaseId, Record, Snapshot, Term, Version};
use crate::schedule::Progress;

/// The id by which an answer is matched to its request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// One request to the store, which carries it out as one atomic step.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Op {
    /// Reads the lease state, version and record. Answered by [`Reply::Read`].
    Read,
    /// Reads the highest term in the store: in the record, the coordinator's state and the nodes' announcements.
    /// Also reads the progress of the scheduled runs in the same places. Answered by [`Reply::Recalled`].
    Recall,
    /// Combines a read and a recall, for a standby that expects to take the lease. The store reads the record first, so
    /// the terms and the operators' steering object are at least as new as the record. Answered by [`Reply::Surveyed`].
    Survey,
    /// Creates the object with a free lease, unless the object exists ([`StoreError::Conflict`]). Answered by
    /// [`Reply::Version`].
    Create {
        /// The first record.
        record: Record,
    },
    /// Acquires the lease if the object still has `version`. If the id already holds the lease, the request succeeds
    /// and restarts the lease with `length`. Answered by [`Reply::Done`].
    Acquire {
        /// The id under which to hold the lease.
        id: LeaseId,
        /// The time after which the lease expires if it is not renewed.
        length: Duration,
        /// The version that the object must have.
        version: Version,
        /// The dead holder to replace, if the lease was read as
        /// [`LeaseState::Abandoned`](crate::LeaseState::Abandoned). If another holder has the lease by now, the request
        /// fails.
        instead_of: Option<LeaseId>,
    },
    /// Takes over the unexpired lease of a dead holder ([`LeaseState::Reclaimable`](crate::LeaseState::Reclaimable)) if
    /// the object still has `version`. The store replaces the lease's id, and then renews the lease for its current
    /// length. If the holder is alive after all, its next renewal fails. If the new id already holds the lease, the
    /// request only renews the lease. Unlike an acquire, the request fails if the lease has ended, or if another client
    /// has held the lease since. Answered by [`Reply::Done`].
    Reclaim {
        /// The id under which the dead holder holds the lease.
        from: LeaseId,
        /// The new id of the lease. No request has used it, except earlier attempts of this reclaim.
        id: LeaseId,
        /// The version that the object must have.
        version: Version,
    },
    /// Restarts the lease with its full length. This also works after the lease has expired, if nothing has changed the
    /// lease or the object since. Answered by [`Reply::Done`].
    Renew {
        /// The id that holds the lease.
        id: LeaseId,
    },
    /// Writes the record if `id` holds the lease and the object still has `version`. Answered by [`Reply::Version`].
    Write {
        /// The id that holds the lease.
        id: LeaseId,
        /// The version that the object must have.
        version: Version,
        /// The new record.
        record: Record,
    },
    /// Releases the lease, which becomes free immediately. Answered by [`Reply::Done`].
    Release {
        /// The id that holds the lease.
        id: LeaseId,
    },
}

/// The answer to a request that was carried out.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Reply {
    /// The result of a read.
    Read(Snapshot),
    /// The result of a recall.
    Recalled(Recalled),
    /// The result of a survey.
    Surveyed {
        /// The result of the survey's read.
        read: Snapshot,
        /// The result of the survey's recall.
        recalled: Recalled,
        /// The version of the operators' steering object; `None` if there is no such object. The elector acts on the
        /// survey only if its [`Eligibility`](crate::Eligibility) was derived from this version.
        steering: Option<Version>,
    },
    /// The object's version after a create or a write.
    Version(Version),
    /// An acquire, reclaim, renewal or release was carried out.
    Done,
}

/// The election's highest term and the progress of its scheduled runs. Several objects in the store contain them, so
/// both survive if the record is deleted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Recalled {
    /// The highest term in the store; 0 if there is no term.
    pub term: Term,
    /// The merged progress of the scheduled runs, if any object names one.
    pub progress: Option<Box<Progress>>,
}

impl Recalled {
    /// The term and the progress in a record.
    #[must_use]
    pub fn from_record(record: Option<&Record>) -> Self {
        record.map_or_else(Self::default, |record| Self { term: record.term, progress: record.progress.clone() })
    }

    /// Keeps the higher of the two terms, and merges the progress.
    pub fn merge(&mut self, other: &Self) {
        self.term = self.term.max(other.term);
        Progress::merge_into(&mut self.progress, other.progress.as_deref());
    }
}

impl Reply {
    /// Completes the answer to a recall or survey, in which the store has filled in only the term and the progress from
    /// the record. `others` adds the terms and the progress from all other objects. `steering` returns the version of
    /// the steering object. Answers to other requests stay unchanged.
    ///
    /// # Errors
    /// Returns the errors of `others` and `steering`.
    pub fn completed(
        self,
        others: impl FnOnce(&mut Recalled) -> Result<(), StoreError>,
        steering: impl FnOnce() -> Result<Option<Version>, StoreError>,
    ) -> Result<Self, StoreError> {
        match self {
            Self::Recalled(mut recalled) => {
                others(&mut recalled)?;
                Ok(Self::Recalled(recalled))
            }
            Self::Surveyed { read, mut recalled, .. } => {
                others(&mut recalled)?;
                Ok(Self::Surveyed { read, recalled, steering: steering()? })
            }
            reply @ (Self::Read(_) | Self::Version(_) | Self::Done) => Ok(reply),
        }
    }
}

/// The reason why a request failed. Each variant calls for a different reaction.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Hash)]
pub enum StoreError {
    /// The lease cannot be acquired or reclaimed: another client holds it, or it is being broken.
    #[error("the lease is held by another client")]
    Held,
    /// The request's lease id certainly no longer holds the lease. The lease was broken or released, the lease expired
    /// and another client acquired it, or the object was deleted.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The object does not have the required version, or the object to be created already exists. Read the object
    /// again.
    #[error("the record has changed")]
    Conflict,
    /// The store may or may not have carried out the request. Causes are a timeout, a broken connection, or a response
    /// with a status such as 429 or 5xx.
    #[error("{0}")]
    Unknown(String),
    /// The store did not carry out the request: an account, container or permission is missing, or a database file
    /// cannot be used.
    #[error("{0}")]
    Misconfigured(String),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Recall => "recall",
            Op::Survey => "survey",
            Op::Create { .. } => "create",
            Op::Acquire { .. } => "acquire",
            Op::Reclaim { .. } => "reclaim",
            Op::Renew { .. } => "renew",
            Op::Write { .. } => "write",
            Op::Release { .. } => "release",
        })
    }
}
