//! Changes that an operator makes to the state, outside any term.

use baton_election::{ElectionName, StoreError};

use super::document::{Document, DocumentError, Mark};
use crate::edit::{self, Edit, Unusable, WriteOutcome};
use crate::{ObjectStore, VersionedObject};

/// Reads an election's state. Returns `None` if no state has ever been written.
///
/// # Errors
/// [`EditError`] if the state cannot be read.
pub async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<Document>, EditError> {
    let found = Edit::of(store, VersionedObject::State, election).read().await?;
    Ok(found.map(|content| Document::decode(&content)).transpose()?)
}

/// Changes an election's state in one conditional write, which also claims the state. A term that claimed the state
/// earlier ends at its next commit. Calls `may_change` after each read, to check that no term has begun.
///
/// # Errors
/// [`EditError`]. Nothing has been changed, unless the error says that the outcome is unknown.
pub async fn edit<E: From<EditError>>(
    store: &dyn ObjectStore,
    election: &ElectionName,
    may_change: impl AsyncFn() -> Result<(), E>,
    change: impl Fn(Result<Document, DocumentError>) -> Result<Document, E>,
) -> Result<(), E> {
    let mark = Mark::new().map_err(|error| EditError::Store(StoreError::Misconfigured(error.to_string())))?;
    let mut edit = Edit::of(store, VersionedObject::State, election);
    loop {
        let found = edit.read().await.map_err(EditError::from)?;
        let found = found.map_or_else(|| Ok(Document::default()), |content| Document::decode(&content));
        // This edit's own mark shows that an earlier attempt has succeeded, but that the store's answer was lost.
        if found.as_ref().is_ok_and(|found| found.claim == mark) {
            return Ok(());
        }
        let changed = async {
            may_change().await?;
            change(found)
        };
        let changed = changed.await.map_err(|why| edit.forbidden(why))?;
        let next = Document { claim: mark, commit: mark, ..changed };
        let content = next.encode().map_err(EditError::from)?;
        if edit.write(content).await.map_err(EditError::from)? == WriteOutcome::Written {
            return Ok(());
        }
    }
}

/// An error while reading or changing the state.
pub type EditError = edit::EditError<DocumentError>;

impl Unusable for DocumentError {
    const IN_DOUBT: &'static str = "the state may or may not have changed: check it with `baton state`";
}
