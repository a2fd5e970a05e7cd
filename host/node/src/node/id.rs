//! The node id of this host. The id appears in logs, in output for operators, and in the lease record.
//!
//! Baton's promises do not require unique node ids, because each start of a host has its own incarnation. Without
//! `--node`, a host's id consists of the machine's name and the number of the first free **slot** on the machine
//! (`web-3-0`). The host keeps the slot's file locked while its process lives. Hosts on one machine therefore have
//! different ids, and a restarted host can get its old id again.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Maximum number of slots on a machine. A machine with more hosts is probably misconfigured.
const SLOTS: u32 = 1024;

/// A node's id: 1 to 128 printable ASCII characters without spaces, so that it is valid in an HTTP header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(String);

impl NodeId {
    /// Checks an id.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] if `id` does not have the form of a node's id.
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

/// The source of this host's id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeChoice {
    /// Set by `--node`.
    Given(NodeId),
    /// The machine's name and the first free slot.
    Slot {
        /// The machine's name.
        machine: String,
        /// The folder with the slots' lock files.
        folder: PathBuf,
    },
}

impl NodeChoice {
    /// Makes the first free slot the source of the id. The slots' lock files are in `folder`. This function takes no
    /// slot: [`NodeChoice::claim`] finds and locks the first free slot.
    ///
    /// # Errors
    /// [`NodeError::Invalid`] if the machine's name cannot be part of an id.
    pub fn slot(folder: &Path) -> Result<Self, NodeError> {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        NodeId::new(&format!("{name}-{SLOTS}"))?;
        // A slash would put the lock file outside the folder.
        if name.contains('/') {
            return Err(NodeError::Invalid(name));
        }
        Ok(Self::Slot { machine: name, folder: folder.to_path_buf() })
    }

    /// Determines the id. If the id comes from a slot, also locks the slot. May block on the file system.
    ///
    /// # Errors
    /// [`NodeError`] if no slot is free, or if the lock files cannot be used.
    pub fn claim(&self) -> Result<ClaimedId, NodeError> {
        match self {
            Self::Given(id) => Ok(ClaimedId { id: id.clone(), _slot: None }),
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

/// This host's id, and the lock on its slot. Keep this value until the process ends.
#[derive(Debug)]
pub struct ClaimedId {
    id: NodeId,
    _slot: Option<File>,
}

impl ClaimedId {
    /// The id.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.id
    }
}

/// The error returned when a host cannot get an id.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The text is not a valid id.
    #[error("{0:?} is not a node's id: use 1 to 128 printable ASCII characters without spaces")]
    Invalid(String),
    /// The lock files cannot be used.
    #[error("cannot write the lock file of this node's name in {folder:?}; name the node with --node")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Every slot is taken.
    #[error("all {SLOTS} slots in {0:?} are taken; name the node with --node")]
    Full(PathBuf),
}

fn claim_slot(machine: &str, folder: &Path) -> Result<ClaimedId, NodeError> {
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
                return Ok(ClaimedId { id, _slot: Some(file) });
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
    fn node_id_must_fit_into_a_header() {
        for id in ["a", "web-3-0", "Über", "a b", "", "a\n", "\u{7f}"] {
            let legal = ["a", "web-3-0"].contains(&id);
            assert_eq!(NodeId::new(id).is_ok(), legal, "{id:?}");
        }
        assert!(NodeId::new(&"x".repeat(128)).is_ok());
        assert!(NodeId::new(&"x".repeat(129)).is_err());
    }

    #[test]
    fn slots_are_unique_and_reused_after_exit() {
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
    fn uncreatable_slot_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = NodeChoice::slot(&file.join("nodes")).unwrap().claim().unwrap_err();
        assert!(error.to_string().contains("--node"), "{error}");
    }
}
