//! The instances that run in this host, for whoever asks what they use.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use baton_election::{ElectionName, Term};
use serde::{Deserialize, Serialize};

use super::limits::{Limits, Tally};

/// All instances that launchers with this value have started and that are not gone. Clones are the same.
#[derive(Clone, Default)]
pub struct Running(Arc<Mutex<Vec<Entry>>>);

struct Entry {
    election: ElectionName,
    term: Term,
    limits: Limits,
    requests: u64,
    tally: Weak<Tally>,
}

/// What an instance uses of each of its limits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InUse {
    /// Of memory, in bytes.
    pub memory: Share,
    /// Of table elements.
    pub table_elements: Share,
    /// Of core instances; of memories or tables where there are more of these.
    pub instances: Share,
    /// Of handles of the host.
    pub handles: Share,
    /// Of files, folders and listings that are open.
    pub files: Share,
    /// Of the host's memory for its handles, in bytes.
    pub kept: u64,
    /// Of requests over HTTP.
    pub requests: Share,
    /// Lines of output, in all.
    pub lines: u64,
    /// Those that were dropped beside them.
    pub dropped: u64,
    /// How many are taken in the long run.
    pub lines_per_second: u32,
}

/// What is used of one limit, at its peak so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// So much is used.
    pub used: u64,
    /// So much may be.
    pub limit: u64,
}

impl Running {
    pub(super) fn add(&self, election: &ElectionName, term: Term, limits: Limits, requests: u64, tally: &Arc<Tally>) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.tally.strong_count() > 0);
        entries.push(Entry { election: election.clone(), term, limits, requests, tally: Arc::downgrade(tally) });
    }

    /// What each uses now.
    pub fn in_use(&self) -> Vec<(ElectionName, Term, InUse)> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = |entry: &Entry| {
            let (limits, usage) = (entry.limits, entry.tally.upgrade()?.usage());
            let in_use = InUse {
                memory: Share { used: usage.memory, limit: limits.memory },
                table_elements: Share { used: usage.table_elements, limit: limits.table_elements },
                instances: Share { used: usage.instances, limit: limits.instances },
                handles: Share { used: usage.handles, limit: limits.handles },
                files: Share { used: usage.files, limit: limits.files },
                kept: usage.kept,
                requests: Share { used: usage.requests, limit: entry.requests },
                lines: usage.lines,
                dropped: usage.dropped,
                lines_per_second: limits.output,
            };
            Some((entry.election.clone(), entry.term, in_use))
        };
        entries.iter().filter_map(in_use).collect()
    }
}
