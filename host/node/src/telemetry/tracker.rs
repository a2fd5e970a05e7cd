//! The state of a node in one election, for outside observers.
//!
//! Threads that renew leases and kill instances report their state here. The counters are therefore atomic. A lock
//! protects the rest, and is held only while a few values are copied.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_base::clock::{rfc3339, wall};
use baton_base::jitter::Moments;
use baton_election::{ElectionName, Term, Time};
use baton_runtime::EffectCounts;
use baton_store::{AnnouncedLink, ChangeNotifier};
use tokio::sync::watch;

use super::counts::{Counts, Transition};
use super::heartbeat::Heartbeat;
use super::queue::Share;
use super::ring::Ring;
use super::terms::Terms;
use crate::view::NodeView;

/// Capacity for the instances' output, in bytes: the total for all elections, then the minimum and maximum per
/// election.
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
    /// Wakes the tasks that read the election's objects when an object has changed. The tasks can therefore poll less
    /// often.
    pub notifier: ChangeNotifier,
    /// The supervisor's heartbeat.
    pub heartbeat: Heartbeat,
    /// The last published view. Receivers do not wake up if only the deadline has changed.
    view: watch::Sender<NodeView>,
    /// The term of the instance that started most recently.
    begun: AtomicU64,
    /// True once this node has had a module to run, or has found the source to be empty.
    has_module: AtomicBool,
    /// True if the module source was empty when it was last read. Until the first module is pushed, no node can lead.
    awaits_push: AtomicBool,
    totals: Mutex<Totals>,
}

/// The state of a node's links for one election.
#[derive(Clone, Debug, Default)]
pub struct LinkStatus {
    /// The node to which this node has a link, if any.
    pub link: Option<AnnouncedLink>,
    /// Number of nodes that have a link to this node.
    pub listeners: u32,
    /// Number of hints received.
    pub hints: u64,
}

#[derive(Debug, Default)]
struct Totals {
    /// The effects of all instances that have ended, and the term of the last of these instances.
    effects: (EffectCounts, Term),
    vacant_since: Option<Time>,
    vacant: Duration,
    links: LinkStatus,
}

impl Totals {
    fn vacant(&self, now: Time) -> Duration {
        self.vacant + self.vacant_since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

impl ElectionTracker {
    /// Creates a tracker for a node that takes part in only this election.
    #[must_use]
    pub fn new(election: ElectionName, lease: Duration) -> Self {
        Self::one_of(1, election, lease)
    }

    /// Creates a tracker for a node that takes part in `elections` elections.
    #[must_use]
    pub fn one_of(elections: usize, election: ElectionName, lease: Duration) -> Self {
        let lines = (LINES / elections.max(1)).clamp(LINES_EACH.0, LINES_EACH.1);
        Self {
            election,
            lease,
            counts: Counts::default(),
            terms: Terms::default(),
            lines: Arc::new(Ring::of(lines)),
            share: Share::one_of(elections),
            notifier: ChangeNotifier::default(),
            heartbeat: Heartbeat::default(),
            view: watch::Sender::default(),
            begun: AtomicU64::new(0),
            has_module: AtomicBool::new(false),
            awaits_push: AtomicBool::new(false),
            totals: Mutex::default(),
        }
    }

    /// Sets the wake-up times for reads that can wait a little. Tasks that share the same [`Moments`] wake up together.
    #[must_use]
    pub fn reading_at(self, moments: Moments) -> Self {
        Self { notifier: ChangeNotifier::at(moments), ..self }
    }

    /// Publishes the supervisor's view, and counts a change of leader since the last view.
    pub fn publish(&self, now: Time, view: &NodeView) {
        self.heartbeat.beat(now);
        if view.module.is_some() {
            self.has_module.store(true, Ordering::Relaxed);
            self.awaits_push.store(false, Ordering::Relaxed);
        }
        let mut totals = self.lock();
        let is_vacant = view.is_vacant && view.leads.is_none() && !self.awaits_push.load(Ordering::Relaxed);
        if is_vacant != totals.vacant_since.is_some() {
            totals.vacant = totals.vacant(now);
            let since = std::mem::replace(&mut totals.vacant_since, is_vacant.then_some(now));
            if let (Some(since), true) = (since, view.leads.is_some()) {
                self.terms.follows_on(now.since(since));
            }
        }
        drop(totals);
        self.view.send_if_modified(|last| {
            if let Some(transition) = Transition::between(last, view) {
                self.counts.changed(transition);
            }
            last.deadline = view.deadline;
            let is_news = last != view;
            if is_news {
                last.clone_from(view);
            }
            is_news
        });
    }

    /// Returns the last view.
    #[must_use]
    pub fn view(&self) -> NodeView {
        self.view.borrow().clone()
    }

    /// Returns a receiver of views. The receiver does not wake up if only the deadline has changed.
    #[must_use]
    pub fn views(&self) -> watch::Receiver<NodeView> {
        self.view.subscribe()
    }

    /// Counts the start of an instance. Called just before the `started` event is logged.
    pub(crate) fn has_begun(&self, term: Term) {
        self.counts.started();
        self.begun.store(term, Ordering::Relaxed);
    }

    /// True if an instance is running on this node and the gate allows the instance's effects.
    #[must_use]
    pub fn serves(&self, view: &NodeView, now: Time) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        view.instance.is_some_and(|one| one.term == begun && !one.is_killed) && view.leads(now).is_some()
    }

    /// Returns the total time without a leader, as observed by this node.
    #[must_use]
    pub fn vacant(&self, now: Time) -> Duration {
        self.lock().vacant(now)
    }

    /// Records that the instance of a term has ended, and adds the instance's effects to the total.
    pub fn is_gone(&self, term: Term, effects: EffectCounts) {
        let mut totals = self.lock();
        totals.effects = (totals.effects.0 + effects, term);
    }

    /// Returns the effects of all instances since the host started. `running` is the term and the effects of the
    /// running instance. If that instance has ended in the meantime, its effects are still counted only once.
    #[must_use]
    pub fn effects(&self, running: Option<(Term, EffectCounts)>) -> EffectCounts {
        let (gone, last) = self.lock().effects;
        running.filter(|(term, _)| *term > last).map_or(gone, |(_, running)| gone + running)
    }

    /// Records that the module source responds, but contains no module yet.
    pub fn set_awaits_push(&self) {
        self.has_module.store(true, Ordering::Relaxed);
        self.awaits_push.store(true, Ordering::Relaxed);
    }

    /// True once this node has had a module to run, or has found the source to be empty.
    #[must_use]
    pub fn has_module(&self) -> bool {
        self.has_module.load(Ordering::Relaxed)
    }

    /// True once the node has been able to take over. A later store outage or a rejected version does not reset this to
    /// false.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_module() && self.view.borrow().has_store
    }

    /// Returns the state of this node's links.
    #[must_use]
    pub fn links(&self) -> LinkStatus {
        self.lock().links.clone()
    }

    /// Sets the node to which this node has a link.
    pub fn set_link(&self, to: Option<String>) {
        self.lock().links.link = to.map(|to| AnnouncedLink { to, since: rfc3339(wall()) });
    }

    /// Sets the number of nodes that have a link to this node.
    pub fn set_listeners(&self, count: u32) {
        self.lock().links.listeners = count;
    }

    /// Counts a received hint.
    pub fn record_hint(&self) {
        self.lock().links.hints += 1;
    }

    fn lock(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::{LeaseState, Outcome, Record, Reply, Report, Snapshot, StoreError, Version};
    use baton_runtime::EffectKind;
    use baton_store::Digest;

    use super::*;
    use crate::view::InstanceView;

    struct Bench {
        tracker: ElectionTracker,
        view: NodeView,
    }

    impl Bench {
        fn new() -> Self {
            let tracker = ElectionTracker::new(ElectionName::new("job").unwrap(), Duration::from_secs(15));
            Self { tracker, view: NodeView::default() }
        }

        fn becomes(&mut self, time: u64, change: impl FnOnce(&mut NodeView)) {
            change(&mut self.view);
            self.tracker.publish(at(time), &self.view);
        }

        fn reads(&mut self, time: u64, answer: Result<Reply, StoreError>) {
            self.becomes(time, |view| view.note_answer(&answer));
        }

        fn reports(&mut self, time: u64, report: Report) {
            self.becomes(time, |view| view.note_report(&report));
        }

        fn serves(&self, now: Time) -> bool {
            self.tracker.serves(&self.tracker.view(), now)
        }

        fn leader(&self) -> Option<String> {
            self.tracker.view().leader
        }

        fn changes(&self) -> [u64; 4] {
            [Transition::Elected, Transition::Other, Transition::Released, Transition::Lost]
                .map(|transition| self.tracker.counts.transitions(transition))
        }
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn record(node: &str, term: Term) -> Record {
        Record {
            term,
            node: Some(node.to_owned()),
            incarnation: "i".to_owned(),
            since: Duration::from_secs(9),
            lease: Duration::from_secs(15),
            module: Some("sha256:ab".to_owned()),
            outcome: None,
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        }
    }

    fn read(lease: LeaseState, change: impl FnOnce(&mut Record)) -> Result<Reply, StoreError> {
        let mut record = record("other", 3);
        change(&mut record);
        Ok(Reply::Read(Snapshot::Object { lease, version: Version(String::new()), record: Some(record) }))
    }

    fn elected(term: Term) -> Report {
        Report::Elected { record: record("here", term) }
    }

    fn standby() -> Report {
        Report::Standby { reason: String::new() }
    }

    #[test]
    fn node_leads_until_deadline_even_if_supervisor_hangs() {
        let mut bench = Bench::new();
        let instance = |term, is_killed| Some(InstanceView { term, module: Digest::of(b""), is_killed });
        bench.reports(9, elected(4));
        bench.becomes(10, |view| (view.instance, view.deadline) = (instance(4, false), Some(at(22))));
        assert!(!bench.serves(at(21)), "it has not begun");
        bench.tracker.has_begun(4);
        assert_eq!(bench.tracker.view().leads(at(21)), Some((4, Duration::from_secs(1))));
        assert!(bench.serves(at(21)));
        assert!(!bench.serves(at(22)), "its effects are refused from here on");
        assert_eq!(bench.tracker.view().leads(at(22)), None);
        assert_eq!(bench.tracker.heartbeat.since(at(21)), Some(Duration::from_secs(11)));
        bench.becomes(10, |view| view.instance = instance(4, true));
        assert!(!bench.serves(at(11)), "it was killed");
        // Between two terms under one lease, the node leads without an instance.
        bench.becomes(10, |view| view.instance = None);
        assert_eq!((bench.serves(at(11)), bench.tracker.view().leads(at(11)).is_some()), (false, true));
        bench.reports(11, elected(5));
        assert_eq!(bench.changes(), [1, 0, 0, 0], "another term of the same lease changes nothing");
        bench.becomes(12, |view| (view.instance, view.deadline) = (instance(5, false), None));
        assert_eq!(bench.tracker.view().leads(at(12)), None, "without a lease nobody leads");
        assert!(!bench.serves(at(12)));
    }

    #[test]
    fn each_change_of_leader_is_counted_once() {
        let mut bench = Bench::new();
        let follows = |node: &str, term| Report::Following { leader: record(node, term) };
        bench.reports(1, follows("other", 3));
        assert_eq!(bench.changes(), [0, 0, 0, 0], "the leader at the host's start is no change");
        assert_eq!(bench.leader().as_deref(), Some("other"));
        bench.reports(2, follows("other", 4));
        assert_eq!(bench.changes(), [0, 0, 0, 0], "it only begins another term");
        bench.reports(3, follows("third", 5));
        bench.reports(4, elected(6));
        assert_eq!(bench.leader().as_deref(), Some("here"));
        bench.reports(5, Report::Lost { reason: String::new(), since_renewal: Duration::ZERO });
        bench.reports(6, standby());
        assert_eq!(bench.leader(), None);
        assert_eq!(bench.changes(), [1, 1, 0, 1]);
        bench.reports(7, elected(7));
        bench.reports(8, Report::Released);
        bench.reports(9, standby());
        assert_eq!(bench.changes(), [2, 1, 1, 1]);
        // A read shows that no node leads. Then the node that led before leads again, which counts as another change.
        bench.reports(10, follows("third", 8));
        bench.reads(11, read(LeaseState::Expired, |_| {}));
        bench.reports(12, follows("third", 9));
        assert_eq!(bench.changes(), [2, 3, 1, 1]);
    }

    #[test]
    fn election_without_a_push_counts_no_time_without_leader() {
        let mut bench = Bench::new();
        bench.tracker.set_awaits_push();
        bench.reads(1, Ok(Reply::Read(Snapshot::Nothing)));
        assert_eq!(bench.tracker.vacant(at(9)), Duration::ZERO);
        bench.becomes(9, |view| view.module = Some(Digest::of(b"")));
        assert_eq!(bench.tracker.vacant(at(12)), Duration::from_secs(3));
    }

    #[test]
    fn time_without_leader_is_measured_between_readings() {
        let mut bench = Bench::new();
        bench.reports(1, standby());
        assert_eq!(bench.tracker.vacant(at(5)), Duration::ZERO, "nothing was read yet");
        bench.reads(5, read(LeaseState::Held, |_| {}));
        bench.reads(7, read(LeaseState::Expired, |_| {}));
        assert_eq!(bench.tracker.vacant(at(9)), Duration::from_secs(2), "the time continues without a reading");
        assert_eq!(bench.leader(), None);
        bench.reads(10, read(LeaseState::Held, |_| {}));
        assert_eq!(bench.tracker.vacant(at(20)), Duration::from_secs(3));
        assert_eq!(bench.leader().as_deref(), Some("other"));
        bench.reads(20, read(LeaseState::Held, |record| record.released = true));
        bench.reads(21, read(LeaseState::Held, |record| record.node = None));
        bench.reads(22, Err(StoreError::Unknown("nothing new is known".to_owned())));
        bench.reads(23, Ok(Reply::Read(Snapshot::Nothing)));
        bench.reads(24, read(LeaseState::Free, |record| record.outcome = Some(Outcome::Done)));
        assert_eq!(bench.tracker.vacant(at(30)), Duration::from_secs(7), "an election that is over needs nobody");
        // If this node itself becomes the leader or stops leading, the change counts at once, without a reading.
        bench.reads(30, read(LeaseState::Free, |_| {}));
        bench.reports(31, elected(4));
        assert_eq!(bench.tracker.vacant(at(39)), Duration::from_secs(8));
        bench.reports(32, Report::Released);
        assert_eq!(bench.tracker.vacant(at(34)), Duration::from_secs(10));
    }

    #[test]
    fn time_without_leader_belongs_to_the_term_that_ends_it() {
        let mut bench = Bench::new();
        bench.reads(10, read(LeaseState::Expired, |_| {}));
        bench.tracker.terms.begins(4, None, None);
        bench.reports(12, elected(4));
        let leaderless = |bench: &Bench| bench.tracker.terms.take().pop().unwrap().leaderless;
        assert_eq!(leaderless(&bench), Some(Duration::from_secs(2)));
        bench.tracker.terms.begins(5, None, None);
        bench.reports(13, elected(5));
        assert_eq!(leaderless(&bench), None, "the node led before");
    }

    #[test]
    fn node_is_ready_once_store_and_module_were_available() {
        let mut bench = Bench::new();
        bench.reads(1, Err(StoreError::Misconfigured(String::new())));
        assert!(!bench.tracker.is_ready());
        bench.tracker.set_awaits_push();
        assert!(!bench.tracker.is_ready());
        bench.reads(2, Ok(Reply::Read(Snapshot::Nothing)));
        assert!(bench.tracker.is_ready());
        bench.reads(3, Err(StoreError::Unknown(String::new())));
        bench.becomes(4, |view| view.module = None);
        assert!(bench.tracker.is_ready(), "what comes later does not undo it");
    }

    #[test]
    fn receivers_wake_up_unless_only_the_deadline_changes() {
        let mut bench = Bench::new();
        let mut views = bench.tracker.views();
        bench.reports(1, elected(4));
        assert!(views.has_changed().unwrap());
        views.mark_unchanged();
        bench.becomes(2, |view| view.deadline = Some(at(20)));
        bench.becomes(3, |_| {});
        assert!(!views.has_changed().unwrap());
        assert_eq!(views.borrow_and_update().deadline, Some(at(20)));
    }

    #[test]
    fn effects_of_each_instance_are_counted_once() {
        let tracker = Bench::new().tracker;
        let [one, two] = [1, 2].map(|count| EffectCounts::of(|_| [count, 3 * count]));
        assert_eq!(tracker.effects(Some((3, one))), one);
        tracker.is_gone(3, one);
        // The caller read these effects just before the instance ended. The effects must not be counted twice.
        assert_eq!(tracker.effects(Some((3, one))), one);
        assert_eq!(tracker.effects(None), one);
        assert_eq!(tracker.effects(Some((4, one))), two);
        assert_eq!((two.passed(EffectKind::File), two.refused(EffectKind::Commit)), (2, 6));
    }
}
