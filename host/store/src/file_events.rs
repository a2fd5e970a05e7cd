//! File events from the kernel (inotify(7)), so that hosts notice changes at once.
//!
//! The events are only hints. If the system has no inotify instances left, or a file system reports no events, polling
//! finds the changes. The state of a file is always read from the file itself, on a thread that may block for as long
//! as the disk does.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify;
pub(crate) use rustix::fs::inotify::WatchFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, Semaphore, watch};

pub(crate) struct FileEvents {
    queue: OnceCell<Arc<AsyncFd<Watches>>>,
    /// Permit for a blocking file system call. If a call hangs, only other calls to [`Self::ask`] wait for it.
    asks: Arc<Semaphore>,
    heard: watch::Sender<u64>,
}

pub(crate) struct Watches(OwnedFd);

impl Default for FileEvents {
    fn default() -> Self {
        Self { queue: OnceCell::new(), asks: Arc::new(Semaphore::new(1)), heard: watch::Sender::default() }
    }
}

impl FileEvents {
    pub(crate) fn heard(&self) -> watch::Receiver<u64> {
        self.heard.subscribe()
    }

    /// Returns `None` while the system has no inotify instances left.
    pub(crate) async fn queue(&self) -> Option<&Arc<AsyncFd<Watches>>> {
        self.queue.get_or_try_init(async || queue().map(Arc::new)).await.ok()
    }

    pub(crate) async fn ask<T: Default + Send + 'static>(&self, question: impl FnOnce() -> T + Send + 'static) -> T {
        // The thread keeps the permit even if the caller has given up. `acquire_owned` fails only if the semaphore is
        // closed, which never happens.
        let permit = Arc::clone(&self.asks).acquire_owned().await;
        let asked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            question()
        });
        asked.await.unwrap_or_default()
    }

    /// Waits for an event, and increases the number of events. All receivers from [`heard`](Self::heard) see the
    /// number.
    pub(crate) async fn hear(&self) {
        let Some(queue) = self.queue().await else { return std::future::pending().await };
        match queue.readable().await {
            Ok(mut readable) => {
                // If several tasks are waiting, only the first task finds events in the queue. The new number wakes all
                // tasks, and each task then checks its own file.
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

/// The reason why the kernel cannot report file events to this process, with advice to the operator. `None` if the
/// kernel can report them.
#[must_use]
pub fn no_file_events() -> Option<String> {
    let error = inotify::init(inotify::CreateFlags::CLOEXEC).err()?;
    Some(format!(
        "the kernel reports no file changes ({error}), so hosts notice changes a second or more later, by polling: \
         raise fs.inotify.max_user_instances, or end programs of this user that hold inotify instances"
    ))
}

fn queue() -> io::Result<AsyncFd<Watches>> {
    // SAFETY: `Watches` owns one descriptor and always returns it from `as_raw_fd`. The descriptor stays open until
    // `Watches` is dropped. The `AsyncFd` owns `Watches`, and lends it only by shared reference.
    Ok(unsafe { AsyncFd::register_with_interest(Watches::new()?, Interest::READABLE)? })
}

impl Watches {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?))
    }

    /// Watches the file that is now at `path`, and returns the number of the watch. The watch ends when
    /// [`remove`](Self::remove) removes it, or when the file is deleted.
    pub(crate) fn add(&self, path: &Path, events: WatchFlags) -> io::Result<i32> {
        Ok(inotify::add_watch(&self.0, path, events)?)
    }

    /// Does nothing if the file was deleted, because the kernel has then removed the watch.
    pub(crate) fn remove(&self, number: i32) {
        let _ = inotify::remove_watch(&self.0, number);
    }

    /// Empties the queue. Returns true if the queue contained events.
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
