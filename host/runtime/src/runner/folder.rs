//! Host folders that a coordinator may use: `HOST::GUEST`, or `HOST::GUEST:ro`.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

const FORM: &str = "HOST::GUEST, or HOST::GUEST:ro for read-only access, as in /srv/data::/data";

/// A folder that a coordinator may use. The grant covers only the folder that was at the path `host` when the host
/// started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Folder {
    /// Path on the host, as the operator wrote it.
    #[serde(with = "any_path")]
    pub host: PathBuf,
    /// Absolute path at which the coordinator sees the folder, without a trailing slash.
    pub guest: String,
    /// True if the folder is read-only.
    pub read_only: bool,
    #[serde(with = "any_path")]
    real: PathBuf,
    /// Device and inode number.
    identity: (u64, u64),
}

/// Serializes paths as bytes, for messages between our processes. A path may be invalid UTF-8, which serde's own format
/// for paths rejects.
mod any_path {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(from).map(|bytes| OsString::from_vec(bytes).into())
    }
}

/// A folder grant as the operator wrote it. The folder does not have to exist.
pub struct FolderGrant<'a> {
    /// Path on the host, which may be relative.
    pub host: &'a str,
    /// See [`Folder::guest`].
    pub guest: &'a str,
    /// True if the folder is read-only.
    pub read_only: bool,
}

impl<'a> FolderGrant<'a> {
    /// Parses `HOST::GUEST` or `HOST::GUEST:ro`.
    ///
    /// # Errors
    /// Returns a description of the syntax if `text` does not match it.
    pub fn of(text: &'a str) -> Result<Self, String> {
        let (host, guest) = text.rsplit_once("::").unwrap_or_default();
        let (guest, read_only) = match guest.strip_suffix(":ro") {
            Some(guest) => (guest, true),
            None => (guest, false),
        };
        let guest = if guest == "/" { guest } else { guest.strip_suffix('/').unwrap_or(guest) };
        let is_path =
            guest.starts_with('/') && !guest.contains([':', '\0']) && !host.is_empty() && !host.contains('\0');
        let is_plain = guest.split('/').all(|part| part != "." && part != "..");
        let parts = (is_path && is_plain).then_some(Self { host, guest, read_only });
        parts.ok_or_else(|| format!("{text:?} does not grant a folder: write {FORM}"))
    }
}

impl fmt::Display for FolderGrant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}{}", self.host, self.guest, if self.read_only { ":ro" } else { "" })
    }
}

impl Folder {
    /// Grants the folder that is currently at the path `host`. The coordinator sees the folder at the path `guest`.
    ///
    /// # Errors
    /// Returns the operating system's error if there is no folder at the path.
    pub fn at(host: PathBuf, guest: String, read_only: bool) -> io::Result<Self> {
        let real = host.canonicalize()?;
        let identity = identity(&open_without_links(&real)?)?;
        Ok(Self { host, guest, read_only, real, identity })
    }

    /// Returns the path that the folder had when the host started: absolute and without symbolic links.
    pub fn real(&self) -> &Path {
        &self.real
    }

    /// Opens the folder, if the path still leads to the folder that was granted. When the host started, it resolved all
    /// symbolic links on the path. So a symbolic link that is on the path now was created later, and this method
    /// rejects it.
    ///
    /// # Errors
    /// Returns why the folder cannot be opened, and what to do.
    pub fn open(&self) -> Result<OwnedFd, String> {
        let host = self.host.display().to_string();
        let opened = open_without_links(&self.real).and_then(|folder| Ok((identity(&folder)?, folder)));
        match opened {
            Ok((identity, folder)) if identity == self.identity => Ok(folder),
            Ok(_) | Err(Errno::NOTDIR | Errno::LOOP) => Err(format!(
                "the folder {host:?} of `--dir` was replaced after the host started: restore the original folder, or \
                 restart the host to grant the new folder"
            )),
            Err(error) => Err(format!(
                "cannot open the folder {host:?} of `--dir`: {error}; restore the folder, or restart the host with \
                 another folder"
            )),
        }
    }
}

/// Opens a folder by an absolute path. Fails if the path contains a symbolic link.
fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, "/", flags, Mode::empty())?;
    path.components().try_fold(root, |folder, part| match part {
        Component::Normal(name) => rustix::fs::openat(&folder, name, flags, Mode::empty()),
        _ => Ok(folder),
    })
}

fn identity(folder: &OwnedFd) -> Result<(u64, u64), Errno> {
    rustix::fs::fstat(folder).map(|stat| (stat.st_dev, stat.st_ino))
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.to_string_lossy();
        FolderGrant { host: &host, guest: &self.guest, read_only: self.read_only }.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_grant_is_parsed_and_displayed() {
        for (text, shown) in [
            ("/srv/data::/data", Some("/srv/data::/data")),
            ("data::/data/:ro", Some("data::/data:ro")),
            ("a::b::/", Some("a::b::/")),
            ("/data", None),
            ("/data:/data", None),
            ("::/data", None),
            ("/data::", None),
            ("/data::data", None),
            ("/data::/data:rw", None),
            ("/data::/x/../data", None),
        ] {
            assert_eq!(FolderGrant::of(text).ok().map(|parts| parts.to_string()).as_deref(), shown, "{text}");
        }
    }
}
