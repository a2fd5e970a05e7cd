//! The most recent log entries, for readers of the admin endpoint.
//!
//! Threads that renew leases and kill instances add entries. Adding an entry therefore holds a lock only briefly and
//! wakes no other thread. Readers poll. A slow reader does not keep entries alive: new entries replace the oldest
//! entries. The reader learns how many entries it has missed.
//!
//! A guest's line is added only if the line's deadline has not passed. The line then stays after the deadline, as a
//! record of what the guest printed.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::ElectionName;
use baton_runtime::LogLevel;

use super::Event;
use super::format::admin_json;
use super::queue::LogEntry;

/// Capacity for the host's own events, in bytes.
pub(super) const EVENTS: usize = 1 << 20;

const MAX_ENTRIES: usize = 4096;

/// Lower bound on the memory that an entry takes in addition to its strings, in bytes.
pub(super) const BESIDES: usize = 256;

/// Maximum number of entries that a reader takes at a time. Limits how long the lock is held.
const BATCH: usize = 64;

/// A bounded buffer of entries, which are numbered from 1.
#[derive(Debug)]
pub struct Ring {
    max_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// The entries, with their sizes in bytes.
    entries: VecDeque<(Arc<LogEntry>, usize)>,
    bytes: usize,
    /// Number of the first entry, or of the next one if there are no entries.
    first: u64,
}

/// An entry as shown by the admin endpoint.
#[derive(Clone, Debug)]
pub struct LogLine {
    /// Number of the entry.
    pub number: u64,
    entry: Arc<LogEntry>,
}

/// The result of reading a [`Ring`].
#[derive(Debug)]
pub struct Taken {
    /// Number of requested entries that were evicted before this read.
    pub lost: u64,
    /// The entries, in order. A read returns only a limited number of them.
    pub said: Vec<LogLine>,
    /// The number from which to continue reading.
    pub next: u64,
}

impl Ring {
    /// Creates a ring with this capacity in bytes.
    #[must_use]
    pub fn of(max_bytes: usize) -> Self {
        Self { max_bytes, kept: Mutex::new(Kept { entries: VecDeque::new(), bytes: 0, first: 1 }) }
    }

    pub(super) fn put(&self, entry: &Arc<LogEntry>) {
        let size = size(&entry.event);
        let mut kept = self.lock();
        kept.entries.push_back((Arc::clone(entry), size));
        kept.bytes += size;
        while kept.bytes > self.max_bytes || kept.entries.len() > MAX_ENTRIES {
            let Some((_, size)) = kept.entries.pop_front() else { break };
            kept.bytes -= size;
            kept.first += 1;
        }
    }

    /// Returns the number that the next entry will get.
    #[must_use]
    pub fn end(&self) -> u64 {
        let kept = self.lock();
        kept.first + kept.entries.len() as u64
    }

    /// Returns the entries from this number on, but only a limited number of them.
    #[must_use]
    pub fn since(&self, number: u64) -> Taken {
        let kept = self.lock();
        let end = kept.first + kept.entries.len() as u64;
        // The number may come from a client, so it may be outside this range.
        let from = number.clamp(kept.first, end);
        let skipped = usize::try_from(from - kept.first).unwrap_or(usize::MAX);
        let entries = kept.entries.iter().skip(skipped).take(BATCH);
        let said: Vec<LogLine> =
            (from..).zip(entries).map(|(number, (entry, _))| LogLine { number, entry: Arc::clone(entry) }).collect();
        Taken { lost: from.saturating_sub(number), next: from + said.len() as u64, said }
    }

    /// Returns the number from which a reader must start to get the last `count` entries that pass the test.
    #[must_use]
    pub fn tail(&self, count: usize, test: impl Fn(&LogLine) -> bool) -> u64 {
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

    /// Ignores poisoning: each change is a single step, so a panic cannot leave the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogLine {
    /// Returns the election to which the entry belongs. Returns `None` if the entry is about the host.
    #[must_use]
    pub fn election(&self) -> Option<&ElectionName> {
        self.entry.scope.election()
    }

    /// Returns the level of the entry.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.entry.event.kind().1
    }

    /// Returns the entry as a JSON object. The object has the fields of the JSON log, and the message of the text log
    /// as `text`. Hides text that the coordinator may have written, unless `words` is true.
    #[must_use]
    pub fn json(&self, words: bool) -> String {
        if words {
            admin_json(&self.entry, &self.entry.event)
        } else {
            admin_json(&self.entry, &self.entry.event.without_words())
        }
    }
}

/// Estimates the memory that an event uses, in bytes.
fn size(event: &Event) -> usize {
    let texts = match event {
        // This is the most frequent event, so compute its size without serializing it.
        Event::Output { context, line, .. } => line.len() + context.as_ref().map_or(0, String::len),
        other => {
            let mut counted = ByteCounter(0);
            let _ = serde_json::to_writer(&mut counted, other);
            counted.0
        }
    };
    texts + BESIDES
}

struct ByteCounter(usize);

impl io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
        let scope = Arc::new(Scope { node: NodeId::new("n").unwrap(), tracker: None });
        Arc::new(LogEntry { at: Duration::ZERO, scope, term: Some(7), event, deadline: None })
    }

    fn line(text: &str) -> Arc<LogEntry> {
        entry(Event::printed(GuestStream::Stdout, text))
    }

    fn numbers(taken: &Taken) -> Vec<u64> {
        taken.said.iter().map(|said| said.number).collect()
    }

    #[test]
    fn reader_gets_entries_since_and_the_number_it_missed() {
        let ring = Ring::of(10 * (BESIDES + 100));
        assert_eq!((numbers(&ring.since(1)), ring.end()), (vec![], 1));
        (0..5).for_each(|_| ring.put(&line(&"x".repeat(100))));
        let taken = ring.since(3);
        assert_eq!((taken.lost, numbers(&taken), taken.next), (0, vec![3, 4, 5], 6));
        (0..20).for_each(|_| ring.put(&line(&"x".repeat(100))));
        let taken = ring.since(taken.next);
        assert_eq!((taken.lost, numbers(&taken), taken.next), (10, (16..=25).collect(), 26));
        // If a reader asks for a number that does not exist yet, the reader continues with the next entry.
        assert_eq!((ring.since(1000).lost, ring.since(1000).next), (0, 26));
    }

    #[test]
    fn ring_is_bounded_in_bytes_and_in_number() {
        let ring = Ring::of(1 << 20);
        (0..1000).for_each(|_| ring.put(&line(&"x".repeat(8192))));
        assert!(ring.lock().bytes <= 1 << 20 && ring.lock().entries.len() > 100);
        (0..2 * MAX_ENTRIES).for_each(|_| ring.put(&line("x")));
        assert!(ring.lock().entries.len() <= MAX_ENTRIES);
        // Long texts in the host's own events also count toward the capacity. An entry that is larger than the capacity
        // evicts all other entries.
        let ring = Ring::of(1000);
        ring.put(&entry(Event::Error { error: "x".repeat(2000) }));
        assert_eq!((ring.end(), numbers(&ring.since(1))), (2, vec![]));
    }

    #[test]
    fn json_has_the_log_fields_and_the_text() {
        let ring = Ring::of(1 << 20);
        ring.put(&entry(Event::Released {}));
        ring.put(&line("<b>\u{202e}\n"));
        let reason = "the password is 1234".to_owned();
        ring.put(&entry(Event::NextTerm { reason: Some(reason.clone()), failures: 1, wait_s: Duration::ZERO.into() }));
        let json_of = |number: u64, words| ring.since(number).said[0].json(words);
        let json: serde_json::Value = serde_json::from_str(&json_of(1, false)).unwrap();
        let mut keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        keys.sort();
        assert_eq!(
            keys,
            ["election", "event", "level", "node", "term", "text", "ts"],
            "as the endpoint describes them"
        );
        assert!(!json_of(2, true).contains('\u{202e}') && !json_of(2, true).contains("text"), "{}", json_of(2, true));
        assert_eq!(json_of(3, true).matches(&reason).count(), 2);
        assert!(
            !json_of(3, false).contains("1234") && json_of(3, false).contains("with the token"),
            "{}",
            json_of(3, false)
        );
    }

    #[test]
    fn tail_finds_the_last_matching_entries() {
        let ring = Ring::of(1 << 20);
        for number in 0..300 {
            let event = if number % 3 == 0 { Event::Released {} } else { Event::Killed { reason: String::new() } };
            ring.put(&entry(event));
        }
        let warns = |said: &LogLine| said.level() == LogLevel::Warn;
        assert_eq!(ring.tail(2, |_| true), 299);
        assert_eq!(ring.tail(4, warns), 296);
        assert_eq!(ring.tail(1000, warns), 2);
        assert_eq!((ring.tail(0, warns), ring.tail(5, |_| false)), (301, 301));
    }
}
