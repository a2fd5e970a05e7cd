//! The elector's timers.

use crate::timing::Time;

/// A moment at which the elector must act without an input.
///
/// A role uses its current state to compute when its timers are due. So a renewal moves most timers, and no timer
/// outlives the state that needs it. The elector uses the same table to decide when to wake up and when to act, so the
/// two always agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// A standby reads the lease and the record.
    Poll,
    /// A lease that looks free is requested, or requested again after a failure.
    Acquire,
    /// The lease is renewed, or a failed renewal is retried.
    Renew,
    /// The record is written, or read after an unknown outcome.
    Record,
    RunOut,
    /// The wait for another node's instance is over: it has ended by now, as far as this node knows.
    Settled,
    /// The highest term in the store is read.
    Recall,
    NextTerm,
    /// This node has been unable to write the record for D, so another node should lead.
    Stuck,
    /// The last successful renewal was so long ago that the instance is asked to stop.
    AtRisk,
    /// The grace period of a stopping instance has ended.
    Grace,
    /// The lease is no longer safe: the instance is killed.
    Deadline,
    /// A killed instance is checked again. If this check is late, the host was paused.
    Look,
    /// A killed instance is not gone in time. If it is dying, the host lets the lease expire; otherwise, the host ends
    /// itself.
    Abort,
    /// The instance has run for so long that earlier failures no longer count.
    Healthy,
    Proven,
    /// The lease is released, or a failed release is retried.
    Release,
}

/// The times at which a role's timers are due; `None` for a stopped timer.
pub(super) struct Timers<const N: usize>(pub(super) [(Timer, Option<Time>); N]);

impl<const N: usize> Timers<N> {
    pub(super) fn next(&self) -> Option<Time> {
        self.0.iter().filter_map(|(_, due)| *due).min()
    }

    pub(super) fn is_due(&self, timer: Timer, now: Time) -> bool {
        self.0.iter().any(|(one, due)| *one == timer && due.is_some_and(|due| now >= due))
    }
}
