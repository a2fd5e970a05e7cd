//! The instance: watching over it, and what follows from its end.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::super::candidate::back_to_standby;
use super::super::record_writer::Purpose;
use super::super::timer::Timer;
use super::super::{FAILURES_TO_STEP_DOWN, HEALTHY_AFTER, Role, Shared};
use super::terms::Leave;
use super::{Holding, Stage};
use crate::port::{Effect, End, ModuleVersion, OnDone, Report, StopReason};
use crate::record::{Outcome, Term};
use crate::timing::Time;

/// An instance, from its start until it is gone.
#[derive(Debug, Clone, Hash)]
pub(super) struct Serving {
    pub(super) term: Term,
    pub(super) version: ModuleVersion,
    pub(super) started: Time,
    /// The end of its grace, once it has been asked to stop.
    pub(super) grace_ends: Option<Time>,
    pub(super) killed: Option<Time>,
    pub(super) aborted: bool,
    pub(super) healthy: bool,
    /// Why the lease is known to be lost, once it is.
    pub(super) lost: Option<String>,
    /// Why its version is bad, where it is stopped for that.
    pub(super) rejected: Option<String>,
}

impl Holding {
    /// Asks, kills and aborts when it is time.
    pub(super) fn watch_instance(&mut self, shared: &mut Shared) {
        let since_renewal = shared.time().since(self.renewed);
        let last_renewed = || format!("the lease was last renewed {since_renewal:.1?} ago");
        if self.is_due(shared, Timer::AtRisk) {
            self.stop(shared, StopReason::LeaseAtRisk, &last_renewed());
        }
        match self.leave.clone() {
            Some(Leave::Shutdown) => self.stop(shared, StopReason::Shutdown, "the host is shutting down"),
            Some(Leave::StepDown(reason)) => self.stop(shared, StopReason::StepDown, &reason),
            Some(Leave::NothingToServe) => {
                self.stop(shared, StopReason::StepDown, "its module must not run any more");
            }
            Some(Leave::Over) | None => {}
        }
        if self.is_due(shared, Timer::Deadline) {
            self.kill(shared, &last_renewed());
        } else if self.is_due(shared, Timer::Grace) {
            self.kill(shared, "the grace is over");
        }
        let (aborts, is_proven) = (self.is_due(shared, Timer::Abort), self.is_due(shared, Timer::Proven));
        let is_healthy = self.is_due(shared, Timer::Healthy);
        let Stage::Serving(serving) = &mut self.stage else { return };
        if aborts {
            serving.aborted = true;
            let reason = format!("an instance is not gone {since_renewal:.1?} after the last renewal");
            shared.effects.push_back(Effect::Abort { reason });
        }
        if is_proven {
            shared.prove(serving.term);
        }
        if is_healthy {
            serving.healthy = true;
            shared.cool_offs = 0;
            self.note_health(shared);
        }
    }

    /// Asks the instance to stop, with the grace that there is.
    fn stop(&mut self, shared: &mut Shared, reason: StopReason, message: &str) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.stop(shared, reason, message, shared.settings.timing.grace());
        }
    }

    fn kill(&mut self, shared: &mut Shared, reason: &str) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.kill(shared, reason);
        }
    }

    /// The instance has been healthy for long enough, and its version's streak of failures is over.
    fn note_health(&mut self, shared: &Shared) {
        self.streak.failures = 0;
        if let Some(record) = self.writer.record().filter(|record| record.failures > 0 && !self.writer.is_busy()) {
            let mut record = record.clone();
            record.failures = 0;
            self.writer.want(record, Purpose::Note, shared.time());
        }
    }

    pub(super) fn plan_changed(&mut self, shared: &Shared) {
        let is_other = self.writer.record().is_some_and(|record| !shared.versions.is_in(record));
        match (&mut self.stage, shared.versions.module()) {
            // The module that is served was published anew.
            (Stage::Serving(serving), Some(version)) if version.digest == serving.version.digest => {
                serving.version = version.clone();
            }
            // Whatever it waits for concerns the module before.
            (Stage::Resting { until }, Some(_)) if is_other => *until = shared.time(),
            (Stage::Noting { rest }, Some(_)) if is_other => *rest = Duration::ZERO,
            _ => {}
        }
    }

    /// A version that makes no progress within its probation is bad; otherwise this node gives way. One that is
    /// being stopped need not make any: it is killed when its grace is over, and what follows it is no part of that.
    pub(super) fn stalled(&mut self, shared: &mut Shared, reason: String) {
        match &mut self.stage {
            Stage::Serving(serving) if serving.grace_ends.is_some() => {}
            Stage::Serving(serving) if shared.versions.is_on_probation(&serving.version) => {
                serving.stop(shared, StopReason::Replaced, &reason, shared.settings.timing.grace());
                serving.rejected.get_or_insert(reason);
            }
            _ => drop(self.leave.get_or_insert(Leave::StepDown(reason))),
        }
    }

    pub(super) fn skip_grace(&mut self, shared: &mut Shared) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.stop(shared, StopReason::Shutdown, "the host is shutting down", Duration::ZERO);
            serving.kill(shared, "the grace was skipped");
        }
    }

    pub(super) fn gone(&mut self, shared: &mut Shared, end: End) -> Option<Role> {
        let Stage::Serving(serving) = &mut self.stage else { return None };
        if let End::Superseded { term } = end {
            shared.memory.highest_term = shared.memory.highest_term.max(term);
            self.spent = self.spent.max(term);
        }
        if let Some(why) = serving.lost.take() {
            return back_to_standby(shared, why);
        }
        let was_stopped = serving.grace_ends.is_some();
        let (term, version, started) = (serving.term, serving.version.clone(), serving.started);
        let rejected = serving.rejected.take().filter(|_| shared.versions.is_on_probation(&version));
        // Nobody has looked since it was.
        if !serving.healthy && shared.time().since(started) >= HEALTHY_AFTER {
            self.note_health(shared);
        }
        // An instance that was asked to stop has not failed, whatever it says.
        let end = if was_stopped { End::Killed } else { end };
        match rejected {
            Some(reason) => shared.reject(term, reason),
            None => shared.judge(&version, term, started, &end),
        }
        if self.leave.is_none() && shared.versions.digest() != Some(&version.digest) {
            // Another version follows at once, and has no part in what became of this one.
            self.stage = Stage::Noting { rest: Duration::ZERO };
            return None;
        }
        // There is room for one more, whatever the record says.
        let failures = self.streak.failures.min(u32::MAX - 1);
        let (failures, rest) = match end {
            End::Killed | End::Superseded { .. } => (failures, Duration::ZERO),
            End::Done => {
                let wait = shared.settings.pause;
                match (shared.settings.on_done, &self.leave) {
                    (OnDone::Finish, _) => drop(self.leave.get_or_insert(Leave::Over)),
                    (OnDone::Repeat, None) => shared.report(Report::Pausing { wait }),
                    (OnDone::Repeat, Some(_)) => {}
                }
                (0, wait)
            }
            End::Failed(why) | End::Crashed(why) | End::Fatal(why) if failures + 1 >= FAILURES_TO_STEP_DOWN => {
                let why = format!("{} failures in a row, the last: {why}", failures + 1);
                self.leave.get_or_insert(Leave::StepDown(why));
                (failures + 1, Duration::ZERO)
            }
            End::Fatal(why) => {
                self.leave.get_or_insert(Leave::StepDown(why));
                (failures + 1, Duration::ZERO)
            }
            End::Failed(why) | End::Crashed(why) => {
                let rest = shared.jittered(Duration::from_secs(1 << failures)).max(Duration::from_secs(1));
                shared.report(Report::Resting { wait: rest, reason: why, failures: failures + 1 });
                (failures + 1, rest)
            }
        };
        self.streak.failures = failures;
        let outcome = (self.leave == Some(Leave::Over)).then_some(Outcome::Done);
        self.note(shared, &version, failures, outcome, rest);
        None
    }
}

impl Serving {
    pub(super) fn new(term: Term, version: ModuleVersion, started: Time) -> Self {
        Self {
            term,
            version,
            started,
            grace_ends: None,
            killed: None,
            aborted: false,
            healthy: false,
            lost: None,
            rejected: None,
        }
    }

    /// When its version has done well for long enough, if that is on probation.
    pub(super) fn proven_at(&self, shared: &Shared) -> Option<Time> {
        shared.versions.proven_at(&self.version, self.started, shared.settings.probation)
    }

    /// Asks it to stop, with nothing to follow that is known by now.
    pub(super) fn stop(&mut self, shared: &mut Shared, reason: StopReason, message: &str, grace: Duration) {
        self.ask_to_stop(shared, reason, message, grace, None);
    }

    /// Asks once; a stop is never taken back, and its first reason stays.
    pub(super) fn ask_to_stop(
        &mut self,
        shared: &mut Shared,
        reason: StopReason,
        message: &str,
        grace: Duration,
        next: Option<Term>,
    ) {
        if self.grace_ends.is_none() {
            let grace_ends = shared.time() + grace;
            self.grace_ends = Some(grace_ends);
            shared.effects.push_back(Effect::Stop { reason, message: message.to_string(), grace_ends, next });
        }
    }

    pub(super) fn kill(&mut self, shared: &mut Shared, reason: &str) {
        if self.killed.is_none() {
            self.killed = Some(shared.time());
            shared.effects.push_back(Effect::Kill { reason: reason.to_string() });
        }
    }
}
