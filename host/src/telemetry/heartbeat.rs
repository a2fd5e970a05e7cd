//! Signs of life of what must turn, for everything that watches the host from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_election::Time;
use baton_store::clock::Clock;
use baton_store::jitter::Moments;
use tokio::time::{Instant, sleep_until};

/// How often it beats at the least.
pub const BEAT_EVERY: Duration = Duration::from_secs(5);

/// From one beat of a runtime to the next, at least and at most: as what elections on SQLite are told is read.
const OF_RUNTIME: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));

/// When something last turned. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// It turns.
    pub fn beat(&self, now: Time) {
        self.0.store(u64::try_from(now.0.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// It need not turn any more.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// How long ago that was; none before the first time, and after the end.
    #[must_use]
    pub fn since(&self, now: Time) -> Option<Duration> {
        let at = Some(self.0.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(now.0.saturating_sub(Duration::from_nanos(at)))
    }

    /// Shows that the runtime turns that this runs on, for as long as it is polled: at moments at which it turns anyway,
    /// if it can.
    pub async fn of_runtime(self, clock: Clock, moments: Moments) {
        loop {
            self.beat(clock.now());
            sleep_until(moments.next(Instant::now(), OF_RUNTIME)).await;
        }
    }
}
