//! The highest term that any object in a store contains for an election. If the record was deleted, or replaced by an
//! earlier one, this term shows that there was a later term.

use baton_election::{StoreError, Term};

use crate::Announcement;
use crate::state::Document;

/// The highest of three terms: the record's, that of the claim in the coordinator's state, if any, and those in the
/// nodes' announcements. The first [`HEAD`](crate::state::HEAD) bytes of the state are enough.
///
/// # Errors
/// [`StoreError::Misconfigured`] if the state cannot be read: it may contain any term.
pub(super) fn highest(
    recorded: Term,
    state: Option<&[u8]>,
    announced: impl IntoIterator<Item = Term>,
) -> Result<Term, StoreError> {
    let claimed = state.map_or(Ok(0), Document::term_in);
    let claimed = claimed.map_err(|error| StoreError::Misconfigured(error.to_string()))?;
    Ok(announced.into_iter().fold(recorded.max(claimed), Term::max))
}

/// The term in an announcement. 0 if the node has seen no term, or does not announce terms.
pub(super) fn announced(content: &[u8]) -> Term {
    Announcement::decode(content).map_or(0, |said| said.term)
}
