//! Finds the highest term and the progress of scheduled runs in an election's objects. If the record was deleted or an
//! older copy has replaced it, the other objects show which terms have already begun, and which runs.

use baton_election::{ElectionName, Recalled, StoreError};

use crate::Announcement;
use crate::state::Document;

/// Adds to `recalled` the term that claimed the coordinator's state, if any, and the terms and the progress in the
/// nodes' announcements. The first [`HEAD`](crate::state::HEAD) bytes of the state are enough.
///
/// # Errors
/// [`StoreError::Misconfigured`] if the state cannot be decoded, since it may contain any term.
pub(super) fn add(
    recalled: &mut Recalled,
    state: Option<&[u8]>,
    announced: impl IntoIterator<Item = Recalled>,
) -> Result<(), StoreError> {
    let claimed = state.map_or(Ok(0), Document::term_in);
    let term = claimed.map_err(|error| StoreError::Misconfigured(error.to_string()))?;
    recalled.merge(&Recalled { term, progress: None });
    announced.into_iter().for_each(|one| recalled.merge(&one));
    Ok(())
}

/// Returns the election's term and progress in an announcement, or neither if the announcement cannot be decoded.
pub(super) fn announced(content: &[u8], election: &ElectionName) -> Recalled {
    Announcement::decode(content).map_or_else(Recalled::default, |said| said.recalled(election))
}
