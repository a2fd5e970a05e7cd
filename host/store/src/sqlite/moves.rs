//! Detects at once when the lease database is removed, replaced or moved. The next renewal would also detect this, but
//! a host whose leases are gone, or were replaced by an older copy, should stop earlier.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::ElectionName;

use super::SqliteStore;
use crate::file_events::FileEvents;

pub(super) struct MoveWatch {
    events: Arc<FileEvents>,
    looked: Mutex<HashMap<ElectionName, Look>>,
}

/// The number of the file that was last checked for an election, and the number of file events that had been received
/// by then.
type Look = (u64, u64);

impl MoveWatch {
    pub(super) fn new(events: Arc<FileEvents>) -> Self {
        Self { events, looked: Mutex::default() }
    }

    #[cfg(test)]
    pub(super) fn looked_after(&self, election: &ElectionName) -> Option<Look> {
        self.looked().get(election).copied()
    }

    fn looked(&self) -> MutexGuard<'_, HashMap<ElectionName, Look>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SqliteStore {
    /// Resolves when the kernel reports an event after which the lease database is no longer at its path. Each event
    /// resolves one call per election. Cancel safe.
    pub(super) async fn leases_moved(&self, election: &ElectionName) {
        let moves = &self.shared.moves;
        let events = &moves.events;
        let (mut files, mut heard) = (self.shared.leases.files(), events.heard());
        loop {
            let now = (*files.borrow_and_update(), *heard.borrow_and_update());
            let is_looked_after = now.0 == 0 || moves.looked().get(election) == Some(&now);
            if !is_looked_after && let Some(queue) = events.queue().await {
                let (shared, queue) = (Arc::clone(&self.shared), Arc::clone(queue));
                let is_moved = events.ask(move || shared.leases.watch_moves(queue.get_ref())).await;
                moves.looked().insert(election.clone(), now);
                if is_moved {
                    return;
                }
            }
            // `self` owns both senders, so the channels cannot close.
            tokio::select! {
                _ = files.changed() => {}
                _ = heard.changed() => {}
                () = events.hear() => {}
            }
        }
    }
}
