//! Finds the highest term in an election's objects. If the record was deleted or an older copy has replaced it, the
//! other objects show which terms have already begun.

use baton_election::{StoreError, Term};

use crate::Announcement;
use crate::state::Document;

/// Returns the highest of these terms: the term in the record, the term that claimed the coordinator's state, if any,
/// and the terms in the nodes' announcements. The first [`HEAD`](crate::state::HEAD) bytes of the state are enough.
///
/// # Errors
/// [`StoreError::Misconfigured`] if the state cannot be decoded, since it may contain any term.
pub(super) fn highest(
    recorded: Term,
    state: Option<&[u8]>,
    announced: impl IntoIterator<Item = Term>,
) -> Result<Term, StoreError> {
    let claimed = state.map_or(Ok(0), Document::term_in);
    let claimed = claimed.map_err(|error| StoreError::Misconfigured(error.to_string()))?;
    Ok(announced.into_iter().fold(recorded.max(claimed), Term::max))
}

/// Returns the term in an announcement, or 0 if the node has seen no term or does not announce terms.
pub(super) fn announced(content: &[u8]) -> Term {
    Announcement::decode(content).map_or(0, |said| said.term)
}
