//! Reports of a follower, and their receiver.

use std::time::Duration;

use baton_store::Digest;

/// Receives a follower's reports. Must return soon.
pub trait ReportSink: Send + Sync {
    /// Receives one report.
    fn report(&self, report: Report);
}

/// A report of a follower. A lasting condition is reported once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// There is nothing to run yet, because nothing was ever pushed.
    NothingPushed {
        /// The condition, and what to do.
        reason: String,
    },
    /// A version takes long to fetch.
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
        /// True if the code was in the cache.
        cached: bool,
        /// Duration of the preparation.
        took: Duration,
    },
    /// The version that the source names cannot run here. The previous version stays, if there is one.
    Refused {
        /// Its digest, if it has one.
        module: Option<Digest>,
        /// The reason, and what to do.
        error: String,
        /// The version that this node can run instead, if any.
        instead: Option<Digest>,
    },
    /// The newest version is rejected, and no node runs it.
    Rejected {
        /// Its digest.
        module: Digest,
        /// The reason for the rejection.
        reason: String,
        /// The version that can run instead, if any.
        instead: Option<Digest>,
    },
    /// The source does not answer. The follower keeps trying.
    Unreachable {
        /// The error of the source, or of the connection to it.
        error: String,
    },
    /// The source answers again.
    Reachable {
        /// Duration of the outage.
        after: Duration,
    },
    /// Another error.
    Error {
        /// The error, and what to do.
        error: String,
    },
}
