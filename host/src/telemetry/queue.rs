//! The bounded queue between those who speak and the thread that writes.
//!
//! A lock and not a channel, because three things must be seen together: how much of the room guests
//! use, how much was dropped, and whether it is closed. The lock is held for a push or a pop, never
//! while something is written.
//!
//! It is our own, because a library's queue, such as that of `tracing-appender`, bounds and counts but knows only bytes:
//! guests would take the host's room, a line could not be judged by its deadline right before it is written, nobody could
//! wait for those of one lease before it is given up, and the last words would find no room.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{Event, Scope};
use baton_store::gate::Deadline;

/// How many events wait at most.
pub(super) const CAPACITY: usize = 1024;
/// How many of them may be lines that guests printed.
pub(super) const GUEST_SHARE: usize = CAPACITY / 4 * 3;
/// While guests print without end, the count of dropped lines is said this often.
const SAY_DROPPED: Duration = Duration::from_secs(1);

/// An event and what was known when it happened.
#[derive(Debug)]
pub(super) struct LogEntry {
    /// Wall-clock time since the Unix epoch.
    pub at: Duration,
    /// Who speaks.
    pub scope: Arc<Scope>,
    /// Of which term.
    pub term: Option<u64>,
    /// What happened.
    pub event: Event,
    /// Until when it may be written, if it is an effect of an instance.
    pub deadline: Option<Deadline>,
}

#[derive(Debug)]
enum Item {
    Entry(Arc<LogEntry>),
    Mark(oneshot::Sender<()>),
}

/// What the writer is to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Write it, then say that so many were dropped before (0: say nothing).
    Write(Arc<LogEntry>, u64),
    /// Say that all that came before it is done.
    Mark(oneshot::Sender<()>),
    /// There is nothing to do for now.
    Idle,
    /// The queue is closed and empty: say how many were dropped, then end.
    End(u64),
}

#[derive(Default, Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// For the writer: there is something to do.
    filled: Condvar,
    /// For those who wait for the writer: it has ended, or has written the last words.
    written: Condvar,
}

#[derive(Default, Debug)]
struct State {
    items: VecDeque<Item>,
    from_guests: usize,
    /// Whether the writer has one of theirs in its hands.
    writes_theirs: bool,
    /// How many ask that the writer sleep on.
    holds: usize,
    dropped: u64,
    dropped_said: Option<Instant>,
    closed: bool,
    done: bool,
    /// Why the host ends itself is written.
    last_words_said: bool,
}

impl Queue {
    /// Takes an event, or counts it as dropped.
    pub fn push(&self, entry: Arc<LogEntry>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let from_guest = matches!(entry.event, Event::Output { .. });
        let is_last = matches!(entry.event, Event::Aborting { .. });
        let full = state.items.len() >= CAPACITY || (from_guest && state.from_guests >= GUEST_SHARE);
        // After the last words nothing more comes that would have to find room.
        if full && !is_last {
            state.dropped += 1;
            return;
        }
        state.from_guests += usize::from(from_guest);
        // A hold is short, unless the holding thread is stopped itself: the last event does not rely on it.
        let held = state.holds > 0 && !is_last;
        state.items.push_back(Item::Entry(entry));
        drop(state);
        if !held {
            self.filled.notify_one();
        }
    }

    /// Something comes back once all that was pushed so far was written or dropped, and also once nothing is any more.
    pub fn mark(&self) -> oneshot::Receiver<()> {
        let (passed, receiver) = oneshot::channel();
        let mut state = self.lock();
        if !state.closed {
            // However full it is: they are few, and each takes little.
            state.items.push_back(Item::Mark(passed));
            drop(state);
            self.filled.notify_one();
        }
        receiver
    }

    /// Whether there are lines of guests that are neither written nor dropped.
    pub fn has_lines(&self) -> bool {
        let state = self.lock();
        state.from_guests > 0 || state.writes_theirs
    }

    /// Lets the writer sleep, though entries come, until the hold is released.
    pub fn hold(&self) {
        self.lock().holds += 1;
    }

    /// Ends a hold: the writer writes what came meanwhile.
    pub fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        let waits = !state.items.is_empty();
        drop(state);
        if waits {
            self.filled.notify_one();
        }
    }

    /// Waits for the next thing to do; if the writer `is_busy` with something else, it waits for nothing.
    #[expect(clippy::disallowed_methods, reason = "it only spaces lines of the log")]
    pub fn next(&self, is_busy: bool) -> Next {
        let idle = |state: &mut State| state.items.is_empty() && !state.closed && !is_busy;
        let mut state = self.lock();
        state.writes_theirs = false;
        let mut state = self.filled.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let entry = match state.items.pop_front() {
            Some(Item::Entry(entry)) => entry,
            Some(Item::Mark(passed)) => return Next::Mark(passed),
            None if !state.closed => return Next::Idle,
            None => return Next::End(std::mem::take(&mut state.dropped)),
        };
        state.writes_theirs = matches!(entry.event, Event::Output { .. });
        state.from_guests -= usize::from(state.writes_theirs);
        let roomy =
            state.items.len() < CAPACITY / 2 || state.dropped_said.is_none_or(|said| said.elapsed() >= SAY_DROPPED);
        let dropped = if roomy { std::mem::take(&mut state.dropped) } else { 0 };
        if dropped > 0 {
            state.dropped_said = Some(Instant::now());
        }
        Next::Write(entry, dropped)
    }

    /// Counts lines that could not be written.
    pub fn add_dropped(&self, lines: u64) {
        self.lock().dropped += lines;
    }

    /// Takes no more; the writer ends once it has written what is there.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// The writer has ended.
    pub fn set_done(&self) {
        self.lock().done = true;
        self.written.notify_all();
    }

    /// The writer has written why the host ends itself.
    pub fn set_last_words_said(&self) {
        self.lock().last_words_said = true;
        self.written.notify_all();
    }

    /// Waits until it has, at most so long.
    pub fn wait_last_words_said(&self, longest: Duration) {
        let waited = self.written.wait_timeout_while(self.lock(), longest, |state| !state.last_words_said);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until it has, at most so long; says whether it has.
    pub fn wait_done(&self, longest: Duration) -> bool {
        let waited = self.written.wait_timeout_while(self.lock(), longest, |state| !state.done);
        waited.unwrap_or_else(PoisonError::into_inner).0.done
    }

    /// A thread that panicked in here left the state whole: each change is a single step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;
    use crate::node::NodeId;

    #[test]
    fn last_words_find_room_where_nothing_else_does() {
        let scope = Arc::new(Scope { node: NodeId::new("n").unwrap(), standing: None });
        let queue = Queue::default();
        let push = |event| {
            let (at, scope) = (Duration::ZERO, Arc::clone(&scope));
            queue.push(Arc::new(LogEntry { at, scope, term: None, event, deadline: None }));
        };
        (0..CAPACITY + 5).for_each(|_| push(Event::Released {}));
        push(Event::Aborting { reason: "why".to_owned() });
        push(Event::Released {});
        queue.close();
        let entries = std::iter::from_fn(|| match queue.next(false) {
            Next::Write(entry, _) => Some(entry.event.clone()),
            _ => None,
        });
        let entries: Vec<Event> = entries.collect();
        assert_eq!(entries.len(), CAPACITY + 1);
        assert!(matches!(&entries[CAPACITY], Event::Aborting { reason } if reason == "why"), "{:?}", entries.last());
    }

    #[test]
    fn a_first_loss_is_said_at_once_and_the_rest_when_there_is_room() {
        let scope = Arc::new(Scope { node: NodeId::new("n").unwrap(), standing: None });
        let queue = Queue::default();
        let push = || {
            let (at, scope) = (Duration::ZERO, Arc::clone(&scope));
            queue.push(Arc::new(LogEntry { at, scope, term: None, event: Event::Released {}, deadline: None }));
        };
        let pop = || match queue.next(false) {
            Next::Write(_, dropped) => dropped,
            other => panic!("{other:?}"),
        };
        (0..CAPACITY + 5).for_each(|_| push());
        assert_eq!(pop(), 5);
        (0..4).for_each(|_| push());
        assert_eq!((1..CAPACITY).map(|_| pop()).sum::<u64>(), 3);
        queue.close();
        push();
        assert_eq!(pop(), 0);
        assert!(matches!(queue.next(false), Next::End(0)));
    }
}
