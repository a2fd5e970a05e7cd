//! Secrets by reference: only the coordinator gets to see what they are.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{FileError, read_file};

/// No secret is that long, in bytes; a file that is was named by mistake.
const LONGEST: u64 = 64 << 10;

/// A text that is shown as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one who needs it.
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

/// Where a secret is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretSource {
    name: String,
    place: Place,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// Read anew whenever it is asked for: secrets are replaced while hosts run.
    File(PathBuf),
    /// What was found there: a process's environment does not change.
    Variable(Secret),
}

impl SecretSource {
    /// A secret that is in a file.
    #[must_use]
    pub fn in_file(name: &str, path: PathBuf) -> Self {
        Self { name: name.to_owned(), place: Place::File(path) }
    }

    /// A secret that was in a variable, with its text.
    ///
    /// # Errors
    /// Why no coordinator can have it.
    pub fn of_variable(name: &str, text: &str) -> Result<Self, String> {
        let secret = usable(text.to_owned())?;
        Ok(Self { name: name.to_owned(), place: Place::Variable(secret) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that [`SecretSource::read`] reads, and so may block; none for one that is known already.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(path) => Some(path),
            Place::Variable(_) => None,
        }
    }

    /// What it is now.
    ///
    /// # Errors
    /// Why it cannot be read, without anything that was found there.
    pub fn read(&self) -> Result<Secret, String> {
        match &self.place {
            Place::Variable(secret) => Ok(secret.clone()),
            Place::File(path) => read(path).map_err(|problem| {
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

/// The text of the file without the end of its last line, which editors and `echo` add.
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
