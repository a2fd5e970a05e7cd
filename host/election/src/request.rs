//! What the elector asks of the lease store, and how a store may answer.

use alloc::string::String;
use core::fmt;
use core::time::Duration;

use crate::record::{LeaseId, Record, Snapshot, Term, Version};

/// Tells the answers to different requests apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// One request to the store. Each is a single atomic step there.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Op {
    /// Reads lease state, version and record. Answered by [`Reply::Read`].
    Read,
    /// Asks for the highest term that anything in the store names: the record, the coordinator's state, a node's
    /// announcement. Answered by [`Reply::Term`], with 0 if nothing names one.
    Recall,
    /// Both of these in one request, as a standby asks that expects to take the lease: what was read is no newer than what
    /// names a term, and than what operators ask. Answered by [`Reply::Surveyed`].
    Survey,
    /// Creates the object with its lease free, only if there is none ([`StoreError::Conflict`] if there is).
    /// Answered by [`Reply::Version`].
    Create {
        /// The first record.
        record: Record,
    },
    /// Takes the lease, only if the object still has that version. Repeated with the id that holds it, it
    /// succeeds again and starts the lease's length anew. Answered by [`Reply::Done`].
    Acquire {
        /// The id to hold it under.
        id: LeaseId,
        /// How long the lease lasts without a renewal.
        length: Duration,
        /// The version that the object must have.
        version: Version,
        /// The holder that it was read to be abandoned by ([`LeaseState::Abandoned`](crate::LeaseState::Abandoned)), whose
        /// place it takes. The lease of any other is held as ever.
        instead_of: Option<LeaseId>,
    },
    /// Takes over the unexpired lease of a dead holder ([`LeaseState::Reclaimable`](crate::LeaseState::Reclaimable)), only
    /// if the object still has that version. The store replaces the lease's id and then renews the lease for its present
    /// length. If the holder is alive after all, its next renewal fails. Repeated with the id that holds the lease, it
    /// renews that again. Unlike an acquire, it fails if the lease has ended or anybody else has held it since. Answered by
    /// [`Reply::Done`].
    Reclaim {
        /// The id under which the dead holder holds it.
        from: LeaseId,
        /// The id to hold it under from now on. No request has named it before.
        id: LeaseId,
        /// The version that the object must have.
        version: Version,
    },
    /// Starts the lease's length anew. Answered by [`Reply::Done`]. May succeed after an expiry if nobody
    /// has touched the lease or the object in between.
    Renew {
        /// The id that holds it.
        id: LeaseId,
    },
    /// Writes the record, only under a valid lease with that id and only if the object still has that
    /// version. Answered by [`Reply::Version`].
    Write {
        /// The id that holds the lease.
        id: LeaseId,
        /// The version that the object must have.
        version: Version,
        /// The new record.
        record: Record,
    },
    /// Gives the lease up: it is free at once. Answered by [`Reply::Done`].
    Release {
        /// The id that holds it.
        id: LeaseId,
    },
}

/// A request that was carried out.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Reply {
    /// What a read saw.
    Read(Snapshot),
    /// What a recall found.
    Term(Term),
    /// What a survey found.
    Surveyed {
        /// What it read.
        read: Snapshot,
        /// The highest term that anything in the store names.
        term: Term,
        /// The version of what operators ask of the nodes, for who drives the elector; none where nothing was asked.
        steering: Option<Version>,
    },
    /// The object's version after a create or a write.
    Version(Version),
    /// An acquire, renewal or release was carried out.
    Done,
}

impl Reply {
    /// What was answered from the record alone, with what else a store has for a recall and a survey: the term that `highest`
    /// makes of the record's, and what `steering` says.
    ///
    /// # Errors
    /// Those of the two.
    pub fn completed(
        self,
        highest: impl FnOnce(Term) -> Result<Term, StoreError>,
        steering: impl FnOnce() -> Result<Option<Version>, StoreError>,
    ) -> Result<Self, StoreError> {
        match self {
            Self::Term(term) => highest(term).map(Self::Term),
            Self::Surveyed { read, term, .. } => {
                Ok(Self::Surveyed { read, term: highest(term)?, steering: steering()? })
            }
            reply @ (Self::Read(_) | Self::Version(_) | Self::Done) => Ok(reply),
        }
    }
}

/// Why a request was not carried out, named for the decision that follows.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Hash)]
pub enum StoreError {
    /// Acquire, reclaim: somebody else holds the lease, or it is being broken.
    #[error("the lease is held by another client")]
    Held,
    /// The lease is certainly not, or no longer, held under the id: expired and taken, broken, released,
    /// or its object is gone.
    #[error("the lease is lost: {0}")]
    Lost(String),
    /// The object does not have the version (or the absence) that was asked for: read again.
    #[error("the record has changed")]
    Conflict,
    /// It may or may not have happened: a timeout, a cut connection, 403, 429, 5xx.
    #[error("{0}")]
    Unknown(String),
    /// No such account, container or permission, or a store that refuses this file. It did not happen.
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
