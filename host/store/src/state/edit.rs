//! Changing the state from outside of any term, for operators.

use baton_election::{ElectionName, Refusal, Version};

use super::StateStore;
use super::document::{Document, DocumentError, Mark};
use super::pace::{Pace, tried};

/// How often another's write may come first before the change is given up: a coordinator that commits all the
/// time leaves no gap on a store that is far away.
const CONFLICTS: u32 = 100;

/// Reads an election's state; none if it was never written.
///
/// # Errors
/// [`EditError`] where it cannot be read.
pub async fn read(store: &dyn StateStore, election: &ElectionName) -> Result<Option<Document>, EditError> {
    let mut pace = Pace::new(&|_| {});
    loop {
        match found(store, election).await {
            Ok((version, found)) => return Ok(version.map(|_| found).transpose()?),
            Err(refusal) => pace.wait_to_edit(refusal).await?,
        }
    }
}

/// Changes an election's state in one conditional write, with a claim of its own: a term that has claimed it
/// before is over once it commits again. `may_change` is asked after the state was read, so that a term that
/// begins later is noticed.
///
/// # Errors
/// [`EditError`]; nothing was changed, or it says that this is unknown.
pub async fn edit<E: From<EditError>>(
    store: &dyn StateStore,
    election: &ElectionName,
    may_change: impl AsyncFn() -> Result<(), E>,
    change: impl Fn(Result<Document, DocumentError>) -> Result<Document, E>,
) -> Result<(), E> {
    let mark = Mark::new().map_err(|error| EditError::Store(Refusal::Misconfigured(error.to_string())))?;
    let mut pace = Pace::new(&|_| {});
    // Why an earlier try may have been written, or may yet be.
    let mut doubt: Option<Refusal> = None;
    let mut conflicts = 0;
    loop {
        let (version, found) = match found(store, election).await {
            Ok(found) => found,
            Err(refusal) => {
                pace.wait_to_edit(refusal).await.map_err(|refusal| EditError::after(refusal, doubt.is_some()))?;
                continue;
            }
        };
        // An earlier try was written, and its answer lost.
        if found.as_ref().is_ok_and(|found| found.claim == mark) {
            return Ok(());
        }
        let changed = async {
            may_change().await?;
            change(found)
        };
        // What forbids it now says nothing of an earlier try.
        let changed = changed.await.map_err(|error| match &doubt {
            Some(refusal) => EditError::Unknown(refusal.clone()).into(),
            None => error,
        })?;
        let next = Document { claim: mark, commit: mark, ..changed };
        let content = next.encode().map_err(EditError::from)?;
        match tried(store.write(election, version.as_ref(), content)).await {
            Ok(_) => return Ok(()),
            // Somebody else wrote, or an earlier try of this did: the next reading tells.
            Err(Refusal::Conflict) if conflicts < CONFLICTS => conflicts += 1,
            Err(refusal) => {
                if matches!(refusal, Refusal::Unknown(_)) {
                    doubt = Some(refusal.clone());
                }
                pace.wait_to_edit(refusal).await.map_err(|refusal| EditError::after(refusal, doubt.is_some()))?;
            }
        }
    }
}

/// Why the state was not read or changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError {
    /// What is stored cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] Refusal),
    /// The store may have changed it.
    #[error("{0}; it may be changed or not: look at it with `baton state`")]
    Unknown(Refusal),
}

impl EditError {
    fn after(refusal: Refusal, in_doubt: bool) -> Self {
        if in_doubt { Self::Unknown(refusal) } else { Self::Store(refusal) }
    }
}

type Found = (Option<Version>, Result<Document, DocumentError>);

async fn found(store: &dyn StateStore, election: &ElectionName) -> Result<Found, Refusal> {
    Ok(match tried(store.read(election)).await? {
        Some((version, content)) => (Some(version), Document::decode(&content)),
        None => (None, Ok(Document::default())),
    })
}
