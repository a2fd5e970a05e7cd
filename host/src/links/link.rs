//! The task of one link: it reads from and writes to one peer, and limits what the peer may send.

use std::sync::Arc;
use std::time::Duration;

use baton_store::Digest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::peers::Network;
use super::wire::{LONGEST, PeerMessage, PeerQuery, next_line};

/// Time within which a peer that has connected must send its hello.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Number of lines that a peer may send at once, and the interval after which it may send one more.
const LINES: (u32, Duration) = (50, Duration::from_millis(50));
/// Upper bound on the time that a peer takes to receive a line.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Upper bound on the time that a host takes to look up a peer, and so to answer a hello from another machine.
pub(super) const LOOKED_UP_WITHIN: Duration = Duration::from_secs(10);

/// An event of a link, for the hub.
pub(super) enum Event {
    /// A message of the peer.
    Message(PeerMessage),
    /// The end of the link, and the reason, if it should be logged.
    Ended(Option<String>),
    /// The time to dial the leader of this election again.
    Dial(String),
    /// The time to report that this election's objects should be read.
    Look(String),
}

/// Sender of events to the hub, with the number of the link.
pub(super) type Events = mpsc::Sender<(u64, Event)>;

/// A peer that has connected from another machine.
pub(super) struct Caller {
    pub(super) certificate: Digest,
    /// This host's incarnation. A peer that names another one causes no lookup.
    pub(super) to: String,
    pub(super) network: Arc<Network>,
}

impl Caller {
    /// True if the node that the hello names has announced the caller's certificate.
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

/// Carries a link until it ends, or the peer sends a malformed line or too many lines, or does not read. The first line
/// must come within `hello_within`. With `caller`, that line must be a hello of the node that the caller is.
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
    let mut budget = Budget::new();
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
                    // A later version's message.
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

/// The number of lines that a peer may still send, refilled over time.
struct Budget {
    left: u32,
    since: Instant,
}

impl Budget {
    fn new() -> Self {
        Self { left: LINES.0, since: Instant::now() }
    }

    fn has_one_more(&mut self) -> bool {
        let more = u32::try_from(self.since.elapsed().as_nanos() / LINES.1.as_nanos()).unwrap_or(u32::MAX);
        self.since += LINES.1 * more.min(LINES.0);
        self.left = self.left.saturating_add(more).min(LINES.0);
        if more > LINES.0 {
            self.since = Instant::now();
        }
        let has = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has
    }
}
