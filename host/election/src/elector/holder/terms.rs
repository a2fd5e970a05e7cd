//! The steps between terms. The holder records the last outcome, and then begins another term or gives up the lease.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::super::candidate::{AcquireBasis, AcquireMode, back_to_standby};
use super::super::record_writer::Purpose;
use super::super::releasing::Releasing;
use super::super::timer::Timer;
use super::super::{Context, Role};
use super::{Holding, Serving, Stage};
use crate::port::{Effect, ModuleVersion, Report, StopReason};
use crate::record::{Outcome, Record};

#[derive(Debug, Default, Clone, Hash)]
pub(super) struct FailureStreak {
    /// The version's digest; `None` before any version has been served under this lease.
    pub(super) module: Option<String>,
    pub(super) failures: u32,
}

impl FailureStreak {
    /// The failure streak with which a new holder starts. If the previous leader's host died, the death counts as a
    /// failure of the version.
    pub(super) fn after(context: &Context, opening: &AcquireBasis) -> Self {
        match (&opening.record, opening.way) {
            // The previous leader was pausing, which it does only after an instance has returned ok. So there is no
            // failure to count.
            (Some(record), _) if !context.pause_left(Some(record)).is_zero() => Self::default(),
            (Some(record), AcquireMode::InsteadOf(_) | AcquireMode::Reclaim(_)) if context.may_have_served(record) => {
                Self { module: record.module.clone(), failures: record.failures.saturating_add(1) }
            }
            _ => Self::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LeaveReason {
    Shutdown,
    /// The node steps down for this reason. A cool-off follows.
    StepDown(String),
    /// The node must not lead, for this reason.
    Ineligible(String),
    NothingToServe,
    Over,
}

impl Holding {
    /// Writes the outcome of a term, unless the record already contains the outcome. Then waits for `rest`.
    pub(super) fn note(
        &mut self,
        context: &mut Context,
        version: &ModuleVersion,
        failures: u32,
        outcome: Option<Outcome>,
        rest: Duration,
        is_pause: bool,
    ) {
        self.stage = Stage::Noting { rest };
        let paused_until = (is_pause && !rest.is_zero()).then(|| context.now.wall + rest);
        if let Some(record) = self.writer.record()
            && (self.writer.is_busy()
                || record.failures != failures
                || record.outcome != outcome
                || record.paused_until != paused_until)
        {
            let mut record = record.clone();
            record.progress = context.memory.progress.clone();
            record.paused_until = paused_until;
            record.failures = failures;
            record.outcome = outcome;
            // The record may name a version that was replaced before it was served. Name the version to which this
            // outcome belongs.
            record.module = Some(version.digest.clone());
            self.writer.want(record, Purpose::Note, context.time());
        }
    }

    /// Steps down for a cool-off if this node has reclaimed the lease after at least two consecutive failures,
    /// including the death of the previous host. Without the cool-off, a host that is killed by its own instance would
    /// restart and reclaim the lease again and again.
    pub(super) fn step_down_if_host_keeps_dying(&mut self, context: &Context, opening: &AcquireBasis) {
        let Some(record) = opening.record.as_ref().filter(|record| context.versions.is_in(record)) else { return };
        if record.failures == 0 || !matches!(opening.way, AcquireMode::Reclaim(_)) || !context.may_have_served(record) {
            return;
        }
        let failures = self.streak.failures;
        self.leave = Some(LeaveReason::StepDown(format!("{failures} failures in a row, most recently: the host died")));
        self.writer.want(Record { failures, ..record.clone() }, Purpose::Note, context.time());
        self.stage = Stage::Noting { rest: Duration::ZERO };
    }

    /// True if no instance can run until the record is written.
    pub(super) fn is_stuck(&self) -> bool {
        !matches!(self.stage, Stage::Serving(_)) && self.writer.is_busy()
    }

    pub(super) fn written(&mut self) {
        if matches!(self.stage, Stage::Claiming) {
            self.stage = Stage::Claimed;
        }
    }

    /// Moves on to the next stage if that needs no answer from the store. Never leaves the stage `Serving`: only
    /// [`Self::gone`] does that.
    pub(super) fn advance(&mut self, context: &mut Context) -> Option<Role> {
        if matches!(self.stage, Stage::Serving(_)) {
            return None;
        }
        if self.is_due(context, Timer::RunOut) {
            return self.lose(context, "the lease expired before this node could renew it".to_string());
        }
        let lease = context.settings.timing.lease();
        if !self.is_stuck() {
            self.stuck_since = None;
        }
        if self.is_due(context, Timer::Stuck) {
            let reason = format!("the record could not be written for {lease:?}");
            context.begin_cool_off(reason.clone());
            return leave_to_run_out(context, reason);
        }
        if let Some(leave) = self.leave.clone() {
            return self.leave(context, leave);
        }
        match self.stage {
            Stage::Settling(settled) if self.is_due(context, Timer::Settled) => {
                let until = settled.ends_by(context.now.least, lease);
                self.stage = Stage::Recalling { settled, pending: None, next_try: context.time(), until };
            }
            Stage::Noting { rest } if !self.writer.is_busy() => {
                self.stage = Stage::Resting { until: context.time() + rest };
            }
            // The planned module has changed since the term was written, so this term names the wrong module. Begin
            // another term.
            Stage::Claimed if !self.is_claimed(context) => self.stage = Stage::Resting { until: context.time() },
            _ => {}
        }
        // The election may already be over for the module that is planned now.
        let is_noting = matches!(self.stage, Stage::Noting { .. }) && self.writer.is_busy();
        if self.writer.record().is_some_and(|record| context.is_over(record)) && !is_noting {
            return self.leave(context, LeaveReason::Over);
        }
        if self.is_due(context, Timer::NextTerm) {
            if self.is_claimed(context) {
                self.stage = Stage::Claimed;
            } else {
                self.begin_next(context);
            }
        } else if self.is_next_term_due(context) {
            self.renew_for_next_term(context);
        }
        let is_paused = context.time() < self.pause_until;
        if matches!(self.stage, Stage::Claimed) && !is_paused && self.renewed_recently(context) {
            self.start(context);
        }
        None
    }

    fn is_next_term_due(&self, context: &Context) -> bool {
        match self.stage {
            Stage::Resting { until } => context.time() >= until,
            Stage::Idle { due: Some(due), .. } => context.now.wall >= due,
            _ => false,
        }
    }

    pub(super) fn claim(&mut self, context: &mut Context) {
        let mut record = context.next_record(self.writer.record(), self.length);
        // `streak` counts the failures of the module that ran last. These failures count even if the record has since
        // named another module.
        if self.streak.module == record.module {
            record.failures = self.streak.failures;
        }
        if context.time() < self.pause_until {
            record.paused_until = self.writer.record().and_then(|record| record.paused_until);
        }
        // From now on, the term may be in the store, even if the answer to the write is lost.
        context.memory.highest_term = record.term;
        self.writer.want(record, Purpose::Term, context.time());
    }

    /// True if the next term is already written, for the planned module.
    fn is_claimed(&self, context: &Context) -> bool {
        !self.writer.is_busy() && self.writer.record().is_some_and(|record| self.is_next(context, record))
    }

    /// True if the record begins an unserved term of this holder, for the planned module.
    fn is_next(&self, context: &Context, record: &Record) -> bool {
        record.term > self.spent
            && record.node.is_some()
            && record.incarnation == context.settings.incarnation
            && record.progress == context.memory.progress
            && context.versions.is_in(record)
    }

    /// Replaces an instance whose version is no longer planned. The next term is written while the old instance still
    /// runs, so that the new instance need not wait for that write.
    pub(super) fn change_over(&mut self, context: &mut Context) {
        let Stage::Serving(serving) = &self.stage else { return };
        let is_planned = context.versions.digest().is_none_or(|digest| *digest == serving.version.digest);
        // A scheduled run may complete while its instance stops, and the next term must not repeat a completed run. So
        // a new version waits for the end of the run.
        let waits_for_run = serving.run.is_some();
        if is_planned || waits_for_run || serving.grace_ends.is_some() || self.leave.is_some() || self.renewal.failing {
            return;
        }
        if !self.renewed_recently(context) {
            return;
        }
        if self.is_claimed(context) {
            let next = self.writer.record().map(|record| record.term);
            let message = replacement(context);
            let Stage::Serving(serving) = &mut self.stage else { return };
            serving.ask_to_stop(context, StopReason::Replaced, &message, context.settings.timing.grace(), next);
        } else if !self.writer.wanted().is_some_and(|record| self.is_next(context, record)) {
            self.claim(context);
        }
    }

    /// Returns true if at least half of D is left. Otherwise, makes a renewal due now.
    fn renewed_recently(&mut self, context: &Context) -> bool {
        let fresh = self.is_fresh(context);
        if !fresh {
            self.hasten_renewal(context);
        }
        fresh
    }

    fn start(&mut self, context: &mut Context) {
        let Some(record) = self.writer.record().cloned() else { return };
        let Some(version) = context.versions.module().cloned() else { return };
        let term = record.term;
        (self.spent, self.has_begun) = (term, true);
        context.lease_is_taken();
        let run = context.unfinished_run();
        if context.settings.schedule.is_some() && run.is_none() {
            context.report(Report::Elected { record });
            self.tell_others(context);
            return self.choose_again(context);
        }
        self.streak = FailureStreak { module: Some(version.digest.clone()), failures: record.failures };
        context.cool_off = None;
        let (deadline, abort_at) = (self.deadline(context), self.renewed + context.settings.timing.abort_after());
        context.report(Report::Elected { record });
        context.effects.push_back(Effect::Start { term, version: version.clone(), run, deadline, abort_at });
        self.stage = Stage::Serving(Serving::new(term, version, run, context.time()));
        self.tell_others(context);
    }

    /// Gives up the lease. The caller has made sure that no instance is running.
    fn leave(&mut self, context: &mut Context, leave: LeaveReason) -> Option<Role> {
        if let LeaveReason::StepDown(reason) = leave {
            context.begin_cool_off(reason);
        }
        if matches!(self.stage, Stage::Settling(_) | Stage::Recalling { .. }) {
            // A release tells the next holder that no instance can still be running. This node does not know that.
            return leave_to_run_out(context, "another node's instance may still be running".to_string());
        }
        // Mark the record as released, with the last term's outcome. If a write of the next term is under way, leave
        // that term out, because it has not begun.
        let last = if matches!(self.stage, Stage::Noting { .. }) { self.writer.wanted() } else { self.writer.record() };
        let (writer, last, until) = (self.writer.clone(), last.cloned(), self.renewed + self.length);
        Some(Role::Releasing(Releasing::new(context, self.id, writer, last, until)))
    }
}

fn replacement(context: &Context) -> String {
    format!("module {} replaces this one", context.versions.digest().unwrap_or_default())
}

/// Returns to standby without releasing the lease. Once the lease has expired, the next holder can start immediately.
fn leave_to_run_out(context: &mut Context, why: String) -> Option<Role> {
    let reason = format!("{why}, so this node lets the lease expire");
    context.report(Report::NotReleased { reason: reason.clone() });
    back_to_standby(context, reason)
}
