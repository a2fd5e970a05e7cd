//! Life without the lease: reading, judging what was read, and asking for the lease.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::holder::Holding;
use super::releasing::Releasing;
use super::{
    ACQUIRE, CREATE, FREE_LONG_ENOUGH, Memory, POLL, Pending, READ, Role, STANDBY_TIMEOUT, Shared, UNKNOWN_LEASE,
    answered,
};
use crate::port::{Input, Report};
use crate::record::{LeaseId, LeaseState, Record, Snapshot, Term, Version};
use crate::request::{Op, Refusal, Reply};
use crate::timing::Time;

/// A standby: reads every second, and asks for the lease only when it looks free.
#[derive(Debug)]
pub(super) struct Standby {
    next_poll: Time,
    pending: Option<Pending>,
    /// What is pending is no reading: it makes the object.
    creating: bool,
    /// Failed readings in a row.
    failures: u32,
    /// What was last said of the election, so that it is said once.
    said: Option<Said>,
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Leader(Term),
    Outside,
    Over,
}

/// What follows from a reading.
enum Verdict {
    /// Somebody has the lease, or this node must not have it.
    Wait,
    /// There is nothing: the object must be created first.
    Create,
    /// Try to take it.
    Acquire(Opening),
}

/// A lease that looks free.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    version: Version,
    pub(super) record: Option<Record>,
    /// How long another's instance may still run after the acquire, and why that is not excluded.
    pub(super) unclear: Option<(Duration, &'static str)>,
}

impl Standby {
    pub(super) fn new(next_poll: Time) -> Self {
        Self { next_poll, pending: None, creating: false, failures: 0, said: None }
    }

    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.pending.is_none().then_some(self.next_poll)
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
        if self.pending.is_none() && shared.time() >= self.next_poll {
            self.pending = Some(shared.request(Op::Read, STANDBY_TIMEOUT));
        }
        None
    }

    fn answer(&mut self, shared: &mut Shared, result: Result<Reply, Refusal>) -> Option<Role> {
        match result {
            Ok(Reply::Read(snapshot)) => {
                self.failures = 0;
                shared.store_answers(READ);
                shared.memory.note(&snapshot, shared.now.time);
                self.say(shared, &snapshot);
                match judge(shared, &snapshot) {
                    Verdict::Wait => {
                        // Nothing more is asked for, so that nothing is refused any more.
                        shared.refused = 0;
                        shared.store_answers(ACQUIRE);
                        self.next_poll = shared.time() + shared.jittered(POLL);
                    }
                    Verdict::Create => {
                        let lease = shared.memory.longest_lease.unwrap_or(shared.settings.timing.lease());
                        let record = shared.record_without_holder(None, lease);
                        self.creating = true;
                        self.pending = Some(shared.request(Op::Create { record }, STANDBY_TIMEOUT));
                    }
                    Verdict::Acquire(opening) => return Some(Role::Acquiring(Acquiring::new(shared, opening))),
                }
            }
            // Created. It is read before it is asked for, so that one rule judges all openings.
            Ok(_) | Err(Refusal::Conflict) => {
                self.creating = false;
                shared.refused = 0;
                shared.store_answers(CREATE);
                self.next_poll = shared.time();
            }
            Err(refusal) if core::mem::take(&mut self.creating) => {
                shared.store_trouble(CREATE, &refusal);
                self.next_poll = shared.time() + shared.back_off(shared.refused, &refusal);
                shared.refused += 1;
            }
            Err(refusal) => {
                shared.store_trouble(READ, &refusal);
                self.next_poll = shared.time() + shared.back_off(self.failures, &refusal);
                self.failures += 1;
            }
        }
        None
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

fn judge(shared: &Shared, snapshot: &Snapshot) -> Verdict {
    let Memory { was_held, free_since, .. } = shared.memory;
    if shared.versions.module().is_none() {
        return Verdict::Wait;
    }
    let in_cool_off = shared.cool_off.is_some_and(|until| shared.time() < until);
    let free_for = free_since.map_or(Duration::ZERO, |since| shared.time().since(since));
    if in_cool_off && free_for < FREE_LONG_ENOUGH {
        return Verdict::Wait;
    }
    let Snapshot::Object { lease, version, record } = snapshot else { return Verdict::Create };
    // A record that was made anew may say less than the one that its holder had written.
    let recorded = shared.memory.longest_lease.unwrap_or(UNKNOWN_LEASE);
    let unclear = match (lease, record) {
        (LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking, _) => return Verdict::Wait,
        (_, Some(record)) if shared.is_over(record) => return Verdict::Wait,
        (LeaseState::Expired, _) => None,
        (LeaseState::Free, Some(record)) if record.node.is_some() => None,
        (LeaseState::Free, Some(record)) if record.term == 0 && !was_held => None,
        (LeaseState::Free, Some(_)) => Some((recorded, "its record was deleted and made anew")),
        (LeaseState::Free, None) => Some((recorded, "it has no record")),
        (LeaseState::Broken, _) => Some((recorded, "the lease was broken")),
    };
    Verdict::Acquire(Opening { version: version.clone(), record: record.clone(), unclear })
}

/// A node that has asked for the lease and does not know the outcome.
#[derive(Debug)]
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
        let length = opening.unclear.map_or(own, |(wait, _)| own.max(wait.clamp(shortest, longest)));
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

    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.pending.is_none().then_some(self.next_try)
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
            let until = self.started + self.length;
            return Some(Role::Releasing(Releasing::new(self.id, until)));
        }
        if shared.shutting_down {
            return Some(Role::Finished);
        }
        if shared.time().since(self.started) >= self.length {
            return back_to_standby(shared, "the lease could not be acquired".to_string());
        }
        if shared.time() >= self.next_try {
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
