//! What is counted in an election. The threads that renew and kill count here: none of it waits for a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_election::{Reply, StoreError};

/// Declares what something is counted by: each with the word that metrics have for it.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident => $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word for it.
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
    /// What the lease store was asked for.
    Asked {
        /// A reading of lease and record.
        Read => "read",
        /// The highest term that anything names.
        Recall => "recall",
        /// Both of these at once.
        Survey => "survey",
        /// A new record.
        Create => "create",
        /// The lease.
        Acquire => "acquire",
        /// The lease of who is gone, under its id.
        Reclaim => "reclaim",
        /// More of the lease's time.
        Renew => "renew",
        /// Another record.
        Write => "write",
        /// That the lease be free.
        Release => "release",
    }
}

words! {
    /// How the lease store answered.
    Answered {
        /// It did what was asked.
        Ok => "ok",
        /// It did not, for a reason that belongs to an election: another holds the lease, or was faster.
        Refused => "refused",
        /// It may or may not have: no answer, or one that tells nothing.
        Unknown => "unknown",
        /// It did not, and will not until somebody mends something.
        Misconfigured => "misconfigured",
    }
}

words! {
    /// A change of who leads, as one node sees it.
    Transition {
        /// This node leads, and did not before.
        Elected => "elected",
        /// Another node leads, or another than before.
        Other => "other",
        /// This node has given leadership up.
        Released => "released",
        /// This node leads no more, and did not choose to.
        Lost => "lost",
    }
}

words! {
    /// How an instance ended: the outcomes of the event `ended`.
    Ended {
        /// It was done.
        Done => "done",
        /// It failed, and is worth another try.
        Failed => "failed",
        /// It failed, and is not worth another try here.
        Fatal => "fatal",
        /// The node could not start it.
        Unable => "unable",
        /// It was killed.
        Killed => "killed",
        /// Its state was claimed by another.
        Superseded => "superseded",
    }
}

impl Answered {
    pub(super) fn of(result: &Result<Reply, StoreError>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(StoreError::Held | StoreError::Lost(_) | StoreError::Conflict) => Self::Refused,
            Err(StoreError::Unknown(_)) => Self::Unknown,
            Err(StoreError::Misconfigured(_)) => Self::Misconfigured,
        }
    }
}

impl Ended {
    pub(super) fn of(outcome: &str) -> Self {
        Self::ALL.iter().copied().find(|ended| ended.word() == outcome).unwrap_or(Self::Failed)
    }
}

/// All that is counted in one election since the host has started.
#[derive(Debug, Default)]
pub struct Counts {
    requests: [[AtomicU64; Answered::ALL.len()]; Asked::ALL.len()],
    transitions: [AtomicU64; Transition::ALL.len()],
    starts: AtomicU64,
    ends: [AtomicU64; Ended::ALL.len()],
    dropped: AtomicU64,
    /// How long renewals took that the store has answered.
    pub renewals: Histogram,
    /// From a kill until the instance was gone.
    pub kills: Histogram,
    /// How long there was no instance when one version took another's place.
    pub swaps: Histogram,
}

impl Counts {
    pub(super) fn asked(&self, what: Asked, result: &Result<Reply, StoreError>, took: Duration) {
        let answered = Answered::of(result);
        add(&self.requests[what as usize][answered as usize], 1);
        if what == Asked::Renew && answered == Answered::Ok {
            self.renewals.observe(took);
        }
    }

    pub(super) fn changed(&self, transition: Transition) {
        add(&self.transitions[transition as usize], 1);
    }

    pub(super) fn started(&self) {
        add(&self.starts, 1);
    }

    /// An instance has ended; if it was killed, so long after that.
    pub(super) fn ended(&self, how: Ended, killed: Option<Duration>) {
        add(&self.ends[how as usize], 1);
        if let Some(took) = killed {
            self.kills.observe(took);
        }
    }

    pub(super) fn swapped(&self, gap: Duration) {
        self.swaps.observe(gap);
    }

    pub(super) fn dropped(&self, lines: u64) {
        add(&self.dropped, lines);
    }

    /// How many requests to the lease store were answered like that.
    #[must_use]
    pub fn requests(&self, what: Asked, how: Answered) -> u64 {
        get(&self.requests[what as usize][how as usize])
    }

    /// How often who leads has changed like that.
    #[must_use]
    pub fn transitions(&self, transition: Transition) -> u64 {
        get(&self.transitions[transition as usize])
    }

    /// How many instances were started.
    #[must_use]
    pub fn starts(&self) -> u64 {
        get(&self.starts)
    }

    /// How many instances ended like that.
    #[must_use]
    pub fn ends(&self, how: Ended) -> u64 {
        get(&self.ends[how as usize])
    }

    /// How many lines of instances were dropped.
    #[must_use]
    pub fn lines_dropped(&self) -> u64 {
        get(&self.dropped)
    }
}

/// The upper bounds of a histogram's buckets, in seconds. What is longer is in one more. They are close together where most
/// renewals are, so that a percentile of these says by itself whether it has got worse.
pub const BOUNDS: [f64; 23] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];

/// How long something took, each time.
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

    /// How many fell into each bucket, beside its upper bound in seconds.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        BOUNDS.into_iter().chain([f64::INFINITY]).zip(self.buckets.iter().map(get))
    }

    /// All together.
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
