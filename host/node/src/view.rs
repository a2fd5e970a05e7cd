//! A node's view of one election.
//!
//! After each input, the supervisor publishes a [`NodeView`]. The metrics, the status, the announcement and the links
//! all read the latest view.

use std::time::Duration;

use baton_election::{
    LeaseState, Outcome, Progress, Recalled, Record, Reply, Report, Snapshot, StoreError, Term, Time,
};
use baton_store::{AnnouncedLink, Digest};

/// A node's view of one election, after its supervisor has handled an input.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeView {
    /// The highest term seen so far; 0 before the first one.
    pub term: Term,
    /// The progress of the election's scheduled runs, as far as this node knows.
    pub progress: Option<Box<Progress>>,
    /// The number of consecutive failures of the coordinator, while this node holds the lease; otherwise 0.
    pub failures: u32,
    /// The leader, if this node knows it.
    pub leader: Option<String>,
    /// The deadline, while this node holds the lease.
    pub deadline: Option<Time>,
    /// The term in which this node leads, from the election until the lease is lost or released.
    pub leads: Option<Term>,
    /// The instance, from its start until its process has been reaped.
    pub instance: Option<InstanceView>,
    /// The module that this node would run.
    pub module: Option<Digest>,
    /// The operator's command that prevents this node from leading, if there is one.
    pub command: Option<String>,
    /// The reason, as a single word, why this node would not acquire the lease now, if there is one.
    pub ineligible: Option<&'static str>,
    /// The identifier of the last steering object that this node has read, if any. Other nodes use the identifier to
    /// check that this node knows the current commands.
    pub steered: Option<String>,
    /// True if the host leads `--max-leaderships` other elections.
    pub at_leadership_limit: bool,
    /// The node to which this node has a link, if any.
    pub link: Option<AnnouncedLink>,
    /// True while this node is drained and its last term is completely over: no instance is running, and there is no
    /// lease to release.
    pub is_drained: bool,
    /// True while the host is shutting down and no longer runs an instance.
    pub is_leaving: bool,
    /// True once the store has responded.
    pub has_store: bool,
    /// True if the last reading showed no leader, or if this node itself has just stopped leading.
    pub is_vacant: bool,
    /// The other node that leads. Cleared once a reading shows no leader, so that a later term of the same node counts
    /// as another change of leader.
    pub followed: Option<String>,
    /// True once this node knows which node leads, or that no node leads.
    pub has_looked: bool,
    /// True if this node's last leadership was lost, and false if the lease was released.
    pub was_lost: bool,
}

/// An instance on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstanceView {
    /// The term that the instance serves.
    pub term: Term,
    /// The module that the instance runs.
    pub module: Digest,
    /// True once the host has killed the instance.
    pub is_killed: bool,
}

impl NodeView {
    /// Returns the term in which this node leads, and the time left until its deadline.
    #[must_use]
    pub fn leads(&self, now: Time) -> Option<(Term, Duration)> {
        let left = self.deadline?.since(now);
        self.leads.filter(|_| left > Duration::ZERO).map(|term| (term, left))
    }

    /// The progress of the scheduled runs, if the election has a schedule.
    #[must_use]
    pub fn scheduled(&self) -> Option<&Progress> {
        self.progress.as_deref().filter(|progress| progress.has_schedule())
    }

    /// Returns the highest term and the progress. This node announces both, so that they are not lost if an operator
    /// deletes the lease record.
    pub(crate) fn recalled(&self) -> Recalled {
        Recalled { term: self.term, progress: self.progress.clone() }
    }

    pub(crate) fn note_answer(&mut self, answer: &Result<Reply, StoreError>) {
        self.has_store |= answer.is_ok();
        let Some(snapshot) = snapshot(answer) else { return };
        self.is_vacant = is_vacant(snapshot);
        if self.is_vacant {
            (self.has_looked, self.followed) = (true, None);
        }
        if let Snapshot::Object { lease, record: Some(record), .. } = snapshot
            && self.leads.is_none()
        {
            self.leader = record.node.clone().filter(|_| leads(*lease, record));
        }
    }

    pub(crate) fn note_report(&mut self, report: &Report) {
        match report {
            Report::Elected { record } => {
                (self.leader, self.followed, self.has_looked) = (record.node.clone(), None, true);
                self.leads = Some(record.term);
            }
            Report::Following { leader } => {
                self.leader.clone_from(&leader.node);
                (self.followed, self.has_looked) = (leader.node.clone(), true);
            }
            Report::Standby { .. } | Report::Released => self.leadership_ends(false),
            Report::Lost { .. } | Report::NotReleased { .. } => self.leadership_ends(true),
            _ => {}
        }
    }

    fn leadership_ends(&mut self, was_lost: bool) {
        if self.leads.take().is_some() {
            (self.leader, self.is_vacant, self.was_lost) = (None, true, was_lost);
        }
    }
}

pub(crate) fn snapshot(answer: &Result<Reply, StoreError>) -> Option<&Snapshot> {
    match answer {
        Ok(Reply::Read(snapshot) | Reply::Surveyed { read: snapshot, .. }) => Some(snapshot),
        _ => None,
    }
}

fn leads(lease: LeaseState, record: &Record) -> bool {
    matches!(lease, LeaseState::Held | LeaseState::Breaking) && record.node.is_some() && !record.released
}

/// True if the snapshot shows no leader, unless the election is finished and needs none.
fn is_vacant(snapshot: &Snapshot) -> bool {
    match snapshot {
        Snapshot::Object { lease, record: Some(record), .. } => {
            record.outcome != Some(Outcome::Done) && !leads(*lease, record)
        }
        Snapshot::Object { record: None, .. } | Snapshot::Nothing => true,
    }
}
