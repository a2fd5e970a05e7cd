//! The lease while it is held: renewing it, shortening it, and losing it.

use alloc::string::{String, ToString};
use core::time::Duration;

use super::super::candidate::back_to_standby;
use super::super::record_writer::WRITTEN_BY_OTHERS;
use super::super::timer::Timer;
use super::super::{Pending, Role, Shared};
use super::{Holding, Serving, Stage};
use crate::port::{Effect, Report, StopReason};
use crate::request::{Op, Refusal, Reply};
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
}

impl Renewal {
    pub(super) fn new(next_try: Time) -> Self {
        Self { pending: None, shortens: false, next_try, failing: false }
    }
}

impl Holding {
    pub(super) fn is_known_lost(&self) -> bool {
        matches!(&self.stage, Stage::Serving(Serving { lost: Some(_), .. }))
    }

    /// Whether the store may have given the lease away since it was last renewed.
    pub(super) fn has_run_out(&self, shared: &Shared) -> bool {
        shared.time() >= self.renewed + self.length
    }

    /// Whether it makes sense to ask for anything under the lease.
    pub(super) fn may_be_held(&self, shared: &Shared) -> bool {
        !self.is_known_lost() && !self.has_run_out(shared)
    }

    /// Whether half of D is left, as an instance needs it to start.
    pub(super) fn is_fresh(&self, shared: &Shared) -> bool {
        shared.time() <= self.renewed + shared.settings.timing.lease() / 2
    }

    pub(super) fn deadline(&self, shared: &Shared) -> Time {
        self.renewed + shared.settings.timing.deadline_after()
    }

    /// 0.93 D; for a process that was paused past its deadline, as long after the kill as there is between
    /// the two, since its gate refuses everything meanwhile.
    pub(super) fn abort_at(&self, shared: &Shared, killed: Time) -> Time {
        let timing = &shared.settings.timing;
        (self.renewed + timing.abort_after()).max(killed + timing.kill_takes())
    }

    /// An instance was killed and is not gone though it had its time: it hangs in something that nobody here can end. The
    /// lease is renewed no more then, so that at 0.93 D the host ends itself: else it would lead for ever with nothing to
    /// show.
    pub(super) fn hangs(&self, shared: &Shared) -> bool {
        match &self.stage {
            Stage::Serving(Serving { killed: Some(killed), .. }) => {
                shared.time().since(*killed) >= shared.settings.timing.kill_takes()
            }
            _ => false,
        }
    }

    /// Renews the lease. Once nothing is waited out under it any more, it is acquired again under its id, which gives it
    /// the length of D: a node that takes over from the term that follows need not wait longer.
    pub(super) fn renew_if_due(&mut self, shared: &mut Shared) {
        if !self.is_due(shared, Timer::Renew) {
            return;
        }
        let op = if self.is_to_be_shortened(shared) {
            let (length, version) = (shared.settings.timing.lease(), self.writer.version().clone());
            Op::Acquire { id: self.id, length, version }
        } else {
            Op::Renew { id: self.id }
        };
        self.renewal.shortens = matches!(op, Op::Acquire { .. });
        self.renewal.pending = Some(shared.urgent(op));
    }

    /// Whether a term can begin under the lease: half of D is left of it, and it is no longer than D.
    pub(super) fn is_ready_for_term(&self, shared: &Shared) -> bool {
        self.is_fresh(shared) && self.length <= shared.settings.timing.lease()
    }

    /// Has a renewal make the lease ready for the next term, if one can.
    pub(super) fn renew_for_next_term(&mut self, shared: &Shared) {
        if !self.is_fresh(shared) || self.is_to_be_shortened(shared) {
            self.hasten_renewal(shared);
        }
    }

    /// Renews at once, unless the renewals fail: those keep their pace.
    pub(super) fn hasten_renewal(&mut self, shared: &Shared) {
        if !self.renewal.failing {
            self.renewal.next_try = self.renewal.next_try.min(shared.time());
        }
    }

    /// Whether the lease is longer than D though nothing is waited out under it any more, and can be asked for: that takes
    /// the version of the record.
    pub(super) fn is_to_be_shortened(&self, shared: &Shared) -> bool {
        let is_resting = matches!(self.stage, Stage::Resting { .. });
        is_resting && !self.writer.is_busy() && self.length > shared.settings.timing.lease()
    }

    /// Takes the answer to a renewal that was sent then.
    pub(super) fn renewed(&mut self, shared: &mut Shared, sent: Time, result: Result<Reply, Refusal>) -> Option<Role> {
        match result {
            Ok(_) => {
                if self.renewal.shortens {
                    self.length = shared.settings.timing.lease();
                }
                self.extend(shared, sent);
                None
            }
            Err(Refusal::Lost(why)) => self.lose(shared, why),
            // Of a shortening, whose version is the last that was written here.
            Err(Refusal::Conflict) => self.lose(shared, WRITTEN_BY_OTHERS.to_string()),
            Err(Refusal::Held) => self.lose(shared, "the lease is held by another".to_string()),
            Err(error) => {
                self.renewal.failing = true;
                self.renewal.next_try = shared.retry_at();
                let since_renewal = shared.time().since(self.renewed);
                let remaining = self.deadline(shared).since(shared.time());
                shared.report(Report::RenewFailed { error, since_renewal, remaining });
                None
            }
        }
    }

    pub(super) fn extend(&mut self, shared: &mut Shared, sent: Time) {
        if self.renewal.failing {
            self.renewal.failing = false;
            shared.report(Report::RenewedAgain { after: shared.time().since(self.renewed) });
        }
        shared.store_answers("renew");
        // The lease may have run out before this renewal took effect, and somebody have read so. Only a record that
        // is written after that keeps them from taking it: what was written ahead is not served any more.
        if shared.time() >= self.deadline(shared) {
            self.spent = self.spent.max(shared.memory.highest_term);
        }
        self.renewed = self.renewed.max(sent);
        self.renewal.next_try = shared.renew_at(sent).max(shared.time());
        if matches!(self.stage, Stage::Serving(_)) {
            let (deadline, abort_at) = (self.deadline(shared), self.renewed + shared.settings.timing.abort_after());
            shared.effects.push_back(Effect::Extend { deadline, abort_at });
        }
    }

    /// The lease is certainly gone: no grace.
    pub(super) fn lose(&mut self, shared: &mut Shared, why: String) -> Option<Role> {
        let since_renewal = shared.time().since(self.renewed);
        shared.report(Report::Lost { reason: why.clone(), since_renewal });
        let Stage::Serving(serving) = &mut self.stage else { return back_to_standby(shared, why) };
        serving.lost = Some(why.clone());
        serving.stop(shared, StopReason::LeaseLost, &why, Duration::ZERO);
        serving.kill(shared, &why);
        None
    }
}
