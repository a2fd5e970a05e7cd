//! The last of what was said, for those who ask at the admin endpoint.
//!
//! Threads that renew and kill put it here: it costs them one short lock, and they wake nobody. Who reads comes by and
//! looks. A reader that is slow keeps nothing alive: the oldest makes room for the newest, and the reader is told how
//! much it has missed.
//!
//! A line of a guest comes in while its deadline has not passed. From then on it is a record of what was printed, like a
//! line of a log that was written.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::ElectionName;
use baton_runtime::LogLevel;

use super::Event;
use super::format::told;
use super::queue::LogEntry;

/// So much of its own events a host keeps, in bytes.
pub(super) const EVENTS: usize = 1 << 20;

/// So many lines, or events, are kept at most.
const ENTRIES: usize = 4096;

/// What an entry takes besides its texts, in bytes, or somewhat less.
pub(super) const BESIDES: usize = 256;

/// So many are taken at a time: nobody who puts something in waits longer than that takes.
const BATCH: usize = 64;

/// The last entries, each with a number, one higher than that of the one before. The first has the number 1.
#[derive(Debug)]
pub struct Ring {
    /// In bytes.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// Each with its size.
    entries: VecDeque<(Arc<LogEntry>, usize)>,
    bytes: usize,
    /// The number of the first of them, or of the next where there is none.
    first: u64,
}

/// What was said, as others are told.
#[derive(Clone, Debug)]
pub struct Said {
    /// Its number.
    pub number: u64,
    entry: Arc<LogEntry>,
}

/// What a reader finds.
#[derive(Debug)]
pub struct Taken {
    /// So many made room for others before this reader came.
    pub lost: u64,
    /// In their order, a bounded number.
    pub said: Vec<Said>,
    /// From where the reader goes on.
    pub next: u64,
}

impl Ring {
    /// One that keeps so many bytes.
    #[must_use]
    pub fn of(most: usize) -> Self {
        Self { most, kept: Mutex::new(Kept { entries: VecDeque::new(), bytes: 0, first: 1 }) }
    }

    pub(super) fn put(&self, entry: &Arc<LogEntry>) {
        let size = size(&entry.event);
        let mut kept = self.lock();
        kept.entries.push_back((Arc::clone(entry), size));
        kept.bytes += size;
        while kept.bytes > self.most || kept.entries.len() > ENTRIES {
            let Some((_, size)) = kept.entries.pop_front() else { break };
            kept.bytes -= size;
            kept.first += 1;
        }
    }

    /// The number that the next entry will have.
    #[must_use]
    pub fn end(&self) -> u64 {
        let kept = self.lock();
        kept.first + kept.entries.len() as u64
    }

    /// What came from this number on: the first of it.
    #[must_use]
    pub fn since(&self, number: u64) -> Taken {
        let kept = self.lock();
        let end = kept.first + kept.entries.len() as u64;
        // A number that is not given yet is somebody's mistake.
        let from = number.clamp(kept.first, end);
        let skipped = usize::try_from(from - kept.first).unwrap_or(usize::MAX);
        let entries = kept.entries.iter().skip(skipped).take(BATCH);
        let said: Vec<Said> =
            (from..).zip(entries).map(|(number, (entry, _))| Said { number, entry: Arc::clone(entry) }).collect();
        Taken { lost: from.saturating_sub(number), next: from + said.len() as u64, said }
    }

    /// From where on the last `count` are that pass the test.
    #[must_use]
    pub fn tail(&self, count: usize, test: impl Fn(&Said) -> bool) -> u64 {
        let (mut wanted, end) = (VecDeque::new(), self.end());
        let mut next = 0;
        loop {
            let taken = self.since(next.max(1));
            for said in taken.said.iter().filter(|said| said.number < end && test(said)) {
                wanted.push_back(said.number);
                if wanted.len() > count {
                    wanted.pop_front();
                }
            }
            if taken.said.is_empty() || taken.next >= end {
                return wanted.front().copied().unwrap_or(end);
            }
            next = taken.next;
        }
    }

    /// Each change is a single step, which a panic cannot leave half done.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    /// The election that it is about; none if it is about the host.
    #[must_use]
    pub fn election(&self) -> Option<&ElectionName> {
        self.entry.scope.election()
    }

    /// How much it matters.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.entry.event.kind().1
    }

    /// As a line of JSON without its end: as in the log, with what text has as `says`. Without the coordinator's own
    /// `words`, something else stands in their place.
    #[must_use]
    pub fn json(&self, words: bool) -> String {
        if words { told(&self.entry, &self.entry.event) } else { told(&self.entry, &self.entry.event.without_words()) }
    }
}

/// About how much memory the event keeps.
fn size(event: &Event) -> usize {
    let texts = match event {
        // There are many of these.
        Event::Output { context, line, .. } => line.len() + context.as_ref().map_or(0, String::len),
        other => {
            let mut counted = Counted(0);
            // Nothing is written that could fail.
            let _ = serde_json::to_writer(&mut counted, other);
            counted.0
        }
    };
    texts + BESIDES
}

/// Counts what is written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
impl Ring {
    /// One with an event of the host.
    pub(crate) fn with(event: Event) -> Self {
        let ring = Self::of(1 << 20);
        ring.put(&tests::entry(event));
        ring
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use super::super::{GuestStream, Scope};
    use super::*;
    use crate::node::NodeId;

    pub(super) fn entry(event: Event) -> Arc<LogEntry> {
        let scope = Arc::new(Scope { node: NodeId::new("n").unwrap(), standing: None });
        Arc::new(LogEntry { at: Duration::ZERO, scope, term: Some(7), event, deadline: None })
    }

    fn line(text: &str) -> Arc<LogEntry> {
        entry(Event::printed(GuestStream::Stdout, text))
    }

    fn numbers(taken: &Taken) -> Vec<u64> {
        taken.said.iter().map(|said| said.number).collect()
    }

    #[test]
    fn a_reader_finds_what_came_since_and_is_told_what_it_missed() {
        let ring = Ring::of(10 * (BESIDES + 100));
        assert_eq!((numbers(&ring.since(1)), ring.end()), (vec![], 1));
        (0..5).for_each(|_| ring.put(&line(&"x".repeat(100))));
        let taken = ring.since(3);
        assert_eq!((taken.lost, numbers(&taken), taken.next), (0, vec![3, 4, 5], 6));
        (0..20).for_each(|_| ring.put(&line(&"x".repeat(100))));
        let taken = ring.since(taken.next);
        assert_eq!((taken.lost, numbers(&taken), taken.next), (10, (16..=25).collect(), 26));
        // One that is not there yet is taken for the next.
        assert_eq!((ring.since(1000).lost, ring.since(1000).next), (0, 26));
    }

    #[test]
    fn it_has_bounds_in_bytes_and_in_number() {
        let ring = Ring::of(1 << 20);
        (0..1000).for_each(|_| ring.put(&line(&"x".repeat(8192))));
        assert!(ring.lock().bytes <= 1 << 20 && ring.lock().entries.len() > 100);
        (0..2 * ENTRIES).for_each(|_| ring.put(&line("x")));
        assert!(ring.lock().entries.len() <= ENTRIES);
        // Long texts of the host's own count, too; and one that is larger than all leaves nothing.
        let ring = Ring::of(1000);
        ring.put(&entry(Event::Error { error: "x".repeat(2000) }));
        assert_eq!((ring.end(), numbers(&ring.since(1))), (2, vec![]));
    }

    #[test]
    fn what_is_told_is_what_the_log_has_and_what_it_says() {
        let ring = Ring::of(1 << 20);
        ring.put(&entry(Event::Released {}));
        ring.put(&line("<b>\u{202e}\n"));
        let reason = "the password is 1234".to_owned();
        ring.put(&entry(Event::Retrying { reason: reason.clone(), failures: 1, wait_s: Duration::ZERO.into() }));
        let told = |number: u64, words| ring.since(number).said[0].json(words);
        let json: serde_json::Value = serde_json::from_str(&told(1, false)).unwrap();
        let mut keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            ["election", "event", "level", "node", "term", "text", "ts"],
            "as the endpoint describes them"
        );
        assert!(!told(2, true).contains('\u{202e}') && !told(2, true).contains("text"), "{}", told(2, true));
        assert_eq!(told(3, true).matches(&reason).count(), 2);
        assert!(!told(3, false).contains("1234") && told(3, false).contains("with the token"), "{}", told(3, false));
    }

    #[test]
    fn the_last_ones_are_found_among_others() {
        let ring = Ring::of(1 << 20);
        for number in 0..300 {
            let event = if number % 3 == 0 { Event::Released {} } else { Event::Killed { reason: String::new() } };
            ring.put(&entry(event));
        }
        let warns = |said: &Said| said.level() == LogLevel::Warn;
        assert_eq!(ring.tail(2, |_| true), 299);
        assert_eq!(ring.tail(4, warns), 296);
        assert_eq!(ring.tail(1000, warns), 2);
        assert_eq!((ring.tail(0, warns), ring.tail(5, |_| false)), (301, 301));
    }
}
