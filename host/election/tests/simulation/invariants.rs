//! The promises, watched from outside with true time: what no host can see by itself. A host keeps its own
//! rules, which `host_rules` has.

use std::collections::{BTreeMap, BTreeSet};

use baton_election::{LeaseId, Op, Outcome, Record, Reply, StoreError, Term, Time};

use crate::plan::Key;
use crate::receiver::{Receiver, Sent};
use crate::store::Instant;

/// A promise or a rule that does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// Its name.
    pub rule: &'static str,
    pub what: String,
}

pub type Checked = Result<(), Violation>;

/// Says that a rule is broken.
pub fn broken(rule: &'static str, what: String) -> Checked {
    Err(Violation { rule, what })
}

/// What the promises need to know of the past.
#[derive(Default)]
pub struct History {
    /// Which process wrote which terms under the lease.
    written: BTreeMap<(usize, u32, Term), u32>,
    /// How often the object was deleted.
    deletions: u32,
    /// No start may have this term or a lower one.
    floor: Term,
    /// Ids whose release was sent.
    released: BTreeSet<u128>,
    /// How long the process that started last waits before it polls.
    first_poll: Option<Time>,
    /// How often a process polled for the first time as long after its start as the one before.
    together: u32,
    /// Until when the store keeps the lease of an id, at the earliest.
    kept_until: BTreeMap<u128, Instant>,
    pub receiver: Receiver,
}

/// An instance as the promises see it.
#[derive(Debug, Clone, Copy)]
pub struct Running {
    pub host: usize,
    pub term: Term,
    pub lease: Option<LeaseId>,
    /// Whether its gate would let an effect pass at this moment.
    pub passes: bool,
    /// Whether its process can do anything at this moment, or has had no chance yet to see the time.
    pub blind: bool,
}

impl History {
    /// At any instant at most one term's instance can cause an effect.
    pub fn one_at_a_time(running: &[Running]) -> Checked {
        let mut passing = running.iter().filter(|running| running.passes);
        match (passing.next(), passing.next()) {
            (Some(one), Some(other)) => broken("one_at_a_time", format!("{one:?} and {other:?}")),
            _ => Ok(()),
        }
    }

    /// The instance is gone before the store could give the lease to anyone else.
    pub fn gone_in_time(&self, now: Instant, running: &[Running]) -> Checked {
        for one in running.iter().filter(|one| !one.blind) {
            let end = one.lease.and_then(|id| self.kept_until.get(&id.as_u128()));
            if end.is_none_or(|end| now >= *end) {
                return broken("gone_in_time", format!("the lease of {one:?} is over"));
            }
        }
        Ok(())
    }

    /// A term is about to be served: it was written under the lease, it is higher than all before, and
    /// nothing of the others is left.
    pub fn start(&mut self, host: usize, incarnation: u32, term: Term, running: &[Running]) -> Checked {
        let Some(written_after) = self.written.get(&(host, incarnation, term)) else {
            return broken("terms_only_rise", format!("term {term} was not written before its start"));
        };
        if *written_after == self.deletions && term <= self.floor {
            return broken("terms_only_rise", format!("term {term} starts after term {}", self.floor));
        }
        // What was written to an object that is deleted by now, others cannot know.
        if *written_after == self.deletions {
            self.floor = term;
        }
        if let Some(other) = running.iter().find(|other| other.host != host && !other.blind) {
            return broken("gone_in_time", format!("term {term} starts while {other:?} is not gone"));
        }
        Ok(())
    }

    /// An effect of that instance has passed its gate. That of a term that was written to an object which is deleted by
    /// now others cannot tell from their own.
    pub fn sends(&self, term: Term, by: Key) -> Option<Sent> {
        let (host, incarnation, _) = by;
        let is_known = self.written.get(&(host, incarnation, term)) == Some(&self.deletions);
        is_known.then(|| self.receiver.on_its_way(term, by))
    }

    /// Processes that start together do not poll together.
    pub fn first_polls_are_spread(&mut self, first_poll: Time) -> Checked {
        self.together += u32::from(self.first_poll.replace(first_poll) == Some(first_poll));
        // Once it may be by chance: one in a billion.
        if self.together > 1 {
            return broken("first_polls_are_spread", format!("some in a row poll {first_poll:?} after their start"));
        }
        Ok(())
    }

    /// The highest term that was started, as far as anybody can know it.
    pub fn floor(&self) -> Term {
        self.floor
    }

    /// The object was deleted. Nobody can know a term that nobody alive has seen: that is what deleting
    /// costs, and the only way in which a term is ever served twice.
    pub fn deleted(&mut self, lowest_seen: Term) {
        self.set_back(lowest_seen);
        self.deletions += 1;
    }

    /// An older record was written again: who knows no better goes on from there.
    pub fn set_back(&mut self, term: Term) {
        self.floor = self.floor.min(term);
        self.receiver.begins_anew();
    }

    /// A host sends a request.
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

    /// The store has carried out a host's request.
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
                // What an election ended with is on record until another module's term begins.
                let was_over = before.is_some_and(|one| one.outcome == Some(Outcome::Done));
                let is_same = before.is_some_and(|one| one.module == record.module);
                let begins = record.node.is_some() && record.term > term_before;
                let stays = record.outcome == Some(Outcome::Done) && is_same && !begins;
                let is_followed = begins && !is_same;
                if was_over && !stays && !is_followed {
                    return broken("finish_stays_finished", format!("{record:?} after {before:?}"));
                }
                self.written.insert((host, incarnation, record.term), self.deletions);
            }
            Op::Release { .. } if !before.is_some_and(|record| record.released) => {
                return broken("releases_what_is_marked", format!("a release under {before:?}"));
            }
            Op::Read | Op::Recall | Op::Survey | Op::Create { .. } | Op::Release { .. } => {}
        }
        Ok(())
    }
}
