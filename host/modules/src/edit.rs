//! Changes to an election's list of versions. Operators push versions, and nodes record verdicts.

use baton_base::clock::wall;
use baton_election::ElectionName;
use baton_store::edit::{self, Edit, Unusable, WriteOutcome};
use baton_store::{ObjectStore, VersionedObject};

use super::version_list::{ListedVersion, VersionList, VersionListError};

/// Reads an election's list of versions, if there is one.
///
/// # Errors
/// [`EditError`] if the list cannot be read.
pub async fn read_versions(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<VersionList>, EditError> {
    let found = Edit::of(store, VersionedObject::Control, election).read().await?;
    Ok(found.map(|content| VersionList::decode(&content)).transpose()?)
}

/// Changes the list in one conditional write. Writes nothing if `change` leaves the list as it is. If another writer
/// changes the list in the meantime, reads the new list and calls `change` again. Returns the result of the call to
/// `change` that produced the written list. If the future is dropped, its last write may still reach the store.
///
/// # Errors
/// Returns the errors of `change`, and [`EditError`]. After an error, the list is unchanged, unless the error says that
/// the outcome is unknown.
pub async fn edit_versions<T, E: From<EditError>>(
    store: &dyn ObjectStore,
    election: &ElectionName,
    mut change: impl FnMut(&mut VersionList) -> Result<T, E>,
) -> Result<T, E> {
    let mut edit = Edit::of(store, VersionedObject::Control, election);
    // If the store has no list yet, all attempts start from this list, so that every attempt publishes the same
    // version.
    let begun = VersionList::begun(wall());
    let mut doubt: Option<Doubt<T>> = None;
    loop {
        let found = edit.read().await.map_err(EditError::from)?;
        let before = found.map(|content| VersionList::decode(&content)).transpose().map_err(EditError::from)?;
        let before = before.unwrap_or_else(|| begun.clone());
        if let Some(doubt) = doubt.take_if(|doubt| doubt.is_settled_by(&before)) {
            return Ok(doubt.answer);
        }
        let mut next = before.clone();
        let answer = change(&mut next).map_err(|why| edit.forbidden(why))?;
        if next == before {
            // An earlier attempt was written after all, or another writer has made the same change.
            return Ok(doubt.map_or(answer, |doubt| doubt.answer));
        }
        match edit.write(next.encode()).await.map_err(EditError::from)? {
            WriteOutcome::Written => return Ok(answer),
            WriteOutcome::Refused => {}
            WriteOutcome::InDoubt => {
                let newest = (next.serial > before.serial).then(|| next.pushed.last().cloned()).flatten();
                doubt = Some(Doubt { newest, answer });
            }
        }
    }
}

/// An error from reading or changing the list.
pub type EditError = edit::EditError<VersionListError>;

impl Unusable for VersionListError {
    const IN_DOUBT: &'static str = "the change may or may not have been written: check with `baton modules`";
}

/// An attempt whose write may have succeeded. The write may still take effect later, as long as the store holds the
/// list that the attempt read.
struct Doubt<T> {
    /// The version that this attempt made the newest, if any. If a later reading of the list contains this version, the
    /// write has succeeded. An attempt without such a version needs no check, because repeating the change has no
    /// further effect.
    newest: Option<ListedVersion>,
    answer: T,
}

impl<T> Doubt<T> {
    fn is_settled_by(&self, found: &VersionList) -> bool {
        self.newest.as_ref().is_some_and(|newest| found.includes(newest))
    }
}

#[cfg(test)]
mod tests;
