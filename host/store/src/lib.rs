//! What Baton keeps, and where: an election's lease and record, its coordinator's state, and modules.
//!
//! A store answers the elector's requests, each as one atomic step, and never decides anything itself:
//! it does not retry, it does not interpret, and it maps its errors to the elector's [`StoreError`]s by
//! their codes, never by status alone. Each backend passes the one conformance suite.
//!
//! This crate is the lowest of the host's: above the elector, below the runtime of coordinators. So it also has what all
//! of them share: the [`clock`] by which a lease is judged, the one place where time is read; the [`gate`] that every
//! effect of an instance passes, with the watchdog behind it; and where an [`address`] leads.
//!
//! - [`LeaseStore`] is what keeps leases, [`ObjectStore`] what keeps all else, [`OperatorStore`] what is done to them from
//!   outside. The backends of all three are [`sqlite`], [`azure`] and [`memory`]; [`lease`] has the rules of a lease, for those that keep it themselves. An answer is named
//!   for the decision that follows from it.
//! - [`state`] is a coordinator's state. [`ModuleStore`] has the modules under their [`Digest`]s, what an election is told
//!   of them, and what each node says that it has ([`Announcement`]). A module is written once, and compared with its digest
//!   at each reading.
//! - `witness` is how a host of this machine is known to be gone; `reclaiming` goes on with the leases of one that was, in a
//!   store that others reach, too.
//! - [`steering`] is what operators ask of an election's nodes.
//! - [`History`] is what has become of an election's terms, for people alone.
//! - [`edit`] changes an object through conflict and doubt; `recall` is what all of these name of terms.
//! - [`foreign`] reads the bytes of others, as `make fuzz` finds it; each package lists its own readers.

pub mod address;
mod announcement;
#[cfg(feature = "azure")]
pub mod azure;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod digest;
mod doorbell;
pub mod edit;
#[cfg(any(feature = "azure", feature = "sqlite"))]
mod file_events;
mod file_system;
pub mod foreign;
pub mod gate;
mod history;
pub mod jitter;
pub mod lease;
pub mod memory;
mod modules;
mod objects;
mod operator;
mod pace;
mod readers;
mod recall;
#[cfg(feature = "azure")]
mod reclaiming;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod state;
pub mod steering;
mod tidings;
mod url;
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub mod witness;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Reply, StoreError};

pub use announcement::{
    Announcement, GONE, LONGEST_LABEL, Labels, Listens, MOST_LABELS, PeerWord, SILENT, withdraw, withdraw_gone,
};
#[cfg(feature = "azure")]
pub use azure::AzureStore;
pub use digest::{Digest, DigestPrefix, InvalidDigest, InvalidPrefix};
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub use file_events::no_file_events;
pub use file_system::foreign_file_system;
pub use history::{History, HistoryError, KEPT_TERMS, LONGEST_TEXT, PastTerm, read_history, tell_terms};
pub use memory::MemoryStore;
pub use modules::{ANNOUNCEMENTS_AT_ONCE, ModuleStore, StoredModule};
pub use objects::{Listed, Listing, ObjectStore, PlainObject, Reading, VersionedObject};
pub use operator::OperatorStore;
pub use readers::READERS;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use tidings::{Tidings, TidingsReader};
pub use url::{StoreUrl, StoreUrlError};
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub use witness::LockFile;

/// A place that keeps leases and records.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Carries out one request, or says why not. Dropping the future may leave the request under way:
    /// a caller that does so must treat it as [`StoreError::Unknown`].
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError>;

    /// Breaks the lease at once, whoever holds it, for operators. Harmless where it is broken already.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease to break.
    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError>;

    /// The names of all elections, sorted.
    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError>;

    /// Makes what must exist before the first request: the container, the folder. Harmless if it exists.
    async fn create(&self) -> Result<(), StoreError>;

    /// The shortest and the longest lease that it keeps.
    fn lease_range(&self) -> (Duration, Duration);

    /// The step that requests wait for right now, if it takes long, for people: the look-up of a name, say. It outlives the
    /// requests that were given up.
    fn slow_step(&self) -> Option<String> {
        None
    }

    /// Resolves when a reading of `election`, or a renewal of its lease, may show something new that nobody has asked for yet,
    /// once for each reason. A store that finds nothing out by itself never resolves it. Nothing follows from it but that this
    /// is asked for earlier. Cancel safe.
    async fn hint(&self, election: &ElectionName) {
        let _ = election;
        std::future::pending().await
    }
}

/// A store that cannot be used as it is configured.
#[derive(Debug, thiserror::Error)]
#[error("the store {store} cannot be used: {problem}")]
pub struct OpenError {
    store: StoreUrl,
    problem: String,
}

/// Opens the leases of the store at `url` for a host, like [`open`]. One that has a lock file finds out whether others of its
/// machine are gone, and lets them find out whether it is.
///
/// # Errors
/// [`OpenError`] where what it takes is not configured.
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub fn open_leases(url: &StoreUrl, lock_file: Option<Arc<LockFile>>) -> Result<Arc<dyn LeaseStore>, OpenError> {
    match (url, lock_file) {
        #[cfg(feature = "sqlite")]
        (StoreUrl::Sqlite(folder), Some(lock_file)) => {
            Ok(Arc::new(SqliteStore::with_lock_file(folder, sqlite::Boot::current(), lock_file)))
        }
        #[cfg(feature = "azure")]
        (StoreUrl::Azure { .. } | StoreUrl::Azurite { .. }, Some(lock_file)) => {
            let store: Arc<dyn LeaseStore> = open(url)?;
            Ok(Arc::new(reclaiming::Reclaiming::new(store, url, lock_file)))
        }
        _ => open(url).map(|store| store as Arc<dyn LeaseStore>),
    }
}

/// All that a store keeps.
pub trait Store: LeaseStore + ObjectStore + OperatorStore {}

impl<T: LeaseStore + ObjectStore + OperatorStore> Store for T {}

/// Opens the store at `url`. Asks it nothing yet. Each handle has connections and threads of its own: a caller
/// that uses one for leases and another for state has no guest's commit in a renewal's way.
///
/// # Errors
/// [`OpenError`] where what it takes is not configured.
pub fn open(url: &StoreUrl) -> Result<Arc<dyn Store>, OpenError> {
    let unusable = |problem: String| OpenError { store: url.clone(), problem };
    match url {
        #[cfg(feature = "sqlite")]
        StoreUrl::Sqlite(folder) => Ok(Arc::new(SqliteStore::new(folder))),
        #[cfg(not(feature = "sqlite"))]
        StoreUrl::Sqlite(_) => {
            Err(unusable("this program has no SQLite support: build Baton with the feature `sqlite`".to_owned()))
        }
        StoreUrl::Memory => Err(unusable("only the caller that created a memory store can use it".to_owned())),
        #[cfg(feature = "azure")]
        StoreUrl::Azure { account, container } => opened(AzureStore::open(account, container)).map_err(unusable),
        #[cfg(feature = "azure")]
        StoreUrl::Azurite { address, container } => opened(AzureStore::emulator(address, container)).map_err(unusable),
        #[cfg(not(feature = "azure"))]
        StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => {
            Err(unusable("this program has no Azure support: build Baton with the feature `azure`".to_owned()))
        }
    }
}

#[cfg(feature = "azure")]
fn opened(store: Result<AzureStore, azure::CredentialError>) -> Result<Arc<dyn Store>, String> {
    store.map(|store| Arc::new(store) as Arc<dyn Store>).map_err(|error| error.to_string())
}

/// Refuses a length that a store does not keep.
fn check_length(
    length: Duration,
    (shortest, longest): (Duration, Duration),
    place: &dyn Display,
) -> Result<(), StoreError> {
    if (shortest..=longest).contains(&length) {
        return Ok(());
    }
    let (shortest, longest) = (shortest.as_secs(), longest.as_secs());
    Err(StoreError::Misconfigured(format!(
        "a lease of {length:?} is not possible in {place}: choose {shortest} to {longest} s"
    )))
}
