//! A module's path from its source to an instance: fetching, verifying, compiling, and choosing the version to run.
//!
//! A source **offers** bytes. Every node **prepares** them: it verifies, compiles and links them ahead of time. The
//! supervisor receives the prepared version as part of its **supply**. A leader that has run a version makes a
//! **judgement** about it, and the election's [`VersionList`] records the judgement for every node.
//!
//! - `source` defines what a source is. The sources are `file`, `oci` and the store itself. `watch` gives hints when
//!   files change, and [`path_watch`] resolves paths.
//! - `follow` prepares the versions that a source names: the newest version that is neither rejected nor refused.
//! - `prepare` turns offered bytes into a module that can be started. `trust` checks pins and signatures, `compile`
//!   runs the compiler process, `artifact` holds the compiled code, and `cache` stores code under a `cache_key`.
//! - `version_list` is the list of an election's versions, and `edit` changes it.

mod artifact;
mod cache;
mod cache_key;
mod compile;
mod edit;
mod file;
mod follow;
mod module_source;
mod oci;
pub mod path_watch;
mod prepare;
mod slow_notice;
mod source;
mod trust;
mod untrusted;
mod version_list;
pub mod watch;

use baton_election::{ModuleVersion, Term};

pub use cache::{Cache, CacheError};
pub use compile::{Assignment, COMPILE_MODULE, Compiler, compile_for_parent};
pub use edit::{EditError, edit_versions, read_versions};
pub use file::FileSource;
pub use follow::{Follower, FollowerConfig, FollowerReport, FollowerReportSink, LoadError, Pace, Prepare};
pub use module_source::{InvalidModuleSource, ModuleSource, is_path};
pub use oci::{InvalidOciReference, OciReference, OciSource, RegistryCredentials};
pub use prepare::{Preparation, PrepareError, Preparer, inspect};
pub use source::{Offer, Source, SourceError};
pub use trust::{Distrust, Trust, TrustError, TrustedKeys, check_election};
pub use untrusted::READERS;
pub use version_list::{
    ListedVersion, Publication, Pushed, RecordedVerdict, RollbackError, RolledBack, VersionList, VersionListError,
};

use baton_runtime::Module;

/// A version that is ready to start: verified, compiled and linked.
#[derive(Clone)]
pub struct PreparedVersion {
    /// Serial of the publication in the election's list. For a module from a file or a registry, the serial that this
    /// process has given to the offer.
    pub serial: u64,
    /// The module's code and digest.
    pub module: Module,
}

impl PreparedVersion {
    /// Converts the version to the elector's type.
    #[must_use]
    pub fn version(&self) -> ModuleVersion {
        ModuleVersion { digest: self.module.digest().to_string(), serial: self.serial }
    }
}

/// The versions that a node could run in an election.
#[derive(Clone, Default)]
pub struct Supply {
    /// The version that this node would run as the leader. Without such a version, the node does not contend for the
    /// lease.
    pub current: Option<PreparedVersion>,
    /// The version to fall back to. Set only while the current version is on probation.
    pub fallback: Option<PreparedVersion>,
}

impl Supply {
    /// Converts the current version and the fallback to the elector's type.
    #[must_use]
    pub fn versions(&self) -> [Option<ModuleVersion>; 2] {
        [&self.current, &self.fallback].map(|prepared| prepared.as_ref().map(PreparedVersion::version))
    }
}

/// A leader's verdict on a version that it has run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// The version that was judged.
    pub version: ModuleVersion,
    /// The term in which the verdict was reached.
    pub term: Term,
    /// The verdict.
    pub verdict: Verdict,
}

/// The result of running a version. The recorder adds the node and the time before it writes the verdict to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The version has passed its probation.
    Good,
    /// The version must no longer run.
    Rejected {
        /// Human-readable reason.
        reason: String,
    },
}
