//! Modules, `modules/sha256/HEX`; what elections are told about them, `ELECTION/control`; and what nodes say
//! that they have, `ELECTION/nodes/NODE`. No name of an election makes one of these the same as another.

use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;
use azure_core::error::ErrorKind;
use azure_core::prelude::{IfMatchCondition, IfModifiedSinceCondition, Range};
use azure_storage_blobs::blob::Blob;
use azure_storage_blobs::blob::operations::GetBlobResponse;
use azure_storage_blobs::container::operations::ListBlobsBuilder;
use azure_storage_blobs::prelude::BlobClient;
use baton_election::{ElectionName, Refusal, Version};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use time::OffsetDateTime;

use super::{ANSWER_WITHIN, Asked, AzureStore, code, recall};
use crate::{Digest, ModuleStore, Reading, StoredModule};

/// Where modules are, by their hexadecimal digits.
const MODULES: &str = "modules/sha256/";

/// The name of an election's control object in its folder.
const CONTROL_BLOB: &str = "/control";

/// The media type of a module.
const WASM: &str = "application/wasm";

/// How much of a module one request reads, in bytes. For less the crate asks for a checksum, too, and the emulator
/// has none.
pub(super) const PIECE: u64 = 4 << 20;

/// On a line that is slower, in bytes per second, no module can be had: a megabit.
const SLOWEST: u64 = 125_000;

/// How many nodes are asked about at the same time.
const AT_ONCE: usize = 8;

#[async_trait]
impl ModuleStore for AzureStore {
    async fn read_control(&self, election: &ElectionName, known: Option<&Version>) -> Result<Reading, Refusal> {
        self.read_object(&self.control_blob(election), known).await
    }

    async fn write_control(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        self.write_object(&self.control_blob(election), version, content).await
    }

    async fn controlled(&self) -> Result<Vec<ElectionName>, Refusal> {
        let mut elections: Vec<_> =
            self.list(self.container.list_blobs()).await?.iter().filter_map(controlled).collect();
        elections.sort();
        Ok(elections)
    }

    async fn put_module(&self, digest: &Digest, content: Bytes) -> Result<(), Refusal> {
        let blob = self.module_blob(digest);
        // Nobody waits for a line to carry what is there; the condition below is for who puts it at the same time.
        match transfer(0, self.container.blob_client(module_name(digest)).get_properties().into_future()).await? {
            Ok(_) => return self.touch(&blob).await,
            Err(error) if code(&error) == Some("BlobNotFound") => {}
            Err(error) => return Err(self.trouble(Asked::ToRead, &error)),
        }
        let size = content.len() as u64;
        let request = blob
            .put_block_blob(content)
            .content_type(WASM)
            .if_match(IfMatchCondition::NotMatch("*".to_owned()))
            .into_future();
        match transfer(size, request).await?.map_err(|error| self.refusal(Asked::ToCreate, &error)) {
            Ok(_) => Ok(()),
            Err(Refusal::Conflict) => self.touch(&blob).await,
            Err(refusal) => Err(refusal),
        }
    }

    async fn get_module(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, Refusal> {
        let blob = self.module_blob(digest);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut content = BytesMut::new();
        let mut version = None;
        loop {
            let start = content.len();
            let answer = transfer(PIECE, self.read_piece(&blob, version.as_ref(), &mut content, limit)).await?;
            let error = match answer {
                Ok(piece) if piece.is_last || content.len() >= limit => return Ok(Some(content.freeze())),
                Ok(_) if content.len() == start => {
                    return Err(Refusal::Unknown("the store sent nothing of a module that has more".to_owned()));
                }
                Ok(piece) => {
                    version = Some(piece.version);
                    continue;
                }
                Err(error) => error,
            };
            return match code(&error) {
                Some("BlobNotFound") if version.is_none() => Ok(None),
                // Of an empty blob no range can be read.
                Some("InvalidRange") if version.is_none() => Ok(Some(Bytes::new())),
                Some("BlobNotFound" | "ConditionNotMet" | "InvalidRange") => {
                    Err(Refusal::Unknown("the module was removed or replaced while it was read".to_owned()))
                }
                _ => Err(self.trouble(Asked::ToRead, &error)),
            };
        }
    }

    async fn modules(&self) -> Result<Vec<StoredModule>, Refusal> {
        let mut modules: Vec<_> =
            self.list(self.container.list_blobs().prefix(MODULES)).await?.iter().filter_map(stored_module).collect();
        modules.sort_by_key(|module| module.digest);
        Ok(modules)
    }

    async fn remove_module(&self, digest: &Digest, stored_until: Option<OffsetDateTime>) -> Result<bool, Refusal> {
        let mut request = self.module_blob(digest).delete();
        if let Some(until) = stored_until {
            request = request.if_modified_since(IfModifiedSinceCondition::Unmodified(until));
        }
        match transfer(0, request.into_future()).await? {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(true),
            Err(error) if code(&error) == Some("ConditionNotMet") => Ok(false),
            Err(error) => Err(self.trouble(Asked::ToCreate, &error)),
        }
    }

    async fn announce(&self, election: &ElectionName, node: &str, content: Bytes) -> Result<(), Refusal> {
        let metadata = recall::metadata(&content);
        match self.node_blob(election, node).put_block_blob(content).metadata(metadata).into_future().await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.trouble(Asked::ToCreate, &error)),
        }
    }

    async fn announcements(&self, election: &ElectionName) -> Result<Vec<(String, Bytes)>, Refusal> {
        let folder = nodes_folder(election);
        let blobs = self.list(self.container.list_blobs().prefix(folder.clone())).await?;
        let nodes: Vec<_> = blobs.iter().filter_map(|blob| node_of(blob.name.strip_prefix(&folder)?)).collect();
        let readings = futures::stream::iter(nodes).map(|node| async move {
            let reading = self.read_object(&self.node_blob(election, &node), None).await?;
            Ok((node, reading))
        });
        let mut found: Vec<_> = readings
            .buffer_unordered(AT_ONCE)
            .try_filter_map(async |(node, reading)| {
                Ok(match reading {
                    Reading::Found(_, content) => Some((node, content)),
                    // Withdrawn meanwhile.
                    Reading::Nothing | Reading::Unchanged => None,
                })
            })
            .try_collect()
            .await?;
        found.sort();
        Ok(found)
    }

    async fn announced(&self, election: &ElectionName, node: &str) -> Result<Option<Bytes>, Refusal> {
        Ok(match self.read_object(&self.node_blob(election, node), None).await? {
            Reading::Found(_, content) => Some(content),
            Reading::Nothing | Reading::Unchanged => None,
        })
    }

    async fn withdraw(&self, election: &ElectionName, node: &str) -> Result<(), Refusal> {
        match self.node_blob(election, node).delete().into_future().await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some("BlobNotFound") => Ok(()),
            Err(error) => Err(self.trouble(Asked::ToCreate, &error)),
        }
    }
}

/// What was read of a module.
struct Piece {
    /// The ETag of the whole.
    version: String,
    is_last: bool,
}

impl AzureStore {
    fn control_blob(&self, election: &ElectionName) -> BlobClient {
        self.container.blob_client(format!("{election}{CONTROL_BLOB}"))
    }

    fn module_blob(&self, digest: &Digest) -> BlobClient {
        self.transfers.blob_client(module_name(digest))
    }

    fn node_blob(&self, election: &ElectionName, node: &str) -> BlobClient {
        self.container.blob_client(format!("{}{}", nodes_folder(election), blob_name_of(node)))
    }

    /// Makes a module that is there as young as one that was just stored. Its content stays.
    async fn touch(&self, blob: &BlobClient) -> Result<(), Refusal> {
        match transfer(0, blob.set_metadata().into_future()).await? {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some("BlobNotFound") => {
                Err(Refusal::Unknown("the module was removed while it was put".to_owned()))
            }
            Err(error) => Err(self.trouble(Asked::ToCreate, &error)),
        }
    }

    /// Reads what comes after `content`, and adds it there up to the limit.
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
                return Err(azure_core::Error::message(ErrorKind::Io, "the store did not answer"));
            }
        };
        // Not a byte more is kept, whatever the server sends.
        while content.len() < limit
            && let Some(bytes) = data.try_next().await?
        {
            content.extend_from_slice(&bytes[..bytes.len().min(limit - content.len())]);
        }
        Ok(Piece { version: blob.properties.etag.to_string(), is_last: remaining_range.is_none() })
    }

    /// All blobs that are asked for, on however many pages.
    pub(super) async fn list(&self, request: ListBlobsBuilder) -> Result<Vec<Blob>, Refusal> {
        let mut blobs = Vec::new();
        let mut pages = request.into_stream();
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| self.trouble(Asked::OfContainer, &error))?;
            blobs.extend(page.blobs.blobs().cloned());
        }
        Ok(blobs)
    }

    /// What an error means for a request without a condition and a lease: an outside client's lease, say, is
    /// in its way for a while, and loses nothing.
    pub(super) fn trouble(&self, asked: Asked, error: &azure_core::Error) -> Refusal {
        match (self.refusal(asked, error), code(error)) {
            (Refusal::Held | Refusal::Lost(_) | Refusal::Conflict, Some(code)) => {
                Refusal::Unknown(format!("the store says {code}"))
            }
            (refusal, _) => refusal,
        }
    }
}

/// Waits for a request that carries so many bytes, there or back, for as long as the slowest line takes.
async fn transfer<T>(size: u64, request: impl Future<Output = T>) -> Result<T, Refusal> {
    let longest = ANSWER_WITHIN + Duration::from_secs(size / SLOWEST);
    tokio::time::timeout(longest, request).await.map_err(|_| {
        Refusal::Unknown(format!("the store has not taken or sent {size} bytes within {} s", longest.as_secs()))
    })
}

fn module_name(digest: &Digest) -> String {
    format!("{MODULES}{}", digest.hex())
}

fn stored_module(blob: &Blob) -> Option<StoredModule> {
    // What Baton could not have written is nobody's module.
    let digest = format!("sha256:{}", blob.name.strip_prefix(MODULES)?).parse().ok()?;
    Some(StoredModule { digest, size: blob.properties.content_length, stored: blob.properties.last_modified })
}

fn controlled(blob: &Blob) -> Option<ElectionName> {
    ElectionName::new(blob.name.strip_suffix(CONTROL_BLOB)?).ok()
}

pub(super) fn nodes_folder(election: &ElectionName) -> String {
    format!("{election}/nodes/")
}

/// A node's id as the last part of a blob's name, which may not hold all of its characters nor end with a dot:
/// these are a tilde and two hexadecimal digits.
fn blob_name_of(node: &str) -> String {
    let last = node.len().saturating_sub(1);
    let keeps =
        |at: usize, byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || byte == b'.' && at < last;
    node.bytes()
        .enumerate()
        .map(|(at, byte)| if keeps(at, byte) { char::from(byte).to_string() } else { format!("~{byte:02x}") })
        .collect()
}

/// The node of such a name; none of one that Baton has not written.
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
    fn every_node_has_a_blob_name_of_its_own() {
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
    fn what_is_no_name_of_a_node_is_nobodys() {
        for name in ["~", "~2", "~zz", "~+1", "~2F", "~61", "a.", "~ff", "a/b", "~2é"] {
            assert_eq!(node_of(name), None, "{name}");
        }
    }
}
