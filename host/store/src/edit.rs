//! Changing a versioned object, through conflict and doubt.

use std::time::Duration;

use baton_election::{ElectionName, StoreError, Version};
use bytes::Bytes;
use tokio::time::sleep;

use crate::jitter::between;
use crate::pace::{Pace, tried};
use crate::{ObjectStore, Reading, VersionedObject};

/// How often another's write may come first before the change is given up: a client that writes all the time
/// leaves no gap on a store that is far away.
const CONFLICTS: u32 = 100;
/// How long to wait at most after each such, so that many do not meet again at once.
const APART: Duration = Duration::from_millis(50);

/// One change of an election's object: it is read, and written on top of what was read, until that succeeds or is given
/// up.
pub struct Edit<'a> {
    store: &'a dyn ObjectStore,
    object: VersionedObject,
    election: &'a ElectionName,
    pace: Pace<'a>,
    /// Of what was read last.
    version: Option<Version>,
    conflicts: u32,
    doubt: Option<StoreError>,
}

/// What came of a try to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tried {
    /// It is written.
    Written,
    /// It is not: read again.
    Refused,
    /// It may have been written, or may yet be, unless somebody else writes first: read again.
    InDoubt,
}

/// Why an edit was given up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GivenUp {
    /// Nothing was written.
    #[error(transparent)]
    Unwritten(StoreError),
    /// An earlier try may have been written.
    #[error(transparent)]
    InDoubt(StoreError),
}

/// What is wrong with an object's content where it cannot be edited.
pub trait Unusable: std::error::Error + 'static {
    /// What is to be done about a change that may have been written, or not.
    const IN_DOUBT: &'static str;
}

/// Why an object was not read or changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EditError<U: Unusable> {
    /// What is stored cannot be used.
    #[error(transparent)]
    Unusable(U),
    /// The store cannot be used.
    #[error(transparent)]
    Store(StoreError),
    /// The store may have changed it.
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
    /// Begins.
    pub fn of(store: &'a dyn ObjectStore, object: VersionedObject, election: &'a ElectionName) -> Self {
        let pace = Pace::new(&|_| {});
        Self { store, object, election, pace, version: None, conflicts: 0, doubt: None }
    }

    /// What the object is now; none if there is none.
    ///
    /// # Errors
    /// [`GivenUp`] if the store refuses that, or has not answered for long.
    pub async fn read(&mut self) -> Result<Option<Bytes>, GivenUp> {
        loop {
            match tried(self.store.read(self.object, self.election, None)).await {
                Ok(Reading::Found(version, content)) => {
                    self.version = Some(version);
                    return Ok(Some(content));
                }
                // To a reader that knows no version nothing is unchanged.
                Ok(Reading::Nothing | Reading::Unchanged) => {
                    self.version = None;
                    return Ok(None);
                }
                Err(error) => self.wait(error).await?,
            }
        }
    }

    /// Tries to write it on top of what was read.
    ///
    /// # Errors
    /// [`GivenUp`] if there should be no further try.
    pub async fn write(&mut self, content: Bytes) -> Result<Tried, GivenUp> {
        match tried(self.store.write(self.object, self.election, self.version.as_ref(), content)).await {
            Ok(_) => Ok(Tried::Written),
            // Somebody else wrote, or an earlier try of this did: the next reading tells.
            Err(StoreError::Conflict) if self.conflicts < CONFLICTS => {
                self.conflicts += 1;
                sleep(between(Duration::ZERO, APART)).await;
                Ok(Tried::Refused)
            }
            Err(error) => {
                let is_in_doubt = matches!(error, StoreError::Unknown(_));
                if is_in_doubt {
                    self.doubt = Some(error.clone());
                }
                self.wait(error).await?;
                Ok(if is_in_doubt { Tried::InDoubt } else { Tried::Refused })
            }
        }
    }

    /// Why the change was not made that is forbidden now: where an earlier try may have been written, that nobody knows.
    pub fn forbidden<U: Unusable, E: From<EditError<U>>>(&self, why: E) -> E {
        self.doubt.clone().map_or(why, |error| EditError::Unknown(error).into())
    }

    async fn wait(&mut self, error: StoreError) -> Result<(), GivenUp> {
        let given_up = if self.doubt.is_some() { GivenUp::InDoubt } else { GivenUp::Unwritten };
        self.pace.wait_to_edit(error).await.map_err(given_up)
    }
}
