//! The coordinators' state: `ELECTION/state`, a blob of its own, whose ETag is its version.

use async_trait::async_trait;
use azure_core::prelude::IfMatchCondition;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;
use futures::StreamExt;

use super::{Asked, AzureStore, code};
use crate::state::StateStore;

/// The name of an election's state in its folder.
const STATE_BLOB: &str = "/state";

/// It is read with one request, so that what is read is one version. No state is as large.
const LARGEST: u64 = 1 << 30;

impl AzureStore {
    fn state_blob(&self, election: &ElectionName) -> BlobClient {
        self.container.blob_client(format!("{election}{STATE_BLOB}"))
    }
}

#[async_trait]
impl StateStore for AzureStore {
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal> {
        let failed = |error: &azure_core::Error| self.refusal(Asked::ToRead, error);
        let blob = self.state_blob(election);
        let mut answers = blob.get().chunk_size(LARGEST).into_stream();
        let answer = match answers.next().await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if code(&error) == Some("BlobNotFound") => return Ok(None),
            // Of an empty blob no range can be read. Baton writes none, and whoever did is told so.
            Some(Err(error)) if code(&error) == Some("InvalidRange") => {
                let found = blob.get_properties().await.map_err(|error| failed(&error))?;
                return match found.blob.properties.content_length {
                    0 => Ok(Some((Version(found.blob.properties.etag.to_string()), Bytes::new()))),
                    _ => Err(Refusal::Unknown("the state was written while it was read".to_owned())),
                };
            }
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(Refusal::Unknown("the store did not answer".to_owned())),
        };
        let version = Version(answer.blob.properties.etag.to_string());
        let content = answer.data.collect().await.map_err(|error| failed(&error))?;
        Ok(Some((version, content)))
    }

    async fn write(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        let condition = match version {
            Some(version) => IfMatchCondition::Match(version.0.clone()),
            None => IfMatchCondition::NotMatch("*".to_owned()),
        };
        let request = self.state_blob(election).put_block_blob(content).if_match(condition).into_future();
        match request.await {
            Ok(response) => Ok(Version(response.etag)),
            // A blob that was deleted has not the version either.
            Err(error) if code(&error) == Some("BlobNotFound") => Err(Refusal::Conflict),
            Err(error) => Err(self.refusal(Asked::ToCreate, &error)),
        }
    }
}
