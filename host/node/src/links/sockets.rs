//! The sockets on which the hosts of one machine listen. The sockets are in a subfolder of the store's folder. Each
//! socket is named after its host's incarnation.

use std::fs::{DirBuilder, DirEntry};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_base::clock::wall;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixStream;

use super::wire::is_incarnation;

const MAX_ENTRIES: usize = 4096;

/// Age at which an unfinished socket counts as abandoned. A socket is unfinished until its host has given it its final
/// name.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// An open folder of sockets. A socket's address has room for a path of only about 100 bytes. Hosts therefore open
/// sockets through short paths that contain the folder's descriptor.
pub(super) struct SocketFolder(OwnedFd);

impl SocketFolder {
    /// Creates the folder if it does not exist, accessible only to this user.
    ///
    /// # Errors
    /// If the folder cannot be created or opened, or other users can access it.
    fn make(folder: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let opened = Self::open(folder)?;
        let found = rustix::fs::fstat(&opened.0)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            let why = format!("{} must be a folder of this user, with mode 0700", folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(opened)
    }

    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(folder, flags, Mode::empty())?))
    }

    /// Returns a short path, valid while the folder is open.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    pub(super) fn socket(&self, incarnation: &str) -> PathBuf {
        self.path().join(incarnation)
    }
}

/// Gives the socket its name only once it is listening, because [`tidy_up`] removes sockets on which no host listens.
fn listen(folder: &Path, incarnation: &str) -> io::Result<UnixListener> {
    let unfinished = folder.join(format!(".{incarnation}"));
    // A process that ended after `bind` but before `rename` may have left this socket behind.
    let _ = std::fs::remove_file(&unfinished);
    let listener = UnixListener::bind(&unfinished)?;
    std::fs::rename(&unfinished, folder.join(incarnation))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Opens the folder, removes the sockets of dead hosts, and then listens on this host's own socket. Blocks.
pub(super) fn listen_in(folder: &Path, incarnation: &str) -> io::Result<(SocketFolder, UnixListener)> {
    let folder = SocketFolder::make(folder)?;
    tidy_up(&folder.path());
    let listener = listen(&folder.path(), incarnation)?;
    Ok((folder, listener))
}

/// Returns the incarnations of the hosts that may be listening in the folder.
pub(super) fn listed(folder: &Path) -> impl Iterator<Item = String> {
    all(folder).map(|(_, name)| name).filter(|name| is_incarnation(name))
}

fn all(folder: &Path) -> impl Iterator<Item = (DirEntry, String)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).filter_map(Result::ok);
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    sockets.filter_map(|entry| entry.file_name().into_string().ok().map(|name| (entry, name)))
}

/// Removes the sockets of hosts that have exited. Ignores errors.
fn tidy_up(folder: &Path) {
    for (entry, name) in all(folder) {
        let path = entry.path();
        let is_left = match name.strip_prefix('.') {
            Some(unfinished) => is_incarnation(unfinished) && is_old(&entry),
            None => is_incarnation(&name) && is_left_over(&path).unwrap_or(false),
        };
        if is_left {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns true if no host listens on the socket. Does not block.
fn is_left_over(path: &Path) -> rustix::io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) == Err(Errno::CONNREFUSED))
}

fn is_old(entry: &DirEntry) -> bool {
    let changed = entry.metadata().ok().and_then(|found| u64::try_from(found.mtime()).ok());
    changed.is_some_and(|changed| wall().saturating_sub(Duration::from_secs(changed)) >= ABANDONED_AFTER)
}

pub(super) fn is_same_user(peer: &UnixStream) -> bool {
    peer.peer_cred().is_ok_and(|peer| peer.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn dead_sockets_are_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = SocketFolder::make(&folder.path().join("links")).unwrap();
        let folder = folder.path();
        let alive = listen(&folder, "ab").unwrap();
        drop(listen(&folder, "cd").unwrap());
        drop(UnixListener::bind(folder.join(".ef")).unwrap());
        std::fs::write(folder.join("12"), "").unwrap();
        let mut found: Vec<_> = listed(&folder).collect();
        found.sort();
        assert_eq!(found, ["ab", "cd"]);
        tidy_up(&folder);
        let name = |entry: io::Result<DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(name).collect();
        left.sort();
        assert_eq!(left, [".ef", "12", "ab"]);
        drop(alive);
    }

    #[test]
    fn folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(SocketFolder::make(folder.path()).err().unwrap().to_string().contains("0700"));
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(SocketFolder::make(folder.path()).is_ok());
    }
}
