//! Who this host is: a node's id.
//!
//! An id is for people, logs and the store's record; no promise rests on its being unique, since each
//! start of a host has an incarnation of its own. Unless it is told, a host calls itself after its
//! machine and the first free **slot** there (`web-3-0`), held by a file lock for as long as the process
//! lives: several hosts on a machine differ, and a restarted one gets its old name back.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// More hosts than that on one machine are a mistake.
const SLOTS: u32 = 1024;

/// A node's id: 1 to 128 printable ASCII characters without spaces, so that it fits into an HTTP header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(String);

impl NodeId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] where it breaks the rule above.
    pub fn new(id: &str) -> Result<Self, NodeError> {
        if (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(id.to_string()))
        } else {
            Err(NodeError::Invalid(id.to_string()))
        }
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How this host finds its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeChoice {
    /// It was told.
    Given(NodeId),
    /// The machine's name and the first slot that is free.
    Slot {
        /// The machine's name.
        machine: String,
        /// Where the slots' lock files are.
        folder: PathBuf,
    },
}

impl NodeChoice {
    /// By a slot, whose lock file will be in `folder`. Nothing is touched yet.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] if the machine's name does not make an id.
    pub fn slot(folder: &Path) -> Result<Self, NodeError> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        NodeId::new(&format!("{name}-{SLOTS}"))?;
        // A slash would lead the lock file elsewhere.
        if name.contains('/') {
            return Err(NodeError::Invalid(name));
        }
        Ok(Self::Slot { machine: name, folder: folder.to_path_buf() })
    }

    /// Settles the id and, where it is by slot, takes the slot.
    ///
    /// # Errors
    /// [`NodeError`] if no slot can be had. Blocks for no longer than the file system does.
    pub fn claim(&self) -> Result<Node, NodeError> {
        match self {
            Self::Given(id) => Ok(Node { id: id.clone(), _slot: None }),
            Self::Slot { machine, folder } => claim_slot(machine, folder),
        }
    }
}

impl fmt::Display for NodeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given(id) => fmt::Display::fmt(id, f),
            Self::Slot { machine, .. } => write!(f, "{machine}-N (N: the first free slot)"),
        }
    }
}

/// This host's id, and its hold on it: keep it until the process ends.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    _slot: Option<File>,
}

impl Node {
    /// The id.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.id
    }
}

/// Why a host has no id.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The text is no id.
    #[error("{0:?} is not a node's id: use 1 to 128 printable ASCII characters without spaces")]
    Invalid(String),
    /// The lock files cannot be used.
    #[error("cannot write the lock file of this node's name in {folder:?}; name the node with --node")]
    Folder {
        /// Where they should be.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Every slot is taken.
    #[error("all {SLOTS} slots in {0:?} are taken; name the node with --node")]
    Full(PathBuf),
}

fn claim_slot(machine: &str, folder: &Path) -> Result<Node, NodeError> {
    let failed = |source: io::Error| NodeError::Folder { folder: folder.to_path_buf(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    for slot in 0..SLOTS {
        let id = NodeId::new(&format!("{machine}-{slot}"))?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(folder.join(format!("{id}.lock")))
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                return Ok(Node { id, _slot: Some(file) });
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    Err(NodeError::Full(folder.to_path_buf()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn an_id_fits_into_a_header() {
        for id in ["a", "web-3-0", "Über", "a b", "", "a\n", "\u{7f}"] {
            let legal = ["a", "web-3-0"].contains(&id);
            assert_eq!(NodeId::new(id).is_ok(), legal, "{id:?}");
        }
        assert!(NodeId::new(&"x".repeat(128)).is_ok());
        assert!(NodeId::new(&"x".repeat(129)).is_err());
    }

    #[test]
    fn each_host_of_a_machine_has_its_own_slot_and_gets_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let choice = NodeChoice::slot(&folder.path().join("a/b")).unwrap();
        let first = choice.claim().unwrap();
        let second = choice.claim().unwrap();
        assert!(first.id().as_str().ends_with("-0"), "{first:?}");
        assert!(second.id().as_str().ends_with("-1"), "{second:?}");
        drop(first);
        assert!(choice.claim().unwrap().id().as_str().ends_with("-0"));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = NodeChoice::slot(&file.join("nodes")).unwrap().claim().unwrap_err();
        assert!(error.to_string().contains("--node"), "{error}");
    }
}
