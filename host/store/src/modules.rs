//! Modules in a store, the control objects of elections, and the nodes' announcements.

use async_trait::async_trait;
use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use time::OffsetDateTime;

use crate::{Digest, Listing, ObjectStore, PlainObject, Reading, VersionedObject};

/// Number of announcements that a caller should read concurrently.
pub const ANNOUNCEMENTS_AT_ONCE: usize = 32;

pub(crate) const LONGEST_ANNOUNCEMENT: u64 = 64 << 10;

/// Requests for modules, control objects and announcements, which an [`ObjectStore`] carries out. All errors come from
/// that store.
#[async_trait]
pub trait ModuleStore: ObjectStore {
    /// Reads an election's control object, unless it still has the version `known`.
    async fn read_control(&self, election: &ElectionName, known: Option<&Version>) -> Result<Reading, StoreError> {
        self.read(VersionedObject::Control, election, known).await
    }

    /// Writes an election's control object, on condition that the object has this version. If `version` is `None`, the
    /// condition is that the object does not exist.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the condition does not hold.
    async fn write_control(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        self.write(VersionedObject::Control, election, version, content).await
    }

    /// Returns the elections that have a control object, sorted. These elections may not have a lease yet.
    async fn controlled(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.elections_with(VersionedObject::Control).await
    }

    /// Stores a module under its digest.
    async fn put_module(&self, digest: &Digest, content: Bytes) -> Result<(), StoreError> {
        self.put(&PlainObject::Module(*digest), content).await
    }

    /// Returns the first `limit` bytes of a stored module, or `None` if the module does not exist. The caller must
    /// check the digest.
    async fn get_module(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, StoreError> {
        self.get(&PlainObject::Module(*digest), limit).await
    }

    /// Returns the modules of all elections, sorted by digest.
    async fn modules(&self) -> Result<Vec<StoredModule>, StoreError> {
        let listed = self.list(&Listing::Modules).await?;
        let modules = listed.into_iter().filter_map(|listed| match listed.object {
            PlainObject::Module(digest) => Some(StoredModule { digest, size: listed.size, stored: listed.put? }),
            PlainObject::Announcement(..) => None,
        });
        Ok(modules.collect())
    }

    /// Removes a module, unless it was stored after `stored_until`. Returns true if the module is now absent.
    async fn remove_module(&self, digest: &Digest, stored_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        self.remove(&PlainObject::Module(*digest), stored_until).await
    }

    /// Replaces a node's announcement in an election.
    async fn announce(&self, election: &ElectionName, node: &str, content: Bytes) -> Result<(), StoreError> {
        self.put(&announcement(election, node), content).await
    }

    /// Returns the nodes that have announced themselves in an election, sorted.
    async fn announced_nodes(&self, election: &ElectionName) -> Result<Vec<String>, StoreError> {
        let listed = self.list(&Listing::Announcements(election.clone())).await?;
        let nodes = listed.into_iter().filter_map(|listed| match listed.object {
            PlainObject::Announcement(_, node) => Some(node),
            PlainObject::Module(_) => None,
        });
        Ok(nodes.collect())
    }

    /// Returns each node of an election with its announcement.
    async fn announcements(&self, election: &ElectionName) -> Result<Vec<(String, Bytes)>, StoreError> {
        let nodes = self.announced_nodes(election).await?;
        let said = futures::stream::iter(nodes).map(|node| async move {
            let said = self.announced(election, &node).await?;
            Ok(said.map(|said| (node, said)))
        });
        said.buffered(ANNOUNCEMENTS_AT_ONCE).try_filter_map(async |said| Ok(said)).try_collect().await
    }

    /// Returns the announcement of one node, if the node has announced itself.
    async fn announced(&self, election: &ElectionName, node: &str) -> Result<Option<Bytes>, StoreError> {
        self.get(&announcement(election, node), LONGEST_ANNOUNCEMENT).await
    }

    /// Withdraws a node's announcement. Also succeeds if there is no announcement.
    async fn withdraw(&self, election: &ElectionName, node: &str) -> Result<(), StoreError> {
        self.remove(&announcement(election, node), None).await.map(drop)
    }
}

impl<T: ObjectStore + ?Sized> ModuleStore for T {}

/// A module in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredModule {
    /// The module's digest.
    pub digest: Digest,
    /// The module's size in bytes.
    pub size: u64,
    /// The time at which the module was last stored, by the store's clock, to the second.
    pub stored: OffsetDateTime,
}

fn announcement(election: &ElectionName, node: &str) -> PlainObject {
    PlainObject::Announcement(election.clone(), node.to_owned())
}
