//! What a node hears of what it is asked, and why it stays out for now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::timing::LONGEST_POLL;
use baton_election::{ElectionName, StoreError, Time, Timing, Version};
use baton_store::clock::Clock;
use baton_store::jitter::between;
use baton_store::steering::{Ask, LONGEST_STEP_DOWN, Order, Request, Steering};
use baton_store::{ObjectStore, Reading, Tidings, VersionedObject};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::telemetry::{Event, LAST_LINES, Log, hand_off};

/// From one reading to the next, at least and at most.
const POLL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
/// The longest wait after readings that failed.
const OUTAGE: Duration = Duration::from_secs(15);
/// How long a reading may take.
const READ: Duration = Duration::from_secs(4);
/// From a reading that failed to the next, where a takeover waits for it.
const AGAIN: Duration = Duration::from_millis(100);

/// The start of a host that is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Itself {
    /// Its id.
    pub node: String,
    /// This start of it.
    pub incarnation: String,
}

/// What one node hears of what an election's nodes are asked.
pub struct Helm {
    election: ElectionName,
    itself: Itself,
    timing: Timing,
    store: Arc<dyn ObjectStore>,
    clock: Clock,
    log: Log,
    tidings: Tidings,
    reader: Mutex<Reader>,
    heard: watch::Sender<Heard>,
}

/// What was read, in the order in which it was asked for.
#[derive(Default)]
struct Reader {
    version: Option<Version>,
    /// Readings that were begun, and the latest of these whose answer counts.
    begun: u64,
    taken: u64,
    /// What is wrong with what was read last, and was said.
    wrong: Option<String>,
    /// Why nothing can be read, as it was said.
    unreadable: Option<String>,
}

/// What was heard so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// What was heard last; none before the first answer.
    mark: Option<String>,
    suspended: Option<Order>,
    /// What the last request was called.
    request: Option<String>,
    /// Until when this node was asked to stay out.
    stepped_down: Option<(Order, Time)>,
    /// Which other node is to lead, if that was asked last, and until when this one stays out for it.
    transfer: Option<(Order, String, Time)>,
    /// By what, and until when, this node is the one that is to lead.
    called: Option<(Order, Time)>,
}

/// A node that would not lead now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StaysOut {
    /// Why.
    pub why: Why,
    /// Until when; none for as long as it is not told otherwise.
    pub until: Option<Time>,
}

/// Why a node stays out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The election is suspended.
    Suspended(Order),
    /// It was asked to step down.
    SteppedDown(Order),
    /// That node is to take the lease.
    Transferring(Order, String),
}

impl Why {
    /// What it was asked.
    #[must_use]
    pub fn order(&self) -> &Order {
        match self {
            Self::Suspended(order) | Self::SteppedDown(order) | Self::Transferring(order, _) => order,
        }
    }

    /// The word for it that nodes announce.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Suspended(_) => "suspended",
            Self::SteppedDown(_) => "stepped-down",
            Self::Transferring(..) => "transferring",
        }
    }

    /// The same for people, with who asked for it.
    #[must_use]
    pub fn told(&self) -> String {
        match self {
            Self::Suspended(order) => format!("suspended by {}", order.told()),
            Self::SteppedDown(order) => format!("asked to step down by {}", order.told()),
            Self::Transferring(order, to) => format!("asked to transfer to {to} by {}", order.told()),
        }
    }

    /// What the log says when it begins.
    #[must_use]
    pub fn event(&self, wait: Option<Duration>) -> Event {
        let wait_s = wait.unwrap_or_default().into();
        match self.clone() {
            Self::Suspended(Order { by, reason, .. }) => Event::Suspended { by, reason },
            Self::SteppedDown(Order { by, reason, .. }) => Event::SteppingDown { by, reason, wait_s },
            Self::Transferring(Order { by, reason, .. }, to) => Event::Transferring { to, by, reason, wait_s },
        }
    }
}

/// How long all but the node that a transfer names stay out at the most: as long as a hand-off takes, and two polls.
#[must_use]
pub fn transfer_takes(timing: &Timing) -> Duration {
    hand_off(timing).saturating_add(2 * LONGEST_POLL)
}

/// How long the leader before stays out after it has given the lease up. Nobody leads for longer than that and a poll.
pub const TAKEN_WITHIN: Duration = LAST_LINES.saturating_add(LONGEST_POLL.saturating_mul(3));

impl Heard {
    /// Why this node is to stay out at this time.
    #[must_use]
    pub fn stays_out(&self, now: Time) -> Option<StaysOut> {
        if let Some(order) = &self.suspended {
            return Some(StaysOut { why: Why::Suspended(order.clone()), until: None });
        }
        if let Some((order, until)) = self.stepped_down.as_ref().filter(|(_, until)| now < *until) {
            return Some(StaysOut { why: Why::SteppedDown(order.clone()), until: Some(*until) });
        }
        let (order, to, until) = self.transfer.as_ref().filter(|(.., until)| now < *until)?;
        Some(StaysOut { why: Why::Transferring(order.clone(), to.clone()), until: Some(*until) })
    }

    /// What has this node be the one that is to lead, at this time.
    #[must_use]
    pub fn called(&self, now: Time) -> Option<&Order> {
        self.called.as_ref().filter(|(_, until)| now < *until).map(|(order, _)| order)
    }

    /// Tells what was heard from what was heard before; none before the first answer.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        self.mark.as_deref()
    }

    fn take(&mut self, steering: Steering, itself: &Itself, timing: &Timing, now: Time) {
        let is_first = self.mark.replace(steering.mark()).is_none();
        self.suspended = steering.suspended;
        let Some(Request { order, ask }) = steering.request else { return };
        if self.request.replace(order.id.clone()).as_ref() == Some(&order.id) || is_first {
            return;
        }
        (self.transfer, self.called) = (None, None);
        match ask {
            Ask::StepDown { node, incarnation, for_s } if itself.is(&node, &incarnation) => {
                let until = now + Duration::from_secs(for_s).min(LONGEST_STEP_DOWN);
                self.stepped_down = Some((order, until));
            }
            Ask::StepDown { .. } => {}
            Ask::Transfer { node, incarnation } if itself.is(&node, &incarnation) => {
                (self.stepped_down, self.called) = (None, Some((order, now + transfer_takes(timing))));
            }
            Ask::Transfer { node, .. } => self.transfer = Some((order, node, now + transfer_takes(timing))),
        }
    }
}

impl Itself {
    pub(super) fn is(&self, node: &str, incarnation: &str) -> bool {
        (self.node.as_str(), self.incarnation.as_str()) == (node, incarnation)
    }
}

impl Helm {
    /// A node that has heard nothing yet.
    pub fn new(
        election: ElectionName,
        (itself, timing): (Itself, Timing),
        store: Arc<dyn ObjectStore>,
        clock: Clock,
        log: Log,
        tidings: Tidings,
    ) -> Self {
        let (reader, heard) = (Mutex::default(), watch::channel(Heard::default()).0);
        Self { election, itself, timing, store, clock, log, tidings, reader, heard }
    }

    /// What it hears, now and later.
    pub fn hears(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }

    /// Reads again and again what is asked, until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        let (mut wait, mut tidings) = (POLL, self.tidings.reader());
        loop {
            let began = Instant::now();
            let read = timeout(READ, self.look()).await;
            let is_read = matches!(read, Ok(Ok(())));
            // Nothing depends on it, and what is wrong with the store is said by those who depend on that.
            let planned = if is_read {
                wait = POLL;
                tidings.next(Instant::now(), POLL)
            } else {
                wait = (wait.1.min(OUTAGE), (wait.1 * 2).min(OUTAGE));
                Instant::now() + between(wait.0, wait.1)
            };
            tidings.until(planned, began).await;
        }
    }

    /// Whether what it has heard last is of that version; none where there is nothing that was asked.
    pub fn knows(&self, version: Option<&Version>) -> bool {
        let reader = self.reader();
        reader.taken > 0 && reader.version.as_ref() == version
    }

    /// Reads it now, within that time at the most, and tells whether that came off: before a node asks for a lease that may
    /// have been given up for what is asked. A store that does not answer so soon leaves what is known.
    pub async fn look_before(&self, within: Duration) -> bool {
        let look = async {
            loop {
                match self.look().await {
                    Ok(()) => return true,
                    Err(StoreError::Unknown(_)) => sleep(AGAIN).await,
                    Err(_) => return false,
                }
            }
        };
        timeout(within, look).await.unwrap_or(false)
    }

    async fn look(&self) -> Result<(), StoreError> {
        let (known, number) = {
            let mut reader = self.reader();
            reader.begun += 1;
            (reader.version.clone(), reader.begun)
        };
        let reading = self.store.read(VersionedObject::Steering, &self.election, known.as_ref()).await;
        let mut reader = self.reader();
        let reading = match reading {
            Err(error) => {
                // What nobody mends is said, once there was something to be read.
                if let StoreError::Misconfigured(why) = &error
                    && self.heard.borrow().mark.is_some()
                {
                    let why = format!(
                        "cannot read steering commands: {why}; the last command read stays in force on this \
                                 node"
                    );
                    self.says_once(why, &mut reader.unreadable);
                }
                return Err(error);
            }
            Ok(reading) => reading,
        };
        reader.unreadable = None;
        // Two may be under way, and the one that was begun later knows better.
        if number <= reader.taken {
            return Ok(());
        }
        reader.taken = number;
        let (was_known, mut is_news) = (self.heard.borrow().mark.is_some(), false);
        let steering = match reading {
            Reading::Unchanged => return Ok(()),
            Reading::Nothing => {
                reader.version = None;
                Ok(Steering::default())
            }
            Reading::Found(version, content) => {
                is_news = was_known;
                reader.version = Some(version);
                Steering::decode(&content)
            }
        };
        match steering {
            Ok(steering) => {
                reader.wrong = None;
                let now = self.clock.now();
                self.heard.send_if_modified(|heard| {
                    let before = heard.clone();
                    heard.take(steering, &self.itself, &self.timing, now);
                    *heard != before
                });
                // What was there before this node began to read, the others have read.
                if is_news {
                    self.tidings.found();
                }
            }
            Err(error) => {
                let error = format!(
                    "{error}; until nodes can read the steering commands again, the last command read \
                                     stays in force on this node"
                );
                self.says_once(error, &mut reader.wrong);
            }
        }
        Ok(())
    }

    fn says_once(&self, error: String, said: &mut Option<String>) {
        if said.as_ref() != Some(&error) {
            self.log.emit(None, Event::Error { error: error.clone() });
            *said = Some(error);
        }
    }

    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::fd::AsFd;

    use baton_store::MemoryStore;
    use bytes::Bytes;

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::{Format, Style};

    fn itself(incarnation: &str) -> Itself {
        Itself { node: "web-1".to_owned(), incarnation: incarnation.to_owned() }
    }

    fn timing() -> Timing {
        let second = Duration::from_secs(1);
        Timing::new(15 * second, (second, 60 * second), 5 * second, 64 << 20).unwrap()
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn order(id: &str) -> Order {
        let [id, by, at] = [id, "ann@desk", "2026-11-21T12:00:00Z"].map(str::to_owned);
        Order { id, by, at, reason: None }
    }

    fn asks(id: &str, ask: Ask) -> Steering {
        Steering { suspended: None, request: Some(Request { order: order(id), ask }) }
    }

    fn step_down(id: &str, incarnation: &str) -> Steering {
        let Itself { node, incarnation } = itself(incarnation);
        asks(id, Ask::StepDown { node, incarnation, for_s: 60 })
    }

    fn word(heard: &Heard, now: u64) -> Option<&'static str> {
        heard.stays_out(at(now)).map(|stays_out| stays_out.why.word())
    }

    fn take(heard: &mut Heard, steering: Steering, now: u64) {
        heard.take(steering, &itself("ab"), &timing(), at(now));
    }

    fn transfer(id: &str, incarnation: &str) -> Steering {
        let Itself { node, incarnation } = itself(incarnation);
        asks(id, Ask::Transfer { node, incarnation })
    }

    #[tokio::test]
    async fn it_knows_the_version_that_it_has_heard_last_and_no_other() {
        let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere: Box<dyn AsFd + Send> = Box::new(std::fs::File::create("/dev/null").unwrap());
        let (log, _writer) = Log::start(style, &NodeId::new("web-1").unwrap(), nowhere).unwrap();
        let job = ElectionName::new("job").unwrap();
        let ours: Arc<dyn ObjectStore> = Arc::new(store.clone());
        let helm = Helm::new(job.clone(), (itself("ab"), timing()), ours, Clock::default(), log, Tidings::default());
        assert!(!helm.knows(None), "it has heard nothing, not even that there is nothing");
        let second = Duration::from_secs(1);
        assert!(helm.look_before(second).await && helm.knows(None));
        let mut version = None;
        for content in [
            asks("1", Ask::StepDown { node: "a".into(), incarnation: "b".into(), for_s: 1 }).encode(),
            Bytes::from_static(b"spoilt"),
        ] {
            version = Some(store.write(VersionedObject::Steering, &job, version.as_ref(), content).await.unwrap());
            assert!(!helm.knows(version.as_ref()));
            assert!(helm.look_before(second).await && helm.knows(version.as_ref()) && !helm.knows(None));
        }
        ObjectStore::delete(&store, VersionedObject::Steering, &job, &version.unwrap()).await.unwrap();
        assert!(!helm.knows(None));
        assert!(helm.look_before(second).await && helm.knows(None));
    }

    #[test]
    fn a_request_holds_from_when_it_is_heard_and_only_for_whom_it_names() {
        let mut heard = Heard::default();
        take(&mut heard, Steering::default(), 1);
        take(&mut heard, step_down("1", "another"), 100);
        assert_eq!(word(&heard, 101), None, "another start of the node was meant");
        take(&mut heard, step_down("2", "ab"), 200);
        assert_eq!((word(&heard, 259), word(&heard, 260)), (Some("stepped-down"), None));
        // Read once more, it is the same request.
        take(&mut heard, step_down("2", "ab"), 250);
        assert_eq!(word(&heard, 260), None);

        take(&mut heard, transfer("3", "ab"), 300);
        assert_eq!(word(&heard, 300), None, "it is to take the lease");
        let over = 301 + transfer_takes(&timing()).as_secs();
        assert_eq!((heard.called(at(300)), heard.called(at(over))), (Some(&order("3")), None));
        take(&mut heard, transfer("4", "another"), 400);
        assert_eq!(heard.called(at(400)), None);
        let over = 401 + transfer_takes(&timing()).as_secs();
        assert_eq!((word(&heard, 400), word(&heard, over)), (Some("transferring"), None));
    }

    #[test]
    fn a_node_stays_out_whatever_is_asked_of_others_unless_it_is_to_lead() {
        let mut heard = Heard::default();
        take(&mut heard, Steering::default(), 1);
        take(&mut heard, step_down("1", "ab"), 100);
        take(&mut heard, step_down("2", "another"), 101);
        take(&mut heard, transfer("3", "another"), 102);
        assert_eq!((word(&heard, 159), word(&heard, 160)), (Some("stepped-down"), None));
        take(&mut heard, step_down("4", "ab"), 200);
        take(&mut heard, transfer("5", "ab"), 201);
        assert_eq!(word(&heard, 202), None);
    }

    #[test]
    fn a_request_from_before_the_start_is_over_and_a_suspension_is_not() {
        let mut heard = Heard::default();
        assert_eq!(heard.mark(), None);
        take(&mut heard, Steering { suspended: Some(order("0")), ..step_down("1", "ab") }, 100);
        assert_eq!(heard.mark(), Some("0/1"));
        assert_eq!(word(&heard, 100_000), Some("suspended"));
        take(&mut heard, step_down("1", "ab"), 101);
        assert_eq!(word(&heard, 102), None);
    }
}
