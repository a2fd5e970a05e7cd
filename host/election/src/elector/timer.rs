//! The elector's timers.

use crate::timing::Time;

/// A moment at which the elector must act without an input.
///
/// A role computes the due times of its timers from its current state. So a renewal moves most of them, and no timer
/// outlives its state. The same table decides when to wake up and when to act, so the two always agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// A standby reads the lease and the record.
    Poll,
    /// A free lease is requested, or requested again after a failure.
    Acquire,
    /// The lease is renewed, or a failed renewal is repeated.
    Renew,
    /// The record is written, or read after an unknown outcome.
    Record,
    RunOut,
    /// Another node's instance has ended by now, as far as this node knows.
    Settled,
    /// The highest term in the store is recalled.
    Recall,
    NextTerm,
    /// The record could not be written for D, so another node should lead.
    Stuck,
    /// No renewal has succeeded for so long that the instance is asked to stop.
    AtRisk,
    /// The grace period of a stopping instance has ended.
    Grace,
    /// The lease is no longer safe: the instance is killed.
    Deadline,
    /// A killed instance is checked again, which shows whether the host was paused.
    Look,
    /// A killed instance is not gone in time. If it is dying, its lease is left to expire; otherwise the host ends
    /// itself.
    Abort,
    /// The instance has run for so long that earlier failures no longer count.
    Healthy,
    Proven,
    /// The lease is released, or a failed release is repeated.
    Release,
}

/// The due times of a role's timers; `None` for a stopped timer.
pub(super) struct Timers<const N: usize>(pub(super) [(Timer, Option<Time>); N]);

impl<const N: usize> Timers<N> {
    pub(super) fn next(&self) -> Option<Time> {
        self.0.iter().filter_map(|(_, due)| *due).min()
    }

    pub(super) fn is_due(&self, timer: Timer, now: Time) -> bool {
        self.0.iter().any(|(one, due)| *one == timer && due.is_some_and(|due| now >= due))
    }
}
