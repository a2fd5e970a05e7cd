//! Secrets by reference: a setting says where one is, and only the coordinator gets to see what it is.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Secret, Surroundings};

/// How the source of a secret begins, as a text.
pub(super) const FILE: &str = "file:";
/// See [`FILE`].
pub(super) const ENV: &str = "env:";
/// How to give one on the command line.
pub(super) const FORM: &str = "NAME=file:PATH or NAME=env:VARIABLE";
/// How to give one in the file.
pub(super) const TABLE: &str = "say where the secret is, not what it is: { file = \"PATH\" } or { env = \"VARIABLE\" }";

/// No secret is that long, in bytes; a file that is was named by mistake.
const LONGEST: u64 = 64 << 10;

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
    /// The secret `name`, whose `source` is `file:PATH` or `env:VARIABLE`. It is looked for, so that what is
    /// wrong is said at once.
    ///
    /// # Errors
    /// Why it is not there. Neither what was found nor a source that may be the secret itself is repeated.
    pub(super) fn find(name: &str, source: &str, around: &Surroundings) -> Result<Self, String> {
        let place = if let Some(path) = source.strip_prefix(FILE).filter(|path| !path.is_empty()) {
            Place::File(around.path(path))
        } else if let Some(variable) = source.strip_prefix(ENV).filter(|variable| !variable.is_empty()) {
            Place::Variable(variable_called(variable, around).map_err(|problem| {
                format!("{name:?} is to come from the host's variable {variable:?}, which {problem}")
            })?)
        } else {
            return Err(format!("does not say where {name:?} is: write {FORM}"));
        };
        let source = Self { name: name.to_string(), place };
        source.read().map(|_| source)
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
                format!("{:?} is to come from the file {:?}, which {problem}", self.name, path.display())
            }),
        }
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn variable_called(variable: &str, around: &Surroundings) -> Result<Secret, String> {
    let value = around.variable(variable).ok_or("is not set")?;
    usable(value.to_str().ok_or("is not UTF-8: a secret must be text")?.to_string())
}

/// The text of the file without the end of its last line, which editors and `echo` add.
fn read(path: &Path) -> Result<Secret, String> {
    // Asked before the file is opened: opening a named pipe would wait for its writer.
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err("is not a regular file".to_string()),
        Ok(_) => {}
        Err(error) => return Err(format!("cannot be read: {error}")),
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > LONGEST {
        return Err("is longer than 64 KiB: is it a secret?".to_string());
    }
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
        return Err("contains NUL, which no variable can".to_string());
    }
    Ok(Secret::new(text))
}
