//! A coordinator's state: one document per election that outlives every node.
//!
//! Each new term **claims** the document with a conditional write before its instance starts. Afterwards, the term
//! reads from memory. Each commit is one conditional write, based on the previous write. So a claim fences off all
//! earlier terms: a late commit from an earlier term depends on a version that no longer exists. If one process runs
//! two terms in a row, it makes the second term's claim in advance.
//!
//! `document` defines the stored format, `claim` implements a term's right to change the document, and `edit`
//! implements changes by an operator.

mod claim;
mod document;
mod edit;
pub(crate) mod untrusted;

pub use claim::{Change, Claim, ClaimError, Claimant, CommitError, Handover, HandoverClaim, ReadAhead};
pub use document::{Document, DocumentError, HEAD, KEY, LARGEST, Limits};
pub use edit::{EditError, edit, read};
