//! Operators' actions on an election.

use async_trait::async_trait;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{ElectionName, Record, StoreError, Version};

use super::{AzureStore, RequestKind, code, record};
use crate::{OperatorStore, VersionedObject};

#[async_trait]
impl OperatorStore for AzureStore {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        let request = self.blob(election).set_metadata().metadata(record::encode(&record)).into_future();
        match request.await {
            Ok(response) => Ok(Version(response.etag)),
            Err(error) => Err(self.store_error(RequestKind::OfLease, &error)),
        }
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        // Delete the lease first: this fails while a client holds it, and then nothing is removed.
        self.delete_blob(self.blob(election)).await?;
        for object in VersionedObject::ALL.into_iter().filter(|object| object.owner(election) == election.as_str()) {
            self.delete_blob(self.versioned_blob(object, election)).await?;
        }
        Ok(())
    }
}

impl AzureStore {
    async fn delete_blob(&self, blob: BlobClient) -> Result<(), StoreError> {
        match blob.delete().into_future().await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(()),
            Err(error) => Err(self.store_error(RequestKind::OfLease, &error)),
        }
    }
}
