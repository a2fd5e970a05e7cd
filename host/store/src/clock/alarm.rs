//! Hearing at once that the machine's clocks have stepped: that it slept, or that its wall clock was set. Timers run by a
//! clock that stands still in a sleep, so whoever sleeps until a deadline by them alone would miss it by as long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// What is closer is waited for to the point.
const CLOSE: Duration = Duration::from_millis(50);

/// Is readable once the machine's clocks have stepped (`TFD_TIMER_CANCEL_ON_SET` in timerfd_create(2)).
#[derive(Debug)]
pub struct Steps(OwnedFd);

impl Steps {
    /// # Errors
    /// Where the kernel tells nothing of them.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let steps = Self(rustix::time::timerfd_create(TimerfdClockId::Realtime, flags)?);
        steps.forget()?;
        Ok(steps)
    }

    /// Has it tell of the steps from now on. Who reads a clock afterwards misses none.
    ///
    /// # Errors
    /// As for [`Steps::new`].
    pub fn forget(&self) -> io::Result<()> {
        let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: never };
        match rustix::time::timerfd_settime(
            &self.0,
            TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET,
            &once,
        ) {
            // There was one right before.
            Ok(_) | Err(Errno::CANCELED) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Steps {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How long to wait by a timer for what is `left` away, before one looks at the clocks again: a timer may be slewed, by a
/// twelfth at the most (chrony's `maxslewrate`).
#[must_use]
pub fn towards(left: Duration) -> Duration {
    (left * 11 / 12).max(left.min(CLOSE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::time::{ClockId, clock_gettime, clock_settime};

    use super::*;

    fn are_told(steps: &Steps) -> bool {
        poll(&mut [PollFd::new(steps, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn a_wall_clock_that_is_set_is_heard_of_until_that_is_forgotten() {
        let steps = Steps::new().unwrap();
        assert!(!are_told(&steps));
        // To what it says already.
        if clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)) == Err(Errno::PERM) {
            return;
        }
        assert!(are_told(&steps));
        steps.forget().unwrap();
        assert!(!are_told(&steps));
    }

    #[test]
    fn a_timer_that_is_slow_comes_to_a_deadline_in_few_steps_and_not_past_it() {
        let mut left = Duration::from_secs(60);
        let mut looks = 0;
        while left > CLOSE {
            // What passes meanwhile.
            left = left.checked_sub(towards(left) * 1083 / 1000).unwrap();
            looks += 1;
        }
        assert!(looks < 6, "{looks}");
        assert_eq!(towards(left), left);
    }
}
