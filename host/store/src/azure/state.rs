//! The coordinators' state: `ELECTION/state`, a blob of its own, whose ETag is its version.

use async_trait::async_trait;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;

use super::AzureStore;
use crate::Reading;
use crate::state::StateStore;

/// The name of an election's state in its folder.
const STATE_BLOB: &str = "/state";

impl AzureStore {
    pub(super) fn state_blob(&self, election: &ElectionName) -> BlobClient {
        self.container.blob_client(format!("{election}{STATE_BLOB}"))
    }
}

#[async_trait]
impl StateStore for AzureStore {
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal> {
        // Without a known version nothing is unchanged.
        Ok(match self.read_object(&self.state_blob(election), None).await? {
            Reading::Found(version, content) => Some((version, content)),
            Reading::Nothing | Reading::Unchanged => None,
        })
    }

    async fn write(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        self.write_object(&self.state_blob(election), version, content).await
    }
}
