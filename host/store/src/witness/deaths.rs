//! Detects immediately, without polling, that a lease's holder is dead.
//!
//! The kernel (inotify(7)) reports when a writable descriptor of a lock file is closed. The descriptors of a host and
//! of its runners are writable. The event comes slightly before the lock is released, so the lock is checked several
//! times. The event is only a hint: if it is missed, the next read detects the death.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use tokio::sync::watch;
use tokio::time::sleep;

use super::LockFileId;
use crate::file_events::{FileEvents, WatchFlags, Watches};

/// The wait before each check, in milliseconds. If the file is still locked at the last check, another process of the
/// incarnation is alive.
const LOOKS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

pub(crate) struct Deaths {
    folder: PathBuf,
    holders: watch::Sender<HashMap<ElectionName, Holder>>,
    events: Arc<FileEvents>,
    watched: Arc<Mutex<HashMap<LockFileId, i32>>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Holder {
    place: LockFileId,
    is_told: bool,
    /// The number of events at the time of the last check, if there has been a check.
    looked: Option<u64>,
}

impl Deaths {
    pub(crate) fn new(folder: PathBuf, events: Arc<FileEvents>) -> Self {
        Self { folder, holders: watch::Sender::default(), events, watched: Arc::default() }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets the holder of the lease of `election`, as shown by a read.
    pub(crate) fn holds(&self, election: &ElectionName, place: Option<LockFileId>) {
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

    /// Resolves when the holder of the election's lease is dead. Each death resolves one call. Cancel safe.
    pub(crate) async fn next(&self, election: &ElectionName) {
        let (mut holders, mut heard) = (self.holders.subscribe(), self.events.heard());
        loop {
            let holder = holders.borrow_and_update().get(election).cloned();
            let count = *heard.borrow_and_update();
            if let Some(Holder { place, is_told: false, looked }) = holder {
                let looks = async {
                    // Watch before checking, so that no death is missed: the check detects an earlier death, and an
                    // event reports a later one.
                    self.watch().await;
                    let often = match looked {
                        // Check once, in case the holder died between the read and the watch.
                        None => 1,
                        Some(looked) if looked == count => 0,
                        Some(_) => LOOKS.len(),
                    };
                    for wait in LOOKS.into_iter().take(often) {
                        sleep(Duration::from_millis(wait)).await;
                        let (place, folder) = (place.clone(), self.folder.clone());
                        if self.events.ask(move || place.is_gone(&folder)).await {
                            return true;
                        }
                    }
                    false
                };
                let is_gone = tokio::select! {
                    is_gone = looks => is_gone,
                    // `self` keeps the sender alive, so `changed` never returns an error.
                    _ = holders.changed() => continue,
                };
                if self.looked(election, &place, count, is_gone) {
                    return;
                }
            }
            tokio::select! {
                _ = holders.changed() => {}
                _ = heard.changed() => {}
                () = self.events.hear() => {}
            }
        }
    }

    /// Records the result of a check. `count` is the number of events at the time of the check. Returns true if the
    /// holder is dead and its death has not been reported yet.
    fn looked(&self, election: &ElectionName, place: &LockFileId, count: u64, is_gone: bool) -> bool {
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

    /// Makes the kernel report events of all holders' lock files, and of no other files.
    async fn watch(&self) {
        let Some(queue) = self.events.queue().await.map(Arc::clone) else { return };
        let wanted: HashSet<LockFileId> = self.holders.borrow().values().map(|holder| holder.place.clone()).collect();
        let is_watched = lock(&self.watched).keys().collect::<HashSet<_>>() == wanted.iter().collect();
        if !is_watched {
            let (watched, folder) = (Arc::clone(&self.watched), self.folder.clone());
            self.events.ask(move || watch(queue.get_ref(), &watched, &folder, &wanted)).await;
        }
    }
}

fn watch(watches: &Watches, watched: &Mutex<HashMap<LockFileId, i32>>, folder: &Path, wanted: &HashSet<LockFileId>) {
    // No other thread changes the map in the meantime, because [`FileEvents::ask`] runs only one call at a time.
    let mut now = lock(watched).clone();
    for (_, number) in now.extract_if(|place, _| !wanted.contains(place)) {
        watches.remove(number);
    }
    for place in wanted.iter().filter(|place| super::is_incarnation(&place.incarnation)) {
        let closed = WatchFlags::CLOSE_WRITE | WatchFlags::DONT_FOLLOW;
        if !now.contains_key(place)
            && let Ok(number) = watches.add(&folder.join(&place.incarnation), closed)
        {
            now.insert(place.clone(), number);
        }
    }
    *lock(watched) = now;
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
