//! Waits: random ones, so that many nodes do not ask, or write, at the same moment, and those after failures.

use std::time::Duration;

/// A random time between these two; the first where the system has no random numbers.
pub fn between(least: Duration, most: Duration) -> Duration {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).map_or(0, |()| byte[0]);
    least + most.saturating_sub(least) * u32::from(random) / 256
}

/// How long to wait after a failure that so many in a row came before: the first wait, after each of them twice as long, and
/// never longer than the other.
pub fn doubled((first, longest): (Duration, Duration), failures: u32) -> Duration {
    first.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_they_are_as_long_as_they_may_be() {
        let pace = (Duration::from_millis(250), Duration::from_secs(3));
        let waits = [0, 1, 2, 3, 4, 31, 32, u32::MAX].map(|failures| doubled(pace, failures).as_millis());
        assert_eq!(waits, [250, 500, 1000, 2000, 3000, 3000, 3000, 3000]);
    }
}
