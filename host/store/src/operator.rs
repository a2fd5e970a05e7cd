//! What is done to an election from outside: by operators, and by those who find out what a store can be trusted with. No
//! host does any of it.

use async_trait::async_trait;
use baton_election::{ElectionName, Record, StoreError, Version};

/// A store on which operators can act. Every request may fail with [`StoreError::Unknown`] and
/// [`StoreError::Misconfigured`], as those of a host can.
#[async_trait]
pub trait OperatorStore: Send + Sync {
    /// Writes a record as a client does that knows of no lease: with neither an id nor a version. A lease that has expired
    /// or was broken is free afterwards.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while somebody holds the lease, or if there is no such election.
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError>;

    /// Removes an election: its lease with the record, its coordinator's state, and what it is told. What
    /// nodes have said of it is theirs to withdraw. Harmless if there is none.
    ///
    /// # Errors
    /// [`StoreError::Lost`] while somebody holds the lease.
    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError>;
}
