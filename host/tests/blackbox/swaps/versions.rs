//! A coordinator in many versions.

use std::path::PathBuf;

use baton_store::Digest;

use crate::fleet::Fleet;
use crate::guests::versions;

/// What stands in the guest where a version has its name.
const NAME: &[u8] = b"the name of this version, which the tests replace by another one";

/// One version: a component in a file.
#[derive(Clone, Debug)]
pub struct Version {
    /// What it calls itself in each line that it prints.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// What the log and the store know it by.
    pub digest: String,
}

impl Version {
    /// Has these bytes, which nobody has looked at.
    pub fn of(fleet: &Fleet, name: &str, bytes: &[u8]) -> Self {
        let path = fleet.home.path().join(format!("{}.wasm", name.replace(' ', "-")));
        std::fs::write(&path, bytes).expect("the file is written");
        Self { name: name.to_owned(), path, digest: Digest::of(bytes).to_string() }
    }

    /// Whether a line of output is of this version.
    pub fn said(&self, line: &str) -> bool {
        line.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with(':'))
    }

    /// The module's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("the file is there")
    }
}

impl Fleet {
    /// The version that does what its name begins with (`host/tests/http-guest/src/versions.rs`).
    pub fn version(&self, name: &str) -> Version {
        Version::of(self, name, &component(name))
    }
}

/// The guest under that name: the same code, another digest.
pub fn component(name: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(versions()).expect("the guest is built");
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(NAME)).collect();
    let &[at] = &places[..] else { panic!("the name is in the guest {} times", places.len()) };
    let padded = format!("{name:<0$}", NAME.len());
    bytes[at..at + NAME.len()].copy_from_slice(padded.as_bytes());
    bytes
}
