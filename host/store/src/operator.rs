//! Actions on an election from outside, by operators and by tests of a store. No host performs them.

use async_trait::async_trait;
use baton_election::{ElectionName, Record, StoreError, Version};

/// A store on which operators can act. Every request may fail with [`StoreError::Unknown`] and
/// [`StoreError::Misconfigured`], as a host's can.
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Writes a record with neither lease id nor version, as other clients may. An expired or broken lease is then
    /// free.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease, or if there is no such election.
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError>;

    /// Removes an election: its lease with the record, and its versioned objects. Announcements stay, for their nodes
    /// to withdraw. Succeeds if there is no such election.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while a client holds the lease.
    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError>;
}
