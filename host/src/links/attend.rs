//! The task of one link: it reads from and writes to one peer, and limits what the peer may send.

use std::time::Duration;

use baton_store::Digest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::words::{Peer, Question, Said, next_line};

/// Time within which a peer that has connected must send its hello.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Number of lines that a peer may send at once, and the interval after which it may send one more.
const LINES: (u32, Duration) = (50, Duration::from_millis(50));
/// Upper bound on the time that a peer takes to receive a line.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Upper bound on the time that a host takes to identify a peer, and so to answer a hello from another machine.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

pub(super) enum Event {
    Said(Said),
    /// A question to the host about a peer, and the channel for the answer.
    Asks(Question, oneshot::Sender<Option<Peer>>),
    /// The end of the link, and the reason, if it should be logged.
    Ended(Option<String>),
    /// The time to dial the leader of this election again.
    Dial(String),
    /// The time to notify the host that this election's objects should be read.
    Look(String),
}

/// Sender of events to the carrier's loop, with the number of the link.
pub(super) type Events = mpsc::Sender<(u64, Event)>;

/// Credentials of a peer that has connected from another machine.
pub(super) struct Shown {
    pub(super) certificate: Digest,
    /// This host's incarnation. A peer that names another one causes no question to the host.
    pub(super) to: String,
}

pub(super) async fn ask(link: u64, question: Question, events: &Events) -> Option<Peer> {
    let (answer, answered) = oneshot::channel();
    events.send((link, Event::Asks(question, answer))).await.ok()?;
    timeout(ANSWERED_WITHIN, answered).await.ok()?.ok()?
}

/// Carries a link until it ends, or the peer sends a malformed line or too many lines, or does not read. The first line
/// must come within `hello_within`. With `shown`, that line must be a hello, and the host must know the certificate for
/// the node that the hello names.
pub(super) async fn attend(
    link: u64,
    stream: impl AsyncRead + AsyncWrite,
    shown: Option<Shown>,
    hello_within: Duration,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    events: &Events,
) {
    let mut is_stranger = true;
    let (from, mut to) = tokio::io::split(stream);
    let (mut from, mut line) = (BufReader::with_capacity(super::words::LONGEST, from), Vec::new());
    let mut budget = Budget::new();
    let hello_by = Instant::now() + hello_within;
    loop {
        tokio::select! {
            said = next_line(&mut from, &mut line) => {
                let Ok(Some(said)) = said else { break };
                let said = Said::read(said);
                line.clear();
                if !budget.has_one_more() {
                    break;
                }
                match said {
                    Ok(Some(said)) => {
                        if is_stranger
                            && let Some(shown) = &shown
                            && !is_known(link, &said, shown, events).await
                        {
                            break;
                        }
                        is_stranger = false;
                        if events.send((link, Event::Said(said))).await.is_err() {
                            return;
                        }
                    }
                    // A later version's message.
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
            said = waiting.recv() => {
                let Some(said) = said else { break };
                let takes = async { to.write_all(&said).await?; to.flush().await };
                if !matches!(timeout(TAKEN_WITHIN, takes).await, Ok(Ok(()))) {
                    break;
                }
            }
            () = sleep_until(hello_by), if is_stranger => break,
        }
    }
}

async fn is_known(link: u64, hello: &Said, shown: &Shown, events: &Events) -> bool {
    let Said::Hello { election, to, node: Some(node), incarnation: Some(incarnation) } = hello.clone() else {
        return false;
    };
    let question = Question { election, node, incarnation, wants_addresses: false };
    to == shown.to && ask(link, question, events).await.is_some_and(|peer| peer.certificate == shown.certificate)
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
