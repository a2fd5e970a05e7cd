//! Edits versioned objects despite conflicts and unknown outcomes.

use std::time::Duration;

use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use tokio::time::sleep;

use crate::pace::{RetryPacer, tried};
use crate::{ObjectStore, Reading, VersionedObject};
use baton_base::jitter::between;

/// Maximum number of conflicts before an edit fails. Without a limit, an edit might never end: if the store is far
/// away, a client that writes continuously may always be faster.
const CONFLICTS: u32 = 100;
/// Longest random pause after a conflict, so that many writers do not collide again.
const APART: Duration = Duration::from_millis(50);

/// One edit of an election's object. The caller reads the object, changes it, and writes it on condition that its
/// version is unchanged. The caller repeats these steps until a write succeeds.
pub struct Edit<'a> {
    store: &'a dyn ObjectStore,
    object: VersionedObject,
    election: &'a ElectionName,
    pace: RetryPacer<'a>,
    version: Option<Version>,
    conflicts: u32,
    doubt: Option<StoreError>,
}

/// The outcome of one write of an edit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOutcome {
    /// The change was written.
    Written,
    /// The change was not written. The caller must read the object again, and repeat the change.
    Refused,
    /// The change may have been written, or may still be written unless another client writes first. The caller must
    /// read the object again to find out.
    InDoubt,
}

/// The reason why an edit has been given up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GivenUp {
    /// Nothing was written.
    #[error(transparent)]
    Unwritten(StoreError),
    /// An earlier write may have succeeded.
    #[error(transparent)]
    InDoubt(StoreError),
}

/// An error type for stored content that an edit cannot use.
pub trait Unusable: std::error::Error + 'static {
    /// Advice to the operator for a change whose outcome is unknown.
    const IN_DOUBT: &'static str;
}

/// An error while reading or changing an object.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError<U: Unusable> {
    /// The stored content cannot be used.
    #[error(transparent)]
    Unusable(U),
    /// The store refused a request, or did not answer.
    #[error(transparent)]
    Store(StoreError),
    /// The object may have been changed.
    #[error("{0}; {doubt}", doubt = U::IN_DOUBT)]
    Unknown(StoreError),
}

impl<U: Unusable> From<U> for EditError<U> {
    fn from(unusable: U) -> Self {
        Self::Unusable(unusable)
    }
}

impl<U: Unusable> From<GivenUp> for EditError<U> {
    fn from(given_up: GivenUp) -> Self {
        match given_up {
            GivenUp::Unwritten(error) => Self::Store(error),
            GivenUp::InDoubt(error) => Self::Unknown(error),
        }
    }
}

impl<'a> Edit<'a> {
    /// Starts an edit of an election's object.
    pub fn of(store: &'a dyn ObjectStore, object: VersionedObject, election: &'a ElectionName) -> Self {
        let pace = RetryPacer::new(&|_| {});
        Self { store, object, election, pace, version: None, conflicts: 0, doubt: None }
    }

    /// Reads the object. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`GivenUp`] if the store refuses the request, or does not answer for a long time.
    pub async fn read(&mut self) -> Result<Option<Bytes>, GivenUp> {
        loop {
            match tried(self.store.read(self.object, self.election, None)).await {
                Ok(Reading::Found(version, content)) => {
                    self.version = Some(version);
                    return Ok(Some(content));
                }
                // The request contains no known version, so the answer is never `Unchanged`.
                Ok(Reading::Nothing | Reading::Unchanged) => {
                    self.version = None;
                    return Ok(None);
                }
                Err(error) => self.wait(error).await?,
            }
        }
    }

    /// Tries to write `content`, on condition that the object still has the version that was read.
    ///
    /// # Errors
    /// [`GivenUp`] if the write should not be attempted again.
    pub async fn write(&mut self, content: Bytes) -> Result<WriteOutcome, GivenUp> {
        match tried(self.store.write(self.object, self.election, self.version.as_ref(), content)).await {
            Ok(_) => Ok(WriteOutcome::Written),
            // Either another client has written, or an earlier write of this edit has succeeded. The next read shows
            // which.
            Err(StoreError::Conflict) if self.conflicts < CONFLICTS => {
                self.conflicts += 1;
                sleep(between(Duration::ZERO, APART)).await;
                Ok(WriteOutcome::Refused)
            }
            Err(error) => {
                let is_in_doubt = matches!(error, StoreError::Unknown(_));
                if is_in_doubt {
                    self.doubt = Some(error.clone());
                }
                self.wait(error).await?;
                Ok(if is_in_doubt { WriteOutcome::InDoubt } else { WriteOutcome::Refused })
            }
        }
    }

    /// Returns the error to report if the change is no longer allowed. `why` is the reason. If an earlier write of this
    /// edit may have succeeded, the error says that the outcome is unknown instead.
    pub fn forbidden<U: Unusable, E: From<EditError<U>>>(&self, why: E) -> E {
        self.doubt.clone().map_or(why, |error| EditError::Unknown(error).into())
    }

    async fn wait(&mut self, error: StoreError) -> Result<(), GivenUp> {
        let given_up = if self.doubt.is_some() { GivenUp::InDoubt } else { GivenUp::Unwritten };
        self.pace.wait_to_edit(error).await.map_err(given_up)
    }
}
