//! The gate that every effect of an instance passes, the deadline of effects that wait behind it, and the watchdog.

mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_election::timing::{Time, last_words_within};

use crate::clock::Clock;
pub use watchdog::Watchdog;

/// Ends this process at once by SIGKILL. An abort could dump core first, which delays the end of dependent processes.
pub fn end_this_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The first process of a PID namespace ignores a SIGKILL from within it (pid_namespaces(7)). The status is a
    // shell's for a killed process.
    // SAFETY: `_exit` never returns, and it is sound at any point, since it runs no code of this process.
    unsafe { libc::_exit(137) }
}

/// An effect was refused: the term's deadline has passed, or the instance is being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the term is over: the host refuses this instance's effects")]
pub struct Refused;

/// The time from which no effect may leave this process. An instance's gate has one. So has an effect that waits behind
/// the gate, such as a line that nobody has read yet: the deadline is checked again before it leaves. Clones share it.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: Clock,
    shared: Arc<SharedDeadline>,
}

#[derive(Debug)]
struct SharedDeadline {
    /// Nanoseconds of [`Time`].
    at: AtomicU64,
    ended: AtomicBool,
}

impl Deadline {
    /// A deadline at that time.
    pub fn new(clock: Clock, at: Time) -> Self {
        let shared = SharedDeadline { at: AtomicU64::new(nanoseconds(at)), ended: AtomicBool::new(false) };
        Self { clock, shared: Arc::new(shared) }
    }

    /// True if the deadline has passed, by a fresh reading of the clock, or was ended.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time until the deadline passes.
    pub fn remaining(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.nanoseconds().saturating_sub(nanoseconds(self.clock.now())))
    }

    /// Moves the deadline after a renewal. A deadline that has ended stays so.
    pub fn extend(&self, at: Time) {
        self.shared.at.store(nanoseconds(at), Ordering::Release);
    }

    /// Ends the deadline at once, whatever the clock reads.
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

/// The gate of one instance. It is open until its deadline passes or it is closed. It never reopens.
#[derive(Debug)]
pub struct Gate {
    deadline: Deadline,
    /// Nanoseconds of [`Time`].
    abort_at: AtomicU64,
    /// Time at which a pause past the deadline was first noticed. Meaningless if before the deadline.
    woken: AtomicU64,
    refused: AtomicBool,
    dying: AtomicBool,
    gone: AtomicBool,
}

impl Gate {
    /// Opens a gate until `deadline`, for an instance that must be gone by `abort_at`.
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

    /// Lets one effect pass, by a fresh reading of the clock.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and after the gate was closed.
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

    /// Moves the deadlines after a renewal. A closed gate stays closed.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.deadline.extend(deadline);
        self.abort_at.store(nanoseconds(abort_at), Ordering::Release);
    }

    /// The deadline, even if the gate was closed before.
    pub fn deadline(&self) -> Time {
        Time(Duration::from_nanos(self.deadline.nanoseconds()))
    }

    /// The time by the gate's clock.
    pub fn now(&self) -> Time {
        self.deadline.clock.now()
    }

    /// Refuses all effects from now on.
    pub fn close(&self) {
        self.deadline.end();
    }

    /// The time until effects are refused.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Notes that the process was paused until `now`. If that is past the deadline, the kill gets its usual time again,
    /// counted from now. It gets that only once: a process that always wakes late would otherwise never end.
    fn wakes(&self, now: Time) {
        let deadline = self.deadline.nanoseconds();
        if nanoseconds(now) >= deadline && self.woken.load(Ordering::Acquire) < deadline {
            self.woken.store(nanoseconds(now), Ordering::Release);
        }
    }

    /// The time from which the instance counts as not gone in time.
    fn overdue_at(&self) -> Time {
        let (abort_at, deadline) = (self.abort_at.load(Ordering::Acquire), self.deadline.nanoseconds());
        let woken = Some(self.woken.load(Ordering::Acquire)).filter(|woken| *woken >= deadline);
        let room = abort_at.saturating_sub(deadline);
        Time(Duration::from_nanos(woken.map_or(abort_at, |woken| abort_at.max(woken.saturating_add(room)))))
    }

    fn last_words_within(&self) -> Duration {
        let room = self.abort_at.load(Ordering::Acquire).saturating_sub(self.deadline.nanoseconds());
        last_words_within(Duration::from_nanos(room))
    }

    /// Notes that nothing of the instance runs any more, even if it is not reaped: ending this process would not help.
    pub fn set_dying(&self) {
        self.dying.store(true, Ordering::Release);
    }

    /// True if the watchdog must watch the gate, since something of the instance may still run.
    fn is_watched(&self) -> bool {
        !self.gone.load(Ordering::Acquire) && !self.dying.load(Ordering::Acquire)
    }

    /// Notes that the instance is gone, and closes the gate. The watchdog stops watching.
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
