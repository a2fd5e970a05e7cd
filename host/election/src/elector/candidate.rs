//! Life without the lease: reading, judging what was read, and asking for the lease.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::holder::Holding;
use super::record_writer::RecordWriter;
use super::releasing::Releasing;
use super::timer::{Timer, Timers};
use super::{
    ACQUIRE, CREATE, FREE_LONG_ENOUGH, POLL, Pending, READ, RECALL, Role, STANDBY_TIMEOUT, Shared, UNKNOWN_LEASE,
    answered,
};
use crate::port::{Input, Report};
use crate::record::{LeaseId, LeaseState, Record, Snapshot, Term, Version};
use crate::request::{Op, Refusal, Reply};
use crate::timing::Time;

/// A standby: reads every second, and asks for the lease only when it looks free.
#[derive(Debug, Clone, Hash)]
pub(super) struct Standby {
    next_poll: Time,
    pending: Option<Pending>,
    asked: Asked,
    /// Failed readings in a row.
    failures: u32,
    /// What was last said of the election, so that it is said once.
    said: Option<Said>,
}

/// What a standby has asked for.
#[derive(Debug, Default, Clone, Hash)]
enum Asked {
    #[default]
    Reading,
    /// What else in the store names a term, before anything follows from that reading.
    Recall(Snapshot),
    /// That the object is made.
    Create,
}

#[derive(Debug, PartialEq, Eq, Clone, Hash)]
enum Said {
    Leader(Term),
    Outside,
    Over,
}

/// A lease that looks free.
#[derive(Clone, Debug, Hash)]
pub(super) struct Opening {
    version: Version,
    pub(super) record: Option<Record>,
    /// Why another's instance may still run after the acquire; none where it cannot.
    pub(super) unclear: Option<Unclear>,
}

/// Why another's instance may still run.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Unclear {
    /// How long, as far as is known.
    pub(super) wait: Duration,
    pub(super) reason: &'static str,
    /// Whether it is known what else the store names. Where it is not, there may be a term of which nothing is known, the
    /// length of its lease neither.
    pub(super) is_recalled: bool,
}

impl Standby {
    pub(super) fn new(next_poll: Time) -> Self {
        Self { next_poll, pending: None, asked: Asked::Reading, failures: 0, said: None }
    }

    pub(super) fn timers(&self) -> Timers<1> {
        Timers([(Timer::Poll, self.pending.is_none().then_some(self.next_poll))])
    }

    pub(super) fn step(&mut self, shared: &mut Shared, input: Option<Input>) -> Option<Role> {
        if shared.shutting_down {
            return Some(Role::Finished);
        }
        if let Some(Input::Answer { id, result }) = input
            && answered(&mut self.pending, id).is_some()
        {
            return self.answer(shared, result);
        }
        if self.timers().is_due(Timer::Poll, shared.time()) {
            self.pending = Some(shared.request(Op::Read, STANDBY_TIMEOUT));
        }
        None
    }

    fn answer(&mut self, shared: &mut Shared, result: Result<Reply, Refusal>) -> Option<Role> {
        match (core::mem::take(&mut self.asked), result) {
            (Asked::Reading, Ok(Reply::Read(snapshot))) => {
                self.failures = 0;
                shared.store_answers(READ);
                shared.memory.note(&snapshot, shared.now.time);
                self.say(shared, &snapshot);
                if may_contend(shared, &snapshot) {
                    self.asked = Asked::Recall(snapshot);
                    self.pending = Some(shared.request(Op::Recall, STANDBY_TIMEOUT));
                } else {
                    // Nothing more is asked for, so that nothing is refused any more, or asked for in vain.
                    shared.refused = 0;
                    shared.memory.unrecalled_since = None;
                    shared.store_answers(ACQUIRE);
                    self.next_poll = shared.time() + shared.jittered(POLL);
                }
            }
            (Asked::Recall(snapshot), Ok(Reply::Term(term))) => {
                shared.store_answers(RECALL);
                shared.memory.note_recalled(term);
                return self.contend(shared, snapshot, true);
            }
            (Asked::Recall(snapshot), Err(refusal)) => {
                shared.store_trouble(RECALL, &refusal);
                let since = *shared.memory.unrecalled_since.get_or_insert(shared.now.time);
                let patience = shared.settings.timing.lease();
                // Whoever may not read what else there is, or cannot, can lead all the same, but at once it never can.
                if matches!(refusal, Refusal::Misconfigured(_)) || shared.time().since(since) >= patience {
                    return self.contend(shared, snapshot, false);
                }
                self.backs_off(shared, &refusal);
            }
            // Created. It is read before it is asked for, so that one rule judges all openings.
            (Asked::Create, Ok(_) | Err(Refusal::Conflict)) => {
                shared.refused = 0;
                shared.store_answers(CREATE);
                self.next_poll = shared.time();
            }
            (Asked::Create, Err(refusal)) => {
                shared.store_trouble(CREATE, &refusal);
                self.next_poll = shared.time() + shared.back_off(shared.refused, &refusal);
                shared.refused += 1;
            }
            (Asked::Reading | Asked::Recall(_), result) => {
                let refusal =
                    result.err().unwrap_or_else(|| Refusal::Unknown("the answer is to no reading".to_string()));
                shared.store_trouble(READ, &refusal);
                self.backs_off(shared, &refusal);
            }
        }
        None
    }

    /// Reads again, ever later while that fails.
    fn backs_off(&mut self, shared: &mut Shared, refusal: &Refusal) {
        self.next_poll = shared.time() + shared.back_off(self.failures, refusal);
        self.failures += 1;
    }

    /// Asks for what was read, now that what else the store names is known, or that it cannot be.
    fn contend(&mut self, shared: &mut Shared, snapshot: Snapshot, is_recalled: bool) -> Option<Role> {
        // What there is to serve may be another by now.
        if !may_contend(shared, &snapshot) {
            self.next_poll = shared.time() + shared.jittered(POLL);
            return None;
        }
        let unclear = unclear(shared, &snapshot, is_recalled);
        // A record that was made anew may say less than the one that its holder had written; and a term that this node
        // has tried, and never seen, may have been another's since.
        let is_known = shared.memory.highest_term <= shared.memory.written_term;
        let longest = shared.memory.longest_lease.filter(|_| is_known);
        let Snapshot::Object { version, record, .. } = snapshot else {
            // How long a lease may be that nobody can ask for is not known.
            let longest = longest.filter(|_| is_recalled).unwrap_or(UNKNOWN_LEASE);
            let lease = if unclear.is_some() { longest } else { shared.settings.timing.lease() };
            let record = Record { released: unclear.is_none(), ..shared.record_without_holder(None, lease) };
            self.asked = Asked::Create;
            self.pending = Some(shared.request(Op::Create { record }, STANDBY_TIMEOUT));
            return None;
        };
        let wait = longest.unwrap_or(UNKNOWN_LEASE);
        let unclear = unclear.map(|reason| Unclear { wait, reason, is_recalled });
        let opening = Opening { version, record, unclear };
        Some(Role::Acquiring(Acquiring::new(shared, opening)))
    }

    /// Tells who leads, once.
    fn say(&mut self, shared: &mut Shared, snapshot: &Snapshot) {
        let Snapshot::Object { lease, record, .. } = snapshot else {
            self.said = None;
            return;
        };
        let patience = shared.settings.timing.lease() * 2;
        let silent = shared.memory.silent_since.is_some_and(|since| shared.time().since(since) >= patience);
        let (said, report) = match (lease, record) {
            (LeaseState::HeldForever, _) => (
                Said::Outside,
                Report::HeldOutside { reason: "the lease has no end, which Baton never asks for".to_string() },
            ),
            (LeaseState::Held, _) if silent => (
                Said::Outside,
                Report::HeldOutside { reason: format!("its holder has written no record for {patience:?}") },
            ),
            (LeaseState::Held, Some(leader)) if leader.node.is_some() && shared.memory.silent_since.is_none() => {
                (Said::Leader(leader.term), Report::Following { leader: leader.clone() })
            }
            (LeaseState::Free | LeaseState::Expired, Some(record)) if shared.is_over(record) => {
                (Said::Over, Report::ElectionOver { record: record.clone() })
            }
            // Nothing is known of who holds it, or it is about to end.
            (LeaseState::Held, _) if shared.memory.silent_since.is_some() => return,
            (LeaseState::Breaking, _) => return,
            _ => {
                // Nobody leads, or somebody who waits another's lease out: whoever comes next is news, even if it is
                // the same again.
                self.said = None;
                return;
            }
        };
        if self.said.as_ref() != Some(&said) {
            self.said = Some(said);
            shared.report(report);
        }
    }
}

/// Whether this node is to ask for the lease, or to make the object.
fn may_contend(shared: &Shared, snapshot: &Snapshot) -> bool {
    if shared.versions.module().is_none() {
        return false;
    }
    let in_cool_off = shared.cool_off.is_some_and(|until| shared.time() < until);
    let free_for = shared.memory.free_since.map_or(Duration::ZERO, |since| shared.time().since(since));
    if in_cool_off && free_for < FREE_LONG_ENOUGH {
        return false;
    }
    match snapshot {
        Snapshot::Nothing => true,
        Snapshot::Object { lease, record, .. } => {
            !lease.is_held() && !record.as_ref().is_some_and(|record| shared.is_over(record))
        }
    }
}

/// Why an instance may still run although the lease looks free; none where nothing can.
fn unclear(shared: &Shared, snapshot: &Snapshot, is_recalled: bool) -> Option<&'static str> {
    let was_held = shared.memory.was_held;
    let (lease, record) = match snapshot {
        Snapshot::Nothing if was_held => return Some("its record was deleted"),
        Snapshot::Nothing => (LeaseState::Free, None),
        Snapshot::Object { lease, record, .. } => (*lease, record.as_ref()),
    };
    let term = record.map_or(0, |record| record.term);
    match (lease, record) {
        _ if !is_recalled => Some("what else the store says of its terms cannot be read"),
        _ if term < shared.memory.written_term => Some("its record names a lower term than was served"),
        (LeaseState::Expired, _) => None,
        (LeaseState::Free, None) if *snapshot == Snapshot::Nothing => None,
        (LeaseState::Free, None) => Some("it has no record"),
        (LeaseState::Free, Some(record)) if !record.released => Some("its last holder did not release it"),
        (LeaseState::Free, Some(_)) if term == 0 && was_held => Some("its record was deleted and made anew"),
        (LeaseState::Free, Some(_)) => None,
        _ => Some("the lease was broken"),
    }
}

/// A node that has asked for the lease and does not know the outcome.
#[derive(Debug, Clone, Hash)]
pub(super) struct Acquiring {
    id: LeaseId,
    opening: Opening,
    length: Duration,
    started: Time,
    next_try: Time,
    pending: Option<Pending>,
    /// Whether a try had an unknown outcome, so that the lease may be held under the id.
    in_doubt: bool,
}

impl Acquiring {
    fn new(shared: &mut Shared, opening: Opening) -> Self {
        let (shortest, longest) = shared.settings.lease_range;
        let own = shared.settings.timing.lease();
        // If this holder dies while it waits another's lease out, the expiry that the next one reads must
        // not come before the wait would have ended.
        let length = opening.unclear.map_or(own, |unclear| own.max(unclear.wait.clamp(shortest, longest)));
        let now = shared.time();
        Self {
            id: shared.fresh_lease_id(),
            opening,
            length,
            started: now,
            next_try: now,
            pending: None,
            in_doubt: false,
        }
    }

    pub(super) fn timers(&self) -> Timers<1> {
        Timers([(Timer::Acquire, self.pending.is_none().then_some(self.next_try))])
    }

    pub(super) fn step(&mut self, shared: &mut Shared, input: Option<Input>) -> Option<Role> {
        if let Some(Input::Answer { id, result }) = input
            && let Some(pending) = answered(&mut self.pending, id)
        {
            return self.answer(shared, pending, result);
        }
        if self.pending.is_some() {
            return None;
        }
        // A release would tell the next one that nothing can still run. Unless that is known, a lease that
        // may have been acquired is left to run out.
        if shared.shutting_down && self.in_doubt && self.opening.unclear.is_none() {
            let Opening { version, record, .. } = self.opening.clone();
            let until = self.started + self.length;
            let writer = RecordWriter::new(version, record.clone());
            return Some(Role::Releasing(Releasing::new(shared, self.id, writer, record, until)));
        }
        if shared.shutting_down {
            return Some(Role::Finished);
        }
        if shared.time().since(self.started) >= self.length {
            return back_to_standby(shared, "the lease could not be acquired".to_string());
        }
        if self.timers().is_due(Timer::Acquire, shared.time()) {
            let op = Op::Acquire { id: self.id, length: self.length, version: self.opening.version.clone() };
            self.pending = Some(shared.urgent(op));
        }
        None
    }

    fn answer(&mut self, shared: &mut Shared, pending: Pending, result: Result<Reply, Refusal>) -> Option<Role> {
        match result {
            Ok(_) => {
                shared.refused = 0;
                shared.store_answers(ACQUIRE);
                shared.memory.was_held = true;
                shared.memory.free_since = None;
                let holding = Holding::new(
                    shared,
                    self.id,
                    self.length,
                    pending.sent,
                    self.opening.version.clone(),
                    &self.opening,
                );
                Some(Role::Holding(Box::new(holding)))
            }
            // A try that was not carried out says nothing of an earlier one that may have been.
            Err(refusal @ (Refusal::Unknown(_) | Refusal::Misconfigured(_)))
                if self.in_doubt || matches!(refusal, Refusal::Unknown(_)) =>
            {
                self.in_doubt = true;
                shared.store_trouble(ACQUIRE, &refusal);
                self.next_try = shared.retry_at();
                None
            }
            Err(Refusal::Held) => {
                shared.refused = 0;
                shared.memory.was_held = true;
                let next_poll = shared.time() + shared.jittered(POLL);
                Some(Role::Standby(Standby::new(next_poll)))
            }
            // Since it was read as free, a holder has written, or the object is another.
            Err(Refusal::Conflict | Refusal::Lost(_)) => {
                shared.memory.was_held = true;
                Some(Role::Standby(Standby::new(shared.time())))
            }
            // Nothing is said of a change of role: the trouble was, and it is asked for again, ever more seldom.
            Err(refusal) => {
                shared.store_trouble(ACQUIRE, &refusal);
                let next_poll = shared.time() + shared.back_off(shared.refused, &refusal);
                shared.refused += 1;
                Some(Role::Standby(Standby::new(next_poll)))
            }
        }
    }
}

/// Follows again, with the next reading as if the host had just started.
pub(super) fn back_to_standby(shared: &mut Shared, reason: String) -> Option<Role> {
    if shared.shutting_down {
        return Some(Role::Finished);
    }
    shared.report(Report::Standby { reason });
    let next_poll = shared.time() + shared.jittered(POLL);
    Some(Role::Standby(Standby::new(next_poll)))
}
