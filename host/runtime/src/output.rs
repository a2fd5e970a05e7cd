//! Where a guest's standard output and error, and its log, go: by line, through the gate, and no faster than a
//! limit that they share.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use baton_election::{StoreError, Time};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use super::http::{RefusedRequest, Requested};
use super::limits::{Effect, NearLimit, Tally};
use super::logging::LogLevel;
use super::page::Gate;
use super::shared::SharedMemory;
use baton_store::clock::Clock;

/// A longer line is split, so that a guest cannot make the host hold more than this, in bytes. Longer messages are cut.
pub const LONGEST_LINE: usize = 8 * 1024;

/// What a guest may write in one go, in bytes.
const CHUNK: usize = 64 * 1024;

/// How often dropped lines are told of at most: a flood must not be answered by another.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// One of a guest's streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        })
    }
}

/// Takes what an instance lets people know. Must not block.
pub trait Output: Send + Sync {
    /// Takes one thing of it.
    fn notice(&self, notice: Notice<'_>);
}

/// Nobody hears it: in a rehearsal.
pub(super) struct Silence;

impl Output for Silence {
    fn notice(&self, _: Notice<'_>) {}
}

/// What an instance lets people know.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// Its first instruction comes next, so long after its start. Lines come later.
    Started(Duration),
    /// One line, without its end.
    Line(Stream, &'a str),
    /// What it logged, as one line, however long and whatever is in it.
    Log {
        /// How much it says that it matters.
        level: LogLevel,
        /// Where in it that comes from; empty where it does not say.
        context: &'a str,
        /// What it says.
        message: &'a str,
    },
    /// It asked for something that it was not granted, and was refused. Told of each kind once.
    Denied {
        /// What it asked for.
        what: &'a str,
        /// What would grant it.
        remedy: &'a str,
    },
    /// Something of it was written to a file, for people to look at.
    Saved {
        /// `core dump` or `profile`.
        what: &'static str,
        /// The file.
        path: &'a Path,
    },
    /// Something of it was to be written to a file, and could not be.
    NotSaved {
        /// `core dump` or `profile`, or a part of one.
        what: &'static str,
        /// The file.
        path: &'a Path,
        /// What is wrong.
        why: &'a str,
    },
    /// Lines were dropped since the last that was not, because the guest wrote too many.
    Dropped {
        /// How many.
        lines: u64,
        /// So many a second it may write.
        limit: u32,
    },
    /// It uses much of what it may use. Told of each limit once.
    NearLimit(NearLimit),
    /// Its state cannot be claimed or saved yet, and is tried again. Told once of each claim and commit.
    StateDelayed(&'a StoreError),
    /// A request was refused. Told once for each origin.
    RefusedRequest(&'a RefusedRequest),
    /// A request over HTTP was answered, or failed. Only where the host exports traces.
    Requested(&'a Requested),
}

/// One of an instance's streams as the guest sees it. Clones write to the same.
#[derive(Clone)]
pub(super) struct GuestStream {
    gate: Arc<Gate>,
    lines: Arc<Mutex<Lines>>,
    /// What notes output as progress, where it counts as that.
    progress: Option<SharedMemory<Tally>>,
}

/// Both streams of an instance.
pub(super) fn guest_streams(gate: &Arc<Gate>, outlet: &Arc<Outlet>) -> [GuestStream; 2] {
    [Stream::Stdout, Stream::Stderr].map(|stream| GuestStream {
        gate: Arc::clone(gate),
        lines: Arc::new(Mutex::new(Lines { stream, unfinished: Vec::new(), outlet: Arc::clone(outlet) })),
        progress: None,
    })
}

impl GuestStream {
    /// Counts what is written from now on as progress: its guest has no other way to say that it works.
    #[must_use]
    pub(super) fn counting(mut self, tally: &SharedMemory<Tally>) -> Self {
        self.progress = Some(tally.clone());
        self
    }

    fn take(&self, bytes: &[u8]) -> StreamResult<()> {
        self.gate.pass(Effect::Output).map_err(|refused| StreamError::LastOperationFailed(refused.into()))?;
        if let Some(tally) = &self.progress {
            tally.makes_progress();
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
        Ok(())
    }

    /// Writes out a last line that has no end, if the gate lets it pass: a line is an effect when it is
    /// written out, not when its bytes are taken.
    pub(super) fn finish(&self) {
        let is_open = self.gate.check().is_ok();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if is_open && !lines.unfinished.is_empty() {
            lines.emit();
        }
    }
}

impl IsTerminal for GuestStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestStream {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestStream {
    async fn ready(&mut self) {}
}

impl OutputStream for GuestStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        // No call can be ended while it runs, and empty lines are the longest work for a byte.
        if bytes.len() > CHUNK {
            return Err(StreamError::trap("the coordinator wrote more at once than `check-write` permits"));
        }
        self.take(&bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(CHUNK)
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let taken = &bytes[..bytes.len().min(CHUNK)];
        Poll::Ready(self.take(taken).map(|()| taken.len()).map_err(std::io::Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Cuts a stream of bytes into lines.
struct Lines {
    stream: Stream,
    unfinished: Vec<u8>,
    outlet: Arc<Outlet>,
}

impl Lines {
    fn take(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.append(&bytes[..end]);
            self.emit();
            bytes = &bytes[end + 1..];
        }
        self.append(bytes);
    }

    fn append(&mut self, mut bytes: &[u8]) {
        while self.unfinished.len() + bytes.len() > LONGEST_LINE {
            let (head, tail) = bytes.split_at(LONGEST_LINE - self.unfinished.len());
            self.unfinished.extend_from_slice(head);
            self.emit();
            bytes = tail;
        }
        self.unfinished.extend_from_slice(bytes);
    }

    fn emit(&mut self) {
        let line = &self.unfinished;
        self.outlet.put(|output| {
            output.notice(Notice::Line(self.stream, String::from_utf8_lossy(line).trim_end_matches('\r')));
        });
        self.unfinished.clear();
    }
}

/// Where all lines of an instance go, and where those that come too fast end.
pub(super) struct Outlet {
    limit: Mutex<Limit>,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
}

impl Outlet {
    /// One that lets through so many lines a second in the long run.
    pub(super) fn new(lines: u32, clock: &Clock, tally: &SharedMemory<Tally>, output: &Arc<dyn Output>) -> Arc<Self> {
        let limit = Mutex::new(Limit::new(lines, clock.clone()));
        Arc::new(Self { limit, tally: tally.clone(), output: Arc::clone(output) })
    }

    /// Puts one line out, or counts it as dropped.
    pub(super) fn put(&self, line: impl FnOnce(&dyn Output)) {
        let mut limit = self.limit();
        if !limit.admit() {
            limit.dropped += 1;
            self.tally.count_dropped();
            return;
        }
        self.tally.count_line();
        let dropped = limit.dropped_to_tell();
        drop(limit);
        self.tell_dropped(dropped);
        line(&*self.output);
    }

    /// Tells how many were dropped in the end. This is the host's own word: no gate keeps it.
    pub(super) fn finish(&self) {
        let dropped = std::mem::take(&mut self.limit().dropped);
        self.tell_dropped(dropped);
    }

    fn tell_dropped(&self, lines: u64) {
        if lines > 0 {
            let limit = self.limit().per_second;
            self.output.notice(Notice::Dropped { lines, limit });
        }
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a host takes from a runner in words for people: far more than the runner lets its guest say, so that who says
/// more is no runner of ours any more.
pub(super) struct Allowance(Limit);

impl Allowance {
    /// For a guest that may print so many lines a second in the long run.
    pub(super) fn new(lines: u32, clock: &Clock) -> Self {
        Self(Limit::new(lines.saturating_mul(4).saturating_add(1000), clock.clone()))
    }

    /// So many a second in the long run.
    pub(super) fn of(per_second: u32, clock: &Clock) -> Self {
        Self(Limit::new(per_second, clock.clone()))
    }

    /// Whether it takes one more.
    pub(super) fn admits(&mut self) -> bool {
        self.0.admit()
    }
}

/// A token bucket: a line costs one, and one comes back every 1/`per_second` s. It holds twice as many.
struct Limit {
    per_second: u32,
    clock: Clock,
    tokens: u32,
    counted_to: Time,
    dropped: u64,
    /// When dropped lines were last told of.
    told: Time,
}

impl Limit {
    fn new(per_second: u32, clock: Clock) -> Self {
        let counted_to = clock.now();
        Self { per_second, clock, tokens: per_second.saturating_mul(2), counted_to, dropped: 0, told: counted_to }
    }

    /// The lines that were dropped since this was last asked, but no more than once in [`TELL_EVERY`].
    fn dropped_to_tell(&mut self) -> u64 {
        let now = self.clock.now();
        if now.since(self.told) < TELL_EVERY {
            return 0;
        }
        self.told = now;
        std::mem::take(&mut self.dropped)
    }

    fn admit(&mut self) -> bool {
        let burst = self.per_second.saturating_mul(2);
        let per_token = Duration::from_secs(1) / self.per_second.max(1);
        let passed = self.clock.now().since(self.counted_to);
        let earned = u32::try_from(passed.as_nanos() / per_token.as_nanos()).unwrap_or(u32::MAX);
        if earned >= burst - self.tokens {
            self.tokens = burst;
            self.counted_to = self.counted_to + passed;
        } else {
            self.tokens += earned;
            self.counted_to = self.counted_to + per_token * earned;
        }
        let admitted = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::gate_for;
    use super::*;

    #[test]
    fn a_write_of_more_than_is_permitted_traps_before_it_takes_the_hosts_time() {
        let (gate, _page) = gate_for(Duration::from_secs(3600));
        let output: Arc<dyn Output> = Arc::new(Silence);
        let outlet = Outlet::new(500, &Clock::default(), &SharedMemory::alone(), &output);
        let [mut stdout, _] = guest_streams(&gate, &outlet);
        assert!(stdout.write(Bytes::from(vec![b'\n'; CHUNK])).is_ok());
        assert!(matches!(stdout.write(Bytes::from(vec![b'\n'; CHUNK + 1])), Err(StreamError::Trap(_))));
    }
}
