//! Changing what an election is told about its modules, by whoever may: operators who push, nodes that judge.

use std::time::Duration;

use baton_election::{ElectionName, Refusal, Version};

use super::control::{Control, ControlError, Entry};
use super::jitter::between;
use baton_store::clock::wall;
use baton_store::state::{Pace, tried};
use baton_store::{ModuleStore, Reading};

/// How often another's write may come first before the change is given up.
const CONFLICTS: u32 = 100;
/// How long to wait at most after each such, so that many do not meet again at once.
const APART: Duration = Duration::from_millis(50);

/// Reads what an election is told about its modules; none if nothing ever was.
///
/// # Errors
/// [`EditError`] where it cannot be read.
pub async fn read_control(store: &dyn ModuleStore, election: &ElectionName) -> Result<Option<Control>, EditError> {
    let mut pace = Pace::new(&|_| {});
    loop {
        match found(store, election).await {
            Ok((_, content)) => return Ok(content?),
            Err(refusal) => pace.wait_to_edit(refusal).await?,
        }
    }
}

/// Changes it in one conditional write, or in none where `change` changes nothing. `change` is called anew
/// whenever somebody else was faster; what it returned for what was written is returned. Dropping the future
/// may leave the request under way.
///
/// # Errors
/// Those of `change`, and [`EditError`]: nothing was changed, or it says that this is unknown.
pub async fn edit_control<T, E: From<EditError>>(
    store: &dyn ModuleStore,
    election: &ElectionName,
    mut change: impl FnMut(&mut Control) -> Result<T, E>,
) -> Result<T, E> {
    let mut pace = Pace::new(&|_| {});
    // One for all tries, so that each makes the same version of what it publishes.
    let begun = Control::begun(wall());
    let mut doubt: Option<Doubt<T>> = None;
    let mut conflicts = 0;
    loop {
        let (version, content) = match found(store, election).await {
            Ok(found) => found,
            Err(refusal) => {
                pace.wait_to_edit(refusal).await.map_err(|refusal| EditError::after(refusal, doubt.is_some()))?;
                continue;
            }
        };
        let before = content.map_err(EditError::from)?.unwrap_or_else(|| begun.clone());
        if let Some(doubt) = doubt.take_if(|doubt| doubt.is_settled_by(&before)) {
            return Ok(doubt.answer);
        }
        let mut next = before.clone();
        // What forbids it now says nothing of an earlier try.
        let answer = change(&mut next).map_err(|error| match &doubt {
            Some(doubt) => EditError::Unknown(doubt.refusal.clone()).into(),
            None => error,
        })?;
        if next == before {
            // An earlier try was written, or somebody else did the same.
            return Ok(doubt.map_or(answer, |doubt| doubt.answer));
        }
        match tried(store.write_control(election, version.as_ref(), next.encode())).await {
            Ok(_) => return Ok(answer),
            // Somebody else wrote, or an earlier try of this did: the next reading tells.
            Err(Refusal::Conflict) if conflicts < CONFLICTS => {
                conflicts += 1;
                tokio::time::sleep(between(Duration::ZERO, APART)).await;
            }
            Err(refusal) => {
                if matches!(refusal, Refusal::Unknown(_)) {
                    let newest = (next.serial > before.serial).then(|| next.pushed.last().cloned()).flatten();
                    doubt = Some(Doubt { refusal: refusal.clone(), newest, answer });
                }
                pace.wait_to_edit(refusal).await.map_err(|refusal| EditError::after(refusal, doubt.is_some()))?;
            }
        }
    }
}

/// Why it was not read or changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError {
    /// What is stored cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] Refusal),
    /// The store may have changed it.
    #[error("{0}; it may be changed or not: look at it with `baton modules`")]
    Unknown(Refusal),
}

impl EditError {
    fn after(refusal: Refusal, in_doubt: bool) -> Self {
        if in_doubt { Self::Unknown(refusal) } else { Self::Store(refusal) }
    }
}

/// A try that was written perhaps, or may yet be. Once what it was computed from is gone, it will not be.
struct Doubt<T> {
    refusal: Refusal,
    /// The version that it made the newest. Other changes can be made twice: that changes nothing.
    newest: Option<Entry>,
    answer: T,
}

impl<T> Doubt<T> {
    fn is_settled_by(&self, found: &Control) -> bool {
        self.newest.as_ref().is_some_and(|newest| found.includes(newest))
    }
}

type Found = (Option<Version>, Result<Option<Control>, ControlError>);

async fn found(store: &dyn ModuleStore, election: &ElectionName) -> Result<Found, Refusal> {
    Ok(match tried(store.read_control(election, None)).await? {
        Reading::Found(version, content) => (Some(version), Control::decode(&content).map(Some)),
        // Nothing is unchanged for whoever knows no version.
        Reading::Nothing | Reading::Unchanged => (None, Ok(None)),
    })
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
