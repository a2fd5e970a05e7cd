//! The state of a node in one election, for everything that observes the node from the outside.
//!
//! Most of the state is derived from log events, so that the log and the metrics agree. The supervisor reports the
//! rest. Both run on threads that renew and kill. So the counters are atomic, and everything else is behind a lock that
//! is held only while a few values are copied.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::{ElectionName, LeaseState, Op, Outcome, Record, Reply, Snapshot, StoreError, Term, Time};
use baton_runtime::Effects;
use baton_store::clock::{rfc3339, wall};
use baton_store::jitter::Moments;
use baton_store::{ChangeNotifier, Digest, Listens};

use super::Event;
use super::counts::{Counts, Ended, StoreOp, Transition};
use super::heartbeat::Heartbeat;
use super::queue::Share;
use super::ring::Ring;
use super::terms::Terms;

/// Capacity for the instances' output: for all elections together, and the minimum and maximum per election, in bytes.
const LINES: usize = 16 << 20;
const LINES_EACH: (usize, usize) = (64 << 10, 1 << 20);

/// Tracks one node's state in one election.
#[derive(Debug)]
pub struct ElectionTracker {
    /// The election.
    pub election: ElectionName,
    /// The lease duration.
    pub lease: Duration,
    /// The counters.
    pub counts: Counts,
    /// The terms that this node has served.
    pub terms: Terms,
    /// The most recent output of instances on this node.
    pub lines: Arc<Ring>,
    /// Limit on the output that waits for the log's reader.
    pub(super) share: Share,
    /// Notifies the tasks that read the election's objects, or lets them poll less often.
    pub notifier: ChangeNotifier,
    known: Mutex<StatusSnapshot>,
    /// The supervisor's heartbeat.
    pub heartbeat: Heartbeat,
}

/// A snapshot of what this node knows about an election.
#[derive(Clone, Debug, Default)]
pub struct StatusSnapshot {
    /// The highest term seen so far; 0 before the first one.
    pub term: Term,
    /// The leader, as far as this node knows.
    pub leader: Option<String>,
    /// The module that this node would run.
    pub module: Option<Digest>,
    /// True once the store has responded.
    pub has_store: bool,
    /// True once this node has had a module to run, or has found the source to be empty.
    pub has_module: bool,
    /// The operators' command that prevents this node from leading, if any.
    pub stays_out: Option<String>,
    /// The node to which this node has a link, if any.
    pub listens: Option<Listens>,
    /// Number of nodes that have a link to this node.
    pub listeners: u32,
    /// Number of hints received.
    pub hints: u64,
    /// True while this node is drained and its last term is completely over: no instance is running, and there is no
    /// lease to release.
    pub is_out: bool,
    leads: Option<Term>,
    /// The deadline; set while this node holds the lease.
    deadline: Option<Time>,
    /// True from the first instruction of the instance until it is killed or ends.
    runs: bool,
    /// True from a kill until the instance has ended.
    killed: bool,
    /// True once this node knows who leads, or that nobody does.
    has_looked: bool,
    /// The last leader, unless a later read showed that there was none.
    last_leader: Option<String>,
    /// True as long as no module has ever been pushed, which means that no node can lead.
    awaits_push: bool,
    /// True if the last read showed that there was no leader. False before the first read.
    is_vacant: bool,
    /// The effects of all instances that have ended, and the term of the last one.
    effects: (Effects, Term),
    vacant_since: Option<Time>,
    vacant: Duration,
}

impl StatusSnapshot {
    /// Returns the term in which this node leads, and the time left until its deadline.
    #[must_use]
    pub fn leads(&self, now: Time) -> Option<(Term, Duration)> {
        let left = self.deadline?.since(now);
        self.leads.filter(|_| left > Duration::ZERO).map(|term| (term, left))
    }

    /// True if an instance is running here and its effects are allowed.
    #[must_use]
    pub fn serves(&self, now: Time) -> bool {
        self.runs && self.leads(now).is_some()
    }

    /// Returns the total time without a leader, as observed by this node.
    #[must_use]
    pub fn vacant(&self, now: Time) -> Duration {
        self.vacant + self.vacant_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns the effects of all instances since the host started. The caller must read the effects of the `running`
    /// instance before it takes this snapshot.
    #[must_use]
    pub fn effects(&self, running: Option<(Term, Effects)>) -> Effects {
        let (gone, last) = self.effects;
        running.filter(|(term, _)| *term > last).map_or(gone, |(_, running)| gone + running)
    }

    /// True once the node has been able to take over. A later store outage or a rejected version does not change that.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_store && self.has_module
    }
}

impl ElectionTracker {
    /// Creates a tracker that knows nothing yet.
    #[must_use]
    pub fn new(election: ElectionName, lease: Duration) -> Self {
        Self::one_of(1, election, lease)
    }

    /// Creates a tracker for a node that takes part in this number of elections.
    #[must_use]
    pub fn one_of(elections: usize, election: ElectionName, lease: Duration) -> Self {
        let lines = (LINES / elections.max(1)).clamp(LINES_EACH.0, LINES_EACH.1);
        let (lines, share) = (Arc::new(Ring::of(lines)), Share::one_of(elections));
        let (counts, terms, notifier, known, heartbeat) = Default::default();
        Self { election, lease, counts, terms, lines, share, notifier, known, heartbeat }
    }

    /// Sets the times at which to perform reads that can wait.
    #[must_use]
    pub fn reading_at(self, moments: Moments) -> Self {
        Self { notifier: ChangeNotifier::at(moments), ..self }
    }

    /// Returns a snapshot of the current state.
    #[must_use]
    pub fn known(&self) -> StatusSnapshot {
        self.lock().clone()
    }

    /// Records one iteration of the supervisor: the term that it knows and, if it holds the lease, the deadline.
    pub fn record_round(&self, now: Time, term: Term, deadline: Option<Time>) {
        self.heartbeat.beat(now);
        let mut known = self.lock();
        known.term = known.term.max(term);
        known.deadline = deadline;
        let is_vacant = known.is_vacant && known.leads.is_none() && !known.awaits_push;
        if is_vacant != known.vacant_since.is_some() {
            known.vacant = known.vacant(now);
            let since = std::mem::replace(&mut known.vacant_since, is_vacant.then_some(now));
            if let (Some(since), true) = (since, known.leads.is_some()) {
                self.terms.follows_on(now.since(since));
            }
        }
    }

    /// Sets [`StatusSnapshot::is_out`].
    pub fn is_out(&self, is_out: bool) {
        self.lock().is_out = is_out;
    }

    /// Records that the instance of a term has ended, and its effects.
    pub fn is_gone(&self, term: Term, effects: Effects) {
        let mut known = self.lock();
        known.effects = (known.effects.0 + effects, term);
    }

    /// Sets the module that this node would run.
    pub fn set_module(&self, module: Option<Digest>) {
        let mut known = self.lock();
        known.has_module |= module.is_some();
        known.awaits_push &= module.is_none();
        known.module = module;
    }

    /// Sets the operators' command that prevents this node from leading.
    pub fn stays_out(&self, why: Option<String>) {
        self.lock().stays_out = why;
    }

    /// Sets the node to which this node has a link.
    pub fn listens(&self, to: Option<String>) {
        self.lock().listens = to.map(|to| Listens { to, since: rfc3339(wall()) });
    }

    /// Returns the node to which this node has a link.
    pub fn listens_to(&self) -> Option<Listens> {
        self.lock().listens.clone()
    }

    /// Sets the number of nodes that have a link to this node.
    pub fn listeners(&self, count: u32) {
        self.lock().listeners = count;
    }

    /// Counts a received hint.
    pub fn record_hint(&self) {
        self.lock().hints += 1;
    }

    /// Records that the source responds and is empty.
    pub fn set_awaits_push(&self) {
        let mut known = self.lock();
        (known.has_module, known.awaits_push) = (true, true);
    }

    /// Records the result and the duration of a request to the store.
    pub fn record_request(&self, what: StoreOp, result: &Result<Reply, StoreError>, took: Duration) {
        self.counts.asked(what, result, took);
        let mut known = self.lock();
        known.has_store |= result.is_ok();
        if let Ok(Reply::Read(snapshot) | Reply::Surveyed { read: snapshot, .. }) = result {
            known.is_vacant = is_vacant(snapshot);
            if known.is_vacant {
                (known.has_looked, known.last_leader) = (true, None);
            }
            if let Snapshot::Object { lease, record: Some(record), .. } = snapshot {
                known.term = known.term.max(record.term);
                if known.leads.is_none() {
                    self.terms.has_read(record);
                    known.leader = record.node.clone().filter(|_| leads(*lease, record));
                }
            }
        }
    }

    pub(super) fn observe(&self, node: &str, term: Option<Term>, event: &Event) {
        self.terms.observe(term, event);
        match event {
            Event::Elected { .. } => {
                let mut known = self.lock();
                (known.leader, known.last_leader, known.has_looked) = (Some(node.to_owned()), None, true);
                // Every term under a lease has an event, but only the first term is a change of leader.
                if std::mem::replace(&mut known.leads, term).is_none() {
                    self.counts.changed(Transition::Elected);
                }
            }
            Event::Standby { leader: Some(leader), .. } => {
                let mut known = self.lock();
                known.leader = Some(leader.clone());
                let before = known.last_leader.replace(leader.clone());
                // A new term of the same leader is not a change, and neither is the leader found when the host starts.
                if std::mem::replace(&mut known.has_looked, true) && before.as_ref() != Some(leader) {
                    self.counts.changed(Transition::Other);
                }
            }
            Event::Standby { .. } | Event::Released {} => self.end_leadership(Transition::Released),
            Event::LeadershipLost { .. } | Event::ReleaseFailed { .. } => self.end_leadership(Transition::Lost),
            Event::Started { .. } => {
                self.lock().runs = true;
                self.counts.started();
            }
            Event::Killed { .. } => {
                let mut known = self.lock();
                (known.runs, known.killed) = (false, true);
            }
            Event::Ended { outcome, took_s, .. } => {
                let mut known = self.lock();
                known.runs = false;
                let took = std::mem::take(&mut known.killed).then_some(took_s.0);
                self.counts.ended(Ended::of(outcome), took);
            }
            Event::Swapped { gap_s, .. } => self.counts.swapped(gap_s.0),
            Event::OutputDropped { lines, .. } => self.counts.dropped(*lines),
            _ => {}
        }
    }

    fn end_leadership(&self, how: Transition) {
        let mut known = self.lock();
        if known.leads.take().is_some() {
            (known.leader, known.runs, known.is_vacant) = (None, false, true);
            self.counts.changed(how);
        }
    }

    fn lock(&self) -> MutexGuard<'_, StatusSnapshot> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Op> for StoreOp {
    fn from(op: &Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Recall => Self::Recall,
            Op::Survey => Self::Survey,
            Op::Create { .. } => Self::Create,
            Op::Acquire { .. } => Self::Acquire,
            Op::Reclaim { .. } => Self::Reclaim,
            Op::Renew { .. } => Self::Renew,
            Op::Write { .. } => Self::Write,
            Op::Release { .. } => Self::Release,
        }
    }
}

fn leads(lease: LeaseState, record: &Record) -> bool {
    matches!(lease, LeaseState::Held | LeaseState::Breaking) && record.node.is_some() && !record.released
}

/// True if the snapshot shows that a leader is missing. A finished election needs no leader.
fn is_vacant(snapshot: &Snapshot) -> bool {
    match snapshot {
        Snapshot::Object { lease, record: Some(record), .. } => {
            record.outcome != Some(Outcome::Done) && !leads(*lease, record)
        }
        Snapshot::Object { record: None, .. } | Snapshot::Nothing => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::Version;
    use baton_runtime::{Effect, Usage};

    use super::*;
    use crate::telemetry::StoreResult;

    fn tracker() -> ElectionTracker {
        ElectionTracker::new(ElectionName::new("job").unwrap(), Duration::from_secs(15))
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn read(lease: LeaseState, change: impl FnOnce(&mut Record)) -> Result<Reply, StoreError> {
        let mut record = Record {
            term: 3,
            node: Some("other".to_owned()),
            incarnation: "i".to_owned(),
            since: Duration::from_secs(9),
            lease: Duration::from_secs(15),
            module: Some("sha256:ab".to_owned()),
            outcome: None,
            failures: 0,
            released: false,
            rests_until: None,
        };
        change(&mut record);
        Ok(Reply::Read(Snapshot::Object { lease, version: Version(String::new()), record: Some(record) }))
    }

    fn says(tracker: &ElectionTracker, term: Option<Term>, event: Event) {
        tracker.observe("here", term, &event);
    }

    fn elected() -> Event {
        Event::Elected { module: String::new(), failures: 0 }
    }

    fn gone(outcome: &str, took: Duration) -> Event {
        Event::Ended { outcome: outcome.to_owned(), message: None, took_s: took.into(), usage: Usage::default() }
    }

    fn changes(tracker: &ElectionTracker) -> [u64; 4] {
        [Transition::Elected, Transition::Other, Transition::Released, Transition::Lost]
            .map(|transition| tracker.counts.transitions(transition))
    }

    #[test]
    fn node_leads_until_deadline_even_if_supervisor_hangs() {
        let tracker = tracker();
        says(&tracker, Some(4), elected());
        says(&tracker, Some(4), Event::Started { module: String::new(), took_s: Duration::ZERO.into() });
        tracker.record_round(at(10), 4, Some(at(22)));
        let known = tracker.known();
        assert_eq!(known.leads(at(21)), Some((4, Duration::from_secs(1))));
        assert!(known.serves(at(21)));
        assert!(!known.serves(at(22)), "its effects are refused from here on");
        assert_eq!(known.leads(at(22)), None);
        assert_eq!(tracker.heartbeat.since(at(21)), Some(Duration::from_secs(11)));
        // Between terms under the same lease, the node leads without an instance.
        says(&tracker, Some(4), gone("done", Duration::ZERO));
        assert_eq!((tracker.known().serves(at(11)), tracker.known().leads(at(11)).is_some()), (false, true));
        says(&tracker, Some(5), elected());
        assert_eq!(changes(&tracker), [1, 0, 0, 0], "another term of the same lease changes nothing");
        tracker.record_round(at(12), 5, None);
        assert_eq!(tracker.known().leads(at(12)), None, "without a lease nobody leads");
    }

    #[test]
    fn each_change_of_leader_is_counted_once() {
        let tracker = tracker();
        let follows = |node: &str| Event::Standby { reason: String::new(), leader: Some(node.to_owned()) };
        says(&tracker, Some(3), follows("other"));
        assert_eq!(changes(&tracker), [0, 0, 0, 0], "the leader at the host's start is no change");
        assert_eq!(tracker.known().leader.as_deref(), Some("other"));
        says(&tracker, Some(4), follows("other"));
        assert_eq!(changes(&tracker), [0, 0, 0, 0], "it only begins another term");
        says(&tracker, Some(5), follows("third"));
        says(&tracker, Some(6), elected());
        assert_eq!(tracker.known().leader.as_deref(), Some("here"));
        says(
            &tracker,
            Some(6),
            Event::LeadershipLost { reason: String::new(), since_renewal_s: Duration::ZERO.into() },
        );
        says(&tracker, None, Event::Standby { reason: String::new(), leader: None });
        assert_eq!(tracker.known().leader, None);
        assert_eq!(changes(&tracker), [1, 1, 0, 1]);
        says(&tracker, Some(7), elected());
        says(&tracker, Some(7), Event::Released {});
        says(&tracker, None, Event::Standby { reason: String::new(), leader: None });
        assert_eq!(changes(&tracker), [2, 1, 1, 1]);
        // A node leads again after a read that showed no leader.
        says(&tracker, Some(8), follows("third"));
        tracker.record_request(StoreOp::Read, &read(LeaseState::Expired, |_| {}), Duration::ZERO);
        says(&tracker, Some(9), follows("third"));
        assert_eq!(changes(&tracker), [2, 3, 1, 1]);
    }

    #[test]
    fn election_without_a_push_counts_no_time_without_leader() {
        let tracker = tracker();
        tracker.set_awaits_push();
        tracker.record_request(StoreOp::Read, &Ok(Reply::Read(Snapshot::Nothing)), Duration::ZERO);
        tracker.record_round(at(1), 0, None);
        assert_eq!(tracker.known().vacant(at(9)), Duration::ZERO);
        tracker.set_module(Some(Digest::of(b"")));
        tracker.record_round(at(9), 0, None);
        assert_eq!(tracker.known().vacant(at(12)), Duration::from_secs(3));
    }

    #[test]
    fn time_without_leader_is_measured_between_readings() {
        let tracker = tracker();
        let reads = |time, reply: Result<Reply, StoreError>| {
            tracker.record_request(StoreOp::Read, &reply, Duration::ZERO);
            tracker.record_round(at(time), 0, None);
        };
        tracker.record_round(at(1), 0, None);
        assert_eq!(tracker.known().vacant(at(5)), Duration::ZERO, "nothing was read yet");
        says(&tracker, None, Event::Standby { reason: "the host has started".to_owned(), leader: None });
        reads(5, read(LeaseState::Held, |_| {}));
        reads(7, read(LeaseState::Expired, |_| {}));
        assert_eq!(tracker.known().vacant(at(9)), Duration::from_secs(2), "the time continues without a reading");
        assert_eq!(tracker.known().leader, None);
        reads(10, read(LeaseState::Held, |_| {}));
        assert_eq!(tracker.known().vacant(at(20)), Duration::from_secs(3));
        assert_eq!(tracker.known().leader.as_deref(), Some("other"));
        reads(20, read(LeaseState::Held, |record| record.released = true));
        reads(21, read(LeaseState::Held, |record| record.node = None));
        reads(22, Err(StoreError::Unknown("nothing new is known".to_owned())));
        reads(23, Ok(Reply::Read(Snapshot::Nothing)));
        reads(24, read(LeaseState::Free, |record| record.outcome = Some(Outcome::Done)));
        assert_eq!(tracker.known().vacant(at(30)), Duration::from_secs(7), "an election that is over needs nobody");
        assert_eq!(tracker.known().term, 3);
        // This node's own changes count immediately.
        reads(30, read(LeaseState::Free, |_| {}));
        says(&tracker, Some(4), elected());
        tracker.record_round(at(31), 4, Some(at(40)));
        assert_eq!(tracker.known().vacant(at(39)), Duration::from_secs(8));
        says(&tracker, Some(4), Event::Released {});
        tracker.record_round(at(32), 4, None);
        assert_eq!(tracker.known().vacant(at(34)), Duration::from_secs(10));
    }

    #[test]
    fn node_is_ready_once_store_and_module_were_available() {
        let tracker = tracker();
        tracker.record_request(StoreOp::Read, &Err(StoreError::Misconfigured(String::new())), Duration::ZERO);
        assert!(!tracker.known().is_ready());
        tracker.set_awaits_push();
        assert!(!tracker.known().is_ready());
        tracker.record_request(StoreOp::Read, &Ok(Reply::Read(Snapshot::Nothing)), Duration::ZERO);
        assert!(tracker.known().is_ready());
        tracker.record_request(StoreOp::Read, &Err(StoreError::Unknown(String::new())), Duration::ZERO);
        tracker.set_module(None);
        assert!(tracker.known().is_ready(), "what comes later does not undo it");
        let asked = |how| tracker.counts.requests(StoreOp::Read, how);
        assert_eq!(
            [StoreResult::Ok, StoreResult::Refused, StoreResult::Unknown, StoreResult::Misconfigured].map(asked),
            [1, 0, 1, 1]
        );
    }

    #[test]
    fn kills_are_timed_and_ends_are_counted_by_outcome() {
        let tracker = tracker();
        says(&tracker, Some(1), gone("done", Duration::ZERO));
        says(&tracker, Some(1), Event::Killed { reason: String::new() });
        says(&tracker, Some(1), gone("killed", Duration::from_millis(3)));
        says(&tracker, Some(2), gone("failed", Duration::ZERO));
        let ends = |how| tracker.counts.ends(how);
        assert_eq!([Ended::Done, Ended::Failed, Ended::Fatal, Ended::Killed].map(ends), [1, 1, 0, 1]);
        let kills: Vec<(f64, u64)> = tracker.counts.kills.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(kills, [(0.003, 1)]);
        assert_eq!(tracker.counts.kills.sum(), Duration::from_millis(3));
    }

    #[test]
    fn effects_of_each_instance_are_counted_once() {
        let tracker = tracker();
        let [one, two] = [1, 2].map(|count| Effects::of(|_| [count, 3 * count]));
        assert_eq!(tracker.known().effects(Some((3, one))), one);
        tracker.is_gone(3, one);
        // The instance ended after its effects had been read.
        assert_eq!(tracker.known().effects(Some((3, one))), one);
        assert_eq!(tracker.known().effects(None), one);
        assert_eq!(tracker.known().effects(Some((4, one))), two);
        assert_eq!((two.passed(Effect::File), two.refused(Effect::Commit)), (2, 6));
    }
}
