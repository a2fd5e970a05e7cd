//! Hearing at once that a holder may be gone, without looking all the time.
//!
//! The kernel tells (inotify(7)) when a descriptor is closed by which a lock file could be written, and all of its host's
//! and runners' are such. That is heard a moment before the lock goes, so who hears it looks a few times. And it is a hint:
//! where it is missing, the next reading finds the same out.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Place;
use crate::file_events::{FileEvents, WatchFlags, Watches};

/// The waits from one look to the next, in milliseconds: after that, what was closed was one runner of several.
const LOOKS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// Who holds which lease, as far as is known here, and the news of the lock files.
pub(crate) struct Deaths {
    folder: PathBuf,
    holders: watch::Sender<HashMap<ElectionName, Holder>>,
    events: Arc<FileEvents>,
    /// Of which lock files the kernel tells, and under which numbers.
    watched: Arc<Mutex<HashMap<Place, i32>>>,
}

#[derive(Clone, PartialEq, Eq)]
struct Holder {
    place: Place,
    /// Whether somebody was told that it is gone.
    is_told: bool,
    /// What had been heard when it was looked after for the last time, if it was.
    looked: Option<u64>,
}

impl Deaths {
    /// Of the incarnations whose lock files are in that folder, heard with these events. Touches nothing yet.
    pub(crate) fn new(folder: PathBuf, events: Arc<FileEvents>) -> Self {
        Self { folder, holders: watch::Sender::default(), events, watched: Arc::default() }
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
        let (mut holders, mut heard) = (self.holders.subscribe(), self.events.heard());
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
                        if self.events.ask(move || place.is_gone(&folder)).await {
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
                () = self.events.hear() => {}
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

    /// Has the kernel tell of those whose ends are waited for, and of no other.
    async fn watch(&self) {
        let Some(queue) = self.events.queue().await.map(Arc::clone) else { return };
        let wanted: HashSet<Place> = self.holders.borrow().values().map(|holder| holder.place.clone()).collect();
        let is_watched = lock(&self.watched).keys().collect::<HashSet<_>>() == wanted.iter().collect();
        if !is_watched {
            let (watched, folder) = (Arc::clone(&self.watched), self.folder.clone());
            self.events.ask(move || watch(queue.get_ref(), &watched, &folder, &wanted)).await;
        }
    }
}

/// Has the kernel tell of those lock files from here on, and of no other.
fn watch(watches: &Watches, watched: &Mutex<HashMap<Place, i32>>, folder: &Path, wanted: &HashSet<Place>) {
    // Nobody else changes it: one asks at a time.
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
