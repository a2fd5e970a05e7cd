//! Storage for Baton: each election's lease and record, its coordinator's state, and modules.
//!
//! A store carries out each of the elector's requests as one atomic step. It does not retry requests or interpret the
//! contents of objects. It maps errors to [`StoreError`]s by their error codes, never by the HTTP status alone. Each
//! backend passes the conformance suite.
//!
//! - [`LeaseStore`] stores leases, and [`ObjectStore`] stores everything else. [`OperatorStore`] performs operators'
//!   actions on an election. [`sqlite`], [`azure`] and [`memory`] implement all three. [`lease`] contains the rules of
//!   a lease, for stores that implement leases themselves.
//! - [`state`] is a coordinator's state. [`ModuleStore`] stores modules under their [`Digest`]s, each election's
//!   control object, and the nodes' announcements ([`Announcement`]). Callers check the digest of each module that they
//!   read.
//! - [`conformance`] contains a test case for each promise of a store. `baton doctor` and the tests of stores run these
//!   cases.
//! - [`Intercept`] passes the calls to a store to an [`Interceptor`], which may delay, fail, count or change them.
//! - `witness` detects dead hosts on this machine. `reclaiming` reclaims the leases of these hosts in a store that is
//!   shared with other machines.
//! - [`steering`] contains operators' commands to an election's nodes.
//! - [`GroupGuard`] makes sure that all nodes divide a group into the same number of shards.
//! - [`History`] lists an election's past terms, for people to read.
//! - [`edit`] changes an object despite conflicts and unknown outcomes. `recall` finds the highest term in any object.

mod announcement;
#[cfg(feature = "azure")]
pub mod azure;
mod change_notifier;
pub mod conformance;
mod digest;
pub mod edit;
#[cfg(any(feature = "azure", feature = "sqlite"))]
mod file_events;
mod file_system;
mod group;
mod history;
mod intercept;
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
mod url;
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub mod witness;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Reply, StoreError};

pub use announcement::{
    AnnouncedLink, AnnouncedPeer, AnnouncedShard, Announcement, GONE, LONGEST_LABEL, Labels, MOST_LABELS, SILENT,
    withdraw, withdraw_gone,
};
#[cfg(feature = "azure")]
pub use azure::AzureStore;
pub use change_notifier::{ChangeNotifier, ChangeReader};
pub use digest::{Digest, DigestPrefix, InvalidDigest, InvalidPrefix};
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub use file_events::no_file_events;
pub use file_system::foreign_file_system;
pub use group::GroupGuard;
pub use history::{History, HistoryError, KEPT_TERMS, LONGEST_TEXT, PastTerm, read_history, report_terms};
pub use intercept::{Intercept, Interceptor, StoreAnswer, StoreCall};
pub use memory::MemoryStore;
pub use modules::{ANNOUNCEMENTS_AT_ONCE, ModuleStore, StoredModule};
pub use objects::{Listed, Listing, ObjectStore, PlainObject, Reading, VersionedObject};
pub use operator::OperatorStore;
pub use readers::READERS;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use url::{StoreUrl, StoreUrlError};
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub use witness::LockFile;

/// A store of leases and records.
#[async_trait]
pub trait LeaseStore: Send + Sync {
    /// Carries out one request. If the caller drops the future, the outcome is unknown, as after
    /// [`StoreError::Unknown`].
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError>;

    /// Breaks the lease immediately, for operators, no matter which client holds it. Succeeds if the lease is already
    /// broken.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if there is no lease to break.
    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError>;

    /// The names of all elections, sorted.
    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError>;

    /// Creates the container or the folder, which must exist before the first request. Succeeds if it already exists.
    async fn create(&self) -> Result<(), StoreError>;

    /// The shortest and the longest lease that the store supports.
    fn lease_range(&self) -> (Duration, Duration);

    /// Describes the step for which requests are currently waiting, such as a DNS lookup. `None` if no step is slow.
    /// The step may outlive a request.
    fn slow_step(&self) -> Option<String> {
        None
    }

    /// Resolves when reading `election` or renewing its lease may show something new. Each event resolves one call.
    /// Never resolves for a store that cannot detect events. The hint is untrusted: it only makes the caller read
    /// earlier. Cancel safe.
    async fn hint(&self, election: &ElectionName) {
        let _ = election;
        std::future::pending().await
    }
}

/// The error returned when a store cannot be used as configured.
#[derive(Debug, thiserror::Error)]
#[error("the store {store} cannot be used: {problem}")]
pub struct OpenError {
    store: StoreUrl,
    problem: String,
}

/// Opens the leases of the store at `url` for a host, like [`open`]. With a lock file, the store detects dead hosts on
/// this machine, and other hosts can detect when this host dies.
///
/// # Errors
/// [`OpenError`] if the store is not configured.
#[cfg(any(feature = "azure", feature = "sqlite"))]
pub fn open_leases(url: &StoreUrl, lock_file: Option<Arc<LockFile>>) -> Result<Arc<dyn LeaseStore>, OpenError> {
    match (url, lock_file) {
        #[cfg(feature = "sqlite")]
        (StoreUrl::Sqlite(folder), Some(lock_file)) => {
            Ok(Arc::new(SqliteStore::with_lock_file(folder, sqlite::BootClock::current(), lock_file)))
        }
        #[cfg(feature = "azure")]
        (StoreUrl::Azure { .. } | StoreUrl::Azurite { .. }, Some(lock_file)) => {
            let store: Arc<dyn LeaseStore> = open(url)?;
            Ok(Arc::new(reclaiming::Reclaiming::new(store, url, lock_file)))
        }
        _ => open(url).map(|store| store as Arc<dyn LeaseStore>),
    }
}

/// A store for all of Baton's data.
pub trait Store: LeaseStore + ObjectStore + OperatorStore {}

impl<T: LeaseStore + ObjectStore + OperatorStore> Store for T {}

/// Opens the store at `url`, without sending a request. Each handle has its own connections and threads. Use one handle
/// for leases and another for state, so that guests' commits cannot delay renewals.
///
/// # Errors
/// [`OpenError`] if the store is not configured.
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

/// Part of the error message when another process holds the database's lock. The request had no effect, and may be
/// retried.
#[cfg(any(feature = "sqlite", feature = "conformance"))]
pub(crate) const LOCKED: &str = "is locked";
