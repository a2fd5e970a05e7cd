//! A coordinator's state: one document per election, beside its lease, that outlives every node.
//!
//! Each new term **claims** the document with a conditional write before its instance starts, and reads
//! from memory afterwards; each commit is one conditional write on top of the last. So whoever claims
//! fences off all before it: what they still have under way finds a version that is gone. Only where one term follows
//! another in the same process, which has its eyes on both, is the claim made ahead.
//!
//! `document` is what is stored, `claim` a term's right to change it, `edit` an operator's, and
//! [`StateStore`] the place.

mod claim;
mod document;
mod edit;
pub(crate) mod foreign;
mod pace;

use async_trait::async_trait;
use baton_election::{ElectionName, Refusal, Version};
use bytes::Bytes;

pub use claim::{Change, Claim, ClaimError, Claimant, CommitError, Inheritance, Succession};
pub(crate) use document::HEAD;
pub use document::{Document, DocumentError, KEY, LARGEST, Limits};
pub use edit::{EditError, edit, read};
pub use pace::{Pace, tried};

/// A place that keeps one versioned object for each election, which only conditional writes change.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// The object and its version; none if it was never written.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] and [`Refusal::Misconfigured`].
    async fn read(&self, election: &ElectionName) -> Result<Option<(Version, Bytes)>, Refusal>;

    /// Writes the object whole, only if it still has that version; without one, only if there is none.
    /// Returns its new version, which no other write has. Dropping the future may leave the request
    /// under way.
    ///
    /// # Errors
    /// [`Refusal::Conflict`] if the condition failed, [`Refusal::Unknown`] if it may have been written,
    /// [`Refusal::Misconfigured`] if it was not.
    async fn write(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal>;
}
