//! Where modules come from.

use async_trait::async_trait;
use bytes::Bytes;

/// What a source names at the moment. Nothing of it is trusted yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The module's bytes, never more than the largest module.
    pub bytes: Bytes,
    /// The text of its minisign signature, where there is one.
    pub signature: Option<String>,
}

/// A place outside of the store that names a module, now this one and then that.
#[async_trait]
pub trait Source: Send {
    /// Waits until there is something new, and returns it: at first whatever is there. What has not changed
    /// is not offered again. After an error it is asked again, and waits by itself before it tries; the same
    /// error is not returned twice in a row. May be dropped at any time, and then nothing is lost.
    ///
    /// # Errors
    /// [`SourceError`] where there is nothing that could be offered. What was offered before stays.
    async fn next(&mut self) -> Result<Offer, SourceError>;
}

/// Why a source offers nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be reached at the moment; it is tried again.
    #[error("{0}")]
    Unreachable(String),
    /// What is there can be no module, or may not be had; until somebody changes that.
    #[error("{0}")]
    Unusable(String),
}
