//! The reports of a follower, and the trait of their receiver.

use std::time::Duration;

use baton_store::Digest;

/// Receives a follower's reports. Must not block.
pub trait FollowerReportSink: Send + Sync {
    /// Receives one report.
    fn report(&self, report: FollowerReport);
}

/// A follower's report. A lasting condition is reported only once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowerReport {
    /// Nothing can run yet, because no module has ever been pushed.
    NothingPushed {
        /// Human-readable description, with advice to the operator.
        reason: String,
    },
    /// Fetching a version is taking a long time.
    Pulling {
        /// Digest of the version.
        module: Digest,
    },
    /// Compiling a version is taking a long time.
    Compiling {
        /// Digest of the version.
        module: Digest,
    },
    /// A version is ready to start: it is verified, compiled and linked.
    Ready {
        /// Digest of the version.
        module: Digest,
        /// True if the compiled code was in the cache.
        cached: bool,
        /// Duration of the preparation.
        took: Duration,
    },
    /// The version that the source names cannot run here. The node keeps using the previous version, if there is one.
    Refused {
        /// Digest of the version, if the source delivered a module.
        module: Option<Digest>,
        /// The reason, with advice to the operator.
        error: String,
        /// The version that this node can run instead, if any.
        instead: Option<Digest>,
    },
    /// The newest version is rejected, and no node runs it.
    Rejected {
        /// Digest of the version.
        module: Digest,
        /// The reason for the rejection.
        reason: String,
        /// The version that can run instead, if any.
        instead: Option<Digest>,
    },
    /// The source does not respond. The follower keeps trying.
    Unreachable {
        /// The error of the source, or of the connection to the source.
        error: String,
    },
    /// The source responds again.
    Reachable {
        /// Duration of the outage.
        after: Duration,
    },
    /// Another error.
    Error {
        /// The error, with advice to the operator.
        error: String,
    },
}
