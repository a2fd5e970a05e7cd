//! What the nodes of an election tell each other, beside the store.
//!
//! Nothing of it is believed. It makes a standby's next reading earlier, or, for [`LISTENING_POLL`] at the most, later, or
//! has it ask for more at once: what a node does about the lease follows from a reading alone, and each acquire carries the
//! version of that. What the kernel tells of the store also makes a holder's next renewal earlier.

use alloc::string::String;
use core::time::Duration;

use crate::record::Term;
use crate::timing::Time;

/// From one reading to the next of a standby that hears its leader's renewals, a quarter more or less.
pub const LISTENING_POLL: Duration = Duration::from_secs(10);

/// What a leader has told others: an effect of its elector.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Word {
    /// It leads.
    Leads {
        /// The term of its record.
        term: Term,
        /// Just before its last renewal known to have succeeded was sent, by its own clock. Others are told how long ago
        /// that is.
        renewed: Time,
    },
    /// It gives the lease up: the record is marked, and the release is under way or done.
    GivesUp,
}

/// What was heard: an input.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Hint {
    /// A reading may show something new, or a renewal.
    Look,
    /// A node says that it leads.
    Leads {
        /// Its incarnation.
        from: String,
        /// The term that it names. It raises nothing: where the record names another, that is a reason to read.
        term: Term,
        /// How long ago its last renewal was sent.
        age: Duration,
        /// The place of this node in the order of succession, from 0 on, if it has one.
        place: Option<u32>,
    },
    /// A node says that it gives the lease up.
    GivesUp {
        /// Its incarnation.
        from: String,
        /// See [`Hint::Leads`].
        place: Option<u32>,
    },
    /// Nothing more is heard of a node.
    Silent {
        /// Its incarnation.
        from: String,
    },
}

impl Hint {
    /// The incarnation that it is of, where that is said.
    #[must_use]
    pub fn from(&self) -> Option<&str> {
        match self {
            Self::Look => None,
            Self::Leads { from, .. } | Self::GivesUp { from, .. } | Self::Silent { from } => Some(from),
        }
    }
}
