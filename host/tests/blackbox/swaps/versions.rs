//! Versions of a coordinator.

use std::path::PathBuf;

use baton_store::Digest;

use crate::fleet::Fleet;
use crate::guests::versions;

/// Placeholder in the compiled guest. To make a version, the tests replace the placeholder with the version's name.
const NAME: &[u8] = b"the name of this version, which the tests replace by another one";

#[derive(Clone, Debug)]
pub struct Version {
    /// The version prints this name at the start of each line.
    pub name: String,
    pub path: PathBuf,
    pub digest: String,
}

impl Version {
    pub fn of(fleet: &Fleet, name: &str, bytes: &[u8]) -> Self {
        let path = fleet.home.path().join(format!("{}.wasm", name.replace(' ', "-")));
        std::fs::write(&path, bytes).expect("the file is written");
        Self { name: name.to_owned(), path, digest: Digest::of(bytes).to_string() }
    }

    pub fn printed(&self, line: &str) -> bool {
        line.strip_prefix(&*self.name).is_some_and(|rest| rest.starts_with(':'))
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).expect("the file")
    }
}

impl Fleet {
    /// The first word of the version's name determines its behavior (see `host/tests/http-guest/src/versions.rs`).
    pub fn version(&self, name: &str) -> Version {
        Version::of(self, name, &component(name))
    }
}

/// Replaces the placeholder in the guest, so all versions have the same code, but different digests.
pub fn component(name: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(versions()).expect("the guest is built");
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(NAME)).collect();
    let &[at] = &places[..] else { panic!("the name is in the guest {} times", places.len()) };
    let padded = format!("{name:<0$}", NAME.len());
    bytes[at..at + NAME.len()].copy_from_slice(padded.as_bytes());
    bytes
}
