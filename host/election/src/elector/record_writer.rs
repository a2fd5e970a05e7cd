//! Writes the record under the lease, if nobody else has changed it. If the outcome of a write is unknown, reads the
//! record before writing again.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::{Context, Pending, answered};
use crate::record::{LeaseId, LeaseState, Record, Snapshot, Version};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::timing::Time;

pub(super) const WRITTEN_BY_OTHERS: &str = "another client has written the record";

/// The current record, as far as this holder knows, and the record that the holder wants to write.
#[derive(Debug, Clone, Hash)]
pub(super) struct RecordWriter {
    version: Version,
    record: Option<Record>,
    /// Records that this holder has sent to replace the record at `version`. The store may contain one of them by now.
    asked: Vec<Record>,
    goal: Option<Goal>,
    /// Superseded writes that have not been answered yet. Their answers may still report that the lease is lost.
    superseded: Vec<Pending>,
}

#[derive(Debug, Clone, Hash)]
struct Goal {
    record: Record,
    purpose: Purpose,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Term,
    /// The record notes a change in the current term: an outcome, the failure count, or the end of the last instance.
    Note,
}

#[derive(Debug, Clone, Hash)]
enum Step {
    WriteAt(Time),
    Writing(Option<Pending>),
    ReadAt(Time),
    Reading(Option<Pending>),
}

#[derive(Debug, Clone, Hash)]
pub(super) enum WriteResult {
    None,
    Written,
    /// The lease is certainly lost.
    Lost(String),
    /// The lease may be lost. The holder should send a renewal to find out.
    Doubt,
}

impl RecordWriter {
    pub(super) fn new(version: Version, record: Option<Record>) -> Self {
        Self { version, record, asked: Vec::new(), goal: None, superseded: Vec::new() }
    }

    /// The stored record, as far as this holder knows.
    pub(super) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// The record that this holder wants in the store, even if it has not been written yet.
    pub(super) fn wanted(&self) -> Option<&Record> {
        self.goal.as_ref().map(|goal| &goal.record).or(self.record())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.goal.is_some()
    }

    /// True if the stored record says that no instance can still be running.
    pub(super) fn is_marked(&self) -> bool {
        self.goal.is_none() && self.record().is_some_and(|record| record.released)
    }

    /// Sets the record to write. If another write is under way, the writer first reads the record to learn the outcome
    /// of that write.
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

    pub(super) fn awaits(&self, id: RequestId) -> bool {
        match self.goal.as_ref().map(|goal| &goal.step) {
            Some(Step::Writing(pending) | Step::Reading(pending)) => pending.is_some_and(|pending| pending.id == id),
            Some(Step::WriteAt(_) | Step::ReadAt(_)) | None => false,
        }
    }

    pub(super) fn hurry(&mut self, now: Time) {
        if let Some(Goal { step: Step::WriteAt(at) | Step::ReadAt(at), .. }) = &mut self.goal {
            *at = now;
        }
    }

    /// The time of the next request; `None` while an answer is awaited or there is nothing to write.
    pub(super) fn next_try(&self) -> Option<Time> {
        match self.goal.as_ref()?.step {
            Step::WriteAt(at) | Step::ReadAt(at) => Some(at),
            Step::Writing(_) | Step::Reading(_) => None,
        }
    }

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

    /// Ignores answers to requests that this writer has not sent.
    pub(super) fn answer(
        &mut self,
        context: &mut Context,
        id: RequestId,
        result: &Result<Reply, StoreError>,
    ) -> WriteResult {
        if let Some(place) = self.superseded.iter().position(|pending| pending.id == id) {
            self.superseded.swap_remove(place);
            return known_loss(result);
        }
        let Some(goal) = &mut self.goal else { return WriteResult::None };
        let (Step::Writing(slot) | Step::Reading(slot)) = &mut goal.step else { return WriteResult::None };
        if answered(slot, id).is_none() {
            return WriteResult::None;
        }
        match result {
            Ok(Reply::Version(version)) => {
                let version = version.clone();
                self.reached(context, version)
            }
            Ok(Reply::Read(snapshot)) => self.compare(context, snapshot),
            Err(StoreError::Conflict) => {
                goal.step = Step::ReadAt(context.time());
                WriteResult::None
            }
            Err(StoreError::Lost(_) | StoreError::Held) => known_loss(result),
            Ok(Reply::Done | Reply::Recalled(_) | Reply::Surveyed { .. })
            | Err(StoreError::Unknown(_) | StoreError::Misconfigured(_)) => {
                if let Err(error) = result {
                    context.store_trouble("write", error);
                }
                goal.step = Step::ReadAt(context.retry_at());
                WriteResult::None
            }
        }
    }

    fn reached(&mut self, context: &mut Context, version: Version) -> WriteResult {
        if let Some(goal) = self.goal.take() {
            context.store_answers("write");
            context.memory.note_record(&goal.record);
            self.is_at(version, Some(goal.record));
        }
        WriteResult::Written
    }

    fn is_at(&mut self, version: Version, record: Option<Record>) {
        (self.version, self.record) = (version, record);
        self.asked.clear();
    }

    /// Compares the stored record with the wanted record after an unknown outcome. Unless the wanted record has been
    /// written, schedules another attempt. Only the holder can write under a lease. So if this holder never sent the
    /// stored record, the lease is lost.
    fn compare(&mut self, context: &mut Context, snapshot: &Snapshot) -> WriteResult {
        let Some(goal) = &mut self.goal else { return WriteResult::None };
        let Snapshot::Object { lease, version, record } = snapshot else {
            return WriteResult::Lost("the record was deleted".to_string());
        };
        if let Some(found) = record {
            context.memory.note_record(found);
        }
        // A held or expired lease can still be renewed. In any other state, the lease is lost.
        if !matches!(lease, LeaseState::Held | LeaseState::Expired) {
            return WriteResult::Lost("the lease is no longer held".to_string());
        }
        // As long as the version is unchanged, a write that was sent for this version can still arrive and replace the
        // record that was found.
        let is_settled = *version != self.version;
        let is_there = |wanted: &Record| record.as_ref().is_some_and(|found| is_same(found, wanted));
        if is_settled && is_there(&goal.record) {
            return self.reached(context, version.clone());
        }
        if is_settled && !self.asked.iter().any(is_there) {
            return WriteResult::Lost(WRITTEN_BY_OTHERS.to_string());
        }
        let found = record.as_ref().map_or(0, |found| found.term);
        let highest = context.memory.highest_term;
        match (goal.purpose, record) {
            // Choose a higher term if the stored term is not lower than the wanted term. Also choose a higher term if
            // this node has learned of one in the meantime, for example from the coordinator's state.
            (Purpose::Term, _) if found < goal.record.term && highest == goal.record.term => {}
            (Purpose::Term, _) => goal.record.term = highest + 1,
            // The stored term was written after all. It stays the latest term, so copy it into the wanted record.
            (Purpose::Note, Some(begun)) if begun.term > goal.record.term => goal.record.names_term_of(begun),
            // The store does not contain a term that this node attempted, so the term has not begun. Once this write
            // succeeds, the earlier write can no longer succeed.
            (Purpose::Note, _) => {}
        }
        context.memory.highest_term = highest.max(goal.record.term);
        let (step, news) = if *lease == LeaseState::Held {
            (Step::WriteAt(context.time()), WriteResult::None)
        } else {
            (Step::ReadAt(context.retry_at()), WriteResult::Doubt)
        };
        goal.step = step;
        if is_settled {
            self.is_at(version.clone(), record.clone());
        }
        news
    }
}

/// Returns [`WriteResult::Lost`] if the answer reports that the lease is lost, and [`WriteResult::None`] for all other
/// answers.
fn known_loss(result: &Result<Reply, StoreError>) -> WriteResult {
    match result {
        Err(StoreError::Lost(why)) => WriteResult::Lost(why.clone()),
        Err(StoreError::Held) => WriteResult::Lost("the lease is held by another client".to_string()),
        _ => WriteResult::None,
    }
}

/// True if the records match. The found lease may be longer than the wanted lease, because the store may round the
/// length up. The found lease must not be shorter, because other nodes would then not wait long enough.
fn is_same(found: &Record, wanted: &Record) -> bool {
    found.lease >= wanted.lease
        && found.progress == wanted.progress
        && (found.term, &found.incarnation, &found.module, found.outcome, found.failures, found.released)
            == (wanted.term, &wanted.incarnation, &wanted.module, wanted.outcome, wanted.failures, wanted.released)
}
