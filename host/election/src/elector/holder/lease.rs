//! The lease while it is held: renewing it, shortening it, and losing it.

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

/// The renewals of a lease.
#[derive(Debug, Clone, Hash)]
pub(super) struct Renewal {
    pub(super) pending: Option<Pending>,
    /// Whether the request that is pending gives the lease the length of D.
    shortens: bool,
    pub(super) next_try: Time,
    /// Whether the last try failed.
    pub(super) failing: bool,
    /// Whether there was a hint since the last try was sent.
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

    /// Whether the store may have given the lease away since it was last renewed.
    pub(super) fn has_run_out(&self, context: &Context) -> bool {
        context.time() >= self.renewed + self.length
    }

    /// Whether it makes sense to ask for anything under the lease.
    pub(super) fn may_be_held(&self, context: &Context) -> bool {
        !self.is_known_lost() && !self.has_run_out(context)
    }

    /// Whether half of D is left, as an instance needs it to start.
    pub(super) fn is_fresh(&self, context: &Context) -> bool {
        context.time() <= self.renewed + context.settings.timing.lease() / 2
    }

    pub(in super::super) fn deadline(&self, context: &Context) -> Time {
        self.renewed + context.settings.timing.deadline_after()
    }

    /// 0.93 D; for a process that was paused past its deadline, as long after the kill or its waking as there is between
    /// the two, since its gate refuses everything meanwhile.
    pub(super) fn abort_at(&self, context: &Context, killed: Killed) -> Time {
        let timing = &context.settings.timing;
        (self.renewed + timing.abort_after()).max(killed.counted_from + timing.kill_takes())
    }

    /// An instance was killed, or has ended, and is not gone though it had its time: it hangs in something that nobody here
    /// can end. The lease is renewed no more then, so that it is given up at 0.93 D, or its host ends itself: else it would
    /// lead for ever with nothing to show.
    pub(super) fn hangs(&self, context: &Context) -> bool {
        match &self.stage {
            Stage::Serving(Serving { killed: Some(killed), .. }) => {
                context.time().since(killed.counted_from) >= context.settings.timing.kill_takes()
            }
            _ => false,
        }
    }

    /// Renews the lease. Once nothing is waited out under it any more, it is acquired again under its id, which gives it
    /// the length of D: a node that takes over from the term that follows need not wait longer.
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

    /// Whether a term can begin under the lease: half of D is left of it, and it is no longer than D.
    pub(super) fn is_ready_for_term(&self, context: &Context) -> bool {
        self.is_fresh(context) && self.length <= context.settings.timing.lease()
    }

    /// Has a renewal make the lease ready for the next term, if one can.
    pub(super) fn renew_for_next_term(&mut self, context: &Context) {
        if !self.is_fresh(context) || self.is_to_be_shortened(context) {
            self.hasten_renewal(context);
        }
    }

    /// Renews at once, unless the renewals fail: those keep their pace.
    pub(super) fn hasten_renewal(&mut self, context: &Context) {
        self.renew_by(context.time());
    }

    fn renew_by(&mut self, at: Time) {
        if !self.renewal.failing {
            self.renewal.next_try = self.renewal.next_try.min(at);
        }
    }

    /// A renewal may show something new: it is how a holder looks. One that is under way may have been too early to see it.
    pub(super) fn hear(&mut self) {
        self.renewal.is_hinted = true;
        self.renew_by(self.renewed + HINTED_POLL);
    }

    /// Whether the lease is longer than D though nothing is waited out under it any more, and can be asked for: that takes
    /// the version of the record.
    pub(super) fn is_to_be_shortened(&self, context: &Context) -> bool {
        let is_resting = matches!(self.stage, Stage::Resting { .. });
        is_resting && !self.writer.is_busy() && self.length > context.settings.timing.lease()
    }

    /// Takes the answer to a renewal that was sent then.
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
            // Of a shortening, whose version is the last that was written here.
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
        // The lease may have run out before this renewal took effect, and somebody have read so. Only a record that
        // is written after that keeps them from taking it: what was written ahead is not served any more.
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

    /// Tells others how old the last renewal is, once a term has begun under the lease.
    pub(super) fn tell_others(&self, context: &mut Context) {
        if let Some(Record { term, .. }) = self.writer.record().filter(|_| self.has_begun) {
            context.tell(Word::Leads { term: *term, renewed: self.renewed });
        }
    }

    /// The lease is certainly gone: no grace.
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
