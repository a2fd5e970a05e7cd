//! The historian of one election records the outcome of this node's terms in the store. Only the shutdown of the host
//! waits for the historian.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, StoreError, Term};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::telemetry::{ElectionTracker, Event, Log, Served};
use baton_base::clock::{milliseconds, rfc3339, rfc3339_seconds};
use baton_base::jitter::{between, doubled};
use baton_store::{HistoryError, KEPT_TERMS, ObjectStore, PastTerm, report_terms};

/// The timing of a historian.
#[derive(Clone, Copy, Debug)]
pub struct HistorianPace {
    /// Minimum delay between a change and the write that records it; the maximum is twice this value. Because of the
    /// delay, one write usually records a whole short term, and no write competes with the start of an instance.
    pub after: Duration,
    /// Minimum interval between writes.
    pub apart: Duration,
    /// Wait after a failed write: the initial and the maximum wait. The wait doubles after each further failure.
    pub again: (Duration, Duration),
    /// Timeout for the last write at shutdown.
    pub last: Duration,
}

impl Default for HistorianPace {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(2),
            apart: Duration::from_secs(10),
            again: (Duration::from_secs(1), Duration::from_secs(30)),
            last: Duration::from_secs(1),
        }
    }
}

/// The historian of one election.
pub struct Historian {
    /// The election.
    pub election: ElectionName,
    /// The id of this node.
    pub node: String,
    /// The incarnation of the host.
    pub incarnation: String,
    /// The store with the history.
    pub store: Arc<dyn ObjectStore>,
    /// The tracker that collects this node's terms.
    pub tracker: Arc<ElectionTracker>,
    /// The log for errors.
    pub log: Log,
    /// The historian's timing.
    pub pace: HistorianPace,
}

impl Historian {
    /// Writes terms until the sender of `over` is dropped, then writes once more and returns.
    pub async fn run(self, mut over: watch::Receiver<()>) {
        let mut unwritten = Unwritten::default();
        tokio::select! {
            () = self.write_continuously(&mut unwritten) => {}
            _ = over.changed() => {}
        }
        // An interrupted write may have succeeded. Writing its terms again does no harm.
        unwritten.add(&self, self.tracker.terms.take());
        if unwritten.0.is_empty() {
            return;
        }
        let last = self.pace.last;
        let why = match timeout(last, self.write(&mut unwritten)).await {
            Ok(Ok(_)) => return,
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("the store did not accept the last entries within {last:?}"),
        };
        self.report(&format!("{why}; the end of the last term is missing, and the next leader closes that term"));
    }

    fn report(&self, problem: &dyn std::fmt::Display) {
        self.log.emit(None, Event::Error { error: format!("the history of {}: {problem}", self.election) });
    }

    async fn write_continuously(&self, unwritten: &mut Unwritten) {
        let (mut due, mut failures, mut last_problem) = (Instant::now(), 0_u32, None);
        loop {
            if unwritten.0.is_empty() {
                self.tracker.terms.news().await;
                due = due.max(Instant::now() + between(self.pace.after, self.pace.after * 2));
            }
            sleep_until(due).await;
            unwritten.add(self, self.tracker.terms.take());
            if unwritten.0.is_empty() {
                continue;
            }
            let problem = match self.write(unwritten).await {
                Ok(problem) => {
                    (due, failures) = (Instant::now() + self.pace.apart, 0);
                    problem
                }
                Err(error) => {
                    due = Instant::now() + doubled(self.pace.again, failures);
                    failures = failures.saturating_add(1);
                    Some(error)
                }
            };
            // Do not log an outage of the store: the supervisor logs an `unreachable` event for it.
            let problem = problem.filter(|problem| !matches!(problem, HistoryError::Store(StoreError::Unknown(_))));
            if let Some(problem) = &problem
                && last_problem.as_ref() != Some(problem)
            {
                self.report(problem);
            }
            if problem.is_some() || failures == 0 {
                last_problem = problem;
            }
        }
    }

    /// Writes all unwritten terms. If the stored history was unreadable, replaces the history and returns the error
    /// that made it unreadable.
    async fn write(&self, unwritten: &mut Unwritten) -> Result<Option<HistoryError>, HistoryError> {
        let past_terms: Vec<PastTerm> = unwritten.0.values().flatten().flatten().cloned().collect();
        let problem = report_terms(&*self.store, &self.election, &past_terms).await?;
        unwritten.0.clear();
        Ok(problem)
    }
}

/// The terms that are not in the store yet. Each value holds two entries of the history: one for the preceding term, if
/// known, and one for the term itself.
#[derive(Default)]
struct Unwritten(BTreeMap<Term, [Option<PastTerm>; 2]>);

impl Unwritten {
    fn add(&mut self, historian: &Historian, served: Vec<Served>) {
        for served in served {
            let (number, [before, own]) = (served.term, historian.past_terms(served));
            let unwritten = self.0.entry(number).or_default();
            // The tracker reports each term twice: when the term begins and when it ends. The second report replaces
            // the first.
            *unwritten = [before.or(unwritten[0].take()), own];
            if self.0.len() > KEPT_TERMS {
                self.0.pop_first();
            }
        }
    }
}

impl Historian {
    fn past_terms(&self, served: Served) -> [Option<PastTerm>; 2] {
        let Served { term, module, begun, due, ended, outcome, reason, leaderless, before } = served;
        let begun = rfc3339(begun);
        let before = before.and_then(|before| PastTerm::before(&before, &self.node, &begun));
        let own = PastTerm {
            term,
            node: self.node.clone(),
            incarnation: self.incarnation.clone(),
            module,
            begun,
            due: due.map(rfc3339_seconds),
            ended: ended.map(rfc3339),
            outcome: outcome.map(|outcome| outcome.word().to_owned()),
            reason,
            leaderless_ms: leaderless.map(milliseconds),
            closed_by: None,
        };
        [before, Some(own)]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::fd::AsFd;

    use baton_store::memory::Fault;
    use baton_store::{MemoryStore, read_history};

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::{Ended, Format, LogWriter, Style};

    const PACE: HistorianPace = HistorianPace {
        after: Duration::from_millis(5),
        apart: Duration::from_millis(5),
        again: (Duration::from_millis(5), Duration::from_millis(20)),
        last: Duration::from_secs(60),
    };

    struct HistorianBench {
        store: MemoryStore,
        tracker: Arc<ElectionTracker>,
        writer: LogWriter,
        historian: Option<Historian>,
    }

    impl HistorianBench {
        fn new() -> Self {
            let node = NodeId::new("web-3").unwrap();
            let style = Style { format: Format::Json, terminal: false, colours: false };
            let nowhere: Box<dyn AsFd + Send> = Box::new(std::fs::File::create("/dev/null").unwrap());
            let (log, writer) = Log::start(style, &node, nowhere).unwrap();
            let election = ElectionName::new("job").unwrap();
            let tracker = Arc::new(ElectionTracker::new(election.clone(), Duration::from_secs(15)));
            let log = log.for_election(&tracker);
            let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
            let historian = Historian {
                election,
                node: node.to_string(),
                incarnation: "this-start".to_owned(),
                store: Arc::new(store.clone()),
                tracker: Arc::clone(&tracker),
                log,
                pace: PACE,
            };
            Self { store, tracker, writer, historian: Some(historian) }
        }

        fn begins(&self, term: Term) {
            self.tracker.terms.begins(term, None, None);
        }

        fn ends(&self) {
            self.tracker.terms.has_ended(Ended::Failed, Some("no"));
        }

        async fn terms(&self) -> Vec<(Term, bool)> {
            let election = ElectionName::new("job").unwrap();
            let history = read_history(&self.store, &election).await.unwrap().unwrap_or_default();
            history.terms.iter().map(|term| (term.term, term.ended.is_some())).collect()
        }

        async fn until(&self, terms: &[(Term, bool)]) {
            for _ in 0..10_000 {
                if self.terms().await == terms {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("{:?} instead of {terms:?}", self.terms().await);
        }
    }

    #[tokio::test]
    async fn failed_writes_are_retried_and_the_last_ones_are_flushed() {
        let mut bench = HistorianBench::new();
        let (serving, over) = watch::channel(());
        let historian = tokio::spawn(bench.historian.take().unwrap().run(over));
        bench.begins(1);
        bench.until(&[(1, false)]).await;
        for _ in 0..25 {
            bench.store.fail_next(Fault::LoseRequest);
        }
        bench.ends();
        bench.begins(2);
        bench.ends();
        bench.until(&[(1, true), (2, true)]).await;
        bench.begins(3);
        bench.ends();
        drop(serving);
        historian.await.unwrap();
        assert_eq!(bench.terms().await, [(1, true), (2, true), (3, true)]);
        assert!(bench.writer.shutdown(Duration::from_secs(60)));
    }

    #[test]
    fn unwritten_terms_are_bounded() {
        let bench = HistorianBench::new();
        let historian = bench.historian.as_ref().unwrap();
        let mut unwritten = Unwritten::default();
        for term in 1..=KEPT_TERMS as u64 + 7 {
            bench.begins(term);
            unwritten.add(historian, historian.tracker.terms.take());
            bench.ends();
            unwritten.add(historian, historian.tracker.terms.take());
        }
        assert_eq!((unwritten.0.len(), unwritten.0.first_key_value().unwrap().0), (KEPT_TERMS, &8));
        assert!(unwritten.0.values().all(|[before, own]| before.is_none() && own.as_ref().unwrap().ended.is_some()));
    }
}
