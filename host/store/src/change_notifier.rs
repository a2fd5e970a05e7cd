//! Notifications between nodes about changes to objects. With these notifications, a node reads an object right after a
//! change, and only rarely otherwise.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use baton_base::jitter::{Moments, between};

/// Minimum and maximum interval between reads while another node notifies this node of changes.
const TOLD: (Duration, Duration) = (Duration::from_secs(22), Duration::from_secs(38));

/// Minimum interval between reads, regardless of the number of notifications.
const APART: Duration = Duration::from_millis(250);

/// Minimum and maximum delay before the next read when other nodes have stopped reporting changes. The delay spares the
/// store: if the reporting node has released the lease, the store is busy with the next leader's requests.
const UNTOLD: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// The notifications that one node sends and receives about changes to an election's objects. Clones share their state.
/// A notification is untrusted: only a read shows whether the object has changed.
#[derive(Clone, Debug)]
pub struct ChangeNotifier(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    /// Number of notifications received so far. Each notification makes the readers read their objects.
    looks: watch::Sender<u64>,
    is_told: watch::Sender<bool>,
    /// Number of changes that this node has found or made so far. Other nodes must be notified of each change.
    found: watch::Sender<u64>,
    moments: Moments,
}

impl Default for ChangeNotifier {
    fn default() -> Self {
        Self::at(Moments::default())
    }
}

impl ChangeNotifier {
    /// Creates a node's notifier. The node's readers read at the given moments.
    #[must_use]
    pub fn at(moments: Moments) -> Self {
        Self(Arc::new(Ends {
            looks: watch::Sender::new(0),
            is_told: watch::Sender::new(false),
            found: watch::Sender::new(0),
            moments,
        }))
    }

    /// Notifies the readers that an object may have changed.
    pub fn look(&self) {
        self.0.looks.send_modify(|looks| *looks += 1);
    }

    /// Sets whether another node, which polls often, currently notifies this node of changes. If so, this node polls
    /// less often.
    pub fn is_told(&self, is_told: bool) {
        self.0.is_told.send_if_modified(|before| std::mem::replace(before, is_told) != is_told);
    }

    /// Reports that a read has shown a change, or that this node has written a change. Other nodes are then notified.
    pub fn found(&self) {
        self.0.found.send_modify(|found| *found += 1);
    }

    /// Returns a watch on the number of changes that this node has found.
    #[must_use]
    pub fn finds(&self) -> watch::Receiver<u64> {
        self.0.found.subscribe()
    }

    /// Creates a reader of one object.
    #[must_use]
    pub fn reader(&self) -> ChangeReader {
        ChangeReader { looks: self.0.looks.subscribe(), is_told: self.0.is_told.subscribe(), of: self.clone() }
    }
}

/// Decides when a node next reads an object.
#[derive(Debug)]
pub struct ChangeReader {
    looks: watch::Receiver<u64>,
    is_told: watch::Receiver<bool>,
    of: ChangeNotifier,
}

impl ChangeReader {
    /// Returns the time of the next read. `answered` is the time at which the last read succeeded. `usual` is the
    /// minimum and maximum interval if no other node reports changes. All readers of a node read at the same moments.
    pub fn next(&mut self, answered: Instant, usual: (Duration, Duration)) -> Instant {
        let window = if *self.is_told.borrow_and_update() { TOLD } else { usual };
        self.of.0.moments.next(answered, window)
    }

    /// Waits until `planned`, or until there is a reason to read earlier. The last read began at `last`.
    pub async fn until(&mut self, mut planned: Instant, last: Instant) {
        loop {
            tokio::select! {
                () = sleep_until(planned) => return,
                at = self.reason(last) => planned = planned.min(at),
            }
        }
    }

    /// Waits for a reason to read earlier than planned, and returns the time at which to read. The reason is either a
    /// notification, or that the other nodes have stopped reporting changes. `last` is the time at which the last read
    /// began. Cancel safe.
    pub async fn reason(&mut self, last: Instant) -> Instant {
        // `self` keeps both senders alive, so neither call of `changed` returns an error.
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

    /// Reports that a read has shown a change.
    pub fn found(&self) {
        self.of.found();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));

    #[tokio::test]
    async fn reader_polls_seldom_until_a_reason_or_silence() {
        let notifier = ChangeNotifier::default();
        let mut reader = notifier.reader();
        let last = Instant::now();
        assert!((USUAL.0..=USUAL.1).contains(&(reader.next(last, USUAL) - last)));
        notifier.is_told(true);
        assert!(reader.next(last, USUAL) - last >= TOLD.0);
        reader.until(last, last).await;
        let reasons = [ChangeNotifier::look, |notifier: &ChangeNotifier| notifier.is_told(false)];
        for (reason, soonest) in reasons.into_iter().zip([last + APART, Instant::now() + UNTOLD.0]) {
            reason(&notifier);
            let planned = Instant::now() + TOLD.0;
            reader.until(planned, last).await;
            assert!((soonest..planned).contains(&Instant::now()));
        }
        notifier.is_told(true);
        notifier.is_told(false);
        let untold = reader.reason(last).await;
        assert!(untold <= Instant::now() + UNTOLD.1, "{:?}", untold - last);
        // Several notifications in a row lead to only one read.
        notifier.look();
        notifier.look();
        let _ = reader.reason(last).await;
        assert!(futures::poll!(std::pin::pin!(reader.reason(last))).is_pending());
    }
}
