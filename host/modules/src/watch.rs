//! Noticing that files change: hints from the kernel that it is time to look, and what to compare.
//!
//! The kernel is asked for them through `rustix` and tokio, and not through the crate `notify`. That has a thread of its
//! own, which somebody would have to join, and tells what has happened to which file; a hint is all that is wanted here,
//! since a source that gets one compares the files itself.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Room for some of inotify's events, each with a name of up to 255 bytes.
const EVENTS: usize = 4096;

/// Gives a hint when something changes in folders: a file appears, vanishes, is renamed or closed by a writer, or a
/// folder itself goes. What happens on a network file system's other side gives none: a source that waits for hints looks
/// without them, too, by and by.
#[derive(Debug)]
pub struct Watch {
    inotify: AsyncFd<OwnedFd>,
    /// The kernel's numbers of what is watched.
    watched: Mutex<BTreeSet<i32>>,
}

impl Watch {
    /// Watches nothing yet. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// What the system says, where it has no such thing or its limits are met.
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an owned descriptor is open and stays the same until it is dropped, and this one is owned by the
        // `AsyncFd` until that is dropped: it is lent out by shared reference only.
        let inotify = unsafe { AsyncFd::register(inotify) };
        Ok(Self { inotify: inotify.map_err(io::Error::from)?, watched: Mutex::default() })
    }

    /// Watches these folders and no others, each as it is at its path now; to be called again when one may have
    /// been replaced. Returns whether all of them can be watched. May block as long as the file system does.
    pub fn set(&self, folders: &BTreeSet<PathBuf>) -> bool {
        let flags = WatchFlags::ONLYDIR
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let mut watched = BTreeSet::new();
        let mut all = true;
        for folder in folders {
            match inotify::add_watch(&self.inotify, folder, flags) {
                Ok(watch) => drop(watched.insert(watch)),
                Err(_) => all = false,
            }
        }
        let mut known = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in known.difference(&watched) {
            // The kernel has done it already, where the folder is no more.
            let _ = inotify::remove_watch(&self.inotify, *gone);
        }
        *known = watched;
        all
    }

    /// Waits for a hint. Those that came before are one. Dropping the future loses none.
    pub async fn hint(&self) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else {
                // The runtime is ending.
                return std::future::pending().await;
            };
            match ready.try_io(|inotify| drain(inotify.get_ref())) {
                Ok(Ok(())) => return,
                // The waiting source looks without hints, too.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_nothing) => {}
            }
        }
    }
}

/// Reads all events.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] where there are none.
fn drain(inotify: &OwnedFd) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); EVENTS];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    events.next()?;
    loop {
        match events.next() {
            Ok(_) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the file system says of a file without reading it. Where the content differs, so does the stamp: nobody can
/// choose the time of change, unlike the time of modification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the file that a path leads to; none if the path leads to no file that can be seen. May block.
    pub fn of(path: &Path) -> Option<Self> {
        Some(Self::from(&fs::metadata(path).ok()?))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Does what may block, off the threads that others wait for.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending.
            Err(_) => std::future::pending().await,
        },
    }
}
