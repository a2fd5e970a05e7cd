//! The document: a coordinator's keys and values, and the claim that allows a term to change them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use baton_election::{HIGHEST_TERM, Term};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

const MAGIC: &[u8] = b"baton state ";
/// The format of the bytes that follow this byte: Postcard, <https://postcard.jamesmunns.com/wire-format>.
const FORMAT: u8 = b'1';
/// Number of bytes at the start of a document that are enough to read its term. In Postcard, the term takes up to 10
/// bytes.
pub const HEAD: usize = MAGIC.len() + 1 + 10;
/// Maximum length of a key, in bytes.
pub const KEY: usize = 512;

/// Maximum size of a state, in bytes. There is a limit because each commit writes the whole state.
pub const LARGEST: u64 = 64 << 20;

/// The limits of a coordinator's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum size of all keys and values together, in bytes.
    pub total: u64,
}

/// Number of bytes of [`Limits::total`] per permitted key. The number of keys is limited because even a short key costs
/// memory and commit time.
const A_KEY: u64 = 64;
/// Number of keys that are always permitted, even if [`Limits::total`] is small.
const FEW_KEYS: u64 = 1_000;

impl Limits {
    pub(super) fn keys(self) -> u64 {
        (self.total / A_KEY).max(FEW_KEYS)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { total: 4 << 20 }
    }
}

/// The random, unique id of a claim or a commit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mark(u128);

impl Mark {
    pub(super) fn new() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// An election's state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Document {
    /// The term that claimed the state last.
    pub term: Term,
    /// The mark of the last claim.
    pub claim: Mark,
    /// The mark of the last commit, or of the claim if there has been no commit since.
    pub commit: Mark,
    /// The keys and values that the coordinator saved.
    pub entries: BTreeMap<String, Bytes>,
}

/// A stored document that this version of Baton cannot use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The document is damaged, or another program wrote it.
    #[error("the stored state is damaged, or was not written by Baton: restore it with `baton state import`")]
    Damaged,
    /// The document has another format.
    #[error("the stored state has format {0:?}, but this version of Baton reads '1': use the version that wrote it")]
    Format(char),
    /// The document cannot be encoded.
    #[error("the state cannot be encoded: {0}")]
    Unwritable(postcard::Error),
}

impl Document {
    pub(super) fn claimed(self, term: Term, claim: Mark) -> Self {
        Self { term, claim, commit: claim, ..self }
    }

    pub(super) fn encode(&self) -> Result<Bytes, DocumentError> {
        let size = usize::try_from(self.size()).unwrap_or(0);
        let mut content = Vec::with_capacity(size + self.entries.len() * 8 + 64);
        content.extend_from_slice(MAGIC);
        content.push(FORMAT);
        postcard::to_extend(self, content).map(Bytes::from).map_err(DocumentError::Unwritable)
    }

    /// Decodes a stored document.
    ///
    /// # Errors
    /// [`DocumentError`] if the document cannot be read.
    pub fn decode(content: &[u8]) -> Result<Self, DocumentError> {
        match postcard::from_bytes::<Self>(body(content)?) {
            Ok(document) if document.term < HIGHEST_TERM => Ok(document),
            _ => Err(DocumentError::Damaged),
        }
    }

    /// Reads the term of the last claim from the first [`HEAD`] bytes of a stored document.
    ///
    /// # Errors
    /// [`DocumentError`] if the document cannot be read.
    pub(crate) fn term_in(head: &[u8]) -> Result<Term, DocumentError> {
        match postcard::take_from_bytes::<Term>(body(head)?) {
            Ok((term, _)) if term < HIGHEST_TERM => Ok(term),
            _ => Err(DocumentError::Damaged),
        }
    }

    /// If the document is large, encodes it on another thread, so that other tasks on this thread are not delayed.
    pub(super) async fn encode_aside(self: &Arc<Self>) -> Result<Bytes, DocumentError> {
        if self.size() < LARGE {
            return self.encode();
        }
        let document = Arc::clone(self);
        aside(move || document.encode()).await
    }

    /// If the document is large, decodes it on another thread, so that other tasks on this thread are not delayed.
    pub(super) async fn decode_aside(content: Bytes) -> Result<Self, DocumentError> {
        if (content.len() as u64) < LARGE {
            return Self::decode(&content);
        }
        aside(move || Self::decode(&content)).await
    }

    /// Returns the size of all keys and values in bytes, which [`Limits::total`] limits.
    pub fn size(&self) -> u64 {
        self.entries.iter().map(|(key, value)| key.len() as u64 + value.len() as u64).sum()
    }
}

/// Minimum size of a document that counts as large, in bytes. Encoding or decoding a smaller document takes 1–2 ms at
/// most.
const LARGE: u64 = 256 << 10;

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and will drop this future.
            Err(_) => std::future::pending().await,
        },
    }
}

fn body(content: &[u8]) -> Result<&[u8], DocumentError> {
    let rest = content.strip_prefix(MAGIC).ok_or(DocumentError::Damaged)?;
    match rest.split_first() {
        Some((&FORMAT, rest)) => Ok(rest),
        Some((&other, _)) => Err(DocumentError::Format(char::from(other))),
        None => Err(DocumentError::Damaged),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    #[test]
    fn first_bytes_name_the_term() {
        for term in [0, 1, 127, 128, 1 << 40, HIGHEST_TERM - 1] {
            for entries in [BTreeMap::new(), BTreeMap::from([("k".repeat(100), Bytes::from_static(&[0xff; 1000]))])] {
                let stored = Document { term, entries, ..Document::default() }.encode().unwrap();
                assert_eq!(Document::term_in(&stored), Ok(term));
                assert_eq!(Document::term_in(&stored[..HEAD.min(stored.len())]), Ok(term));
            }
        }
    }

    #[test]
    fn unreadable_state_names_no_term() {
        let highest = Document { term: HIGHEST_TERM, ..Document::default() }.encode().unwrap();
        for damaged in [&b""[..], b"baton state ", b"baton state 1", b"baton state 1\xff\xff", b"{}", &highest] {
            assert_eq!(Document::term_in(damaged), Err(DocumentError::Damaged), "{damaged:?}");
        }
        assert_eq!(Document::term_in(b"baton state 2\0"), Err(DocumentError::Format('2')));
    }
}
