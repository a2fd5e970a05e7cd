//! When things must happen, as fractions of the lease's length D.
//!
//! All is counted from the moment before the last successful request (acquire or renew) was sent, so
//! that the store's own count of D, which starts later, always ends later.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A moment on the host's clock: elapsed time, by the largest of what its clocks say. It never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub Duration);

impl Time {
    /// The time that has passed since `earlier`; zero if it is later.
    pub fn since(self, earlier: Time) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, length: Duration) -> Time {
        Time(self.0.saturating_add(length))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, length: Duration) -> Time {
        Time(self.0.saturating_sub(length))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}

/// From one reading of a standby to the next, but for a quarter more or less.
pub const POLL: Duration = Duration::from_secs(1);

/// The longest time from one reading of a standby to the next.
pub const LONGEST_POLL: Duration = POLL.saturating_add(Duration::from_millis(250));

/// How long a host that ends itself may wait for its last words, where there is `room` between its deadline, at 0.8 D, and
/// its end, at 0.93 D: a third of the 0.07 D that are left of the lease then.
pub fn last_words_within(room: Duration) -> Duration {
    room * 7 / 13 / 3
}

/// The moments of a lease of one length, with their relations checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Timing {
    lease: Duration,
    grace: Duration,
}

/// Why a lease's length, a grace and a memory limit do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The lease is shorter or longer than the store can keep.
    #[error("a lease of {lease:?} is not possible on this store: choose {min:?} to {max:?}")]
    Lease {
        /// The length that was asked for.
        lease: Duration,
        /// The shortest that the store takes.
        min: Duration,
        /// The longest that the store takes.
        max: Duration,
    },
    /// Dropping that much memory may take longer than there is between the deadline and 0.93 D.
    #[error(
        "freeing {} MiB of guest memory may take {drop:?}, but a lease of {lease:?} leaves {room:?} before the host ends itself: raise `--lease` or lower `--max-memory`", memory.div_ceil(1 << 20)
    )]
    Memory {
        /// The memory limit in bytes.
        memory: u64,
        /// The time that dropping it may take.
        drop: Duration,
        /// The time there is.
        room: Duration,
        /// The lease's length.
        lease: Duration,
    },
}

impl Timing {
    /// Checks that a lease of that length on a store that takes `min` to `max` leaves time to drop an
    /// instance of `memory` bytes (0.15 s and 0.2 s for each GiB) before the host would end itself.
    ///
    /// # Errors
    /// [`TimingError`] names the relation that does not hold.
    pub fn new(
        lease: Duration,
        (min, max): (Duration, Duration),
        grace: Duration,
        memory: u64,
    ) -> Result<Self, TimingError> {
        if lease < min || lease > max {
            return Err(TimingError::Lease { lease, min, max });
        }
        let drop =
            Duration::from_millis(150).saturating_add(Duration::from_micros(memory.saturating_mul(200_000) >> 30));
        let room = lease * 13 / 100;
        if drop > room {
            return Err(TimingError::Memory { memory, drop, room, lease });
        }
        Ok(Self { lease, grace })
    }

    /// D: the lease's length.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long an instance that is asked to stop may take, while the lease is safe.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// D/6: from one successful request to the next renewal, at most.
    pub fn renew_after(&self) -> Duration {
        self.lease / 6
    }

    /// When to renew after a successful request that was sent then: at the last moment that is not later than D/6 and
    /// is a multiple of D/12 from the host's `phase` on. So the leases of a host are renewed together, which costs fewer
    /// wake-ups and, where the store can take several at once, fewer writes; and not together with those of the other
    /// hosts of its machine.
    pub fn renew_at(&self, sent: Time, phase: u64) -> Time {
        let latest = sent + self.renew_after();
        let step = (self.lease / 12).as_nanos().max(1);
        let since = (latest.0.as_nanos() + step - u128::from(phase) % step) % step;
        latest - Duration::from_nanos(since as u64)
    }

    /// D/12, 50 ms to 2 s: how long one try may take.
    pub fn try_timeout(&self) -> Duration {
        try_timeout(self.lease)
    }

    /// The lease in whole seconds, within a store's `range`, for a store whose answers take as long as `took`: the shortest
    /// under which a try may take twice as long. If there is none, the shortest with the longest tries, if they are long
    /// enough.
    pub fn lease_for(took: Duration, (min, max): (Duration, Duration)) -> Option<Duration> {
        let shortest = |enough: Duration| {
            let seconds = min.as_secs()..=max.as_secs();
            seconds.map(Duration::from_secs).find(|lease| (min..=max).contains(lease) && try_timeout(*lease) >= enough)
        };
        let longest = try_timeout(max);
        shortest(took * 2).or_else(|| (longest > took).then(|| shortest(longest)).flatten())
    }

    /// D/60 to D/15: from a failed try to the next.
    pub fn retry_range(&self) -> (Duration, Duration) {
        (self.lease / 60, self.lease / 15)
    }

    /// 0.7 D: no renewal so far, the instance is asked to stop.
    pub fn at_risk_after(&self) -> Duration {
        self.lease * 7 / 10
    }

    /// 0.8 D: effects are refused and the instance is killed.
    pub fn deadline_after(&self) -> Duration {
        self.lease * 8 / 10
    }

    /// 0.93 D: an instance that is not gone takes its host with it.
    pub fn abort_after(&self) -> Duration {
        self.lease * 93 / 100
    }

    /// How long a kill may take until the instance is gone: from the deadline to 0.93 D.
    pub fn kill_takes(&self) -> Duration {
        self.abort_after() - self.deadline_after()
    }

    /// A quarter of that: whoever looks at what it has killed, and did so for the last time longer ago, was paused. It looks
    /// twice as often.
    pub fn noticed_pause(&self) -> Duration {
        self.kill_takes() / 4
    }

    /// How long a host that ends itself may still speak: see [`last_words_within`].
    pub fn last_words(&self) -> Duration {
        last_words_within(self.kill_takes())
    }

    /// D and the longest wait of a standby for its next reading: how long nobody leads after a crash, at most.
    pub fn takeover_after_crash(&self) -> Duration {
        self.lease + LONGEST_POLL
    }

    /// How late the host's own end may be, of a pause that nothing in it can notice, for what has run to be gone before
    /// the lease: what is left of D by then, but for a hundredth of it, which is for waking late and for what the clocks
    /// cannot tell.
    pub fn tolerated_pause(&self) -> Duration {
        self.lease - self.abort_after() - self.last_words() - self.lateness()
    }

    /// By how many thousandths a host's clocks may be slow of the store's, rounded down: they make D that much longer
    /// here, which what is tolerated of a pause makes up for.
    pub fn tolerated_drift(&self) -> u32 {
        let whole = (self.lease - self.lateness()).as_nanos().max(1);
        u32::try_from(self.tolerated_pause().as_nanos() * 1000 / whole).unwrap_or(u32::MAX)
    }

    fn lateness(&self) -> Duration {
        self.lease / 100
    }

    /// The store outage that a leader survives: 0.7 D less D/6.
    pub fn tolerated_outage(&self) -> Duration {
        self.at_risk_after() - self.renew_after()
    }
}

/// See [`Timing::try_timeout`].
fn try_timeout(lease: Duration) -> Duration {
    (lease / 12).clamp(Duration::from_millis(50), Duration::from_secs(2))
}
