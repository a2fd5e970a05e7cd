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

/// A file or a registry that names a module, and may later name another module.
#[async_trait]
pub trait Source: Send {
    /// Waits until the module changes, and returns the new module. The first call returns the current module.
    ///
    /// A source does not offer an unchanged module again, unless an error occurred in between. After an error, call
    /// this method again immediately, because the source itself waits before it retries. A source does not return the
    /// same error twice in a row. If the future is dropped, no change is lost.
    ///
    /// # Errors
    /// [`SourceError`] if there is nothing to offer. Earlier offers stay valid.
    async fn next(&mut self) -> Result<Offer, SourceError>;
}

/// The reason why a source offers nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SourceError {
    /// The source is currently unreachable. The next call retries.
    #[error("{0}")]
    Unreachable(String),
    /// The content is not a module, or this host is not permitted to read the content. The error lasts until somebody
    /// fixes the cause.
    #[error("{0}")]
    Unusable(String),
}
