//! That a host of this machine is gone, as the kernel says: then nobody need wait for its leases to run out.
//!
//! Each start of a host, an incarnation, has a lock file. The host holds a write lock on its first byte, and each runner of
//! the host one on a byte of its own: what an instance causes comes from its runner, which may outlive its host for
//! milliseconds, or for longer where something holds it. So the incarnation is gone once *nobody* holds any of the file,
//! and that is what lets a shared lock on all of it be taken. Who looks so keeps nobody else from it.
//!
//! The locks are those of open file descriptions (`F_OFD_SETLK`, fcntl_locking(2)): the kernel takes one back when the last
//! descriptor for its description is closed, or its process is gone, and not because another descriptor of the file is
//! closed. A runner is handed the descriptor when it is forked, locked already, and its filter lets it do nothing with it.
//!
//! A lock file says something of one incarnation alone, and only where it is the very file that this incarnation has
//! locked: who looks knows its device and inode from where the holder has noted them ([`Place`]). The file of a folder that
//! was copied is another one. While anybody holds a lock the inode is not given to another file, and afterwards there is
//! nobody left whom a false answer could concern.

mod deaths;
#[cfg(feature = "azure")]
pub(crate) mod foreign;
#[cfg(feature = "azure")]
pub(crate) mod notes;

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

/// How often it is tried to make a lock file while others tidy up.
const TRIES: usize = 10;

/// How many bytes are tried for a runner while others hold locks that they should not.
const BYTES: usize = 16;

/// No more lock files than this are looked at when the folder is tidied up.
const TIDIED: usize = 4096;

/// Where a store's hosts have their lock files: in the store where that is for the hosts of one machine, else in the folder
/// in which the hosts of this user keep what outlives a run. None where there is neither.
#[must_use]
pub fn folder(store: &StoreUrl, state: Option<&Path>) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => Some(state?.join(LEASES)),
        StoreUrl::Memory => None,
    }
}

/// See [`folder`]: beside lock files it has notes of leases.
const LEASES: &str = "leases";

/// See [`folder`].
pub(crate) const FOLDER: &str = "holders";

/// Why a host has no lock file.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// The system refuses a step.
    #[error("cannot create a lock file in {folder}")]
    System {
        /// Where it should be.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file system is not known to be this machine's own.
    #[error("cannot create a lock file in {folder}: its file system is not known to be local ({kind})")]
    Foreign {
        /// Where it should be.
        folder: PathBuf,
        /// The file system.
        kind: String,
    },
}

/// The lock file of this incarnation. The host is taken for alive as long as this is there, and so is it as long as any of
/// its runners is.
#[derive(Debug)]
pub struct LockFile {
    folder: PathBuf,
    place: Place,
    file: File,
    /// The byte of the next runner: none is used twice.
    next: AtomicI64,
}

/// What tells an incarnation's lock file from any other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The incarnation, which is the file's name.
    pub incarnation: String,
    /// The device that the file is on.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
}

impl LockFile {
    /// Makes the lock file of an incarnation, and the folder for it. May block for as long as the file system does.
    ///
    /// # Errors
    /// [`LockFileError`] says why there is none. A host does without.
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
            // Who tidies up may take a file that is not locked yet for one that is not needed any more.
            let is_locked = lock(file.as_fd(), libc::F_WRLCK, 0, 1).map_err(failed)?;
            if is_locked && stat(&path).is_ok_and(|named| is_same(&named, &own)) {
                let place = Place { incarnation: incarnation.to_owned(), device: own.st_dev, inode: own.st_ino };
                return Ok(Self { folder: folder.to_owned(), place, file: file.into(), next: AtomicI64::new(1) });
            }
        }
        Err(failed(io::ErrorKind::ResourceBusy.into()))
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What tells it from any other.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A descriptor that keeps this incarnation from being taken for gone until the last copy of it is closed, whatever
    /// becomes of this process.
    ///
    /// # Errors
    /// Those of the system.
    pub fn for_runner(&self) -> io::Result<OwnedFd> {
        // By this path it is a description of its own, and the same file even where that has another name by now, or none.
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

impl Place {
    /// Whether every process of this incarnation is gone. False if that is not certain.
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

/// True if the kernel says that all processes of that incarnation have ended. False if it cannot say: there is no lock file in
/// that [`folder`], or its file system is not this machine's.
#[must_use]
pub fn has_ended(folder: &Path, incarnation: &str) -> bool {
    let look = || -> io::Result<bool> {
        let (file, _) = open_lock_file(&open_folder(folder)?, incarnation)?;
        Ok(foreign(&file)?.is_none() && is_unlocked(file.as_fd())?)
    };
    look().unwrap_or(false)
}

/// Removes the lock files of incarnations that are gone, but for those that somebody still has to hear of. What cannot be
/// removed stays.
pub(crate) fn tidy_up(folder: &Path, is_needed: impl Fn(&str) -> bool) -> io::Result<()> {
    let folder = open_folder(folder)?;
    for entry in Dir::read_from(&folder)?.take(TIDIED) {
        let entry = entry?;
        let Ok(incarnation) = entry.file_name().to_str() else { continue };
        if !is_incarnation(incarnation) || is_needed(incarnation) {
            continue;
        }
        // While it is held, nobody locks a file that is about to have no name.
        if let Ok((file, _)) = open_lock_file(&folder, incarnation)
            && is_unlocked(file.as_fd()).unwrap_or(false)
        {
            let _ = unlinkat(&folder, incarnation, AtFlags::empty());
        }
    }
    Ok(())
}

/// The kernel's random id of this boot, if it can be read.
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

/// Opens what is there under that name. It must be a plain file, and no link to one.
fn open_plain(folder: &OwnedFd, name: &str, how: OFlags) -> io::Result<(OwnedFd, Stat)> {
    let flags = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?;
    let found = fstat(&file)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok((file, found)),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Whether a text is the name of an incarnation, and so of nothing outside the folder.
fn is_incarnation(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether nobody holds a write lock on any of the file. If so, this description shares all of it until it is closed.
fn is_unlocked(file: BorrowedFd<'_>) -> io::Result<bool> {
    // No length is all that there is and ever will be.
    lock(file, libc::F_RDLCK, 0, 0)
}

/// Locks some of a file for its open file description, without waiting. False if others hold locks that forbid it.
fn lock(file: BorrowedFd<'_>, kind: libc::c_int, from: i64, length: i64) -> io::Result<bool> {
    let wanted = wanted(kind, from, length)?;
    // SAFETY: the descriptor is open until the call returns, and so long is `wanted` there, which it only reads.
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

/// Whether nobody holds any lock on the file. Keeps nobody else from locking it.
#[cfg(feature = "azure")]
fn is_lockable(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut wanted = wanted(libc::F_WRLCK, 0, 0)?;
    // SAFETY: the descriptor is open until the call returns, and so long is `wanted` there, which it writes.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut wanted) } {
        0 => Ok(libc::c_int::from(wanted.l_type) == libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
