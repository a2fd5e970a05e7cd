//! Giving the lease up, last of all.

use alloc::format;
use alloc::string::ToString;

use super::candidate::back_to_standby;
use super::{Pending, Role, Shared, answered};
use crate::port::{Input, Report};
use crate::record::LeaseId;
use crate::request::{Op, Refusal};
use crate::timing::Time;

/// A node that has asked to give the lease up. The id is never used for anything else again.
#[derive(Debug)]
pub(super) struct Releasing {
    id: LeaseId,
    pending: Option<Pending>,
    next_try: Time,
    /// When the lease has run out by itself.
    until: Time,
    /// The host has no patience: one more try, then no other.
    hurried: bool,
}

impl Releasing {
    pub(super) fn new(id: LeaseId, until: Time) -> Self {
        Self { id, pending: None, next_try: Time::default(), until, hurried: false }
    }

    pub(super) fn next_wakeup(&self) -> Option<Time> {
        self.pending.is_none().then_some(self.next_try)
    }

    pub(super) fn step(&mut self, shared: &mut Shared, input: Option<Input>) -> Option<Role> {
        match input {
            Some(Input::SkipGrace) => {
                self.hurried = true;
                self.next_try = shared.time();
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
            _ => {}
        }
        if self.pending.is_none() && shared.time() >= self.until {
            return self.give_up(shared, "it could not be released before it ran out");
        }
        if self.pending.is_none() && shared.time() >= self.next_try {
            self.pending = Some(shared.urgent(Op::Release { id: self.id }));
        }
        None
    }

    fn give_up(&self, shared: &mut Shared, reason: &str) -> Option<Role> {
        shared.report(Report::NotReleased { reason: reason.to_string() });
        back_to_standby(shared, format!("the lease was not released: {reason}"))
    }
}
