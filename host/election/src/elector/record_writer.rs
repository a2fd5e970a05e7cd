//! Writing the record under the lease: conditionally, and after doubt by reading first.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Context, Pending, answered};
use crate::record::{LeaseId, LeaseState, Record, Snapshot, Version};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::timing::Time;

/// Why the lease is lost where the record is none of what this holder has asked for.
pub(super) const WRITTEN_BY_OTHERS: &str = "another client has written the record";

/// The record as this holder knows it, and what it is to become.
#[derive(Debug, Clone, Hash)]
pub(super) struct RecordWriter {
    version: Version,
    record: Option<Record>,
    /// What was asked to be written over that version: one of these may be there by now.
    asked: Vec<Record>,
    goal: Option<Goal>,
    /// Writes that are not wanted any more and have no answer so far. Whether they were carried out a reading shows, but
    /// the answer may be that the lease is lost.
    superseded: Vec<Pending>,
}

#[derive(Debug, Clone, Hash)]
struct Goal {
    record: Record,
    purpose: Purpose,
    step: Step,
}

/// What the goal's record is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// It begins a term.
    Term,
    /// It notes something in the term that there is: an outcome, the count of failures, that nothing runs any more.
    Note,
}

#[derive(Debug, Clone, Hash)]
enum Step {
    WriteAt(Time),
    Writing(Option<Pending>),
    ReadAt(Time),
    Reading(Option<Pending>),
}

/// What an answer meant.
#[derive(Debug, Clone, Hash)]
pub(super) enum News {
    /// Nothing that its holder must know.
    None,
    /// The goal is reached.
    Written,
    /// The lease is certainly not held.
    Lost(String),
    /// A renewal should tell whether the lease is held.
    Doubt,
}

impl RecordWriter {
    pub(super) fn new(version: Version, record: Option<Record>) -> Self {
        Self { version, record, asked: Vec::new(), goal: None, superseded: Vec::new() }
    }

    /// The record that the store has, as far as is known.
    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The version that the store has, as far as is known.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// The record that is to be there, whether it is there already or not.
    pub(super) fn wanted(&self) -> Option<&Record> {
        self.goal.as_ref().map(|goal| &goal.record).or(self.record())
    }

    /// Whether there is a goal that is not reached.
    pub(super) fn is_busy(&self) -> bool {
        self.goal.is_some()
    }

    /// Whether the store's record says that nothing can still run.
    pub(super) fn is_marked(&self) -> bool {
        self.goal.is_none() && self.record().is_some_and(|record| record.released)
    }

    /// Wants the store to have `record` from now on. What was wanted before no longer is; a write of it
    /// that may be under way is settled by a reading first.
    pub(super) fn want(&mut self, record: Record, purpose: Purpose, now: Time) {
        let step = match self.goal.as_ref().map(|goal| &goal.step) {
            None | Some(Step::WriteAt(_)) => Step::WriteAt(now),
            Some(Step::Writing(pending)) => {
                self.superseded.extend(*pending);
                Step::ReadAt(now)
            }
            Some(Step::ReadAt(_) | Step::Reading(_)) => Step::ReadAt(now),
        };
        self.goal = Some(Goal { record, purpose, step });
    }

    /// Whether that is the request whose answer it waits for.
    pub(super) fn awaits(&self, id: RequestId) -> bool {
        match self.goal.as_ref().map(|goal| &goal.step) {
            Some(Step::Writing(pending) | Step::Reading(pending)) => pending.is_some_and(|pending| pending.id == id),
            Some(Step::WriteAt(_) | Step::ReadAt(_)) | None => false,
        }
    }

    /// Waits no longer for the next try.
    pub(super) fn hurry(&mut self, now: Time) {
        if let Some(Goal { step: Step::WriteAt(at) | Step::ReadAt(at), .. }) = &mut self.goal {
            *at = now;
        }
    }

    /// When it is to ask for something; none while it waits for an answer, or wants nothing.
    pub(super) fn next_try(&self) -> Option<Time> {
        match self.goal.as_ref()?.step {
            Step::WriteAt(at) | Step::ReadAt(at) => Some(at),
            Step::Writing(_) | Step::Reading(_) => None,
        }
    }

    /// Asks for what is next.
    pub(super) fn send(&mut self, context: &mut Context, id: LeaseId) {
        let Some(goal) = &mut self.goal else { return };
        match goal.step {
            Step::WriteAt(_) => {
                let op = Op::Write { id, version: self.version.clone(), record: goal.record.clone() };
                if !self.asked.contains(&goal.record) {
                    self.asked.push(goal.record.clone());
                }
                goal.step = Step::Writing(Some(context.urgent(op)));
            }
            Step::ReadAt(_) => goal.step = Step::Reading(Some(context.urgent(Op::Read))),
            Step::Writing(_) | Step::Reading(_) => {}
        }
    }

    /// Takes an answer; one to somebody else's request does nothing.
    pub(super) fn answer(&mut self, context: &mut Context, id: RequestId, result: &Result<Reply, StoreError>) -> News {
        if let Some(place) = self.superseded.iter().position(|pending| pending.id == id) {
            self.superseded.swap_remove(place);
            return known_loss(result);
        }
        let Some(goal) = &mut self.goal else { return News::None };
        let (Step::Writing(slot) | Step::Reading(slot)) = &mut goal.step else { return News::None };
        if answered(slot, id).is_none() {
            return News::None;
        }
        match result {
            Ok(Reply::Version(version)) => {
                let version = version.clone();
                self.reached(context, version)
            }
            Ok(Reply::Read(snapshot)) => self.compare(context, snapshot),
            Err(StoreError::Conflict) => {
                goal.step = Step::ReadAt(context.time());
                News::None
            }
            Err(StoreError::Lost(_) | StoreError::Held) => known_loss(result),
            Ok(Reply::Done | Reply::Term(_) | Reply::Surveyed { .. })
            | Err(StoreError::Unknown(_) | StoreError::Misconfigured(_)) => {
                if let Err(error) = result {
                    context.store_trouble("write", error);
                }
                goal.step = Step::ReadAt(context.retry_at());
                News::None
            }
        }
    }

    fn reached(&mut self, context: &mut Context, version: Version) -> News {
        if let Some(goal) = self.goal.take() {
            context.store_answers("write");
            context.memory.note_record(&goal.record);
            self.is_at(version, Some(goal.record));
        }
        News::Written
    }

    /// The store has that.
    fn is_at(&mut self, version: Version, record: Option<Record>) {
        (self.version, self.record) = (version, record);
        self.asked.clear();
    }

    /// After a doubt: is what the store has what was wanted? If not, it is written on top of that. Under a lease nobody
    /// writes but its holder, so that what it has never asked for shows that the lease is lost.
    fn compare(&mut self, context: &mut Context, snapshot: &Snapshot) -> News {
        let Some(goal) = &mut self.goal else { return News::None };
        let Snapshot::Object { lease, version, record } = snapshot else {
            return News::Lost("the record was deleted".to_string());
        };
        if let Some(found) = record {
            context.memory.note_record(found);
        }
        // One that has run out can still be renewed. Nothing else becomes of a lease that is held.
        if !matches!(lease, LeaseState::Held | LeaseState::Expired) {
            return News::Lost("the lease is no longer held".to_string());
        }
        // A write that was sent with the version that is still there can arrive yet, and undo what is found.
        let is_settled = *version != self.version;
        let is_there = |wanted: &Record| record.as_ref().is_some_and(|found| is_same(found, wanted));
        if is_settled && is_there(&goal.record) {
            return self.reached(context, version.clone());
        }
        if is_settled && !self.asked.iter().any(is_there) {
            return News::Lost(WRITTEN_BY_OTHERS.to_string());
        }
        let found = record.as_ref().map_or(0, |found| found.term);
        let highest = context.memory.highest_term;
        match (goal.purpose, record) {
            // The state may have named a later term since it was wanted.
            (Purpose::Term, _) if found < goal.record.term && highest == goal.record.term => {}
            (Purpose::Term, _) => goal.record.term = highest + 1,
            // It is there after all, and stays the last one that has begun.
            (Purpose::Note, Some(begun)) if begun.term > goal.record.term => goal.record.names_term_of(begun),
            // A term that was tried and is not there has not begun, and the write of it never arrives any more.
            (Purpose::Note, _) => {}
        }
        context.memory.highest_term = highest.max(goal.record.term);
        let (step, news) = if *lease == LeaseState::Held {
            (Step::WriteAt(context.time()), News::None)
        } else {
            (Step::ReadAt(context.retry_at()), News::Doubt)
        };
        goal.step = step;
        if is_settled {
            self.is_at(version.clone(), record.clone());
        }
        news
    }
}

/// What an answer says of the lease, whatever else it means.
fn known_loss(result: &Result<Reply, StoreError>) -> News {
    match result {
        Err(StoreError::Lost(why)) => News::Lost(why.clone()),
        Err(StoreError::Held) => News::Lost("the lease is held by another client".to_string()),
        _ => News::None,
    }
}

/// Whether the record found is the one wanted, but for details that a store may round. It rounds a lease up: with a
/// shorter one it is not the same, and who reads it would not wait for as long as is to be waited.
fn is_same(found: &Record, wanted: &Record) -> bool {
    found.lease >= wanted.lease
        && (found.term, &found.incarnation, &found.module, found.outcome, found.failures, found.released)
            == (wanted.term, &wanted.incarnation, &wanted.module, wanted.outcome, wanted.failures, wanted.released)
}
