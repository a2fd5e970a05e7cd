//! What the blobs of an election name of its terms. It is asked for on the way of each takeover, by each standby: the
//! announcements carry their terms as metadata, too, so that one list shows them all, and of the state the first bytes
//! are read, at the same time.

use std::collections::HashMap;

use azure_core::prelude::Metadata;
use azure_storage_blobs::blob::Blob;
use baton_election::{ElectionName, StoreError, Term};
use futures::{StreamExt, TryStreamExt};

use super::objects::{PIECE, nodes_folder};
use super::{Asked, AzureStore, LEASE_BLOB, code, record};
use crate::state::HEAD;
use crate::{VersionedObject, recall};

/// The key of an announcement's term.
const TERM: &str = "term";

/// What an announcement has as its metadata.
pub(super) fn metadata(content: &[u8]) -> Metadata {
    let mut metadata = Metadata::new();
    match recall::announced(content) {
        0 => {}
        term => drop(metadata.insert(TERM, term.to_string())),
    }
    metadata
}

impl AzureStore {
    /// The highest term that anything names.
    pub(super) async fn recall(&self, election: &ElectionName) -> Result<Term, StoreError> {
        let blobs = self.list_blobs(self.container.list_blobs().prefix(format!("{election}/")).include_metadata(true));
        let (blobs, state) = futures::future::try_join(blobs, self.state_head(election)).await?;
        let (lease, nodes) = (format!("{election}{LEASE_BLOB}"), nodes_folder(election));
        let mut recorded = 0;
        let mut announced = Vec::new();
        for Blob { name, metadata, .. } in blobs {
            let metadata = metadata.unwrap_or_default();
            if name == lease {
                let record = record::decode(metadata).map_err(StoreError::Misconfigured)?;
                recorded = record.map_or(0, |record| record.term);
            } else if name.starts_with(&nodes) {
                announced.push(term_in(&metadata));
            }
        }
        recall::highest(recorded, state.as_deref(), announced)
    }

    /// The first bytes of the state; none if there is no state.
    async fn state_head(&self, election: &ElectionName) -> Result<Option<Vec<u8>>, StoreError> {
        let failed = |error: &azure_core::Error| self.trouble(Asked::ToRead, error);
        // So much is asked for and not taken: for less the crate would ask for a checksum, see there.
        let request = self.versioned_blob(VersionedObject::State, election).get().chunk_size(PIECE);
        let mut data = match request.into_stream().next().await {
            Some(Ok(answer)) => answer.data,
            Some(Err(error)) if code(&error) == Some("BlobNotFound") => return Ok(None),
            // Of an empty blob no range can be read.
            Some(Err(error)) if code(&error) == Some("InvalidRange") => return Ok(Some(Vec::new())),
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(StoreError::Unknown("the store did not answer".to_owned())),
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

/// The term in an announcement's metadata: 0 where it names none. Servers may change the case of names.
pub(super) fn term_in(metadata: &HashMap<String, String>) -> Term {
    let term = metadata.iter().find(|(name, _)| name.eq_ignore_ascii_case(TERM));
    term.and_then(|(_, term)| term.parse().ok()).unwrap_or(0)
}
