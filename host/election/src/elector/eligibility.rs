//! The current eligibility of this node: the command that applies, how long it applies, and whether this node lets
//! other nodes take the lease first.

use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::Context;
use crate::eligibility::{
    Eligibility, HIGHEST_PRIORITY, Ineligibility, IneligibleCause, TAKE_ANYWAY_AFTER, YIELDS_FOR, deferral,
};
use crate::port::Report;
use crate::record::Version;
use crate::timing::Time;

#[derive(Debug, Default, Clone, Hash)]
pub(super) struct EligibilityState {
    given: Eligibility,
    current: Option<Ineligibility>,
    /// The lease that this node held when the current ineligibility began.
    ceded: Option<CededLease>,
    /// The id of the last ineligibility that ended before its time because the node had given up the lease.
    ended_early: Option<String>,
    /// True if this node gave up the lease for a transfer and no node has taken it.
    transfer_failed: bool,
    /// The time since which this node could have requested the lease; `None` while it cannot.
    open_since: Option<Time>,
    is_deferral_reported: bool,
}

/// A lease that this node is giving up, or has given up, because the node must no longer lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum CededLease {
    Held,
    /// This node gave up the lease at time `at`. `is_taken` is true once this node has seen another node lead.
    GivenUp {
        at: Time,
        is_taken: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AcquireDecision {
    /// Request the lease. If `within_quota` is true, the host may withhold the request when it has reached its
    /// leadership quota.
    Now { within_quota: bool },
    /// Let other nodes go first until this time.
    Defer(Time),
}

impl EligibilityState {
    /// The time at which `one` ends; `None` if only an input can end it.
    fn end_of(&self, one: &Ineligibility) -> Option<Time> {
        let early = match (self.ceded, one.after_release) {
            (Some(CededLease::GivenUp { at, .. }), Some(after)) if self.is_current(one) => Some(at + after),
            _ => None,
        };
        [one.until, early].into_iter().flatten().min()
    }

    fn is_current(&self, one: &Ineligibility) -> bool {
        self.current.as_ref().is_some_and(|current| is_same(current, one))
    }
}

fn is_same(one: &Ineligibility, other: &Ineligibility) -> bool {
    (&one.id, &one.cause) == (&other.id, &other.cause)
}

impl Context {
    pub(super) fn take_eligibility(&mut self, given: &Eligibility) {
        self.eligibility.given = given.clone();
    }

    /// Determines which command applies now. `holds` is true if this node holds the lease, as far as it knows.
    pub(super) fn update_eligibility(&mut self, holds: bool) {
        let now = self.time();
        let state = &mut self.eligibility;
        if state.ceded == Some(CededLease::Held) && !holds {
            state.ceded = Some(CededLease::GivenUp { at: now, is_taken: false });
        }
        let is_over = |end: Option<Time>| end.is_some_and(|end| end <= now);
        if let Some(current) = state.current.as_ref().filter(|one| !is_over(one.until) && is_over(state.end_of(one))) {
            state.ended_early = Some(current.id.clone());
        }
        let has_ended = |one: &Ineligibility| state.ended_early.as_ref() == Some(&one.id) || is_over(state.end_of(one));
        let next = state.given.commands.iter().find(|one| !has_ended(one)).cloned();
        let before = core::mem::replace(&mut state.current, next.clone());
        match (before, next) {
            (None, None) => {}
            (Some(before), Some(next)) if is_same(&before, &next) => {}
            (_, Some(next)) => {
                (state.ceded, state.open_since) = (holds.then_some(CededLease::Held), None);
                let wait = next.until.map(|until| until.since(now));
                self.report(Report::Ineligible { ineligibility: next, wait });
            }
            (Some(before), None) => {
                // After a failed transfer, the node takes the lease back without letting other nodes go first.
                let is_transfer = matches!(before.cause, IneligibleCause::Transferring { .. });
                let is_untaken = matches!(state.ceded, Some(CededLease::GivenUp { is_taken: false, .. }));
                (state.transfer_failed, state.ceded) = (is_transfer && is_untaken, None);
                self.report(Report::Eligible { before });
            }
        }
    }

    /// The time at which the current ineligibility ends; `None` if this node is eligible, or if only an input can end
    /// the ineligibility.
    pub(super) fn eligible_at(&self) -> Option<Time> {
        self.eligibility.end_of(self.eligibility.current.as_ref()?)
    }

    pub(super) fn command(&self) -> Option<&Ineligibility> {
        self.eligibility.current.as_ref()
    }

    /// The cause and the human-readable reason why this node must not lead, if there is one. Maintenance takes
    /// precedence over a command, because no command can end maintenance.
    pub(super) fn ineligible(&self) -> Option<(&IneligibleCause, &str)> {
        let maintenance = self.eligibility.given.maintenance.as_deref();
        let command = self.command().map(|command| (&command.cause, command.reason.as_str()));
        maintenance.map(|reason| (&IneligibleCause::Maintenance, reason)).or(command)
    }

    /// True if this node has a version to serve, and neither maintenance nor a command prevents it from leading. A
    /// cool-off is not considered.
    pub(super) fn may_lead(&self) -> bool {
        self.ineligible().is_none() && self.versions.module().is_some()
    }

    /// True if the host derived this node's eligibility from this version of the operators' commands.
    pub(super) fn knows_steering(&self, version: Option<&Version>) -> bool {
        self.eligibility.given.steering.is(version)
    }

    /// Decides whether this node requests a lease that looks free. `is_own` is true if no other node can take the
    /// lease, so that there is no node to defer to. `is_released` is true if the last holder has released the lease.
    pub(super) fn decide_on_acquire(&mut self, is_own: bool, is_released: bool) -> AcquireDecision {
        let now = self.time();
        let state = &mut self.eligibility;
        let open_since = *state.open_since.get_or_insert(now);
        let chosen = state.given.chosen.filter(|chosen| now < chosen.until);
        // True if an operator chose this node, or if this node takes the lease back after a failed transfer.
        let insists = state.transfer_failed || chosen.is_some_and(|chosen| chosen.by_operator);
        // The election's first term is not a takeover, so it need not wait for a node with a higher priority.
        let defers = self.memory.written_term > 0 && !is_own && !insists && chosen.is_none();
        let by_priority = deferral(state.given.priority);
        let by_share = if state.given.yields && is_released { YIELDS_FOR } else { Duration::ZERO };
        let until = open_since + if defers { by_priority.max(by_share) } else { Duration::ZERO };
        if now < until {
            let reason = if by_share > by_priority {
                "another node leads fewer shards".to_string()
            } else {
                format!("priority {}", state.given.priority.min(HIGHEST_PRIORITY))
            };
            self.report_deferral(&reason);
            return AcquireDecision::Defer(until);
        }
        let is_free_for_long = now.since(open_since) >= TAKE_ANYWAY_AFTER;
        AcquireDecision::Now { within_quota: !insists && !is_free_for_long }
    }

    /// Reports why this node lets other nodes take the lease first, at most once each time that the lease becomes free.
    pub(super) fn report_deferral(&mut self, why: &str) {
        if !core::mem::replace(&mut self.eligibility.is_deferral_reported, true) {
            let reason = format!("the lease is free, but this node lets other nodes take it first: {why}");
            self.report(Report::Deferring { reason });
        }
    }

    /// Notes that the lease is not available: a client holds it, or the election is over.
    pub(super) fn lease_is_taken(&mut self) {
        let state = &mut self.eligibility;
        (state.open_since, state.is_deferral_reported, state.transfer_failed) = (None, false, false);
        if let Some(CededLease::GivenUp { is_taken, .. }) = &mut state.ceded {
            *is_taken = true;
        }
    }
}
