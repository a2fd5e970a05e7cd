//! Wait times: random waits that spread the requests from different nodes, shared moments that combine the requests
//! from different tasks, and backoff.

use std::time::Duration;

use tokio::time::Instant;

/// Returns a random duration between two bounds. If the system provides no random numbers, returns the lower bound.
pub fn between(least: Duration, most: Duration) -> Duration {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).map_or(0, |()| byte[0]);
    least + most.saturating_sub(least) * u32::from(random) / 256
}

/// Shared moments for repeated work that can wait a little. Clones have the same moments, so tasks that use clones of
/// one value do their work at the same time. The CPU then wakes only once for all of these tasks, and a store may
/// answer their requests together.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    begin: Instant,
    /// A random time that shifts all moments. Two values that are created at the same time therefore have different
    /// moments.
    before: Duration,
}

impl Default for Moments {
    fn default() -> Self {
        let before =
            between(Duration::ZERO, Duration::from_secs(64)) + between(Duration::ZERO, Duration::from_millis(250));
        Self { begin: Instant::now(), before }
    }
}

impl Moments {
    /// Returns the next shared moment between `least` and `most` after the last answer. Shared moments are (`least` +
    /// `most`) / 2 apart, so a task that gets its answers promptly uses every moment. If there is no shared moment in
    /// this time, returns a random time between the two bounds. A task that does not start at a shared moment therefore
    /// reaches one after a few random waits.
    #[must_use]
    pub fn next(&self, answered: Instant, (least, most): (Duration, Duration)) -> Instant {
        let step = ((least + most) / 2).as_nanos().max(1);
        let earliest = (answered + least).saturating_duration_since(self.begin) + self.before;
        let wait = Duration::from_nanos(((step - earliest.as_nanos() % step) % step) as u64);
        if least + wait <= most { answered + least + wait } else { answered + between(least, most) }
    }
}

/// Returns the backoff after `failures` consecutive failures: the wait `first`, doubled for each failure, up to
/// `longest`.
pub fn doubled((first, longest): (Duration, Duration), failures: u32) -> Duration {
    first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_with_a_window_meet_at_shared_moments() {
        let window = (Duration::from_secs(2), Duration::from_secs(4));
        let step = Duration::from_secs(3);
        let begun = Instant::now();
        let moments = Moments::default();
        let is_shared = |at: Instant| (at - moments.begin + moments.before).as_nanos().is_multiple_of(step.as_nanos());
        for late in [0, 700, 1400, 2100, 2800] {
            let mut at = begun + Duration::from_millis(late);
            for _ in 0..100 {
                let answered = at + Duration::from_millis(20);
                let next = moments.next(answered, window);
                assert!(next >= answered + window.0 && next <= answered + window.1);
                assert!(!is_shared(at) || next - at == step, "{:?}", next - at);
                at = next;
            }
            assert!(is_shared(at));
            for _ in 0..100 {
                at = moments.next(at, (Duration::from_secs(22), Duration::from_secs(38)));
            }
            assert!(is_shared(at));
            let none = (Duration::from_secs(7), Duration::from_secs(7));
            assert_eq!(moments.next(at, none) - at, none.0, "none of them is in the window");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let pace = (Duration::from_millis(250), Duration::from_secs(3));
        let waits = [0, 1, 2, 3, 4, 31, 32, u32::MAX].map(|failures| doubled(pace, failures).as_millis());
        assert_eq!(waits, [250, 500, 1000, 2000, 3000, 3000, 3000, 3000]);
    }
}
