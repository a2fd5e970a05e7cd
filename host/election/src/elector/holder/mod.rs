//! A node that holds the lease. `lease` renews the lease, `settling` waits until another instance has ended, `terms`
//! begins one term after another, `idle` waits for the next scheduled run, and `serving` stops the instance before the
//! lease expires. [`Holding::timers`] computes when each of these steps is due.

mod idle;
mod lease;
mod serving;
mod settling;
mod terms;

use alloc::string::ToString;
use core::time::Duration;

use super::candidate::{AcquireBasis, UncertainHolder};
use super::record_writer::{Purpose, RecordWriter, WriteResult};
use super::timer::{Timer, Timers};
use super::{Context, HEALTHY_AFTER, Pending, Role, answered};
use crate::hint::Hint;
use crate::port::{Input, Report};
use crate::record::{LeaseId, Term, Version};
use crate::request::{Reply, RequestId, StoreError};
use crate::timing::Time;

use lease::Renewal;
use serving::Serving;
use settling::Settling;
use terms::{FailureStreak, LeaveReason};

#[derive(Debug, Clone, Hash)]
pub(super) struct Holding {
    id: LeaseId,
    /// The lease's length in the store: D, or longer while this node waits for another instance to end.
    length: Duration,
    /// A time just before this node sent the last successful request to acquire or renew the lease. All deadlines are
    /// counted from this time.
    renewed: Time,
    renewal: Renewal,
    writer: RecordWriter,
    stage: Stage,
    /// The time since which this node has waited for a write of the record before it can run an instance.
    stuck_since: Option<Time>,
    /// The highest term that this holder must not serve. For example, the term was served before, or another writer has
    /// claimed its state.
    spent: Term,
    /// Consecutive failures of the last version that ran. The record may name another version, which has not run yet
    /// and may never run.
    streak: FailureStreak,
    /// Number of consecutive starts that failed because of this node ([`End::Unable`](crate::port::End::Unable)).
    unable: u32,
    /// The end of a pause that the previous leader began.
    pause_until: Time,
    /// True once a term has begun under this lease.
    has_begun: bool,
    /// The reason to give up the lease as soon as the instance is gone, if any.
    leave: Option<LeaveReason>,
}

#[derive(Debug, Clone, Hash)]
enum Stage {
    /// Another instance may still be running.
    Settling(Settling),
    /// The other instance has ended, as far as this node knows. The node now reads the highest term in the store. It
    /// stops trying at `until`, a time on the clock of `Now::least`.
    Recalling { settled: Settling, pending: Option<Pending>, next_try: Time, until: Duration },
    /// The next term is being written.
    Claiming,
    /// The term is written. The instance starts once at least half of D is left and the previous leader's pause has
    /// ended.
    Claimed,
    /// An instance is running or ending.
    Serving(Serving),
    /// The instance is gone, and its outcome is being written to the record. `rest` is the wait before the next term.
    Noting { rest: Duration },
    /// No instance is running, and the next term is due at `until`.
    Resting { until: Time },
    /// This node leads without an instance until `due`, the next due time of the schedule, as wall-clock time since the
    /// Unix epoch. `due` is `None` if the schedule has no further due time. `since` is the wall-clock time at which
    /// this node chose `due`.
    Idle { due: Option<Duration>, since: Duration },
}

impl Holding {
    pub(super) fn new(
        context: &mut Context,
        id: LeaseId,
        length: Duration,
        sent: Time,
        version: Version,
        opening: &AcquireBasis,
    ) -> Self {
        let mut writer = RecordWriter::new(version, opening.record.clone());
        context.versions.forget_probation();
        let stage = match opening.unclear {
            Some(UncertainHolder { wait, reason, is_recalled }) => {
                // Count the wait from now. This is late enough, because the acquire took effect before its answer
                // arrived.
                let since = context.now.least;
                let settling = Settling { since, until: since + wait, is_recalled };
                let at_most = settling.ends_by(settling.until, context.settings.timing.lease()) - since;
                let told = if is_recalled { wait } else { at_most };
                context.report(Report::Settling { wait: told, reason: reason.to_string() });
                // Write a record that names no node. If this node dies before its term begins, the next holder then
                // knows that another instance may still be running. The record also shows standbys that a Baton node
                // holds the lease. Keep the previous module's outcome: if that module has finished and is planned again
                // during the wait, it must not run again.
                let record = context.record_without_holder(opening.record.as_ref(), wait);
                writer.want(record, Purpose::Note, context.time());
                Stage::Settling(settling)
            }
            None => Stage::Resting { until: context.time() },
        };
        let pause = context.pause_left(opening.record.as_ref());
        if !pause.is_zero() {
            context.report(Report::Pausing { wait: pause });
        }
        let mut holding = Self {
            id,
            length,
            renewed: sent,
            renewal: Renewal::new(context.renew_at(sent)),
            writer,
            stage,
            stuck_since: None,
            spent: context.memory.highest_term,
            streak: FailureStreak::after(context, opening),
            pause_until: context.time() + pause,
            unable: 0,
            has_begun: false,
            leave: None,
        };
        holding.step_down_if_host_keeps_dying(context, opening);
        holding
    }

    pub(super) fn failures(&self) -> u32 {
        self.streak.failures
    }

    /// No timer sends a request under a lease that is known to be lost.
    pub(super) fn timers(&self, context: &Context) -> Timers<14> {
        let timing = &context.settings.timing;
        let instance = if let Stage::Serving(serving) = &self.stage { Some(serving) } else { None };
        let living = instance.filter(|instance| instance.killed.is_none());
        let unasked = living.filter(|instance| instance.grace_ends.is_none());
        let killed = instance.filter(|instance| !instance.overdue).and_then(|instance| instance.killed);
        let is_held = self.may_be_held(context);
        let renews = is_held && self.renewal.pending.is_none() && !self.hangs(context);
        let (settled, recall, next_term) = match self.stage {
            Stage::Settling(Settling { until, .. }) => {
                (Some(context.time() + until.saturating_sub(context.now.least)), None, None)
            }
            Stage::Recalling { pending: None, next_try, .. } if is_held => (None, Some(next_try), None),
            Stage::Resting { until } if self.is_ready_for_term(context) => (None, None, Some(until)),
            Stage::Idle { due: Some(due), .. } if self.is_ready_for_term(context) => {
                (None, None, Some(context.time() + due.saturating_sub(context.now.wall)))
            }
            Stage::Claimed if context.time() < self.pause_until => (None, None, Some(self.pause_until)),
            _ => (None, None, None),
        };
        Timers([
            (Timer::AtRisk, unasked.map(|_| self.renewed + timing.at_risk_after())),
            (Timer::Grace, living.and_then(|instance| instance.grace_ends)),
            (Timer::Deadline, living.map(|_| self.deadline(context))),
            (Timer::Look, killed.map(|killed| killed.seen.time + timing.noticed_pause() / 2)),
            (Timer::Abort, killed.map(|killed| self.abort_at(context, killed))),
            (Timer::Healthy, living.filter(|one| !one.healthy).map(|one| one.started + HEALTHY_AFTER)),
            (Timer::Proven, unasked.and_then(|instance| instance.proven_at(context))),
            (Timer::RunOut, instance.is_none().then_some(self.renewed + self.length)),
            (Timer::Stuck, self.stuck_since.filter(|_| instance.is_none()).map(|since| since + timing.lease())),
            (Timer::Settled, settled),
            (Timer::Recall, recall),
            (Timer::NextTerm, next_term),
            (Timer::Renew, renews.then_some(self.renewal.next_try)),
            (Timer::Record, self.writer.next_try().filter(|_| is_held)),
        ])
    }

    fn is_due(&self, context: &Context, timer: Timer) -> bool {
        self.timers(context).is_due(timer, context.time())
    }

    pub(super) fn step(&mut self, context: &mut Context, input: Option<Input>) -> Option<Role> {
        self.check_killed_instance(context);
        let next = match input {
            Some(Input::Answer { id, result }) => self.answer(context, id, result),
            Some(Input::Begun) => {
                self.begun(context);
                None
            }
            Some(Input::Gone { end }) => self.gone(context, end),
            Some(Input::Dying) => {
                self.dying(context);
                None
            }
            Some(Input::StepDown { reason }) => {
                self.leave.get_or_insert(LeaveReason::StepDown(reason));
                None
            }
            Some(Input::Stalled { reason }) => {
                self.stalled(context, reason);
                None
            }
            Some(Input::SkipGrace) => {
                self.skip_grace(context);
                None
            }
            Some(Input::Plan(_)) => {
                self.plan_changed(context);
                None
            }
            Some(Input::Hint(Hint::Look)) => {
                self.hear();
                None
            }
            Some(Input::Schedule(_)) => {
                self.schedule_changed(context);
                None
            }
            Some(Input::NotSent { .. } | Input::Hint(_) | Input::Eligibility(_) | Input::Shutdown | Input::Tick)
            | None => None,
        };
        if next.is_some() {
            return next;
        }
        if context.shutting_down {
            self.leave = Some(LeaveReason::Shutdown);
        }
        if let Some((_, reason)) = context.ineligible() {
            self.leave.get_or_insert_with(|| LeaveReason::Ineligible(reason.to_string()));
        } else if context.versions.module().is_none() {
            self.leave.get_or_insert(LeaveReason::NothingToServe);
        }
        self.watch_instance(context);
        if self.is_left_dying() && context.shutting_down {
            return Some(Role::Finished);
        }
        self.change_over(context);
        self.watch_clock(context);
        let next = self.advance(context);
        if next.is_some() {
            return next;
        }
        if self.is_stuck() {
            self.stuck_since.get_or_insert(context.time());
        }
        self.renew_if_due(context);
        self.recall_if_due(context);
        if self.is_due(context, Timer::Record) {
            self.writer.send(context, self.id);
        }
        None
    }

    fn answer(&mut self, context: &mut Context, id: RequestId, result: Result<Reply, StoreError>) -> Option<Role> {
        if self.is_known_lost() {
            return None;
        }
        if let Stage::Recalling { settled, pending, until, .. } = &mut self.stage
            && answered(pending, id).is_some()
        {
            let (settled, until) = (*settled, *until);
            self.recalled(context, settled, until, result);
            return None;
        }
        if let Some(pending) = answered(&mut self.renewal.pending, id) {
            return self.renewed(context, pending.sent, result);
        }
        match self.writer.answer(context, id, &result) {
            WriteResult::Written => self.written(),
            WriteResult::Lost(why) => return self.lose(context, why),
            WriteResult::Doubt => self.renewal.next_try = self.renewal.next_try.min(context.time()),
            WriteResult::None => {}
        }
        None
    }
}
