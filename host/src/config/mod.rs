//! The settings of the host and its coordinators.
//!
//! A setting is looked up on the command line, then in a `BATON_…` variable, then in `baton.toml`. If it is in none of
//! these, its default applies. Each source becomes a [`Layer`] of unparsed values with their [`Origin`]s. Errors can
//! therefore name the place to fix, and `--print-config` can show the origin of each value. A [`Config`] has passed all
//! checks that do not need the store.
//!
//! In the file, top-level keys apply to all coordinators. A table `[coordinators.NAME]` overrides these keys for one
//! coordinator. NAME is the coordinator's election, unless the table sets another election. A coordinator's
//! environment, configuration and secrets are multi-value settings: values from different layers are merged by name.
//!
//! ```toml
//! store = "azure://myaccount/leases"
//! lease = "20s"
//!
//! [coordinators.nightly-report]
//! module = "report.wasm"            # relative to this file's folder
//! restart = "on-failure"
//! config-var = { region = "west", batch = 100 }
//! secret = { token = { file = "/run/secrets/token" } }
//! ```

mod environment;
mod file;
mod folders;
mod layer;
mod misspelt;
mod path_isolation;
mod reload_diff;
mod resolve;
mod secrets;
mod settings;
mod table;
mod untrusted;
mod value;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use baton_election::{ElectionName, OnDone, Schedule, Timing};

pub use environment::Environment;
pub use layer::{Layer, Origin};
pub use misspelt::Misspelt;
pub use path_isolation::TrustedPath;
pub use resolve::{
    CheckSettings, DoctorSettings, resolve, resolve_check, resolve_compile_timeout, resolve_examined, resolve_store,
    resolve_store_and_token, resolve_store_to_fill,
};
pub use settings::{Key, Setting};
pub(crate) use settings::{Shape, removed, renamed};
pub(crate) use untrusted::READERS;
pub(crate) use value::switch;
pub use value::{duration, election, election_or_shard};

use baton_admin::AdminSettings;
use baton_modules::ModuleSource;
use baton_node::links::PeerSettings;
use baton_node::maintenance::ScheduledEvents;
use baton_node::node::NodeChoice;
use baton_node::telemetry::Format;
use baton_runtime::{Folder, Grants, Limits, Secret, SecretSource};
use baton_store::Digest;
use baton_store::Labels;
use baton_store::StoreUrl;
use baton_store::state;
use table::SettingRow;

/// The checked settings of `baton run`.
#[derive(Clone)]
pub struct Config {
    /// The lease store.
    pub store: StoreUrl,
    /// True to create the store's container if it is missing.
    pub create: bool,
    /// True to run coordinators that use folders even if this kernel cannot confine them to these folders. The kernel's
    /// confinement is a second barrier, which matters only if a coordinator escapes the WebAssembly sandbox.
    pub allow_weaker_isolation: bool,
    /// The source of the node's id.
    pub node: NodeChoice,
    /// Format of log lines.
    pub log_format: Format,
    /// The admin endpoint.
    pub admin: AdminSettings,
    /// Source of scheduled maintenance events for this machine.
    pub scheduled_events: ScheduledEvents,
    /// True to reclaim the leases of exited hosts on this machine, and to let other hosts reclaim this host's leases.
    pub witness: bool,
    /// Folder for the persistent files of this user's hosts; `None` without a home folder.
    pub state: Option<PathBuf>,
    /// True to open links to the other nodes that use the store.
    pub links: bool,
    /// Address for links with nodes on other machines; `None` to disable such links. Ignored unless [`Self::links`] is
    /// set.
    pub peer: Option<PeerSettings>,
    /// Labels of this node.
    pub labels: Labels,
    /// Maximum number of elections that this node may lead; `None` for no limit.
    pub max_leading: Option<usize>,
    /// Folder for compiled modules; `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Path of the key that authenticates the modules that this user's hosts have compiled; `None` without a home
    /// folder.
    pub cache_key: Option<PathBuf>,
    /// Path of the configuration file. The file may not exist.
    pub file: PathBuf,
    /// The coordinators: at least one, each with a different election.
    pub coordinators: Vec<Coordinator>,
    /// Variables whose names are probably misspelled names of settings.
    pub misspelt: Vec<Misspelt>,
    rows: Vec<SettingRow>,
    /// The command line and the environment, from which [`Self::again`] resolves the settings again.
    given: (Layer, Environment),
}

impl Config {
    /// Formats a table of all settings with their values and origins. Secrets are hidden.
    #[must_use]
    pub fn table(&self) -> String {
        table::render(&self.rows)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table())
    }
}

/// The settings of one coordinator.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// The election that decides on which node the coordinator runs.
    pub election: ElectionName,
    /// The source of the coordinator's modules.
    pub module: ModuleSource,
    /// Priority of this node, which sets the delay before it acquires a free lease. The highest priority has no delay.
    pub priority: u8,
    /// True if this node, while it leads, should hand over to a node with a higher priority.
    pub preempt: bool,
    /// The lease duration, the grace period, and the times derived from them.
    pub timing: Timing,
    /// Delay between the end of an instance and the next term under the same lease.
    pub pause: Duration,
    /// The action to take after an instance has finished.
    pub on_done: OnDone,
    /// The schedule of the runs, if any.
    pub schedule: Option<Schedule>,
    /// The number of shards; 1 for an election without shards.
    pub shards: u16,
    /// Maximum time between an instance's start and its first progress report, and between two progress reports; `None`
    /// for no limit.
    pub stall_after: Option<Duration>,
    /// The probation period: the time for which a new version must run without failing.
    pub probation: Duration,
    /// Digests of the modules that may run; if empty, any module may run.
    pub pins: Vec<Digest>,
    /// Public key files. A module must be signed with one of these keys; if empty, modules need no signature.
    pub trust: Vec<PathBuf>,
    /// Maximum CPU time for compiling a module.
    pub compile_timeout: Duration,
    /// The HTTP servers to which the coordinator may send requests.
    pub allow_http: Grants,
    /// File with additional CA certificates for the coordinator's HTTP requests, if any.
    pub http_ca: Option<PathBuf>,
    /// Maximum number of requests that an instance may have in flight.
    pub max_requests: usize,
    /// Limits on the host resources that an instance may use.
    pub limits: Limits,
    /// Limits on the coordinator's state.
    pub state_limits: state::Limits,
    /// The coordinator's arguments, without its name.
    pub arguments: Vec<String>,
    /// The coordinator's environment variables, sorted by name.
    pub env: Vec<(String, Secret)>,
    /// The coordinator's configuration, sorted by name.
    pub config: Vec<(String, String)>,
    /// The sources of the coordinator's secrets, sorted by name. These names do not occur in `env` or `config`.
    pub secrets: Vec<SecretSource>,
    /// The folders that the coordinator may use, each with its own guest path.
    pub folders: Vec<Folder>,
}

/// A configuration error: where it is, what is wrong, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    place: String,
    problem: String,
}

impl ConfigError {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.into(), problem: problem.into() }
    }

    /// Creates the error for an argument that is not a setting.
    #[must_use]
    pub fn of_argument(name: &str, problem: String) -> Self {
        Self::new(name, problem)
    }

    /// True if the error is in this flag or argument.
    #[must_use]
    pub fn is_of_flag(&self, key: Key) -> bool {
        self.place == key.flag()
    }

    fn at(key: Key, origin: &Origin, problem: impl Into<String>) -> Self {
        Self::new(origin.place(key), problem)
    }
}

#[cfg(test)]
mod tests;
