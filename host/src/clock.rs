//! The host's clock: elapsed time that counts pauses.
//!
//! A machine that slept, or that its hypervisor paused and then corrected, must wake without its term.
//! The boot clock counts sleep; the wall clock shows a pause once it is corrected. So time here is the
//! boot clock, and on top every forward step of the wall clock against it. A step backwards adds nothing
//! and takes nothing away.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::Time;
use rustix::time::{ClockId, clock_gettime};

/// A wall clock that has moved this much further than the boot clock was stepped: slewing is slower
/// within the time that a lease lasts, and is covered by its tolerance for drift.
const STEP: i128 = 5_000_000;

/// Two readings of the boot clock that are further apart than this were interrupted, in nanoseconds.
const INTERRUPTED: i128 = 1_000_000;

/// The clock of this host. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    steps: Arc<Mutex<Steps>>,
}

impl Clock {
    /// The time now. It never goes back.
    pub fn now(&self) -> Time {
        // Read under the lock: a reading from before a step that is noted after it would count it twice.
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let (boot, wall) = read_together();
        Time(nanoseconds(steps.advance(boot, wall)))
    }

    /// What the boot clock alone says, which counts sleep and which nobody can set.
    pub fn boot(&self) -> Duration {
        nanoseconds(read(ClockId::Boottime))
    }

    /// Wall-clock time since the Unix epoch, for people.
    pub fn wall(&self) -> Duration {
        nanoseconds(read(ClockId::Realtime))
    }
}

/// What the wall clock was seen to step forward by, in nanoseconds.
#[derive(Debug, Default)]
struct Steps {
    /// Wall clock less boot clock, when it was last noted.
    skew: Option<i128>,
    total: i128,
    last: i128,
}

impl Steps {
    fn advance(&mut self, boot: i128, wall: i128) -> i128 {
        let skew = wall - boot;
        let moved = skew - *self.skew.get_or_insert(skew);
        if moved >= STEP {
            self.total += moved;
        }
        if moved.abs() >= STEP {
            self.skew = Some(skew);
        }
        self.last = self.last.max(boot + self.total);
        self.last
    }
}

/// Boot and wall clock of the same moment. A thread that is put aside between the two readings would
/// see a step that never was, so it reads again.
fn read_together() -> (i128, i128) {
    let mut before = read(ClockId::Boottime);
    let mut wall = read(ClockId::Realtime);
    for _ in 0..4 {
        let after = read(ClockId::Boottime);
        if after - before < INTERRUPTED {
            break;
        }
        before = after;
        wall = read(ClockId::Realtime);
    }
    (before, wall)
}

fn read(id: ClockId) -> i128 {
    let now = clock_gettime(id);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn nanoseconds(n: i128) -> Duration {
    Duration::from_nanos(u64::try_from(n).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i128 = 1_000_000_000;

    #[test]
    fn a_forward_step_of_the_wall_clock_counts() {
        let mut steps = Steps::default();
        assert_eq!(steps.advance(SECOND, 100 * SECOND), SECOND);
        assert_eq!(steps.advance(2 * SECOND, 131 * SECOND), 32 * SECOND);
        assert_eq!(steps.advance(3 * SECOND, 132 * SECOND), 33 * SECOND);
    }

    #[test]
    fn a_backward_step_counts_for_nothing_and_hides_no_later_pause() {
        let mut steps = Steps::default();
        steps.advance(SECOND, 100 * SECOND);
        assert_eq!(steps.advance(2 * SECOND, 41 * SECOND), 2 * SECOND);
        assert_eq!(steps.advance(3 * SECOND, 52 * SECOND), 13 * SECOND);
    }

    #[test]
    fn slow_drift_is_not_a_step_until_it_adds_up() {
        let mut steps = Steps::default();
        steps.advance(0, 0);
        assert_eq!(steps.advance(SECOND, SECOND + STEP - 1), SECOND);
        assert_eq!(steps.advance(2 * SECOND, 2 * SECOND + STEP), 2 * SECOND + STEP);
    }
}
