//! The gate: what every effect of an instance passes, the deadline that what has passed is held to once more if it has
//! to wait, and the watchdog behind both.

mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton_election::timing::{Time, last_words_within};

use crate::clock::Clock;
pub use watchdog::Watchdog;

/// Ends this process at once by SIGKILL. An abort could dump core, and the kernel signals the processes that die with this
/// one only after the dump.
pub fn end_this_process() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The first process of a PID namespace ignores a SIGKILL from within the namespace (pid_namespaces(7)). The status is a
    // shell's for a process that was killed.
    // SAFETY: nothing of the process is used any more, and nothing in it needs to be put in order.
    unsafe { libc::_exit(137) }
}

/// An effect was refused: the term's deadline has passed, or the instance is being killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the term is over: the host refuses this instance's effects")]
pub struct Refused;

/// Until when effects may leave this process. The gate of an instance has one; so has an effect that passed the gate
/// and then waits in the process, such as a line that nobody has read yet: it is judged once more right before it leaves.
/// Clones are the same deadline.
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

    /// Whether it has passed, by the clock as it is now, or was ended.
    pub fn has_passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// The time until it passes.
    pub fn remaining(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.nanoseconds().saturating_sub(nanoseconds(self.clock.now())))
    }

    /// Moves it after a renewal. One that has ended stays so.
    pub fn extend(&self, at: Time) {
        self.shared.at.store(nanoseconds(at), Ordering::Release);
    }

    /// Has it passed from now on, whatever the clock says.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
    }

    /// Whether it was ended.
    fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    fn nanoseconds(&self) -> u64 {
        self.shared.at.load(Ordering::Acquire)
    }
}

/// The gate of one instance. It is open until its deadline or until it is closed, and then never again.
#[derive(Debug)]
pub struct Gate {
    deadline: Deadline,
    /// Nanoseconds of [`Time`].
    abort_at: AtomicU64,
    /// When the process first found that it had been paused past the deadline; of no meaning while that is later.
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

    /// Lets one effect pass, by the clock as it is now.
    ///
    /// # Errors
    /// [`Refused`] from the deadline on, and once it is closed.
    pub fn pass(&self) -> Result<(), Refused> {
        if self.deadline.has_passed() {
            self.refused.store(true, Ordering::Release);
            return Err(Refused);
        }
        Ok(())
    }

    /// Whether it has refused an effect.
    pub fn has_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Moves the deadlines after a renewal. A closed gate stays closed.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.deadline.extend(deadline);
        self.abort_at.store(nanoseconds(abort_at), Ordering::Release);
    }

    /// The deadline, unless it was closed before.
    pub fn deadline(&self) -> Time {
        Time(Duration::from_nanos(self.deadline.nanoseconds()))
    }

    /// The time by its clock.
    pub fn now(&self) -> Time {
        self.deadline.clock.now()
    }

    /// Refuses everything from now on.
    pub fn close(&self) {
        self.deadline.end();
    }

    /// The time until effects are refused.
    pub fn remaining(&self) -> Duration {
        self.deadline.remaining()
    }

    /// Says that the process has found at `now` that it was paused. If that was past the deadline, no effect is caused
    /// any more, since this gate refuses; so the kill may take from now on what it may take otherwise. That is given
    /// once: a process that is paused again and again, or woken too late each time, would never end.
    fn wakes(&self, now: Time) {
        let deadline = self.deadline.nanoseconds();
        if nanoseconds(now) >= deadline && self.woken.load(Ordering::Acquire) < deadline {
            self.woken.store(nanoseconds(now), Ordering::Release);
        }
    }

    /// From when on the instance counts as not gone in time.
    fn overdue_at(&self) -> Time {
        let (abort_at, deadline) = (self.abort_at.load(Ordering::Acquire), self.deadline.nanoseconds());
        let woken = Some(self.woken.load(Ordering::Acquire)).filter(|woken| *woken >= deadline);
        let room = abort_at.saturating_sub(deadline);
        Time(Duration::from_nanos(woken.map_or(abort_at, |woken| abort_at.max(woken.saturating_add(room)))))
    }

    /// See [`last_words_within`].
    fn last_words_within(&self) -> Duration {
        let room = self.abort_at.load(Ordering::Acquire).saturating_sub(self.deadline.nanoseconds());
        last_words_within(Duration::from_nanos(room))
    }

    /// Says that nothing of the instance runs any more, though it may take the system a while until it is gone: no end of
    /// this process would end anything more of it.
    pub fn set_dying(&self) {
        self.dying.store(true, Ordering::Release);
    }

    /// Whether it is to be watched: something of the instance may still run.
    fn is_watched(&self) -> bool {
        !self.gone.load(Ordering::Acquire) && !self.dying.load(Ordering::Acquire)
    }

    /// Says that the instance is gone: nobody need watch it any more.
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
    fn refuses_from_the_deadline_on_and_never_reopens_once_closed() {
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
