//! Actions on an election from outside, by operators and by tests of a store. No host performs them.

use async_trait::async_trait;
use baton_election::{ElectionName, Record, StoreError, Version};

/// A store on which operators can act. Like the requests of a host, every request may fail with [`StoreError::Unknown`]
/// and [`StoreError::Misconfigured`].
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Writes a record with neither lease id nor version, as other clients may. If the lease is expired or broken, this
    /// frees the lease.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease, or if there is no such election.
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError>;

    /// Removes an election: its lease with the record, and its versioned objects. Keeps the announcements, because each
    /// node withdraws its own. Succeeds if there is no such election.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease.
    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError>;
}
