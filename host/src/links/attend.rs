//! One task for each link: it reads and writes what one peer says and is told, and knows how much that may be.

use std::time::Duration;

use baton_store::Digest;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::words::{Peer, Question, Said, next_line};

/// How soon whoever has connected must say who it is.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// Lines that a peer may say at once, and how often one more.
const LINES: (u32, Duration) = (50, Duration::from_millis(50));
/// How long a peer may take to take one.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// How long a host may take to find out who a peer is, and so until it answers a hello of another machine.
pub(super) const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// What happens to a link, as its task says it.
pub(super) enum Event {
    Said(Said),
    /// The host is to say what is known of a peer.
    Asks(Question, oneshot::Sender<Option<Peer>>),
    /// Why it could not be had, where that is worth a word.
    Ended(Option<String>),
    /// It is time to try once more.
    Dial(String),
    /// It is time to tell the host that there is something to read.
    Look(String),
}

/// To the loop that decides: what happens to which link.
pub(super) type Events = mpsc::Sender<(u64, Event)>;

/// What one that has connected from another machine has shown, and whom it must mean.
pub(super) struct Shown {
    pub(super) certificate: Digest,
    /// This incarnation: who does not know it has nobody asked.
    pub(super) to: String,
}

/// Has the host say what is known of a peer.
pub(super) async fn ask(link: u64, question: Question, events: &Events) -> Option<Peer> {
    let (answer, answered) = oneshot::channel();
    events.send((link, Event::Asks(question, answer))).await.ok()?;
    timeout(ANSWERED_WITHIN, answered).await.ok()?.ok()?
}

/// Reads and writes what one peer says and is told, until it ends, says what no host says or more than it may, or does not
/// read. Its first line comes within that time. Of one that has connected from another machine that is a hello, and the host must know the
/// certificate for the node that it names.
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
                    // What a later host says.
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

/// Whether the host knows that certificate for the node and the incarnation that a hello names.
async fn is_known(link: u64, hello: &Said, shown: &Shown, events: &Events) -> bool {
    let Said::Hello { election, to, node: Some(node), incarnation: Some(incarnation) } = hello.clone() else {
        return false;
    };
    let question = Question { election, node, incarnation, wants_addresses: false };
    to == shown.to && ask(link, question, events).await.is_some_and(|peer| peer.certificate == shown.certificate)
}

/// How many lines a peer may still say.
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
