//! Objects that a store keeps in addition to leases. An object is a named sequence of bytes.
//!
//! There are two kinds of objects. A [`VersionedObject`] is changed only by conditional writes. An election has at most
//! one object of each versioned type. A [`PlainObject`] has only one writer, or its name determines its content, so its
//! writes need no condition. All backends store the same bytes. [`state`](crate::state) and
//! [`ModuleStore`](crate::ModuleStore) describe what the bytes mean.

use async_trait::async_trait;
use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use time::OffsetDateTime;

use crate::Digest;

/// A type of object that is changed only by conditional writes. Each election has at most one object of each type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VersionedObject {
    /// The coordinator's state: `ELECTION/state`, for example `crawl/3/state` for a shard.
    State,
    /// The election's modules: `ELECTION/control`. The shards of a group share them.
    Control,
    /// Operators' commands: `ELECTION/steering`. The shards of a group share them.
    Steering,
    /// Past terms: `ELECTION/history`.
    History,
    /// The number of shards of a group: `ELECTION/group`.
    Group,
}

impl VersionedObject {
    /// All versioned objects.
    pub const ALL: [Self; 5] = [Self::State, Self::Control, Self::Steering, Self::History, Self::Group];

    /// Returns the name under which an election's object is stored. The shards of a group share the group's modules,
    /// commands and number of shards.
    #[must_use]
    pub fn owner(self, election: &ElectionName) -> &str {
        match self {
            Self::State | Self::History => election.as_str(),
            Self::Control | Self::Steering | Self::Group => election.group(),
        }
    }
}

/// An object whose name identifies either the node that writes it or its content.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PlainObject {
    /// A node's announcement in an election: `ELECTION/nodes/NODE`. A node announces itself once in a group.
    Announcement(ElectionName, String),
    /// A module, under its digest: `modules/sha256/DIGEST`.
    Module(Digest),
}

/// A group of plain objects that are listed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listing {
    /// The announcements of an election's nodes.
    Announcements(ElectionName),
    /// The modules of all elections.
    Modules,
}

/// One object of a [`Listing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The object's name.
    pub object: PlainObject,
    /// The object's size in bytes.
    pub size: u64,
    /// Time of the last put, by the store's clock, to the second. Always known for modules; may be `None` for other
    /// objects.
    pub put: Option<OffsetDateTime>,
}

/// The answer to a conditional read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reading {
    /// The object does not exist.
    Nothing,
    /// The object still has the version that the caller already knows.
    Unchanged,
    /// The object has this version and content.
    Found(Version, Bytes),
}

/// A store of objects. If a future is dropped, its request may still be carried out. Every request may fail with
/// [`StoreError::Unknown`] (a change may have been made) or with [`StoreError::Misconfigured`] (no change has been
/// made).
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Reads an election's object. If the object still has the version `known`, returns [`Reading::Unchanged`] without
    /// the content.
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError>;

    /// Writes an election's object if the stored object has this version. If `version` is `None`, writes the object
    /// only if it does not exist. Returns the new version, which is unique to this write.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the condition failed.
    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError>;

    /// Deletes an election's object if it has this version. Also succeeds if the object does not exist.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if the object has another version.
    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError>;

    /// Returns the elections that have this kind of object, sorted.
    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError>;

    /// Writes an object, replacing any earlier content. If the object is a module that already exists, only updates the
    /// time of its last put, so that [`remove`](Self::remove) keeps the module.
    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError>;

    /// Returns the first `limit` bytes of an object, if it exists. To detect an object that is larger than a limit,
    /// request one byte more than the limit.
    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError>;

    /// Returns the objects of a listing, sorted by name.
    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError>;

    /// Removes an object, unless it was put after `put_until`. A store that does not record when announcements were put
    /// ignores `put_until` for announcements. Returns true if the object is now absent.
    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError>;
}
