//! Renewal, shortening and loss of a lease that this node holds. D is the configured length of the lease.

use alloc::string::{String, ToString};
use core::time::Duration;

use super::super::candidate::back_to_standby;
use super::super::record_writer::WRITTEN_BY_OTHERS;
use super::super::timer::Timer;
use super::super::{Context, HINTED_POLL, Pending, Role};
use super::serving::Killed;
use super::{Holding, Serving, Stage};
use crate::hint::Word;
use crate::port::{Effect, Report, StopReason};
use crate::record::Record;
use crate::request::{Op, Reply, StoreError};
use crate::timing::Time;

#[derive(Debug, Clone, Hash)]
pub(super) struct Renewal {
    pub(super) pending: Option<Pending>,
    /// True if the pending request shortens the lease to D.
    shortens: bool,
    pub(super) next_try: Time,
    pub(super) failing: bool,
    /// True if a hint has arrived since the last renewal was sent.
    is_hinted: bool,
}

impl Renewal {
    pub(super) fn new(next_try: Time) -> Self {
        Self { pending: None, shortens: false, next_try, failing: false, is_hinted: false }
    }
}

impl Holding {
    pub(super) fn is_known_lost(&self) -> bool {
        matches!(&self.stage, Stage::Serving(Serving { lost: Some(_), .. }))
    }

    /// True if so much time has passed since the last renewal that the store may have given the lease to another node.
    pub(super) fn has_run_out(&self, context: &Context) -> bool {
        context.time() >= self.renewed + self.length
    }

    /// True if this node may still hold the lease, and so should send requests under it.
    pub(super) fn may_be_held(&self, context: &Context) -> bool {
        !self.is_known_lost() && !self.has_run_out(context)
    }

    /// True if at least half of D is left. An instance starts only then.
    pub(super) fn is_fresh(&self, context: &Context) -> bool {
        context.time() <= self.renewed + context.settings.timing.lease() / 2
    }

    pub(in super::super) fn deadline(&self, context: &Context) -> Time {
        self.renewed + context.settings.timing.deadline_after()
    }

    /// Returns the time by which the killed instance must be gone; otherwise, the host gives up the lease or ends
    /// itself. The time is 0.93 D after the last renewal, or later if the host was paused past the deadline. After such
    /// a pause, the kill timeout starts at the kill or the wake-up. This is safe, because the gate refuses all effects
    /// after the deadline.
    pub(super) fn abort_at(&self, context: &Context, killed: Killed) -> Time {
        let timing = &context.settings.timing;
        (self.renewed + timing.abort_after()).max(killed.counted_from + timing.kill_timeout())
    }

    /// True if a killed or exiting instance is not gone within the kill timeout. The holder then stops renewing the
    /// lease: otherwise, this node would lead forever without a working instance. So at 0.93 of the lease's length, the
    /// host gives up the lease or ends itself.
    pub(super) fn hangs(&self, context: &Context) -> bool {
        match &self.stage {
            Stage::Serving(Serving { killed: Some(killed), .. }) => {
                context.time().since(killed.counted_from) >= context.settings.timing.kill_timeout()
            }
            _ => false,
        }
    }

    /// Renews the lease if a renewal is due. If the lease is longer than D and this node no longer needs the extra
    /// length, acquires the lease again under the same id, with length D. So if this node dies in its next term, the
    /// next leader waits at most D.
    pub(super) fn renew_if_due(&mut self, context: &mut Context) {
        if !self.is_due(context, Timer::Renew) {
            return;
        }
        let op = if self.is_to_be_shortened(context) {
            let (length, version) = (context.settings.timing.lease(), self.writer.version().clone());
            Op::Acquire { id: self.id, length, version, instead_of: None }
        } else {
            Op::Renew { id: self.id }
        };
        self.renewal.shortens = matches!(op, Op::Acquire { .. });
        self.renewal.pending = Some(context.urgent(op));
        self.renewal.is_hinted = false;
    }

    /// True if a term can begin under the lease: half of D is left, and the lease is no longer than D.
    pub(super) fn is_ready_for_term(&self, context: &Context) -> bool {
        self.is_fresh(context) && self.length <= context.settings.timing.lease()
    }

    /// Renews the lease now if that makes it ready for the next term.
    pub(super) fn renew_for_next_term(&mut self, context: &Context) {
        if !self.is_fresh(context) || self.is_to_be_shortened(context) {
            self.hasten_renewal(context);
        }
    }

    /// Makes the next renewal due now. If renewals are failing, the retries keep their interval.
    pub(super) fn hasten_renewal(&mut self, context: &Context) {
        self.renew_by(context.time());
    }

    fn renew_by(&mut self, at: Time) {
        if !self.renewal.failing {
            self.renewal.next_try = self.renewal.next_try.min(at);
        }
    }

    /// Handles a hint: renews early, because a renewal shows whether the lease is lost. If a renewal is already under
    /// way, another one follows, since the first one may have been sent before the loss.
    pub(super) fn hear(&mut self) {
        self.renewal.is_hinted = true;
        self.renew_by(self.renewed + HINTED_POLL);
    }

    /// True if the lease is longer than necessary and can be shortened now. The request to shorten it carries the
    /// record's version, so it must wait until no write is under way.
    pub(super) fn is_to_be_shortened(&self, context: &Context) -> bool {
        let is_resting = matches!(self.stage, Stage::Resting { .. });
        is_resting && !self.writer.is_busy() && self.length > context.settings.timing.lease()
    }

    pub(super) fn renewed(
        &mut self,
        context: &mut Context,
        sent: Time,
        result: Result<Reply, StoreError>,
    ) -> Option<Role> {
        match result {
            Ok(_) => {
                if self.renewal.shortens {
                    self.length = context.settings.timing.lease();
                }
                self.extend(context, sent);
                None
            }
            Err(StoreError::Lost(why)) => self.lose(context, why),
            // Only a request to shorten the lease gets this answer. The request carried the version that this node
            // wrote last, so another client has written since.
            Err(StoreError::Conflict) => self.lose(context, WRITTEN_BY_OTHERS.to_string()),
            Err(StoreError::Held) => self.lose(context, "the lease is held by another client".to_string()),
            Err(error) => {
                self.renewal.failing = true;
                self.renewal.next_try = context.retry_at();
                let since_renewal = context.time().since(self.renewed);
                let remaining = self.deadline(context).since(context.time());
                context.report(Report::RenewFailed { error, since_renewal, remaining });
                None
            }
        }
    }

    pub(super) fn extend(&mut self, context: &mut Context, sent: Time) {
        if self.renewal.failing {
            self.renewal.failing = false;
            context.report(Report::RenewedAgain { after: context.time().since(self.renewed) });
        }
        context.store_answers("renew");
        // The lease may have expired before this renewal took effect, and another node may have read it as expired.
        // That node's acquire carries the version that it read. Only a later write of the record makes the acquire fail
        // for certain. So do not serve a term that was written before the renewal.
        if context.time() >= self.deadline(context) {
            self.spent = self.spent.max(context.memory.highest_term);
        }
        self.renewed = self.renewed.max(sent);
        self.renewal.next_try = context.renew_at(sent).max(context.time());
        if self.renewal.is_hinted {
            self.hear();
        }
        if matches!(self.stage, Stage::Serving(_)) {
            let (deadline, abort_at) = (self.deadline(context), self.renewed + context.settings.timing.abort_after());
            context.effects.push_back(Effect::Extend { deadline, abort_at });
        }
        self.tell_others(context);
    }

    /// Announces the last renewal to the other nodes, if a term has begun under the lease.
    pub(super) fn tell_others(&self, context: &mut Context) {
        if let Some(Record { term, .. }) = self.writer.record().filter(|_| self.has_begun) {
            context.tell(Word::Leads { term: *term, renewed: self.renewed });
        }
    }

    /// Handles the loss of the lease once the loss is certain. Kills the instance without grace, or returns to standby
    /// if there is no instance.
    pub(super) fn lose(&mut self, context: &mut Context, why: String) -> Option<Role> {
        let since_renewal = context.time().since(self.renewed);
        context.report(Report::Lost { reason: why.clone(), since_renewal });
        let Stage::Serving(serving) = &mut self.stage else { return back_to_standby(context, why) };
        serving.lost = Some(why.clone());
        serving.stop(context, StopReason::LeaseLost, &why, Duration::ZERO);
        self.kill(context, &why);
        None
    }
}
