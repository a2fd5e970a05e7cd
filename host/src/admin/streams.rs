//! Answers that have no end: how many there are, and what becomes of those that nobody reads.
//!
//! A stream does not count among the connections that are cut off when one more comes: it would always be the oldest. It
//! has a place among the streams instead, of which there are few, too. One more, and the oldest ends.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// A connection, as those see it who answer on it and who keep it.
#[derive(Debug, Default)]
pub(super) struct Place {
    has_asked: AtomicBool,
    is_stream: AtomicBool,
    /// How often more was wanted for its client.
    moves: AtomicU64,
    cut: Notify,
}

impl Place {
    /// True if the head of a request has arrived on it.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// The head of a request has arrived.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether there is a stream on it.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream.load(Ordering::Relaxed)
    }

    /// Its client has taken what there was, and wants more.
    pub(super) fn moves(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the connection is to end: after this lifetime, or, if there is a stream on it, once its client has
    /// taken nothing for as long; or another needs its place.
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

/// The streams of one kind.
#[derive(Debug)]
pub(super) struct Streams {
    most: usize,
    oldest_first: Mutex<VecDeque<Weak<Place>>>,
}

impl Streams {
    /// There are to be so many at a time.
    pub(super) fn at_most(most: usize) -> Self {
        Self { most, oldest_first: Mutex::default() }
    }

    /// Whether there are any.
    pub(super) fn are_open(&self) -> bool {
        let open = self.oldest_first.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().any(|one| one.strong_count() > 0)
    }

    /// One more begins there; perhaps the oldest ends.
    pub(super) fn begin(&self, place: &Arc<Place>) {
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
    async fn one_more_ends_the_oldest_and_who_takes_nothing_ends_too() {
        let streams = Streams::at_most(2);
        let places: Vec<Arc<Place>> = (0..3).map(|_| Arc::default()).collect();
        places.iter().for_each(|place| streams.begin(place));
        // Another needs its place.
        places[0].ends(Duration::MAX).await;
        // Its client has taken nothing.
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
            () = places[2].ends(LIFETIME) => panic!("its client reads"),
        }
        // What is no stream has its lifetime, whatever moves.
        let other = Place::default();
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
    fn those_that_have_ended_take_no_place() {
        let streams = Streams::at_most(1);
        for _ in 0..100 {
            streams.begin(&Arc::default());
        }
        assert_eq!(streams.oldest_first.lock().map(|open| open.len()).ok(), Some(1));
    }
}
