//! Modules on their way to an instance: where they come from, whether they may run here, and which of them
//! does.
//!
//! A source **offers** bytes. They are verified, compiled and linked ahead (**prepared**), on every
//! node; only then does a supervisor hear of them, in its **supply**. What becomes of a version once
//! it runs is **judged**, and the judgement is kept in the election's [`VersionList`] so that every node knows it.
//!
//! - `source` is where modules come from: `file`, `oci`, or the store itself. `watch` has hints that files change, [`way`]
//!   the way to what a path names.
//! - `follow` makes ready what a source names, in the order of the newest that is neither rejected nor refused.
//! - `prepare` makes of offered bytes a module that can be started: `trust` has pins and signatures, `compile` the process
//!   that compiles, `artifact` the code that comes of it, sealed and checked, `cache` the place where that is kept, and
//!   `cache_key` the key that shows that an entry is our own.
//! - `version_list` is what an election is told of its modules, and `edit` how anyone changes that.

mod artifact;
mod cache;
mod cache_key;
mod compile;
mod edit;
mod file;
mod follow;
mod foreign;
mod module_source;
mod oci;
mod prepare;
mod soon;
mod source;
mod trust;
mod version_list;
pub mod watch;
pub mod way;

use baton_election::{ModuleVersion, Term};

pub use cache::{Cache, CacheError};
pub use compile::{Assignment, COMPILE_MODULE, Compiler, compile_for_parent};
pub use edit::{EditError, edit_versions, read_versions};
pub use file::FileSource;
pub use follow::{Follower, Following, KnownBy, LoadError, Pace, Prepare, Report, ReportSink};
pub use foreign::READERS;
pub use module_source::{InvalidModuleSource, ModuleSource, is_path};
pub use oci::{InvalidOciReference, OciReference, OciSource, RegistryCredentials};
pub use prepare::{Preparation, PrepareError, Preparer, inspect};
pub use source::{Offer, Source, SourceError};
pub use trust::{Distrust, Trust, TrustError, TrustedKeys, check_election};
pub use version_list::{
    ListedVersion, Publication, Pushed, RecordedVerdict, RollbackError, RolledBack, VersionList, VersionListError,
};

use baton_runtime::Module;
use baton_store::{Digest, Listens};

/// A version that is ready to be started: verified, compiled and linked.
#[derive(Clone)]
pub struct Prepared {
    /// Which publishing of the module it is.
    pub serial: u64,
    /// Its code, with the digest.
    pub module: Module,
}

impl Prepared {
    /// What the elector knows it by.
    #[must_use]
    pub fn version(&self) -> ModuleVersion {
        ModuleVersion { digest: self.module.digest().to_string(), serial: self.serial }
    }
}

/// What a node could run in an election.
#[derive(Clone, Default)]
pub struct Supply {
    /// What it runs as soon as it leads; none, and it does not contend.
    pub current: Option<Prepared>,
    /// What it runs instead if the current one turns out to be bad. There is one only while that is on
    /// probation.
    pub fallback: Option<Prepared>,
}

impl Supply {
    /// What the elector knows its current one by, and its fallback.
    #[must_use]
    pub fn versions(&self) -> [Option<ModuleVersion>; 2] {
        [&self.current, &self.fallback].map(|prepared| prepared.as_ref().map(Prepared::version))
    }
}

/// What a supervisor lets its node announce.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Presence {
    /// The digest of what its instance runs; none while there is none.
    pub runs: Option<Digest>,
    /// The highest term that it has seen in the election; 0 before the first.
    pub term: Term,
    /// What it was last asked to do, and why it would not take the lease now: as an
    /// [`Announcement`](baton_store::Announcement) has them.
    pub steered: Option<String>,
    /// See above.
    pub stays_out: Option<&'static str>,
    /// Whether its host leads as many other elections as it should.
    pub leads_enough: bool,
    /// Whom it listens to, over a link.
    pub listens: Option<Listens>,
}

/// What a leader has found out about a version by running it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// The version that was judged.
    pub version: ModuleVersion,
    /// The term in which it turned out.
    pub term: Term,
    /// What was found out.
    pub verdict: Verdict,
}

/// What running a version has shown of it. The recorder adds the node and the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its probation is over.
    Good,
    /// It must not run any more.
    Rejected {
        /// Why, for a person.
        reason: String,
    },
}
