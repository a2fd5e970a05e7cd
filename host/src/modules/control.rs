//! What an election is told about its modules: `ELECTION/control`.
//!
//! It is a list of versions in the order in which they were pushed. The **current** one is the newest that is
//! not rejected: so a push, a rollback and a rejection are each one conditional write, and two at once end
//! with one of them current and both kept.

use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// All versions of an election's coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Control {
    /// How often anything was pushed or rolled back to: the serial of the newest entry.
    pub serial: u64,
    /// What was pushed, in that order; each digest once, at its last place.
    pub pushed: Vec<Entry>,
    /// What was judged without having been pushed: modules from files and registries, the oldest first.
    pub unpushed: Vec<Entry>,
}

/// A version, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// What it is.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Which publishing this is.
    pub serial: u64,
    /// Who did it, where that is known: `USER@HOST` of a push, a node's id of a judgement.
    pub by: String,
    /// When, in RFC 3339.
    pub at: String,
    /// The text of its minisign signature.
    pub signature: Option<String>,
    /// What has become of it; none as long as nobody knows.
    pub verdict: Option<Verdict>,
}

/// What has become of a version that ran.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Its probation is over.
    Good,
    /// It is not run any more, until it is pushed again.
    Rejected {
        /// Why, for a person.
        reason: String,
        /// The node that found out.
        node: String,
        /// When, in RFC 3339.
        at: String,
    },
}

/// Why a control object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// It is damaged, or somebody else's.
    #[error("the election's control object is damaged: {0}; `baton push` refuses to touch it, so repair or delete it")]
    Damaged(String),
    /// It is of a later version of Baton.
    #[error("the election's control object has format {0}, and this version of Baton reads 1: update this host")]
    Format(u64),
}

impl Control {
    /// What every node should run: the newest that is not rejected.
    #[must_use]
    pub fn current(&self) -> Option<&Entry> {
        self.candidates().next()
    }

    /// What it runs instead while the current one is on probation.
    #[must_use]
    pub fn fallback(&self) -> Option<&Entry> {
        let on_probation = self.current()?.verdict.is_none();
        self.candidates().nth(1).filter(|_| on_probation)
    }

    fn candidates(&self) -> impl Iterator<Item = &Entry> {
        self.pushed.iter().rev().filter(|entry| !matches!(entry.verdict, Some(Verdict::Rejected { .. })))
    }
}
