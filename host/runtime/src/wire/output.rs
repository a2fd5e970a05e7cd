//! Forwards a guest's standard output, standard error and log messages through the gate, line by line and at a limited
//! rate.

use std::fmt;
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

use crate::runner::http::RefusedRequest;
use crate::runner::logging::LogLevel;
use crate::wire::limits::{EffectKind, NearLimit, Tally};
use crate::wire::page::RunnerGate;
use crate::wire::shared::SharedMemory;
use baton_base::clock::Clock;

/// Maximum length of a line (bytes), which also bounds the size of the host's buffer. Longer lines are split, and
/// longer log messages are cut off.
pub const LONGEST_LINE: usize = 8 * 1024;

/// Maximum number of bytes that a guest may write in one call.
const CHUNK: usize = 64 * 1024;

/// Minimum interval between reports of dropped lines, so that a flood of lines does not cause a flood of reports.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// A guest's standard stream.
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

/// Receives the human-readable notices of an instance. Must not block.
pub trait Output: Send + Sync {
    /// Receives a notice.
    fn notice(&self, notice: Notice<'_>);
}

pub(crate) struct NullOutput;

impl Output for NullOutput {
    fn notice(&self, _: Notice<'_>) {}
}

/// A human-readable notice about an instance.
#[derive(Clone, Copy, Debug)]
pub enum Notice<'a> {
    /// The guest was instantiated, and its main function is about to be called. Holds the time since the instance was
    /// started.
    Started(Duration),
    /// One line, without its line ending.
    Line(Stream, &'a str),
    /// A log message, which counts as one line regardless of its length and content.
    Log {
        /// The level that the guest chose.
        level: LogLevel,
        /// The part of the guest that logged the message; empty if not specified.
        context: &'a str,
        /// The text.
        message: &'a str,
    },
    /// The guest asked for something that it was not granted. Sent once for each kind.
    Denied {
        /// The thing that the guest asked for.
        what: &'a str,
        /// Instructions for granting it.
        remedy: &'a str,
    },
    /// Lines were dropped because the guest wrote too many.
    Dropped {
        /// Number of lines dropped since the last report.
        lines: u64,
        /// Number of lines that the guest may write per second.
        limit: u32,
    },
    /// The guest is close to a limit. Sent once for each limit.
    NearLimit(NearLimit),
    /// The host cannot claim or save the state yet, and retries. Sent once for each claim and commit.
    StateDelayed(&'a StoreError),
    /// A request was refused. Sent once for each origin.
    RefusedRequest(&'a RefusedRequest),
}

/// The guest's side of an output stream. Clones write to the same stream.
#[derive(Clone)]
pub(crate) struct GuestStream {
    gate: Arc<RunnerGate>,
    lines: Arc<Mutex<Lines>>,
    /// The tally in which each write counts as progress; `None` if writes do not count as progress.
    progress: Option<SharedMemory<Tally>>,
}

pub(crate) fn guest_streams(gate: &Arc<RunnerGate>, outlet: &Arc<Outlet>) -> [GuestStream; 2] {
    [Stream::Stdout, Stream::Stderr].map(|stream| GuestStream {
        gate: Arc::clone(gate),
        lines: Arc::new(Mutex::new(Lines { stream, unfinished: Vec::new(), outlet: Arc::clone(outlet) })),
        progress: None,
    })
}

impl GuestStream {
    /// Counts every write from now on as progress, for a guest that has no other way to report progress.
    #[must_use]
    pub(crate) fn counting(mut self, tally: &SharedMemory<Tally>) -> Self {
        self.progress = Some(tally.clone());
        self
    }

    fn take(&self, bytes: &[u8]) -> StreamResult<()> {
        self.gate.pass(EffectKind::Output).map_err(|refused| StreamError::LastOperationFailed(refused.into()))?;
        if let Some(tally) = &self.progress {
            tally.record_progress();
        }
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take(bytes);
        Ok(())
    }

    /// Writes out an unfinished last line, if the gate is still open. The gate must be checked here, since a line
    /// becomes an effect only when it is written out.
    pub(crate) fn finish(&self) {
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
        // Limit the size of a write: a host call cannot be interrupted, so its work must be bounded. Every byte may be
        // an empty line, which causes more work per byte than any other input.
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

/// Passes on an instance's lines and log messages, and drops those that exceed the rate limit.
pub(crate) struct Outlet {
    limit: Mutex<Limit>,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
}

impl Outlet {
    /// Creates an outlet that passes on at most `lines` lines per second on average.
    pub(crate) fn new(lines: u32, clock: &Clock, tally: &SharedMemory<Tally>, output: &Arc<dyn Output>) -> Arc<Self> {
        let limit = Mutex::new(Limit::new(lines, clock.clone()));
        Arc::new(Self { limit, tally: tally.clone(), output: Arc::clone(output) })
    }

    pub(crate) fn put(&self, line: impl FnOnce(&dyn Output)) {
        let mut limit = self.limit();
        if !limit.admit() {
            limit.dropped += 1;
            self.tally.count_dropped();
            return;
        }
        self.tally.count_line();
        let dropped = limit.dropped_to_tell();
        drop(limit);
        self.report_dropped(dropped);
        line(&*self.output);
    }

    /// Reports the lines dropped since the last report. The report comes from the host, not from the guest, so it does
    /// not pass the gate.
    pub(crate) fn finish(&self) {
        let dropped = std::mem::take(&mut self.limit().dropped);
        self.report_dropped(dropped);
    }

    fn report_dropped(&self, lines: u64) {
        if lines > 0 {
            let limit = self.limit().per_second;
            self.output.notice(Notice::Dropped { lines, limit });
        }
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rate limit for the messages that a host accepts from a runner. This limit is far above the guest's own limit, which
/// our code in the runner enforces. So if a runner exceeds the host's limit, a guest has taken over the runner.
pub(crate) struct MessageLimit(Limit);

impl MessageLimit {
    /// Creates the limit for a guest that may print at most `lines` lines per second on average.
    pub(crate) fn new(lines: u32, clock: &Clock) -> Self {
        Self(Limit::new(lines.saturating_mul(4).saturating_add(1000), clock.clone()))
    }

    /// Counts a message. Returns true if the message is within the limit.
    pub(crate) fn admits(&mut self) -> bool {
        self.0.admit()
    }
}

/// A token bucket of up to 2 × `per_second` tokens. A line costs one token, and the bucket gains one token every
/// 1/`per_second` s.
struct Limit {
    per_second: u32,
    clock: Clock,
    tokens: u32,
    counted_to: Time,
    dropped: u64,
    /// Time of the last report of dropped lines.
    told: Time,
}

impl Limit {
    fn new(per_second: u32, clock: Clock) -> Self {
        let counted_to = clock.now();
        Self { per_second, clock, tokens: per_second.saturating_mul(2), counted_to, dropped: 0, told: counted_to }
    }

    /// Returns the number of lines dropped since the last report, and starts a new count. Returns zero and keeps the
    /// count if the last report is less than [`TELL_EVERY`] ago.
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
    use super::*;
    use crate::wire::page::gate_for;

    #[test]
    fn write_traps_when_longer_than_permitted() {
        let (gate, _page) = gate_for(Duration::from_secs(3600));
        let output: Arc<dyn Output> = Arc::new(NullOutput);
        let outlet = Outlet::new(500, &Clock::default(), &SharedMemory::alone(), &output);
        let [mut stdout, _] = guest_streams(&gate, &outlet);
        assert!(stdout.write(Bytes::from(vec![b'\n'; CHUNK])).is_ok());
        assert!(matches!(stdout.write(Bytes::from(vec![b'\n'; CHUNK + 1])), Err(StreamError::Trap(_))));
    }
}
