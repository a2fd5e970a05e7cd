//! Messages that the nodes of an election send each other, in addition to the store.
//!
//! Hints are untrusted. A hint moves a standby's next reading (later by [`LISTENING_POLL`] at most), or turns it into a
//! survey. Decisions about the lease follow only from readings, and each acquire carries the version of its reading.
//! [`Hint::Look`] also makes a holder renew earlier.

use alloc::string::String;
use core::time::Duration;

use crate::record::Term;
use crate::timing::Time;

/// Interval between two readings of a standby that hears its leader's renewals, ±25%.
pub const LISTENING_POLL: Duration = Duration::from_secs(10);

/// A leader's message to the other nodes: an effect of its elector.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Word {
    /// The sender leads.
    Leads {
        /// The term of its record.
        term: Term,
        /// The time just before the last successful renewal was sent, on the sender's clock. Other nodes receive its
        /// age.
        renewed: Time,
    },
    /// The sender gives the lease up: the record is marked, and the release is under way or done.
    GivesUp,
}

/// A message from another node, or from the kernel: an input.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Hint {
    /// A reading, or a holder's renewal, may show something new.
    Look,
    /// A node announces that it leads.
    Leads {
        /// The sender's incarnation.
        from: String,
        /// The announced term. If the record names another one, this node reads again. It raises no term.
        term: Term,
        /// The age of the sender's last renewal, counted from its sending.
        age: Duration,
        /// This node's place in the order of succession, from 0, if it has one.
        place: Option<u32>,
    },
    /// A node announces that it gives the lease up.
    GivesUp {
        /// The sender's incarnation.
        from: String,
        /// See [`Hint::Leads`].
        place: Option<u32>,
    },
    /// A node is no longer heard.
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
