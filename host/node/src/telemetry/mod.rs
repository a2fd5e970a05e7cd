//! The log: one line on stderr for each [`Event`].
//!
//! A thread that logs must not have to wait for the log's reader. [`Log::emit`] only puts the event into a bounded
//! queue, and a separate thread writes the event. If the queue is full, the log drops and counts events. The writing
//! thread logs the count once the queue is less full. The guests of each election may use only a limited share of the
//! queue, so they cannot displace the host's events or the lines of other guests.
//!
//! A guest's line is an effect that has passed the gate, but it may wait in the queue for a long time. Each guest's
//! line therefore has a deadline. If the deadline passes before the line is written, the writing thread drops and
//! counts the line. The host's own events have no deadline, because they are records and not effects.

mod counts;
mod event;
mod followers;
mod format;
mod heartbeat;
mod make;
mod queue;
mod ring;
mod shorten;
mod sink;
mod terms;
mod tracker;
mod writer;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use baton_election::{ElectionName, Term};

pub use counts::{Counts, Ended, Histogram, StoreOp, StoreResult, Transition};
pub use event::{Event, GuestStream, Seconds};
pub use followers::FollowerLog;
pub use format::Style;
pub use heartbeat::{BEAT_EVERY, Heartbeat};
pub use make::hand_off;
pub use ring::{LogLine, Ring, Taken};
pub use terms::Served;
pub use tracker::{ElectionTracker, LinkStatus};

use crate::node::NodeId;
use baton_base::clock::wall;
use baton_base::gate::Deadline;
use queue::{LogEntry, Queue};
use sink::Sink;

/// Maximum time that the host waits for the log's reader. The host waits before it releases a lease, for the term's
/// last lines, and before it exits, for its own last lines.
pub const LAST_LINES: Duration = Duration::from_millis(500);

/// The format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Text for operators.
    Text,
    /// Short lines for the developer of a coordinator. Events that do not concern the coordinator are omitted.
    Brief,
    /// One JSON object per line.
    Json,
}

/// A handle to the log, for one node and optionally one election. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Log {
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    events: Arc<Ring>,
}

/// The node to which an event belongs, and the tracker of its election, if any.
#[derive(Debug)]
struct Scope {
    node: NodeId,
    tracker: Option<Arc<ElectionTracker>>,
}

impl Scope {
    fn election(&self) -> Option<&ElectionName> {
        self.tracker.as_ref().map(|tracker| &tracker.election)
    }
}

impl Log {
    /// Starts the thread that writes to stderr.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be created.
    pub fn to_stderr(format: Format, node: &NodeId) -> io::Result<(Self, LogWriter)> {
        let terminal = io::stderr().is_terminal();
        let colours = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        Self::start(Style { format, terminal, colours }, node, Box::new(io::stderr()))
    }

    /// Starts the thread that writes to `out`. The thread writes each line in one call, except for very long lines.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be created.
    pub fn start(style: Style, node: &NodeId, out: Box<dyn AsFd + Send>) -> io::Result<(Self, LogWriter)> {
        let queue = Arc::new(Queue::default());
        let scope = Arc::new(Scope { node: node.clone(), tracker: None });
        let events = Arc::new(Ring::of(ring::EVENTS));
        let thread = writer::spawn(Arc::clone(&queue), Arc::clone(&events), style, Sink::new(out))?;
        Ok((Self { queue: Arc::clone(&queue), scope, events }, LogWriter { queue, thread }))
    }

    /// Returns a handle to this log for one election.
    #[must_use]
    pub fn for_election(&self, tracker: &Arc<ElectionTracker>) -> Self {
        let scope = Scope { node: self.scope.node.clone(), tracker: Some(Arc::clone(tracker)) };
        Self { queue: Arc::clone(&self.queue), scope: Arc::new(scope), events: Arc::clone(&self.events) }
    }

    /// Returns the host's recent events from all of its elections, without the guests' output.
    #[must_use]
    pub fn events(&self) -> Arc<Ring> {
        Arc::clone(&self.events)
    }

    /// Logs an event, with its term if the event belongs to a term. Never waits for the log's reader. Can be called
    /// from any thread.
    pub fn emit(&self, term: Option<Term>, event: Event) {
        self.push(term, event, None);
    }

    /// Logs a guest's line. The log drops the line if the deadline passes before the line is written. Never waits for
    /// the log's reader.
    pub fn emit_output(&self, term: Term, event: Event, deadline: &Deadline) {
        self.push(Some(term), event, Some(deadline.clone()));
    }

    fn push(&self, term: Option<Term>, event: Event, deadline: Option<Deadline>) {
        let event = event.shortened();
        let entry = Arc::new(LogEntry { at: wall(), scope: Arc::clone(&self.scope), term, event, deadline });
        self.keep(&entry);
        self.queue.push(entry);
    }

    /// Keeps the entry for clients of the admin endpoint, so that they see it even while the log's reader is slow.
    fn keep(&self, entry: &Arc<LogEntry>) {
        let lines = self.scope.tracker.as_ref().map(|tracker| &tracker.lines);
        match (&entry.event, lines) {
            (Event::Output { .. }, Some(lines)) => {
                if !entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
                    lines.put(entry);
                }
            }
            // Clients request a guest's lines by election, so no client could request this line.
            (Event::Output { .. }, None) => {}
            (Event::OutputDropped { .. }, Some(lines)) => {
                lines.put(entry);
                self.events.put(entry);
            }
            _ => self.events.put(entry),
        }
    }

    /// Waits, without a timeout, until everything logged so far has been written or dropped.
    pub fn written(&self) -> impl Future<Output = ()> + Send + use<> {
        let written = self.queue.mark();
        async move {
            // An error means that the writer has ended, so nothing more will be written.
            let _ = written.await;
        }
    }

    /// True while lines from this election's guests are waiting to be written.
    pub fn has_lines(&self) -> bool {
        self.scope.tracker.as_ref().is_some_and(|tracker| tracker.share.holds_any())
    }

    /// Logs why the host is about to end its own process. Blocks until the reason is written, but for at most
    /// `longest`.
    pub fn last_words(&self, reason: &str, longest: Duration) {
        self.emit(None, Event::Aborting { reason: reason.to_owned() });
        self.queue.wait_last_words_said(longest);
    }

    /// Keeps the writing thread asleep until the caller drops the returned hold. Use a hold during urgent work, so that
    /// the writing thread does not wake up and take the CPU from the urgent work.
    pub fn hold(&self) -> Hold {
        self.queue.hold();
        Hold { queue: Arc::clone(&self.queue) }
    }
}

/// A hold on the writing thread, as returned by [`Log::hold`].
#[derive(Debug)]
pub struct Hold {
    queue: Arc<Queue>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.queue.release();
    }
}

/// Owns the writing thread.
#[derive(Debug)]
pub struct LogWriter {
    queue: Arc<Queue>,
    thread: std::thread::JoinHandle<()>,
}

impl LogWriter {
    /// Writes everything in the queue and ends the thread. Later events are lost. Returns true if everything was
    /// written. Blocks for at most `longest`: if nobody reads the log, the thread stays blocked in a write until the
    /// process exits.
    pub fn shutdown(self, longest: Duration) -> bool {
        self.queue.close();
        let done = self.queue.wait_done(longest);
        // Joining a thread that is still writing would block. Leave such a thread running: it ends with the process.
        done && self.thread.join().is_ok()
    }
}

#[cfg(test)]
mod tests;
