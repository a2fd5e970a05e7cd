//! The times by which a holder must act, as fractions of the lease's length D.
//!
//! All times are counted from a moment just before the last successful request (acquire or renew) was sent. The store
//! starts to count D only when it carries out the request, so the lease always expires later in the store than these
//! times suggest.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time on the host's clock: the elapsed time according to the fastest of the host's clocks. It never goes
/// backwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub Duration);

impl Time {
    /// The time that has passed since `earlier`; zero if `earlier` is later.
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

/// Polling interval of a standby, ±25%.
pub const POLL: Duration = Duration::from_secs(1);

/// The longest polling interval of a standby.
pub const LONGEST_POLL: Duration = POLL.saturating_add(Duration::from_millis(250));

/// Time that a host may spend on its last log messages when it ends its own process at 0.93 D: a third of the rest of
/// the lease (0.07 D). `room` is the time from the deadline (0.8 D) to 0.93 D, from which this function computes D.
pub fn last_words_within(room: Duration) -> Duration {
    room * 7 / 13 / 3
}

/// The times within a lease of a given length, checked for consistency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Timing {
    lease: Duration,
    grace: Duration,
}

/// Error for a lease length that the store does not support, or that is too short for the memory limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The store supports no lease of this length.
    #[error("a lease of {lease:?} is not possible on this store: choose {min:?} to {max:?}")]
    Lease {
        /// The requested length.
        lease: Duration,
        /// The shortest lease that the store supports.
        min: Duration,
        /// The longest lease that the store supports.
        max: Duration,
    },
    /// Freeing an instance's memory may take longer than the time between the deadline and 0.93 D.
    #[error(
        "freeing {} MiB of guest memory may take {drop:?}, but a lease of {lease:?} leaves {room:?} before the host ends itself: raise `--lease` or lower `--max-memory`", memory.div_ceil(1 << 20)
    )]
    Memory {
        /// The memory limit, in bytes.
        memory: u64,
        /// The time that freeing this much memory may take.
        drop: Duration,
        /// The time between the deadline and 0.93 D.
        room: Duration,
        /// The lease's length.
        lease: Duration,
    },
}

impl Timing {
    /// Checks that the store supports a lease of this length (from `min` to `max`). Also checks that the lease leaves
    /// enough time to free an instance of `memory` bytes (0.15 s plus 0.2 s per GiB) before the host would end itself.
    ///
    /// # Errors
    /// [`TimingError`] if one of the checks fails.
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

    /// The time that an instance may take to stop while the lease is not at risk.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// D/6: the longest time from a successful request to the next renewal.
    pub fn renew_after(&self) -> Duration {
        self.lease / 6
    }

    /// The time of the next renewal after a successful request that was sent at `sent`. A host renews all of its leases
    /// together, at multiples of D/12 plus the host's `phase`. The result is the last of these times that is at most
    /// D/6 after `sent`. Renewing together saves wake-ups, and saves writes if the store can batch them. Other hosts
    /// have other phases.
    pub fn renew_at(&self, sent: Time, phase: u64) -> Time {
        let latest = sent + self.renew_after();
        let step = (self.lease / 12).as_nanos().max(1);
        let since = (latest.0.as_nanos() + step - u128::from(phase) % step) % step;
        latest - Duration::from_nanos(since as u64)
    }

    /// D/12, but at least 50 ms and at most 2 s: the timeout for one attempt.
    pub fn try_timeout(&self) -> Duration {
        try_timeout(self.lease)
    }

    /// Returns the shortest lease, in whole seconds within the store's range, whose timeout per attempt is at least
    /// twice `took`, the store's response time. If there is no such lease, returns the shortest lease that has the
    /// longest possible timeout per attempt. Returns `None` if even this timeout does not exceed `took`.
    pub fn lease_for(took: Duration, (min, max): (Duration, Duration)) -> Option<Duration> {
        let shortest = |enough: Duration| {
            let seconds = min.as_secs()..=max.as_secs();
            seconds.map(Duration::from_secs).find(|lease| (min..=max).contains(lease) && try_timeout(*lease) >= enough)
        };
        let longest = try_timeout(max);
        shortest(took * 2).or_else(|| (longest > took).then(|| shortest(longest)).flatten())
    }

    /// D/60 to D/15: the wait between a failed attempt and the next.
    pub fn retry_range(&self) -> (Duration, Duration) {
        (self.lease / 60, self.lease / 15)
    }

    /// 0.7 D: if the lease has not been renewed by then, the instance is asked to stop.
    pub fn at_risk_after(&self) -> Duration {
        self.lease * 7 / 10
    }

    /// 0.8 D: effects are refused, and the instance is killed.
    pub fn deadline_after(&self) -> Duration {
        self.lease * 8 / 10
    }

    /// 0.93 D: if the instance is not gone by then, the host ends itself.
    pub fn abort_after(&self) -> Duration {
        self.lease * 93 / 100
    }

    /// The time that a killed instance may take to be gone: from the deadline to 0.93 D.
    pub fn kill_timeout(&self) -> Duration {
        self.abort_after() - self.deadline_after()
    }

    /// A quarter of [`kill_timeout`](Self::kill_timeout). If a killed instance has not been checked for longer than
    /// this, the host was paused. Two checks are usually half of this time apart.
    pub fn noticed_pause(&self) -> Duration {
        self.kill_timeout() / 4
    }

    /// Time that a host may spend on its last log messages when it ends its own process: see [`last_words_within`].
    pub fn last_words(&self) -> Duration {
        last_words_within(self.kill_timeout())
    }

    /// The longest time without a leader after a crash: D plus a standby's longest polling interval.
    pub fn takeover_after_crash(&self) -> Duration {
        self.lease + LONGEST_POLL
    }

    /// The longest pause that is safe even if the host does not notice the pause. Even if the pause delays the end of
    /// the host, no instance outlives the lease. The result is the part of D that is left after 0.93 D and the last
    /// log messages, minus D/100 for late wake-ups and clock errors.
    pub fn tolerated_pause(&self) -> Duration {
        self.lease - self.abort_after() - self.last_words() - self.lateness()
    }

    /// The amount (‰, rounded down) by which this host's clock may run slower than the store's. A slow clock stretches
    /// D; the slack in [`tolerated_pause`](Self::tolerated_pause) absorbs it.
    pub fn tolerated_drift(&self) -> u32 {
        let whole = (self.lease - self.lateness()).as_nanos().max(1);
        u32::try_from(self.tolerated_pause().as_nanos() * 1000 / whole).unwrap_or(u32::MAX)
    }

    fn lateness(&self) -> Duration {
        self.lease / 100
    }

    /// The longest store outage that a leader survives. The result is 0.7 D minus these durations:
    ///
    /// - the longest time since the last renewal when the outage starts (D/6)
    /// - the timeout of an attempt that is under way when the outage ends ([`try_timeout`](Self::try_timeout))
    /// - the longest wait before the next attempt (D/15)
    pub fn tolerated_outage(&self) -> Duration {
        self.at_risk_after() - self.renew_after() - self.try_timeout() - self.retry_range().1
    }
}

/// The time at which a host ends its own process because an instance is neither gone nor dying. This time is usually
/// `abort_at`. If the whole host was paused and woke up at `woken`, after the `deadline`, the time allowed for the kill
/// starts again at the wake-up. This is safe, because the gate refused all effects during the pause.
#[must_use]
pub fn overdue_at(deadline: Time, abort_at: Time, woken: Option<Time>) -> Time {
    let woken = woken.filter(|woken| *woken >= deadline);
    woken.map_or(abort_at, |woken| abort_at.max(woken + abort_at.since(deadline)))
}

fn try_timeout(lease: Duration) -> Duration {
    (lease / 12).clamp(Duration::from_millis(50), Duration::from_secs(2))
}
