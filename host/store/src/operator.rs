//! Actions on an election that operators and store tests perform, but hosts never do.

use async_trait::async_trait;
use baton_election::{ElectionName, Record, StoreError, Version};

/// A store on which operators can act. As with a host's requests, every request may fail with [`StoreError::Unknown`]
/// or [`StoreError::Misconfigured`].
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Writes a record without presenting a lease id or a version, as clients other than Baton can. Afterwards, the
    /// lease is free.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease, or if there is no such election.
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError>;

    /// Removes an election: its lease with the record, and its versioned objects. Keeps the announcements, because each
    /// node withdraws its own. Also succeeds if there is no such election.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease.
    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError>;
}
