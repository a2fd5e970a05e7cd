//! A link's task: it reads from and writes to one peer, and limits what the peer may send.

use std::sync::Arc;
use std::time::Duration;

use baton_store::Digest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::peers::Network;
use super::wire::{LONGEST, PeerMessage, PeerQuery, next_line};

pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Rate limit for a peer's lines: the size of a burst, and the interval after which the peer may send one more line.
const LINES: (u32, Duration) = (50, Duration::from_millis(50));
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Timeout for reading a peer's announcement from the store. The called host reads the caller's announcement before it
/// answers the hello, so the caller waits this long for the answer.
pub(super) const LOOKED_UP_WITHIN: Duration = Duration::from_secs(10);

pub(super) enum Event {
    Message(PeerMessage),
    /// Holds the reason why the link ended, if the hub should log it.
    Ended(Option<String>),
    /// The next attempt to dial this election's leader is due.
    Dial(String),
    /// A delayed `Look` for this election is due.
    Look(String),
}

/// Sender of events to the hub, each with the number of its link.
pub(super) type Events = mpsc::Sender<(u64, Event)>;

/// A peer that has connected from another machine.
pub(super) struct Caller {
    pub(super) certificate: Digest,
    /// This host's incarnation. A hello that names another incarnation is meant for another host, so this host does not
    /// read the caller's announcement.
    pub(super) to: String,
    pub(super) network: Arc<Network>,
}

impl Caller {
    /// Returns true if the node named in the hello has announced the caller's certificate.
    async fn is_announced(&self, hello: &PeerMessage) -> bool {
        let PeerMessage::Hello { election, to, node: Some(node), incarnation: Some(incarnation) } = hello.clone()
        else {
            return false;
        };
        if to != self.to || !self.network.elections.contains(&election) {
            return false;
        }
        let query = PeerQuery { election, node, incarnation };
        let announced = timeout(LOOKED_UP_WITHIN, self.network.callers.certificate(&query)).await;
        announced.is_ok_and(|announced| announced == Some(self.certificate))
    }
}

/// Runs a link until it ends, or until the peer sends a malformed line, sends too many lines, or stops reading. The
/// first line must arrive within `hello_within`. If `caller` is set, that line must be a hello from the node that has
/// announced the caller's certificate.
pub(super) async fn carry(
    link: u64,
    stream: impl AsyncRead + AsyncWrite,
    caller: Option<Caller>,
    hello_within: Duration,
    mut lines: mpsc::Receiver<Vec<u8>>,
    events: &Events,
) {
    let mut is_stranger = true;
    let (from, mut to) = tokio::io::split(stream);
    let (mut from, mut line) = (BufReader::with_capacity(LONGEST, from), Vec::new());
    let mut budget = Budget::new(LINES);
    let hello_by = Instant::now() + hello_within;
    loop {
        tokio::select! {
            read = next_line(&mut from, &mut line) => {
                let Ok(Some(read)) = read else { break };
                let message = PeerMessage::read(read);
                line.clear();
                if !budget.has_one_more() {
                    break;
                }
                match message {
                    Ok(Some(message)) => {
                        if is_stranger
                            && let Some(caller) = &caller
                            && !caller.is_announced(&message).await
                        {
                            break;
                        }
                        is_stranger = false;
                        if events.send((link, Event::Message(message))).await.is_err() {
                            return;
                        }
                    }
                    // Ignore messages that only later versions of Baton know.
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            line = lines.recv() => {
                let Some(line) = line else { break };
                let write = async { to.write_all(&line).await?; to.flush().await };
                if !matches!(timeout(TAKEN_WITHIN, write).await, Ok(Ok(()))) {
                    break;
                }
            }
            () = sleep_until(hello_by), if is_stranger => break,
        }
    }
}

/// A token bucket: it holds at most `burst` tokens, and gains one after each `interval`.
pub(super) struct Budget {
    burst: u32,
    interval: Duration,
    left: u32,
    since: Instant,
}

impl Budget {
    pub(super) fn new((burst, interval): (u32, Duration)) -> Self {
        Self { burst, interval, left: burst, since: Instant::now() }
    }

    pub(super) fn has_one_more(&mut self) -> bool {
        let more = u32::try_from(self.since.elapsed().as_nanos() / self.interval.as_nanos()).unwrap_or(u32::MAX);
        self.since += self.interval * more.min(self.burst);
        self.left = self.left.saturating_add(more).min(self.burst);
        if more > self.burst {
            self.since = Instant::now();
        }
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}
