//! A coordinator's state: one document per election, beside its lease, that outlives every node.
//!
//! Each new term **claims** the document with a conditional write before its instance starts, and reads
//! from memory afterwards; each commit is one conditional write on top of the last. So a claim
//! fences off the terms before it: a commit of theirs that is still under way finds a version that is gone. Only where one term follows
//! another in the same process, which has its eyes on both, is the claim made ahead.
//!
//! `document` is what is stored, `claim` a term's right to change it, and `edit` an operator's.

mod claim;
mod document;
mod edit;
pub(crate) mod foreign;

pub use claim::{Change, Claim, ClaimError, Claimant, CommitError, Handover, HandoverClaim, ReadAhead};
pub use document::{Document, DocumentError, HEAD, KEY, LARGEST, Limits};
pub use edit::{EditError, edit, read};
