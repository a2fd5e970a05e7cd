//! Detects file changes: inotify hints that a file may have changed, and a comparison of [`Stamp`]s shows whether it
//! has.
//!
//! This module uses inotify through `rustix` and tokio, and not through the crate `notify`. The crate `notify` starts a
//! thread that would have to be joined. The crate's detailed events are not needed here, because a source compares the
//! files itself.

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

/// Size of the buffer for inotify events, in bytes. An event can contain a name of up to 255 bytes.
const EVENTS: usize = 4096;

/// Gives a hint when something changes in a folder: a file appears, disappears, is renamed or is closed by a writer, or
/// the folder itself disappears. On a network file system, changes by other machines give no hint.
#[derive(Debug)]
pub struct Watch {
    inotify: AsyncFd<OwnedFd>,
    watched: Mutex<BTreeSet<i32>>,
}

impl Watch {
    /// Creates a watch that does not watch any folders yet. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// Returns the operating system's error if inotify is unavailable or one of its limits is reached.
    pub fn new() -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` stays open and keeps its descriptor until it is dropped. The `AsyncFd` owns this
        // `OwnedFd` until the `AsyncFd` itself is dropped, and lends it out by shared reference only.
        let inotify = unsafe { AsyncFd::register(inotify) };
        Ok(Self { inotify: inotify.map_err(io::Error::from)?, watched: Mutex::default() })
    }

    /// Watches exactly the folders that are at these paths now. If one of the folders may have been replaced since,
    /// call this method again. Returns true if all of the folders can be watched. May block for as long as the file
    /// system does.
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
            // This fails if the folder no longer exists, because the kernel has already removed the watch.
            let _ = inotify::remove_watch(&self.inotify, *gone);
        }
        *known = watched;
        all
    }

    /// Waits for a hint. Several earlier hints count as one. If the future is dropped, no hint is lost.
    pub async fn hint(&self) {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else {
                // The runtime is shutting down.
                return std::future::pending().await;
            };
            match ready.try_io(|inotify| drain(inotify.get_ref())) {
                Ok(Ok(())) => return,
                // After an error, give no more hints. Changes are still found, because the source also checks the files
                // without hints.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_nothing) => {}
            }
        }
    }
}

/// Reads all pending events.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if no event is pending.
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

/// A file's attributes, taken without reading the file. If the content changes, the stamp changes too, because it
/// includes the change time (ctime). Users can set the modification time, but not the change time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of the file to which a path leads, if the file exists and can be accessed. May block.
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

/// Runs blocking work on a separate thread, so that it does not block the runtime's workers.
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
