//! A coordinator's state: one document per election that outlives every node.
//!
//! Each new term **claims** the document with a conditional write before its instance starts, and reads from memory
//! afterwards. Each commit is one conditional write on top of the last. So a claim fences off the earlier terms: a late
//! commit of theirs names a version that is gone. If one process runs both terms, the claim is made ahead.
//!
//! `document` is the stored format, `claim` a term's right to change it, and `edit` an operator's.

mod claim;
mod document;
mod edit;
pub(crate) mod untrusted;

pub use claim::{Change, Claim, ClaimError, Claimant, CommitError, Handover, HandoverClaim, ReadAhead};
pub use document::{Document, DocumentError, HEAD, KEY, LARGEST, Limits};
pub use edit::{EditError, edit, read};
