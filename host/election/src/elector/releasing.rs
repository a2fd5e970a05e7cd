//! Giving the lease up, last of all.

use alloc::format;
use alloc::string::ToString;

use super::candidate::back_to_standby;
use super::ledger::{Kind, Ledger, News};
use super::{Pending, Role, Shared, answered};
use crate::port::{Input, Report};
use crate::record::{LeaseId, Record};
use crate::request::{Op, Refusal};
use crate::timing::Time;

/// A node that gives the lease up: it marks the record as released, under its lease, and then releases that. A lease
/// that is free without the mark has the next holder wait for its whole length, so one whose record cannot be marked is
/// left to run out, which takes less. Once the release was sent, the id is never used for anything else again.
#[derive(Debug, Clone, Hash)]
pub(super) struct Releasing {
    id: LeaseId,
    ledger: Ledger,
    pending: Option<Pending>,
    next_try: Time,
    /// When the lease has run out by itself.
    until: Time,
    /// The host has no patience: one more try, then no other.
    hurried: bool,
}

impl Releasing {
    /// `last` is the record that says how it ended, whether that is written already or not.
    pub(super) fn new(shared: &Shared, id: LeaseId, mut ledger: Ledger, last: Option<Record>, until: Time) -> Self {
        if !ledger.is_marked() {
            let lease = shared.settings.timing.lease();
            let record = last.unwrap_or_else(|| shared.record_without_holder(None, lease));
            ledger.want(Record { released: true, ..record }, Kind::Note, shared.time());
        }
        Self { id, ledger, pending: None, next_try: Time::default(), until, hurried: false }
    }

    pub(super) fn next_wakeup(&self) -> Option<Time> {
        if self.ledger.is_marked() {
            return self.pending.is_none().then_some(self.next_try);
        }
        self.ledger.next_wakeup().into_iter().chain([self.until]).min()
    }

    pub(super) fn step(&mut self, shared: &mut Shared, input: Option<Input>) -> Option<Role> {
        match input {
            Some(Input::SkipGrace) => {
                self.hurried = true;
                self.next_try = shared.time();
                self.ledger.hurry(shared.time());
            }
            Some(Input::Answer { id, result }) if answered(&mut self.pending, id).is_some() => match result {
                Ok(_) => {
                    shared.report(Report::Released);
                    return back_to_standby(shared, "the lease was released".to_string());
                }
                Err(Refusal::Lost(why)) => return self.give_up(shared, &why),
                Err(Refusal::Held | Refusal::Conflict) => return self.give_up(shared, "it is not held any more"),
                Err(refusal) if self.hurried => {
                    return self.give_up(shared, &format!("the host would not wait for another try ({refusal})"));
                }
                Err(refusal @ (Refusal::Unknown(_) | Refusal::Misconfigured(_))) => {
                    shared.store_trouble("release", &refusal);
                    self.next_try = shared.retry_at();
                }
            },
            Some(Input::Answer { id, result: Err(Refusal::Unknown(why) | Refusal::Misconfigured(why)) })
                if self.hurried && self.ledger.awaits(id) =>
            {
                return self.give_up(shared, &format!("the host would not wait for another try ({why})"));
            }
            Some(Input::Answer { id, result }) => match self.ledger.answer(shared, id, &result) {
                // A write that nobody wants any more may be refused because the release was carried out.
                News::Lost(_) if self.pending.is_some() => {}
                News::Lost(why) => return self.give_up(shared, &why),
                News::Doubt => return self.give_up(shared, "it is not held any more"),
                News::Written | News::None => {}
            },
            _ => {}
        }
        if self.pending.is_none() && shared.time() >= self.until {
            return self.give_up(shared, "it could not be released before it ran out");
        }
        self.ledger.tick(shared, self.id);
        if self.ledger.is_marked() && self.pending.is_none() && shared.time() >= self.next_try {
            self.pending = Some(shared.urgent(Op::Release { id: self.id }));
        }
        None
    }

    fn give_up(&self, shared: &mut Shared, reason: &str) -> Option<Role> {
        shared.report(Report::NotReleased { reason: reason.to_string() });
        back_to_standby(shared, format!("the lease was not released: {reason}"))
    }
}
