//! The thread that writes lines.
//!
//! A line of a guest is an effect, and leaves the process here: it is judged by its deadline once more, right before
//! each system call, after all that can wait.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::format::{Formatter, Style};
use super::queue::{LogEntry, Loss, Next, Queue};
use super::sink::Sink;
use super::{Event, Ring};
use baton_store::clock::wall;
use baton_store::gate::Deadline;

pub(super) fn spawn(queue: Arc<Queue>, events: Arc<Ring>, style: Style, sink: Sink) -> io::Result<JoinHandle<()>> {
    let mut writer = Writer { queue, events, formatter: Formatter::new(style), sink, overdue: None };
    std::thread::Builder::new().name("baton-log".to_string()).spawn(move || writer.run())
}

struct Writer {
    queue: Arc<Queue>,
    /// What the writer says itself goes there, too.
    events: Arc<Ring>,
    formatter: Formatter,
    sink: Sink,
    /// Lines of a term that nobody has read before its deadline, since the last line was written.
    overdue: Option<Loss>,
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
                Next::Write(entry, losses) => {
                    self.handle(&entry);
                    if matches!(entry.event, Event::Aborting { .. }) {
                        self.queue.set_last_words_said();
                    }
                    self.say_losses(losses);
                }
                // The thread that has put it there waits for that, or does not any more.
                Next::Mark(passed) => drop(passed.send(())),
                Next::Idle => self.say_overdue(),
                Next::End(losses) => {
                    self.say_overdue();
                    self.say_losses(losses);
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
            Outcome::Failed => self.queue.lose(Loss::of(entry)),
        }
    }

    fn count_overdue(&mut self, entry: &LogEntry) {
        let loss = Loss::of(entry);
        match &mut self.overdue {
            Some(other) if other.term == loss.term && Arc::ptr_eq(&other.scope, &loss.scope) => {
                other.lines += loss.lines
            }
            _ => {
                self.say_overdue();
                self.overdue = Some(loss);
            }
        }
    }

    fn say_overdue(&mut self) {
        if let Some(loss) = self.overdue.take() {
            self.say(loss, "the log's reader had not read them by the term's deadline");
        }
    }

    fn say_losses(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.say(loss, "they arrived faster than the log's reader reads");
        }
    }

    /// Says that lines were lost. They are counted already.
    fn say(&mut self, loss: Loss, reason: &str) {
        let event = Event::OutputDropped { lines: loss.lines, reason: reason.to_owned() };
        let entry = LogEntry { at: wall(), scope: Arc::clone(&loss.scope), term: loss.term, event, deadline: None };
        let entry = Arc::new(entry);
        if matches!(self.write(&entry), Outcome::Written) {
            self.events.put(&entry);
        } else {
            self.queue.lose(loss);
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
