//! The bounded queue between those who speak and the thread that writes.
//!
//! A lock and not a channel, because three things must be seen together: how much of the room guests
//! use, how much was dropped, and whether it is closed. The lock is held for a push or a pop, never
//! while something is written.
//!
//! What guests print has room of its own, and of that each election has a [`Share`]: no coordinator can push out the
//! lines of another, or a word of the host's.
//!
//! It is our own, because a library's queue, such as that of `tracing-appender`, bounds and counts but knows only bytes:
//! guests would take the host's room, a line could not be judged by its deadline right before it is written, nobody could
//! wait for those of one lease before it is given up, and the last words would find no room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::ring::BESIDES;
use super::{Event, Scope};
use baton_runtime::escape::is_harmful;
use baton_store::gate::Deadline;

/// How many of the host's own events wait at most.
pub(super) const CAPACITY: usize = 1024;
/// How much of what the guests of all elections print waits at most, in bytes; but for each election no less than this.
pub(super) const GUESTS: usize = 4 << 20;
const GUESTS_EACH: usize = 64 << 10;
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

impl LogEntry {
    /// The share that it takes room of; none for what the host says itself.
    fn share(&self) -> Option<&Share> {
        let is_output = matches!(self.event, Event::Output { .. });
        self.scope.standing.as_ref().filter(|_| is_output).map(|standing| &standing.share)
    }

    /// About how many bytes a guest's line takes of the log, as it is escaped there: no less than it takes of memory.
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

/// How much of what one election's guests print may wait.
///
/// It is counted by what it takes of the log, since a reader that is slow is slow by bytes: who prints what becomes
/// long there makes nobody else wait for longer.
#[derive(Debug)]
pub(super) struct Share {
    most: usize,
    /// What waits, or is in the writer's hands. Changed under the queue's lock only.
    held: AtomicUsize,
}

impl Share {
    /// That of one of so many elections.
    pub fn one_of(elections: usize) -> Self {
        Self { most: (GUESTS / elections.max(1)).max(GUESTS_EACH), held: AtomicUsize::new(0) }
    }

    /// Whether lines are neither written nor dropped.
    pub fn holds_any(&self) -> bool {
        self.held() > 0
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Takes so much of it, if there is as much left.
    fn take(&self, size: usize) -> bool {
        let fits = self.held() + size <= self.most;
        if fits {
            self.held.fetch_add(size, Ordering::Relaxed);
        }
        fits
    }

    fn give_back(&self, size: usize) {
        self.held.fetch_sub(size, Ordering::Relaxed);
    }

    fn is_half_full(&self) -> bool {
        self.held() >= self.most / 2
    }
}

/// Lines that were lost, of those who say them, and not said to be yet.
#[derive(Debug)]
pub(super) struct Loss {
    /// Who said them.
    pub scope: Arc<Scope>,
    /// Of which term; none where that was more than one.
    pub term: Option<u64>,
    /// How many.
    pub lines: u64,
}

impl Loss {
    /// That of one line, which is counted as lost.
    pub fn of(entry: &LogEntry) -> Self {
        if let (Event::Output { .. }, Some(standing)) = (&entry.event, &entry.scope.standing) {
            standing.counts.dropped(1);
        }
        Self { scope: Arc::clone(&entry.scope), term: entry.term, lines: 1 }
    }
}

#[derive(Debug)]
enum Item {
    /// With the room that it takes, if it is a guest's.
    Entry(Arc<LogEntry>, usize),
    Mark(oneshot::Sender<()>),
}

/// What the writer is to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Write it, then say that these were dropped before.
    Write(Arc<LogEntry>, Vec<Loss>),
    /// Say that all that came before it is done.
    Mark(oneshot::Sender<()>),
    /// There is nothing to do for now.
    Idle,
    /// The queue is closed and empty: say what was dropped, then end.
    End(Vec<Loss>),
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
    /// How many of them are the host's own.
    own: usize,
    /// What the writer has in its hands.
    written: Option<(Arc<LogEntry>, usize)>,
    /// How many ask that the writer sleep on.
    holds: usize,
    /// At most one of each scope.
    losses: Vec<Loss>,
    losses_said: Option<Instant>,
    closed: bool,
    done: bool,
    /// Why the host ends itself is written.
    last_words_said: bool,
}

impl Queue {
    /// Takes an event, or counts it as dropped.
    pub fn push(&self, entry: Arc<LogEntry>) {
        let is_last = matches!(entry.event, Event::Aborting { .. });
        let size = entry.share().map_or(0, |_| entry.size());
        let mut state = self.lock();
        if state.closed {
            return;
        }
        let fits = match entry.share() {
            Some(share) => share.take(size),
            // After the last words nothing more comes that would have to find room.
            None => state.own < CAPACITY || is_last,
        };
        if !fits {
            state.lose(Loss::of(&entry));
            return;
        }
        state.own += usize::from(entry.share().is_none());
        // A hold is short, unless the holding thread is stopped itself: the last event does not rely on it.
        let held = state.holds > 0 && !is_last;
        state.items.push_back(Item::Entry(entry, size));
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
        let is_due = state.is_roomy() || state.losses_said.is_none_or(|said| said.elapsed() >= SAY_DROPPED);
        let losses = if is_due { std::mem::take(&mut state.losses) } else { Vec::new() };
        if !losses.is_empty() {
            state.losses_said = Some(Instant::now());
        }
        Next::Write(entry, losses)
    }

    /// Keeps what was lost until it can be said.
    pub fn lose(&self, loss: Loss) {
        self.lock().lose(loss);
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

    /// Whether those who have lost lines have room again.
    fn is_roomy(&self) -> bool {
        let is_full = |loss: &Loss| loss.scope.standing.as_ref().is_some_and(|standing| standing.share.is_half_full());
        self.own < CAPACITY / 2 && !self.losses.iter().any(is_full)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_election::ElectionName;

    use super::super::{GuestStream, Standing};
    use super::*;
    use crate::node::NodeId;

    fn scope(standing: Option<Arc<Standing>>) -> Arc<Scope> {
        Arc::new(Scope { node: NodeId::new("n").unwrap(), standing })
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

    /// The scopes of one host's elections.
    fn elections<const N: usize>(names: [&str; N]) -> [Arc<Scope>; N] {
        let standing = |name| Standing::one_of(N, ElectionName::new(name).unwrap(), Duration::from_secs(15));
        names.map(|name| scope(Some(Arc::new(standing(name)))))
    }

    fn share(scope: &Scope) -> &Share {
        &scope.standing.as_ref().unwrap().share
    }

    fn printed(line: &str) -> Event {
        Event::printed(GuestStream::Stdout, line)
    }

    #[test]
    fn last_words_find_room_where_nothing_else_does() {
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
    fn a_first_loss_is_said_at_once_and_the_rest_when_there_is_room() {
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
    fn a_guest_that_prints_without_end_pushes_out_its_own_lines_alone() {
        for line in ["x".repeat(8192), "\u{1b}".repeat(8192), String::new()] {
            let (queue, [noisy, quiet]) = (Queue::default(), elections(["noisy", "quiet"]));
            // Most of what it prints finds no room, and then the other begins.
            (0..20_000).for_each(|_| push(&queue, &noisy, 7, printed(&line)));
            (0..100).for_each(|n| push(&queue, &quiet, 3, printed(&n.to_string())));
            push(&queue, &noisy, 7, Event::Released {});
            let (_, losses) = pop(&queue);
            let [Loss { scope, term: Some(7), lines: lost }] = &losses[..] else { panic!("{losses:?}") };
            assert!(Arc::ptr_eq(scope, &noisy));
            assert_eq!(noisy.standing.as_ref().unwrap().counts.lines_dropped(), *lost);
            assert_eq!(quiet.standing.as_ref().unwrap().counts.lines_dropped(), 0);
            // Each has its half of what waits, as it is written.
            let held = share(&noisy).held();
            assert!((GUESTS / 2 - 6 * 8192 - BESIDES..=GUESTS / 2).contains(&held), "{held}");
            let rest: Vec<Event> = (0..20_000 - lost + 100).map(|_| pop(&queue).0.event.clone()).collect();
            let own = rest.iter().filter(|event| matches!(event, Event::Output { line, .. } if !line.is_empty()));
            assert!(own.count() >= 100 && matches!(rest.last(), Some(Event::Released {})), "{:?}", rest.last());
            // What is in the writer's hands is not written yet.
            push(&queue, &quiet, 3, printed("last"));
            assert!(!share(&noisy).holds_any() && share(&quiet).holds_any());
            pop(&queue);
            assert!(share(&quiet).holds_any());
            assert!(matches!(queue.next(true), Next::Idle));
            assert!(!share(&quiet).holds_any());
        }
    }

    #[test]
    fn what_waits_is_bounded_for_however_many_elections() {
        assert_eq!(Share::one_of(0).most, GUESTS);
        assert_eq!(Share::one_of(4).most, GUESTS / 4);
        assert_eq!(Share::one_of(100_000).most, GUESTS_EACH);
    }

    #[test]
    fn a_loss_of_several_terms_is_of_none_of_them() {
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
