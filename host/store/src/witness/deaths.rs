//! Hearing at once that a holder may be gone, without looking all the time.
//!
//! The kernel tells (inotify(7)) when a descriptor is closed by which a lock file could be written, and all of its host's
//! and runners' are such. That is heard a moment before the lock goes, so who hears it looks a few times. And it is a hint:
//! where it is missing, the next reading finds the same out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use rustix::fs::inotify;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::sleep;

use super::Place;

/// The waits from one look to the next, in milliseconds: after that, what was closed was one runner of several.
const LOOKS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// Who holds which lease, as far as is known here, and the news of the lock files.
pub(crate) struct Deaths {
    folder: PathBuf,
    holders: watch::Sender<HashMap<ElectionName, Holder>>,
    news: OnceCell<Option<Arc<News>>>,
    /// Who has this permit asks the file system, on a thread that may block. One that hangs keeps others from asking, and
    /// nobody from anything else.
    asks: Arc<Semaphore>,
    /// Counts what was heard.
    heard: watch::Sender<u64>,
}

#[derive(Clone, PartialEq, Eq)]
struct Holder {
    place: Place,
    /// Whether somebody was told that it is gone.
    is_told: bool,
    /// What had been heard when it was looked after for the last time, if it was.
    looked: Option<u64>,
}

/// What the kernel tells of lock files.
struct News {
    inotify: AsyncFd<OwnedFd>,
    /// Of which files, and under which numbers.
    watched: Mutex<HashMap<Place, i32>>,
}

impl Deaths {
    /// Of the incarnations whose lock files are in that folder. Touches nothing yet.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            holders: watch::Sender::default(),
            news: OnceCell::new(),
            asks: Arc::new(Semaphore::new(1)),
            heard: watch::Sender::default(),
        }
    }

    /// Where the lock files are.
    #[cfg(feature = "sqlite")]
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A reading has shown whose end would end the lease of `election`.
    pub(crate) fn holds(&self, election: &ElectionName, place: Option<Place>) {
        self.holders.send_if_modified(|holders| {
            let known = holders.get(election).map(|holder| &holder.place);
            if known == place.as_ref() {
                return false;
            }
            match place {
                Some(place) => drop(holders.insert(election.clone(), Holder { place, is_told: false, looked: None })),
                None => drop(holders.remove(election)),
            }
            true
        });
    }

    /// Resolves when the holder of that election's lease is gone, once for each. Cancel safe.
    pub(crate) async fn next(&self, election: &ElectionName) {
        let (mut holders, mut heard) = (self.holders.subscribe(), self.heard.subscribe());
        loop {
            let holder = holders.borrow_and_update().get(election).cloned();
            let count = *heard.borrow_and_update();
            if let Some(Holder { place, is_told: false, looked }) = holder {
                let looks = async {
                    // Watched first: what happens between the two is seen or heard.
                    self.watch().await;
                    let often = match looked {
                        // What happened between the reading and the watch.
                        None => 1,
                        Some(looked) if looked == count => 0,
                        Some(_) => LOOKS.len(),
                    };
                    for wait in LOOKS.into_iter().take(often) {
                        sleep(Duration::from_millis(wait)).await;
                        let (place, folder) = (place.clone(), self.folder.clone());
                        if self.ask(move || place.is_gone(&folder)).await {
                            return true;
                        }
                    }
                    false
                };
                let is_gone = tokio::select! {
                    is_gone = looks => is_gone,
                    // The sender is as old as this.
                    _ = holders.changed() => continue,
                };
                if self.looked(election, &place, count, is_gone) {
                    return;
                }
            }
            tokio::select! {
                _ = holders.changed() => {}
                _ = heard.changed() => {}
                () = self.hear() => {}
            }
        }
    }

    /// It was looked after since so much was heard. Says whether it is to be told that it is gone.
    fn looked(&self, election: &ElectionName, place: &Place, count: u64, is_gone: bool) -> bool {
        let mut is_news = false;
        self.holders.send_if_modified(|holders| {
            if let Some(holder) = holders.get_mut(election).filter(|holder| holder.place == *place) {
                holder.looked = Some(count);
                is_news = is_gone && !std::mem::replace(&mut holder.is_told, true);
            }
            false
        });
        is_news
    }

    async fn news(&self) -> Option<&Arc<News>> {
        // Where the system has none left, the readings have to do.
        self.news.get_or_init(async || News::new().ok().map(Arc::new)).await.as_ref()
    }

    /// Asks the file system, which may take any time.
    async fn ask<T: Default + Send + 'static>(&self, question: impl FnOnce() -> T + Send + 'static) -> T {
        // The permit stays with the thread, also when nobody waits for the answer any more. Nobody closes the semaphore.
        let permit = Arc::clone(&self.asks).acquire_owned().await;
        let asked = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            question()
        });
        asked.await.unwrap_or_default()
    }

    /// Has the kernel tell of those whose ends are waited for, and of no other.
    async fn watch(&self) {
        let Some(news) = self.news().await else { return };
        let wanted: HashSet<Place> = self.holders.borrow().values().map(|holder| holder.place.clone()).collect();
        let is_watched = lock(&news.watched).keys().collect::<HashSet<_>>() == wanted.iter().collect();
        if !is_watched {
            let (news, folder) = (Arc::clone(news), self.folder.clone());
            self.ask(move || news.watch(&folder, &wanted)).await;
        }
    }

    /// Waits until the kernel tells of any, and lets everybody know.
    async fn hear(&self) {
        let Some(news) = self.news().await else { return std::future::pending().await };
        match news.inotify.readable().await {
            Ok(mut readable) => {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(news.inotify.get_ref(), &mut space);
                // To the end of what there is: which file it was is asked of each.
                while events.next().is_ok() {}
                readable.clear_ready();
                self.heard.send_modify(|heard| *heard += 1);
            }
            Err(_) => std::future::pending().await,
        }
    }
}

impl News {
    fn new() -> io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` is one and the same open descriptor until it is dropped, and only the drop of the
        // registration gives it out of our hands.
        let inotify = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE)? };
        Ok(Self { inotify, watched: Mutex::default() })
    }

    /// Hears of those from here on, and of no other.
    fn watch(&self, folder: &Path, wanted: &HashSet<Place>) {
        // Nobody else changes it: one asks at a time.
        let mut watched = lock(&self.watched).clone();
        for (_, number) in watched.extract_if(|place, _| !wanted.contains(place)) {
            // The kernel has forgotten it where the file is gone.
            let _ = inotify::remove_watch(self.inotify.get_ref(), number);
        }
        for place in wanted.iter().filter(|place| super::is_incarnation(&place.incarnation)) {
            let closed = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::DONT_FOLLOW;
            if !watched.contains_key(place)
                && let Ok(number) = inotify::add_watch(self.inotify.get_ref(), folder.join(&place.incarnation), closed)
            {
                watched.insert(place.clone(), number);
            }
        }
        *lock(&self.watched) = watched;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
