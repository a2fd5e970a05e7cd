//! Counters of an election. All counters are atomic, because the threads that update them also renew leases and kill
//! instances, and must not wait for a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_election::{End, Op, Reply, StoreError};
use serde::{Serialize, Serializer};

use crate::view::NodeView;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All variants, in order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns this variant's label value in metrics.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// A request to the lease store.
    StoreOp {
        /// Read the lease and the record.
        Read => "read",
        /// Find the highest term in any object of the store.
        Recall => "recall",
        /// Read and recall in one request.
        Survey => "survey",
        /// Create the record.
        Create => "create",
        /// Acquire the lease.
        Acquire => "acquire",
        /// Take over a dead holder's lease, using its lease id.
        Reclaim => "reclaim",
        /// Renew the lease.
        Renew => "renew",
        /// Write the record.
        Write => "write",
        /// Release the lease.
        Release => "release",
    }
}

words! {
    /// The response from the lease store.
    StoreResult {
        /// The request succeeded.
        Ok => "ok",
        /// The request was refused as part of a normal election: another node holds the lease or was faster.
        Refused => "refused",
        /// The outcome is unknown, because there was no response or the response was ambiguous.
        Unknown => "unknown",
        /// The request failed, and retries will fail until an operator fixes something.
        Misconfigured => "misconfigured",
    }
}

words! {
    /// A change of leader, as one node observes it.
    Transition {
        /// This node became the leader.
        Elected => "elected",
        /// Another node became the leader.
        Other => "other",
        /// This node released its leadership.
        Released => "released",
        /// This node lost its leadership.
        Lost => "lost",
    }
}

words! {
    /// The outcome of an instance, as in the `ended` event.
    Ended {
        /// The coordinator had finished its work.
        Done => "done",
        /// The instance failed, and a retry may help.
        Failed => "failed",
        /// The instance failed, and a retry on this node would not help.
        Fatal => "fatal",
        /// The node could not start the instance.
        Unable => "unable",
        /// The host killed the instance.
        Killed => "killed",
        /// Another term claimed the coordinator's state, or an operator changed that state.
        Superseded => "superseded",
    }
}

impl StoreResult {
    pub(super) fn of(result: &Result<Reply, StoreError>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(StoreError::Held | StoreError::Lost(_) | StoreError::Conflict) => Self::Refused,
            Err(StoreError::Unknown(_)) => Self::Unknown,
            Err(StoreError::Misconfigured(_)) => Self::Misconfigured,
        }
    }
}

impl From<&End> for Ended {
    fn from(end: &End) -> Self {
        match end {
            End::Done => Self::Done,
            End::Failed(_) | End::Crashed(_) => Self::Failed,
            End::Fatal(_) => Self::Fatal,
            End::Unable(_) => Self::Unable,
            End::Killed => Self::Killed,
            End::Superseded { .. } => Self::Superseded,
        }
    }
}

impl Serialize for Ended {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl Transition {
    /// Returns the change of leader between two views, if there is one. A new term of the same leader does not count.
    /// The first other leader that the node sees after its start does not count either.
    pub(super) fn between(before: &NodeView, after: &NodeView) -> Option<Self> {
        match (before.leads, after.leads) {
            (None, Some(_)) => Some(Self::Elected),
            (Some(_), None) if after.was_lost => Some(Self::Lost),
            (Some(_), None) => Some(Self::Released),
            _ if before.has_looked && after.followed.is_some() && after.followed != before.followed => {
                Some(Self::Other)
            }
            _ => None,
        }
    }
}

impl From<&Op> for StoreOp {
    fn from(op: &Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Recall => Self::Recall,
            Op::Survey => Self::Survey,
            Op::Create { .. } => Self::Create,
            Op::Acquire { .. } => Self::Acquire,
            Op::Reclaim { .. } => Self::Reclaim,
            Op::Renew { .. } => Self::Renew,
            Op::Write { .. } => Self::Write,
            Op::Release { .. } => Self::Release,
        }
    }
}

/// All counters of one election since the host started.
#[derive(Debug, Default)]
pub struct Counts {
    requests: [[AtomicU64; StoreResult::ALL.len()]; StoreOp::ALL.len()],
    transitions: [AtomicU64; Transition::ALL.len()],
    starts: AtomicU64,
    ends: [AtomicU64; Ended::ALL.len()],
    dropped: AtomicU64,
    /// Durations of successful renewals.
    pub renewals: Histogram,
    /// Times from the kill of an instance until its process was reaped.
    pub kills: Histogram,
    /// Times without an instance while one version replaced another.
    pub swaps: Histogram,
}

impl Counts {
    pub(crate) fn asked(&self, what: StoreOp, result: &Result<Reply, StoreError>, took: Duration) {
        let answered = StoreResult::of(result);
        add(&self.requests[what as usize][answered as usize], 1);
        if what == StoreOp::Renew && answered == StoreResult::Ok {
            self.renewals.observe(took);
        }
    }

    pub(super) fn changed(&self, transition: Transition) {
        add(&self.transitions[transition as usize], 1);
    }

    pub(super) fn started(&self) {
        add(&self.starts, 1);
    }

    /// `killed` is the time since the host killed the instance, if it did.
    pub(crate) fn ended(&self, how: Ended, killed: Option<Duration>) {
        add(&self.ends[how as usize], 1);
        if let Some(took) = killed {
            self.kills.observe(took);
        }
    }

    pub(crate) fn swapped(&self, gap: Duration) {
        self.swaps.observe(gap);
    }

    pub(crate) fn dropped(&self, lines: u64) {
        add(&self.dropped, lines);
    }

    /// Returns the number of requests of this kind with this result.
    #[must_use]
    pub fn requests(&self, what: StoreOp, how: StoreResult) -> u64 {
        get(&self.requests[what as usize][how as usize])
    }

    /// Returns the number of transitions of this kind.
    #[must_use]
    pub fn transitions(&self, transition: Transition) -> u64 {
        get(&self.transitions[transition as usize])
    }

    /// Returns the number of started instances.
    #[must_use]
    pub fn starts(&self) -> u64 {
        get(&self.starts)
    }

    /// Returns the number of instances with this outcome.
    #[must_use]
    pub fn ends(&self, how: Ended) -> u64 {
        get(&self.ends[how as usize])
    }

    /// Returns the number of lines of instances' output that were dropped.
    #[must_use]
    pub fn lines_dropped(&self) -> u64 {
        get(&self.dropped)
    }
}

/// Upper bounds of the buckets, in seconds. One more bucket has no upper bound. The bounds are dense around typical
/// renewal times, so that percentiles reveal a regression.
pub const BOUNDS: [f64; 23] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Histogram {
    fn observe(&self, took: Duration) {
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len());
        add(&self.buckets[bucket], 1);
        add(&self.microseconds, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Returns the upper bound (in seconds) and the count of each bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        BOUNDS.into_iter().chain([f64::INFINITY]).zip(self.buckets.iter().map(get))
    }

    /// Returns the sum of all durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(get(&self.microseconds))
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_result() {
        let counts = Counts::default();
        let errors = [StoreError::Unknown(String::new()), StoreError::Misconfigured(String::new()), StoreError::Held];
        counts.asked(StoreOp::Read, &Ok(Reply::Done), Duration::ZERO);
        errors.into_iter().for_each(|error| counts.asked(StoreOp::Read, &Err(error), Duration::ZERO));
        let read = StoreResult::ALL.iter().map(|how| counts.requests(StoreOp::Read, *how)).collect::<Vec<_>>();
        assert_eq!(read, [1, 1, 1, 1]);
        assert_eq!(counts.requests(StoreOp::Renew, StoreResult::Ok), 0);
    }

    #[test]
    fn kills_are_timed_and_ends_are_counted_by_outcome() {
        let counts = Counts::default();
        counts.ended(Ended::Done, None);
        counts.ended(Ended::Killed, Some(Duration::from_millis(3)));
        counts.ended(Ended::Failed, None);
        assert_eq!(Ended::ALL.iter().map(|how| counts.ends(*how)).collect::<Vec<_>>(), [1, 1, 0, 0, 1, 0]);
        let kills: Vec<(f64, u64)> = counts.kills.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(kills, [(0.003, 1)]);
        assert_eq!(counts.kills.sum(), Duration::from_millis(3));
    }
}
