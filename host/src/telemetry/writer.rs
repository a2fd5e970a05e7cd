//! The thread that writes lines.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use super::format::{Formatter, Style};
use super::queue::{Entry, Next, Queue};
use super::{Event, Scope, wall};

pub(super) fn spawn(
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    style: Style,
    out: Box<dyn Write + Send>,
) -> io::Result<JoinHandle<()>> {
    let mut writer = Writer { queue, scope, formatter: Formatter::new(style), out };
    std::thread::Builder::new().name("baton-log".to_string()).spawn(move || writer.run())
}

struct Writer {
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    formatter: Formatter,
    out: Box<dyn Write + Send>,
}

impl Writer {
    fn run(&mut self) {
        loop {
            match self.queue.next() {
                Next::Write(entry, dropped) => {
                    if !self.write(&entry) {
                        self.queue.add_dropped(1);
                    }
                    if matches!(entry.event, Event::Aborting { .. }) {
                        self.queue.set_last_words_said();
                    }
                    self.say_dropped(dropped);
                }
                Next::End(dropped) => {
                    self.say_dropped(dropped);
                    break;
                }
            }
        }
        self.queue.set_done();
    }

    fn say_dropped(&mut self, lines: u64) {
        if lines == 0 {
            return;
        }
        let scope = Arc::clone(&self.scope);
        let event = Event::Dropped { lines, reason: "they came faster than they were read".to_string() };
        if !self.write(&Entry { at: wall(), scope, term: None, event }) {
            self.queue.add_dropped(lines);
        }
    }

    /// One call for the whole line, so that lines of several hosts on one terminal do not mix. A reader
    /// that has gone away is no reason to end the host.
    fn write(&mut self, entry: &Entry) -> bool {
        let line = self.formatter.line(entry);
        self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush()).is_ok()
    }
}
