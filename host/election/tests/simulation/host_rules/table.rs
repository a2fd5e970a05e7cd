//! The design's table of times, written down once more, so that a change of the elector's own shows.

use std::time::Duration;

/// What follows from a lease of that length.
#[derive(Clone, Copy)]
pub(super) struct Table(pub Duration);

impl Table {
    /// From a success to the next renewal, at most.
    pub fn renew_after(self) -> Duration {
        self.0 / 6
    }

    /// How long a try may take.
    pub fn try_timeout(self) -> Duration {
        (self.0 / 12).clamp(Duration::from_millis(50), Duration::from_secs(2))
    }

    /// From a failed try to the next.
    pub fn retry_range(self) -> (Duration, Duration) {
        (self.0 / 60, self.0 / 15)
    }

    pub fn at_risk_after(self) -> Duration {
        self.0 * 70 / 100
    }

    pub fn deadline_after(self) -> Duration {
        self.0 * 80 / 100
    }

    pub fn abort_after(self) -> Duration {
        self.0 * 93 / 100
    }

    /// What a kill may take.
    pub fn kill_timeout(self) -> Duration {
        self.abort_after() - self.deadline_after()
    }
}
