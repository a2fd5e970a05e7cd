//! Changing an election's list of versions: operators push, nodes judge.

use baton_election::ElectionName;
use baton_store::clock::wall;
use baton_store::edit::{self, Edit, Tried, Unusable};
use baton_store::{ObjectStore, VersionedObject};

use super::version_list::{ListedVersion, VersionList, VersionListError};

/// Reads what an election is told about its modules; none if nothing ever was.
///
/// # Errors
/// [`EditError`] where it cannot be read.
pub async fn read_versions(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<VersionList>, EditError> {
    let found = Edit::of(store, VersionedObject::Control, election).read().await?;
    Ok(found.map(|content| VersionList::decode(&content)).transpose()?)
}

/// Changes it in one conditional write, or in none where `change` changes nothing. `change` is called anew
/// whenever somebody else was faster; what it returned for what was written is returned. Dropping the future
/// may leave the request under way.
///
/// # Errors
/// Those of `change`, and [`EditError`]: nothing was changed, or it says that this is unknown.
pub async fn edit_versions<T, E: From<EditError>>(
    store: &dyn ObjectStore,
    election: &ElectionName,
    mut change: impl FnMut(&mut VersionList) -> Result<T, E>,
) -> Result<T, E> {
    let mut edit = Edit::of(store, VersionedObject::Control, election);
    // One for all tries, so that each makes the same version of what it publishes.
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
            // An earlier try was written, or somebody else did the same.
            return Ok(doubt.map_or(answer, |doubt| doubt.answer));
        }
        match edit.write(next.encode()).await.map_err(EditError::from)? {
            Tried::Written => return Ok(answer),
            Tried::Refused => {}
            Tried::InDoubt => {
                let newest = (next.serial > before.serial).then(|| next.pushed.last().cloned()).flatten();
                doubt = Some(Doubt { newest, answer });
            }
        }
    }
}

/// Why it was not read or changed.
pub type EditError = edit::EditError<VersionListError>;

impl Unusable for VersionListError {
    const IN_DOUBT: &'static str = "the change may or may not have been written: check with `baton modules`";
}

/// A try that was written perhaps, or may yet be. Once what it was computed from is gone, it will not be.
struct Doubt<T> {
    /// The version that it made the newest. Other changes can be made twice: that changes nothing.
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
