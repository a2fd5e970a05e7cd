//! Small blobs that are read and written whole, with conditions. Their ETag is their version.

use azure_core::StatusCode;
use azure_core::error::ErrorKind;
use azure_core::prelude::IfMatchCondition;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{Refusal, Version};
use bytes::Bytes;
use futures::StreamExt;

use super::{Asked, AzureStore, code};
use crate::Reading;

/// They are read with one request, so that what is read is one version. None is as large.
const LARGEST: u64 = 1 << 30;

impl AzureStore {
    /// Reads a blob, unless it has the version `known`.
    pub(super) async fn read_object(&self, blob: &BlobClient, known: Option<&Version>) -> Result<Reading, Refusal> {
        let failed = |error: &azure_core::Error| self.refusal(Asked::ToRead, error);
        let mut request = blob.get().chunk_size(LARGEST);
        if let Some(known) = known {
            request = request.if_match(IfMatchCondition::NotMatch(known.0.clone()));
        }
        let answer = match request.into_stream().next().await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if known.is_some() && is_not_modified(&error) => return Ok(Reading::Unchanged),
            Some(Err(error)) if code(&error) == Some("BlobNotFound") => return Ok(Reading::Nothing),
            // Of an empty blob no range can be read. Baton writes none, and whoever did is told so.
            Some(Err(error)) if code(&error) == Some("InvalidRange") => {
                let found = blob.get_properties().await.map_err(|error| failed(&error))?;
                let version = Version(found.blob.properties.etag.to_string());
                return match found.blob.properties.content_length {
                    0 => Ok(Reading::Found(version, Bytes::new())),
                    _ => Err(Refusal::Unknown("the blob was written while it was read".to_owned())),
                };
            }
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(Refusal::Unknown("the store did not answer".to_owned())),
        };
        let version = Version(answer.blob.properties.etag.to_string());
        let content = answer.data.collect().await.map_err(|error| failed(&error))?;
        Ok(Reading::Found(version, content))
    }

    /// Writes a blob if it has that version; without one, if there is none.
    pub(super) async fn write_object(
        &self,
        blob: &BlobClient,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        let condition = match version {
            Some(version) => IfMatchCondition::Match(version.0.clone()),
            None => IfMatchCondition::NotMatch("*".to_owned()),
        };
        match blob.put_block_blob(content).if_match(condition).into_future().await {
            Ok(response) => Ok(Version(response.etag)),
            // A blob that was deleted has not the version either.
            Err(error) if code(&error) == Some("BlobNotFound") => Err(Refusal::Conflict),
            Err(error) => Err(self.refusal(Asked::ToCreate, &error)),
        }
    }
}

/// The one answer that is told by its status: it has a code on some servers only, and no other meaning.
fn is_not_modified(error: &azure_core::Error) -> bool {
    matches!(error.kind(), ErrorKind::HttpResponse { status: StatusCode::NotModified, .. })
}
