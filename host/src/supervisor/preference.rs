//! Whether this node asks for a lease that is free, or lets others have it first.
//!
//! It only ever keeps a node from asking: the elector hears that its request for the lease was not sent, reads again a
//! moment later, and asks again if the lease is free still. No promise depends on it, and nobody leads for longer than the
//! times below because of it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::timing::LONGEST_POLL;
use baton_election::{ElectionName, LeaseId, Time};

/// The highest priority, which waits for nobody.
pub const HIGHEST_PRIORITY: u8 = 100;

/// How long a node of the lowest priority lets others have a lease that is free: longer than it takes each of them to
/// look and to ask.
const LOWEST_WAITS: Duration = Duration::from_secs(2);

/// A node that leads as often as it should takes what has been free for so long.
const TAKEN_ANYWAY: Duration = Duration::from_secs(10);

/// The elections that a host leads or is about to. Clones are of the same host.
#[derive(Clone, Debug)]
pub struct Leads {
    /// How many there should be at the most; none for as many as there are.
    most: Option<usize>,
    now: Arc<Mutex<BTreeSet<ElectionName>>>,
}

impl Leads {
    /// None so far.
    #[must_use]
    pub fn at_most(most: Option<usize>) -> Self {
        Self { most, now: Arc::default() }
    }

    /// Counts an election, unless there are enough of them and nobody insists; tells whether it did.
    fn takes(&self, election: &ElectionName, insists: bool) -> bool {
        let mut now = self.lock();
        let has_room = self.most.is_none_or(|most| now.len() < most) || now.contains(election);
        if has_room || insists {
            now.insert(election.clone());
        }
        has_room || insists
    }

    /// Whether there are enough without this one.
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

/// What a node prefers in one election.
#[derive(Debug)]
pub struct Preference {
    election: ElectionName,
    priority: u8,
    leads: Leads,
    /// Since when the lease could have been asked for, if it can.
    free_since: Option<Time>,
    /// Under which id it was asked for last: it may be held under that.
    asked: Option<LeaseId>,
    /// Whether it was said that others may have it first.
    said: bool,
}

/// What a request for the lease may wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct MayWait {
    /// Whether it may for others to be first: before any term there was nobody who would lead again, and where this node is
    /// preferred it is the first.
    pub for_priority: bool,
    /// Whether it may for anything: not where operators ask that this node lead, nor where it has just given the lease up
    /// for another that did not take it.
    pub at_all: bool,
}

/// What becomes of a request for the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asks {
    /// It is sent.
    Now,
    /// It waits, for this reason if that is news.
    Later(Option<String>),
}

impl Preference {
    /// One of a node of that priority, of at most [`HIGHEST_PRIORITY`].
    #[must_use]
    pub fn new(election: ElectionName, priority: u8, leads: Leads) -> Self {
        Self { election, priority, leads, free_since: None, asked: None, said: false }
    }

    /// How early this node takes a lease that is free.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// How much longer than without it nobody may lead, where all other nodes are gone, of a host of so many elections.
    #[must_use]
    pub fn longest_wait(priority: u8, most: Option<usize>, elections: usize) -> Duration {
        let full = if most.is_some_and(|most| most < elections) { TAKEN_ANYWAY } else { Duration::ZERO };
        let wait = waits(priority).max(full);
        // It ends between two looks.
        if wait.is_zero() { wait } else { wait + LONGEST_POLL }
    }

    /// The elector asks for the lease under that id.
    pub(super) fn asks(&mut self, id: LeaseId, now: Time, may_wait: MayWait) -> Asks {
        if self.asked == Some(id) {
            // It may be held already.
            return Asks::Now;
        }
        let free_for = now.since(*self.free_since.get_or_insert(now));
        let insists = free_for >= TAKEN_ANYWAY || !may_wait.at_all;
        let why = if may_wait.for_priority && may_wait.at_all && free_for < waits(self.priority) {
            format!("priority {}", self.priority)
        } else if !self.leads.takes(&self.election, insists) {
            format!("this host may lead at most {} elections", self.leads.most.unwrap_or_default())
        } else {
            self.asked = Some(id);
            return Asks::Now;
        };
        let is_news = !std::mem::replace(&mut self.said, true);
        Asks::Later(is_news.then(|| format!("the lease is free, but this node lets other nodes take it first: {why}")))
    }

    /// Whether this host leads enough other elections, so that it would take this lease only if nobody else does.
    pub(super) fn leads_enough(&self) -> bool {
        self.leads.is_enough(&self.election)
    }

    /// Somebody leads, be it this node, or nobody may.
    pub(super) fn is_taken(&mut self) {
        (self.free_since, self.said) = (None, false);
    }

    /// This node neither holds the lease nor has asked for it.
    pub(super) fn follows(&mut self) {
        if self.asked.take().is_some() {
            self.leads.gives_back(&self.election);
        }
    }
}

/// How long a node of that priority lets others have a lease that is free.
fn waits(priority: u8) -> Duration {
    LOWEST_WAITS * u32::from(HIGHEST_PRIORITY.saturating_sub(priority)) / u32::from(HIGHEST_PRIORITY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    const LED: MayWait = MayWait { for_priority: true, at_all: true };
    const NEW: MayWait = MayWait { for_priority: false, at_all: true };
    const CALLED: MayWait = MayWait { for_priority: true, at_all: false };

    fn at(milliseconds: u64) -> Time {
        Time(Duration::from_millis(milliseconds))
    }

    fn id(number: u128) -> LeaseId {
        LeaseId::from_random(number)
    }

    fn of(election: &str, priority: u8, leads: &Leads) -> Preference {
        Preference::new(ElectionName::new(election).unwrap(), priority, leads.clone())
    }

    #[test]
    fn a_lower_priority_lets_others_have_what_is_free_for_a_while() {
        let leads = Leads::at_most(None);
        let mut highest = of("job", HIGHEST_PRIORITY, &leads);
        assert_eq!(highest.asks(id(1), at(0), LED), Asks::Now);
        let mut half = of("job", 50, &leads);
        let Asks::Later(Some(why)) = half.asks(id(2), at(5_000), LED) else { panic!("it waits") };
        assert!(why.contains("other nodes take it first: priority 50"), "{why}");
        assert_eq!(half.asks(id(3), at(5_999), LED), Asks::Later(None), "that is said once");
        assert_eq!(half.asks(id(4), at(6_000), LED), Asks::Now);
        // Of that, nobody knows whether it was carried out.
        half.is_taken();
        assert_eq!(half.asks(id(4), at(6_500), LED), Asks::Now);
        half.follows();
        assert!(matches!(half.asks(id(4), at(9_000), LED), Asks::Later(Some(_))), "it was another's meanwhile");
        half.is_taken();
        assert_eq!(half.asks(id(6), at(9_000), NEW), Asks::Now, "nobody has ever led");
        let (mut lowest, mut full) = (of("job", 0, &leads), of("job", 0, &Leads::at_most(Some(0))));
        assert_eq!([&mut lowest, &mut full].map(|one| one.asks(id(7), at(0), CALLED)), [Asks::Now, Asks::Now]);
    }

    #[test]
    fn a_host_that_leads_enough_takes_what_nobody_else_does() {
        let leads = Leads::at_most(Some(1));
        let (mut one, mut other) = (of("one", HIGHEST_PRIORITY, &leads), of("other", HIGHEST_PRIORITY, &leads));
        assert!(!other.leads_enough());
        assert_eq!(one.asks(id(1), at(0), NEW), Asks::Now);
        assert!(other.leads_enough() && !one.leads_enough());
        assert!(matches!(other.asks(id(2), at(0), NEW), Asks::Later(Some(_))));
        assert_eq!(other.asks(id(3), at(9_999), LED), Asks::Later(None));
        // The first was another's, who was faster.
        one.follows();
        one.is_taken();
        assert_eq!(other.asks(id(4), at(9_999), LED), Asks::Now);
        assert!(matches!(one.asks(id(5), at(20_000), LED), Asks::Later(Some(_))));
        assert_eq!(one.asks(id(6), at(30_000), LED), Asks::Now, "it was free for so long");
        one.follows();
        assert_eq!(leads.now.lock().unwrap().len(), 1);
        other.follows();
        other.follows();
        assert_eq!(leads.now.lock().unwrap().len(), 0);
    }

    #[test]
    fn what_the_host_says_of_a_takeover_counts_the_wait() {
        let longest = |priority, most, elections| Preference::longest_wait(priority, most, elections).as_millis();
        assert_eq!(longest(HIGHEST_PRIORITY, None, 50), 0);
        assert_eq!(longest(HIGHEST_PRIORITY, Some(50), 50), 0);
        assert_eq!(longest(50, Some(50), 50), 2_250);
        assert_eq!(longest(0, None, 1), 3_250);
        assert_eq!(longest(0, Some(49), 50), 11_250);
    }
}
