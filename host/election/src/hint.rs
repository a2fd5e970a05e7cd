//! Messages between the nodes of an election, which supplement the store.
//!
//! Hints are untrusted. A hint makes a standby's next reading earlier or later (at most [`LISTENING_POLL`] later), or
//! turns the reading into a survey. Decisions about the lease follow only from readings, and each acquire carries the
//! version that its reading returned. [`Hint::Look`] also makes a holder renew earlier.

use alloc::string::String;
use core::time::Duration;

use crate::record::Term;
use crate::timing::Time;

/// Polling interval of a standby that hears its leader's renewals, ±25%.
pub const LISTENING_POLL: Duration = Duration::from_secs(10);

/// A leader's message to the other nodes: an effect of its elector.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Word {
    /// The sender leads.
    Leads {
        /// The term of its record.
        term: Term,
        /// The time just before the last successful renewal was sent, on the sender's clock. Other nodes receive it as
        /// an age.
        renewed: Time,
    },
    /// The sender is giving up the lease: the record is marked, and the release is under way or done.
    GivesUp,
}

/// A message from another node, or from the kernel: an input.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Hint {
    /// A reading by a standby, or a renewal by the holder, may show something new.
    Look,
    /// A node announces that it leads.
    Leads {
        /// The sender's incarnation.
        from: String,
        /// The announced term. If it differs from the record's term, this node reads again. It never raises a term that
        /// this node knows.
        term: Term,
        /// Time since the sender sent its last successful renewal.
        age: Duration,
        /// This node's place in the order of succession, from 0, if it has one.
        place: Option<u32>,
    },
    /// A node announces that it is giving up the lease.
    GivesUp {
        /// The sender's incarnation.
        from: String,
        /// See [`Hint::Leads`].
        place: Option<u32>,
    },
    /// Messages from a node no longer arrive.
    Silent {
        /// The silent node's incarnation.
        from: String,
    },
}

impl Hint {
    /// The incarnation that the hint is about, if it names one.
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        match self {
            Self::Look => None,
            Self::Leads { from, .. } | Self::GivesUp { from, .. } | Self::Silent { from } => Some(from),
        }
    }
}
