//! How long a request may take, and how much of the host it may use.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use baton_election::Time;
use tokio::time::{Instant, Sleep, sleep};
use wasmtime_wasi_http::RequestOptions;

use super::super::page::Gate;
use baton_store::clock::Clock;

/// Until a connection is there, unless the guest says otherwise: its name looked up, TLS included.
const CONNECT: Duration = Duration::from_secs(5);

/// Until the response's head is there, and between two parts of its body, unless the guest says otherwise.
const WAIT: Duration = Duration::from_secs(10);

/// A wait ends so long before the deadline, so that the guest can still act on its error.
pub(super) const BEFORE_DEADLINE: Duration = Duration::from_millis(50);

/// Timers stop while a machine sleeps: the clock is read this often.
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// A response's head, and its trailers, in bytes.
pub(super) const HEAD_BYTES: usize = 32 << 10;

/// The lines of a head that hyper takes.
pub(super) const HEAD_LINES: usize = 100;

/// The longest method and scheme, in bytes. Those that are registered have 17 and 30.
pub(super) const WORD_BYTES: usize = 64;

/// The longest authority, in bytes: a name of 255, a user and a port.
pub(super) const AUTHORITY_BYTES: usize = 1 << 10;

/// Requests of an instance that the host is told of in a second, where it exports traces.
pub(super) const TRACED_A_SECOND: u32 = 100;

/// What the trailers of a request's body take of the host's memory at the most, in bytes: together with what is written
/// ahead less than a buffer.
pub(super) const TRAILERS: usize = 16 << 10;

/// What is read from a connection ahead of the guest, in bytes.
pub(super) const READ_AHEAD: usize = 64 << 10;

/// What a guest may hand over of a body at a time, in bytes, before any of it is sent.
pub(super) const WRITE_AHEAD: usize = 16 << 10;

/// The fields that a guest makes in the host's memory, in bytes for each list of them.
pub(super) const FIELD_BYTES: usize = 32 << 10;

/// Connections that an instance keeps for its next requests.
pub(super) const IDLE: usize = 16;

/// How long it keeps them. Servers close theirs after 5 s and more.
pub(super) const IDLE_FOR: Duration = Duration::from_secs(4);

/// How long the parts of a request may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) connect: Duration,
    pub(super) first_byte: Duration,
    pub(super) between_bytes: Duration,
}

impl Waits {
    /// What the guest wants, and the defaults for what it does not say.
    pub(super) fn of(options: Option<RequestOptions>) -> Self {
        let wanted = options.unwrap_or_default();
        Self {
            connect: wanted.connect_timeout.unwrap_or(CONNECT),
            first_byte: wanted.first_byte_timeout.unwrap_or(WAIT),
            between_bytes: wanted.between_bytes_timeout.unwrap_or(WAIT),
        }
    }
}

/// A wait for something on a connection, which can be begun again.
///
/// Its timer is kept, since a timer that is only moved back costs nothing, and a new one wakes a thread.
pub(super) struct Wait {
    timer: Pin<Box<Sleep>>,
    begin: Time,
    longest: Duration,
}

impl Wait {
    /// Begins a wait that ends after `longest`, or shortly before the deadline as it then is: no wait outlasts the
    /// term, however long the guest would like to wait, and one that began late in a lease goes on when the lease is
    /// renewed.
    pub(super) fn new(gate: &Gate, clock: &Clock, longest: Duration) -> Self {
        let mut wait = Self { timer: Box::pin(sleep(LONGEST_WAIT)), begin: Time::default(), longest };
        wait.restart(gate, clock, longest);
        wait
    }

    /// Begins another.
    pub(super) fn restart(&mut self, gate: &Gate, clock: &Clock, longest: Duration) {
        (self.begin, self.longest) = (clock.now(), longest);
        let nap = Self::nap(gate, longest);
        self.timer.as_mut().reset(Instant::now() + nap);
    }

    /// Whether it is over.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, gate: &Gate, clock: &Clock) -> Poll<()> {
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

    fn nap(gate: &Gate, left: Duration) -> Duration {
        left.min(gate.remaining().saturating_sub(BEFORE_DEADLINE)).min(LONGEST_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::super::page::gate_for;
    use super::*;

    async fn elapsed(gate: &Gate, clock: &Clock, longest: Duration) {
        let mut wait = Wait::new(gate, clock, longest);
        poll_fn(|cx| wait.poll(cx, gate, clock)).await;
    }

    #[test]
    fn docs_have_the_limits() {
        let docs = include_str!("../../../../docs/http.md");
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
    async fn a_wait_ends_when_it_should_or_before_the_deadline() {
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
    async fn a_renewal_makes_the_wait_longer() {
        let clock = Clock::default();
        let (gate, page) = gate_for(Duration::from_secs(3));
        let begin = clock.now();
        let mut wait = Wait::new(&gate, &clock, Duration::from_secs(3600));
        page.open_for(|| Duration::from_millis(3600));
        poll_fn(|cx| wait.poll(cx, &gate, &clock)).await;
        assert!(clock.now().since(begin) >= Duration::from_millis(3600) - BEFORE_DEADLINE);
    }
}
