//! The terms that a node has served, derived from its log events, for the election's history.
//!
//! The threads that renew and kill report here, under a lock that is held only while a few values are copied. The
//! historian collects the terms.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::{Record, Term};
use baton_store::clock::wall;
use baton_store::{KEPT_TERMS, LONGEST_TEXT};
use tokio::sync::Notify;

use super::Event;

/// A term of this node, completed or in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// The term's number.
    pub term: Term,
    /// The digest of the module.
    pub module: String,
    /// Start of the term, as wall-clock time since the Unix epoch.
    pub begun: Duration,
    /// End of the instance. `None` until it has ended.
    pub ended: Option<Duration>,
    /// The outcome of the instance, as in the `ended` event.
    pub outcome: Option<String>,
    /// The first logged reason for the end.
    pub reason: Option<String>,
    /// Time without a leader before this term, as observed by this node.
    pub leaderless: Option<Duration>,
    /// The previous record, if this is the first term under its lease.
    pub before: Option<Record>,
}

/// The terms of one node in one election.
#[derive(Debug, Default)]
pub struct Terms {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The current term, and whether its current state has been collected.
    serving: Option<(Served, bool)>,
    /// The most recent ended terms that have not been collected.
    ended: VecDeque<Served>,
    /// The last record read that names a node.
    before: Option<Record>,
}

impl Terms {
    /// Waits until a term begins or ends.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Returns the changes since the last call, in the order of the terms.
    #[must_use]
    pub fn take(&self) -> Vec<Served> {
        let mut state = self.lock();
        let mut taken: Vec<Served> = std::mem::take(&mut state.ended).into();
        if let Some((serving, is_taken)) = &mut state.serving
            && !std::mem::replace(is_taken, true)
        {
            taken.push(serving.clone());
        }
        taken
    }

    /// Remembers a record that was read while this node did not lead.
    pub(super) fn has_read(&self, record: &Record) {
        let mut state = self.lock();
        if record.node.is_some() && state.before.as_ref() != Some(record) {
            state.before = Some(record.clone());
        }
    }

    /// Sets the time without a leader before the current term.
    pub(super) fn follows_on(&self, leaderless: Duration) {
        if let Some((serving, is_taken)) = &mut self.lock().serving {
            (serving.leaderless, *is_taken) = (Some(leaderless), false);
        }
    }

    pub(super) fn observe(&self, term: Option<Term>, event: &Event) {
        match (term, event) {
            (Some(term), Event::Elected { module, .. }) => self.begins(term, module),
            (_, Event::Stopping { reason, message, .. }) => self.is_ending(term, || format!("{reason}: {message}")),
            (_, Event::LeadershipLost { reason, .. }) => self.is_ending(term, || format!("lost: {reason}")),
            (_, Event::Killed { reason }) => self.is_ending(term, || reason.clone()),
            (_, Event::Released {} | Event::ReleaseFailed { .. }) => self.is_given_up(),
            (Some(term), Event::Ended { outcome, message, .. }) => self.has_ended(term, outcome, message.as_deref()),
            _ => {}
        }
    }

    fn begins(&self, term: Term, module: &str) {
        let mut state = self.lock();
        state.serving = Some((
            Served {
                term,
                module: module.to_owned(),
                begun: wall(),
                ended: None,
                outcome: None,
                reason: None,
                leaderless: None,
                before: state.before.take().filter(|before| before.term < term),
            },
            false,
        ));
        drop(state);
        self.news.notify_one();
    }

    fn is_ending(&self, term: Option<Term>, why: impl FnOnce() -> String) {
        if let Some((serving, _)) = &mut self.lock().serving
            && term == Some(serving.term)
        {
            serving.reason.get_or_insert_with(|| shortened(&why()));
        }
    }

    fn has_ended(&self, term: Term, outcome: &str, message: Option<&str>) {
        let mut state = self.lock();
        let Some((mut served, _)) = state.serving.take_if(|(serving, _)| serving.term == term) else { return };
        (served.ended, served.outcome) = (Some(wall()), Some(outcome.to_owned()));
        served.reason = served.reason.take().or_else(|| message.map(shortened));
        if state.ended.len() >= KEPT_TERMS {
            state.ended.pop_front();
        }
        state.ended.push_back(served);
        drop(state);
        self.news.notify_one();
    }

    /// Ends a term that is in the store but whose instance never started before the lease was released.
    fn is_given_up(&self) {
        let mut state = self.lock();
        let Some((mut served, _)) = state.serving.take() else { return };
        served.ended = Some(wall());
        served.reason.get_or_insert_with(|| "the node gave up the lease before the instance started".to_owned());
        state.ended.push_back(served);
        drop(state);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first line, cut to the maximum length in a history entry.
fn shortened(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::{ElectionName, LeaseState, Reply, Snapshot, Time, Version};
    use baton_runtime::Usage;

    use super::*;
    use crate::telemetry::{ElectionTracker, StoreOp};

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn tracker() -> ElectionTracker {
        ElectionTracker::new(ElectionName::new("job").unwrap(), Duration::from_secs(15))
    }

    fn says(tracker: &ElectionTracker, term: Term, event: &Event) {
        tracker.observe("here", Some(term), event);
    }

    fn elected() -> Event {
        Event::Elected { module: "sha256:ab".to_owned(), failures: 0 }
    }

    fn stopping(reason: &str) -> Event {
        let (reason, message) = (reason.to_owned(), "why".to_owned());
        Event::Stopping { reason, message, grace_s: Duration::ZERO.into() }
    }

    fn gone(outcome: &str, message: Option<&str>) -> Event {
        let message = message.map(str::to_owned);
        Event::Ended { outcome: outcome.to_owned(), message, took_s: Duration::ZERO.into(), usage: Usage::default() }
    }

    fn reads(tracker: &ElectionTracker, lease: LeaseState, term: Term) -> Record {
        let record = Record {
            term,
            node: Some("other".to_owned()),
            incarnation: "i".to_owned(),
            since: Duration::from_secs(9),
            lease: Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            rests_until: None,
        };
        let snapshot = Snapshot::Object { lease, version: Version(String::new()), record: Some(record.clone()) };
        tracker.record_request(StoreOp::Read, &Ok(Reply::Read(snapshot)), Duration::ZERO);
        record
    }

    #[test]
    fn term_is_reported_when_it_begins_and_when_it_ends() {
        let tracker = tracker();
        let before = reads(&tracker, LeaseState::Expired, 3);
        tracker.record_round(at(10), 3, None);
        says(&tracker, 4, &elected());
        tracker.record_round(at(12), 4, Some(at(20)));
        let [begun] = tracker.terms.take().try_into().unwrap();
        assert_eq!((begun.term, begun.leaderless, begun.ended), (4, Some(Duration::from_secs(2)), None));
        assert_eq!((begun.module.as_str(), &begun.before), ("sha256:ab", &Some(before)));
        assert_eq!(tracker.terms.take(), []);
        says(&tracker, 4, &stopping("lease-at-risk"));
        says(&tracker, 4, &Event::LeadershipLost { reason: "held".to_owned(), since_renewal_s: Duration::ZERO.into() });
        says(&tracker, 4, &Event::Killed { reason: "late".to_owned() });
        assert_eq!(tracker.terms.take(), [], "the reasons are reported with the end");
        says(&tracker, 4, &gone("killed", None));
        let [ended] = tracker.terms.take().try_into().unwrap();
        assert_eq!(ended.reason.as_deref(), Some("lease-at-risk: why"), "the first is the cause");
        assert_eq!(ended.outcome.as_deref(), Some("killed"));
        assert_eq!(Served { ended: None, outcome: None, reason: None, ..ended.clone() }, begun);
        assert!(ended.ended >= Some(begun.begun));
    }

    #[test]
    fn next_term_under_the_same_lease_has_no_predecessor() {
        let tracker = tracker();
        reads(&tracker, LeaseState::Expired, 3);
        tracker.record_round(at(10), 3, None);
        says(&tracker, 4, &elected());
        tracker.record_round(at(12), 4, Some(at(20)));
        // A holder reads the record if the outcome of a write is unknown.
        reads(&tracker, LeaseState::Held, 4);
        says(&tracker, 4, &gone("failed", Some("a trap\nand where")));
        says(&tracker, 5, &elected());
        tracker.record_round(at(13), 5, Some(at(20)));
        let [first, second] = tracker.terms.take().try_into().unwrap();
        assert_eq!((first.reason.as_deref(), first.outcome.as_deref()), (Some("a trap"), Some("failed")));
        assert_eq!((second.term, second.leaderless, second.before), (5, None, None));
        says(&tracker, 5, &gone("done", None));
        let [done] = tracker.terms.take().try_into().unwrap();
        assert_eq!((done.reason, done.outcome.as_deref()), (None, Some("done")));
    }

    #[test]
    fn term_released_before_its_instance_started_has_ended() {
        let tracker = tracker();
        says(&tracker, 4, &elected());
        says(&tracker, 4, &gone("done", None));
        says(&tracker, 5, &elected());
        says(&tracker, 5, &Event::Released {});
        says(&tracker, 5, &Event::Released {});
        let [done, given_up] = tracker.terms.take().try_into().unwrap();
        assert_eq!((done.term, done.outcome.as_deref()), (4, Some("done")));
        assert_eq!((given_up.term, given_up.outcome, given_up.ended.is_some()), (5, None, true));
        assert!(given_up.reason.is_some_and(|why| why.contains("before the instance started")));
    }

    #[test]
    fn most_recent_terms_are_kept() {
        let tracker = tracker();
        let long = "x".repeat(10_000);
        for term in 1..=KEPT_TERMS as u64 + 5 {
            says(&tracker, term, &elected());
            says(&tracker, term, &gone("failed", Some(&long)));
        }
        says(&tracker, 9, &gone("done", None));
        let kept = tracker.terms.take();
        assert_eq!((kept.len(), kept[0].term), (KEPT_TERMS, 6));
        assert!(kept.iter().all(|served| served.reason.as_ref().is_some_and(|why| why.len() == LONGEST_TEXT)));
    }
}
