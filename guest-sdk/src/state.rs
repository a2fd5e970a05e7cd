//! What outlives an instance and its node: named values, kept beside the lease.

use std::error::Error;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use crate::Result;
use crate::bindings::baton::host::state::{Change, Error as Refusal};
use crate::host::Host;

/// The state: named values that the terms before this one saved, and that this one saves for the next.
///
/// A key is 1 to 512 bytes of text, by convention with `/` between its parts. A value is saved as JSON, so
/// that `baton state get` shows it to a person, or as the bytes that it is. Reading takes no time worth
/// speaking of; saving waits until the store has confirmed it.
///
/// ```
/// # use baton_sdk::{Term, testing::Harness};
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Progress {
///     partition: u32,
///     offset: u64,
/// }
///
/// fn resume(term: &Term) -> baton_sdk::Result {
///     let state = term.state();
///     let mut progress = state.get("progress")?.unwrap_or(Progress { partition: 0, offset: 0 });
///     progress.offset += 100;
///     // One value,
///     state.put("progress", &progress)?;
///     // or several things, of which all are saved or none.
///     state.commit().put("progress", &progress).put_bytes("raw", *b"\x00\x01").delete("todo/7").save()?;
///     for key in state.keys("todo/") {
///         println!("still to do: {key}");
///     }
///     Ok(())
/// }
/// # Harness::new().run(resume).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct State {
    host: Host,
}

impl State {
    pub(crate) fn new(host: Host) -> Self {
        Self { host }
    }

    /// The value under a key, if there is one.
    ///
    /// # Errors
    /// [`StateError::Decode`] if there is one, but not of this type.
    #[cfg(feature = "json")]
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        let Some(bytes) = self.get_bytes(key) else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Decode { key: key.to_owned(), source: source.into() })
    }

    /// The bytes under a key, if there are any.
    pub fn get_bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.host.get(key)
    }

    /// The keys that begin with a prefix, in the order of their bytes.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.host.keys(prefix)
    }

    /// Saves one value.
    ///
    /// # Errors
    /// [`StateError`] says whether it was saved.
    #[cfg(feature = "json")]
    pub fn put<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<(), StateError> {
        self.commit().put(key, value).save()
    }

    /// Saves bytes as they are.
    ///
    /// # Errors
    /// [`StateError`] says whether they were saved.
    pub fn put_bytes(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), StateError> {
        self.commit().put_bytes(key, value).save()
    }

    /// Removes a key. Harmless if there is none.
    ///
    /// # Errors
    /// [`StateError`] says whether it was removed.
    pub fn delete(&self, key: &str) -> Result<(), StateError> {
        self.commit().delete(key).save()
    }

    /// Begins a commit of several changes, of which all are saved or none.
    pub fn commit(&self) -> Commit<'_> {
        Commit { state: self, changes: Vec::new(), wrong: None }
    }
}

/// Changes that are saved together, in their order.
#[derive(Debug)]
#[must_use = "nothing is saved before `save`"]
pub struct Commit<'a> {
    state: &'a State,
    changes: Vec<Change>,
    wrong: Option<StateError>,
}

impl Commit<'_> {
    /// Adds a value. What is wrong with it is said by [`save`](Self::save).
    #[cfg(feature = "json")]
    pub fn put<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.put_bytes(key, bytes),
            Err(source) => {
                self.wrong.get_or_insert(StateError::Encode { key: key.to_owned(), source: source.into() });
                self
            }
        }
    }

    /// Adds bytes as they are.
    pub fn put_bytes(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.changes.push(Change::Put((key.to_owned(), value.into())));
        self
    }

    /// Removes a key. Harmless if there is none.
    pub fn delete(mut self, key: &str) -> Self {
        self.changes.push(Change::Delete(key.to_owned()));
        self
    }

    /// Saves it all; returns once the store has confirmed it.
    ///
    /// # Errors
    /// [`StateError`] says whether it was saved.
    pub fn save(self) -> Result<(), StateError> {
        match self.wrong {
            Some(error) => Err(error),
            None => self.state.host.commit(self.changes),
        }
    }
}

/// Why something could not be read or saved. But for [`Unknown`](Self::Unknown), nothing was saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A key is not allowed: it has 1 to 512 bytes.
    #[error("nothing was saved: {0}")]
    InvalidKey(String),
    /// A value, or all of them together, would be larger than the host allows.
    #[error("nothing was saved: {0}")]
    TooLarge(String),
    /// The deadline has passed, and effects are refused.
    #[error("nothing was saved: {0}")]
    Refused(String),
    /// The store did not take it. It is not saved later either: try again.
    #[error("nothing was saved: {0}")]
    Unavailable(String),
    /// The deadline passed before the store answered: it may have been saved, or not. The next term sees
    /// which.
    #[error("it may have been saved, or not: {0}")]
    Unknown(String),
    /// A value cannot be written as JSON.
    #[error("nothing was saved: the value for the key `{key}` cannot be written as JSON")]
    Encode {
        /// The key that it was to be saved under.
        key: String,
        /// Why not.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A value is not of the type that was asked for.
    #[error("the state's value under the key `{key}` is not what this coordinator expects")]
    Decode {
        /// The key that it is saved under.
        key: String,
        /// What is wrong, and where in the value.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl From<Refusal> for StateError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::InvalidKey(why) => Self::InvalidKey(why),
            Refusal::TooLarge(why) => Self::TooLarge(why),
            Refusal::Refused(why) => Self::Refused(why),
            Refusal::Unavailable(why) => Self::Unavailable(why),
            Refusal::Unknown(why) => Self::Unknown(why),
        }
    }
}
