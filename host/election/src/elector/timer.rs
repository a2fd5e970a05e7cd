//! What an elector waits for, other than answers.

use crate::timing::Time;

/// A moment at which something is to be done though nothing has come in.
///
/// A role's table says when each of its timers is due, as its state has it by then: a renewal moves most of them, and
/// none is left over from a state that has ended. The same table is asked when to wake up and whether it is time to
/// act, so that no timer can be late in one and early in the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// A standby reads lease and record.
    Poll,
    /// A free lease is asked for, or once more after a try that failed.
    Acquire,
    /// The lease is renewed, or once more after a try that failed.
    Renew,
    /// The record is written, or read after a doubt.
    Record,
    /// The lease has run out by itself.
    RunOut,
    /// What may still run of another's is gone by now, as far as is known.
    Settled,
    /// What else the store says of terms is asked for.
    Recall,
    /// The next term is begun.
    NextTerm,
    /// The record could not be written for so long that another node is to try.
    Stuck,
    /// No renewal has succeeded for so long that the instance is asked to stop.
    AtRisk,
    /// An instance that was asked to stop has had its time.
    Grace,
    /// The lease is not safe any more: the instance is killed.
    Deadline,
    /// An instance that was killed is looked at again: a pause of the host shows by that.
    Look,
    /// An instance that was killed is still there: if it is dying its lease is left to run out, and else its host ends.
    Abort,
    /// The instance has run for so long that its failures before do not count any more.
    Healthy,
    /// The version on probation has run for as long as that takes.
    Proven,
    /// The lease is released, or once more after a try that failed.
    Release,
}

/// When each timer of a role is due; none while it is stopped.
pub(super) struct Timers<const N: usize>(pub(super) [(Timer, Option<Time>); N]);

impl<const N: usize> Timers<N> {
    /// The first that is due.
    pub(super) fn next(&self) -> Option<Time> {
        self.0.iter().filter_map(|(_, due)| *due).min()
    }

    /// Whether that one is due by now.
    pub(super) fn is_due(&self, timer: Timer, now: Time) -> bool {
        self.0.iter().any(|(one, due)| *one == timer && due.is_some_and(|due| now >= due))
    }
}
