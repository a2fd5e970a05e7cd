//! The bounded queue between threads that log and the thread that writes.
//!
//! The queue uses a mutex instead of a channel, because three values must change together: the bytes that guests use,
//! the number of dropped events, and the flag for a closed queue. A thread holds the lock while it pushes or pops, but
//! never during a write.
//!
//! The output of guests has its own limit, separate from the limit on the host's events. Each election has a [`Share`]
//! of the guests' limit. A coordinator therefore cannot displace another coordinator's lines or the host's events.
//!
//! The queues in libraries, such as the one in `tracing-appender`, have one limit for all writers. If guests filled
//! such a queue, the host could not log its last words: the reason why the host ends its own process. Library queues
//! also cannot check a line's deadline right before the write. They do not let a caller wait for earlier lines, either.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ring::BESIDES;
use super::{Event, Scope};
use baton_base::escape::is_harmful;
use baton_base::gate::Deadline;

pub(super) const CAPACITY: usize = 1024;
/// Capacity for the output of all guests together, in bytes. Each election gets at least `GUESTS_EACH`.
pub(super) const GUESTS: usize = 4 << 20;
const GUESTS_EACH: usize = 64 << 10;
/// Minimum interval between reports of dropped lines while a guest floods the queue.
const REPORT_LOSSES_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct LogEntry {
    /// Wall-clock time since the Unix epoch.
    pub at: Duration,
    pub scope: Arc<Scope>,
    pub term: Option<u64>,
    pub event: Event,
    /// The deadline for writing the entry, if the entry is an effect of an instance.
    pub deadline: Option<Deadline>,
}

impl LogEntry {
    /// Returns the share that the entry uses; `None` for the host's own events.
    fn share(&self) -> Option<&Share> {
        let is_output = matches!(self.event, Event::Output { .. });
        self.scope.tracker.as_ref().filter(|_| is_output).map(|tracker| &tracker.share)
    }

    /// Estimates the size of a guest's line in the log, in bytes after escaping. The estimate is never less than the
    /// length of the text itself.
    fn size(&self) -> usize {
        let Event::Output { context, line, .. } = &self.event else { return BESIDES };
        let escaped = |c: char| match c {
            '"' | '\\' => 2,
            c if is_harmful(c) => r"\u{00}".len(),
            c => c.len_utf8(),
        };
        BESIDES + line.chars().chain(context.iter().flat_map(|context| context.chars())).map(escaped).sum::<usize>()
    }
}

/// The part of the queue that the guests of one election may fill.
///
/// Sizes are counted after escaping, because the escaped size determines how long a slow reader takes. If the raw size
/// counted, a guest could delay other guests with text that becomes longer when it is escaped.
#[derive(Debug)]
pub(super) struct Share {
    max_bytes: usize,
    /// Bytes that are queued or being written. Changes only under the queue's lock.
    held: AtomicUsize,
}

impl Share {
    pub fn one_of(elections: usize) -> Self {
        Self { max_bytes: (GUESTS / elections.max(1)).max(GUESTS_EACH), held: AtomicUsize::new(0) }
    }

    /// True while lines are queued or being written.
    pub fn holds_any(&self) -> bool {
        self.held() > 0
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes `size` bytes from the share. Returns false, and takes nothing, if fewer bytes are left.
    fn take(&self, size: usize) -> bool {
        let fits = self.held() + size <= self.max_bytes;
        if fits {
            self.held.fetch_add(size, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, size: usize) {
        self.held.fetch_sub(size, Ordering::Relaxed);
    }

    fn is_half_full(&self) -> bool {
        self.held() >= self.max_bytes / 2
    }
}

/// Dropped lines of one scope that have not been reported in the log yet.
#[derive(Debug)]
pub(super) struct Loss {
    pub scope: Arc<Scope>,
    /// The term of the lines. `None` if they belong to several terms.
    pub term: Option<u64>,
    pub lines: u64,
}

impl Loss {
    /// Creates the loss of one entry. If the entry is a guest's line, also counts it as dropped in the metrics.
    pub fn of(entry: &LogEntry) -> Self {
        if let (Event::Output { .. }, Some(tracker)) = (&entry.event, &entry.scope.tracker) {
            tracker.counts.dropped(1);
        }
        Self { scope: Arc::clone(&entry.scope), term: entry.term, lines: 1 }
    }
}

#[derive(Debug)]
enum Item {
    /// An entry, and the number of bytes that the entry uses of its share.
    Entry(Arc<LogEntry>, usize),
    Mark(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) enum Next {
    /// Write the entry, then report these losses.
    Write(Arc<LogEntry>, Vec<Loss>),
    /// Signal that all earlier entries have been handled.
    Mark(oneshot::Sender<()>),
    Idle,
    /// The queue is closed and empty: report these losses, then end.
    End(Vec<Loss>),
}

#[derive(Default, Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the writer.
    filled: Condvar,
    /// Wakes threads that wait for the writer to end or for the last words to be written.
    written: Condvar,
}

#[derive(Default, Debug)]
struct State {
    items: VecDeque<Item>,
    /// Number of queued events of the host itself.
    own: usize,
    written: Option<(Arc<LogEntry>, usize)>,
    holds: usize,
    /// Losses not reported yet, at most one per scope.
    losses: Vec<Loss>,
    losses_reported: Option<Instant>,
    closed: bool,
    done: bool,
    /// True once the host has logged why it ends its own process.
    last_words_said: bool,
}

impl Queue {
    /// Adds an entry to the queue. If no space is left, drops and counts the entry instead.
    pub fn push(&self, entry: Arc<LogEntry>) {
        let is_last = matches!(entry.event, Event::Aborting { .. });
        let size = entry.share().map_or(0, |_| entry.size());
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let fits = match entry.share() {
            Some(share) => share.take(size),
            // The last words may exceed the limit, because no events follow them.
            None => state.own < CAPACITY || is_last,
        };
        if !fits {
            state.lose(Loss::of(&entry));
            return;
        }
        state.own += usize::from(entry.share().is_none());
        // Wake the writer for the last words even during a hold: if the thread with the hold is stuck, the hold never
        // ends.
        let held = state.holds > 0 && !is_last;
        state.items.push_back(Item::Entry(entry, size));
        drop(state);
        if !held {
            self.filled.notify_one();
        }
    }

    /// Returns a receiver that completes once all earlier entries have been written or dropped, or the queue is closed.
    pub fn mark(&self) -> oneshot::Receiver<()> {
        let (passed, receiver) = oneshot::channel();
        let mut state = self.lock();
        if !state.closed {
            // There are few marks and they are small, so their number is not limited.
            state.items.push_back(Item::Mark(passed));
            drop(state);
            self.filled.notify_one();
        }
        receiver
    }

    /// Keeps the writer asleep until the hold is released, even if entries arrive.
    pub fn hold(&self) {
        self.lock().holds += 1;
    }

    /// Ends a hold. The writer then writes the entries that arrived during the hold.
    pub fn release(&self) {
        let mut state = self.lock();
        state.holds -= 1;
        let waits = !state.items.is_empty();
        drop(state);
        if waits {
            self.filled.notify_one();
        }
    }

    /// Waits for the writer's next task. If `is_busy` is true, the writer has other work, so this function does not
    /// wait.
    #[expect(clippy::disallowed_methods, reason = "the time only spaces lines of the log")]
    pub fn next(&self, is_busy: bool) -> Next {
        let idle = |state: &mut State| state.items.is_empty() && !state.closed && !is_busy;
        let mut state = self.lock();
        if let Some((entry, size)) = state.written.take()
            && let Some(share) = entry.share()
        {
            share.give_back(size);
        }
        let mut state = self.filled.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let (entry, size) = match state.items.pop_front() {
            Some(Item::Entry(entry, size)) => (entry, size),
            Some(Item::Mark(passed)) => return Next::Mark(passed),
            None if !state.closed => return Next::Idle,
            None => return Next::End(std::mem::take(&mut state.losses)),
        };
        state.own -= usize::from(entry.share().is_none());
        state.written = Some((Arc::clone(&entry), size));
        let is_due = state.is_roomy() || state.losses_reported.is_none_or(|at| at.elapsed() >= REPORT_LOSSES_EVERY);
        let losses = if is_due { std::mem::take(&mut state.losses) } else { Vec::new() };
        if !losses.is_empty() {
            state.losses_reported = Some(Instant::now());
        }
        Next::Write(entry, losses)
    }

    pub fn lose(&self, loss: Loss) {
        self.lock().lose(loss);
    }

    /// Lets the writer end once the queue is empty.
    pub fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    pub fn set_done(&self) {
        self.lock().done = true;
        self.written.notify_all();
    }

    pub fn set_last_words_said(&self) {
        self.lock().last_words_said = true;
        self.written.notify_all();
    }

    pub fn wait_last_words_said(&self, longest: Duration) {
        let waited = self.written.wait_timeout_while(self.lock(), longest, |state| !state.last_words_said);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn wait_done(&self, longest: Duration) -> bool {
        let waited = self.written.wait_timeout_while(self.lock(), longest, |state| !state.done);
        waited.unwrap_or_else(PoisonError::into_inner).0.done
    }

    /// Ignores poisoning: each change is a single step, so a panic cannot leave the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lose(&mut self, loss: Loss) {
        match self.losses.iter_mut().find(|other| Arc::ptr_eq(&other.scope, &loss.scope)) {
            Some(other) => {
                other.lines += loss.lines;
                other.term = other.term.filter(|term| Some(*term) == loss.term);
            }
            None => self.losses.push(loss),
        }
    }

    /// True if the host's events, and each guest that has lost lines, use less than half of their limits.
    fn is_roomy(&self) -> bool {
        let is_full = |loss: &Loss| loss.scope.tracker.as_ref().is_some_and(|tracker| tracker.share.is_half_full());
        self.own < CAPACITY / 2 && !self.losses.iter().any(is_full)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::ElectionName;

    use super::super::{ElectionTracker, GuestStream};
    use super::*;
    use crate::node::NodeId;

    fn scope(tracker: Option<Arc<ElectionTracker>>) -> Arc<Scope> {
        Arc::new(Scope { node: NodeId::new("n").unwrap(), tracker })
    }

    fn push(queue: &Queue, scope: &Arc<Scope>, term: u64, event: Event) {
        let (at, scope) = (Duration::ZERO, Arc::clone(scope));
        queue.push(Arc::new(LogEntry { at, scope, term: Some(term), event, deadline: None }));
    }

    fn pop(queue: &Queue) -> (Arc<LogEntry>, Vec<Loss>) {
        match queue.next(false) {
            Next::Write(entry, losses) => (entry, losses),
            other => panic!("{other:?}"),
        }
    }

    fn lines(losses: &[Loss]) -> u64 {
        losses.iter().map(|loss| loss.lines).sum()
    }

    fn elections<const N: usize>(names: [&str; N]) -> [Arc<Scope>; N] {
        let tracker = |name| ElectionTracker::one_of(N, ElectionName::new(name).unwrap(), Duration::from_secs(15));
        names.map(|name| scope(Some(Arc::new(tracker(name)))))
    }

    fn share(scope: &Scope) -> &Share {
        &scope.tracker.as_ref().unwrap().share
    }

    fn printed(line: &str) -> Event {
        Event::printed(GuestStream::Stdout, line)
    }

    #[test]
    fn last_words_are_queued_when_the_queue_is_full() {
        let (scope, queue) = (scope(None), Queue::default());
        let push = |event| push(&queue, &scope, 1, event);
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
    fn first_loss_is_reported_at_once_and_the_rest_with_room() {
        let (scope, queue) = (scope(None), Queue::default());
        let push = || push(&queue, &scope, 1, Event::Released {});
        let pop = || lines(&pop(&queue).1);
        (0..CAPACITY + 5).for_each(|_| push());
        assert_eq!(pop(), 5);
        (0..4).for_each(|_| push());
        assert_eq!((1..CAPACITY).map(|_| pop()).sum::<u64>(), 3);
        queue.close();
        push();
        assert_eq!(pop(), 0);
        assert!(matches!(queue.next(false), Next::End(losses) if losses.is_empty()));
    }

    #[test]
    fn flooding_guest_loses_only_its_own_lines() {
        for line in ["x".repeat(8192), "\u{1b}".repeat(8192), String::new()] {
            let (queue, [noisy, quiet]) = (Queue::default(), elections(["noisy", "quiet"]));
            // Most of the noisy guest's lines are dropped before the quiet guest prints anything.
            (0..20_000).for_each(|_| push(&queue, &noisy, 7, printed(&line)));
            (0..100).for_each(|n| push(&queue, &quiet, 3, printed(&n.to_string())));
            push(&queue, &noisy, 7, Event::Released {});
            let (_, losses) = pop(&queue);
            let [Loss { scope, term: Some(7), lines: lost }] = &losses[..] else { panic!("{losses:?}") };
            assert!(Arc::ptr_eq(scope, &noisy));
            assert_eq!(noisy.tracker.as_ref().unwrap().counts.lines_dropped(), *lost);
            assert_eq!(quiet.tracker.as_ref().unwrap().counts.lines_dropped(), 0);
            // The noisy guest has filled its half of the queue. The size of an entry is counted after escaping.
            let held = share(&noisy).held();
            assert!((GUESTS / 2 - 6 * 8192 - BESIDES..=GUESTS / 2).contains(&held), "{held}");
            let rest: Vec<Event> = (0..20_000 - lost + 100).map(|_| pop(&queue).0.event.clone()).collect();
            let own = rest.iter().filter(|event| matches!(event, Event::Output { line, .. } if !line.is_empty()));
            assert!(own.count() >= 100 && matches!(rest.last(), Some(Event::Released {})), "{:?}", rest.last());
            // A line counts toward its guest's share until it has been written.
            push(&queue, &quiet, 3, printed("last"));
            assert!(!share(&noisy).holds_any() && share(&quiet).holds_any());
            pop(&queue);
            assert!(share(&quiet).holds_any());
            assert!(matches!(queue.next(true), Next::Idle));
            assert!(!share(&quiet).holds_any());
        }
    }

    #[test]
    fn share_is_bounded_for_any_number_of_elections() {
        assert_eq!(Share::one_of(0).max_bytes, GUESTS);
        assert_eq!(Share::one_of(4).max_bytes, GUESTS / 4);
        assert_eq!(Share::one_of(100_000).max_bytes, GUESTS_EACH);
    }

    #[test]
    fn loss_across_terms_names_no_term() {
        let (queue, [one]) = (Queue::default(), elections(["one"]));
        let flood = |term| (0..20_000).for_each(|_| push(&queue, &one, term, printed("x")));
        let fills = GUESTS / (BESIDES + 1);
        flood(1);
        flood(2);
        let (_, losses) = pop(&queue);
        let [Loss { term: None, lines, .. }] = &losses[..] else { panic!("{losses:?}") };
        assert_eq!(*lines, 40_000 - fills as u64);
        flood(3);
        let losses: Vec<Loss> = (1..fills).flat_map(|_| pop(&queue).1).collect();
        let [Loss { term: Some(3), lines: 20_000, .. }] = &losses[..] else { panic!("{losses:?}") };
    }
}
