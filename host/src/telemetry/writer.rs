//! The thread that writes lines.
//!
//! A line of a guest is an effect, and leaves the process here: it is judged by its deadline once more, right before
//! each system call, after all that can wait.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use baton_election::Term;

use super::format::{Formatter, Style};
use super::queue::{LogEntry, Next, Queue};
use super::sink::Sink;
use super::{Event, Ring, Scope};
use baton_store::clock::wall;
use baton_store::gate::Deadline;

pub(super) fn spawn(
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    events: Arc<Ring>,
    style: Style,
    sink: Sink,
) -> io::Result<JoinHandle<()>> {
    let mut writer = Writer { queue, scope, events, formatter: Formatter::new(style), sink, overdue: None };
    std::thread::Builder::new().name("baton-log".to_string()).spawn(move || writer.run())
}

struct Writer {
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    /// What the writer says itself goes there, too.
    events: Arc<Ring>,
    formatter: Formatter,
    sink: Sink,
    /// What was dropped since the last line was written.
    overdue: Option<Overdue>,
}

/// Lines of a term that nobody has read before its deadline.
struct Overdue {
    scope: Arc<Scope>,
    term: Option<Term>,
    lines: u64,
}

/// What became of a line.
enum Outcome {
    Written,
    /// Its deadline has passed.
    Overdue,
    /// Nobody reads any more, or the disk is full.
    Failed,
}

impl Writer {
    fn run(&mut self) {
        loop {
            match self.queue.next(self.overdue.is_some()) {
                Next::Write(entry, dropped) => {
                    self.handle(&entry);
                    if matches!(entry.event, Event::Aborting { .. }) {
                        self.queue.set_last_words_said();
                    }
                    self.say_dropped(dropped);
                }
                // The thread that has put it there waits for that, or does not any more.
                Next::Mark(passed) => drop(passed.send(())),
                Next::Idle => self.say_overdue(),
                Next::End(dropped) => {
                    self.say_overdue();
                    self.say_dropped(dropped);
                    break;
                }
            }
        }
        self.queue.set_done();
    }

    fn handle(&mut self, entry: &LogEntry) {
        // In the order in which it happened: what was dropped came before.
        if !entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
            self.say_overdue();
        }
        match self.write(entry) {
            Outcome::Written => {}
            Outcome::Overdue => self.count_overdue(entry),
            Outcome::Failed => self.queue.add_dropped(1),
        }
    }

    fn count_overdue(&mut self, entry: &LogEntry) {
        let is_another = |overdue: &Overdue| overdue.term != entry.term || !Arc::ptr_eq(&overdue.scope, &entry.scope);
        if self.overdue.as_ref().is_some_and(is_another) {
            self.say_overdue();
        }
        let overdue = Overdue { scope: Arc::clone(&entry.scope), term: entry.term, lines: 0 };
        self.overdue.get_or_insert(overdue).lines += 1;
    }

    fn say_overdue(&mut self) {
        let Some(Overdue { scope, term, lines }) = self.overdue.take() else { return };
        let reason = "nobody had read them when the term's deadline passed".to_string();
        self.say(scope, term, Event::Dropped { lines, reason }, lines);
    }

    fn say_dropped(&mut self, lines: u64) {
        if lines > 0 {
            let reason = "they came faster than they were read".to_string();
            self.say(Arc::clone(&self.scope), None, Event::Dropped { lines, reason }, lines);
        }
    }

    /// Says that so many lines were lost.
    fn say(&mut self, scope: Arc<Scope>, term: Option<Term>, event: Event, lines: u64) {
        scope.observe(term, &event);
        let entry = Arc::new(LogEntry { at: wall(), scope, term, event, deadline: None });
        self.events.put(&entry);
        if !matches!(self.write(&entry), Outcome::Written) {
            self.queue.add_dropped(lines);
        }
    }

    /// One call for the whole line, if it is not very long, so that lines of several hosts on one terminal do not mix.
    /// A reader that has gone away is no reason to end the host.
    fn write(&mut self, entry: &LogEntry) -> Outcome {
        let line = self.formatter.line(entry);
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            if self.sink.wait().is_err() {
                return Outcome::Failed;
            }
            if entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
                if rest.len() < line.len() {
                    // The reader has its beginning. The next text begins a line of its own.
                    self.end_line();
                }
                return Outcome::Overdue;
            }
            match self.sink.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(_) => return Outcome::Failed,
            }
        }
        Outcome::Written
    }

    fn end_line(&mut self) {
        while let Ok(()) = self.sink.wait()
            && matches!(self.sink.write(b"\n"), Ok(0))
        {}
    }
}
