//! Sources of modules.

use async_trait::async_trait;
use bytes::Bytes;

/// The module that a source currently names. It is untrusted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The module's bytes, at most `LARGEST_MODULE`.
    pub bytes: Bytes,
    /// Text of the minisign signature, if any.
    pub signature: Option<String>,
}

/// A location outside the store that names a module. It may name a different module later.
#[async_trait]
pub trait Source: Send {
    /// Waits until the module changes, and returns the new one. The first call returns the current module. An unchanged
    /// module is not offered again. After an error, the caller calls again, and the source itself waits before it
    /// retries. A source does not return the same error twice in a row. Dropping the future loses no change.
    ///
    /// # Errors
    /// [`SourceError`] if there is nothing to offer. An earlier offer stays valid.
    async fn next(&mut self) -> Result<Offer, SourceError>;
}

/// The reason why a source offers nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SourceError {
    /// The source is currently unreachable. The next call retries.
    #[error("{0}")]
    Unreachable(String),
    /// The content is not a module, or may not be read. The error lasts until somebody fixes the cause.
    #[error("{0}")]
    Unusable(String),
}
