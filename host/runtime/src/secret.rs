//! Secrets that the configuration refers to by file or variable. Baton passes the text of a secret to the coordinator
//! only.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{FileError, read_file};

/// Maximum length of a secret (bytes). A longer file was probably named by mistake.
const LONGEST: u64 = 64 << 10;

/// A string that `Debug` and `Display` print as `***`, so that it does not get into logs by mistake.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a string.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The name of a secret and the location of its text: a file, or an environment variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretSource {
    name: String,
    location: Location,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Location {
    /// A file, read on each use: the secret may be replaced while the host runs.
    File(PathBuf),
    /// The text of an environment variable, read at startup: a process's environment does not change.
    Variable(Secret),
}

impl SecretSource {
    /// A secret whose text is in a file.
    #[must_use]
    pub fn in_file(name: &str, path: PathBuf) -> Self {
        Self { name: name.to_owned(), location: Location::File(path) }
    }

    /// A secret whose text is the value of an environment variable.
    ///
    /// # Errors
    /// Returns the reason if the text cannot be a secret.
    pub fn of_variable(name: &str, text: &str) -> Result<Self, String> {
        let secret = usable(text.to_owned())?;
        Ok(Self { name: name.to_owned(), location: Location::Variable(secret) })
    }

    /// The secret's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the file that [`SecretSource::read`] would read, which may block. Returns `None` if the text is in
    /// memory.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.location {
            Location::File(path) => Some(path),
            Location::Variable(_) => None,
        }
    }

    /// Returns the secret's current text.
    ///
    /// # Errors
    /// Returns the reason if the secret cannot be read. The reason contains no text from the file.
    pub fn read(&self) -> Result<Secret, String> {
        match &self.location {
            Location::Variable(secret) => Ok(secret.clone()),
            Location::File(path) => read(path).map_err(|problem| {
                format!("cannot read {:?} from the file {:?}, which {problem}", self.name, path.display())
            }),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads a file and removes its last line ending, since editors and `echo` add one.
fn read(path: &Path) -> Result<Secret, String> {
    let bytes = match read_file(path, LONGEST) {
        Ok(bytes) => bytes,
        Err(FileError::TooLong(_)) => return Err("is larger than 64 KiB: does it contain a secret?".to_string()),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::from_utf8(bytes).map_err(|_| "is not UTF-8: a secret must be text")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    usable(text)
}

fn usable(text: String) -> Result<Secret, String> {
    if text.is_empty() {
        return Err("is empty".to_string());
    }
    if text.contains('\0') {
        return Err("contains a NUL character, which a variable cannot contain".to_string());
    }
    Ok(Secret::new(text))
}
