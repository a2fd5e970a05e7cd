//! Spans: what was done in an election, with its beginning and its end, for those who collect traces.
//!
//! They wait in a bounded queue for the thread that exports them. Without an exporter there is no queue, and no span is
//! made. Those who renew and kill put them there: that takes a lock for as long as it takes to add one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::{ElectionName, Term};

/// So many wait at the most: those of minutes in an election that nothing ails.
pub(super) const CAPACITY: usize = 2048;

/// So many of them may be of guests' requests.
pub(super) const GUEST_SHARE: usize = CAPACITY / 4 * 3;

/// Where a span is: its trace, and itself in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
}

impl Place {
    /// A place in a trace of its own; none where the system has no random numbers.
    pub(super) fn new() -> Option<Self> {
        let mut trace = [0; 16];
        getrandom::fill(&mut trace).ok()?;
        Self { trace, span: [0; 8] }.beside()
    }

    /// Another place in the same trace.
    pub(super) fn beside(self) -> Option<Self> {
        let mut span = [0; 8];
        getrandom::fill(&mut span).ok()?;
        Some(Self { span, ..self })
    }
}

/// What is said of a span.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// In words.
    Text(String),
    /// In numbers.
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// What is said of something that was done, under names that are an interface.
pub type Attributes = Vec<(&'static str, Value)>;

/// Something that was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where it is.
    pub place: Place,
    /// The span that it is a part of.
    pub parent: Option<[u8; 8]>,
    /// What was done.
    pub name: String,
    /// Whether it was asked of another program.
    pub is_request: bool,
    /// Its beginning, since the Unix epoch.
    pub begin: Duration,
    /// Its end.
    pub end: Duration,
    /// The term that it belongs to.
    pub term: Option<Term>,
    /// The digest of the module that it belongs to.
    pub module: Option<String>,
    /// What else is said of it.
    pub attributes: Attributes,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// A span, and the election that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The election.
    pub election: ElectionName,
    /// The span.
    pub span: Span,
    /// Whether it is of a guest's request.
    pub of_guest: bool,
}

/// The spans that wait to be exported.
#[derive(Default, Debug)]
pub struct SpanQueue(Mutex<State>);

#[derive(Default, Debug)]
struct State {
    waiting: VecDeque<Waiting>,
    of_guests: usize,
    lost: u64,
}

impl SpanQueue {
    /// Adds one, or counts it as lost where there is no room.
    pub(super) fn push(&self, one: Waiting) {
        let mut state = self.lock();
        if state.waiting.len() >= CAPACITY || (one.of_guest && state.of_guests >= GUEST_SHARE) {
            state.lost += 1;
            return;
        }
        state.of_guests += usize::from(one.of_guest);
        state.waiting.push_back(one);
    }

    /// Takes the first of them, so many at the most.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<Waiting> {
        let mut state = self.lock();
        let count = state.waiting.len().min(most);
        let taken: Vec<Waiting> = state.waiting.drain(..count).collect();
        state.of_guests -= taken.iter().filter(|one| one.of_guest).count();
        taken
    }

    /// Puts some back that were taken: they are the first again. Those that find no room are lost.
    pub fn put_back(&self, taken: Vec<Waiting>) {
        let mut state = self.lock();
        for one in taken.into_iter().rev() {
            if state.waiting.len() >= CAPACITY {
                state.lost += 1;
            } else {
                state.of_guests += usize::from(one.of_guest);
                state.waiting.push_front(one);
            }
        }
    }

    /// Counts spans as lost that a collector refused.
    pub fn lose(&self, spans: usize) {
        self.lock().lost += spans as u64;
    }

    /// How many were lost since this was last asked.
    #[must_use]
    pub fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.lock().lost)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn one(number: u64, of_guest: bool) -> Waiting {
        let place = Place::new().unwrap();
        let (begin, end) = (Duration::ZERO, Duration::ZERO);
        let span = Span {
            place,
            parent: None,
            name: String::new(),
            is_request: of_guest,
            begin,
            end,
            term: Some(number),
            module: None,
            attributes: Attributes::new(),
            error: None,
        };
        Waiting { election: ElectionName::new("job").unwrap(), span, of_guest }
    }

    fn terms(taken: &[Waiting]) -> Vec<u64> {
        taken.iter().map(|one| one.span.term.unwrap()).collect()
    }

    #[test]
    fn guests_leave_room_for_the_host_and_what_is_lost_is_counted() {
        let queue = SpanQueue::default();
        (0..CAPACITY as u64).for_each(|number| queue.push(one(number, true)));
        (0..CAPACITY as u64).for_each(|number| queue.push(one(number, false)));
        assert_eq!(queue.take_lost(), CAPACITY as u64);
        let taken = queue.take(usize::MAX);
        assert_eq!((taken.len(), taken.iter().filter(|one| one.of_guest).count()), (CAPACITY, GUEST_SHARE));
        queue.push(one(1, true));
        assert_eq!((queue.take(9).len(), queue.take_lost()), (1, 0));
    }

    #[test]
    fn what_is_put_back_comes_first_again() {
        let queue = SpanQueue::default();
        (0..5).for_each(|number| queue.push(one(number, number == 1)));
        let taken = queue.take(3);
        assert_eq!(terms(&taken), [0, 1, 2]);
        queue.put_back(taken);
        assert_eq!(terms(&queue.take(9)), [0, 1, 2, 3, 4]);
        // Of those that find no room the oldest are lost.
        (0..CAPACITY as u64 - 1).for_each(|number| queue.push(one(number, false)));
        queue.put_back(vec![one(7, true), one(8, true)]);
        assert_eq!((terms(&queue.take(1)), queue.take_lost()), (vec![8], 1));
    }
}
