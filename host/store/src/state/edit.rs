//! Changing the state from outside of any term, for operators.

use baton_election::{ElectionName, StoreError};

use super::document::{Document, DocumentError, Mark};
use crate::edit::{self, Edit, Tried, Unusable};
use crate::{ObjectStore, VersionedObject};

/// Reads an election's state; none if it was never written.
///
/// # Errors
/// [`EditError`] where it cannot be read.
pub async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<Document>, EditError> {
    let found = Edit::of(store, VersionedObject::State, election).read().await?;
    Ok(found.map(|content| Document::decode(&content)).transpose()?)
}

/// Changes an election's state in one conditional write, with a claim of its own: a term that has claimed it
/// before is over once it commits again. `may_change` is asked after the state was read, so that a term that
/// begins later is noticed.
///
/// # Errors
/// [`EditError`]; nothing was changed, or it says that this is unknown.
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
        // An earlier try was written, and its answer lost.
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
        if edit.write(content).await.map_err(EditError::from)? == Tried::Written {
            return Ok(());
        }
    }
}

/// Why the state was not read or changed.
pub type EditError = edit::EditError<DocumentError>;

impl Unusable for DocumentError {
    const IN_DOUBT: &'static str = "the state may or may not have changed: check it with `baton state`";
}
