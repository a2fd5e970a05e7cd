//! A coordinator's state: one document per election that outlives every node.
//!
//! Each new term **claims** the document with a conditional write before its instance starts, and reads from memory
//! afterwards. Each commit is one conditional write, based on the previous one. So a claim fences off all earlier
//! terms: a late commit by an earlier term depends on a version that no longer exists. If one process runs both terms,
//! it makes the claim in advance.
//!
//! `document` is the stored format, `claim` is a term's right to change the document, and `edit` is a change by an
//! operator.

mod claim;
mod document;
mod edit;
pub(crate) mod untrusted;

pub use claim::{Change, Claim, ClaimError, Claimant, CommitError, Handover, HandoverClaim, ReadAhead};
pub use document::{Document, DocumentError, HEAD, KEY, LARGEST, Limits};
pub use edit::{EditError, edit, read};
