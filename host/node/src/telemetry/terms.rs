//! The terms that a node has served, for the election's history.
//!
//! The supervisor reports its terms here. The historian collects them and records them in the store. The supervisor's
//! thread also renews leases and kills instances, so the lock is held only while a few values are copied.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_base::clock::wall;
use baton_election::{Record, Term};
use baton_store::{KEPT_TERMS, LONGEST_TEXT};
use tokio::sync::Notify;

use super::Ended;

/// A term of this node, completed or in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Served {
    /// The term's number.
    pub term: Term,
    /// The digest of the module.
    pub module: Option<String>,
    /// Start of the term, as wall-clock time since the Unix epoch.
    pub begun: Duration,
    /// The due time of the scheduled run that the term carries out, as wall-clock time since the Unix epoch.
    pub due: Option<Duration>,
    /// End of the instance, as wall-clock time since the Unix epoch. `None` while the instance is running.
    pub ended: Option<Duration>,
    /// The outcome of the instance. `None` while the instance is running.
    pub outcome: Option<Ended>,
    /// The first reported reason for the end, if any.
    pub reason: Option<String>,
    /// Time without a leader before this term, as observed by this node.
    pub leaderless: Option<Duration>,
    /// The last record that this node read before this term, if this is the first term under its lease.
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
    /// The current term. The flag is true if the historian has collected the term's current state.
    serving: Option<(Served, bool)>,
    /// The most recent terms that have ended and have not been collected yet.
    ended: VecDeque<Served>,
    /// The last record that this node read from the store, not counting records without a node.
    before: Option<Record>,
}

impl Terms {
    /// Waits until a term begins or ends.
    pub async fn news(&self) {
        self.news.notified().await;
    }

    /// Returns the terms that have changed since the last call, in ascending order.
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

    /// Remembers a record that this node read from the store while it did not lead.
    pub(crate) fn has_read(&self, record: &Record) {
        let mut state = self.lock();
        if record.node.is_some() && state.before.as_ref() != Some(record) {
            state.before = Some(record.clone());
        }
    }

    /// Records how long the election had no leader before the current term.
    pub(super) fn follows_on(&self, leaderless: Duration) {
        if let Some((serving, is_taken)) = &mut self.lock().serving {
            (serving.leaderless, *is_taken) = (Some(leaderless), false);
        }
    }

    /// Begins to track a term. Called right after this node has written the term's record to the store.
    pub(crate) fn begins(&self, term: Term, module: Option<&str>, due: Option<Duration>) {
        let mut state = self.lock();
        state.serving = Some((
            Served {
                term,
                module: module.map(str::to_owned),
                begun: wall(),
                due,
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

    /// Records why the current term is ending. Keeps only the first reason, because it is the cause of the others.
    pub(crate) fn is_ending(&self, why: &str) {
        if let Some((serving, _)) = &mut self.lock().serving {
            serving.reason.get_or_insert_with(|| shortened(why));
        }
    }

    pub(crate) fn has_ended(&self, outcome: Ended, message: Option<&str>) {
        let mut state = self.lock();
        let Some((mut served, _)) = state.serving.take() else { return };
        (served.ended, served.outcome) = (Some(wall()), Some(outcome));
        served.reason = served.reason.take().or_else(|| message.map(shortened));
        if state.ended.len() >= KEPT_TERMS {
            state.ended.pop_front();
        }
        state.ended.push_back(served);
        drop(state);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shortened(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn reads(terms: &Terms, term: Term) -> Record {
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
            paused_until: None,
            progress: None,
        };
        terms.has_read(&record);
        record
    }

    #[test]
    fn term_is_reported_when_it_begins_and_when_it_ends() {
        let terms = Terms::default();
        let before = reads(&terms, 3);
        terms.begins(4, Some("sha256:ab"), Some(Duration::from_secs(7)));
        terms.follows_on(Duration::from_secs(2));
        let [begun] = terms.take().try_into().unwrap();
        assert_eq!((begun.term, begun.leaderless, begun.ended), (4, Some(Duration::from_secs(2)), None));
        assert_eq!((begun.module.as_deref(), begun.due), (Some("sha256:ab"), Some(Duration::from_secs(7))));
        assert_eq!(begun.before, Some(before));
        assert_eq!(terms.take(), []);
        ["lease-at-risk: why", "lost: held", "late"].iter().for_each(|why| terms.is_ending(why));
        assert_eq!(terms.take(), [], "the reasons are reported with the end");
        terms.has_ended(Ended::Killed, None);
        let [ended] = terms.take().try_into().unwrap();
        assert_eq!(ended.reason.as_deref(), Some("lease-at-risk: why"), "the first is the cause");
        assert_eq!(ended.outcome, Some(Ended::Killed));
        assert_eq!(Served { ended: None, outcome: None, reason: None, ..ended.clone() }, begun);
        assert!(ended.ended >= Some(begun.begun));
    }

    #[test]
    fn next_term_under_the_same_lease_has_no_predecessor() {
        let terms = Terms::default();
        reads(&terms, 3);
        terms.begins(4, None, None);
        terms.has_ended(Ended::Failed, Some("a trap\nand where"));
        terms.begins(5, None, None);
        let [first, second] = terms.take().try_into().unwrap();
        assert_eq!((first.reason.as_deref(), first.outcome), (Some("a trap"), Some(Ended::Failed)));
        assert_eq!((second.term, second.leaderless, second.before), (5, None, None));
        terms.has_ended(Ended::Done, None);
        let [done] = terms.take().try_into().unwrap();
        assert_eq!((done.reason, done.outcome), (None, Some(Ended::Done)));
    }

    #[test]
    fn most_recent_terms_are_kept() {
        let terms = Terms::default();
        let long = "x".repeat(10_000);
        for term in 1..=KEPT_TERMS as u64 + 5 {
            terms.begins(term, None, None);
            terms.has_ended(Ended::Failed, Some(&long));
        }
        terms.has_ended(Ended::Done, None);
        let kept = terms.take();
        assert_eq!((kept.len(), kept[0].term), (KEPT_TERMS, 6));
        assert!(kept.iter().all(|served| served.reason.as_ref().is_some_and(|why| why.len() == LONGEST_TEXT)));
    }
}
