//! Keeps an instance from acting after its deadline.
//!
//! - [`Gate`]: the check that every effect of an instance must pass.
//! - [`Deadline`]: the time that is checked again before a queued effect leaves the process.
//! - [`Watchdog`]: ends the host if an instance does not exit in time.

mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_election::timing::{Time, last_words_within, overdue_at};

use crate::clock::Clock;
pub use watchdog::Watchdog;

/// Ends this process at once with SIGKILL. An abort could dump core first, which would delay the end of the processes
/// that depend on this one.
pub fn end_this_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The first process in a PID namespace ignores a SIGKILL from inside the namespace (pid_namespaces(7)), so exit
    // instead. Shells report the status 137 for a process that was killed by SIGKILL. SAFETY: `_exit` is sound at any
    // point, since it runs no exit handlers and never returns.
    unsafe { libc::_exit(137) }
}

/// An effect was refused: the term's deadline has passed, or the instance is being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the term is over: the host refuses this instance's effects")]
pub struct Refused;

/// The time from which no effect of an instance may leave this process. An effect that has passed the gate may still be
/// queued, such as a line that nobody has read yet. Before a queued effect leaves, its sender checks the deadline
/// again. Clones share the deadline.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    shared: Arc<SharedDeadline>,
}

#[derive(Debug)]
struct SharedDeadline {
    /// The time of the deadline, in nanoseconds on the host's clock.
    at: AtomicU64,
    ended: AtomicBool,
}

impl Deadline {
    /// Creates a deadline at the given time.
    pub fn new(clock: Clock, at: Time) -> Self {
        let shared = SharedDeadline { at: AtomicU64::new(nanoseconds(at)), ended: AtomicBool::new(false) };
        Self { clock, shared: Arc::new(shared) }
    }

    /// True if the deadline has passed or was ended early. Reads the clock.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Returns the time until the deadline passes.
    pub fn remaining(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.nanoseconds().saturating_sub(nanoseconds(self.clock.now())))
    }

    /// Moves the deadline after a renewal. A deadline that was ended early stays ended.
    pub fn extend(&self, at: Time) {
        self.shared.at.store(nanoseconds(at), Ordering::Release);
    }

    /// Makes the deadline count as passed from now on, regardless of the clock.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    fn nanoseconds(&self) -> u64 {
        self.shared.at.load(Ordering::Acquire)
    }
}

/// The gate of one instance. The gate is open until it is closed or its deadline passes. A gate that was closed never
/// reopens. If only the deadline has passed, a later deadline reopens the gate.
#[derive(Debug)]
pub struct Gate {
    deadline: Deadline,
    /// The time by which the instance must have exited, in nanoseconds on the host's clock.
    abort_at: AtomicU64,
    /// Time at which the process woke from a pause that lasted past the deadline, in nanoseconds. Ignored if it is
    /// before the current deadline, because the pause then concerned an earlier deadline.
    woken: AtomicU64,
    refused: AtomicBool,
    dying: AtomicBool,
    gone: AtomicBool,
}

impl Gate {
    /// Creates a gate that is open until `deadline`, for an instance that must have exited by `abort_at`.
    pub fn new(clock: Clock, deadline: Time, abort_at: Time) -> Self {
        Self {
            deadline: Deadline::new(clock, deadline),
            abort_at: AtomicU64::new(nanoseconds(abort_at)),
            woken: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            dying: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// Lets one effect pass if the gate is open. Reads the clock.
    ///
    /// # Errors
    /// [`Refused`] if the deadline has passed or the gate was closed.
    pub fn pass(&self) -> Result<(), Refused> {
        if self.deadline.has_passed() {
            self.refused.store(true, Ordering::Release);
            return Err(Refused);
        }
        Ok(())
    }

    /// True if the gate has refused an effect.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Moves the deadline and the time by which the instance must have exited, after a renewal of the lease. A closed
    /// gate stays closed.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.deadline.extend(deadline);
        self.abort_at.store(nanoseconds(abort_at), Ordering::Release);
    }

    /// Returns the deadline, even if the gate was closed earlier.
    pub fn deadline(&self) -> Time {
        Time(Duration::from_nanos(self.deadline.nanoseconds()))
    }

    /// Returns the time on the gate's clock.
    pub fn now(&self) -> Time {
        self.deadline.clock.now()
    }

    /// Refuses all effects from now on.
    pub fn close(&self) {
        self.deadline.end();
    }

    /// Returns the time until the gate refuses effects.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Records that the process was paused until `now`. If `now` is past the deadline, the host gets the full time for
    /// killing the instance again, counted from `now`. This happens only once per deadline. Otherwise, a process that
    /// always wakes late would never end.
    fn wakes(&self, now: Time) {
        let deadline = self.deadline.nanoseconds();
        if nanoseconds(now) >= deadline && self.woken.load(Ordering::Acquire) < deadline {
            self.woken.store(nanoseconds(now), Ordering::Release);
        }
    }

    fn overdue_at(&self) -> Time {
        let (abort_at, deadline) = (self.abort_at.load(Ordering::Acquire), self.deadline.nanoseconds());
        let woken = self.woken.load(Ordering::Acquire);
        let [deadline, abort_at, woken] = [deadline, abort_at, woken].map(|at| Time(Duration::from_nanos(at)));
        overdue_at(deadline, abort_at, Some(woken))
    }

    fn last_words_within(&self) -> Duration {
        let room = self.abort_at.load(Ordering::Acquire).saturating_sub(self.deadline.nanoseconds());
        last_words_within(Duration::from_nanos(room))
    }

    /// Notes that the instance has been killed: no part of it is running, even if its process has not been reaped. The
    /// watchdog stops watching the gate, because ending the host would not speed up the reaping.
    pub fn set_dying(&self) {
        self.dying.store(true, Ordering::Release);
    }

    fn is_watched(&self) -> bool {
        !self.gone.load(Ordering::Acquire) && !self.dying.load(Ordering::Acquire)
    }

    /// Notes that the instance has exited, and closes the gate. The watchdog stops watching the gate.
    pub fn set_gone(&self) {
        self.close();
        self.gone.store(true, Ordering::Release);
    }
}

fn nanoseconds(time: Time) -> u64 {
    u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_refuses_after_deadline_and_stays_closed() {
        let clock = Clock::default();
        let past = clock.now();
        let future = past + Duration::from_secs(3600);
        let gate = Gate::new(clock, past, future);
        assert!(!gate.has_refused());
        assert_eq!(gate.pass(), Err(Refused));
        assert!(gate.has_refused());
        gate.extend(future, future);
        assert_eq!(gate.pass(), Ok(()));
        gate.close();
        gate.extend(future, future);
        assert_eq!(gate.pass(), Err(Refused));
        assert_eq!(gate.remaining(), Duration::ZERO);
    }
}
