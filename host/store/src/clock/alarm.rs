//! Waiting for a deadline without looking at the clocks all the time.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

/// What is closer is waited for to the point.
const CLOSE: Duration = Duration::from_millis(50);

/// Wakes who waits for a moment of the boot clock: to the point, also where the process was stopped meanwhile or the machine
/// has slept, both of which a call that waits for a length of time leaves out. It wakes at once when the machine has slept, or
/// its wall clock is set, which shows a pause that a hypervisor hid (`TFD_TIMER_CANCEL_ON_SET` in timerfd_create(2)).
#[derive(Debug)]
pub struct Alarm {
    timer: OwnedFd,
    /// None where the kernel does not tell of steps.
    steps: Option<OwnedFd>,
}

impl Alarm {
    /// # Errors
    /// Where the system has no such timers, or no descriptors left.
    pub fn new() -> io::Result<Self> {
        let timer = |clock| timerfd_create(clock, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let mut alarm = Self { timer: timer(TimerfdClockId::Boottime)?, steps: timer(TimerfdClockId::Realtime).ok() };
        alarm.forget_steps();
        Ok(alarm)
    }

    /// Whether it wakes when the clocks step.
    #[must_use]
    pub fn hears_steps(&self) -> bool {
        self.steps.is_some()
    }

    /// Has it wake for the steps from now on. Who reads a clock afterwards misses none.
    pub fn forget_steps(&mut self) {
        let never = Timespec { tv_sec: i64::MAX, tv_nsec: 0 };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        // It says `CANCELED` where there was one right before.
        self.steps
            .take_if(|steps| !matches!(timerfd_settime(steps, flags, &once(never)), Ok(_) | Err(Errno::CANCELED)));
    }

    /// Waits until the time is over, if there is one, the clocks step, or one of the `others` is readable. Returns of each of
    /// these whether it is.
    ///
    /// # Errors
    /// Where the system cannot wait.
    pub fn wait<'a>(
        &self,
        longest: Option<Duration>,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<Vec<bool>> {
        // What cannot be set is waited for as well as that goes.
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

/// How long to wait by a timer for what is `left` away, before one looks at the clocks again: the kernel lets its clocks be
/// slewed by a tenth (the tick of adjtimex(2)).
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
    fn it_wakes_at_its_time_and_for_what_else_is_waited_for() {
        // The test beside this one sets the wall clock.
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
    fn a_wall_clock_that_is_set_wakes_it_until_that_is_forgotten() {
        let mut alarm = Alarm::new().unwrap();
        assert!(alarm.hears_steps());
        let (nothing, _nobody) = pipe().unwrap();
        // To what it says already.
        if clock_settime(ClockId::Realtime, clock_gettime(ClockId::Realtime)) == Err(Errno::PERM) {
            return;
        }
        alarm.wait(Some(LONG), [nothing.as_fd()]).unwrap();
        let (clock, wait) = (Clock::default(), Duration::from_millis(30));
        // Not each time: the daemon that keeps the machine's time may set it meanwhile.
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
    fn a_timer_that_is_slow_comes_to_a_deadline_in_few_steps_and_not_past_it() {
        let mut left = Duration::from_secs(60);
        let mut looks = 0;
        while left > CLOSE {
            // What passes meanwhile.
            left = left.checked_sub(towards(left) * 11 / 10).unwrap();
            looks += 1;
        }
        assert!(looks < 6, "{looks}");
        assert_eq!(towards(left), left);
    }
}
