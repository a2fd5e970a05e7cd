//! Limits the number of streams, and ends streams that no client reads.
//!
//! To make room for a new connection, the endpoint never closes a connection that carries a stream. Streams last long,
//! so they would almost always be the oldest connections. Instead, the number of streams is limited, and a new stream
//! beyond the limit ends the oldest one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// The state of a connection, shared by its handler and the connection list.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    has_asked: AtomicBool,
    is_stream: AtomicBool,
    /// Number of times that the client has caught up with everything that was sent.
    moves: AtomicU64,
    cut: Notify,
}

impl ConnectionState {
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Records that the head of a request has arrived.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }

    pub(super) fn moves(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the connection must end. A connection without a stream ends after `lifetime`. A stream ends once its
    /// client has read nothing for `lifetime`, or when [`Streams::begin`] cuts it off in favor of a newer stream.
    pub(super) async fn ends(&self, lifetime: Duration) {
        loop {
            let before = self.moves.load(Ordering::Relaxed);
            let is_cut = timeout(lifetime, self.cut.notified()).await.is_ok();
            if is_cut || !self.is_stream() || self.moves.load(Ordering::Relaxed) == before {
                return;
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Streams {
    most: usize,
    oldest_first: Mutex<VecDeque<Weak<ConnectionState>>>,
}

impl Streams {
    pub(super) fn at_most(most: usize) -> Self {
        Self { most, oldest_first: Mutex::default() }
    }

    pub(super) fn are_open(&self) -> bool {
        let open = self.oldest_first.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().any(|one| one.strong_count() > 0)
    }

    /// Marks the connection as a stream. Ends the oldest stream if there are too many.
    pub(super) fn begin(&self, place: &Arc<ConnectionState>) {
        place.is_stream.store(true, Ordering::Relaxed);
        let mut open = self.oldest_first.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|one| one.strong_count() > 0);
        if open.len() >= self.most
            && let Some(oldest) = open.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.cut.notify_one();
        }
        open.push_back(Arc::downgrade(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn stream_ends_for_a_further_one_or_if_unread() {
        let streams = Streams::at_most(2);
        let places: Vec<Arc<ConnectionState>> = (0..3).map(|_| Arc::default()).collect();
        places.iter().for_each(|place| streams.begin(place));
        // Only two streams are allowed, so the third stream ended the first.
        places[0].ends(Duration::MAX).await;
        // The second stream's client reads nothing.
        places[1].ends(LIFETIME).await;
        let reading = async {
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < LIFETIME * 5 {
                places[2].moves();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = reading => {}
            () = places[2].ends(LIFETIME) => panic!("a stream ended although its client reads"),
        }
        // A connection that is not a stream is closed at the end of its maximum lifetime, even if its client keeps
        // reading.
        let other = ConnectionState::default();
        let moving = async {
            loop {
                other.moves();
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = moving => {}
            () = other.ends(LIFETIME) => {}
        }
    }

    #[test]
    fn ended_streams_do_not_count() {
        let streams = Streams::at_most(1);
        for _ in 0..100 {
            streams.begin(&Arc::default());
        }
        assert_eq!(streams.oldest_first.lock().map(|open| open.len()).ok(), Some(1));
    }
}
