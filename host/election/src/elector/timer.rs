//! The elector's timers.

use crate::timing::Time;

/// A moment at which the elector must act without an input.
///
/// A role computes from its current state when its timers are due. So a renewal moves most timers, and no timer
/// outlives the state that needs it. The elector uses [`Timers`] both to decide when to wake up and to decide what is
/// due, so the two decisions always agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// A standby reads the lease and the record.
    Poll,
    /// The node requests a lease that looks free, or repeats the request after a failure.
    Acquire,
    /// The holder renews the lease, or retries a failed renewal.
    Renew,
    /// The holder writes the record, or reads the record after a write with an unknown outcome.
    Record,
    RunOut,
    /// The wait for another node's instance is over. The instance has ended by now, as far as this node knows.
    Settled,
    /// The holder reads the highest term in the store.
    Recall,
    NextTerm,
    /// This node has been unable to write the record for the lease's length (D), so another node should lead.
    Stuck,
    /// The lease may be lost soon, because the last renewal was long ago. The elector asks the instance to stop.
    AtRisk,
    /// The grace period of a stopping instance has ended.
    Grace,
    /// The lease is no longer safe. The elector kills the instance.
    Deadline,
    /// The elector checks a killed instance again. If this check is late, the host was paused.
    Look,
    /// A killed instance is not gone in time. If its process is dying, the host lets the lease expire; otherwise, the
    /// host ends itself.
    Abort,
    /// The instance has run for so long that earlier failures no longer count.
    Healthy,
    Proven,
    /// The node releases the lease, or retries a failed release.
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
