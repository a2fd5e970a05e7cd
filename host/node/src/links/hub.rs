//! The hub is one loop that decides which peers are linked, what is sent to them, and which hints an election receives.
//!
//! A peer on this machine runs as the same user. A peer on another machine has presented a certificate that a node of
//! the election has announced. The peer has also proved that it has the certificate's key. All peers are untrusted.
//! Limits apply to each peer and to all peers together: the number of connections, the time until the hello, the length
//! and rate of lines, and the number of unread lines. The hub disconnects a peer that exceeds a limit. Each link has a
//! task that reads and writes (`link`); the hub makes all decisions.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use baton_base::escape::escape;
use baton_base::jitter::{between, doubled};
use baton_election::{ElectionName, Hint};
use baton_store::ChangeNotifier;
use futures::FutureExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::link::{self, Budget, Caller, Event, Events, HELLO_WITHIN, LOOKED_UP_WITHIN};
use super::listeners::Listeners;
use super::peers::{self, Network};
use super::sockets::{self, SocketFolder};
use super::wire::{Candidacy, Leader, LeaderMessage, PeerMessage, PeerQuery, encode};
use super::{LinkSettings, Order, OrderKind};
use crate::telemetry::{ElectionTracker, Event as LogEvent, Log};

/// Maximum number of strangers on each transport (local sockets, network). A stranger is a peer that has connected but
/// has not sent its hello yet.
const MAX_STRANGERS: usize = 64;
/// Minimum interval between accepted connections from this machine.
const ACCEPT_EVERY: Duration = Duration::from_millis(2);
/// Minimum interval between accepted network connections, each of which costs a TLS handshake.
const ACCEPT_NETWORK_EVERY: Duration = Duration::from_millis(20);
/// Rate limit for messages: the hub handles a burst of this many messages, and then one more message per interval. The
/// limit bounds the CPU time that all peers together can use.
const MESSAGES: (u32, Duration) = (512, Duration::from_millis(1));
/// Maximum number of tasks that still run after their links have been removed. The task of a removed link ends once its
/// last reads and writes are done.
const ENDING_TASKS: usize = 64;
/// Minimum lifetime of a successful link. A successful link resets the redial backoff.
const SUCCESS_AFTER: Duration = Duration::from_secs(10);
/// Consecutive dial failures before the first log line. A leader rejects a new node until the leader has read the
/// node's announcement. With the backoff, this many failures take longer than that read.
const LOG_AFTER: u32 = 8;
/// Capacity of each link's queue of outgoing lines. The hub disconnects a peer whose queue is full.
const LINE_QUEUE: usize = 16;
/// Capacity of the hub's queue for the events of all links together.
const EVENT_QUEUE: usize = 256;
/// Minimum interval at which the hub acts on the `Look` messages of an election. Each `Look` makes this host read the
/// store again. If a `Look` arrives sooner, the hub delays the message instead of dropping it, because the message may
/// report a later write.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time that peers have at shutdown to read the remaining lines.
const FLUSH_WITHIN: Duration = Duration::from_millis(200);
const REDIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
const MAX_REASON: usize = 200;

/// The channels and trackers to which a hub reports about one election. They outlive the hub: if a hub panics, the next
/// hub uses the same sinks.
pub(super) struct ElectionSinks {
    pub(super) hints: mpsc::Sender<Hint>,
    pub(super) listened: tokio::sync::watch::Sender<bool>,
    pub(super) notifier: ChangeNotifier,
    pub(super) tracker: Arc<ElectionTracker>,
    pub(super) log: Log,
    /// The incarnation and the node of the linked leader.
    pub(super) linked: Option<(String, String)>,
    /// Incarnation of the leader that was last logged as unreachable.
    pub(super) unreachable: Option<String>,
}

impl ElectionSinks {
    fn hear(&self, hint: Hint) {
        self.tracker.record_hint();
        // If the queue is full, drop the hint: it would arrive late anyway.
        let _ = self.hints.try_send(hint);
    }

    fn look(&self) {
        self.notifier.look();
    }

    fn report_listeners(&self, count: usize) {
        self.tracker.set_listeners(u32::try_from(count).unwrap_or(u32::MAX));
        self.listened.send_if_modified(|listened| std::mem::replace(listened, count > 0) != (count > 0));
    }

    fn report_link(&mut self, incarnation: String, node: String) {
        self.report_end();
        self.tracker.set_link(Some(node.clone()));
        self.log.emit(None, LogEvent::Link { leader: node.clone(), up: true });
        self.unreachable = None;
        self.linked = Some((incarnation, node));
    }

    /// Logs at most once per incarnation of the leader.
    fn report_unreachable(&mut self, incarnation: &str, why: &str) {
        if self.unreachable.as_deref() == Some(incarnation) {
            return;
        }
        self.unreachable = Some(incarnation.to_owned());
        let why: String = why.chars().take(MAX_REASON).collect();
        let error = format!(
            "cannot reach the leader over the network, so this node polls the store more often: {}",
            escape(&why)
        );
        self.log.emit(None, LogEvent::Error { error });
    }

    fn report_end(&mut self) {
        let Some((from, node)) = self.linked.take() else { return };
        self.tracker.set_link(None);
        self.log.emit(None, LogEvent::Link { leader: node, up: false });
        let _ = self.hints.try_send(Hint::Silent { from });
    }

    /// Reports that this node has no link to a leader and no listeners. Called after a hub has ended.
    pub(super) fn reset(&mut self) {
        self.report_end();
        self.report_listeners(0);
    }
}

pub(super) struct Hub<'a> {
    node: String,
    incarnation: String,
    events: Events,
    /// The folder with the sockets of this machine's hosts. `None` if links to hosts on this machine are disabled.
    folder: Option<Arc<SocketFolder>>,
    /// `None` if links to other machines are disabled.
    network: Option<Arc<Network>>,
    max_links: usize,
    /// The links, by number. Removing a link drops the sender of its task's queue, which ends the task.
    links: BTreeMap<u64, Link>,
    strangers: BTreeMap<u64, Transport>,
    elections: BTreeMap<String, Election<'a>>,
    tasks: JoinSet<()>,
    numbers: u64,
}

struct Link {
    lines: mpsc::Sender<Vec<u8>>,
    election: Option<String>,
    /// The incarnation and the node of a peer that has connected over the network.
    caller: Option<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Socket,
    Network,
}

struct Election<'a> {
    sinks: &'a mut ElectionSinks,
    candidacy: Candidacy,
    listeners: Listeners,
    last_renewal: Option<(LeaderMessage, Instant)>,
    leader_link: Option<LeaderLink>,
    /// Time of the next `Look`, if one is pending. Otherwise, the time of the last one.
    next_look: Option<Instant>,
}

struct LeaderLink {
    leader: Leader,
    link: u64,
    linked: Option<Instant>,
    failures: u32,
}

pub(super) struct HubListeners {
    pub(super) local: Option<UnixListener>,
    pub(super) network: Option<TcpListener>,
}

impl<'a> Hub<'a> {
    pub(super) fn new(
        (node, incarnation): (&str, &str),
        folder: Option<Arc<SocketFolder>>,
        network: Option<Arc<Network>>,
        max_links: usize,
        sinks: &'a mut BTreeMap<String, ElectionSinks>,
    ) -> (Self, mpsc::Receiver<(u64, Event)>) {
        let (events, queued) = mpsc::channel(EVENT_QUEUE);
        let elections = sinks.iter_mut().map(|(election, sinks)| {
            // Peers may have sent hints while no hub was listening, and those hints are lost. Read the election's
            // objects once to catch up.
            sinks.look();
            let election_state = Election {
                sinks,
                candidacy: Candidacy::default(),
                listeners: Listeners::default(),
                last_renewal: None,
                leader_link: None,
                next_look: None,
            };
            (election.clone(), election_state)
        });
        let hub = Self {
            node: node.to_owned(),
            incarnation: incarnation.to_owned(),
            events,
            folder,
            network,
            max_links,
            links: BTreeMap::new(),
            strangers: BTreeMap::new(),
            elections: elections.collect(),
            tasks: JoinSet::new(),
            numbers: 0,
        };
        (hub, queued)
    }

    /// Runs the links until the supervisors of all elections have ended.
    pub(super) async fn run(
        mut self,
        mut queued: mpsc::Receiver<(u64, Event)>,
        orders: &mut mpsc::Receiver<Order>,
        listeners: &HubListeners,
    ) {
        let (mut next_accept, mut next_accept_network) = (Instant::now(), Instant::now());
        let (mut messages, mut next_message) = (Budget::new(MESSAGES), Instant::now());
        loop {
            let accept = async {
                sleep_until(next_accept).await;
                match &listeners.local {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            let accept_network = async {
                sleep_until(next_accept_network).await;
                match &listeners.network {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            let event = async {
                sleep_until(next_message).await;
                queued.recv().await
            };
            tokio::select! {
                biased;
                order = orders.recv() => {
                    let Some(order) = order else {
                        // Dropping the senders makes each task write its queued lines and then end.
                        self.links.clear();
                        let flush = async { while self.tasks.join_next().await.is_some() {} };
                        let _ = timeout(FLUSH_WITHIN, flush).await;
                        return;
                    };
                    self.handle_order(order);
                }
                Some((link, event)) = event => {
                    if matches!(event, Event::Message(_)) && !messages.has_one_more() {
                        next_message = Instant::now() + MESSAGES.1;
                    }
                    self.handle_event(link, event);
                }
                // Ignore the result: if the task panicked, the panic message has already been printed.
                Some(_) = self.tasks.join_next() => {}
                accepted = accept => {
                    next_accept = Instant::now() + ACCEPT_EVERY;
                    match accepted {
                        Ok((stream, _)) => self.accept_local(stream),
                        // Accepting fails, for example, if no file descriptors are left. Wait longer before the next
                        // attempt.
                        Err(_) => next_accept += HELLO_WITHIN,
                    }
                }
                accepted = accept_network => {
                    next_accept_network = Instant::now() + ACCEPT_NETWORK_EVERY;
                    match accepted {
                        Ok((stream, _)) => self.accept_network(stream),
                        Err(_) => next_accept_network += HELLO_WITHIN,
                    }
                }
            }
        }
    }

    pub(super) fn handle_order(&mut self, Order { election, kind }: Order) {
        match kind {
            OrderKind::Settings(settings) => self.follow(election, settings),
            OrderKind::Tell(message) => self.tell_listeners(&election, message),
        }
    }

    fn follow(&mut self, election: String, LinkSettings { leader, candidacy }: LinkSettings) {
        let Some(known) = self.elections.get_mut(&election) else { return };
        known.candidacy = candidacy;
        let leader = leader.filter(|leader| leader.incarnation != self.incarnation);
        let same = known.leader_link.as_ref().map(|leader_link| &leader_link.leader.incarnation);
        if same == leader.as_ref().map(|leader| &leader.incarnation) {
            if let Some((leader_link, leader)) = known.leader_link.as_mut().zip(leader) {
                leader_link.leader = leader;
                let linked = leader_link.linked.map(|_| leader_link.link);
                linked.into_iter().for_each(|link| self.send(link, &PeerMessage::Is(candidacy)));
            }
            return;
        }
        if let Some(before) = known.leader_link.take() {
            known.sinks.report_end();
            self.links.remove(&before.link);
        }
        if let Some(leader) = leader {
            self.dial(election, leader, 0);
        }
    }

    fn tell_listeners(&mut self, election: &str, message: LeaderMessage) {
        let Some(known) = self.elections.get_mut(election) else { return };
        let to = if let LeaderMessage::GivesUp { to } = &message { to.as_deref() } else { None };
        let places = known.listeners.places(to);
        let mut messages: Vec<(u64, PeerMessage)> =
            places.into_iter().map(|(link, place)| (link, message.to_peer(place))).collect();
        match message {
            LeaderMessage::Look => {
                messages.extend(known.leader_link.iter().map(|leader_link| (leader_link.link, PeerMessage::Look)));
            }
            LeaderMessage::GivesUp { .. } => known.last_renewal = None,
            LeaderMessage::Leads { .. } => known.last_renewal = Some((message, Instant::now())),
        }
        messages.into_iter().for_each(|(link, message)| self.send(link, &message));
    }

    /// Queues a message, and disconnects the peer if its queue is full. If the link's task has ended, the link stays
    /// until the hub has handled the peer's last messages and [`Event::Ended`].
    fn send(&mut self, link: u64, message: &PeerMessage) {
        let is_full = |known: &Link| matches!(known.lines.try_send(encode(message)), Err(TrySendError::Full(_)));
        if self.links.get(&link).is_some_and(is_full) {
            self.links.remove(&link);
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn accept_local(&mut self, stream: UnixStream) {
        if sockets::is_same_user(&stream)
            && let Some((link, lines)) = self.admit(Transport::Socket)
        {
            let events = self.events.clone();
            self.spawn(link, async move {
                link::carry(link, stream, None, HELLO_WITHIN, lines, &events).await;
                None
            });
        }
    }

    fn accept_network(&mut self, stream: TcpStream) {
        if let Some(network) = self.network.clone()
            && let Some((link, lines)) = self.admit(Transport::Network)
        {
            let (to, events) = (self.incarnation.clone(), self.events.clone());
            self.spawn(link, async move {
                if let Some((stream, certificate)) = peers::accept(&network, stream).await {
                    let caller = Caller { certificate, to, network };
                    link::carry(link, stream, Some(caller), HELLO_WITHIN, lines, &events).await;
                }
                None
            });
        }
    }

    fn admit(&mut self, over: Transport) -> Option<(u64, mpsc::Receiver<Vec<u8>>)> {
        let strangers = self.strangers.values().filter(|other| **other == over).count();
        let tasks = self.tasks.len();
        if self.links.len() >= self.max_links || tasks >= self.max_links + ENDING_TASKS || strangers >= MAX_STRANGERS {
            return None;
        }
        let (link, (lines, queue)) = (self.number(), mpsc::channel(LINE_QUEUE));
        self.links.insert(link, Link { lines, election: None, caller: None });
        self.strangers.insert(link, over);
        Some((link, queue))
    }

    fn dial(&mut self, election: String, leader: Leader, failures: u32) {
        let (link, (lines, queue)) = (self.number(), mpsc::channel(LINE_QUEUE));
        let Some(known) = self.elections.get_mut(&election) else { return };
        let Leader { incarnation, node } = leader.clone();
        let hello = PeerMessage::Hello {
            election: election.clone(),
            to: incarnation.clone(),
            node: Some(self.node.clone()),
            incarnation: Some(self.incarnation.clone()),
        };
        let candidacy = known.candidacy;
        known.leader_link = Some(LeaderLink { leader, link, linked: None, failures });
        self.links.insert(link, Link { lines, election: Some(election.clone()), caller: None });
        for message in [hello, PeerMessage::Is(candidacy)] {
            self.send(link, &message);
        }
        let (events, folder, network) = (self.events.clone(), self.folder.clone(), self.network.clone());
        self.spawn(link, async move {
            let socket = folder.as_ref().map(|folder| folder.socket(&incarnation));
            let mut why = None;
            if let Some(socket) = socket
                && let Ok(Ok(stream)) = timeout(HELLO_WITHIN, UnixStream::connect(socket)).await
                && sockets::is_same_user(&stream)
            {
                link::carry(link, stream, None, HELLO_WITHIN, queue, &events).await;
            } else if let Some(network) = network {
                match peers::connect(&network, PeerQuery { election, node, incarnation }).await {
                    Ok(Some(stream)) => {
                        link::carry(link, stream, None, LOOKED_UP_WITHIN, queue, &events).await;
                        why = Some("it does not respond, or does not accept this node".to_owned());
                    }
                    Ok(None) => {}
                    Err(reason) => why = Some(reason),
                }
            }
            why
        });
    }

    /// Spawns a link's task. After the task has ended, even by a panic, the hub receives an event with the reason to
    /// log, if any.
    fn spawn(&mut self, link: u64, task: impl Future<Output = Option<String>> + Send + 'static) {
        let events = self.events.clone();
        self.tasks.spawn(async move {
            let why = AssertUnwindSafe(task).catch_unwind().await.unwrap_or_default();
            let _ = events.send((link, Event::Ended(why))).await;
        });
    }

    fn handle_event(&mut self, link: u64, event: Event) {
        match event {
            Event::Dial(election) => {
                let leader_link = self.elections.get(&election).and_then(|known| known.leader_link.as_ref());
                // The host may be following another leader by now.
                if let Some(LeaderLink { leader, failures, .. }) =
                    leader_link.filter(|leader_link| leader_link.link == link)
                {
                    let (leader, failures) = (leader.clone(), *failures);
                    self.dial(election, leader, failures);
                }
            }
            Event::Look(election) => {
                if let Some(known) = self.elections.get(&election) {
                    known.sinks.look();
                }
            }
            Event::Ended(why) => self.handle_end(link, why),
            Event::Message(message) => match self.links.get(&link).map(|known| known.election.clone()) {
                None => {}
                Some(None) => self.handle_hello(link, message),
                Some(Some(election)) => self.handle_message(link, election, message),
            },
        }
    }

    fn handle_end(&mut self, link: u64, why: Option<String>) {
        self.strangers.remove(&link);
        self.links.remove(&link);
        for (election, known) in &mut self.elections {
            if known.listeners.remove(link) {
                known.sinks.report_listeners(known.listeners.count());
            }
            let Some(leader_link) = known.leader_link.as_mut().filter(|leader_link| leader_link.link == link) else {
                continue;
            };
            if let Some(since) = leader_link.linked.take() {
                if since.elapsed() >= SUCCESS_AFTER {
                    leader_link.failures = 0;
                }
                known.sinks.report_end();
            } else if let Some(why) = why.as_ref().filter(|_| leader_link.failures >= LOG_AFTER) {
                known.sinks.report_unreachable(&leader_link.leader.incarnation, why);
            }
            let wait = doubled(REDIAL_BACKOFF, leader_link.failures);
            leader_link.failures = leader_link.failures.saturating_add(1);
            let (events, election) = (self.events.clone(), election.clone());
            self.tasks.spawn(async move {
                sleep(between(wait / 2, wait)).await;
                let _ = events.send((link, Event::Dial(election))).await;
            });
        }
    }

    fn handle_hello(&mut self, link: u64, message: PeerMessage) {
        let over = self.strangers.remove(&link);
        let PeerMessage::Hello { election, to, node, incarnation } = message else {
            return self.handle_end(link, None);
        };
        // A command, which has no node, names a group or a shard. The group's tasks listen for its first shard.
        let first_shard = format!("{}/0", ElectionName::group_in(&election));
        let is_of_group = node.is_none() && self.elections.contains_key(&first_shard);
        let election = if is_of_group { first_shard } else { election };
        if to != self.incarnation || !self.elections.contains_key(&election) {
            return self.handle_end(link, None);
        }
        let caller = incarnation.clone().zip(node.clone()).filter(|_| over == Some(Transport::Network));
        if caller.is_some() {
            // A caller has one link per election, so a new connection replaces an older one.
            let is_other = |known: &Link| known.caller == caller && known.election.as_ref() == Some(&election);
            self.links.retain(|_, known| !is_other(known));
        }
        let Some(known) = self.elections.get_mut(&election) else { return };
        if let Some(link) = self.links.get_mut(&link) {
            (link.election, link.caller) = (Some(election.clone()), caller);
        }
        let hello = PeerMessage::Hello {
            election,
            to: incarnation.unwrap_or_else(|| to.clone()),
            node: Some(self.node.clone()),
            incarnation: Some(to),
        };
        let mut messages = vec![hello];
        if let Some(node) = node {
            if known.listeners.count() == 0 {
                // The supervisor reports no renewals while no node listens, so the stored renewal is outdated. The
                // supervisor reports a current renewal once it knows about this listener.
                known.last_renewal = None;
            }
            known.listeners.add(link, node);
            // The peer has not sent its candidacy yet, so it has no place in the order of succession. The next message
            // about a renewal will contain its place.
            messages.extend(known.last_renewal.as_ref().map(|(message, at)| message.later(at.elapsed()).to_peer(None)));
            known.sinks.report_listeners(known.listeners.count());
        }
        messages.iter().for_each(|message| self.send(link, message));
    }

    fn handle_message(&mut self, link: u64, election: String, message: PeerMessage) {
        let Some(known) = self.elections.get_mut(&election) else { return };
        let leader_link = known.leader_link.as_mut().filter(|leader_link| leader_link.link == link);
        match (leader_link, message) {
            (_, PeerMessage::Look) => {
                let now = Instant::now();
                let at = known.next_look.map_or(now, |last| if last > now { last } else { now.max(last + LOOK_EVERY) });
                if known.next_look.replace(at) == Some(at) {
                    return;
                }
                if at <= now {
                    return known.sinks.look();
                }
                let events = self.events.clone();
                self.tasks.spawn(async move {
                    sleep_until(at).await;
                    let _ = events.send((link, Event::Look(election))).await;
                });
            }
            (Some(leader_link), PeerMessage::Hello { incarnation, node, .. }) if leader_link.linked.is_none() => {
                let (Some(node), true) = (node, incarnation.as_ref() == Some(&leader_link.leader.incarnation)) else {
                    return self.handle_end(link, None);
                };
                leader_link.linked = Some(Instant::now());
                known.sinks.report_link(leader_link.leader.incarnation.clone(), node);
            }
            (Some(LeaderLink { leader, linked: Some(_), .. }), PeerMessage::Leads { term, age_ms, place }) => {
                let age = Duration::from_millis(age_ms);
                known.sinks.hear(Hint::Leads { from: leader.incarnation.clone(), term, age, place });
            }
            (Some(LeaderLink { leader, linked: Some(_), .. }), PeerMessage::GivesUp { place }) => {
                known.sinks.hear(Hint::GivesUp { from: leader.incarnation.clone(), place });
            }
            (None, PeerMessage::Is(candidacy)) => known.listeners.is(link, candidacy),
            _ => self.handle_end(link, None),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::ChangeReader;

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::Format;

    fn sinks(notifier: &ChangeNotifier) -> BTreeMap<String, ElectionSinks> {
        let job = ElectionName::new("job").unwrap();
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        let sinks = ElectionSinks {
            hints: mpsc::channel(1).0,
            listened: tokio::sync::watch::channel(false).0,
            notifier: notifier.clone(),
            tracker: Arc::new(ElectionTracker::new(job, Duration::from_secs(15))),
            log,
            linked: None,
            unreachable: None,
        };
        BTreeMap::from([("job".to_owned(), sinks)])
    }

    async fn is_notified(reader: &mut ChangeReader) -> bool {
        timeout(Duration::ZERO, reader.reason(Instant::now())).await.is_ok()
    }

    /// An operator's command behaves like this peer: it sends `Look` and disconnects immediately.
    #[tokio::test]
    async fn hint_is_delivered_when_peer_disconnects_before_hello() {
        let notifier = ChangeNotifier::default();
        let mut sinks = sinks(&notifier);
        let (mut hub, _queued) = Hub::new(("web-1", "a1"), None, None, 10, &mut sinks);
        let mut reader = notifier.reader();
        let (lines, unread) = mpsc::channel(1);
        drop(unread);
        hub.links.insert(1, Link { lines, election: None, caller: None });
        let hello =
            PeerMessage::Hello { election: "job".to_owned(), to: "a1".to_owned(), node: None, incarnation: None };
        for event in [Event::Message(hello), Event::Message(PeerMessage::Look), Event::Ended(None)] {
            hub.handle_event(1, event);
        }
        assert!(hub.links.is_empty());
        assert!(is_notified(&mut reader).await);
    }

    /// The last `Look` must not be lost, because it may report the last write.
    #[tokio::test]
    async fn last_of_many_looks_is_forwarded_after_the_interval() {
        let notifier = ChangeNotifier::default();
        let mut sinks = sinks(&notifier);
        let (mut hub, mut queued) = Hub::new(("web-1", "a1"), None, None, 10, &mut sinks);
        let mut reader = notifier.reader();
        let since = Instant::now();
        for link in 0..9 {
            hub.handle_message(link, "job".to_owned(), PeerMessage::Look);
        }
        assert!(is_notified(&mut reader).await);
        let (link, event) = queued.recv().await.unwrap();
        assert!(since.elapsed() >= LOOK_EVERY, "{:?}", since.elapsed());
        assert!(!is_notified(&mut reader).await);
        hub.handle_event(link, event);
        assert!(is_notified(&mut reader).await);
        assert!(queued.try_recv().is_err() && hub.tasks.join_next().await.is_some() && hub.tasks.is_empty());
    }
}
