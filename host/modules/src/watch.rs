//! Notices that files change, by hints from the kernel and by stamps to compare.
//!
//! Inotify is used through `rustix` and tokio. The crate `notify` starts a thread that somebody would have to join, and
//! reports what happened to which file. A hint is enough here, since a source compares the files itself.

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

/// Size of the buffer for inotify events, in bytes. An event has a name of up to 255 bytes.
const EVENTS: usize = 4096;

/// Gives a hint when something changes in folders: a file appears, vanishes, is renamed or closed by a writer, or a
/// folder vanishes. Changes by other machines on a network file system give no hint.
#[derive(Debug)]
pub struct Watch {
    inotify: AsyncFd<OwnedFd>,
    watched: Mutex<BTreeSet<i32>>,
}

impl Watch {
    /// Creates a watch of no folders. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// The system's error, if inotify is unavailable or a limit is reached.
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` stays open and stays the same descriptor until it is dropped. The `AsyncFd` owns this
        // one until it is dropped itself, and lends it out by shared reference only.
        let inotify = unsafe { AsyncFd::register(inotify) };
        Ok(Self { inotify: inotify.map_err(io::Error::from)?, watched: Mutex::default() })
    }

    /// Watches these folders and no others, each as it is at its path now. Call it again when a folder may have been
    /// replaced. Returns true if all of them can be watched. May block as long as the file system does.
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
            // Fails if the folder no longer exists, since the kernel has removed the watch by then.
            let _ = inotify::remove_watch(&self.inotify, *gone);
        }
        *known = watched;
        all
    }

    /// Waits for a hint. Several earlier hints count as one. Dropping the future loses none.
    pub async fn hint(&self) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else {
                // The runtime is shutting down.
                return std::future::pending().await;
            };
            match ready.try_io(|inotify| drain(inotify.get_ref())) {
                Ok(Ok(())) => return,
                // The source also checks without hints.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_nothing) => {}
            }
        }
    }
}

/// Reads all pending events.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if there are none.
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

/// A file's attributes, taken without reading the file. If the content differs, so does the stamp: unlike the time of
/// modification, nobody can set the time of change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// The stamp of the file that a path leads to, if such a file can be seen. May block.
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

/// Runs blocking work off the runtime's worker threads.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => std::future::pending().await,
        },
    }
}
