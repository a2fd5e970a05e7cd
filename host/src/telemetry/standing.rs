//! What a node knows of one election and does in it, for everything that watches the node from outside.
//!
//! The events of the log tell most of it, so that log and metrics never say two things; the supervisor tells what is no
//! event. Both are threads that renew and kill: what is counted are atomic numbers, and the rest stands behind a lock
//! that nobody holds for longer than it takes to copy a few words.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::{ElectionName, LeaseState, Op, Outcome, Record, Reply, Snapshot, StoreError, Term, Time};
use baton_runtime::{Effects, Requested};
use baton_store::clock::{rfc3339, wall};
use baton_store::jitter::Moments;
use baton_store::{Digest, Listens, Tidings};

use super::Event;
use super::counts::{Answered, Asked, Counts, Ended, Transition};
use super::heartbeat::Heartbeat;
use super::queue::Share;
use super::ring::Ring;
use super::spans::{Span, SpanQueue, Waiting};
use super::terms::Terms;
use super::tracks::Tracks;

/// So much of what the instances of all elections print a host keeps for those who ask, in bytes; but for each election
/// no less and no more than this.
const LINES: usize = 16 << 20;
const LINES_EACH: (usize, usize) = (64 << 10, 1 << 20);

/// One node in one election.
#[derive(Debug)]
pub struct Standing {
    /// The election.
    pub election: ElectionName,
    /// The length of its leases.
    pub lease: Duration,
    /// What was counted so far.
    pub counts: Counts,
    /// The terms that it serves.
    pub terms: Terms,
    /// The last of what its instances have printed and logged here.
    pub lines: Arc<Ring>,
    /// How much of that may wait for the log's reader.
    pub(super) share: Share,
    /// What has those who read its objects read them earlier, or seldom.
    pub tidings: Tidings,
    known: Mutex<Known>,
    /// Where spans are exported.
    traced: Option<Traced>,
    /// Its supervisor's.
    pub heartbeat: Heartbeat,
}

/// What is known of an election at one moment.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The highest term that was seen; 0 before the first.
    pub term: Term,
    /// The node that leads as far as is known; none where nobody does.
    pub leader: Option<String>,
    /// What this node would run.
    pub module: Option<Digest>,
    /// Whether the store has answered, ever.
    pub has_store: bool,
    /// Whether there was ever something to run, or certainly nothing was pushed yet.
    pub has_module: bool,
    /// Why this node is not to lead, as operators have asked; none where they have not.
    pub stays_out: Option<String>,
    /// Whom this node listens to, over a link.
    pub listens: Option<Listens>,
    /// How many nodes listen to this one.
    pub listeners: u32,
    /// Hints that were heard.
    pub hints: u64,
    /// Whether this node takes no part for now, and nothing is left of its last term: neither an instance nor a lease that is
    /// still to be released.
    pub is_out: bool,
    /// The term that this node leads.
    leads: Option<Term>,
    /// When the effects of this node are refused, unless it renews before.
    deadline: Option<Time>,
    /// Whether an instance runs here: its code was entered, and it is neither killed nor gone.
    runs: bool,
    /// Whether its instance was killed, and is not gone yet.
    killed: bool,
    /// Whether it was seen that nobody led, or who did.
    has_looked: bool,
    /// Who led last, unless it was seen since that nobody did.
    last_leader: Option<String>,
    /// Whether nobody can lead, since nothing was ever pushed.
    awaits_push: bool,
    /// Whether nobody led by the last reading. Before the first one nothing counts as seen.
    is_vacant: bool,
    /// The effects of the instances that are gone, and the term of the last of these.
    effects: (Effects, Term),
    vacant_since: Option<Time>,
    vacant: Duration,
}

/// What becomes of that what is done in an election.
#[derive(Debug)]
struct Traced {
    tracks: Mutex<Tracks>,
    queue: Arc<SpanQueue>,
}

impl Known {
    /// The term that this node leads at this time, and how long it would without another renewal.
    #[must_use]
    pub fn leads(&self, now: Time) -> Option<(Term, Duration)> {
        let left = self.deadline?.since(now);
        self.leads.filter(|_| left > Duration::ZERO).map(|term| (term, left))
    }

    /// Whether an instance runs here at this time, whose effects count.
    #[must_use]
    pub fn serves(&self, now: Time) -> bool {
        self.runs && self.leads(now).is_some()
    }

    /// How long nobody has led, as far as was seen from here.
    #[must_use]
    pub fn vacant(&self, now: Time) -> Duration {
        self.vacant + self.vacant_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The effects of all instances since the host has started. Those of the instance that runs in a term, or of the last
    /// one, are to have been read before this was.
    #[must_use]
    pub fn effects(&self, running: Option<(Term, Effects)>) -> Effects {
        let (gone, last) = self.effects;
        running.filter(|(term, _)| *term > last).map_or(gone, |(_, running)| gone + running)
    }

    /// Whether the node could take over: a later outage of the store, or a version that is refused, does not undo it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_store && self.has_module
    }
}

impl Standing {
    /// A node that knows nothing yet.
    #[must_use]
    pub fn new(election: ElectionName, lease: Duration) -> Self {
        Self::one_of(1, election, lease)
    }

    /// The same of a node that takes part in so many elections.
    #[must_use]
    pub fn one_of(elections: usize, election: ElectionName, lease: Duration) -> Self {
        let lines = (LINES / elections.max(1)).clamp(LINES_EACH.0, LINES_EACH.1);
        let (lines, share) = (Arc::new(Ring::of(lines)), Share::one_of(elections));
        let (counts, terms, tidings, known, traced, heartbeat) = Default::default();
        Self { election, lease, counts, terms, lines, share, tidings, known, traced, heartbeat }
    }

    /// The same, and what can wait is read at these moments.
    #[must_use]
    pub fn reading_at(self, moments: Moments) -> Self {
        Self { tidings: Tidings::at(moments), ..self }
    }

    /// The same, and what is done in the election becomes spans that go there.
    #[must_use]
    pub fn traced(self, queue: Option<Arc<SpanQueue>>) -> Self {
        Self { traced: queue.map(|queue| Traced { tracks: Mutex::default(), queue }), ..self }
    }

    /// What is known now.
    #[must_use]
    pub fn known(&self) -> Known {
        self.lock().clone()
    }

    /// The supervisor goes round: it knows of this term, and holds the lease until that time if it holds it.
    pub fn goes_round(&self, now: Time, term: Term, deadline: Option<Time>) {
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

    /// This node takes no part for now, and nothing is left of its last term; or it does.
    pub fn is_out(&self, is_out: bool) {
        self.lock().is_out = is_out;
    }

    /// The instance of a term is gone, which has had these effects.
    pub fn is_gone(&self, term: Term, effects: Effects) {
        let mut known = self.lock();
        known.effects = (known.effects.0 + effects, term);
    }

    /// There is this to run, or nothing any more.
    pub fn would_run(&self, module: Option<Digest>) {
        let mut known = self.lock();
        known.has_module |= module.is_some();
        known.awaits_push &= module.is_none();
        known.module = module;
    }

    /// Operators keep this node from leading, or do not any more.
    pub fn stays_out(&self, why: Option<String>) {
        self.lock().stays_out = why;
    }

    /// This node listens to another from now on, or to nobody any more.
    pub fn listens(&self, to: Option<String>) {
        self.lock().listens = to.map(|to| Listens { to, since: rfc3339(wall()) });
    }

    /// Whom it listens to.
    pub fn listens_to(&self) -> Option<Listens> {
        self.lock().listens.clone()
    }

    /// So many listen to this node.
    pub fn listeners(&self, count: u32) {
        self.lock().listeners = count;
    }

    /// Something was heard over a link.
    pub fn heard_a_hint(&self) {
        self.lock().hints += 1;
    }

    /// The source is there, and nothing was pushed to it yet.
    pub fn waits_for_push(&self) {
        let mut known = self.lock();
        (known.has_module, known.awaits_push) = (true, true);
    }

    /// The store has answered a request, or has not, after so long.
    pub fn was_asked(&self, what: Asked, result: &Result<Reply, StoreError>, took: Duration) {
        self.counts.asked(what, result, took);
        self.trace(|tracks| tracks.asked(wall(), what, Answered::of(result), took));
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

    /// What was said of this election.
    pub(super) fn observe(&self, node: &str, term: Option<Term>, event: &Event) {
        self.terms.observe(term, event);
        self.trace(|tracks| tracks.event(wall(), term, event));
        match event {
            Event::Elected { .. } => {
                let mut known = self.lock();
                (known.leader, known.last_leader, known.has_looked) = (Some(node.to_owned()), None, true);
                // Each term of a lease is told of.
                if std::mem::replace(&mut known.leads, term).is_none() {
                    self.counts.changed(Transition::Elected);
                }
            }
            Event::Standby { leader: Some(leader), .. } => {
                let mut known = self.lock();
                known.leader = Some(leader.clone());
                let before = known.last_leader.replace(leader.clone());
                // A leader that begins another term is still the same, and the one at this host's start is no change.
                if std::mem::replace(&mut known.has_looked, true) && before.as_ref() != Some(leader) {
                    self.counts.changed(Transition::Other);
                }
            }
            Event::Standby { .. } | Event::Released {} => self.leads_no_more(Transition::Released),
            Event::LeadershipLost { .. } | Event::ReleaseFailed { .. } => self.leads_no_more(Transition::Lost),
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

    fn leads_no_more(&self, how: Transition) {
        let mut known = self.lock();
        if known.leads.take().is_some() {
            (known.leader, known.runs, known.is_vacant) = (None, false, true);
            self.counts.changed(how);
        }
    }

    /// The instance of a term has made a request.
    pub(super) fn requested(&self, term: Term, module: &Digest, requested: &Requested) {
        if let Some(Traced { queue, .. }) = &self.traced
            && let Some(span) = Tracks::requested(wall(), term, module.to_string(), requested)
        {
            queue.push(Waiting { election: self.election.clone(), span, of_guest: true });
        }
    }

    fn trace<S: IntoIterator<Item = Span>>(&self, ended: impl FnOnce(&mut Tracks) -> S) {
        let Some(Traced { tracks, queue }) = &self.traced else { return };
        let ended = ended(&mut tracks.lock().unwrap_or_else(PoisonError::into_inner));
        for span in ended {
            queue.push(Waiting { election: self.election.clone(), span, of_guest: false });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&Op> for Asked {
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

/// Whether the node of this record leads by this reading.
fn leads(lease: LeaseState, record: &Record) -> bool {
    matches!(lease, LeaseState::Held | LeaseState::Breaking) && record.node.is_some() && !record.released
}

/// Whether nobody leads by this reading, though somebody should: an election that is over needs nobody.
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
    use crate::telemetry::Answered;

    fn standing() -> Standing {
        Standing::new(ElectionName::new("job").unwrap(), Duration::from_secs(15))
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

    fn says(standing: &Standing, term: Option<Term>, event: Event) {
        standing.observe("here", term, &event);
    }

    fn elected() -> Event {
        Event::Elected { module: String::new(), failures: 0 }
    }

    fn gone(outcome: &str, took: Duration) -> Event {
        Event::Ended { outcome: outcome.to_owned(), message: None, took_s: took.into(), usage: Usage::default() }
    }

    fn changes(standing: &Standing) -> [u64; 4] {
        [Transition::Elected, Transition::Other, Transition::Released, Transition::Lost]
            .map(|transition| standing.counts.transitions(transition))
    }

    #[test]
    fn it_leads_until_its_deadline_whether_the_supervisor_turns_or_not() {
        let standing = standing();
        says(&standing, Some(4), elected());
        says(&standing, Some(4), Event::Started { module: String::new(), took_s: Duration::ZERO.into() });
        standing.goes_round(at(10), 4, Some(at(22)));
        let known = standing.known();
        assert_eq!(known.leads(at(21)), Some((4, Duration::from_secs(1))));
        assert!(known.serves(at(21)));
        assert!(!known.serves(at(22)), "its effects are refused from here on");
        assert_eq!(known.leads(at(22)), None);
        assert_eq!(standing.heartbeat.since(at(21)), Some(Duration::from_secs(11)));
        // It waits for the next term under the same lease: it leads, and nothing runs.
        says(&standing, Some(4), gone("done", Duration::ZERO));
        assert_eq!((standing.known().serves(at(11)), standing.known().leads(at(11)).is_some()), (false, true));
        says(&standing, Some(5), elected());
        assert_eq!(changes(&standing), [1, 0, 0, 0], "another term of the same lease changes nothing");
        standing.goes_round(at(12), 5, None);
        assert_eq!(standing.known().leads(at(12)), None, "without a lease nobody leads");
    }

    #[test]
    fn each_change_of_who_leads_is_counted_once() {
        let standing = standing();
        let follows = |node: &str| Event::Standby { reason: String::new(), leader: Some(node.to_owned()) };
        says(&standing, Some(3), follows("other"));
        assert_eq!(changes(&standing), [0, 0, 0, 0], "who led before this host started is no change");
        assert_eq!(standing.known().leader.as_deref(), Some("other"));
        says(&standing, Some(4), follows("other"));
        assert_eq!(changes(&standing), [0, 0, 0, 0], "it only begins another term");
        says(&standing, Some(5), follows("third"));
        says(&standing, Some(6), elected());
        assert_eq!(standing.known().leader.as_deref(), Some("here"));
        says(
            &standing,
            Some(6),
            Event::LeadershipLost { reason: String::new(), since_renewal_s: Duration::ZERO.into() },
        );
        says(&standing, None, Event::Standby { reason: String::new(), leader: None });
        assert_eq!(standing.known().leader, None);
        assert_eq!(changes(&standing), [1, 1, 0, 1]);
        says(&standing, Some(7), elected());
        says(&standing, Some(7), Event::Released {});
        says(&standing, None, Event::Standby { reason: String::new(), leader: None });
        assert_eq!(changes(&standing), [2, 1, 1, 1]);
        // The same node leads again, after it was seen that none did.
        says(&standing, Some(8), follows("third"));
        standing.was_asked(Asked::Read, &read(LeaseState::Expired, |_| {}), Duration::ZERO);
        says(&standing, Some(9), follows("third"));
        assert_eq!(changes(&standing), [2, 3, 1, 1]);
    }

    #[test]
    fn an_election_that_waits_for_its_first_push_misses_no_leader() {
        let standing = standing();
        standing.waits_for_push();
        standing.was_asked(Asked::Read, &Ok(Reply::Read(Snapshot::Nothing)), Duration::ZERO);
        standing.goes_round(at(1), 0, None);
        assert_eq!(standing.known().vacant(at(9)), Duration::ZERO);
        standing.would_run(Some(Digest::of(b"")));
        standing.goes_round(at(9), 0, None);
        assert_eq!(standing.known().vacant(at(12)), Duration::from_secs(3));
    }

    #[test]
    fn the_time_without_a_leader_is_that_between_readings_that_show_none() {
        let standing = standing();
        let reads = |time, reply: Result<Reply, StoreError>| {
            standing.was_asked(Asked::Read, &reply, Duration::ZERO);
            standing.goes_round(at(time), 0, None);
        };
        standing.goes_round(at(1), 0, None);
        assert_eq!(standing.known().vacant(at(5)), Duration::ZERO, "nothing was read yet");
        says(&standing, None, Event::Standby { reason: "the host has started".to_owned(), leader: None });
        reads(5, read(LeaseState::Held, |_| {}));
        reads(7, read(LeaseState::Expired, |_| {}));
        assert_eq!(standing.known().vacant(at(9)), Duration::from_secs(2), "it goes on while nobody asks");
        assert_eq!(standing.known().leader, None);
        reads(10, read(LeaseState::Held, |_| {}));
        assert_eq!(standing.known().vacant(at(20)), Duration::from_secs(3));
        assert_eq!(standing.known().leader.as_deref(), Some("other"));
        reads(20, read(LeaseState::Held, |record| record.released = true));
        reads(21, read(LeaseState::Held, |record| record.node = None));
        reads(22, Err(StoreError::Unknown("nothing new is known".to_owned())));
        reads(23, Ok(Reply::Read(Snapshot::Nothing)));
        reads(24, read(LeaseState::Free, |record| record.outcome = Some(Outcome::Done)));
        assert_eq!(standing.known().vacant(at(30)), Duration::from_secs(7), "an election that is over needs nobody");
        assert_eq!(standing.known().term, 3);
        // What this node does itself counts at once.
        reads(30, read(LeaseState::Free, |_| {}));
        says(&standing, Some(4), elected());
        standing.goes_round(at(31), 4, Some(at(40)));
        assert_eq!(standing.known().vacant(at(39)), Duration::from_secs(8));
        says(&standing, Some(4), Event::Released {});
        standing.goes_round(at(32), 4, None);
        assert_eq!(standing.known().vacant(at(34)), Duration::from_secs(10));
    }

    #[test]
    fn it_is_ready_once_store_and_module_were_there() {
        let standing = standing();
        standing.was_asked(Asked::Read, &Err(StoreError::Misconfigured(String::new())), Duration::ZERO);
        assert!(!standing.known().is_ready());
        standing.waits_for_push();
        assert!(!standing.known().is_ready());
        standing.was_asked(Asked::Read, &Ok(Reply::Read(Snapshot::Nothing)), Duration::ZERO);
        assert!(standing.known().is_ready());
        standing.was_asked(Asked::Read, &Err(StoreError::Unknown(String::new())), Duration::ZERO);
        standing.would_run(None);
        assert!(standing.known().is_ready(), "what comes later does not undo it");
        let asked = |how| standing.counts.requests(Asked::Read, how);
        assert_eq!(
            [Answered::Ok, Answered::Refused, Answered::Unknown, Answered::Misconfigured].map(asked),
            [1, 0, 1, 1]
        );
    }

    #[test]
    fn a_kill_is_timed_and_an_end_is_counted_by_its_outcome() {
        let standing = standing();
        says(&standing, Some(1), gone("done", Duration::ZERO));
        says(&standing, Some(1), Event::Killed { reason: String::new() });
        says(&standing, Some(1), gone("killed", Duration::from_millis(3)));
        says(&standing, Some(2), gone("failed", Duration::ZERO));
        let ends = |how| standing.counts.ends(how);
        assert_eq!([Ended::Done, Ended::Failed, Ended::Fatal, Ended::Killed].map(ends), [1, 1, 0, 1]);
        let kills: Vec<(f64, u64)> = standing.counts.kills.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(kills, [(0.003, 1)]);
        assert_eq!(standing.counts.kills.sum(), Duration::from_millis(3));
    }

    #[test]
    fn effects_are_counted_over_all_instances_and_each_once() {
        let standing = standing();
        let [one, two] = [1, 2].map(|count| Effects::of(|_| [count, 3 * count]));
        assert_eq!(standing.known().effects(Some((3, one))), one);
        standing.is_gone(3, one);
        // It was still there when its effects were read, and is gone by now.
        assert_eq!(standing.known().effects(Some((3, one))), one);
        assert_eq!(standing.known().effects(None), one);
        assert_eq!(standing.known().effects(Some((4, one))), two);
        assert_eq!((two.passed(Effect::File), two.refused(Effect::Commit)), (2, 6));
    }
}
