//! Random waits, so that many nodes do not ask, or write, at the same moment.

use std::time::Duration;

/// A random time between these two; the first where the system has no random numbers.
pub fn between(least: Duration, most: Duration) -> Duration {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).map_or(0, |()| byte[0]);
    least + most.saturating_sub(least) * u32::from(random) / 256
}
