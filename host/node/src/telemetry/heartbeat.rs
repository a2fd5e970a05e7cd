//! Heartbeats, which show observers of the host that its threads keep running.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::jitter::Moments;
use baton_election::Time;
use tokio::time::{Instant, sleep_until};

/// Maximum interval between two heartbeats.
pub const BEAT_EVERY: Duration = Duration::from_secs(5);

/// Shortest and longest interval between the heartbeats of an async runtime. With SQLite, the host reads an election's
/// objects at the same interval, so that one wake-up serves both purposes.
const RUNTIME_BEAT_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));

/// The time of the last heartbeat. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Records a heartbeat.
    pub fn beat(&self, now: Time) {
        self.0.store(u64::try_from(now.0.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Stops the heartbeat.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the time since the last heartbeat. Returns `None` before the first heartbeat and after [`Self::end`].
    #[must_use]
    pub fn since(&self, now: Time) -> Option<Duration> {
        let at = Some(self.0.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(now.0.saturating_sub(Duration::from_nanos(at)))
    }

    /// Records heartbeats for as long as the runtime polls this future. Prefers times at which the runtime wakes up
    /// anyway.
    pub async fn of_runtime(self, clock: Clock, moments: Moments) {
        loop {
            self.beat(clock.now());
            sleep_until(moments.next(Instant::now(), RUNTIME_BEAT_EVERY)).await;
        }
    }
}
