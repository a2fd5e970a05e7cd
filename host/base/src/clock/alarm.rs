//! Waits for a deadline without polling the clocks.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

/// Longest wait that [`towards`] does not shorten. A longer wait is shortened, so that the caller checks the clocks
/// again before the wait is over.
const CLOSE: Duration = Duration::from_millis(50);

/// Wakes its thread at a given time on the boot clock. Unlike a wait for a duration, the alarm counts the time for
/// which the process was stopped or the machine was suspended.
///
/// Also wakes the thread when the machine resumes from a suspend, or when the wall clock is set
/// (`TFD_TIMER_CANCEL_ON_SET` in timerfd_create(2)). A corrected wall clock can reveal a pause that a hypervisor hid.
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// A timer that becomes readable when the wall clock steps. `None` if the kernel does not report steps.
    steps: Option<OwnedFd>,
}

impl Alarm {
    /// Creates an alarm.
    ///
    /// # Errors
    /// Fails if the system does not support timerfd_create(2), or has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let timer = |clock| timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let mut alarm = Self { timer: timer(TimerfdClockId::Boottime)?, steps: timer(TimerfdClockId::Realtime).ok() };
        alarm.forget_steps();
        Ok(alarm)
    }

    /// True if the alarm wakes the thread when a clock steps.
    #[must_use]
    pub fn hears_steps(&self) -> bool {
        self.steps.is_some()
    }

    /// Forgets past clock steps. From now on, each step wakes the thread. Call this before you read a clock, so that
    /// you miss no step.
    pub fn forget_steps(&mut self) {
        let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        // `CANCELED` reports a step from before this call, which the caller asked to forget. After any other error, the
        // alarm no longer reports steps.
        self.steps
            .take_if(|steps| !matches!(timerfd_settime(steps, flags, &once(never)), Ok(_) | Err(Errno::CANCELED)));
    }

    /// Waits until `longest` has passed, a clock steps, or one of `others` is readable. Without `longest`, waits only
    /// for `others`. Returns one value for each of `others`: true if the descriptor is readable.
    ///
    /// # Errors
    /// Fails if poll(2) fails.
    pub fn wait<'a>(
        &self,
        longest: Option<Duration>,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<Vec<bool>> {
        // If the timer cannot be set, use the timeout of `poll` instead.
        let unset = longest.filter(|longest| self.set(*longest).is_err());
        let others: Vec<BorrowedFd<'_>> = others.into_iter().collect();
        let timers = longest.map(|_| [&self.timer].into_iter().chain(&self.steps).map(|timer| timer.as_fd()));
        let all = others.iter().copied().chain(timers.into_iter().flatten());
        let mut asked: Vec<_> = all.map(|asked| PollFd::from_borrowed_fd(asked, PollFlags::IN)).collect();
        match poll(&mut asked, unset.and_then(|unset| Timespec::try_from(unset).ok()).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(asked.iter().take(others.len()).map(|asked| !asked.revents().is_empty()).collect())
    }

    fn set(&self, wait: Duration) -> io::Result<()> {
        let now = clock_gettime(ClockId::Boottime);
        let at = Timespec::try_from(wait).ok().and_then(|wait| now.checked_add(wait)).ok_or(Errno::INVAL)?;
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once(at))?;
        Ok(())
    }
}

fn once(at: Timespec) -> Itimerspec {
    Itimerspec { it_interval: Timespec::default(), it_value: at }
}

/// Returns how long to wait on a timer before checking the clocks again, if `left` is the remaining time. If `left` is
/// longer than 50 ms, the result is less than `left`, because a kernel clock may be slewed by up to 10% (`tick` in
/// adjtimex(2)).
#[must_use]
pub fn towards(left: Duration) -> Duration {
    (left * 9 / 10).max(left.min(CLOSE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::io::{Read as _, pipe};

    use rustix::time::clock_settime;

    use super::*;
    use crate::clock::Clock;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn alarm_wakes_at_its_time_or_when_a_descriptor_is_readable() {
        // Ignore steps of the wall clock: the test below sets it, which would wake this alarm.
        let alarm = Alarm { steps: None, ..Alarm::new().unwrap() };
        let (mut nothing, nobody) = pipe().unwrap();
        let (never, _nobody) = pipe().unwrap();
        let clock = Clock::default();
        for wait in [Duration::ZERO, Duration::from_millis(30)] {
            let begun = clock.boot();
            assert_eq!(alarm.wait(Some(wait), [nothing.as_fd(), never.as_fd()]).unwrap(), [false, false]);
            assert!(clock.boot() >= begun + wait);
        }
        drop(nobody);
        for longest in [Some(LONG), None] {
            assert_eq!(alarm.wait(longest, [never.as_fd(), nothing.as_fd()]).unwrap(), [false, true]);
        }
        assert_eq!(nothing.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn alarm_wakes_when_wall_clock_is_set() {
        let mut alarm = Alarm::new().unwrap();
        assert!(alarm.hears_steps());
        let (nothing, _nobody) = pipe().unwrap();
        // Set the wall clock to the time that it already shows, which counts as a step.
        if clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)) == Err(Errno::PERM) {
            return;
        }
        alarm.wait(Some(LONG), [nothing.as_fd()]).unwrap();
        let (clock, wait) = (Clock::default(), Duration::from_millis(30));
        // Repeat this if the wait ends early: a time daemon may set the clock at any time.
        loop {
            alarm.forget_steps();
            let begun = clock.boot();
            alarm.wait(Some(wait), [nothing.as_fd()]).unwrap();
            if clock.boot() >= begun + wait {
                break;
            }
        }
    }

    #[test]
    fn slow_timer_reaches_deadline_in_few_steps_and_not_late() {
        let mut left = Duration::from_secs(60);
        let mut looks = 0;
        while left > CLOSE {
            left = left.checked_sub(towards(left) * 11 / 10).unwrap();
            looks += 1;
        }
        assert!(looks < 6, "{looks}");
        assert_eq!(towards(left), left);
    }
}
