//! Waking up when something in a folder changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Room for some events, each with a name of up to 255 bytes.
const EVENTS: usize = 4096;

/// Tells of what changes in folders, by inotify: of files that appear, vanish, are renamed or closed by a writer,
/// and of the folders' own end. What happens on a network file system's other side it does not see.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: AsyncFd<OwnedFd>,
    /// By the kernel's number of the watch.
    folders: Mutex<BTreeMap<i32, PathBuf>>,
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
        Ok(Self { inotify: inotify.map_err(io::Error::from)?, folders: Mutex::default() })
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
        let mut watched = BTreeMap::new();
        let mut all = true;
        for folder in folders {
            match inotify::add_watch(&self.inotify, folder, flags) {
                Ok(watch) => drop(watched.insert(watch, folder.clone())),
                Err(_) => all = false,
            }
        }
        let mut known = self.folders();
        for watch in known.keys().filter(|watch| !watched.contains_key(watch)) {
            // The kernel has done it already, where the folder is no more.
            let _ = inotify::remove_watch(&self.inotify, *watch);
        }
        *known = watched;
        all
    }

    /// Waits until something changes, and returns what: an empty path stands for whatever it may be. Dropping the
    /// future loses nothing.
    pub async fn changed(&self) -> Vec<PathBuf> {
        loop {
            let Ok(mut ready) = self.inotify.readable().await else {
                // The runtime is ending.
                return std::future::pending().await;
            };
            match ready.try_io(|inotify| self.read(inotify.get_ref())) {
                Ok(Ok(changed)) => return changed,
                // Whoever waits polls as well.
                Ok(Err(_)) => return std::future::pending().await,
                Err(_nothing) => {}
            }
        }
    }

    fn read(&self, inotify: &OwnedFd) -> io::Result<Vec<PathBuf>> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        let folders = self.folders();
        let mut changed = Vec::new();
        loop {
            let event = events.next()?;
            let name = event.file_name().map(|name| Path::new(OsStr::from_bytes(name.to_bytes())));
            // A queue that ran over is told of with no folder.
            let folder = folders.get(&event.wd());
            changed
                .push(folder.map(|folder| name.map_or(folder.clone(), |name| folder.join(name))).unwrap_or_default());
            if events.is_buffer_empty() {
                return Ok(changed);
            }
        }
    }

    fn folders(&self) -> MutexGuard<'_, BTreeMap<i32, PathBuf>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
