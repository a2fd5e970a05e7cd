//! Decides whether this node requests a free lease at once or lets other nodes acquire it first.
//!
//! A deferral only keeps a node from requesting the lease. The elector learns that its request was not sent. A moment
//! later, it reads the lease again, and requests it if it is still free. No guarantee depends on deferrals, and they
//! delay a takeover by no more than the times below.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::timing::LONGEST_POLL;
use baton_election::{ElectionName, LeaseId, Time};

/// The highest priority. A node with this priority never defers to others.
pub const HIGHEST_PRIORITY: u8 = 100;

/// Deferral by a node with the lowest priority: longer than other nodes need to read the lease and request it.
const MAX_DEFERRAL: Duration = Duration::from_secs(2);

/// Time after which a node takes a free lease even if it already leads enough elections.
const TAKE_ANYWAY_AFTER: Duration = Duration::from_secs(10);

/// The elections that a host leads or is about to lead, and their maximum number. Clones share the set.
#[derive(Clone, Debug)]
pub struct LeadershipQuota {
    /// Maximum number of elections. `None` for no limit.
    most: Option<usize>,
    now: Arc<Mutex<BTreeSet<ElectionName>>>,
}

impl LeadershipQuota {
    /// Creates an empty set with a maximum size.
    #[must_use]
    pub fn at_most(most: Option<usize>) -> Self {
        Self { most, now: Arc::default() }
    }

    /// Adds an election if there is room or the caller insists. Returns true if it was added.
    fn takes(&self, election: &ElectionName, insists: bool) -> bool {
        let mut now = self.lock();
        let has_room = self.most.is_none_or(|most| now.len() < most) || now.contains(election);
        if has_room || insists {
            now.insert(election.clone());
        }
        has_room || insists
    }

    /// True if the host already leads the maximum number of other elections.
    fn is_enough(&self, election: &ElectionName) -> bool {
        self.most.is_some_and(|most| {
            let now = self.lock();
            now.len() >= most && !now.contains(election)
        })
    }

    fn gives_back(&self, election: &ElectionName) {
        self.lock().remove(election);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ElectionName>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// This node's preference in one election.
#[derive(Debug)]
pub struct Preference {
    election: ElectionName,
    priority: u8,
    leads: LeadershipQuota,
    /// The time since which this node could have requested the lease; `None` while it cannot.
    free_since: Option<Time>,
    /// The id used in the last request. The node may hold the lease under this id.
    last_request: Option<LeaseId>,
    /// True once the deferral has been logged.
    is_logged: bool,
}

/// Conditions under which a request for the lease may be deferred.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferRules {
    /// True if the request may wait for nodes with a higher priority. False before the first term, and if this node is
    /// the target of a transfer.
    pub for_priority: bool,
    /// True if the request may be deferred at all. False if an operator transfers the lease to this node, or if this
    /// node released the lease for a transfer that found no successor.
    pub at_all: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum AcquireDecision {
    Now,
    /// Defer the request. Contains the reason if it has not been logged yet.
    Later(Option<String>),
}

impl Preference {
    /// Creates a preference with a priority of at most [`HIGHEST_PRIORITY`].
    #[must_use]
    pub fn new(election: ElectionName, priority: u8, leads: LeadershipQuota) -> Self {
        Self { election, priority, leads, free_since: None, last_request: None, is_logged: false }
    }

    /// Returns the priority. Nodes with a higher priority acquire a free lease earlier.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// Returns the longest time by which deferrals delay a takeover if no other node is available. `elections` is the
    /// number of elections in which this host takes part.
    #[must_use]
    pub fn longest_wait(priority: u8, most: Option<usize>, elections: usize) -> Duration {
        let full = if most.is_some_and(|most| most < elections) { TAKE_ANYWAY_AFTER } else { Duration::ZERO };
        let wait = deferral(priority).max(full);
        // The deferral ends between two polls.
        if wait.is_zero() { wait } else { wait + LONGEST_POLL }
    }

    /// Decides on the elector's request for the lease under an id.
    pub(super) fn asks(&mut self, id: LeaseId, now: Time, may_wait: DeferRules) -> AcquireDecision {
        if self.last_request == Some(id) {
            // The node may already hold the lease.
            return AcquireDecision::Now;
        }
        let free_for = now.since(*self.free_since.get_or_insert(now));
        let insists = free_for >= TAKE_ANYWAY_AFTER || !may_wait.at_all;
        let why = if may_wait.for_priority && may_wait.at_all && free_for < deferral(self.priority) {
            format!("priority {}", self.priority)
        } else if !self.leads.takes(&self.election, insists) {
            format!("this host may lead at most {} elections", self.leads.most.unwrap_or_default())
        } else {
            self.last_request = Some(id);
            return AcquireDecision::Now;
        };
        let is_news = !std::mem::replace(&mut self.is_logged, true);
        AcquireDecision::Later(
            is_news.then(|| format!("the lease is free, but this node lets other nodes take it first: {why}")),
        )
    }

    /// True if this host leads so many other elections that it would acquire this lease only if no other node does.
    pub(super) fn leads_enough(&self) -> bool {
        self.leads.is_enough(&self.election)
    }

    /// Records that a node leads, or that no node may lead.
    pub(super) fn is_taken(&mut self) {
        (self.free_since, self.is_logged) = (None, false);
    }

    /// Records that this node neither holds nor has requested the lease.
    pub(super) fn follows(&mut self) {
        if self.last_request.take().is_some() {
            self.leads.gives_back(&self.election);
        }
    }
}

fn deferral(priority: u8) -> Duration {
    MAX_DEFERRAL * u32::from(HIGHEST_PRIORITY.saturating_sub(priority)) / u32::from(HIGHEST_PRIORITY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    const LED: DeferRules = DeferRules { for_priority: true, at_all: true };
    const NEW: DeferRules = DeferRules { for_priority: false, at_all: true };
    const CALLED: DeferRules = DeferRules { for_priority: true, at_all: false };

    fn at(milliseconds: u64) -> Time {
        Time(Duration::from_millis(milliseconds))
    }

    fn id(number: u128) -> LeaseId {
        LeaseId::from_random(number)
    }

    fn of(election: &str, priority: u8, leads: &LeadershipQuota) -> Preference {
        Preference::new(ElectionName::new(election).unwrap(), priority, leads.clone())
    }

    #[test]
    fn lower_priority_defers_a_free_lease_for_a_while() {
        let leads = LeadershipQuota::at_most(None);
        let mut highest = of("job", HIGHEST_PRIORITY, &leads);
        assert_eq!(highest.asks(id(1), at(0), LED), AcquireDecision::Now);
        let mut half = of("job", 50, &leads);
        let AcquireDecision::Later(Some(why)) = half.asks(id(2), at(5_000), LED) else {
            panic!("a lower priority should wait")
        };
        assert!(why.contains("other nodes take it first: priority 50"), "{why}");
        assert_eq!(half.asks(id(3), at(5_999), LED), AcquireDecision::Later(None), "the reason is logged once");
        assert_eq!(half.asks(id(4), at(6_000), LED), AcquireDecision::Now);
        // The outcome of the request is unknown.
        half.is_taken();
        assert_eq!(half.asks(id(4), at(6_500), LED), AcquireDecision::Now);
        half.follows();
        assert!(
            matches!(half.asks(id(4), at(9_000), LED), AcquireDecision::Later(Some(_))),
            "another node has led since"
        );
        half.is_taken();
        assert_eq!(half.asks(id(6), at(9_000), NEW), AcquireDecision::Now, "nobody has ever led");
        let (mut lowest, mut full) = (of("job", 0, &leads), of("job", 0, &LeadershipQuota::at_most(Some(0))));
        assert_eq!(
            [&mut lowest, &mut full].map(|one| one.asks(id(7), at(0), CALLED)),
            [AcquireDecision::Now, AcquireDecision::Now]
        );
    }

    #[test]
    fn host_that_leads_enough_takes_a_lease_nobody_else_takes() {
        let leads = LeadershipQuota::at_most(Some(1));
        let (mut one, mut other) = (of("one", HIGHEST_PRIORITY, &leads), of("other", HIGHEST_PRIORITY, &leads));
        assert!(!other.leads_enough());
        assert_eq!(one.asks(id(1), at(0), NEW), AcquireDecision::Now);
        assert!(other.leads_enough() && !one.leads_enough());
        assert!(matches!(other.asks(id(2), at(0), NEW), AcquireDecision::Later(Some(_))));
        assert_eq!(other.asks(id(3), at(9_999), LED), AcquireDecision::Later(None));
        // Another node acquired the first lease sooner.
        one.follows();
        one.is_taken();
        assert_eq!(other.asks(id(4), at(9_999), LED), AcquireDecision::Now);
        assert!(matches!(one.asks(id(5), at(20_000), LED), AcquireDecision::Later(Some(_))));
        assert_eq!(one.asks(id(6), at(30_000), LED), AcquireDecision::Now, "the lease was free for 10 s");
        one.follows();
        assert_eq!(leads.now.lock().unwrap().len(), 1);
        other.follows();
        other.follows();
        assert_eq!(leads.now.lock().unwrap().len(), 0);
    }

    #[test]
    fn longest_wait_includes_deferral_and_poll() {
        let longest = |priority, most, elections| Preference::longest_wait(priority, most, elections).as_millis();
        assert_eq!(longest(HIGHEST_PRIORITY, None, 50), 0);
        assert_eq!(longest(HIGHEST_PRIORITY, Some(50), 50), 0);
        assert_eq!(longest(50, Some(50), 50), 2_250);
        assert_eq!(longest(0, None, 1), 3_250);
        assert_eq!(longest(0, Some(49), 50), 11_250);
    }
}
