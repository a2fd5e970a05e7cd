//! What the host is told to do, and by whom.
//!
//! A setting comes from the command line, else from a variable `BATON_…`, else from `baton.toml`, else
//! from its default. All four are brought to one form, a [`Layer`] of texts that know their [`Origin`],
//! and only then parsed, so that every error names the place that is to be mended and
//! `--print-config` can say where each value came from. [`Config`] holds what has passed every check
//! that needs no store.
//!
//! In the file, keys at the top hold for all coordinators, and a table `[coordinators.NAME]` overrides
//! them for its own; NAME is the election unless the table says otherwise. Environment, configuration and
//! secrets of a coordinator are settings with many values: their layers are merged, name by name.
//!
//! ```toml
//! store = "azure://myaccount/leases"
//! lease = "20s"
//!
//! [coordinators.nightly-report]
//! module = "report.wasm"            # seen from this file's folder
//! restart = "on-failure"
//! config-var = { region = "west", batch = 100 }
//! secret = { token = { file = "/run/secrets/token" } }
//! ```

mod again;
mod environment;
mod file;
mod folders;
mod foreign;
mod key;
mod layer;
mod misspelt;
mod reach;
mod resolve;
mod secrets;
mod table;
mod value;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use baton_election::OnDone;
use baton_election::{ElectionName, Timing};

pub use environment::Environment;
pub(crate) use foreign::READERS;
pub use key::Key;
pub(crate) use key::Shape;
pub(crate) use key::renamed;
pub use layer::{Layer, Origin};
pub use misspelt::Misspelt;
pub use reach::Relied;
pub use resolve::{
    Examined, resolve, resolve_compile_timeout, resolve_examined, resolve_store, resolve_store_and_token,
    resolve_store_to_fill,
};
pub(crate) use value::switch;
pub use value::{duration, election};

use crate::admin::AdminSettings;
use crate::links::PeerSettings;
use crate::maintenance::ScheduledEvents;
use crate::node::NodeChoice;
use crate::telemetry::Format;
use baton_modules::ModuleSource;
use baton_runtime::{Folder, Grants, Limits, Secret, SecretSource};
use baton_store::Digest;
use baton_store::Labels;
use baton_store::StoreUrl;
use baton_store::state;
use table::SettingRow;

/// All that `baton run` was told, checked.
#[derive(Clone)]
pub struct Config {
    /// Where the lease store is.
    pub store: StoreUrl,
    /// Make what the store needs, such as its container, where it is missing.
    pub create: bool,
    /// Run coordinators with folders though this kernel cannot keep them to these if they break out of their sandbox.
    pub allow_weaker_isolation: bool,
    /// Who this host is.
    pub node: NodeChoice,
    /// How lines look on stderr.
    pub log_format: Format,
    /// How the admin endpoint is to be.
    pub admin: AdminSettings,
    /// Who is asked what is planned for the machine.
    pub scheduled_events: ScheduledEvents,
    /// Take the lease of a host of this machine that is gone, without waiting for it to run out, and let others do so.
    pub witness: bool,
    /// Where this user's hosts keep what outlives a run on this machine; none where there is no folder for it.
    pub state: Option<PathBuf>,
    /// Tell the other nodes of the store, and hear of them: those of this machine, where the store is for its hosts.
    pub links: bool,
    /// Where it listens for those of other machines; none where it tells these nothing. Without [`Self::links`] it does not
    /// count.
    pub peer: Option<PeerSettings>,
    /// What people know this node by.
    pub labels: Labels,
    /// How many elections it leads at the most; none for as many as it takes part in.
    pub max_leading: Option<usize>,
    /// The folder for compiled modules; none for no cache.
    pub cache: Option<PathBuf>,
    /// The file of the key by which this user's hosts know what they have compiled; none where there is no folder for
    /// it.
    pub cache_key: Option<PathBuf>,
    /// Path of the configuration file, which need not exist.
    pub file: PathBuf,
    /// What to run: at least one, each for another election.
    pub coordinators: Vec<Coordinator>,
    /// Variables that are none of a setting, and look as if they were meant to be.
    pub misspelt: Vec<Misspelt>,
    rows: Vec<SettingRow>,
    /// What all of it was made of, the file aside.
    given: (Layer, Environment),
}

impl Config {
    /// Each setting with its value and its origin as a table for people, secrets hidden.
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

/// One coordinator to run, and how.
#[derive(Clone, Debug)]
pub struct Coordinator {
    /// The election that decides where it runs.
    pub election: ElectionName,
    /// Where its modules come from.
    pub module: ModuleSource,
    /// How early it takes a lease that is free: the highest at once.
    pub priority: u8,
    /// Whether it hands over to a healthy node of a higher one while it leads.
    pub preempt: bool,
    /// The lease's length, the grace, and what follows from them.
    pub timing: Timing,
    /// From an instance that is done to the next term under the same lease.
    pub pause: Duration,
    /// What follows when an instance is done.
    pub on_done: OnDone,
    /// How long an instance may go without progress, counted from its start; none for as long as it likes.
    pub stall_after: Option<Duration>,
    /// How long a new version is on probation: until then it may turn out to be bad.
    pub probation: Duration,
    /// The folder for the core dumps of instances that trap.
    pub core_dumps: Option<PathBuf>,
    /// The file for the profile of the last instance. No other coordinator has the same.
    pub profile: Option<PathBuf>,
    /// The modules that may run, and no others; empty for any.
    pub pins: Vec<Digest>,
    /// Files of public keys, of which one must have signed a module; empty for none.
    pub trust: Vec<PathBuf>,
    /// The processor time that compiling a module may take.
    pub compile_timeout: Duration,
    /// The servers that it may ask over HTTP.
    pub allow_http: Grants,
    /// A file of certificates, by which such servers may be certified.
    pub http_ca: Option<PathBuf>,
    /// The requests that an instance may have in flight.
    pub max_requests: usize,
    /// What an instance may use of the host.
    pub limits: Limits,
    /// The state that it may keep.
    pub state_limits: state::Limits,
    /// Its arguments, after its name.
    pub arguments: Vec<String>,
    /// Its environment variables, sorted by name.
    pub env: Vec<(String, Secret)>,
    /// Its configuration, sorted by name.
    pub config: Vec<(String, String)>,
    /// Where its secrets are, sorted by name. No name is also one of `env` or `config`.
    pub secrets: Vec<SecretSource>,
    /// The folders that it may use, each at another place.
    pub folders: Vec<Folder>,
}

/// A wrong configuration: where it is, what is wrong and what to do.
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

    /// For what stands on the command line without being a setting.
    #[must_use]
    pub fn of_argument(name: &str, problem: String) -> Self {
        Self::new(name, problem)
    }

    /// Whether it is this flag or argument that is to be mended.
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
