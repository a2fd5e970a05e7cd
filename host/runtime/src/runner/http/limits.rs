//! Timeouts for requests, and limits on the resources that requests use in the runner.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_election::Time;
use tokio::time::{Instant, Sleep, sleep};
use wasmtime_wasi_http::RequestOptions;

use crate::wire::page::RunnerGate;
use baton_base::clock::Clock;

/// Default timeout for opening a connection, including the DNS lookup and TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// Default timeout for the head of the response, and then for each part of its body.
const WAIT: Duration = Duration::from_secs(10);

/// Margin before the deadline. Every wait ends this long before the deadline, so that the guest can handle the error.
pub(super) const BEFORE_DEADLINE: Duration = Duration::from_millis(50);

/// Maximum interval between two readings of the clock during a wait. A timer alone is not enough, since timers stop
/// while the machine is suspended.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// Maximum size of a response's head, and of its trailers (bytes).
pub(super) const HEAD_BYTES: usize = 32 << 10;

/// hyper's limit on the number of headers in a head.
pub(super) const HEAD_LINES: usize = 100;

/// Maximum length of a method or a scheme (bytes). The longest registered method has 17 bytes, and the longest
/// registered scheme 30.
pub(super) const WORD_BYTES: usize = 64;

/// Maximum length of an authority (bytes): a name of 255 bytes, a user and a port.
pub(super) const AUTHORITY_BYTES: usize = 1 << 10;

/// Maximum memory for a request's trailers (bytes). The trailers and [`WRITE_AHEAD`] together fit into the
/// [`BUFFER`](crate::runner::weight::BUFFER) that is reserved for the request.
pub(super) const TRAILERS: usize = 16 << 10;

/// Maximum amount of data that is read from a connection before the guest reads it (bytes).
pub(super) const READ_AHEAD: usize = 64 << 10;

/// Maximum amount of body data that a guest may write before any of it is sent (bytes).
pub(super) const WRITE_AHEAD: usize = 16 << 10;

/// Maximum memory in the runner for each list of header fields that a guest builds (bytes).
pub(super) const FIELD_BYTES: usize = 32 << 10;

/// Maximum number of idle connections of an instance.
pub(super) const IDLE: usize = 16;

/// Time for which an idle connection is kept. Most servers keep idle connections longer, for 5 s or more.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) connect: Duration,
    pub(super) first_byte: Duration,
    pub(super) between_bytes: Duration,
}

impl Waits {
    pub(super) fn of(options: Option<RequestOptions>) -> Self {
        let wanted = options.unwrap_or_default();
        Self {
            connect: wanted.connect_timeout.unwrap_or(CONNECT),
            first_byte: wanted.first_byte_timeout.unwrap_or(WAIT),
            between_bytes: wanted.between_bytes_timeout.unwrap_or(WAIT),
        }
    }
}

/// A restartable timeout for an operation on a connection.
///
/// Creating a timer wakes a thread, but resetting a timer costs almost nothing. So [`Wait::restart`] resets the timer
/// that [`Wait::new`] created.
pub(super) struct Wait {
    timer: Pin<Box<Sleep>>,
    begin: Time,
    longest: Duration,
}

impl Wait {
    /// Starts a wait that ends after `longest`, or [`BEFORE_DEADLINE`] before the deadline if that is earlier. The wait
    /// reads the deadline repeatedly, since a renewal of the lease extends the deadline.
    pub(super) fn new(gate: &RunnerGate, clock: &Clock, longest: Duration) -> Self {
        let mut wait = Self { timer: Box::pin(sleep(LONGEST_WAIT)), begin: Time::default(), longest };
        wait.restart(gate, clock, longest);
        wait
    }

    pub(super) fn restart(&mut self, gate: &RunnerGate, clock: &Clock, longest: Duration) {
        (self.begin, self.longest) = (clock.now(), longest);
        let nap = Self::nap(gate, longest);
        self.timer.as_mut().reset(Instant::now() + nap);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, gate: &RunnerGate, clock: &Clock) -> Poll<()> {
        loop {
            std::task::ready!(self.timer.as_mut().poll(cx));
            let left = self.longest.saturating_sub(clock.now().since(self.begin));
            let nap = Self::nap(gate, left);
            if nap.is_zero() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + nap);
        }
    }

    fn nap(gate: &RunnerGate, left: Duration) -> Duration {
        left.min(gate.remaining().saturating_sub(BEFORE_DEADLINE)).min(LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::wire::page::gate_for;

    async fn elapsed(gate: &RunnerGate, clock: &Clock, longest: Duration) {
        let mut wait = Wait::new(gate, clock, longest);
        poll_fn(|cx| wait.poll(cx, gate, clock)).await;
    }

    #[test]
    fn docs_state_the_limits() {
        let docs = include_str!("../../../../../docs/http.md");
        let kibibytes = |bytes: usize| format!("{} KiB", bytes >> 10);
        let seconds = |time: Duration| format!("{} s", time.as_secs());
        let milliseconds = format!("{} ms", BEFORE_DEADLINE.as_millis());
        for (rule, limits) in [
            ("- **Timeouts.**", [seconds(CONNECT), seconds(WAIT), milliseconds].as_slice()),
            (
                "- **Limits.**",
                &[kibibytes(HEAD_BYTES), HEAD_LINES.to_string(), kibibytes(FIELD_BYTES), seconds(IDLE_FOR)],
            ),
        ] {
            let rest = docs.split_once(rule).map_or("", |(_, rest)| rest);
            let text = rest.split("\n- **").next().unwrap_or(rest).split_whitespace().collect::<Vec<_>>().join(" ");
            for limit in limits {
                assert!(text.contains(limit), "docs/http.md does not have {limit} in {rule}{text}");
            }
        }
    }

    #[tokio::test]
    async fn wait_ends_after_its_timeout_or_before_the_deadline() {
        let clock = Clock::default();
        let begin = clock.now();
        let (gate, _page) = gate_for(Duration::from_secs(3600));
        elapsed(&gate, &clock, Duration::from_millis(300)).await;
        assert!(clock.now().since(begin) >= Duration::from_millis(300));
        elapsed(&gate, &clock, Duration::ZERO).await;
        let mut wait = Wait::new(&gate, &clock, Duration::from_secs(3600));
        let begin = clock.now();
        wait.restart(&gate, &clock, Duration::from_millis(300));
        poll_fn(|cx| wait.poll(cx, &gate, &clock)).await;
        assert!(clock.now().since(begin) >= Duration::from_millis(300));

        let (gate, page) = gate_for(Duration::from_millis(400));
        elapsed(&gate, &clock, Duration::from_secs(3600)).await;
        assert!(gate.remaining() <= BEFORE_DEADLINE);
        page.close();
        elapsed(&gate, &clock, Duration::from_secs(3600)).await;
    }

    #[tokio::test]
    async fn renewal_extends_the_wait() {
        let clock = Clock::default();
        let (gate, page) = gate_for(Duration::from_secs(3));
        let begin = clock.now();
        let mut wait = Wait::new(&gate, &clock, Duration::from_secs(3600));
        page.open_for(|| Duration::from_millis(3600));
        poll_fn(|cx| wait.poll(cx, &gate, &clock)).await;
        assert!(clock.now().since(begin) >= Duration::from_millis(3600) - BEFORE_DEADLINE);
    }
}
