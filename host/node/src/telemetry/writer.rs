//! The thread that writes log lines.
//!
//! A guest's line is an effect, and this thread is where the line leaves the process. The thread therefore checks the
//! line's deadline again after every wait, right before each write.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::format::{Formatter, Style};
use super::queue::{LogEntry, Loss, Next, Queue};
use super::sink::Sink;
use super::{Event, Ring};
use baton_base::clock::wall;
use baton_base::gate::Deadline;

pub(super) fn spawn(queue: Arc<Queue>, events: Arc<Ring>, style: Style, sink: Sink) -> io::Result<JoinHandle<()>> {
    let mut writer = Writer { queue, events, formatter: Formatter::new(style), sink, overdue: None };
    std::thread::Builder::new().name("baton-log".to_string()).spawn(move || writer.run())
}

struct Writer {
    queue: Arc<Queue>,
    /// The ring for the writer's own events, which report dropped lines.
    events: Arc<Ring>,
    formatter: Formatter,
    sink: Sink,
    /// Lines of one term that were dropped because their deadline passed, and are not reported yet.
    overdue: Option<Loss>,
}

enum Outcome {
    Written,
    Overdue,
    /// The output no longer has a reader, or the disk is full.
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
                    self.log_losses(losses);
                }
                // Ignore the error: the thread that waited may have given up.
                Next::Mark(passed) => drop(passed.send(())),
                Next::Idle => self.log_overdue(),
                Next::End(losses) => {
                    self.log_overdue();
                    self.log_losses(losses);
                    break;
                }
            }
        }
        self.queue.set_done();
    }

    fn handle(&mut self, entry: &LogEntry) {
        // Report dropped lines before the next line.
        if !entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
            self.log_overdue();
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
                self.log_overdue();
                self.overdue = Some(loss);
            }
        }
    }

    fn log_overdue(&mut self) {
        if let Some(loss) = self.overdue.take() {
            self.log_loss(loss, "the log's reader had not read them by the term's deadline");
        }
    }

    fn log_losses(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            self.log_loss(loss, "they arrived faster than the log's reader reads");
        }
    }

    /// Logs an event about dropped lines. If this event cannot be written either, returns the loss to the queue, for a
    /// later event.
    fn log_loss(&mut self, loss: Loss, reason: &str) {
        let event = Event::OutputDropped { lines: loss.lines, reason: reason.to_owned() };
        let entry = LogEntry { at: wall(), scope: Arc::clone(&loss.scope), term: loss.term, event, deadline: None };
        let entry = Arc::new(entry);
        if matches!(self.write(&entry), Outcome::Written) {
            self.events.put(&entry);
        } else {
            self.queue.lose(loss);
        }
    }

    /// Writes a line in one call unless it is very long, so that lines from several hosts on one terminal are not
    /// mixed. If a write fails, the host keeps running.
    fn write(&mut self, entry: &LogEntry) -> Outcome {
        let line = self.formatter.line(entry);
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            if self.sink.wait().is_err() {
                return Outcome::Failed;
            }
            if entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
                if rest.len() < line.len() {
                    // The reader has received part of the line, so end the line.
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
