//! A runner's connection to its host.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write as _;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::wire::output::{Notice, Output};
use crate::wire::protocol::{Change, Changes, FromRunner, LOOKUPS, NotCommitted, Resolved, frame};

/// Clones write to the same pipe.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Mutex<File>>);

impl Wire {
    pub(super) fn new(to_host: File) -> Self {
        Self(Arc::new(Mutex::new(to_host)))
    }

    /// Blocks while the pipe is full.
    pub(crate) fn send(&self, message: &FromRunner) {
        let Ok(message) = frame(message) else { return };
        // A write fails only if the host has exited, and this process then exits too.
        let _ = lock(&self.0).write_all(&message);
    }

    /// Installs a panic hook that reports the panic to the host and aborts the process.
    pub(super) fn report_panics(&self) {
        let wire = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            // Do not wait for the lock. If the thread panicked while it was sending a message, it holds the lock
            // itself, and waiting would be a deadlock.
            if let Ok(mut to_host) = wire.0.try_lock()
                && let Ok(message) = frame(&FromRunner::Panicked(panic.to_string()))
            {
                let _ = to_host.write_all(&message);
            }
            std::process::abort();
        }));
    }
}

impl Output for Wire {
    fn notice(&self, notice: Notice<'_>) {
        self.send(&match notice {
            Notice::Line(stream, line) => FromRunner::Line(stream, line.to_owned()),
            Notice::Log { level, context, message } => {
                FromRunner::Log { level, context: context.to_owned(), message: message.to_owned() }
            }
            Notice::Dropped { lines, .. } => FromRunner::Dropped(lines),
            Notice::Denied { what, remedy } => FromRunner::Denied { what: what.to_owned(), remedy: remedy.to_owned() },
            Notice::NearLimit(near) => FromRunner::NearLimit(near),
            Notice::RefusedRequest(refused) => FromRunner::RefusedRequest(refused.clone()),
            // Only the host creates these notices, so a runner never sends them.
            Notice::Started(_) | Notice::StateDelayed(_) => return,
        });
    }
}

/// Resolves host names through the host, which does the DNS lookups. Clones share the lookups in flight.
#[derive(Clone)]
pub(crate) struct Lookups {
    wire: Wire,
    number: Arc<AtomicU64>,
    places: Arc<Semaphore>,
    waiting: Arc<Mutex<HashMap<u64, Waiting>>>,
}

/// A lookup that the host has not answered yet. The lookup holds its permit until the host answers, even if the caller
/// has given up.
struct Waiting {
    answer: oneshot::Sender<Result<Vec<Resolved>, String>>,
    _place: OwnedSemaphorePermit,
}

impl Lookups {
    pub(crate) fn new(wire: Wire) -> Self {
        let places = Arc::new(Semaphore::new(LOOKUPS));
        Self { wire, number: Arc::default(), places, waiting: Arc::default() }
    }

    #[cfg(test)]
    pub(crate) fn nowhere() -> Self {
        Self::new(Wire::new(File::create("/dev/null").unwrap_or_else(|error| panic!("{error}"))))
    }

    /// Waits for one of [`LOOKUPS`] permits, and then for the host's answer. The error says why the host could not
    /// resolve the name.
    pub(crate) async fn look_up(&self, host: &str, port: u16) -> Result<Vec<Resolved>, String> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|error| error.to_string())?;
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(number, Waiting { answer, _place: place });
        self.wire.send(&FromRunner::Resolve { number, host: host.to_owned(), port });
        answered.await.map_err(|error| error.to_string())?
    }

    pub(super) fn resolved(&self, number: u64, addresses: Result<Vec<Resolved>, String>) {
        if let Some(Waiting { answer, .. }) = lock(&self.waiting).remove(&number) {
            // The caller may have given up.
            let _ = answer.send(addresses);
        }
    }
}

/// The runner's copy of its coordinator's state.
pub(crate) struct LocalState {
    pub(crate) entries: BTreeMap<String, Bytes>,
    wire: Wire,
    answers: mpsc::UnboundedReceiver<Result<(), NotCommitted>>,
}

impl LocalState {
    pub(super) fn new(
        entries: BTreeMap<String, Bytes>,
        wire: Wire,
        answers: mpsc::UnboundedReceiver<Result<(), NotCommitted>>,
    ) -> Self {
        Self { entries, wire, answers }
    }

    pub(crate) fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let from = self.entries.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map(|(key, _)| key.as_str()).take_while(move |key| key.starts_with(prefix))
    }

    /// Asks the host to save the changes atomically: all of them or none.
    pub(crate) async fn commit(&mut self, changes: Vec<Change>) -> Result<(), NotCommitted> {
        let commit = Changes::of(&changes).map_err(|error| NotCommitted::TooLarge(error.to_string()))?;
        self.wire.send(&FromRunner::Commit(commit));
        // The host answers each commit exactly once. If the channel is closed, the host has exited, and this process is
        // about to exit too. So wait without end.
        let Some(answer) = self.answers.recv().await else { return std::future::pending().await };
        answer?;
        for change in changes {
            match change {
                Change::Put(key, value) => drop(self.entries.insert(key, value)),
                Change::Delete(key) => drop(self.entries.remove(&key)),
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_prefix() {
        let entries = ["a", "ab", "b"].map(|key| (key.to_owned(), Bytes::new()));
        let state = LocalState::new(entries.into(), Lookups::nowhere().wire, mpsc::unbounded_channel().1);
        let keys = |prefix| state.keys(prefix).collect::<Vec<_>>();
        assert_eq!((keys(""), keys("a"), keys("c")), (vec!["a", "ab", "b"], vec!["a", "ab"], vec![]));
    }
}
