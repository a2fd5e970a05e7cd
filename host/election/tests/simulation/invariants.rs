//! Baton's promises, checked in real time and from outside the hosts. `tests/rules.rs` tests the rules that a single
//! host keeps.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use baton_election::{LeaseId, Op, Outcome, Record, Reply, ScheduledRun, StoreError, Term, Time};

use crate::plan::Key;
use crate::receiver::{Receiver, Sent};
use crate::store::Instant;

#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub rule: &'static str,
    pub what: String,
}

pub type Checked = Result<(), Violation>;

pub fn broken(rule: &'static str, what: String) -> Checked {
    Err(Violation { rule, what })
}

#[derive(Default)]
pub struct History {
    /// The terms that each process wrote under the lease. The value is the number of times that the object had been
    /// deleted before that write.
    written: BTreeMap<(usize, u32, Term), u32>,
    deletions: u32,
    /// The highest term that was started. Every later start must use a higher term.
    floor: Term,
    /// Lease ids for which a release has been sent.
    released: BTreeSet<u128>,
    /// Time between the start and the first poll of the process that started last.
    first_poll: Option<Time>,
    /// The number of processes whose time to the first poll equals that of the previously started process.
    together: u32,
    /// The earliest time at which each lease can end, by lease id.
    kept_until: BTreeMap<u128, Instant>,
    pub receiver: Receiver,
    /// The due time that each process recorded as begun together with a term.
    begun: BTreeMap<(usize, u32, Term), Duration>,
    /// The last due time that was recorded as completed.
    completed: Duration,
    last_run: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
pub struct Running {
    pub host: usize,
    pub term: Term,
    pub lease: Option<LeaseId>,
    /// True if the instance's gate would let an effect pass now.
    pub passes: bool,
    /// True if nothing could end the instance yet, because its process is paused or has only just resumed.
    pub blind: bool,
}

impl History {
    /// Checks that at most one instance can cause an effect at any time.
    pub fn one_at_a_time(running: &[Running]) -> Checked {
        let mut passing = running.iter().filter(|running| running.passes);
        match (passing.next(), passing.next()) {
            (Some(one), Some(other)) => broken("one_at_a_time", format!("{one:?} and {other:?}")),
            _ => Ok(()),
        }
    }

    /// Checks that each instance is gone before the store can grant its lease to another holder.
    pub fn gone_in_time(&self, now: Instant, running: &[Running]) -> Checked {
        for one in running.iter().filter(|one| !one.blind) {
            let end = one.lease.and_then(|id| self.kept_until.get(&id.as_u128()));
            if end.is_none_or(|end| now >= *end) {
                return broken("gone_in_time", format!("the lease of {one:?} is over"));
            }
        }
        Ok(())
    }

    /// Checks a start: the term was written, the term is higher than every term started before, and the instances of
    /// all other hosts are gone. Instances that nothing could end yet do not count.
    pub fn start(&mut self, host: usize, incarnation: u32, term: Term, running: &[Running]) -> Checked {
        let Some(written_after) = self.written.get(&(host, incarnation, term)) else {
            return broken("terms_only_rise", format!("term {term} was not written before its start"));
        };
        if *written_after == self.deletions && term <= self.floor {
            return broken("terms_only_rise", format!("term {term} starts after term {}", self.floor));
        }
        // Terms that were written to an object before its deletion do not count: no node can know them any more.
        if *written_after == self.deletions {
            self.floor = term;
        }
        if let Some(other) = running.iter().find(|other| other.host != host && !other.blind) {
            return broken("gone_in_time", format!("term {term} starts while {other:?} is not gone"));
        }
        Ok(())
    }

    /// Checks a run that begins now: it was recorded together with its term, and was not completed before. Returns true
    /// if the run repeats the last run.
    pub fn run_begins(&mut self, by: (usize, u32, Term), run: ScheduledRun) -> Result<bool, Violation> {
        if self.begun.get(&by) != Some(&run.due) {
            broken("run_is_recorded_first", format!("{by:?} begins {run:?}, and recorded {:?}", self.begun.get(&by)))?;
        }
        if run.due <= self.completed {
            broken("completed_run_stays_completed", format!("{run:?} after {:?}", self.completed))?;
        }
        Ok(self.last_run.replace(run.due) == Some(run.due))
    }

    /// Returns an effect that an instance has just sent through its gate. If the object to which the instance's term
    /// was written has been deleted, returns nothing: other holders cannot know the term, so the effect is not checked.
    pub fn sends(&self, term: Term, by: Key) -> Option<Sent> {
        let (host, incarnation, _) = by;
        let is_known = self.written.get(&(host, incarnation, term)) == Some(&self.deletions);
        is_known.then(|| self.receiver.on_its_way(term, by))
    }

    pub fn first_polls_are_spread(&mut self, first_poll: Time) -> Checked {
        self.together += u32::from(self.first_poll.replace(first_poll) == Some(first_poll));
        // A single coincidence may be chance, although its probability is only one in a billion.
        if self.together > 1 {
            return broken("first_polls_are_spread", format!("some in a row poll {first_poll:?} after their start"));
        }
        Ok(())
    }

    /// The highest term that was started and that hosts can still know.
    pub fn floor(&self) -> Term {
        self.floor
    }

    /// Records that the object was deleted. From then on, a host may know no term above `lowest_seen`, and may start
    /// higher terms a second time.
    pub fn deleted(&mut self, lowest_seen: Term) {
        self.set_back(lowest_seen);
        self.deletions += 1;
    }

    /// Records that somebody deleted the object or restored an older record. From then on, a host may know no term
    /// above `term`, and continue from `term`.
    pub fn set_back(&mut self, term: Term) {
        self.floor = self.floor.min(term);
        self.completed = Duration::ZERO;
        self.receiver.begins_anew();
    }

    pub fn sent(&mut self, op: &Op) -> Checked {
        let id = match op {
            Op::Acquire { id, .. } | Op::Reclaim { id, .. } | Op::Renew { id } | Op::Write { id, .. } => id,
            Op::Release { id } => {
                self.released.insert(id.as_u128());
                return Ok(());
            }
            Op::Read | Op::Recall | Op::Survey | Op::Create { .. } => return Ok(()),
        };
        if self.released.contains(&id.as_u128()) {
            return broken("lease_id_never_reused_after_release_sent", format!("{op:?}"));
        }
        Ok(())
    }

    pub fn executed(
        &mut self,
        (host, incarnation): (usize, u32),
        op: &Op,
        result: &Result<Reply, StoreError>,
        before: Option<&Record>,
        lease_end: Option<Instant>,
        running: &[Running],
    ) -> Checked {
        if result.is_err() {
            return Ok(());
        }
        match op {
            Op::Acquire { id, .. } | Op::Reclaim { id, .. } | Op::Renew { id } => {
                self.kept_until.insert(id.as_u128(), lease_end.unwrap_or_default());
            }
            Op::Write { record, .. } => {
                if let Some(one) = running.iter().find(|one| record.released && !one.blind) {
                    return broken("marks_what_is_gone", format!("{one:?} runs under {record:?}"));
                }
                let term_before = before.map_or(0, |before| before.term);
                if record.term < term_before {
                    return broken("terms_only_rise", format!("term {} over {term_before}", record.term));
                }
                let begins_again = before
                    .is_some_and(|one| one.term == record.term && record.node.is_some() && record.since > one.since);
                if begins_again {
                    return broken("terms_only_rise", format!("term {term_before} begins again"));
                }
                // The outcome must stay in the record until a term of another module begins.
                let was_over = before.is_some_and(|one| one.outcome == Some(Outcome::Done));
                let is_same = before.is_some_and(|one| one.module == record.module);
                let begins = record.node.is_some() && record.term > term_before;
                let stays = record.outcome == Some(Outcome::Done) && is_same && !begins;
                let is_followed = begins && !is_same;
                if was_over && !stays && !is_followed {
                    return broken("finish_stays_finished", format!("{record:?} after {before:?}"));
                }
                self.written.insert((host, incarnation, record.term), self.deletions);
                if let Some(progress) = &record.progress {
                    self.completed = self.completed.max(progress.completed);
                    if let Some(run) = progress.unfinished() {
                        self.begun.insert((host, incarnation, record.term), run.due);
                    }
                }
            }
            Op::Release { .. } if !before.is_some_and(|record| record.released) => {
                return broken("releases_what_is_marked", format!("a release under {before:?}"));
            }
            Op::Read | Op::Recall | Op::Survey | Op::Create { .. } | Op::Release { .. } => {}
        }
        Ok(())
    }
}
