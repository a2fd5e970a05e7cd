//! The historian of one election: writes into the store what has become of this node's terms.
//!
//! It takes them from what the log has said of them, and nobody ever waits for it. What is told within a few seconds is
//! written together; what cannot be written is kept, and written when it can be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, StoreError, Term};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::telemetry::{Event, Log, Served, Standing};
use baton_store::clock::rfc3339;
use baton_store::jitter::{between, doubled};
use baton_store::{HistoryError, KEPT_TERMS, ObjectStore, PastTerm, tell_terms};

/// How these are paced.
#[derive(Clone, Copy, Debug)]
pub struct HistorianPace {
    /// News is written so long after it came, or up to twice as long: a term that begins needs the machine for its
    /// instance, a short one has ended by then, and a host that leads many begins them all at once.
    pub after: Duration,
    /// From one write to the next, at the least.
    pub apart: Duration,
    /// After a failure it is tried again so soon; after each further one twice as late, at the latest so late.
    pub again: (Duration, Duration),
    /// How long the end of the host waits for the last write.
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

/// What one is given.
pub struct Historian {
    /// The election.
    pub election: ElectionName,
    /// This node.
    pub node: String,
    /// This start of it.
    pub incarnation: String,
    /// Where the history is.
    pub store: Arc<dyn ObjectStore>,
    /// What tells of the terms.
    pub standing: Arc<Standing>,
    /// Where it tells of what it cannot do.
    pub log: Log,
    /// How it is paced.
    pub pace: HistorianPace,
}

impl Historian {
    /// Writes until the sender of `over` is gone: then once more, and ends.
    pub async fn run(self, mut over: watch::Receiver<()>) {
        let mut untold = Untold::default();
        tokio::select! {
            () = self.write_on(&mut untold) => {}
            _ = over.changed() => {}
        }
        // What it was writing meanwhile does no harm if it is told again.
        untold.add(&self, self.standing.terms.take());
        if untold.0.is_empty() {
            return;
        }
        let last = self.pace.last;
        let why = match timeout(last, self.write(&mut untold)).await {
            Ok(Ok(_)) => return,
            Ok(Err(problem)) => problem.to_string(),
            Err(_) => format!("the store did not accept the last entries within {last:?}"),
        };
        self.says(&format!("{why}; the end of the last term is missing, and the next leader closes that term"));
    }

    fn says(&self, problem: &dyn std::fmt::Display) {
        self.log.emit(None, Event::Error { error: format!("the history of {}: {problem}", self.election) });
    }

    async fn write_on(&self, untold: &mut Untold) {
        let (mut due, mut failures, mut said) = (Instant::now(), 0_u32, None);
        loop {
            if untold.0.is_empty() {
                self.standing.terms.news().await;
                due = due.max(Instant::now() + between(self.pace.after, self.pace.after * 2));
            }
            sleep_until(due).await;
            untold.add(self, self.standing.terms.take());
            if untold.0.is_empty() {
                continue;
            }
            let problem = match self.write(untold).await {
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
            // That the store does not answer is told by those who need it.
            let problem = problem.filter(|problem| !matches!(problem, HistoryError::Store(StoreError::Unknown(_))));
            if let Some(problem) = &problem
                && said.as_ref() != Some(problem)
            {
                self.says(problem);
            }
            if problem.is_some() || failures == 0 {
                said = problem;
            }
        }
    }

    /// Writes all that is untold, and returns what was wrong with what was there.
    async fn write(&self, untold: &mut Untold) -> Result<Option<HistoryError>, HistoryError> {
        let told: Vec<PastTerm> = untold.0.values().flatten().flatten().cloned().collect();
        let problem = tell_terms(&*self.store, &self.election, &told).await?;
        untold.0.clear();
        Ok(problem)
    }
}

/// What is not written yet, by term: of a term of this node, and of the one before it.
#[derive(Default)]
struct Untold(BTreeMap<Term, [Option<PastTerm>; 2]>);

impl Untold {
    fn add(&mut self, historian: &Historian, served: Vec<Served>) {
        for served in served {
            let (number, [before, own]) = (served.term, historian.told(served));
            let untold = self.0.entry(number).or_default();
            // Who was before is told with its beginning, and again with its end.
            *untold = [before.or(untold[0].take()), own];
            if self.0.len() > KEPT_TERMS {
                self.0.pop_first();
            }
        }
    }
}

impl Historian {
    /// What is to be told of a term of this node: who was before, and the term.
    fn told(&self, served: Served) -> [Option<PastTerm>; 2] {
        let Served { term, module, begun, ended, outcome, reason, leaderless, before } = served;
        let begun = rfc3339(begun);
        let before = before.and_then(|before| PastTerm::before(&before, &self.node, &begun));
        let own = PastTerm {
            term,
            node: self.node.clone(),
            incarnation: self.incarnation.clone(),
            module: Some(module).filter(|module| !module.is_empty()),
            begun,
            ended: ended.map(rfc3339),
            outcome,
            reason,
            leaderless_ms: leaderless.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
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
    use crate::telemetry::{Format, LogWriter, Style};

    const PACE: HistorianPace = HistorianPace {
        after: Duration::from_millis(5),
        apart: Duration::from_millis(5),
        again: (Duration::from_millis(5), Duration::from_millis(20)),
        last: Duration::from_secs(60),
    };

    /// A historian on a store in memory, and what tells it of terms.
    struct Bench {
        store: MemoryStore,
        log: Log,
        writer: LogWriter,
        historian: Option<Historian>,
    }

    impl Bench {
        fn new() -> Self {
            let node = NodeId::new("web-3").unwrap();
            let style = Style { format: Format::Json, terminal: false, colours: false };
            let nowhere: Box<dyn AsFd + Send> = Box::new(std::fs::File::create("/dev/null").unwrap());
            let (log, writer) = Log::start(style, &node, nowhere).unwrap();
            let election = ElectionName::new("job").unwrap();
            let standing = Arc::new(Standing::new(election.clone(), Duration::from_secs(15)));
            let log = log.for_election(&standing);
            let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
            let historian = Historian {
                election,
                node: node.to_string(),
                incarnation: "this-start".to_owned(),
                store: Arc::new(store.clone()),
                standing,
                log: log.clone(),
                pace: PACE,
            };
            Self { store, log, writer, historian: Some(historian) }
        }

        fn begins(&self, term: Term) {
            self.log.emit(Some(term), Event::Elected { module: String::new(), failures: 0 });
        }

        fn ends(&self, term: Term) {
            let (message, usage) = (Some("no".to_owned()), baton_runtime::Usage::default());
            let (outcome, took_s) = ("failed".to_owned(), Duration::ZERO.into());
            self.log.emit(Some(term), Event::Ended { outcome, message, took_s, usage });
        }

        /// The terms as they are stored, and whether each has ended.
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
    async fn what_cannot_be_written_is_written_later_and_the_last_at_the_end() {
        let mut bench = Bench::new();
        let (serving, over) = watch::channel(());
        let historian = tokio::spawn(bench.historian.take().unwrap().run(over));
        bench.begins(1);
        bench.until(&[(1, false)]).await;
        for _ in 0..25 {
            bench.store.fail_next(Fault::LoseRequest);
        }
        bench.ends(1);
        bench.begins(2);
        bench.ends(2);
        bench.until(&[(1, true), (2, true)]).await;
        bench.begins(3);
        bench.ends(3);
        drop(serving);
        historian.await.unwrap();
        assert_eq!(bench.terms().await, [(1, true), (2, true), (3, true)]);
        assert!(bench.writer.shutdown(Duration::from_secs(60)));
    }

    #[test]
    fn what_waits_to_be_written_is_bounded() {
        let bench = Bench::new();
        let historian = bench.historian.as_ref().unwrap();
        let mut untold = Untold::default();
        for term in 1..=KEPT_TERMS as u64 + 7 {
            bench.begins(term);
            untold.add(historian, historian.standing.terms.take());
            bench.ends(term);
            untold.add(historian, historian.standing.terms.take());
        }
        assert_eq!((untold.0.len(), untold.0.first_key_value().unwrap().0), (KEPT_TERMS, &8));
        assert!(untold.0.values().all(|[before, own]| before.is_none() && own.as_ref().unwrap().ended.is_some()));
    }
}
