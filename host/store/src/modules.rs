//! What a store keeps of modules: the modules, what an election is told about them, and who has them.

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;
use time::OffsetDateTime;

use crate::Digest;

/// A place for modules, beside the leases.
#[async_trait]
pub trait ModuleStore: Send + Sync {
    /// Reads `ELECTION/control`, unless it still has the version `known`: then that costs next to nothing.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] and [`Refusal::Misconfigured`], as of all methods here.
    async fn read_control(&self, election: &ElectionName, known: Option<&Version>) -> Result<Reading, Refusal>;

    /// Writes `ELECTION/control` whole, only if it still has that version; without one, only if there is
    /// none. Returns its new version. Dropping the future may leave the request under way.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if the condition failed.
    async fn write_control(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal>;

    /// The elections that have a control object, sorted: there may be no lease of them yet.
    ///
    /// # Errors
    /// As above.
    async fn controlled(&self) -> Result<Vec<ElectionName>, Refusal>;

    /// Keeps a module under its digest. One that is there already stays as it is, and counts as stored now: who
    /// puts it is about to name it.
    ///
    /// # Errors
    /// As above.
    async fn put_module(&self, digest: &Digest, content: Bytes) -> Result<(), Refusal>;

    /// A module's bytes as they are stored, of which only the first `limit` are read; none if it is not there.
    /// Whoever uses them compares them with the digest, and whoever must tell a module of `limit` bytes from
    /// a larger one asks for one byte more.
    ///
    /// # Errors
    /// As above.
    async fn get_module(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, Refusal>;

    /// All modules that are kept, of whatever election, in the order of their digests.
    ///
    /// # Errors
    /// As above.
    async fn modules(&self) -> Result<Vec<StoredModule>, Refusal>;

    /// Removes a module, unless it was stored later than that, and tells whether it is gone. Harmless if there is
    /// none.
    ///
    /// # Errors
    /// As above.
    async fn remove_module(&self, digest: &Digest, stored_until: Option<OffsetDateTime>) -> Result<bool, Refusal>;

    /// Says what a node has in an election, instead of what it said before.
    ///
    /// # Errors
    /// As above.
    async fn announce(&self, election: &ElectionName, node: &str, content: Bytes) -> Result<(), Refusal>;

    /// What the nodes of an election have said, by node.
    ///
    /// # Errors
    /// As above.
    async fn announcements(&self, election: &ElectionName) -> Result<Vec<(String, Bytes)>, Refusal>;

    /// What one node of an election has said; none if it has said nothing.
    ///
    /// # Errors
    /// As above.
    async fn announced(&self, election: &ElectionName, node: &str) -> Result<Option<Bytes>, Refusal>;

    /// Takes back what a node has said. Harmless if it has said nothing.
    ///
    /// # Errors
    /// As above.
    async fn withdraw(&self, election: &ElectionName, node: &str) -> Result<(), Refusal>;
}

/// The answer to a conditional reading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// It was never written.
    Nothing,
    /// It still has the version that the reader knows.
    Unchanged,
    /// It has this version and content.
    Found(Version, Bytes),
}

/// A module in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredModule {
    /// What it is.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// When it was stored last, as the store's clock says, to the second.
    pub stored: OffsetDateTime,
}
