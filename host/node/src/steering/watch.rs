//! The node's side of steering: reads operators' commands, and determines whether the node is ineligible and why.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::jitter::between;
use baton_election::timing::LONGEST_POLL;
use baton_election::{
    Chosen, ElectionName, Eligibility, Ineligibility, IneligibleCause, ScheduleCommands, SteeringVersion, StoreError,
    Time, Timing, Version,
};
use baton_store::steering::{Ask, CommandOrigin, LONGEST_STEP_DOWN, Request, SetProgress, Steering, Trigger};
use baton_store::{ChangeNotifier, ObjectStore, Reading, VersionedObject};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::telemetry::{Event, LAST_LINES, Log, hand_off};

/// Shortest and longest interval between reads.
const POLL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(4));
const OUTAGE: Duration = Duration::from_secs(15);
const READ_WITHIN: Duration = Duration::from_secs(4);
/// Pause after a failed read while a takeover is waiting for the read.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A node and its incarnation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeIncarnation {
    /// The node's id.
    pub node: String,
    /// The incarnation of the host.
    pub incarnation: String,
}

/// Follows the steering commands of one election for one node.
pub struct SteeringWatch {
    election: ElectionName,
    itself: NodeIncarnation,
    timing: Timing,
    store: Arc<dyn ObjectStore>,
    clock: Clock,
    log: Log,
    notifier: ChangeNotifier,
    reader: Mutex<Reader>,
    state: watch::Sender<SteeringState>,
}

#[derive(Default)]
struct Reader {
    /// Reads are numbered in the order in which they start. `reads_begun` is the number of the read that started last.
    /// `latest_read` is the number of the latest read whose response was used.
    reads_begun: u64,
    latest_read: u64,
    /// The last reported error of a steering object that this node cannot parse.
    wrong: Option<String>,
    /// The last reported error of a failed read.
    unreadable: Option<String>,
}

/// The commands that apply to this node, as read so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SteeringState {
    version: SteeringVersion,
    /// The mark that identifies the commands in the last read. `None` before the first read.
    mark: Option<String>,
    suspended: Option<CommandOrigin>,
    trigger: Option<Trigger>,
    progress: Option<SetProgress>,
    request: Option<String>,
    /// The requests to step down, each with the time at which it expires. The key is the shard, or `None` in an
    /// election without shards.
    stepped_down: BTreeMap<Option<u8>, (CommandOrigin, Time)>,
    /// The shard to which the last transfer applies; `None` in an election without shards.
    shard: Option<u8>,
    /// The transfer to another node: the command's origin, the target, and the time until which the transfer makes this
    /// node ineligible.
    transfer: Option<(CommandOrigin, String, Time)>,
    /// The transfer to this node: the command's origin, and the time at which the transfer expires.
    called: Option<(CommandOrigin, Time)>,
}

/// Longest time for which a transfer makes all nodes except its target ineligible: the duration of a hand-off and two
/// polling intervals.
#[must_use]
pub fn longest_transfer(timing: &Timing) -> Duration {
    hand_off(timing).saturating_add(2 * LONGEST_POLL)
}

/// Time for which a leader stays ineligible after it has released the lease for a transfer. If no other node acquires
/// the lease, the election has no leader for at most this time plus one polling interval.
pub const TAKEN_WITHIN: Duration = LAST_LINES.saturating_add(LONGEST_POLL.saturating_mul(3));

impl Default for SteeringState {
    fn default() -> Self {
        Self {
            version: SteeringVersion::Unread,
            mark: None,
            suspended: None,
            trigger: None,
            progress: None,
            request: None,
            stepped_down: BTreeMap::new(),
            shard: None,
            transfer: None,
            called: None,
        }
    }
}

impl SteeringState {
    /// Returns the conditions under which a node with this priority may lead the shard, if any. `drained` is the reason
    /// why the node is drained for maintenance, if it is.
    #[must_use]
    pub fn eligibility(&self, shard: Option<u8>, priority: u8, drained: Option<&str>) -> Eligibility {
        let applies = self.shard == shard;
        let ineligible = |order: &CommandOrigin, cause, reason: &str, until, after_release| Ineligibility {
            id: order.id.clone(),
            cause,
            reason: format!("{reason} by {}", order.told()),
            until,
            after_release,
        };
        let suspended =
            self.suspended.as_ref().map(|order| ineligible(order, IneligibleCause::Suspended, "suspended", None, None));
        let stepped_down = self.stepped_down.get(&shard).map(|(order, until)| {
            ineligible(order, IneligibleCause::SteppedDown, "asked to step down", Some(*until), None)
        });
        let transfer = self.transfer.as_ref().filter(|_| applies).map(|(order, to, until)| {
            let cause = IneligibleCause::Transferring { to: to.clone() };
            ineligible(order, cause, &format!("asked to transfer to {to}"), Some(*until), Some(TAKEN_WITHIN))
        });
        let chosen = self.called.as_ref().filter(|_| applies);
        Eligibility {
            maintenance: drained.map(str::to_owned),
            commands: [suspended, stepped_down, transfer].into_iter().flatten().collect(),
            chosen: chosen.map(|(order, until)| Chosen { until: *until, by_operator: !order.is_preference() }),
            priority,
            yields: false,
            steering: self.version.clone(),
        }
    }

    /// Returns the latest triggered run, if any.
    #[must_use]
    pub fn trigger(&self) -> Option<&Trigger> {
        self.trigger.as_ref()
    }

    /// Returns the commands about scheduled runs.
    #[must_use]
    pub fn schedule_commands(&self) -> ScheduleCommands {
        // The store is untrusted: ignore a damaged progress.
        let progress = self.progress.as_ref().and_then(|set| set.progress.parse().ok()).map(Box::new);
        let trigger = self.trigger.as_ref().map(|trigger| Duration::from_secs(trigger.due_s));
        ScheduleCommands { progress, trigger }
    }

    /// Returns the origin of the command that caused the ineligibility, if this state contains that command.
    #[must_use]
    pub fn origin(&self, ineligibility: &Ineligibility) -> Option<&CommandOrigin> {
        let stepped_down = self.stepped_down.values().map(|(order, _)| order);
        let transfer = self.transfer.as_ref().map(|(order, ..)| order);
        let orders = self.suspended.iter().chain(stepped_down).chain(transfer);
        orders.into_iter().find(|order| order.id == ineligibility.id)
    }

    /// Returns the mark that identifies the commands in the last read. Returns `None` before the first read.
    #[must_use]
    pub fn mark(&self) -> Option<&str> {
        self.mark.as_deref()
    }

    fn take(&mut self, steering: Steering, itself: &NodeIncarnation, timing: &Timing, now: Time) {
        let is_first = self.mark.replace(steering.mark()).is_none();
        (self.suspended, self.trigger, self.progress) = (steering.suspended, steering.trigger, steering.progress);
        let Some(Request { order, ask, shard }) = steering.request else { return };
        if self.request.replace(order.id.clone()).as_ref() == Some(&order.id) || is_first {
            return;
        }
        (self.shard, self.transfer, self.called) = (shard, None, None);
        match ask {
            Ask::StepDown { node, incarnation, for_s } if itself.is(&node, &incarnation) => {
                let until = now + Duration::from_secs(for_s).min(LONGEST_STEP_DOWN);
                self.stepped_down.insert(shard, (order, until));
            }
            Ask::StepDown { .. } => {}
            Ask::Transfer { node, incarnation } if itself.is(&node, &incarnation) => {
                self.stepped_down.remove(&shard);
                self.called = Some((order, now + longest_transfer(timing)));
            }
            Ask::Transfer { node, .. } => self.transfer = Some((order, node, now + longest_transfer(timing))),
        }
    }
}

impl NodeIncarnation {
    pub(super) fn is(&self, node: &str, incarnation: &str) -> bool {
        (self.node.as_str(), self.incarnation.as_str()) == (node, incarnation)
    }
}

impl SteeringWatch {
    /// Creates the watch. Does not read anything yet.
    pub fn new(
        election: ElectionName,
        (itself, timing): (NodeIncarnation, Timing),
        store: Arc<dyn ObjectStore>,
        clock: Clock,
        log: Log,
        notifier: ChangeNotifier,
    ) -> Self {
        let (reader, state) = (Mutex::default(), watch::channel(SteeringState::default()).0);
        Self { election, itself, timing, store, clock, log, notifier, reader, state }
    }

    /// Subscribes to commands.
    pub fn states(&self) -> watch::Receiver<SteeringState> {
        self.state.subscribe()
    }

    /// Reads the commands periodically, until the future is dropped.
    pub async fn watch(self: Arc<Self>) {
        let (mut wait, mut notifier) = (POLL, self.notifier.reader());
        loop {
            let began = Instant::now();
            let read = timeout(READ_WITHIN, self.read_once()).await;
            let is_read = matches!(read, Ok(Ok(())));
            // Do not report an outage of the store here: the supervisor reports it.
            let planned = if is_read {
                wait = POLL;
                notifier.next(Instant::now(), POLL)
            } else {
                wait = (wait.1.min(OUTAGE), (wait.1 * 2).min(OUTAGE));
                Instant::now() + between(wait.0, wait.1)
            };
            notifier.until(planned, began).await;
        }
    }

    /// Returns true if the last read returned this version. `None` stands for a missing steering object.
    pub fn has_read(&self, version: Option<&Version>) -> bool {
        self.state.borrow().version.is(version)
    }

    /// Reads the commands now. Returns true if the read succeeds in time. Otherwise, the commands from the last
    /// successful read stay in force. A node calls this before it acquires a lease that may have been released because
    /// of a command.
    pub async fn read_within(&self, within: Duration) -> bool {
        let read_once = async {
            loop {
                match self.read_once().await {
                    Ok(()) => return true,
                    Err(StoreError::Unknown(_)) => sleep(RETRY_AFTER).await,
                    Err(_) => return false,
                }
            }
        };
        timeout(within, read_once).await.unwrap_or(false)
    }

    async fn read_once(&self) -> Result<(), StoreError> {
        let (known, number) = {
            let mut reader = self.reader();
            reader.reads_begun += 1;
            (self.state.borrow().version.clone(), reader.reads_begun)
        };
        let known = if let SteeringVersion::Read(version) = &known { Some(version) } else { None };
        let reading = self.store.read(VersionedObject::Steering, &self.election, known).await;
        let mut reader = self.reader();
        let reading = match reading {
            Err(error) => {
                // Report an error that does not go away by itself, but only after one read has succeeded.
                if let StoreError::Misconfigured(why) = &error
                    && self.state.borrow().mark.is_some()
                {
                    let why = format!(
                        "cannot read steering commands: {why}; the last command read stays in force on this \
                                 node"
                    );
                    self.report_once(why, &mut reader.unreadable);
                }
                return Err(error);
            }
            Ok(reading) => reading,
        };
        reader.unreadable = None;
        // Reads may overlap. The response to the read that began later takes precedence.
        if number <= reader.latest_read {
            return Ok(());
        }
        reader.latest_read = number;
        let (was_known, mut is_news) = (self.state.borrow().mark.is_some(), false);
        let (version, steering) = match reading {
            Reading::Unchanged => return Ok(()),
            Reading::Nothing => (SteeringVersion::Absent, Ok(Steering::default())),
            Reading::Found(version, content) => {
                is_news = was_known;
                (SteeringVersion::Read(version), Steering::decode(&content))
            }
        };
        let now = self.clock.now();
        self.state.send_if_modified(|state| {
            let before = state.clone();
            state.version = version;
            if let Ok(steering) = &steering {
                state.take(steering.clone(), &self.itself, &self.timing, now);
            }
            *state != before
        });
        match steering {
            Ok(_) => {
                reader.wrong = None;
                // This node's first read does not notify the other nodes, because the commands may be old.
                if is_news {
                    self.notifier.found();
                }
            }
            Err(error) => {
                let error = format!(
                    "{error}; until nodes can read the steering commands again, the last command read \
                                     stays in force on this node"
                );
                self.report_once(error, &mut reader.wrong);
            }
        }
        Ok(())
    }

    fn report_once(&self, error: String, last_reported: &mut Option<String>) {
        if last_reported.as_ref() != Some(&error) {
            self.log.emit(None, Event::Error { error: error.clone() });
            *last_reported = Some(error);
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

    fn itself(incarnation: &str) -> NodeIncarnation {
        NodeIncarnation { node: "web-1".to_owned(), incarnation: incarnation.to_owned() }
    }

    fn timing() -> Timing {
        let second = Duration::from_secs(1);
        Timing::new(15 * second, (second, 60 * second), 5 * second, 64 << 20).unwrap()
    }

    fn at(seconds: u64) -> Time {
        Time(Duration::from_secs(seconds))
    }

    fn order(id: &str) -> CommandOrigin {
        let [id, by, at] = [id, "ann@desk", "2026-11-21T12:00:00Z"].map(str::to_owned);
        CommandOrigin { id, by, at, reason: None }
    }

    fn asks(id: &str, ask: Ask) -> Steering {
        Steering { request: Some(Request { order: order(id), ask, shard: None }), ..Steering::default() }
    }

    fn step_down(id: &str, incarnation: &str) -> Steering {
        let NodeIncarnation { node, incarnation } = itself(incarnation);
        asks(id, Ask::StepDown { node, incarnation, for_s: 60 })
    }

    fn word(state: &SteeringState, now: u64) -> Option<&'static str> {
        let applies = |one: &Ineligibility| one.until.is_none_or(|until| at(now) < until);
        state.eligibility(None, 0, None).commands.into_iter().find(applies).map(|one| one.cause.word())
    }

    fn is_chosen(state: &SteeringState, now: u64) -> bool {
        state.eligibility(None, 0, None).chosen.is_some_and(|chosen| at(now) < chosen.until && chosen.by_operator)
    }

    fn take(state: &mut SteeringState, steering: Steering, now: u64) {
        state.take(steering, &itself("ab"), &timing(), at(now));
    }

    fn transfer(id: &str, incarnation: &str) -> Steering {
        let NodeIncarnation { node, incarnation } = itself(incarnation);
        asks(id, Ask::Transfer { node, incarnation })
    }

    #[tokio::test]
    async fn only_the_version_read_last_is_known() {
        let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere: Box<dyn AsFd + Send> = Box::new(std::fs::File::create("/dev/null").unwrap());
        let (log, _writer) = Log::start(style, &NodeId::new("web-1").unwrap(), nowhere).unwrap();
        let job = ElectionName::new("job").unwrap();
        let ours: Arc<dyn ObjectStore> = Arc::new(store.clone());
        let steering_watch = SteeringWatch::new(
            job.clone(),
            (itself("ab"), timing()),
            ours,
            Clock::default(),
            log,
            ChangeNotifier::default(),
        );
        assert!(!steering_watch.has_read(None), "nothing was read yet, not even that there is no object");
        let second = Duration::from_secs(1);
        assert!(steering_watch.read_within(second).await && steering_watch.has_read(None));
        let mut version = None;
        for content in [
            asks("1", Ask::StepDown { node: "a".into(), incarnation: "b".into(), for_s: 1 }).encode(),
            Bytes::from_static(b"spoilt"),
        ] {
            version = Some(store.write(VersionedObject::Steering, &job, version.as_ref(), content).await.unwrap());
            assert!(!steering_watch.has_read(version.as_ref()));
            assert!(
                steering_watch.read_within(second).await
                    && steering_watch.has_read(version.as_ref())
                    && !steering_watch.has_read(None)
            );
        }
        ObjectStore::delete(&store, VersionedObject::Steering, &job, &version.unwrap()).await.unwrap();
        assert!(!steering_watch.has_read(None));
        assert!(steering_watch.read_within(second).await && steering_watch.has_read(None));
    }

    #[test]
    fn request_applies_to_the_named_incarnation_from_its_first_read() {
        let mut state = SteeringState::default();
        take(&mut state, Steering::default(), 1);
        take(&mut state, step_down("1", "another"), 100);
        assert_eq!(word(&state, 101), None, "another start of the node was meant");
        take(&mut state, step_down("2", "ab"), 200);
        assert_eq!((word(&state, 259), word(&state, 260)), (Some("stepped-down"), None));
        // The node reads the same request again. This changes nothing.
        take(&mut state, step_down("2", "ab"), 250);
        assert_eq!(word(&state, 260), None);

        take(&mut state, transfer("3", "ab"), 300);
        assert_eq!(word(&state, 300), None, "the node itself is the target");
        let over = 301 + longest_transfer(&timing()).as_secs();
        assert_eq!((is_chosen(&state, 300), is_chosen(&state, over)), (true, false));
        take(&mut state, transfer("4", "another"), 400);
        assert!(!is_chosen(&state, 400));
        let over = 401 + longest_transfer(&timing()).as_secs();
        assert_eq!((word(&state, 400), word(&state, over)), (Some("transferring"), None));
    }

    #[test]
    fn only_a_transfer_to_the_node_ends_its_step_down() {
        let mut state = SteeringState::default();
        take(&mut state, Steering::default(), 1);
        take(&mut state, step_down("1", "ab"), 100);
        take(&mut state, step_down("2", "another"), 101);
        take(&mut state, transfer("3", "another"), 102);
        assert_eq!((word(&state, 159), word(&state, 160)), (Some("stepped-down"), None));
        take(&mut state, step_down("4", "ab"), 200);
        take(&mut state, transfer("5", "ab"), 201);
        assert_eq!(word(&state, 202), None);
    }

    #[test]
    fn suspension_outlives_a_restart_but_a_request_does_not() {
        let mut state = SteeringState::default();
        assert_eq!(state.mark(), None);
        take(&mut state, Steering { suspended: Some(order("0")), ..step_down("1", "ab") }, 100);
        assert_eq!(state.mark(), Some("0/1"));
        assert_eq!(word(&state, 100_000), Some("suspended"));
        take(&mut state, step_down("1", "ab"), 101);
        assert_eq!(word(&state, 102), None);
    }
}
