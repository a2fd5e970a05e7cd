//! The highest term that anything in a store names for an election. A node that finds the record deleted, or set back to
//! an earlier one, learns here that there was a later term.

use baton_election::{StoreError, Term};

use crate::Announcement;
use crate::state::Document;

/// The highest of the term in the record, the one that claimed the coordinator's state, if it keeps one, and those that
/// nodes have announced. Of the state, the first [`HEAD`](crate::state::HEAD) bytes are enough.
///
/// # Errors
/// [`StoreError::Misconfigured`] where the state says nothing that can be read: it may name any term.
pub(super) fn highest(
    recorded: Term,
    state: Option<&[u8]>,
    announced: impl IntoIterator<Item = Term>,
) -> Result<Term, StoreError> {
    let claimed = state.map_or(Ok(0), Document::term_in);
    let claimed = claimed.map_err(|error| StoreError::Misconfigured(error.to_string()))?;
    Ok(announced.into_iter().fold(recorded.max(claimed), Term::max))
}

/// The term that an announcement names: 0 where its node has seen none, or says nothing of terms, as older ones do.
pub(super) fn announced(content: &[u8]) -> Term {
    Announcement::decode(content).map_or(0, |said| said.term)
}
