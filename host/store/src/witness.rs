//! Detects dead hosts on this machine by the kernel's file locks, so that other hosts need not wait for the dead hosts'
//! leases to expire.
//!
//! Each run of a host (an incarnation) has a lock file. The host holds a write lock on the first byte. Each of its
//! runners holds a write lock on another byte, because a runner causes effects and may outlive its host. So the
//! incarnation is dead once *no process* holds a write lock on the file. A checker tests this with a shared lock on the
//! whole file, which does not block other checkers.
//!
//! The locks belong to open file descriptions (`F_OFD_SETLK`, fcntl_locking(2)). The kernel releases a lock when the
//! last descriptor of its description is closed, for example because the process has exited. Closing other descriptors
//! of the file does not release the lock. A runner inherits its descriptor at the fork, already locked. The runner's
//! seccomp filter prevents it from using the descriptor.
//!
//! A lock file counts only if it is the file that the incarnation has locked. The checker knows the file's device and
//! inode from the holder's own note ([`LockFileId`]), so a file in a copied folder does not count. While a lock is
//! held, the inode is not reused. After that, reuse does no harm, since no process of the incarnation is left.

mod deaths;
#[cfg(feature = "azure")]
pub(crate) mod notes;
#[cfg(feature = "azure")]
pub(crate) mod untrusted;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, stat, unlinkat};
use rustix::io::Errno;

use crate::StoreUrl;
use crate::file_system::foreign;
pub(crate) use deaths::Deaths;

/// Maximum number of attempts to create a lock file. An attempt can fail because another host tidies up at the same
/// time.
const TRIES: usize = 10;

/// Maximum number of bytes to try to lock for a runner. An attempt fails only if a process that is no runner holds a
/// lock on the byte.
const BYTES: usize = 16;

/// Maximum number of directory entries to read when tidying up.
const TIDIED: usize = 4096;

/// Returns the folder for a store's lock files. If the store is local to this machine, the folder is inside the store.
/// Otherwise, the folder is inside `state`, the folder for this user's persistent host data. Returns `None` for a store
/// in memory, or if there is no `state` folder.
#[must_use]
pub fn folder(store: &StoreUrl, state: Option<&Path>) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => Some(state?.join(LEASES)),
        StoreUrl::Memory => None,
    }
}

/// Name of the folder inside `state`; see [`folder`]. In addition to lock files, the folder contains notes with lease
/// ids.
const LEASES: &str = "leases";

pub(crate) const FOLDER: &str = "holders";

/// The reason why a host has no lock file.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// The system refused an operation.
    #[error("cannot create a lock file in {folder}")]
    System {
        /// The lock file's folder.
        folder: PathBuf,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// The file system is not known to be local to this machine.
    #[error("cannot create a lock file in {folder}: its file system is not known to be local ({kind})")]
    Foreign {
        /// The lock file's folder.
        folder: PathBuf,
        /// The type of the file system.
        kind: String,
    },
}

/// The lock file of this incarnation. Other nodes treat the host as alive while this value exists or any of the host's
/// runners is alive.
#[derive(Debug)]
pub struct LockFile {
    folder: PathBuf,
    place: LockFileId,
    file: File,
    /// The byte for the next runner. No byte is used twice.
    next: AtomicI64,
}

/// Identifies an incarnation's lock file.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LockFileId {
    /// The incarnation, which is the file's name.
    pub incarnation: String,
    /// The device that contains the file.
    pub device: u64,
    /// The file's inode on that device.
    pub inode: u64,
}

impl LockFile {
    /// Creates the lock file of an incarnation, and the folder if it does not exist. May block for as long as the file
    /// system does.
    ///
    /// # Errors
    /// [`LockFileError`] if the file cannot be created. A host can also run without a lock file.
    pub fn make(folder: &Path, incarnation: &str) -> Result<Self, LockFileError> {
        let failed = |source: io::Error| LockFileError::System { folder: folder.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        for _ in 0..TRIES {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let path = folder.join(incarnation);
            let file = open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
            let own = fstat(&file).map_err(|error| failed(error.into()))?;
            if let Some(kind) = foreign(&file).map_err(failed)? {
                return Err(LockFileError::Foreign { folder: folder.to_owned(), kind });
            }
            // Check that the locked file is still at the path: a host that tidies up may have removed the file before
            // it was locked.
            let is_locked = lock(file.as_fd(), libc::F_WRLCK, 0, 1).map_err(failed)?;
            if is_locked && stat(&path).is_ok_and(|named| is_same(&named, &own)) {
                let place = LockFileId { incarnation: incarnation.to_owned(), device: own.st_dev, inode: own.st_ino };
                return Ok(Self { folder: folder.to_owned(), place, file: file.into(), next: AtomicI64::new(1) });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// The lock file's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The lock file's identity.
    #[must_use]
    pub fn place(&self) -> &LockFileId {
        &self.place
    }

    /// Returns a locked descriptor for a runner. The incarnation counts as alive until the last copy of the descriptor
    /// is closed.
    ///
    /// # Errors
    /// The operating system's error if the file cannot be opened or locked.
    pub fn for_runner(&self) -> io::Result<OwnedFd> {
        // Opening this path creates a new file description for the same file, even if the file has been renamed or
        // removed.
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let own = fstat(&file)?;
        if (own.st_dev, own.st_ino) != (self.place.device, self.place.inode) {
            return Err(Errno::STALE.into());
        }
        for _ in 0..BYTES {
            if lock(file.as_fd(), libc::F_WRLCK, self.next.fetch_add(1, Ordering::Relaxed), 1)? {
                return Ok(file);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl LockFileId {
    /// True if every process of this incarnation has exited. False if that is uncertain.
    #[must_use]
    pub fn is_gone(&self, folder: &Path) -> bool {
        let look = || -> io::Result<bool> {
            let folder = open_folder(folder)?;
            let (file, found) = open_lock_file(&folder, &self.incarnation)?;
            let is_it = (found.st_dev, found.st_ino) == (self.device, self.inode);
            Ok(is_it && foreign(&file)?.is_none() && is_unlocked(file.as_fd())?)
        };
        look().unwrap_or(false)
    }
}

/// True if the kernel's locks show that all processes of the incarnation have exited. False if this is uncertain
/// because the incarnation's lock file is not in `folder`, or because the file system is not local.
#[must_use]
pub fn has_ended(folder: &Path, incarnation: &str) -> bool {
    let look = || -> io::Result<bool> {
        let (file, _) = open_lock_file(&open_folder(folder)?, incarnation)?;
        Ok(foreign(&file)?.is_none() && is_unlocked(file.as_fd())?)
    };
    look().unwrap_or(false)
}

/// Removes the lock files that are not needed and that no process has locked. Skips files that cannot be removed.
pub(crate) fn tidy_up(folder: &Path, is_needed: impl Fn(&str) -> bool) -> io::Result<()> {
    let folder = open_folder(folder)?;
    for entry in Dir::read_from(&folder)?.take(TIDIED) {
        let entry = entry?;
        let Ok(incarnation) = entry.file_name().to_str() else { continue };
        if !is_incarnation(incarnation) || is_needed(incarnation) {
            continue;
        }
        // While `file` is open, its shared lock prevents other hosts from locking this file, which is about to be
        // removed.
        if let Ok((file, _)) = open_lock_file(&folder, incarnation)
            && is_unlocked(file.as_fd()).unwrap_or(false)
        {
            let _ = unlinkat(&folder, incarnation, AtFlags::empty());
        }
    }
    Ok(())
}

pub(crate) fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

fn open_folder(folder: &Path) -> rustix::io::Result<OwnedFd> {
    open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn open_lock_file(folder: &OwnedFd, incarnation: &str) -> io::Result<(OwnedFd, Stat)> {
    if !is_incarnation(incarnation) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    open_plain(folder, incarnation, OFlags::RDONLY)
}

/// Refuses links, and anything else but a regular file.
fn open_plain(folder: &OwnedFd, name: &str, how: OFlags) -> io::Result<(OwnedFd, Stat)> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let found = fstat(&file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok((file, found)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// True if the string can be the name of an incarnation. Such a name cannot refer to a file outside the folder.
fn is_incarnation(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// True if no process holds a write lock on the file. In that case, this file description now holds a shared lock on
/// the whole file.
fn is_unlocked(file: BorrowedFd<'_>) -> io::Result<bool> {
    // A length of 0 means up to the largest possible offset.
    lock(file, libc::F_RDLCK, 0, 0)
}

/// Locks a range of the file for its open file description. Does not wait: returns false if there is a conflicting
/// lock.
fn lock(file: BorrowedFd<'_>, kind: libc::c_int, from: i64, length: i64) -> io::Result<bool> {
    let wanted = wanted(kind, from, length)?;
    // SAFETY: `file` is open and `wanted` is a valid `flock` until the call returns. `F_OFD_SETLK` only reads `wanted`.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const wanted) };
    match locked {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

fn wanted(kind: libc::c_int, from: i64, length: i64) -> io::Result<libc::flock> {
    let short = |number: libc::c_int| libc::c_short::try_from(number).map_err(io::Error::other);
    Ok(libc::flock { l_type: short(kind)?, l_whence: short(libc::SEEK_SET)?, l_start: from, l_len: length, l_pid: 0 })
}

/// True if no process holds a lock on the file. Takes no lock.
#[cfg(feature = "azure")]
fn is_lockable(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut wanted = wanted(libc::F_WRLCK, 0, 0)?;
    // SAFETY: `file` is open, and the call may write to `wanted`, a valid `flock` that is borrowed exclusively.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut wanted) } {
        0 => Ok(libc::c_int::from(wanted.l_type) == libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
