//! Named values that outlive an instance and its node. The store keeps the values with the lease.

use std::error::Error;

#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use crate::Result;
use crate::bindings::baton::host::state::{Change, Error as Refusal};
use crate::host::Host;

/// Named values that earlier terms saved, and that this term can save for later terms.
///
/// A key is a string of 1 to 512 bytes, by convention with `/` between its parts. A value is either bytes or JSON, and
/// `baton state get` prints both. Reads are served from memory. A save returns once the store has confirmed the change.
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
///     // Saves one value.
///     state.put("progress", &progress)?;
///     // Saves several changes atomically.
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

    /// Returns the value under a key, if any.
    ///
    /// # Errors
    /// [`StateError::Decode`] if the value cannot be decoded as this type.
    #[cfg(feature = "json")]
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        let Some(bytes) = self.get_bytes(key) else { return Ok(None) };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| StateError::Decode { key: key.to_owned(), source: source.into() })
    }

    /// Returns the bytes under a key, if any.
    pub fn get_bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.host.get(key)
    }

    /// Returns the keys that begin with `prefix`, in byte order.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.host.keys(prefix)
    }

    /// Saves one value.
    ///
    /// # Errors
    /// Returns a [`StateError`], which tells whether the change was saved.
    #[cfg(feature = "json")]
    pub fn put<T: Serialize + ?Sized>(&self, key: &str, value: &T) -> Result<(), StateError> {
        self.commit().put(key, value).save()
    }

    /// Saves bytes as they are, without encoding them.
    ///
    /// # Errors
    /// Returns a [`StateError`], which tells whether the change was saved.
    pub fn put_bytes(&self, key: &str, value: impl Into<Vec<u8>>) -> Result<(), StateError> {
        self.commit().put_bytes(key, value).save()
    }

    /// Removes a key, if it exists.
    ///
    /// # Errors
    /// Returns a [`StateError`], which tells whether the change was saved.
    pub fn delete(&self, key: &str) -> Result<(), StateError> {
        self.commit().delete(key).save()
    }

    /// Starts a commit, which saves several changes atomically.
    pub fn commit(&self) -> Commit<'_> {
        Commit { state: self, changes: Vec::new(), wrong: None }
    }
}

/// A list of changes. [`save`](Self::save) applies them in order, and either all of them or none.
#[derive(Debug)]
#[must_use = "nothing is saved before `save`"]
pub struct Commit<'a> {
    state: &'a State,
    changes: Vec<Change>,
    wrong: Option<StateError>,
}

impl Commit<'_> {
    /// Adds a value. If the value cannot be encoded, [`save`](Self::save) returns the error.
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

    /// Adds bytes as they are, without encoding them.
    pub fn put_bytes(mut self, key: &str, value: impl Into<Vec<u8>>) -> Self {
        self.changes.push(Change::Put((key.to_owned(), value.into())));
        self
    }

    /// Removes a key, if it exists.
    pub fn delete(mut self, key: &str) -> Self {
        self.changes.push(Change::Delete(key.to_owned()));
        self
    }

    /// Saves all changes, and returns once the store has confirmed them.
    ///
    /// # Errors
    /// Returns a [`StateError`], which tells whether the changes were saved.
    pub fn save(self) -> Result<(), StateError> {
        match self.wrong {
            Some(error) => Err(error),
            None => self.state.host.commit(self.changes),
        }
    }
}

/// The reason why a read or a commit failed. A failed commit has saved nothing, unless the error is
/// [`Unknown`](Self::Unknown): that commit may have been saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A key is empty or longer than 512 bytes.
    #[error("nothing was saved: {0}")]
    InvalidKey(String),
    /// A value, or the entire state, would exceed the host's limit.
    #[error("nothing was saved: {0}")]
    TooLarge(String),
    /// The deadline has passed, so the host refuses effects.
    #[error("nothing was saved: {0}")]
    Refused(String),
    /// The store did not save the commit, and will not save it later. The coordinator can try again.
    #[error("nothing was saved: {0}")]
    Unavailable(String),
    /// The deadline passed before the store responded. The next term can see whether the commit was saved.
    #[error("the commit may or may not have been saved: {0}")]
    Unknown(String),
    /// A value cannot be encoded as JSON.
    #[error("nothing was saved: the value for the key `{key}` cannot be written as JSON")]
    Encode {
        /// The key.
        key: String,
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A value cannot be decoded as the requested type.
    #[error("the state's value under the key `{key}` is not what this coordinator expects")]
    Decode {
        /// The key.
        key: String,
        /// The decoder's error, with its position in the value.
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
