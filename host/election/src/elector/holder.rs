//! Life with the lease: renewing it, waiting out whoever may still run, beginning terms, and ending the
//! instance in time.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::candidate::{Opening, Unclear, back_to_standby};
use super::ledger::{Kind, Ledger, News, WRITTEN_BY_OTHERS};
use super::releasing::Releasing;
use super::{
    FAILURES_TO_STEP_DOWN, HEALTHY_AFTER, POLL, Pending, RECALL, Role, STANDBY_TIMEOUT, Shared, UNKNOWN_LEASE, answered,
};
use crate::port::{Effect, End, Input, ModuleVersion, OnDone, Report, StopReason};
use crate::record::{LeaseId, Outcome, Record, Term, Version};
use crate::request::{Op, Refusal, Reply, RequestId};
use crate::timing::Time;

/// A node that holds the lease.
#[derive(Debug, Clone, Hash)]
pub(super) struct Holding {
    id: LeaseId,
    /// The length that the store counts: D, or more while another's instance is waited out.
    length: Duration,
    /// Just before the last request known to have succeeded was sent. All is counted from here.
    renewed: Time,
    renewal: Renewal,
    ledger: Ledger,
    stage: Stage,
    /// Since when nothing runs before the record is written.
    stuck_since: Option<Time>,
    /// The highest term that must not be served any more: it was, or may have been, or its state is another's.
    spent: Term,
    /// The failures in a row of the version that was served last. The record may be ahead, at one that is not served
    /// yet, and perhaps never will be.
    row: Row,
    /// Why the lease is to be given up as soon as the instance is gone.
    leave: Option<Leave>,
}

/// A version's failures in a row.
#[derive(Debug, Default, Clone, Hash)]
struct Row {
    /// Its digest; none before anything was served under this lease.
    module: Option<String>,
    failures: u32,
}

#[derive(Debug, Clone, Hash)]
struct Renewal {
    pending: Option<Pending>,
    /// Whether what is pending gives the lease the length of D.
    shortens: bool,
    next_try: Time,
    failing: bool,
}

#[derive(Debug, Clone, Hash)]
enum Stage {
    /// Another's instance may still run.
    Settling(Settling),
    /// It is gone by now, as far as is known, and what was not yet known of its terms when the lease was asked for is
    /// recalled once more, until the least of the clocks says that.
    Recalling { settled: Settling, pending: Option<Pending>, next_try: Time, until: Duration },
    /// The next term is being written.
    Claiming,
    /// The term is written; the instance waits for a lease that has half of D left.
    Claimed,
    /// There is an instance.
    Serving(Serving),
    /// The instance is gone, and what became of it is being written down.
    Noting { rest: Duration },
    /// Between two terms.
    Resting { until: Time },
}

/// A wait for the end of another's instance, by the least of the clocks.
#[derive(Debug, Clone, Copy, Hash)]
struct Settling {
    since: Duration,
    until: Duration,
    /// See [`Unclear`](super::candidate::Unclear).
    is_recalled: bool,
}

#[derive(Debug, Clone, Hash)]
struct Serving {
    term: Term,
    version: ModuleVersion,
    started: Time,
    /// The end of its grace, once it has been asked to stop.
    grace_ends: Option<Time>,
    killed: Option<Time>,
    aborted: bool,
    healthy: bool,
    /// Why the lease is known to be lost, once it is.
    lost: Option<String>,
    /// Why its version is bad, where it is stopped for that.
    rejected: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Leave {
    Shutdown,
    /// With the reason; a cool-off follows.
    StepDown(String),
    /// There is nothing left that may run here.
    NothingToServe,
    /// The election is over.
    Over,
}

impl Holding {
    pub(super) fn new(
        shared: &mut Shared,
        id: LeaseId,
        length: Duration,
        sent: Time,
        version: Version,
        opening: &Opening,
    ) -> Self {
        let mut ledger = Ledger::new(version, opening.record.clone());
        shared.versions.forget_probation();
        let stage = match opening.unclear {
            Some(Unclear { wait, reason, is_recalled }) => {
                shared.report(Report::Settling { wait, reason: reason.to_string() });
                // Until a term is begun the record has no holder. So whoever comes next knows that another's
                // instance may still run, should this node be gone by then, and nobody takes this node for
                // an outside client. What became of the module before stays: by then another may be planned.
                let record = shared.record_without_holder(opening.record.as_ref(), wait);
                ledger.want(record, Kind::Note, shared.time());
                // Counted from now: the acquire took effect before its answer came.
                let since = shared.now.least;
                Stage::Settling(Settling { since, until: since + wait, is_recalled })
            }
            None => Stage::Resting { until: shared.time() },
        };
        Self {
            id,
            length,
            renewed: sent,
            renewal: Renewal { pending: None, shortens: false, next_try: shared.renew_at(sent), failing: false },
            ledger,
            stage,
            stuck_since: None,
            spent: shared.memory.highest_term,
            row: Row::default(),
            leave: None,
        }
    }

    pub(super) fn next_wakeup(&self, shared: &Shared) -> Option<Time> {
        let timing = &shared.settings.timing;
        let mut wakeups = [None; 6];
        if let Stage::Serving(serving) = &self.stage {
            wakeups[0] = match (serving.killed, serving.grace_ends) {
                (Some(_), _) if serving.aborted => None,
                (Some(killed), _) => Some(self.abort_at(shared, killed)),
                (None, Some(grace_ends)) => Some(grace_ends.min(self.renewed + timing.deadline_after())),
                (None, None) => Some(self.renewed + timing.at_risk_after()),
            };
            if !serving.healthy && serving.killed.is_none() {
                wakeups[1] = Some(serving.started + HEALTHY_AFTER);
            }
            if serving.grace_ends.is_none() {
                wakeups[4] = serving.proven_at(shared);
            }
        } else {
            wakeups[0] = Some(self.renewed + self.length);
            wakeups[1] = match self.stage {
                Stage::Settling(Settling { until, .. }) => Some(shared.time() + until.saturating_sub(shared.now.least)),
                Stage::Recalling { pending: None, next_try, .. } => Some(next_try),
                // One that is longer than D is shortened first, by a renewal.
                Stage::Resting { until } if self.is_fresh(shared) && self.length <= timing.lease() => Some(until),
                _ => None,
            };
            wakeups[5] = self.stuck_since.map(|since| since + shared.settings.timing.lease());
        }
        if self.may_be_held(shared) {
            wakeups[2] = (self.renewal.pending.is_none() && !self.hangs(shared)).then_some(self.renewal.next_try);
            wakeups[3] = self.ledger.next_wakeup();
        }
        wakeups.into_iter().flatten().min()
    }

    pub(super) fn step(&mut self, shared: &mut Shared, input: Option<Input>) -> Option<Role> {
        let next = match input {
            Some(Input::Answer { id, result }) => self.answer(shared, id, result),
            Some(Input::Gone { end }) => self.gone(shared, end),
            Some(Input::StepDown { reason }) => {
                self.leave.get_or_insert(Leave::StepDown(reason));
                None
            }
            Some(Input::Stalled { reason }) => {
                self.stalled(shared, reason);
                None
            }
            Some(Input::SkipGrace) => {
                self.skip_grace(shared);
                None
            }
            Some(Input::Plan(_)) => {
                self.plan_changed(shared);
                None
            }
            Some(Input::Shutdown | Input::Tick) | None => None,
        };
        if next.is_some() {
            return next;
        }
        if shared.shutting_down {
            self.leave = Some(Leave::Shutdown);
        }
        if shared.versions.module().is_none() {
            self.leave.get_or_insert(Leave::NothingToServe);
        }
        self.watch_instance(shared);
        self.change_over(shared);
        let next = self.advance(shared);
        if next.is_some() {
            return next;
        }
        if self.is_stuck() {
            self.stuck_since.get_or_insert(shared.time());
        }
        if self.may_be_held(shared) {
            self.renew_if_due(shared);
            self.recall_if_due(shared);
            self.ledger.tick(shared, self.id);
        }
        None
    }

    // ---- the lease ----

    fn is_known_lost(&self) -> bool {
        matches!(&self.stage, Stage::Serving(Serving { lost: Some(_), .. }))
    }

    /// Whether the store may have given the lease away since it was last renewed.
    fn has_run_out(&self, shared: &Shared) -> bool {
        shared.time() >= self.renewed + self.length
    }

    /// Whether it makes sense to ask for anything under the lease.
    fn may_be_held(&self, shared: &Shared) -> bool {
        !self.is_known_lost() && !self.has_run_out(shared)
    }

    /// Whether half of D is left, as an instance needs it to start.
    fn is_fresh(&self, shared: &Shared) -> bool {
        shared.time() <= self.renewed + shared.settings.timing.lease() / 2
    }

    fn deadline(&self, shared: &Shared) -> Time {
        self.renewed + shared.settings.timing.deadline_after()
    }

    /// 0.93 D; for a process that was paused past its deadline, as long after the kill as there is between
    /// the two, since its gate refuses everything meanwhile.
    fn abort_at(&self, shared: &Shared, killed: Time) -> Time {
        let timing = &shared.settings.timing;
        (self.renewed + timing.abort_after()).max(killed + timing.kill_takes())
    }

    /// An instance was killed and is not gone though it had its time: it hangs in something that nobody here can end. The
    /// lease is renewed no more then, so that at 0.93 D the host ends itself: else it would lead for ever with nothing to
    /// show.
    fn hangs(&self, shared: &Shared) -> bool {
        match &self.stage {
            Stage::Serving(Serving { killed: Some(killed), .. }) => {
                shared.time().since(*killed) >= shared.settings.timing.kill_takes()
            }
            _ => false,
        }
    }

    /// Renews the lease. Once nothing is waited out under it any more, it is acquired again under its id, which gives it
    /// the length of D: a node that takes over from the term that follows need not wait longer.
    fn renew_if_due(&mut self, shared: &mut Shared) {
        if self.renewal.pending.is_some() || shared.time() < self.renewal.next_try || self.hangs(shared) {
            return;
        }
        let op = if self.is_to_be_shortened(shared) {
            let (length, version) = (shared.settings.timing.lease(), self.ledger.version().clone());
            Op::Acquire { id: self.id, length, version }
        } else {
            Op::Renew { id: self.id }
        };
        self.renewal.shortens = matches!(op, Op::Acquire { .. });
        self.renewal.pending = Some(shared.urgent(op));
    }

    /// Whether the lease is longer than D though nothing is waited out under it any more, and can be asked for: that takes
    /// the version of the record.
    fn is_to_be_shortened(&self, shared: &Shared) -> bool {
        let is_resting = matches!(self.stage, Stage::Resting { .. });
        is_resting && !self.ledger.is_busy() && self.length > shared.settings.timing.lease()
    }

    /// Whether nothing runs before the record is written.
    fn is_stuck(&self) -> bool {
        !matches!(self.stage, Stage::Serving(_)) && self.ledger.is_busy()
    }

    fn recall_if_due(&mut self, shared: &mut Shared) {
        if let Stage::Recalling { pending, next_try, .. } = &mut self.stage
            && pending.is_none()
            && shared.time() >= *next_try
        {
            // It may take longer than what the lease depends on, and is asked for less often, not to be in its way.
            *pending = Some(shared.request(Op::Recall, STANDBY_TIMEOUT));
        }
    }

    /// A term that began and was told of while this node waited is known now, whatever became of its record. What may
    /// not be read, or cannot for so long, stays unknown: any lease was waited out by then, and any such term is left out.
    fn recalled(&mut self, shared: &mut Shared, settled: Settling, until: Duration, result: Result<Reply, Refusal>) {
        let now = shared.now.least;
        self.stage = match result {
            Ok(Reply::Term(term)) => {
                shared.store_answers(RECALL);
                let is_news = term > shared.memory.written_term;
                shared.memory.note_recalled(term);
                let gone_by = settled.since + UNKNOWN_LEASE;
                if is_news && now < gone_by {
                    let reason = format!("how long the lease of term {term} is was not recorded");
                    shared.report(Report::Settling { wait: gone_by - now, reason });
                    Stage::Settling(Settling { until: gone_by, is_recalled: true, ..settled })
                } else {
                    Stage::Resting { until: shared.time() }
                }
            }
            Err(Refusal::Misconfigured(_)) if settled.is_recalled => Stage::Resting { until: shared.time() },
            _ if now >= until => {
                shared.memory.leave_out_unknown_terms(shared.now.wall);
                Stage::Resting { until: shared.time() }
            }
            result => {
                if let Err(refusal) = &result {
                    shared.store_trouble(RECALL, refusal);
                }
                let next_try = shared.time() + shared.jittered(POLL);
                Stage::Recalling { settled, pending: None, next_try, until }
            }
        };
    }

    fn answer(&mut self, shared: &mut Shared, id: RequestId, result: Result<Reply, Refusal>) -> Option<Role> {
        if self.is_known_lost() {
            return None;
        }
        if let Stage::Recalling { settled, pending, until, .. } = &mut self.stage
            && answered(pending, id).is_some()
        {
            let (settled, until) = (*settled, *until);
            self.recalled(shared, settled, until, result);
            return None;
        }
        if let Some(pending) = answered(&mut self.renewal.pending, id) {
            return match result {
                Ok(_) => {
                    if self.renewal.shortens {
                        self.length = shared.settings.timing.lease();
                    }
                    self.extend(shared, pending.sent);
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
            };
        }
        match self.ledger.answer(shared, id, &result) {
            News::Written => self.written(),
            News::Lost(why) => return self.lose(shared, why),
            News::Doubt => self.renewal.next_try = self.renewal.next_try.min(shared.time()),
            News::None => {}
        }
        None
    }

    fn extend(&mut self, shared: &mut Shared, sent: Time) {
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
    fn lose(&mut self, shared: &mut Shared, why: String) -> Option<Role> {
        let since_renewal = shared.time().since(self.renewed);
        shared.report(Report::Lost { reason: why.clone(), since_renewal });
        let Stage::Serving(serving) = &mut self.stage else { return back_to_standby(shared, why) };
        serving.lost = Some(why.clone());
        serving.stop(shared, StopReason::LeaseLost, &why, Duration::ZERO);
        serving.kill(shared, &why);
        None
    }

    // ---- the instance ----

    /// Asks, kills and aborts when it is time.
    fn watch_instance(&mut self, shared: &mut Shared) {
        let (deadline, since_renewal) = (self.deadline(shared), shared.time().since(self.renewed));
        let timing = shared.settings.timing;
        let abort_at = match &self.stage {
            Stage::Serving(Serving { killed: Some(killed), .. }) => Some(self.abort_at(shared, *killed)),
            _ => None,
        };
        let Stage::Serving(serving) = &mut self.stage else { return };
        if since_renewal >= timing.at_risk_after() {
            let message = format!("the lease was last renewed {since_renewal:.1?} ago");
            serving.stop(shared, StopReason::LeaseAtRisk, &message, timing.grace());
        }
        match &self.leave {
            Some(Leave::Shutdown) => {
                serving.stop(shared, StopReason::Shutdown, "the host is shutting down", timing.grace());
            }
            Some(Leave::StepDown(reason)) => serving.stop(shared, StopReason::StepDown, reason, timing.grace()),
            Some(Leave::NothingToServe) => {
                serving.stop(shared, StopReason::StepDown, "its module must not run any more", timing.grace());
            }
            Some(Leave::Over) | None => {}
        }
        if shared.time() >= deadline {
            serving.kill(shared, &format!("the lease was last renewed {since_renewal:.1?} ago"));
        } else if serving.grace_ends.is_some_and(|grace_ends| shared.time() >= grace_ends) {
            serving.kill(shared, "the grace is over");
        }
        if !serving.aborted && abort_at.is_some_and(|abort_at| shared.time() >= abort_at) {
            serving.aborted = true;
            let reason = format!("an instance is not gone {since_renewal:.1?} after the last renewal");
            shared.effects.push_back(Effect::Abort { reason });
        }
        if serving.grace_ends.is_none() && serving.proven_at(shared).is_some_and(|at| shared.time() >= at) {
            shared.prove(serving.term);
        }
        if !serving.healthy && serving.killed.is_none() && shared.time().since(serving.started) >= HEALTHY_AFTER {
            serving.healthy = true;
            shared.cool_offs = 0;
            self.note_health(shared);
        }
    }

    /// The instance has been healthy for long enough, and its version's row of failures is over.
    fn note_health(&mut self, shared: &Shared) {
        self.row.failures = 0;
        if let Some(record) = self.ledger.record().filter(|record| record.failures > 0 && !self.ledger.is_busy()) {
            let mut record = record.clone();
            record.failures = 0;
            self.ledger.want(record, Kind::Note, shared.time());
        }
    }

    fn plan_changed(&mut self, shared: &Shared) {
        let is_other = self.ledger.record().is_some_and(|record| !shared.versions.is_in(record));
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
    fn stalled(&mut self, shared: &mut Shared, reason: String) {
        match &mut self.stage {
            Stage::Serving(serving) if serving.grace_ends.is_some() => {}
            Stage::Serving(serving) if shared.versions.is_on_probation(&serving.version) => {
                serving.stop(shared, StopReason::Replaced, &reason, shared.settings.timing.grace());
                serving.rejected.get_or_insert(reason);
            }
            _ => drop(self.leave.get_or_insert(Leave::StepDown(reason))),
        }
    }

    fn skip_grace(&mut self, shared: &mut Shared) {
        if let Stage::Serving(serving) = &mut self.stage {
            serving.stop(shared, StopReason::Shutdown, "the host is shutting down", Duration::ZERO);
            serving.kill(shared, "the grace was skipped");
        }
    }

    fn gone(&mut self, shared: &mut Shared, end: End) -> Option<Role> {
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
        let failures = self.row.failures.min(u32::MAX - 1);
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
        self.row.failures = failures;
        let outcome = (self.leave == Some(Leave::Over)).then_some(Outcome::Done);
        self.note(shared, &version, failures, outcome, rest);
        None
    }

    // ---- from term to term ----

    /// Writes down what became of a term, where that changes anything, and rests afterwards.
    fn note(
        &mut self,
        shared: &mut Shared,
        version: &ModuleVersion,
        failures: u32,
        outcome: Option<Outcome>,
        rest: Duration,
    ) {
        self.stage = Stage::Noting { rest };
        if let Some(record) = self.ledger.record()
            && (self.ledger.is_busy() || record.failures != failures || record.outcome != outcome)
        {
            let mut record = record.clone();
            record.failures = failures;
            record.outcome = outcome;
            // The record may be ahead, at a version that was replaced before it was served.
            record.module = Some(version.digest.clone());
            self.ledger.want(record, Kind::Note, shared.time());
        }
    }

    fn written(&mut self) {
        if matches!(self.stage, Stage::Claiming) {
            self.stage = Stage::Claimed;
        }
    }

    /// Takes the steps that need no answer. Serving is left only by [`Self::gone`].
    fn advance(&mut self, shared: &mut Shared) -> Option<Role> {
        if matches!(self.stage, Stage::Serving(_)) {
            return None;
        }
        if self.has_run_out(shared) {
            return self.lose(shared, "it ran out before it could be renewed".to_string());
        }
        let lease = shared.settings.timing.lease();
        if !self.is_stuck() {
            self.stuck_since = None;
        }
        if self.stuck_since.is_some_and(|since| shared.time() >= since + lease) {
            let reason = format!("the record could not be written for {lease:?}");
            shared.begin_cool_off(reason.clone());
            return leave_to_run_out(shared, reason);
        }
        if let Some(leave) = self.leave.clone() {
            return self.leave(shared, leave);
        }
        match self.stage {
            Stage::Settling(settled) if shared.now.least >= settled.until => {
                let any_lease = if settled.is_recalled { Duration::ZERO } else { settled.since + UNKNOWN_LEASE };
                let until = any_lease.max(shared.now.least + lease);
                self.stage = Stage::Recalling { settled, pending: None, next_try: shared.time(), until };
            }
            Stage::Noting { rest } if !self.ledger.is_busy() => {
                self.stage = Stage::Resting { until: shared.time() + rest };
            }
            // A push came between the term and its instance: the term would name the wrong module.
            Stage::Claimed if !self.is_claimed(shared) => self.stage = Stage::Resting { until: shared.time() },
            _ => {}
        }
        // What is to be served now may be what the election ended with.
        let is_noting = matches!(self.stage, Stage::Noting { .. }) && self.ledger.is_busy();
        if self.ledger.record().is_some_and(|record| shared.is_over(record)) && !is_noting {
            return self.leave(shared, Leave::Over);
        }
        if let Stage::Resting { until } = self.stage
            && shared.time() >= until
            && self.is_short(shared)
            && self.renewed_recently(shared)
        {
            if self.is_claimed(shared) {
                self.stage = Stage::Claimed;
            } else {
                self.claim(shared);
                self.stage = Stage::Claiming;
            }
        }
        if matches!(self.stage, Stage::Claimed) && self.renewed_recently(shared) {
            self.start(shared);
        }
        None
    }

    /// Wants the next term to be written.
    fn claim(&mut self, shared: &mut Shared) {
        let mut record = shared.next_record(self.ledger.record(), self.length);
        // No other version was served since: its row goes on, even if the record was ahead meanwhile.
        if self.row.module == record.module {
            record.failures = self.row.failures;
        }
        // From here on it may be in the store, whatever its writer hears of it.
        shared.memory.highest_term = record.term;
        self.ledger.want(record, Kind::Term, shared.time());
    }

    /// Whether the next term is written already, for what is to be served.
    fn is_claimed(&self, shared: &Shared) -> bool {
        !self.ledger.is_busy() && self.ledger.record().is_some_and(|record| self.is_next(shared, record))
    }

    /// Whether the record begins a term of this holder that was not served yet, for what is to be served.
    fn is_next(&self, shared: &Shared, record: &Record) -> bool {
        record.term > self.spent
            && record.node.is_some()
            && record.incarnation == shared.settings.incarnation
            && shared.versions.is_in(record)
    }

    /// Replaces an instance whose version is not the one to be served any more. The next term is written
    /// first, while the old instance goes on: between the two there is nothing left to wait for.
    fn change_over(&mut self, shared: &mut Shared) {
        let Stage::Serving(serving) = &self.stage else { return };
        let is_planned = shared.versions.digest().is_none_or(|digest| *digest == serving.version.digest);
        if is_planned || serving.grace_ends.is_some() || self.leave.is_some() || self.renewal.failing {
            return;
        }
        if !self.renewed_recently(shared) {
            return;
        }
        if self.is_claimed(shared) {
            let next = self.ledger.record().map(|record| record.term);
            let Stage::Serving(serving) = &mut self.stage else { return };
            let message = format!("{} replaces it", shared.versions.digest().unwrap_or_default());
            serving.ask_to_stop(shared, StopReason::Replaced, &message, shared.settings.timing.grace(), next);
        } else if !self.ledger.wanted().is_some_and(|record| self.is_next(shared, record)) {
            self.claim(shared);
        }
    }

    /// Whether the lease is no longer than D; if not, sees to its being shortened.
    fn is_short(&mut self, shared: &Shared) -> bool {
        if self.is_to_be_shortened(shared) && !self.renewal.failing {
            self.renewal.next_try = self.renewal.next_try.min(shared.time());
        }
        self.length <= shared.settings.timing.lease()
    }

    /// Whether half of D is left; if not, sees to a renewal.
    fn renewed_recently(&mut self, shared: &Shared) -> bool {
        let fresh = self.is_fresh(shared);
        if !fresh && !self.renewal.failing {
            self.renewal.next_try = self.renewal.next_try.min(shared.time());
        }
        fresh
    }

    fn start(&mut self, shared: &mut Shared) {
        let Some(record) = self.ledger.record().cloned() else { return };
        let Some(version) = shared.versions.module().cloned() else { return };
        let term = record.term;
        self.spent = term;
        self.row = Row { module: Some(version.digest.clone()), failures: record.failures };
        shared.cool_off = None;
        let (deadline, abort_at) = (self.deadline(shared), self.renewed + shared.settings.timing.abort_after());
        shared.report(Report::Elected { record });
        shared.effects.push_back(Effect::Start { term, version: version.clone(), deadline, abort_at });
        self.stage = Stage::Serving(Serving {
            term,
            version,
            started: shared.time(),
            grace_ends: None,
            killed: None,
            aborted: false,
            healthy: false,
            lost: None,
            rejected: None,
        });
    }

    /// Gives the lease up; nothing runs any more.
    fn leave(&mut self, shared: &mut Shared, leave: Leave) -> Option<Role> {
        if let Leave::StepDown(reason) = leave {
            shared.begin_cool_off(reason);
        }
        if matches!(self.stage, Stage::Settling(_) | Stage::Recalling { .. }) {
            // A release would tell the next one that nothing can still run. That is not known.
            return leave_to_run_out(shared, "another's instance may still run".to_string());
        }
        // What became of the last term is written together with the mark; a term that has not begun is not.
        let last = if matches!(self.stage, Stage::Noting { .. }) { self.ledger.wanted() } else { self.ledger.record() };
        let (ledger, last, until) = (self.ledger.clone(), last.cloned(), self.renewed + self.length);
        Some(Role::Releasing(Releasing::new(shared, self.id, ledger, last, until)))
    }
}

/// Follows again without a release: whoever is next reads that the lease has run out, and starts at once.
fn leave_to_run_out(shared: &mut Shared, why: String) -> Option<Role> {
    let reason = format!("{why}, so the lease is left to run out");
    shared.report(Report::NotReleased { reason: reason.clone() });
    back_to_standby(shared, reason)
}

impl Serving {
    /// When its version has done well for long enough, if that is on probation.
    fn proven_at(&self, shared: &Shared) -> Option<Time> {
        shared.versions.proven_at(&self.version, self.started, shared.settings.probation)
    }

    /// Asks it to stop, with nothing to follow that is known by now.
    fn stop(&mut self, shared: &mut Shared, reason: StopReason, message: &str, grace: Duration) {
        self.ask_to_stop(shared, reason, message, grace, None);
    }

    /// Asks once; a stop is never taken back, and its first reason stays.
    fn ask_to_stop(
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

    fn kill(&mut self, shared: &mut Shared, reason: &str) {
        if self.killed.is_none() {
            self.killed = Some(shared.time());
            shared.effects.push_back(Effect::Kill { reason: reason.to_string() });
        }
    }
}
