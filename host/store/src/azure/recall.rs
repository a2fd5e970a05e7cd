//! Reads the terms that an election's blobs contain. A standby needs these terms at each takeover. A single listing
//! returns all of them, because announcements and states also contain their term as metadata. If a state has no such
//! metadata, because an older host or another client wrote the state, this module reads the state's first bytes
//! instead.

use std::collections::HashMap;

use azure_core::prelude::Metadata;
use baton_election::{ElectionName, Recalled, Snapshot, StoreError, Term, Version};
use futures::{StreamExt, TryStreamExt};

use super::objects::{PIECE, nodes_folder, object_name};
use super::{AzureStore, LEASE_BLOB, RequestKind, code, snapshot, version};
use crate::state::{Document, HEAD};
use crate::{Announcement, VersionedObject, recall};

const TERM: &str = "term";
/// Metadata key for the terms of a group's shards in announcements: `INDEX=TERM`, separated by commas.
const SHARDS: &str = "shards";
/// Metadata key for the progress of scheduled runs, in the record and in announcements.
pub(super) const PROGRESS: &str = "progress";

pub(super) fn of_announcement(content: &[u8], election: &ElectionName) -> Metadata {
    let Some(said) = Announcement::decode(content) else { return Metadata::new() };
    let Recalled { term, progress } = said.recalled(election);
    let mut metadata = naming(Some(term).filter(|term| *term > 0));
    if let Some(progress) = progress {
        metadata.insert(PROGRESS, progress.to_string());
    }
    // With the highest terms of 256 shards, the text has up to 6 KB. A blob's metadata is limited to 8 KB.
    let shards = said.shards.iter().filter(|(_, shard)| shard.term > 0);
    let shards: Vec<_> = shards.map(|(index, shard)| format!("{index}={}", shard.term)).collect();
    if !shards.is_empty() {
        metadata.insert(SHARDS, shards.join(","));
    }
    metadata
}

/// Returns the term of a shard in the metadata of an announcement.
fn term_of_shard(metadata: &HashMap<String, String>, shard: u8) -> Option<Term> {
    let terms = value(metadata, SHARDS)?.split(',').filter_map(|entry| entry.split_once('='));
    terms.filter(|(index, _)| index.parse() == Ok(shard)).find_map(|(_, term)| term.parse().ok())
}

pub(super) fn of_object(object: VersionedObject, content: &[u8]) -> Metadata {
    naming(Document::term_in(content).ok().filter(|_| object == VersionedObject::State))
}

fn naming(term: Option<Term>) -> Metadata {
    let mut metadata = Metadata::new();
    if let Some(term) = term {
        metadata.insert(TERM, term.to_string());
    }
    metadata
}

impl AzureStore {
    /// Reads the lease's snapshot, the highest term and the progress in all blobs, and the version of the steering
    /// object. The listing is sorted by name, so the lease is read before the state and the announcements.
    pub(super) async fn survey(
        &self,
        election: &ElectionName,
    ) -> Result<(Snapshot, Recalled, Option<Version>), StoreError> {
        let request = self.container.list_blobs().prefix(format!("{}/", election.group())).include_metadata(true);
        let (lease, nodes) = (format!("{election}{LEASE_BLOB}"), nodes_folder(election));
        let [state, asked] = [VersionedObject::State, VersionedObject::Steering].map(|one| object_name(one, election));
        let (mut read, mut named, mut is_state_silent, mut steering) = (Snapshot::Nothing, Vec::new(), false, None);
        for blob in self.list_blobs(request).await? {
            if blob.name == lease {
                read = snapshot(blob)?;
            } else if blob.name == asked {
                steering = Some(version(&blob.properties.etag));
            } else if blob.name == state || blob.name.starts_with(&nodes) {
                let metadata = blob.metadata.unwrap_or_default();
                let term = match election.shard().filter(|_| blob.name != state) {
                    Some(shard) => term_of_shard(&metadata, shard),
                    None => term_in(&metadata),
                };
                is_state_silent |= blob.name == state && term.is_none();
                let progress = value(&metadata, PROGRESS).and_then(|text| text.parse().ok()).map(Box::new);
                named.push(Recalled { term: term.unwrap_or(0), progress });
            }
        }
        let state = if is_state_silent { self.state_head(election).await? } else { None };
        let mut recalled = Recalled::from_record(read.record());
        recall::add(&mut recalled, state.as_deref(), named)?;
        Ok((read, recalled, steering))
    }

    async fn state_head(&self, election: &ElectionName) -> Result<Option<Vec<u8>>, StoreError> {
        let failed = |error: &azure_core::Error| self.trouble(RequestKind::ToRead, error);
        // Request a whole piece, although this method keeps only the first bytes: [`PIECE`] explains why.
        let request = self.versioned_blob(VersionedObject::State, election).get().chunk_size(PIECE);
        let mut data = match request.into_stream().next().await {
            Some(Ok(answer)) => answer.data,
            Some(Err(error)) if code(&error) == Some("BlobNotFound") => return Ok(None),
            // No range of an empty blob can be read.
            Some(Err(error)) if code(&error) == Some("InvalidRange") => return Ok(Some(Vec::new())),
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(StoreError::Unknown("the store did not respond".to_owned())),
        };
        let mut head = Vec::new();
        while head.len() < HEAD
            && let Some(bytes) = data.try_next().await.map_err(|error| failed(&error))?
        {
            head.extend_from_slice(&bytes[..bytes.len().min(HEAD - head.len())]);
        }
        Ok(Some(head))
    }
}

pub(super) fn term_in(metadata: &HashMap<String, String>) -> Option<Term> {
    value(metadata, TERM)?.parse().ok()
}

/// Ignores the case of `key`, because servers may change the case of names.
fn value<'a>(metadata: &'a HashMap<String, String>, key: &str) -> Option<&'a String> {
    metadata.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, value)| value)
}
