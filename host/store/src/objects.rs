//! What a store keeps beside the leases: objects of bytes, under names.
//!
//! Two kinds. A [`VersionedObject`], of which each election has at most one, is changed by conditional writes alone. A
//! [`PlainObject`] has a name that no other writer uses, so that it is put without a look first. What the bytes mean is
//! written once, on top of this: [`state`](crate::state), and [`ModuleStore`](crate::ModuleStore).

use async_trait::async_trait;
use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use time::OffsetDateTime;

use crate::Digest;

/// An object that each election has at most one of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum VersionedObject {
    /// Its coordinator's state: `ELECTION/state`.
    State,
    /// What it is told about its modules: `ELECTION/control`.
    Control,
    /// What operators ask of its nodes: `ELECTION/steering`.
    Steering,
    /// What has become of its terms: `ELECTION/history`.
    History,
}

impl VersionedObject {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::State, Self::Control, Self::Steering, Self::History];
}

/// An object whose name says who may put it, or what it holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PlainObject {
    /// What one node says of itself in an election: `ELECTION/nodes/NODE`.
    Announcement(ElectionName, String),
    /// A module, under its digest: `modules/sha256/DIGEST`.
    Module(Digest),
}

/// Plain objects that are listed together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listing {
    /// What the nodes of an election have said.
    Announcements(ElectionName),
    /// The modules of all elections.
    Modules,
}

/// One object of a [`Listing`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The object's name.
    pub object: PlainObject,
    /// Its size in bytes.
    pub size: u64,
    /// When it was put last, by the store's clock, to the second; none where the store does not note it. Of modules
    /// every store does.
    pub put: Option<OffsetDateTime>,
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

/// A place that keeps objects. Dropping a future may leave its request under way. Every request may fail with
/// [`StoreError::Unknown`], which says of one that changes something that it may have been carried out, and with
/// [`StoreError::Misconfigured`], which says that it was not.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Reads an election's object, unless it still has the version `known`: then that costs next to nothing.
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError>;

    /// Writes an election's object whole, only if it still has that version; without one, only if there is none.
    /// Returns its new version, which no other write has.
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

    /// Deletes an election's object, only if it still has that version. Harmless if there is none.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if it has another.
    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError>;

    /// The elections that have such an object, sorted.
    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError>;

    /// Keeps an object under its name, instead of what was there. A module that is there already stays as it is, and
    /// counts as put now: who puts it is about to name it.
    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError>;

    /// An object's bytes, of which only the first `limit` are read; none if it is not there. A caller that must tell
    /// an object of `limit` bytes from a larger one asks for one byte more.
    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError>;

    /// The objects of a listing, in the order of their names.
    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError>;

    /// Removes an object, unless it is a module that was put later than `put_until`, and tells whether it is gone.
    /// Harmless if there is none.
    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError>;
}
