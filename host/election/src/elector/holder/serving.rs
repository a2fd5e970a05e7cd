//! Supervises the instance, and handles its end.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::super::candidate::back_to_standby;
use super::super::record_writer::Purpose;
use super::super::timer::Timer;
use super::super::{Context, FAILURES_TO_STEP_DOWN, HEALTHY_AFTER, Role, UNABLE_TO_STEP_DOWN};
use super::terms::LeaveReason;
use super::{Holding, Stage};
use crate::port::{Effect, End, ModuleVersion, Now, OnDone, Report, StopReason};
use crate::record::{Outcome, Term};
use crate::schedule::ScheduledRun;
use crate::timing::Time;

#[derive(Debug, Clone, Hash)]
pub(super) struct Serving {
    pub(super) term: Term,
    pub(super) version: ModuleVersion,
    pub(super) run: Option<ScheduledRun>,
    pub(super) started: Time,
    /// The time at which this node learned that the guest is running.
    pub(super) begun: Option<Time>,
    pub(super) grace_ends: Option<Time>,
    pub(super) killed: Option<Killed>,
    /// True if the instance's process was killed or is exiting, but the operating system has not finished removing it.
    pub(super) dying: bool,
    /// True if the instance was not gone by [`Holding::abort_at`].
    pub(super) overdue: bool,
    pub(super) healthy: bool,
    pub(super) lost: Option<String>,
    /// The reason to reject the version once the instance is gone, if any.
    pub(super) rejected: Option<String>,
}

/// The state of an instance that was killed or is exiting, but is not gone yet.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct Killed {
    /// The time from which the kill timeout is counted.
    pub(super) counted_from: Time,
    /// The time of the last call of [`Holding::check_killed_instance`].
    pub(super) seen: Now,
    /// True if the kill timeout has started, or started again, after a pause of the host that lasted past the deadline.
    /// The timeout then never starts again.
    after_a_pause: bool,
}

impl Holding {
    pub(super) fn watch_instance(&mut self, context: &mut Context) {
        let since_renewal = context.time().since(self.renewed);
        let last_renewed = || format!("the lease was last renewed {since_renewal:.1?} ago");
        if self.is_due(context, Timer::AtRisk) {
            self.stop(context, StopReason::LeaseAtRisk, &last_renewed());
        }
        match self.leave.clone() {
            Some(LeaveReason::Shutdown) => self.stop(context, StopReason::Shutdown, "the host is shutting down"),
            Some(LeaveReason::StepDown(reason) | LeaveReason::Ineligible(reason)) => {
                self.stop(context, StopReason::StepDown, &reason);
            }
            Some(LeaveReason::NothingToServe) => {
                self.stop(context, StopReason::StepDown, "this node has no module that it may run");
            }
            Some(LeaveReason::Over) | None => {}
        }
        if self.is_due(context, Timer::Deadline) {
            self.kill(context, &last_renewed());
        } else if self.is_due(context, Timer::Grace) {
            self.kill(context, "the grace is over");
        }
        let (is_overdue, is_proven) = (self.is_due(context, Timer::Abort), self.is_due(context, Timer::Proven));
        let is_healthy = self.is_due(context, Timer::Healthy);
        let Stage::Serving(serving) = &mut self.stage else { return };
        if is_overdue {
            serving.overdue = true;
            if serving.dying {
                // Ending this host would not make the instance's process end sooner, but would stop everything else
                // that the host runs.
                serving.give_up(context, since_renewal);
            } else {
                let reason =
                    format!("an instance is still running {since_renewal:.1?} after the last renewal: the host exits");
                context.effects.push_back(Effect::Abort { reason });
            }
        }
        if is_proven {
            context.prove(serving.term);
        }
        if is_healthy {
            serving.healthy = true;
            context.cool_offs = 0;
            self.note_health(context);
        }
    }

    /// Restarts the kill timeout if the host was paused past the deadline. During the pause, the host could not learn
    /// that the instance was gone, and the gate refused all effects. If the timeout had already elapsed before the
    /// pause, it is not restarted. The timeout is restarted only once; otherwise, a host that is paused again and again
    /// would never end itself. A clock that is set forward does not count as a pause: the host was running, and would
    /// have noticed that the instance was gone.
    pub(super) fn check_killed_instance(&mut self, context: &Context) {
        let (now, deadline, timing) = (context.time(), self.deadline(context), &context.settings.timing);
        let Stage::Serving(Serving { killed: Some(killed), .. }) = &mut self.stage else { return };
        let was_paused = context.now.least.saturating_sub(killed.seen.least) > timing.noticed_pause();
        let had_its_time = killed.seen.time.since(killed.counted_from) >= timing.kill_timeout();
        if was_paused && now >= deadline && !had_its_time && !killed.after_a_pause {
            (killed.counted_from, killed.after_a_pause) = (now, true);
        }
        killed.seen = context.now;
    }

    /// Asks the instance to stop within the grace period (`--grace`).
    pub(super) fn stop(&mut self, context: &mut Context, reason: StopReason, message: &str) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.stop(context, reason, message, context.settings.timing.grace());
        }
    }

    pub(super) fn kill(&mut self, context: &mut Context, reason: &str) {
        if self.note_kill(context) {
            context.effects.push_back(Effect::Kill { reason: reason.to_string() });
        }
    }

    /// Notes that the instance's process is exiting but not gone. Starts the kill timeout, unless a kill has already
    /// started the timeout.
    pub(super) fn dying(&mut self, context: &Context) {
        self.note_kill(context);
        if let Stage::Serving(serving) = &mut self.stage {
            serving.dying = true;
        }
    }

    /// Starts the kill timeout. Returns true if it had not been started before.
    fn note_kill(&mut self, context: &Context) -> bool {
        let after_a_pause = context.time() > self.deadline(context) + context.settings.timing.noticed_pause();
        match &mut self.stage {
            Stage::Serving(serving) if serving.killed.is_none() => {
                let (counted_from, seen) = (context.time(), context.now);
                serving.killed = Some(Killed { counted_from, seen, after_a_pause });
                true
            }
            _ => false,
        }
    }

    /// True if the host no longer waits for the instance. The instance is dying, and its end now depends only on the
    /// kernel.
    pub(super) fn is_left_dying(&self) -> bool {
        matches!(&self.stage, Stage::Serving(Serving { overdue: true, dying: true, .. }))
    }

    /// Resets the version's failure count, because the instance has been healthy for long enough.
    fn note_health(&mut self, context: &Context) {
        self.streak.failures = 0;
        if let Some(record) = self.writer.record().filter(|record| record.failures > 0 && !self.writer.is_busy()) {
            let mut record = record.clone();
            record.failures = 0;
            self.writer.want(record, Purpose::Note, context.time());
        }
    }

    pub(super) fn plan_changed(&mut self, context: &Context) {
        let is_other = self.writer.record().is_some_and(|record| !context.versions.is_in(record));
        match (&mut self.stage, context.versions.module()) {
            // The served module was published again, as a new version.
            (Stage::Serving(serving), Some(version)) if version.digest == serving.version.digest => {
                serving.version = version.clone();
            }
            // The wait before the next term applies only to the previous module.
            (Stage::Resting { until }, Some(_)) if is_other => *until = context.time(),
            (Stage::Claiming | Stage::Claimed, Some(_)) if is_other => self.pause_until = context.time(),
            (Stage::Noting { rest }, Some(_)) if is_other => *rest = Duration::ZERO,
            _ => {}
        }
    }

    /// Handles an instance that makes no progress: rejects the version if it is on probation; otherwise, this node
    /// steps down. Does nothing if the instance is already stopping or dying.
    pub(super) fn stalled(&mut self, context: &mut Context, reason: String) {
        match &mut self.stage {
            Stage::Serving(serving) if serving.grace_ends.is_some() || serving.dying => {}
            Stage::Serving(serving) if context.versions.is_on_probation(&serving.version) => {
                serving.stop(context, StopReason::Replaced, &reason, context.settings.timing.grace());
                serving.rejected.get_or_insert(reason);
            }
            _ => drop(self.leave.get_or_insert(LeaveReason::StepDown(reason))),
        }
    }

    pub(super) fn skip_grace(&mut self, context: &mut Context) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.stop(context, StopReason::Shutdown, "the host is shutting down", Duration::ZERO);
        }
        self.kill(context, "the grace was skipped");
    }

    pub(super) fn begun(&mut self, context: &Context) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.begun.get_or_insert(context.time());
        }
    }

    pub(super) fn gone(&mut self, context: &mut Context, end: End) -> Option<Role> {
        let Stage::Serving(serving) = &mut self.stage else { return None };
        if let End::Superseded { term } = end {
            context.memory.highest_term = context.memory.highest_term.max(term);
            self.spent = self.spent.max(term);
        }
        // The run is completed even if the instance was asked to stop, and even if the lease is lost.
        let completed = serving.run.filter(|_| end == End::Done);
        if let Some(run) = completed {
            context.complete(run);
        }
        if let Some(why) = serving.lost.take() {
            return back_to_standby(context, why);
        }
        let was_stopped = serving.grace_ends.is_some();
        let (term, version, started, begun) = (serving.term, serving.version.clone(), serving.started, serving.begun);
        let rejected = serving.rejected.take().filter(|_| context.versions.is_on_probation(&version));
        // The instance may have run long enough to count as healthy, even if that timer has not been handled yet.
        if !serving.healthy && context.time().since(started) >= HEALTHY_AFTER {
            self.note_health(context);
        }
        // An instance that was asked to stop does not count as failed, whatever it returns.
        let end = if was_stopped { End::Killed } else { end };
        match rejected {
            Some(reason) => context.reject(term, reason),
            None => context.judge(&version, term, begun, &end),
        }
        if self.leave.is_none() && context.versions.digest() != Some(&version.digest) {
            // A different version is planned now. It starts without a delay, because this outcome concerns only the old
            // version.
            self.stage = Stage::Noting { rest: Duration::ZERO };
            return None;
        }
        self.unable = match end {
            End::Unable(_) => self.unable + 1,
            End::Killed | End::Superseded { .. } => self.unable,
            End::Done | End::Failed(_) | End::Crashed(_) | End::Fatal(_) => 0,
        };
        // The record may contain any failure count. Leave room for one more failure, so that the additions below do not
        // overflow.
        let failures = self.streak.failures.min(u32::MAX - 1);
        let is_pause = end == End::Done && context.settings.on_done == OnDone::Repeat;
        let (failures, rest) = match end {
            End::Killed | End::Superseded { .. } => (failures, Duration::ZERO),
            End::Done => {
                let wait = context.settings.pause;
                match (context.settings.on_done, &self.leave) {
                    (OnDone::Finish, _) => drop(self.leave.get_or_insert(LeaveReason::Over)),
                    (OnDone::Repeat, None) if completed.is_none() => context.report(Report::Pausing { wait }),
                    (OnDone::Repeat, _) => {}
                }
                (0, wait)
            }
            End::Unable(why) if self.unable >= UNABLE_TO_STEP_DOWN => {
                let why = format!(
                    "this node failed {} times in a row to start the instance, most recently: {why}",
                    self.unable
                );
                self.leave.get_or_insert(LeaveReason::StepDown(why));
                (failures, Duration::ZERO)
            }
            End::Unable(why) => {
                let rest = context.rest_after(self.unable - 1);
                context.report(Report::Resting { wait: rest, reason: why, failures: self.unable });
                (failures, rest)
            }
            End::Failed(why) | End::Crashed(why) | End::Fatal(why) if failures + 1 >= FAILURES_TO_STEP_DOWN => {
                let why = format!("{} failures in a row, most recently: {why}", failures + 1);
                self.leave.get_or_insert(LeaveReason::StepDown(why));
                (failures + 1, Duration::ZERO)
            }
            End::Fatal(why) => {
                self.leave.get_or_insert(LeaveReason::StepDown(why));
                (failures + 1, Duration::ZERO)
            }
            End::Failed(why) | End::Crashed(why) => {
                let rest = context.rest_after(failures);
                context.report(Report::Resting { wait: rest, reason: why, failures: failures + 1 });
                (failures + 1, rest)
            }
        };
        self.streak.failures = failures;
        let outcome = (self.leave == Some(LeaveReason::Over)).then_some(Outcome::Done);
        self.note(context, &version, failures, outcome, rest, is_pause);
        None
    }
}

impl Serving {
    pub(super) fn new(term: Term, version: ModuleVersion, run: Option<ScheduledRun>, started: Time) -> Self {
        Self {
            term,
            version,
            run,
            started,
            begun: None,
            grace_ends: None,
            killed: None,
            dying: false,
            overdue: false,
            healthy: false,
            lost: None,
            rejected: None,
        }
    }

    /// The time at which the version passes its probation, if it is on probation and the guest is running.
    pub(super) fn proven_at(&self, context: &Context) -> Option<Time> {
        context.versions.proven_at(&self.version, self.begun?, context.settings.probation)
    }

    /// Stops using the lease and lets it expire, unless the lease is already known to be lost.
    fn give_up(&mut self, context: &mut Context, since_renewal: Duration) {
        if self.lost.is_none() {
            let reason = "the kernel does not end the instance's process after a kill: a disk hangs, or a debugger \
                          holds the process; this node is ineligible until the process has exited";
            let reason = reason.to_string();
            self.lost = Some(reason.clone());
            context.report(Report::Lost { reason, since_renewal });
        }
    }

    /// Asks the instance to stop, without announcing a next term.
    pub(super) fn stop(&mut self, context: &mut Context, reason: StopReason, message: &str, grace: Duration) {
        self.ask_to_stop(context, reason, message, grace, None);
    }

    /// Asks the instance to stop, unless it has already been asked. The first reason and grace period apply.
    pub(super) fn ask_to_stop(
        &mut self,
        context: &mut Context,
        reason: StopReason,
        message: &str,
        grace: Duration,
        next: Option<Term>,
    ) {
        if self.grace_ends.is_none() {
            let grace_ends = context.time() + grace;
            self.grace_ends = Some(grace_ends);
            context.effects.push_back(Effect::Stop { reason, message: message.to_string(), grace_ends, next });
        }
    }
}
