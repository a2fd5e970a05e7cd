//! Messages between the nodes of an election. With them, a standby notices changes sooner and polls the store less.
//!
//! Hints are untrusted. A hint can make a standby read earlier or later (by at most [`LISTENING_POLL`]), or can turn
//! the read into a [survey](crate::Op::Survey). Decisions about the lease depend only on the store's answers, and each
//! acquire carries the version that the read returned. [`Hint::Look`] also makes a holder renew earlier.

use alloc::string::String;
use core::time::Duration;

use crate::record::Term;
use crate::timing::Time;

/// Polling interval of a standby that receives its leader's announcements, ±25%.
pub const LISTENING_POLL: Duration = Duration::from_secs(10);

/// A leader's message to the other nodes: an effect of its elector.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Word {
    /// The sender leads.
    Leads {
        /// The term in the sender's record.
        term: Term,
        /// A time just before the last successful renewal was sent, on the sender's clock. Other nodes receive the time
        /// that has passed since then.
        renewed: Time,
    },
    /// The sender is giving up the lease: it has marked the record as released, and the release is under way or done.
    GivesUp,
}

/// A message from another node, or from the kernel: an input of the elector.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Hint {
    /// Something may have changed: a standby should read soon, and a holder should renew early.
    Look,
    /// A node announces that it leads.
    Leads {
        /// The sender's incarnation.
        from: String,
        /// The announced term. If this term differs from the term in the record, this node reads the record again. The
        /// announcement alone never changes the highest term that this node knows.
        term: Term,
        /// Time since the sender sent its last successful renewal.
        age: Duration,
        /// This node's place in the leader's order of succession, counted from 0, if the leader has given it a place.
        /// When the lease should become free, the first nodes in this order poll more often than the others.
        place: Option<u32>,
    },
    /// A node announces that it is giving up the lease.
    GivesUp {
        /// The sender's incarnation.
        from: String,
        /// See `place` in [`Hint::Leads`].
        place: Option<u32>,
    },
    /// This node no longer receives messages from another node.
    Silent {
        /// The silent node's incarnation.
        from: String,
    },
}

impl Hint {
    /// The incarnation of the node that the hint is about; `None` for [`Hint::Look`].
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        match self {
            Self::Look => None,
            Self::Leads { from, .. } | Self::GivesUp { from, .. } | Self::Silent { from } => Some(from),
        }
    }
}
