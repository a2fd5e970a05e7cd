//! What the kernel tells of files (inotify(7)), for those that look after them at once rather than later.
//!
//! Where the system has no inotify left, or a file system tells nothing, nothing is heard, and nobody waits for that. What a file
//! has come to is asked of the file, on a thread that may block for as long as its disk does.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify;
pub(crate) use rustix::fs::inotify::WatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, Semaphore, watch};

/// Events of files that somebody waits for.
pub(crate) struct FileEvents {
    queue: OnceCell<Arc<AsyncFd<Watches>>>,
    /// Who has this permit asks the file system. One that hangs keeps others from asking, and nobody from anything else.
    asks: Arc<Semaphore>,
    /// Counts what was heard.
    heard: watch::Sender<u64>,
}

/// What the kernel is to tell of, and what it has told.
pub(crate) struct Watches(OwnedFd);

impl Default for FileEvents {
    fn default() -> Self {
        Self { queue: OnceCell::new(), asks: Arc::new(Semaphore::new(1)), heard: watch::Sender::default() }
    }
}

impl FileEvents {
    /// How often something was heard, now and later.
    pub(crate) fn heard(&self) -> watch::Receiver<u64> {
        self.heard.subscribe()
    }

    /// None while the system has none left.
    pub(crate) async fn queue(&self) -> Option<&Arc<AsyncFd<Watches>>> {
        self.queue.get_or_try_init(async || queue().map(Arc::new)).await.ok()
    }

    /// Asks the file system, which may take any time.
    pub(crate) async fn ask<T: Default + Send + 'static>(&self, question: impl FnOnce() -> T + Send + 'static) -> T {
        // The permit stays with the thread, also when nobody waits for the answer any more. Nobody closes the semaphore.
        let permit = Arc::clone(&self.asks).acquire_owned().await;
        let asked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            question()
        });
        asked.await.unwrap_or_default()
    }

    /// Waits until the kernel tells of any file, and lets everybody know.
    pub(crate) async fn hear(&self) {
        let Some(queue) = self.queue().await else { return std::future::pending().await };
        match queue.readable().await {
            Ok(mut readable) => {
                // Of several that wait, the first hears it, and which file it was is asked of each.
                let have_told = queue.get_ref().have_told();
                readable.clear_ready();
                if have_told {
                    self.heard.send_modify(|heard| *heard += 1);
                }
            }
            Err(_) => std::future::pending().await,
        }
    }
}

/// The reason why this process gets no file events from the kernel, if so, and the remedy.
#[must_use]
pub fn no_file_events() -> Option<String> {
    let error = inotify::init(inotify::CreateFlags::CLOEXEC).err()?;
    Some(format!(
        "the kernel reports no file changes ({error}), so hosts notice changes a second or more later, by polling: \
         raise fs.inotify.max_user_instances, or end programs of this user that hold inotify instances"
    ))
}

fn queue() -> io::Result<AsyncFd<Watches>> {
    // SAFETY: they are one and the same open descriptor until they are dropped, and only the drop of the registration gives
    // them out of our hands.
    Ok(unsafe { AsyncFd::register_with_interest(Watches::new()?, Interest::READABLE)? })
}

impl Watches {
    /// None yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?))
    }

    /// Hears of such events of what is at `path` now, until its number is given back, or it is gone.
    pub(crate) fn add(&self, path: &Path, events: WatchFlags) -> io::Result<i32> {
        Ok(inotify::add_watch(&self.0, path, events)?)
    }

    /// Hears of it no more. Harmless where the kernel has forgotten it, since the file is gone.
    pub(crate) fn remove(&self, number: i32) {
        let _ = inotify::remove_watch(&self.0, number);
    }

    /// Whether the kernel has told of anything since this was asked last.
    pub(crate) fn have_told(&self) -> bool {
        let mut space = [0; 4096];
        let mut have_told = false;
        while rustix::io::read(&self.0, &mut space).is_ok_and(|read| read > 0) {
            have_told = true;
        }
        have_told
    }
}

impl AsRawFd for Watches {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
