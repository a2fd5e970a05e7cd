//! What lets those who read the same object now and then read it at once, or seldom: that others have heard of something
//! new, or would tell.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::jitter::{Moments, between};

/// From one reading to the next while others would tell, at least and at most.
const TOLD: (Duration, Duration) = (Duration::from_secs(22), Duration::from_secs(38));

/// However often it is told, from one reading to the next.
const APART: Duration = Duration::from_millis(250);

/// How long after nobody would tell any more it is read, at least and at most. Who told may have given the lease up: at that
/// moment the store is busy with who takes it.
const UNTOLD: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// What one node hears and tells of an election's objects that all of its nodes read. Clones are of the same node. Nothing
/// of it is believed: a reading shows what there is.
#[derive(Clone, Debug)]
pub struct Tidings(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    /// Counts how often there was a reason to read.
    looks: watch::Sender<u64>,
    /// Whether somebody would tell.
    is_told: watch::Sender<bool>,
    /// Counts what was found that others are to read.
    found: watch::Sender<u64>,
    moments: Moments,
}

impl Default for Tidings {
    fn default() -> Self {
        Self::at(Moments::default())
    }
}

impl Tidings {
    /// Of a node whose readers read at these moments.
    #[must_use]
    pub fn at(moments: Moments) -> Self {
        Self(Arc::new(Ends {
            looks: watch::Sender::new(0),
            is_told: watch::Sender::new(false),
            found: watch::Sender::new(0),
            moments,
        }))
    }

    /// There may be something to read.
    pub fn look(&self) {
        self.0.looks.send_modify(|looks| *looks += 1);
    }

    /// Somebody who reads often would tell, or would not any more.
    pub fn is_told(&self, is_told: bool) {
        self.0.is_told.send_if_modified(|before| std::mem::replace(before, is_told) != is_told);
    }

    /// A reading has shown something new, or this node has written it.
    pub fn found(&self) {
        self.0.found.send_modify(|found| *found += 1);
    }

    /// Counts what was found.
    #[must_use]
    pub fn finds(&self) -> watch::Receiver<u64> {
        self.0.found.subscribe()
    }

    /// One who reads.
    #[must_use]
    pub fn reader(&self) -> TidingsReader {
        TidingsReader { looks: self.0.looks.subscribe(), is_told: self.0.is_told.subscribe(), of: self.clone() }
    }
}

/// One who reads an object, and when it does next.
#[derive(Debug)]
pub struct TidingsReader {
    looks: watch::Receiver<u64>,
    is_told: watch::Receiver<bool>,
    of: Tidings,
}

impl TidingsReader {
    /// When to read next, where the last reading was answered then and all went well; `usual` is the pace without a word
    /// of others. Other readers read then, too.
    pub fn next(&mut self, answered: Instant, usual: (Duration, Duration)) -> Instant {
        let window = if *self.is_told.borrow_and_update() { TOLD } else { usual };
        self.of.0.moments.next(answered, window)
    }

    /// Waits until it is time to read: then, or earlier for a reason, where the last reading began at `last`.
    pub async fn until(&mut self, mut planned: Instant, last: Instant) {
        loop {
            tokio::select! {
                () = sleep_until(planned) => return,
                at = self.reason(last) => planned = planned.min(at),
            }
        }
    }

    /// Waits for a reason to read earlier than is planned, where the last reading began at `last`, and returns when. That
    /// nobody would tell any more is one, too. Cancel safe, but for what it has returned.
    pub async fn reason(&mut self, last: Instant) -> Instant {
        // Both senders are as old as this.
        let silent = async {
            loop {
                if self.is_told.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                if !*self.is_told.borrow_and_update() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = self.looks.changed() => (last + APART).max(Instant::now()),
            () = silent => Instant::now() + between(UNTOLD.0, UNTOLD.1),
        }
    }

    /// A reading has shown something new.
    pub fn found(&self) {
        self.of.found();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));

    #[tokio::test]
    async fn who_would_be_told_reads_seldom_but_soon_when_that_ends_or_there_is_a_reason() {
        let tidings = Tidings::default();
        let mut reader = tidings.reader();
        let last = Instant::now();
        assert!((USUAL.0..=USUAL.1).contains(&(reader.next(last, USUAL) - last)));
        tidings.is_told(true);
        assert!(reader.next(last, USUAL) - last >= TOLD.0);
        // It is time.
        reader.until(last, last).await;
        let reasons = [Tidings::look, |tidings: &Tidings| tidings.is_told(false)];
        for (reason, soonest) in reasons.into_iter().zip([last + APART, Instant::now() + UNTOLD.0]) {
            reason(&tidings);
            let planned = Instant::now() + TOLD.0;
            reader.until(planned, last).await;
            assert!((soonest..planned).contains(&Instant::now()));
        }
        tidings.is_told(true);
        tidings.is_told(false);
        let untold = reader.reason(last).await;
        assert!(untold <= Instant::now() + UNTOLD.1, "{:?}", untold - last);
        // However often, it is one reason.
        tidings.look();
        tidings.look();
        let _ = reader.reason(last).await;
        assert!(futures::poll!(std::pin::pin!(reader.reason(last))).is_pending());
    }
}
