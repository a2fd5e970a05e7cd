//! What the host tells people: one line on stderr for each [`Event`].
//!
//! A thread that has something to say must not wait for the log's reader. So [`Log::emit`] puts the event into
//! a bounded queue and returns, and a thread of its own writes. When the queue is full, events are
//! dropped and counted, and the count is said once there is room. The guests of each election have a part of the
//! queue: however much one prints, the host's own events and the lines of others still find room.
//!
//! A line of a guest is an effect, which the gate has let pass before it came here. It waits here, perhaps for long, so
//! it brings a deadline with it, and is dropped and counted if that has passed before it is written. What the host says
//! itself, of whichever term, is always true and has none.

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
mod spans;
mod standing;
mod terms;
mod tracks;
mod writer;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, Term};

pub use counts::{Answered, Asked, Counts, Ended, Histogram, Transition};
pub use event::{Event, GuestStream, Seconds};
pub use followers::FollowerLog;
pub use format::Style;
pub use heartbeat::{BEAT_EVERY, Heartbeat};
pub use make::hand_off;
pub use ring::{Ring, Said, Taken};
pub use spans::{Attributes, Place, Span, SpanQueue, Value, Waiting};
pub use standing::{Known, Standing};
pub use terms::Served;

use crate::node::NodeId;
use baton_runtime::Requested;
use baton_store::Digest;
use baton_store::clock::wall;
use baton_store::gate::Deadline;
use queue::{LogEntry, Queue};
use sink::Sink;

/// How long a node waits for somebody to read its last lines: those of a term before it gives the lease up, and those
/// of the host before it ends.
pub const LAST_LINES: Duration = Duration::from_millis(500);

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people.
    Text,
    /// For the developer of a coordinator: what matters to them, in short lines.
    Brief,
    /// A JSON object on each line.
    Json,
}

/// A handle to say something with, for one node and perhaps one election. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Log {
    queue: Arc<Queue>,
    scope: Arc<Scope>,
    events: Arc<Ring>,
}

/// Who speaks.
#[derive(Debug)]
struct Scope {
    node: NodeId,
    standing: Option<Arc<Standing>>,
}

impl Scope {
    fn election(&self) -> Option<&ElectionName> {
        self.standing.as_ref().map(|standing| &standing.election)
    }

    /// What is said of an election is also what is known of it.
    fn observe(&self, term: Option<Term>, event: &Event) {
        if let Some(standing) = &self.standing {
            standing.observe(self.node.as_str(), term, event);
        }
    }
}

impl Log {
    /// Starts the thread that writes to stderr.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn to_stderr(format: Format, node: &NodeId) -> io::Result<(Self, LogWriter)> {
        let terminal = io::stderr().is_terminal();
        let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self::start(Style { format, terminal, colours }, node, Box::new(io::stderr()))
    }

    /// Starts the thread that writes to `out`, each line that is not very long in one call.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn start(style: Style, node: &NodeId, out: Box<dyn AsFd + Send>) -> io::Result<(Self, LogWriter)> {
        let queue = Arc::new(Queue::default());
        let scope = Arc::new(Scope { node: node.clone(), standing: None });
        let events = Arc::new(Ring::of(ring::EVENTS));
        let thread = writer::spawn(Arc::clone(&queue), Arc::clone(&events), style, Sink::new(out))?;
        Ok((Self { queue: Arc::clone(&queue), scope, events }, LogWriter { queue, thread }))
    }

    /// The same log for what concerns one election.
    #[must_use]
    pub fn for_election(&self, standing: &Arc<Standing>) -> Self {
        let scope = Scope { node: self.scope.node.clone(), standing: Some(Arc::clone(standing)) };
        Self { queue: Arc::clone(&self.queue), scope: Arc::new(scope), events: Arc::clone(&self.events) }
    }

    /// The last of what the host has said itself, in all elections.
    #[must_use]
    pub fn events(&self) -> Arc<Ring> {
        Arc::clone(&self.events)
    }

    /// Says something, of a term where it concerns one. Never blocks on the log's reader; any thread may
    /// call it.
    pub fn emit(&self, term: Option<Term>, event: Event) {
        self.push(term, event, None);
    }

    /// Hands over a line of a guest, which is dropped if it is not written before the deadline. Blocks as little.
    pub fn emit_output(&self, term: Term, event: Event, deadline: &Deadline) {
        self.push(Some(term), event, Some(deadline.clone()));
    }

    /// The instance of a term has made a request. It is no line: those who collect traces are told of it.
    pub fn requested(&self, term: Term, module: &Digest, requested: &Requested) {
        if let Some(standing) = &self.scope.standing {
            standing.requested(term, module, requested);
        }
    }

    fn push(&self, term: Option<Term>, event: Event, deadline: Option<Deadline>) {
        self.scope.observe(term, &event);
        let event = event.shortened();
        let entry = Arc::new(LogEntry { at: wall(), scope: Arc::clone(&self.scope), term, event, deadline });
        self.keep(&entry);
        self.queue.push(entry);
    }

    /// Keeps it for those who ask, whether the log's reader is quick or not.
    fn keep(&self, entry: &Arc<LogEntry>) {
        let lines = self.scope.standing.as_ref().map(|standing| &standing.lines);
        match (&entry.event, lines) {
            (Event::Output { .. }, Some(lines)) => {
                if !entry.deadline.as_ref().is_some_and(Deadline::has_passed) {
                    lines.put(entry);
                }
            }
            // It belongs to no election that anybody could ask for.
            (Event::Output { .. }, None) => {}
            (Event::OutputDropped { .. }, Some(lines)) => {
                lines.put(entry);
                self.events.put(entry);
            }
            _ => self.events.put(entry),
        }
    }

    /// Waits until all that was said so far is written or dropped, for as long as that takes.
    pub fn written(&self) -> impl Future<Output = ()> + Send + use<> {
        let written = self.queue.mark();
        async move {
            // A writer that has ended writes nothing any more.
            let _ = written.await;
        }
    }

    /// Whether lines of this election's guests are neither written nor dropped.
    pub fn has_lines(&self) -> bool {
        self.scope.standing.as_ref().is_some_and(|standing| standing.share.holds_any())
    }

    /// Says why the host ends itself, and waits until that is written, at most so long. Blocks.
    pub fn last_words(&self, reason: &str, longest: Duration) {
        self.emit(None, Event::Aborting { reason: reason.to_owned() });
        self.queue.wait_last_words_said(longest);
    }

    /// Keeps the writing thread asleep while the hold lives, whatever is said. For moments in which something
    /// more urgent than a line is to be done, and waking another thread would cost it its turn.
    pub fn hold(&self) -> Hold {
        self.queue.hold();
        Hold { queue: Arc::clone(&self.queue) }
    }
}

/// See [`Log::hold`].
#[derive(Debug)]
pub struct Hold {
    queue: Arc<Queue>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.queue.release();
    }
}

/// The owner of the writing thread.
#[derive(Debug)]
pub struct LogWriter {
    queue: Arc<Queue>,
    thread: std::thread::JoinHandle<()>,
}

impl LogWriter {
    /// Writes what is queued and ends the thread; what is said from now on is lost. Gives up after
    /// `longest` where nobody reads: the thread then hangs in its write until the process ends. Says
    /// whether all was written. Blocks.
    pub fn shutdown(self, longest: Duration) -> bool {
        self.queue.close();
        let done = self.queue.wait_done(longest);
        // A thread that still writes cannot be ended, only left behind by the process.
        done && self.thread.join().is_ok()
    }
}

#[cfg(test)]
mod tests;
