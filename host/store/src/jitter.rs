//! Waits: random ones, so that many nodes do not ask, or write, at the same moment; those that a host shares, so that it asks
//! at the same moment for all of its elections; and those after failures.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// A random time between these two; the first where the system has no random numbers.
pub fn between(least: Duration, most: Duration) -> Duration {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).map_or(0, |()| byte[0]);
    least + most.saturating_sub(least) * u32::from(random) / 256
}

/// A moment between `least` and `most` after that one, in the middle of the two where all goes well: one of those at which this
/// process does whatever can wait so long. A processor that is woken once for many elections rests longer, and a store may
/// answer many at once. Another process has other moments.
pub fn shared(after: Instant, (least, most): (Duration, Duration)) -> Instant {
    /// Of a process that has begun, and how long ago, as it were.
    static ORIGIN: LazyLock<(Instant, Duration)> =
        LazyLock::new(|| (Instant::now(), between(Duration::ZERO, Duration::from_secs(64))));
    let (begin, before) = *ORIGIN;
    // Who was answered a little after one of them meets the one after the next.
    let step = ((least + most) / 4).as_nanos().max(1);
    let earliest = (after + least).saturating_duration_since(begin) + before;
    let wait = Duration::from_nanos(((step - earliest.as_nanos() % step) % step) as u64);
    if least + wait <= most { after + least + wait } else { after + between(least, most) }
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
    fn what_can_wait_is_done_at_moments_that_a_process_shares() {
        let window = (Duration::from_secs(2), Duration::from_secs(4));
        let mut at = shared(Instant::now(), window);
        for answered in [1, 700, 1499, 20, 20, 1] {
            let answered = at + Duration::from_millis(answered);
            let next = shared(answered, window);
            assert!(next >= answered + window.0 && next <= answered + window.1);
            assert_eq!((next - at).as_millis() % 1500, 0, "{:?}", next - at);
            at = next;
        }
        assert_eq!(shared(at + Duration::from_millis(20), window) - at, Duration::from_secs(3), "the middle");
        // Those who can wait for long meet the others.
        let seldom = shared(at, (Duration::from_secs(22), Duration::from_secs(38)));
        assert_eq!((seldom - at).as_millis() % 1500, 0);
        let none = (Duration::from_secs(7), Duration::from_secs(7));
        assert_eq!(shared(at, none) - at, none.0, "none of them is in the window");
    }

    #[test]
    fn waits_double_until_they_are_as_long_as_they_may_be() {
        let pace = (Duration::from_millis(250), Duration::from_secs(3));
        let waits = [0, 1, 2, 3, 4, 31, 32, u32::MAX].map(|failures| doubled(pace, failures).as_millis());
        assert_eq!(waits, [250, 500, 1000, 2000, 3000, 3000, 3000, 3000]);
    }
}
