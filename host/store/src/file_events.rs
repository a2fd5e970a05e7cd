//! What the kernel tells of files (inotify(7)), for those that look after them at once rather than later.
//!
//! Nothing depends on it: where the system has no inotify left, or a file system tells nothing, nothing is heard. What a file
//! has come to is asked of the file, on a thread that may block for as long as its disk does.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify;
pub(crate) use rustix::fs::inotify::WatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, Semaphore, watch};

/// Events of files that somebody waits for.
pub(crate) struct FileEvents {
    queue: OnceCell<Option<Arc<EventQueue>>>,
    /// Who has this permit asks the file system. One that hangs keeps others from asking, and nobody from anything else.
    asks: Arc<Semaphore>,
    /// Counts what was heard.
    heard: watch::Sender<u64>,
}

/// Where the kernel puts them.
pub(crate) struct EventQueue(AsyncFd<OwnedFd>);

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

    /// None where the system has none left.
    pub(crate) async fn queue(&self) -> Option<&Arc<EventQueue>> {
        self.queue.get_or_init(async || EventQueue::new().ok().map(Arc::new)).await.as_ref()
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
        let Some(EventQueue(queue)) = self.queue().await.map(Arc::as_ref) else { return std::future::pending().await };
        match queue.readable().await {
            Ok(mut readable) => {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(queue.get_ref(), &mut space);
                // To the end of what there is: which file it was is asked of each.
                while events.next().is_ok() {}
                readable.clear_ready();
                self.heard.send_modify(|heard| *heard += 1);
            }
            Err(_) => std::future::pending().await,
        }
    }
}

impl EventQueue {
    fn new() -> io::Result<Self> {
        let queue = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` is one and the same open descriptor until it is dropped, and only the drop of the
        // registration gives it out of our hands.
        Ok(Self(unsafe { AsyncFd::register_with_interest(queue, Interest::READABLE)? }))
    }

    /// Hears of such events of what is at `path` now, until its number is given back, or it is gone.
    pub(crate) fn add(&self, path: &Path, events: WatchFlags) -> io::Result<i32> {
        Ok(inotify::add_watch(self.0.get_ref(), path, events)?)
    }

    /// Hears of it no more. Harmless where the kernel has forgotten it, since the file is gone.
    pub(crate) fn remove(&self, number: i32) {
        let _ = inotify::remove_watch(self.0.get_ref(), number);
    }
}
