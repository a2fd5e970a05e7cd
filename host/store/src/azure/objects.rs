//! Objects as blobs: everything except leases.
//!
//! A versioned object is read and written as a whole, with conditional requests; its ETag is its version. Modules are
//! large, and take a long time to transfer over a slow connection. No two objects have the same blob name, no matter
//! what the elections are called.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::StatusCode;
use azure_core::error::ErrorKind;
use azure_core::prelude::{IfMatchCondition, IfModifiedSinceCondition, Range};
use azure_storage_blobs::blob::Blob;
use azure_storage_blobs::blob::operations::GetBlobResponse;
use azure_storage_blobs::container::operations::ListBlobsBuilder;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{ElectionName, StoreError, Version};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use time::OffsetDateTime;

use super::{ANSWER_WITHIN, AzureStore, RequestKind, code, recall};
use crate::{Digest, Listed, Listing, ObjectStore, PlainObject, Reading, VersionedObject};

/// Chunk size for versioned objects, in bytes. It is larger than any such object, so that one request reads the whole
/// object, and therefore a single version.
const LARGEST: u64 = 1 << 30;

const MODULES: &str = "modules/sha256/";

const WASM: &str = "application/wasm";

/// Number of bytes of a module to request at a time. For a smaller number, the crate would request a checksum, which
/// the emulator does not support.
pub(super) const PIECE: u64 = 4 << 20;

/// Slowest supported connection for modules, in bytes per second (1 Mbit/s).
const SLOWEST: u64 = 125_000;

#[async_trait]
impl ObjectStore for AzureStore {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        let blob = self.versioned_blob(object, election);
        let failed = |error: &azure_core::Error| self.store_error(RequestKind::ToRead, error);
        let mut request = blob.get().chunk_size(LARGEST);
        if let Some(known) = known {
            request = request.if_match(IfMatchCondition::NotMatch(known.0.clone()));
        }
        let answer = match request.into_stream().next().await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) if known.is_some() && is_not_modified(&error) => return Ok(Reading::Unchanged),
            Some(Err(error)) if code(&error) == Some("BlobNotFound") => return Ok(Reading::Nothing),
            // Ranges of an empty blob cannot be read. Baton never writes an empty blob, but another client may have
            // written one.
            Some(Err(error)) if code(&error) == Some("InvalidRange") => {
                let found = blob.get_properties().await.map_err(|error| failed(&error))?;
                let version = Version(found.blob.properties.etag.to_string());
                return match found.blob.properties.content_length {
                    0 => Ok(Reading::Found(version, Bytes::new())),
                    _ => Err(StoreError::Unknown("the blob was written while it was read".to_owned())),
                };
            }
            Some(Err(error)) => return Err(failed(&error)),
            None => return Err(StoreError::Unknown("the store did not respond".to_owned())),
        };
        let version = Version(answer.blob.properties.etag.to_string());
        let content = answer.data.collect().await.map_err(|error| failed(&error))?;
        Ok(Reading::Found(version, content))
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        let blob = self.versioned_blob(object, election);
        let condition = match version {
            Some(version) => IfMatchCondition::Match(version.0.clone()),
            None => IfMatchCondition::NotMatch("*".to_owned()),
        };
        let metadata = recall::of_object(object, &content);
        match blob.put_block_blob(content).metadata(metadata).if_match(condition).into_future().await {
            Ok(response) => Ok(Version(response.etag)),
            // A deleted blob counts as changed.
            Err(error) if code(&error) == Some("BlobNotFound") => Err(StoreError::Conflict),
            Err(error) => Err(self.store_error(RequestKind::ToCreate, &error)),
        }
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        let blob = self.versioned_blob(object, election);
        match blob.delete().if_match(IfMatchCondition::Match(version.0.clone())).into_future().await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(()),
            Err(error) => match self.store_error(RequestKind::ToCreate, &error) {
                // The emulator reports a failed condition even if the blob does not exist. A read shows whether it
                // exists.
                StoreError::Conflict if ObjectStore::read(self, object, election, None).await? == Reading::Nothing => {
                    Ok(())
                }
                error => Err(error),
            },
        }
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        let blobs = self.list_blobs(self.container.list_blobs()).await?;
        let election = |blob: &Blob| ElectionName::new(blob.name.strip_suffix(last_part(object))?).ok();
        let mut elections: Vec<_> = blobs.iter().filter_map(election).collect();
        elections.sort();
        Ok(elections)
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        match object {
            PlainObject::Announcement(election, node) => {
                let metadata = recall::of_announcement(&content, election);
                let blob = self.container.blob_client(node_name(election, node));
                match blob.put_block_blob(content).metadata(metadata).into_future().await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(self.trouble(RequestKind::ToCreate, &error)),
                }
            }
            PlainObject::Module(digest) => self.put_module(&module_name(digest), content).await,
        }
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        let blob = self.transfers.blob_client(name_of(object));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut content = BytesMut::new();
        let mut version = None;
        loop {
            let start = content.len();
            let answer = transfer(PIECE, self.read_piece(&blob, version.as_ref(), &mut content, limit)).await?;
            let error = match answer {
                Ok(piece) if piece.is_last || content.len() >= limit => return Ok(Some(content.freeze())),
                Ok(_) if content.len() == start => {
                    return Err(StoreError::Unknown(
                        "the store returned no data before the end of the blob".to_owned(),
                    ));
                }
                Ok(piece) => {
                    version = Some(piece.version);
                    continue;
                }
                Err(error) => error,
            };
            return match code(&error) {
                Some("BlobNotFound") if version.is_none() => Ok(None),
                // Ranges of an empty blob cannot be read.
                Some("InvalidRange") if version.is_none() => Ok(Some(Bytes::new())),
                Some("BlobNotFound" | "ConditionNotMet" | "InvalidRange") => {
                    Err(StoreError::Unknown("the blob was removed or replaced while it was read".to_owned()))
                }
                _ => Err(self.trouble(RequestKind::ToRead, &error)),
            };
        }
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        let folder = match listing {
            Listing::Announcements(election) => nodes_folder(election),
            Listing::Modules => MODULES.to_owned(),
        };
        let object = |name: &str| {
            // Skip names that Baton could not have written.
            let last = name.strip_prefix(&folder)?;
            Some(match listing {
                Listing::Announcements(election) => PlainObject::Announcement(election.clone(), node_of(last)?),
                Listing::Modules => PlainObject::Module(format!("sha256:{last}").parse().ok()?),
            })
        };
        let blobs = self.list_blobs(self.container.list_blobs().prefix(folder.clone())).await?;
        let mut listed: Vec<_> = blobs
            .iter()
            .filter_map(|Blob { name, properties, .. }| {
                let (size, put) = (properties.content_length, Some(properties.last_modified));
                Some(Listed { object: object(name)?, size, put })
            })
            .collect();
        listed.sort_by(|one, other| one.object.cmp(&other.object));
        Ok(listed)
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        let mut request = self.transfers.blob_client(name_of(object)).delete();
        if let Some(until) = put_until {
            request = request.if_modified_since(IfModifiedSinceCondition::Unmodified(until));
        }
        match transfer(0, request.into_future()).await? {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(true),
            Err(error) if code(&error) == Some("ConditionNotMet") => Ok(false),
            Err(error) => Err(self.trouble(RequestKind::ToCreate, &error)),
        }
    }
}

struct Piece {
    version: String,
    is_last: bool,
}

impl AzureStore {
    pub(super) fn versioned_blob(&self, object: VersionedObject, election: &ElectionName) -> BlobClient {
        self.container.blob_client(object_name(object, election))
    }

    async fn put_module(&self, name: &str, content: Bytes) -> Result<(), StoreError> {
        let blob = self.transfers.blob_client(name);
        // Check first whether the module exists, because uploading it takes long. The condition below handles a
        // concurrent upload.
        match transfer(0, self.container.blob_client(name).get_properties().into_future()).await? {
            Ok(_) => return self.touch(&blob).await,
            Err(error) if code(&error) == Some("BlobNotFound") => {}
            Err(error) => return Err(self.trouble(RequestKind::ToRead, &error)),
        }
        let size = content.len() as u64;
        let request = blob
            .put_block_blob(content)
            .content_type(WASM)
            .if_match(IfMatchCondition::NotMatch("*".to_owned()))
            .into_future();
        match transfer(size, request).await?.map_err(|error| self.store_error(RequestKind::ToCreate, &error)) {
            Ok(_) => Ok(()),
            Err(StoreError::Conflict) => self.touch(&blob).await,
            Err(error) => Err(error),
        }
    }

    /// Updates the modification time of a module, as if the module had just been stored.
    async fn touch(&self, blob: &BlobClient) -> Result<(), StoreError> {
        match transfer(0, blob.set_metadata().into_future()).await? {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some("BlobNotFound") => {
                Err(StoreError::Unknown("the module was removed during the upload".to_owned()))
            }
            Err(error) => Err(self.trouble(RequestKind::ToCreate, &error)),
        }
    }

    /// Appends the next part of the blob to `content`. `limit` is the maximum length of `content`, in bytes.
    async fn read_piece(
        &self,
        blob: &BlobClient,
        version: Option<&String>,
        content: &mut BytesMut,
        limit: usize,
    ) -> azure_core::Result<Piece> {
        let mut request = blob.get().range(Range::RangeFrom(content.len() as u64..)).chunk_size(PIECE);
        if let Some(version) = version {
            request = request.if_match(IfMatchCondition::Match(version.clone()));
        }
        let GetBlobResponse { blob, mut data, remaining_range, .. } = match request.into_stream().next().await {
            Some(answer) => answer?,
            None => {
                return Err(azure_core::Error::message(ErrorKind::Io, "the store did not respond"));
            }
        };
        // Never keep more bytes than the limit, no matter what the server sends.
        while content.len() < limit
            && let Some(bytes) = data.try_next().await?
        {
            content.extend_from_slice(&bytes[..bytes.len().min(limit - content.len())]);
        }
        Ok(Piece { version: blob.properties.etag.to_string(), is_last: remaining_range.is_none() })
    }

    pub(super) async fn list_blobs(&self, request: ListBlobsBuilder) -> Result<Vec<Blob>, StoreError> {
        let mut blobs = Vec::new();
        let mut pages = request.into_stream();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.trouble(RequestKind::OfContainer, &error))?;
            blobs.extend(page.blobs.blobs().cloned());
        }
        Ok(blobs)
    }

    /// Classifies an error from a request that has no condition and no lease id. If such a request fails because
    /// another client has leased the blob, it may succeed later.
    pub(super) fn trouble(&self, asked: RequestKind, error: &azure_core::Error) -> StoreError {
        match (self.store_error(asked, error), code(error)) {
            (StoreError::Held | StoreError::Lost(_) | StoreError::Conflict, Some(code)) => {
                StoreError::Unknown(format!("the store returned {code}"))
            }
            (error, _) => error,
        }
    }
}

/// True for status 304. Only this answer is classified by its status, since not all servers send an error code with it.
fn is_not_modified(error: &azure_core::Error) -> bool {
    matches!(error.kind(), ErrorKind::HttpResponse { status: StatusCode::NotModified, .. })
}

/// Waits for a request that transfers `size` bytes in either direction. The timeout is long enough for the slowest
/// supported connection.
async fn transfer<T>(size: u64, request: impl Future<Output = T>) -> Result<T, StoreError> {
    let longest = ANSWER_WITHIN + Duration::from_secs(size / SLOWEST);
    tokio::time::timeout(longest, request).await.map_err(|_| {
        StoreError::Unknown(format!("the transfer of {size} bytes did not finish within {} s", longest.as_secs()))
    })
}

pub(super) fn object_name(object: VersionedObject, election: &ElectionName) -> String {
    format!("{}{}", object.owner(election), last_part(object))
}

fn last_part(object: VersionedObject) -> &'static str {
    match object {
        VersionedObject::State => "/state",
        VersionedObject::Control => "/control",
        VersionedObject::Steering => "/steering",
        VersionedObject::History => "/history",
        VersionedObject::Group => "/group",
    }
}

fn name_of(object: &PlainObject) -> String {
    match object {
        PlainObject::Announcement(election, node) => node_name(election, node),
        PlainObject::Module(digest) => module_name(digest),
    }
}

fn module_name(digest: &Digest) -> String {
    format!("{MODULES}{}", digest.hex())
}

fn node_name(election: &ElectionName, node: &str) -> String {
    format!("{}{}", nodes_folder(election), blob_name_of(node))
}

pub(super) fn nodes_folder(election: &ElectionName) -> String {
    format!("{}/nodes/", election.group())
}

/// Encodes a node's id as the last part of a blob name. Replaces a final dot, and each character that is not a letter,
/// digit, hyphen, underscore or dot, with `~` and two hexadecimal digits per byte.
fn blob_name_of(node: &str) -> String {
    let last = node.len().saturating_sub(1);
    let keeps =
        |at: usize, byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || byte == b'.' && at < last;
    node.bytes()
        .enumerate()
        .map(|(at, byte)| if keeps(at, byte) { char::from(byte).to_string() } else { format!("~{byte:02x}") })
        .collect()
}

/// Returns `None` if Baton did not write the name.
fn node_of(blob_name: &str) -> Option<String> {
    let mut parts = blob_name.split('~');
    let mut node = parts.next()?.as_bytes().to_vec();
    for part in parts {
        node.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        node.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(node).ok().filter(|node| blob_name_of(node) == blob_name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    #[test]
    fn blob_name_is_unique_for_each_node() {
        let nodes = ["web-3-0", "web.example.com", "a/b", "a~2fb", "..", ".", "a.", "100%", "é", "a\\b", "?#", "A", ""];
        let names = nodes.map(blob_name_of);
        assert_eq!(names[..2], nodes[..2]);
        for (at, (node, name)) in nodes.into_iter().zip(&names).enumerate() {
            assert!(!name.ends_with('.') && !name.contains(['/', '\\', '%', '?', '#']), "{name}");
            assert_eq!(node_of(name).as_deref(), Some(node));
            assert!(!names[..at].contains(name), "{name}");
        }
    }

    #[test]
    fn node_is_none_when_blob_name_is_not_ours() {
        for name in ["~", "~2", "~zz", "~+1", "~2F", "~61", "a.", "~ff", "a/b", "~2é"] {
            assert_eq!(node_of(name), None, "{name}");
        }
    }

    #[test]
    fn docs_list_every_blob() {
        let election = ElectionName::new("job").unwrap();
        let digest = Digest::of(b"");
        let in_code = [
            format!("{election}{}", super::super::LEASE_BLOB),
            format!("{election}{}", last_part(VersionedObject::State)),
            format!("{election}{}", last_part(VersionedObject::Control)),
            format!("{election}{}", last_part(VersionedObject::Steering)),
            format!("{election}{}", last_part(VersionedObject::History)),
            format!("{election}{}", last_part(VersionedObject::Group)),
            name_of(&PlainObject::Announcement(election, "NODE".to_owned())),
            name_of(&PlainObject::Module(digest)).replace(&digest.hex(), "HEX"),
        ]
        .map(|name| name.replace("job/", "ELECTION/"));
        let docs = include_str!("../../../../docs/store.md");
        let in_docs = docs.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        assert_eq!(in_docs.collect::<Vec<_>>(), in_code);
    }
}
