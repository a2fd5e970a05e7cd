//! The host's clock: elapsed time, derived from three kernel clocks. No single clock is trusted alone.
//!
//! The boot clock keeps running during a suspend, but the time daemon may slew it (chrony by up to 8.3%). The raw clock
//! is never slewed, but stops during a suspend. A hypervisor may hide a pause from both clocks. The wall clock then
//! shows the pause, once a time daemon has corrected the wall clock.
//!
//! So there are two bounds on the time that has passed:
//!
//! - [`Clock::now`] is the upper bound. It follows the clock that has advanced most. A leader uses it to limit how long
//!   it may act.
//! - [`Clock::least`] is the lower bound. It follows the boot clock or the raw clock, whichever has advanced less. A
//!   node uses it to wait until another node must have stopped. It ignores the wall clock, which may be stepped at any
//!   time.
//!
//! These bounds also hold between any two reads: [`Clock::now`] advances by at least the time that has passed, and
//! [`Clock::least`] by at most that time. The error is at most twice `STEP`.

mod alarm;
mod wall;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::Time;
use rustix::time::{ClockId, clock_gettime};

pub use alarm::{Alarm, towards};
pub use wall::{milliseconds, rfc3339, rfc3339_seconds, wall};

/// Minimum drift between two clocks that counts as a step or a slew, in nanoseconds. The clock ignores smaller drift as
/// noise. Each of the two bounds may therefore be wrong by up to twice this value. The shortest lease reserves 1% for
/// late wake-ups, which covers this error.
const STEP: i128 = 5_000_000;

/// Longest time for reading all clocks, in nanoseconds. If the reads take longer, the thread was probably preempted in
/// between.
const INTERRUPTED: i128 = 1_000_000;

/// The clock of this host. Clones share one clock.
#[derive(Clone, Default)]
pub struct Clock {
    elapsed: Arc<Mutex<Elapsed>>,
    /// Replaces the kernel's clocks, if set.
    source: Option<TimeSource>,
}

/// A function that returns the time since some fixed moment. The time must never go backwards.
pub type TimeSource = Arc<dyn Fn() -> Duration + Send + Sync>;

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("elapsed", &self.elapsed).finish_non_exhaustive()
    }
}

impl Clock {
    /// Creates a clock that gets its time from `source` instead of the kernel's clocks, for tests that control the
    /// time.
    #[must_use]
    pub fn of_source(source: TimeSource) -> Self {
        Self { source: Some(source), ..Self::default() }
    }

    /// Returns the current time: the upper bound on elapsed time, which never goes backwards.
    pub fn now(&self) -> Time {
        Time(nanoseconds(self.read().most))
    }

    /// Returns the lower bound on elapsed time, which never goes backwards.
    pub fn least(&self) -> Duration {
        nanoseconds(self.read().least)
    }

    /// Returns [`Clock::now`] and [`Clock::least`], both for the same moment.
    pub fn both(&self) -> (Time, Duration) {
        let elapsed = self.read();
        (Time(nanoseconds(elapsed.most)), nanoseconds(elapsed.least))
    }

    /// Returns the time of the kernel's boot clock, without corrections. Takes no lock. All processes on the machine
    /// see the same boot clock, until the machine restarts.
    pub fn boot(&self) -> Duration {
        self.source.as_ref().map_or_else(|| nanoseconds(read(ClockId::Boottime)), |source| source())
    }

    /// Returns the wall-clock time since the Unix epoch, for schedules and for display.
    pub fn wall(&self) -> Duration {
        self.source.as_ref().map_or_else(|| nanoseconds(read(ClockId::Realtime)), |source| source())
    }

    fn read(&self) -> MutexGuard<'_, Elapsed> {
        // Read the clocks while holding the lock. Otherwise, two threads could process their readings in the wrong
        // order. A reading from before a step, processed after the step, would make the step count twice.
        let mut elapsed = self.elapsed.lock().unwrap_or_else(PoisonError::into_inner);
        elapsed.advance(self.source.as_ref().map_or_else(Readings::together, |source| Readings::same(source())));
        elapsed
    }
}

/// Readings of the kernel's clocks at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Readings {
    boot: i128,
    raw: i128,
    wall: i128,
}

impl Readings {
    fn same(time: Duration) -> Self {
        let nanos = i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        Self { boot: nanos, raw: nanos, wall: nanos }
    }

    /// Reads all clocks. If the thread was preempted between two readings, reads all clocks again, because the delay
    /// would look like a step of a clock.
    fn together() -> Self {
        let mut boot = read(ClockId::Boottime);
        for _ in 0..4 {
            let (raw, wall) = (read(ClockId::MonotonicRaw), read(ClockId::Realtime));
            let after = read(ClockId::Boottime);
            if after - boot < INTERRUPTED {
                return Self { boot, raw, wall };
            }
            boot = after;
        }
        Self { boot, raw: read(ClockId::MonotonicRaw), wall: read(ClockId::Realtime) }
    }
}

/// Elapsed time in nanoseconds: the boot clock's time, corrected for the drift of the other clocks relative to it.
#[derive(Debug, Default)]
struct Elapsed {
    /// Time by which the raw clock and the wall clock are ahead of the boot clock, or behind it if negative. Set at the
    /// first reading, and again whenever a step or slew is counted.
    noted: Option<[i128; 2]>,
    /// Total time that another clock has counted and the boot clock has not, as of the last change of `noted`.
    missed: i128,
    /// Total time that the boot clock has counted and the raw clock has not, as of the last change of `noted`.
    extra: i128,
    most: i128,
    least: i128,
}

impl Elapsed {
    fn advance(&mut self, Readings { boot, raw, wall }: Readings) {
        let ahead = [raw - boot, wall - boot];
        let noted = *self.noted.get_or_insert(ahead);
        let moved = [ahead[0] - noted[0], ahead[1] - noted[1]];
        if moved.iter().any(|moved| moved.abs() >= STEP) {
            self.missed += moved[0].max(moved[1]).max(0);
            self.extra += (-moved[0]).max(0);
            self.noted = Some(ahead);
        }
        self.most = self.most.max(boot + self.missed);
        self.least = self.least.max(boot - self.extra);
    }
}

/// Reads one of the kernel's clocks, in nanoseconds. Do not measure elapsed time with a single kernel clock: it may be
/// slewed, or miss a suspend. Use [`Clock`] instead.
pub fn nanoseconds_on(id: ClockId) -> u64 {
    u64::try_from(read(id)).unwrap_or(0)
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
    const MILLISECOND: i128 = SECOND / 1000;

    struct Machine {
        clocks: Readings,
        elapsed: Elapsed,
    }

    impl Machine {
        fn new() -> Self {
            let clocks = Readings { boot: 100 * SECOND, raw: 90 * SECOND, wall: 1_000_000 * SECOND };
            let mut machine = Self { clocks, elapsed: Elapsed::default() };
            machine.elapsed.advance(clocks);
            machine
        }

        /// Advances each clock by the given time. Returns how far `now` and `least` advance.
        fn pass(&mut self, boot: i128, raw: i128, wall: i128) -> (i128, i128) {
            let Elapsed { most, least, .. } = self.elapsed;
            let clocks = &mut self.clocks;
            *clocks = Readings { boot: clocks.boot + boot, raw: clocks.raw + raw, wall: clocks.wall + wall };
            self.elapsed.advance(self.clocks);
            (self.elapsed.most - most, self.elapsed.least - least)
        }

        fn pass_slowly(&mut self, boot: i128, raw: i128, wall: i128) -> (i128, i128) {
            let steps = raw.max(boot) / (10 * MILLISECOND);
            (0..steps).fold((0, 0), |(most, least), _| {
                let (more, at_least) = self.pass(boot / steps, raw / steps, wall / steps);
                (most + more, least + at_least)
            })
        }
    }

    fn is_about(said: i128, passed: i128) -> bool {
        (said - passed).abs() < 2 * STEP
    }

    #[test]
    fn agreeing_clocks_are_trusted() {
        assert_eq!(Machine::new().pass(SECOND, SECOND, SECOND), (SECOND, SECOND));
        assert_eq!(Machine::new().pass_slowly(60 * SECOND, 60 * SECOND, 60 * SECOND), (60 * SECOND, 60 * SECOND));
    }

    #[test]
    fn slewed_clock_lengthens_no_lease_and_shortens_no_wait() {
        let fast = 60 * SECOND * 1083 / 1000;
        let slow = 60 * SECOND * 917 / 1000;
        for pass in [Machine::pass, Machine::pass_slowly] {
            let (most, least) = pass(&mut Machine::new(), fast, 60 * SECOND, fast);
            assert!(is_about(most, fast) && is_about(least, 60 * SECOND), "fast: {most}, {least}");
            let (most, least) = pass(&mut Machine::new(), slow, 60 * SECOND, slow);
            assert!(is_about(most, 60 * SECOND) && is_about(least, slow), "slow: {most}, {least}");
        }
    }

    #[test]
    fn alternating_slew_keeps_both_bounds() {
        let mut machine = Machine::new();
        let (mut most, mut least) = (0, 0);
        for round in 0..100 {
            let boot = if round % 2 == 0 { SECOND * 1083 / 1000 } else { SECOND * 917 / 1000 };
            let (more, at_least) = machine.pass_slowly(boot, SECOND, boot);
            (most, least) = (most + more, least + at_least);
        }
        assert!(most >= 100 * SECOND - 2 * STEP && least <= 100 * SECOND + 2 * STEP, "{most}, {least}");
    }

    #[test]
    fn suspend_counts_for_the_holder_and_not_for_a_waiting_node() {
        let mut machine = Machine::new();
        let slept = 30 * SECOND;
        assert_eq!(machine.pass(SECOND + slept, SECOND, SECOND + slept), (SECOND + slept, SECOND));
        assert_eq!(machine.pass(SECOND, SECOND, SECOND), (SECOND, SECOND));
    }

    #[test]
    fn wall_clock_step_forward_costs_holder_and_shortens_no_wait() {
        let mut machine = Machine::new();
        assert_eq!(machine.pass(SECOND, SECOND, 31 * SECOND), (31 * SECOND, SECOND));
        assert_eq!(machine.pass(SECOND, SECOND, SECOND), (SECOND, SECOND));
    }

    #[test]
    fn wall_clock_step_back_hides_no_later_pause() {
        let mut machine = Machine::new();
        assert_eq!(machine.pass(SECOND, SECOND, -59 * SECOND), (SECOND, SECOND));
        assert_eq!(machine.pass(SECOND, SECOND, 11 * SECOND), (11 * SECOND, SECOND));
    }

    #[test]
    fn suspend_hides_no_wall_clock_step_and_no_slew() {
        let mut machine = Machine::new();
        assert_eq!(machine.pass(31 * SECOND, SECOND, -100 * SECOND), (31 * SECOND, SECOND));
        assert_eq!(machine.pass(SECOND, SECOND, 6 * SECOND), (6 * SECOND, SECOND));
        let slow = SECOND * 917 / 1000;
        assert_eq!(machine.pass(slow, SECOND, slow), (SECOND, slow));
    }

    #[test]
    fn drift_adds_up_and_noise_does_not() {
        let mut machine = Machine::new();
        let noise = STEP / 3;
        for _ in 0..1000 {
            machine.pass(MILLISECOND, MILLISECOND + noise, MILLISECOND);
            machine.pass(MILLISECOND, MILLISECOND - noise, MILLISECOND);
        }
        assert_eq!(machine.elapsed.most, machine.clocks.boot);
        assert_eq!(machine.elapsed.least, machine.clocks.boot);
        let (most, _) = machine.pass_slowly(100 * SECOND, 100 * SECOND * 1001 / 1000, 100 * SECOND);
        assert!(is_about(most, 100 * SECOND * 1001 / 1000), "{most}");
    }

    #[test]
    fn neither_bound_goes_back() {
        let mut machine = Machine::new();
        for (boot, raw, wall) in
            [(0, 0, 0), (-SECOND, 0, 0), (0, -SECOND, -SECOND), (1, -2 * STEP, 3 * STEP), (0, 9, 0)]
        {
            let (most, least) = machine.pass(boot, raw, wall);
            assert!(most >= 0 && least >= 0, "{most}, {least}");
        }
    }

    #[test]
    fn bounds_hold_between_any_two_moments() {
        let mut seed = 1_u64;
        let mut random = move |below: i128| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            i128::from(seed >> 33) % below
        };
        let mut machine = Machine::new();
        let mut moments = Vec::new();
        for _ in 0..300 {
            let passed = random(200) * MILLISECOND;
            let slew = 917 + random(167);
            let (slept, stepped) = match random(20) {
                0 => (random(60) * SECOND, 0),
                1 => (0, random(100) * SECOND - 50 * SECOND),
                _ => (0, 0),
            };
            let boot = passed * slew / 1000 + slept;
            machine.pass(boot, passed, boot + stepped);
            moments.push((machine.clocks, machine.elapsed.most, machine.elapsed.least));
        }
        for (at, (then, most_then, least_then)) in moments.iter().enumerate() {
            for (now, most, least) in &moments[at..] {
                let [boot, raw, wall] = [now.boot - then.boot, now.raw - then.raw, now.wall - then.wall];
                assert!(most - most_then > boot.max(raw).max(wall) - 2 * STEP, "{then:?} {now:?}");
                assert!(least - least_then < boot.min(raw) + 2 * STEP, "{then:?} {now:?}");
            }
        }
    }

    #[test]
    fn clock_reads_the_kernels_clocks() {
        let clock = Clock::default();
        let (now, least) = (clock.now(), clock.least());
        assert!(now.0 > Duration::ZERO && least > Duration::ZERO);
        assert!(clock.now() >= now && clock.least() >= least);
    }
}
