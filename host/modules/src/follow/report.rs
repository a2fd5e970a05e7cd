//! What a follower has to say to people, and to whom.

use std::time::Duration;

use baton_store::Digest;

/// Takes what a follower says. It must return soon.
pub trait ReportSink: Send + Sync {
    /// Hears of one thing.
    fn report(&self, report: Report);
}

/// What a follower says. What lasts is said once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// There is nothing to run yet: nothing was ever pushed.
    NothingPushed {
        /// That, and what to do.
        reason: String,
    },
    /// A version takes long to come.
    Pulling {
        /// Its digest.
        module: Digest,
    },
    /// A version takes long to compile.
    Compiling {
        /// Its digest.
        module: Digest,
    },
    /// A version can be started: it is verified, compiled and linked.
    Ready {
        /// Its digest.
        module: Digest,
        /// Whether its code was in the cache.
        cached: bool,
        /// How long making it ready took.
        took: Duration,
    },
    /// What the source names cannot run here. What was there before stays, if there was anything.
    Refused {
        /// Its digest; none if there is nothing that has one.
        module: Option<Digest>,
        /// Why, and what to do.
        error: String,
        /// What this node can run all the same; none if there is nothing.
        instead: Option<Digest>,
    },
    /// The newest version is rejected, and no node runs it.
    Rejected {
        /// Its digest.
        module: Digest,
        /// What running the version has shown.
        reason: String,
        /// What can run instead; none if there is nothing.
        instead: Option<Digest>,
    },
    /// The source does not answer. It is tried again without an end.
    Unreachable {
        /// What the source, or the way to it, has answered.
        error: String,
    },
    /// The source answers again.
    Reachable {
        /// How long it had not.
        after: Duration,
    },
    /// Something else is wrong.
    Error {
        /// What, and what to do.
        error: String,
    },
}
