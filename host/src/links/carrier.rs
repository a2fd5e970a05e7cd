//! The process that carries a host's links. It can access neither the store nor a lease, and its messages are hints, so
//! a faulty process or a hostile peer costs only speed.
//!
//! Each peer either runs as the same user, or runs on another machine and has the key of a certificate that a node of
//! the election has announced. The host verifies the certificate. Peers are untrusted: connections, the time until the
//! hello, the length and rate of lines, and the queues are bounded, for each peer and in total. A peer that exceeds a
//! bound is cut off. Each link has a task that reads and writes (`attend`). [`Carrier`] decides, in one loop.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use baton_runtime::confine;
use baton_store::jitter::{between, doubled};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::attend::{ANSWERED_WITHIN, Event, Events, HELLO_WITHIN, attend};
use super::listeners::Listeners;
use super::tls::Identity;
use super::words::{Candidate, Leader, News, Order, Peer, Question, Said, Told, encode, next_line, read};
use super::{peers, sockets};

/// Name of the hidden command.
pub const CARRY_LINKS: &str = "carry-links";

const MAX_LINKS: usize = 1024;
/// Maximum number of unidentified peers of this machine, and separately of other machines.
const MAX_STRANGERS: usize = 64;
/// Minimum interval between accepted connections of this machine.
const ACCEPT_EVERY: Duration = Duration::from_millis(2);
/// Minimum interval between accepted connections of other machines, because a TLS handshake is expensive.
const ACCEPT_NETWORK_EVERY: Duration = Duration::from_millis(20);
/// Lifetime from which a link counts as a success, and resets the backoff.
const SUCCESS_AFTER: Duration = Duration::from_secs(10);
/// Number of consecutive failures before the first log line. The backoff until then exceeds the interval at which the
/// leader reads announcements, so a node that the leader does not know yet logs nothing.
const LOG_AFTER: u32 = 8;
/// Number of lines that may wait for a peer to read them. A peer with more is cut off.
const LINE_QUEUE: usize = 16;
const EVENT_QUEUE: usize = 256;
/// Minimum interval between `Look` messages to the host, per election. The messages in between are merged into one at
/// its end, because they may report a later write.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time at the end of the process for peers to receive the remaining lines.
const FLUSH_WITHIN: Duration = Duration::from_millis(200);
/// Backoff between attempts to reach the leader: initial and maximum delay.
const REDIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Runs the process until its host, the process `parent`, closes standard input, the socket to the host. If the host
/// has a certificate for other machines, standard output is the listening socket for them.
#[must_use]
pub fn carry_links(parent: u32, folder: Option<&Path>) -> ExitCode {
    match carry(parent, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host logs this once.
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry(parent: u32, folder: Option<&Path>) -> anyhow::Result<()> {
    if !baton_runtime::end_with(parent, c"baton-links")? {
        return Ok(());
    }
    confine::close_others()?;
    let host = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        host.set_nonblocking(true)?;
        let (from_host, mut to_host) = UnixStream::from_std(host)?.into_split();
        let (mut from_host, mut line) = (BufReader::with_capacity(super::words::LONGEST, from_host), Vec::new());
        let Some(first) = next_line(&mut from_host, &mut line).await? else { return Ok(()) };
        let Some(Order::Begin { node, incarnation, identity }) = read(first)? else {
            anyhow::bail!("the host did not send its name")
        };
        line.clear();
        let listener = match folder {
            Some(folder) => {
                // Relative paths keep socket addresses short: an address has room for about 100 bytes.
                sockets::make(folder)?;
                std::env::set_current_dir(folder)?;
                sockets::tidy_up(Path::new("."));
                Some(UnixListener::from_std(sockets::listen(Path::new("."), &incarnation)?)?)
            }
            None => None,
        };
        let (peers, peers_listener) = match identity {
            Some(identity) => {
                let listener = std::net::TcpListener::from(io::stdout().as_fd().try_clone_to_owned()?);
                let peers = Peers { acceptor: identity.acceptor()?, identity };
                (Some(peers), Some(TcpListener::from_std(listener)?))
            }
            None => (None, None),
        };
        confine::to_linking(peers.is_some())?;
        to_host.write_all(&encode(&News::Ready)).await?;
        let (events, mut happened) = mpsc::channel(EVENT_QUEUE);
        let mut carrier = Carrier {
            node,
            incarnation,
            events,
            to_host,
            has_folder: folder.is_some(),
            peers,
            links: BTreeMap::new(),
            strangers: BTreeMap::new(),
            questions: BTreeMap::new(),
            elections: BTreeMap::new(),
            tasks: JoinSet::new(),
            numbers: 0,
        };
        let (mut next_accept, mut next_accept_network) = (Instant::now(), Instant::now());
        loop {
            let accept = async {
                sleep_until(next_accept).await;
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            let accept_network = async {
                sleep_until(next_accept_network).await;
                match &peers_listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                order = next_line(&mut from_host, &mut line) => {
                    let Some(order) = order? else {
                        // Dropping the senders lets each task write its queued lines and then end.
                        carrier.links.clear();
                        let flush = async { while carrier.tasks.join_next().await.is_some() {} };
                        let _ = timeout(FLUSH_WITHIN, flush).await;
                        return Ok(());
                    };
                    let order = read(order)?;
                    line.clear();
                    if let Some(order) = order {
                        carrier.handle_order(order).await?;
                    }
                }
                Some((link, event)) = happened.recv() => carrier.handle_event(link, event).await?,
                // A panic of a task was already printed.
                Some(_) = carrier.tasks.join_next() => {}
                accepted = accept => {
                    next_accept = Instant::now() + ACCEPT_EVERY;
                    match accepted {
                        Ok((stream, _)) => carrier.accept_local(stream),
                        // For example, no file descriptors are left.
                        Err(_) => next_accept += HELLO_WITHIN,
                    }
                }
                accepted = accept_network => {
                    next_accept_network = Instant::now() + ACCEPT_NETWORK_EVERY;
                    match accepted {
                        Ok((stream, _)) => carrier.accept_network(stream),
                        Err(_) => next_accept_network += HELLO_WITHIN,
                    }
                }
            }
        }
    })
}

struct Carrier {
    node: String,
    incarnation: String,
    events: Events,
    to_host: tokio::net::unix::OwnedWriteHalf,
    /// True if hosts of this machine have their sockets here.
    has_folder: bool,
    /// None without links to other machines.
    peers: Option<Peers>,
    /// The queue of each link's task. The task ends once the queue is dropped.
    links: BTreeMap<u64, Link>,
    /// Links of peers that have connected and not sent their hello.
    strangers: BTreeMap<u64, Transport>,
    /// Links whose task waits for an answer of the host.
    questions: BTreeMap<u64, oneshot::Sender<Option<Peer>>>,
    elections: BTreeMap<String, Election>,
    tasks: JoinSet<()>,
    numbers: u64,
}

struct Link {
    lines: mpsc::Sender<Vec<u8>>,
    election: Option<String>,
    /// The node and the incarnation of a peer that has connected over the network.
    caller: Option<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transport {
    Socket,
    Network,
}

struct Peers {
    identity: Identity,
    acceptor: TlsAcceptor,
}

#[derive(Default)]
struct Election {
    candidate: Candidate,
    listeners: Listeners,
    /// The last renewal that the host reported, and the time of the report.
    last_renewal: Option<(Told, Instant)>,
    leader_link: Option<LeaderLink>,
    /// The time of the next `Look` to the host, or of the last one.
    next_look: Option<Instant>,
}

struct LeaderLink {
    leader: Leader,
    link: u64,
    linked: Option<Instant>,
    failures: u32,
}

impl Carrier {
    async fn handle_order(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Begin { .. } => {}
            Order::Want { election, leader, candidate } => {
                let known = self.elections.entry(election.clone()).or_default();
                known.candidate = candidate;
                let leader = leader.filter(|leader| leader.incarnation != self.incarnation);
                let same = known.leader_link.as_ref().map(|leader_link| &leader_link.leader.incarnation);
                if same == leader.as_ref().map(|leader| &leader.incarnation) {
                    if let Some((leader_link, leader)) = known.leader_link.as_mut().zip(leader) {
                        leader_link.leader = leader;
                        let linked = leader_link.linked.map(|_| leader_link.link);
                        linked.into_iter().for_each(|link| self.send_to_peer(link, &Said::Is(candidate)));
                    }
                    return Ok(());
                }
                if let Some(before) = known.leader_link.take() {
                    self.links.remove(&before.link);
                    if before.linked.is_some() {
                        let incarnation = before.leader.incarnation;
                        self.send_to_host(&News::Ended { election: election.clone(), incarnation }).await?;
                    }
                }
                if let Some(leader) = leader {
                    self.dial(election, leader, 0);
                }
            }
            Order::Tell { election, told } => self.tell_listeners(&election, told),
            Order::Answer { number, peer } => {
                // The task may have ended since it asked.
                drop(self.questions.remove(&number).map(|waits| waits.send(peer)));
            }
        }
        Ok(())
    }

    fn tell_listeners(&mut self, election: &str, told: Told) {
        let Some(known) = self.elections.get_mut(election) else { return };
        let to = if let Told::GivesUp { to } = &told { to.as_deref() } else { None };
        let places = known.listeners.places(to);
        let mut words: Vec<(u64, Said)> = places.into_iter().map(|(link, place)| (link, told.as_said(place))).collect();
        match told {
            Told::Look => words.extend(known.leader_link.iter().map(|leader_link| (leader_link.link, Said::Look))),
            Told::GivesUp { .. } => known.last_renewal = None,
            Told::Leads { .. } => known.last_renewal = Some((told, Instant::now())),
        }
        words.into_iter().for_each(|(link, said)| self.send_to_peer(link, &said));
    }

    /// Queues a message for a peer, and cuts the peer off if the queue is full. If the link's task has ended, the link
    /// stays: the peer's last messages are still on their way to the loop, and [`Event::Ended`] follows them.
    fn send_to_peer(&mut self, link: u64, said: &Said) {
        let is_full = |known: &Link| matches!(known.lines.try_send(encode(said)), Err(TrySendError::Full(_)));
        if self.links.get(&link).is_some_and(is_full) {
            self.links.remove(&link);
        }
    }

    async fn send_to_host(&mut self, news: &News) -> io::Result<()> {
        self.to_host.write_all(&encode(news)).await
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn accept_local(&mut self, stream: UnixStream) {
        if sockets::is_same_user(&stream)
            && let Some((link, waiting)) = self.admit(Transport::Socket)
        {
            let events = self.events.clone();
            self.tasks.spawn(async move {
                attend(link, stream, None, HELLO_WITHIN, waiting, &events).await;
                let _ = events.send((link, Event::Ended(None))).await;
            });
        }
    }

    fn accept_network(&mut self, stream: TcpStream) {
        let acceptor = self.peers.as_ref().map(|peers| peers.acceptor.clone());
        if let Some(acceptor) = acceptor
            && let Some((link, waiting)) = self.admit(Transport::Network)
        {
            self.tasks.spawn(peers::meet(
                link,
                stream,
                (acceptor, self.incarnation.clone()),
                waiting,
                self.events.clone(),
            ));
        }
    }

    fn admit(&mut self, over: Transport) -> Option<(u64, mpsc::Receiver<Vec<u8>>)> {
        let strangers = self.strangers.values().filter(|other| **other == over).count();
        if self.links.len() >= MAX_LINKS || strangers >= MAX_STRANGERS {
            return None;
        }
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(LINE_QUEUE));
        self.links.insert(link, Link { lines, election: None, caller: None });
        self.strangers.insert(link, over);
        Some((link, waiting))
    }

    fn dial(&mut self, election: String, leader: Leader, failures: u32) {
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(LINE_QUEUE));
        let Some(known) = self.elections.get_mut(&election) else { return };
        let Leader { incarnation, node } = leader.clone();
        let hello = Said::Hello {
            election: election.clone(),
            to: incarnation.clone(),
            node: Some(self.node.clone()),
            incarnation: Some(self.incarnation.clone()),
        };
        let candidate = known.candidate;
        known.leader_link = Some(LeaderLink { leader, link, linked: None, failures });
        self.links.insert(link, Link { lines, election: Some(election.clone()), caller: None });
        for said in [hello, Said::Is(candidate)] {
            self.send_to_peer(link, &said);
        }
        let (events, has_folder) = (self.events.clone(), self.has_folder);
        let identity = self.peers.as_ref().map(|peers| peers.identity.clone());
        self.tasks.spawn(async move {
            let mut why = None;
            if has_folder
                && let Ok(Ok(stream)) = timeout(HELLO_WITHIN, UnixStream::connect(&incarnation)).await
                && sockets::is_same_user(&stream)
            {
                attend(link, stream, None, HELLO_WITHIN, waiting, &events).await;
            } else if let Some(identity) = identity {
                let leader = Question { election, node, incarnation, wants_addresses: true };
                match peers::reach(link, leader, &identity, &events).await {
                    Ok(Some(stream)) => {
                        attend(link, stream, None, ANSWERED_WITHIN, waiting, &events).await;
                        why = Some("it does not respond, or does not accept this node".to_owned());
                    }
                    Ok(None) => {}
                    Err(reason) => why = Some(reason),
                }
            }
            let _ = events.send((link, Event::Ended(why))).await;
        });
    }

    async fn handle_event(&mut self, link: u64, event: Event) -> io::Result<()> {
        match event {
            Event::Dial(election) => {
                let leader_link = self.elections.get(&election).and_then(|known| known.leader_link.as_ref());
                // The host may follow another leader by now.
                if let Some(LeaderLink { leader, failures, .. }) =
                    leader_link.filter(|leader_link| leader_link.link == link)
                {
                    let (leader, failures) = (leader.clone(), *failures);
                    self.dial(election, leader, failures);
                }
                Ok(())
            }
            Event::Look(election) => self.send_to_host(&look_news(election)).await,
            Event::Asks(question, answer) => {
                // A link that was dropped since needs no answer.
                if !self.links.contains_key(&link) || !self.elections.contains_key(&question.election) {
                    return Ok(());
                }
                self.questions.insert(link, answer);
                self.send_to_host(&News::Asks { number: link, question }).await
            }
            Event::Ended(why) => self.handle_end(link, why).await,
            Event::Said(said) => match self.links.get(&link).map(|known| known.election.clone()) {
                None => Ok(()),
                Some(None) => self.handle_hello(link, said).await,
                Some(Some(election)) => self.handle_message(link, election, said).await,
            },
        }
    }

    async fn handle_end(&mut self, link: u64, why: Option<String>) -> io::Result<()> {
        self.strangers.remove(&link);
        self.links.remove(&link);
        self.questions.remove(&link);
        let mut news = Vec::new();
        for (election, known) in &mut self.elections {
            if known.listeners.remove(link) {
                news.push(listeners(election, known));
            }
            let Some(leader_link) = known.leader_link.as_mut().filter(|leader_link| leader_link.link == link) else {
                continue;
            };
            let incarnation = leader_link.leader.incarnation.clone();
            if let Some(since) = leader_link.linked.take() {
                if since.elapsed() >= SUCCESS_AFTER {
                    leader_link.failures = 0;
                }
                news.push(News::Ended { election: election.clone(), incarnation });
            } else if let Some(why) = why.clone().filter(|_| leader_link.failures >= LOG_AFTER) {
                news.push(News::Unreached {
                    election: election.clone(),
                    incarnation,
                    why: why.chars().take(200).collect(),
                });
            }
            let wait = doubled(REDIAL_BACKOFF, leader_link.failures);
            leader_link.failures = leader_link.failures.saturating_add(1);
            let (events, election) = (self.events.clone(), election.clone());
            self.tasks.spawn(async move {
                sleep(between(wait / 2, wait)).await;
                let _ = events.send((link, Event::Dial(election))).await;
            });
        }
        for news in news {
            self.send_to_host(&news).await?;
        }
        Ok(())
    }

    /// Handles the first message of a peer that has connected.
    async fn handle_hello(&mut self, link: u64, said: Said) -> io::Result<()> {
        let over = self.strangers.remove(&link);
        let Said::Hello { election, to, node, incarnation } = said else { return self.handle_end(link, None).await };
        if to != self.incarnation || !self.elections.contains_key(&election) {
            return self.handle_end(link, None).await;
        }
        let caller = incarnation.clone().zip(node.clone()).filter(|_| over == Some(Transport::Network));
        if caller.is_some() {
            // A caller has one link per election, so a new call replaces an older link.
            let is_other = |known: &Link| known.caller == caller && known.election.as_ref() == Some(&election);
            self.links.retain(|_, known| !is_other(known));
        }
        let Some(known) = self.elections.get_mut(&election) else { return Ok(()) };
        if let Some(link) = self.links.get_mut(&link) {
            (link.election, link.caller) = (Some(election.clone()), caller);
        }
        let hello = Said::Hello {
            election: election.clone(),
            to: incarnation.unwrap_or_else(|| to.clone()),
            node: Some(self.node.clone()),
            incarnation: Some(to),
        };
        let mut words = vec![hello];
        let mut news = None;
        if let Some(node) = node {
            if known.listeners.count() == 0 {
                // The host reports no renewals while it has no listeners, so this one is out of date. The host reports
                // a current one once it knows of this listener.
                known.last_renewal = None;
            }
            known.listeners.add(link, node);
            // The peer has not sent its candidacy yet. It gets its place with the next renewal.
            words.extend(known.last_renewal.as_ref().map(|(told, at)| told.later(at.elapsed()).as_said(None)));
            news = Some(listeners(&election, known));
        }
        words.iter().for_each(|said| self.send_to_peer(link, said));
        match news {
            Some(news) => self.send_to_host(&news).await,
            None => Ok(()),
        }
    }

    async fn handle_message(&mut self, link: u64, election: String, said: Said) -> io::Result<()> {
        let Some(known) = self.elections.get_mut(&election) else { return Ok(()) };
        let leader_link = known.leader_link.as_mut().filter(|leader_link| leader_link.link == link);
        let news = match (leader_link, said) {
            (_, Said::Look) => {
                let now = Instant::now();
                let at = known.next_look.map_or(now, |last| if last > now { last } else { now.max(last + LOOK_EVERY) });
                if known.next_look.replace(at) == Some(at) {
                    return Ok(());
                }
                if at > now {
                    let events = self.events.clone();
                    self.tasks.spawn(async move {
                        sleep_until(at).await;
                        let _ = events.send((link, Event::Look(election))).await;
                    });
                    return Ok(());
                }
                look_news(election)
            }
            (Some(leader_link), Said::Hello { incarnation, node, .. }) if leader_link.linked.is_none() => {
                let (Some(node), true) = (node, incarnation.as_ref() == Some(&leader_link.leader.incarnation)) else {
                    return self.handle_end(link, None).await;
                };
                leader_link.linked = Some(Instant::now());
                News::Linked { election, incarnation: leader_link.leader.incarnation.clone(), node }
            }
            (Some(leader_link), said @ (Said::Leads { .. } | Said::GivesUp { .. })) if leader_link.linked.is_some() => {
                News::Heard { election, from: leader_link.leader.incarnation.clone(), said }
            }
            (None, Said::Is(candidate)) => {
                known.listeners.is(link, candidate);
                return Ok(());
            }
            _ => return self.handle_end(link, None).await,
        };
        self.send_to_host(&news).await
    }
}

fn look_news(election: String) -> News {
    News::Heard { election, from: String::new(), said: Said::Look }
}

fn listeners(election: &str, known: &Election) -> News {
    News::Listeners { election: election.to_owned(), count: u32::try_from(known.listeners.count()).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn carrier(events: Events, to_host: tokio::net::unix::OwnedWriteHalf) -> Carrier {
        Carrier {
            node: "web-1".to_owned(),
            incarnation: "a1".to_owned(),
            events,
            to_host,
            has_folder: true,
            peers: None,
            links: BTreeMap::new(),
            strangers: BTreeMap::new(),
            questions: BTreeMap::new(),
            elections: BTreeMap::from([("job".to_owned(), Election::default())]),
            tasks: JoinSet::new(),
            numbers: 0,
        }
    }

    /// A command sends `Look` and disconnects at once.
    #[tokio::test]
    async fn hint_is_delivered_when_peer_disconnects_before_hello() {
        let (host, own) = UnixStream::pair().unwrap();
        let (events, _happened) = mpsc::channel(EVENT_QUEUE);
        let (reads, to_host) = own.into_split();
        let mut carrier = carrier(events, to_host);
        let (lines, unread) = mpsc::channel(1);
        drop(unread);
        carrier.links.insert(1, Link { lines, election: None, caller: None });
        let hello = Said::Hello { election: "job".to_owned(), to: "a1".to_owned(), node: None, incarnation: None };
        for event in [Event::Said(hello), Event::Said(Said::Look), Event::Ended(None)] {
            carrier.handle_event(1, event).await.unwrap();
        }
        assert!(carrier.links.is_empty());
        drop((carrier, reads));
        let (mut told, mut line) = (BufReader::new(host), Vec::new());
        let news = next_line(&mut told, &mut line).await.unwrap().map(|news| read(news).unwrap());
        assert!(matches!(news, Some(Some(News::Heard { said: Said::Look, .. }))), "{news:?}");
    }

    /// The last `Look` may report the last write.
    #[tokio::test]
    async fn last_of_many_looks_is_forwarded_after_the_interval() {
        let (host, own) = UnixStream::pair().unwrap();
        let (events, mut happened) = mpsc::channel(EVENT_QUEUE);
        let (reads, to_host) = own.into_split();
        let mut carrier = carrier(events, to_host);
        let since = Instant::now();
        for link in 0..9 {
            carrier.handle_message(link, "job".to_owned(), Said::Look).await.unwrap();
        }
        let (link, event) = happened.recv().await.unwrap();
        assert!(since.elapsed() >= LOOK_EVERY, "{:?}", since.elapsed());
        carrier.handle_event(link, event).await.unwrap();
        assert!(happened.try_recv().is_err() && carrier.tasks.join_next().await.is_some() && carrier.tasks.is_empty());
        drop((carrier, reads));
        let (mut told, mut line, mut times) = (BufReader::new(host), Vec::new(), 0);
        while let Some(news) = next_line(&mut told, &mut line).await.unwrap() {
            assert!(matches!(read(news).unwrap(), Some(News::Heard { said: Said::Look, .. })));
            times += 1;
            line.clear();
        }
        assert_eq!(times, 2);
    }
}
