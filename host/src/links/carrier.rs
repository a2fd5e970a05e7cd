//! The process that carries a host's links. It has neither the store nor a lease, and its words are hints: whatever becomes
//! of it, or whoever speaks to it, costs speed and nothing else.
//!
//! Everybody who connects is of the same user, or of another machine and has the key of a certificate that a node of that
//! election has announced, which the host says. All are believed nothing: how many may connect, how soon they must say who
//! they are, how long a line is, how many come in a second and how many wait to be taken is bounded, for each and in all. A
//! peer beyond a bound is cut off. One task for each link reads and writes (`attend`); [`Carrier`] decides, in one loop.

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

/// The hidden command.
pub const CARRY_LINKS: &str = "carry-links";

/// Links at a time, of all elections.
const MOST_LINKS: usize = 1024;
/// Of these, those of this machine that have not said who they are, and as many of others.
const MOST_STRANGERS: usize = 64;
/// From one connection that is taken to the next, where many come.
const ACCEPT_EVERY: Duration = Duration::from_millis(2);
/// From one handshake with another machine to the next.
const SHAKE_EVERY: Duration = Duration::from_millis(20);
/// A link that lasted for so long was one. What ends sooner counts as a try that failed.
const LASTED: Duration = Duration::from_secs(10);
/// So many tries in a row that fail are worth a word. They take longer than a node may be one that the leader does not know
/// yet, since it reads only so often who has announced itself.
const SAID_AFTER: u32 = 8;
/// Lines that wait for a peer to read them: one that does not is cut off.
const UNREAD: usize = 16;
/// What the tasks of all links have said and nobody has taken.
const UNHEARD: usize = 256;
/// Of an election, the host is told no more often that there is something to read. What is said in between is told then: it
/// may be of something that was written since.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the end waits until everybody has taken what was to be told.
const ALL_TOLD: Duration = Duration::from_millis(200);
/// From one try to reach whom the host listens to, to the next: at first, and at the most.
const DIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The whole life of the process, which ends with its host, the process `parent`. Its standard input is its line to that,
/// and its standard output the socket at which hosts of other machines connect, where it has a certificate for these.
#[must_use]
pub fn carry_links(parent: u32, folder: Option<&Path>) -> ExitCode {
    match carry(parent, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host says it, once.
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
                // Sockets are found from here: a path to one is no longer than some hundred bytes.
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
        let (events, mut happened) = mpsc::channel(UNHEARD);
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
        let (mut next_accept, mut next_shake) = (Instant::now(), Instant::now());
        loop {
            let accept = async {
                sleep_until(next_accept).await;
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            let shake = async {
                sleep_until(next_shake).await;
                match &peers_listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                order = next_line(&mut from_host, &mut line) => {
                    let Some(order) = order? else {
                        // What waits for each is written, and then they end.
                        carrier.links.clear();
                        let all_told = async { while carrier.tasks.join_next().await.is_some() {} };
                        let _ = timeout(ALL_TOLD, all_told).await;
                        return Ok(());
                    };
                    let order = read(order)?;
                    line.clear();
                    if let Some(order) = order {
                        carrier.order(order).await?;
                    }
                }
                Some((link, event)) = happened.recv() => carrier.happened(link, event).await?,
                // What one has panicked with, it has said.
                Some(_) = carrier.tasks.join_next() => {}
                accepted = accept => {
                    next_accept = Instant::now() + ACCEPT_EVERY;
                    match accepted {
                        Ok((stream, _)) => carrier.accept(stream),
                        // No descriptors are left, say.
                        Err(_) => next_accept += HELLO_WITHIN,
                    }
                }
                accepted = shake => {
                    next_shake = Instant::now() + SHAKE_EVERY;
                    match accepted {
                        Ok((stream, _)) => carrier.meet(stream),
                        Err(_) => next_shake += HELLO_WITHIN,
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
    /// Whether hosts of this machine have their sockets here.
    has_folder: bool,
    /// None where there are no links with other machines.
    peers: Option<Peers>,
    /// What each link's task is to write: without that it ends.
    links: BTreeMap<u64, Link>,
    /// Those that have connected and not said who they are.
    strangers: BTreeMap<u64, Over>,
    /// Those whose task waits for what the host knows.
    questions: BTreeMap<u64, oneshot::Sender<Option<Peer>>>,
    elections: BTreeMap<String, Election>,
    /// Those that read and write, and those that wait for another try.
    tasks: JoinSet<()>,
    numbers: u64,
}

struct Link {
    lines: mpsc::Sender<Vec<u8>>,
    election: Option<String>,
    /// The incarnation of which node has connected over the network.
    caller: Option<(String, String)>,
}

/// What others connect over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Over {
    Socket,
    Network,
}

/// What links with other machines need.
struct Peers {
    identity: Identity,
    acceptor: TlsAcceptor,
}

#[derive(Default)]
struct Election {
    candidate: Candidate,
    listeners: Listeners,
    /// What the host told last of its renewals, and when that was.
    leads: Option<(Told, Instant)>,
    listens: Option<Listens>,
    /// When the host is told next, or was told last, that there is something to read.
    looks: Option<Instant>,
}

/// Whom the host listens to.
struct Listens {
    leader: Leader,
    link: u64,
    linked: Option<Instant>,
    /// Tries in a row that failed.
    failures: u32,
}

impl Carrier {
    async fn order(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Begin { .. } => {}
            Order::Want { election, leader, candidate } => {
                let known = self.elections.entry(election.clone()).or_default();
                known.candidate = candidate;
                let leader = leader.filter(|leader| leader.incarnation != self.incarnation);
                let same = known.listens.as_ref().map(|listens| &listens.leader.incarnation);
                if same == leader.as_ref().map(|leader| &leader.incarnation) {
                    if let Some((listens, leader)) = known.listens.as_mut().zip(leader) {
                        listens.leader = leader;
                        let linked = listens.linked.map(|_| listens.link);
                        linked.into_iter().for_each(|link| self.say(link, &Said::Is(candidate)));
                    }
                    return Ok(());
                }
                if let Some(before) = known.listens.take() {
                    self.links.remove(&before.link);
                    if before.linked.is_some() {
                        let incarnation = before.leader.incarnation;
                        self.tell(&News::Ended { election: election.clone(), incarnation }).await?;
                    }
                }
                if let Some(leader) = leader {
                    self.dial(election, leader, 0);
                }
            }
            Order::Tell { election, told } => self.tell_listeners(&election, told),
            Order::Answer { number, peer } => {
                // Whoever has ended waits no more.
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
            Told::Look => words.extend(known.listens.iter().map(|listens| (listens.link, Said::Look))),
            Told::GivesUp { .. } => known.leads = None,
            Told::Leads { .. } => known.leads = Some((told, Instant::now())),
        }
        words.into_iter().for_each(|(link, said)| self.say(link, &said));
    }

    /// Says it, unless the peer has not read so much that it is cut off. What one has said that ends by itself is on its way
    /// here, and its end comes last.
    fn say(&mut self, link: u64, said: &Said) {
        let is_full = |known: &Link| matches!(known.lines.try_send(encode(said)), Err(TrySendError::Full(_)));
        if self.links.get(&link).is_some_and(is_full) {
            self.links.remove(&link);
        }
    }

    async fn tell(&mut self, news: &News) -> io::Result<()> {
        self.to_host.write_all(&encode(news)).await
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn accept(&mut self, stream: UnixStream) {
        if sockets::is_same_user(&stream)
            && let Some((link, waiting)) = self.stranger(Over::Socket)
        {
            let events = self.events.clone();
            self.tasks.spawn(async move {
                attend(link, stream, None, HELLO_WITHIN, waiting, &events).await;
                let _ = events.send((link, Event::Ended(None))).await;
            });
        }
    }

    fn meet(&mut self, stream: TcpStream) {
        let acceptor = self.peers.as_ref().map(|peers| peers.acceptor.clone());
        if let Some(acceptor) = acceptor
            && let Some((link, waiting)) = self.stranger(Over::Network)
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

    /// Room for one more that has not said who it is, if there is any.
    fn stranger(&mut self, over: Over) -> Option<(u64, mpsc::Receiver<Vec<u8>>)> {
        let strangers = self.strangers.values().filter(|other| **other == over).count();
        if self.links.len() >= MOST_LINKS || strangers >= MOST_STRANGERS {
            return None;
        }
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(UNREAD));
        self.links.insert(link, Link { lines, election: None, caller: None });
        self.strangers.insert(link, over);
        Some((link, waiting))
    }

    fn dial(&mut self, election: String, leader: Leader, failures: u32) {
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(UNREAD));
        let Some(known) = self.elections.get_mut(&election) else { return };
        let Leader { incarnation, node } = leader.clone();
        let hello = Said::Hello {
            election: election.clone(),
            to: incarnation.clone(),
            node: Some(self.node.clone()),
            incarnation: Some(self.incarnation.clone()),
        };
        let candidate = known.candidate;
        known.listens = Some(Listens { leader, link, linked: None, failures });
        self.links.insert(link, Link { lines, election: Some(election.clone()), caller: None });
        for said in [hello, Said::Is(candidate)] {
            self.say(link, &said);
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

    async fn happened(&mut self, link: u64, event: Event) -> io::Result<()> {
        match event {
            Event::Dial(election) => {
                let listens = self.elections.get(&election).and_then(|known| known.listens.as_ref());
                // Only if nothing else is wanted by now.
                if let Some(Listens { leader, failures, .. }) = listens.filter(|listens| listens.link == link) {
                    let (leader, failures) = (leader.clone(), *failures);
                    self.dial(election, leader, failures);
                }
                Ok(())
            }
            Event::Look(election) => self.tell(&look(election)).await,
            Event::Asks(question, answer) => {
                // Who has been dropped meanwhile needs no answer.
                if !self.links.contains_key(&link) || !self.elections.contains_key(&question.election) {
                    return Ok(());
                }
                self.questions.insert(link, answer);
                self.tell(&News::Asks { number: link, question }).await
            }
            Event::Ended(why) => self.ended(link, why).await,
            Event::Said(said) => match self.links.get(&link).map(|known| known.election.clone()) {
                None => Ok(()),
                Some(None) => self.greeted(link, said).await,
                Some(Some(election)) => self.said(link, election, said).await,
            },
        }
    }

    async fn ended(&mut self, link: u64, why: Option<String>) -> io::Result<()> {
        self.strangers.remove(&link);
        self.links.remove(&link);
        self.questions.remove(&link);
        let mut news = Vec::new();
        for (election, known) in &mut self.elections {
            if known.listeners.remove(link) {
                news.push(listeners(election, known));
            }
            let Some(listens) = known.listens.as_mut().filter(|listens| listens.link == link) else { continue };
            let incarnation = listens.leader.incarnation.clone();
            if let Some(since) = listens.linked.take() {
                if since.elapsed() >= LASTED {
                    listens.failures = 0;
                }
                news.push(News::Ended { election: election.clone(), incarnation });
            } else if let Some(why) = why.clone().filter(|_| listens.failures >= SAID_AFTER) {
                news.push(News::Unreached {
                    election: election.clone(),
                    incarnation,
                    why: why.chars().take(200).collect(),
                });
            }
            let wait = doubled(DIAL, listens.failures);
            listens.failures = listens.failures.saturating_add(1);
            let (events, election) = (self.events.clone(), election.clone());
            self.tasks.spawn(async move {
                sleep(between(wait / 2, wait)).await;
                let _ = events.send((link, Event::Dial(election))).await;
            });
        }
        for news in news {
            self.tell(&news).await?;
        }
        Ok(())
    }

    /// Somebody who has connected says who that is.
    async fn greeted(&mut self, link: u64, said: Said) -> io::Result<()> {
        let over = self.strangers.remove(&link);
        let Said::Hello { election, to, node, incarnation } = said else { return self.ended(link, None).await };
        if to != self.incarnation || !self.elections.contains_key(&election) {
            return self.ended(link, None).await;
        }
        let caller = incarnation.clone().zip(node.clone()).filter(|_| over == Some(Over::Network));
        if caller.is_some() {
            // One that calls again has no other link any more, and nobody has more than one.
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
                // The host tells nothing while nobody listens. It tells this one once it knows of it.
                known.leads = None;
            }
            known.listeners.add(link, node);
            // It has said nothing of itself so far, and hears of its place with the next renewal.
            words.extend(known.leads.as_ref().map(|(told, at)| told.later(at.elapsed()).as_said(None)));
            news = Some(listeners(&election, known));
        }
        words.iter().for_each(|said| self.say(link, said));
        match news {
            Some(news) => self.tell(&news).await,
            None => Ok(()),
        }
    }

    async fn said(&mut self, link: u64, election: String, said: Said) -> io::Result<()> {
        let Some(known) = self.elections.get_mut(&election) else { return Ok(()) };
        let listens = known.listens.as_mut().filter(|listens| listens.link == link);
        let news = match (listens, said) {
            (_, Said::Look) => {
                let now = Instant::now();
                let at = known.looks.map_or(now, |last| if last > now { last } else { now.max(last + LOOK_EVERY) });
                if known.looks.replace(at) == Some(at) {
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
                look(election)
            }
            (Some(listens), Said::Hello { incarnation, node, .. }) if listens.linked.is_none() => {
                let (Some(node), true) = (node, incarnation.as_ref() == Some(&listens.leader.incarnation)) else {
                    return self.ended(link, None).await;
                };
                listens.linked = Some(Instant::now());
                News::Linked { election, incarnation: listens.leader.incarnation.clone(), node }
            }
            (Some(listens), said @ (Said::Leads { .. } | Said::GivesUp { .. })) if listens.linked.is_some() => {
                News::Heard { election, from: listens.leader.incarnation.clone(), said }
            }
            (None, Said::Is(candidate)) => {
                known.listeners.is(link, candidate);
                return Ok(());
            }
            // It says what is not for it to say.
            _ => return self.ended(link, None).await,
        };
        self.tell(&news).await
    }
}

fn look(election: String) -> News {
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

    /// A command says that there is something to read, and ends at once.
    #[tokio::test]
    async fn who_has_ended_before_it_is_greeted_is_heard_all_the_same() {
        let (host, own) = UnixStream::pair().unwrap();
        let (events, _happened) = mpsc::channel(UNHEARD);
        let (reads, to_host) = own.into_split();
        let mut carrier = carrier(events, to_host);
        let (lines, is_read_no_more) = mpsc::channel(1);
        drop(is_read_no_more);
        carrier.links.insert(1, Link { lines, election: None, caller: None });
        let hello = Said::Hello { election: "job".to_owned(), to: "a1".to_owned(), node: None, incarnation: None };
        for event in [Event::Said(hello), Event::Said(Said::Look), Event::Ended(None)] {
            carrier.happened(1, event).await.unwrap();
        }
        assert!(carrier.links.is_empty());
        drop((carrier, reads));
        let (mut told, mut line) = (BufReader::new(host), Vec::new());
        let news = next_line(&mut told, &mut line).await.unwrap().map(|news| read(news).unwrap());
        assert!(matches!(news, Some(Some(News::Heard { said: Said::Look, .. }))), "{news:?}");
    }

    /// What was said last may be of what was written last.
    #[tokio::test]
    async fn of_many_who_say_that_there_is_something_to_read_the_last_one_is_told_of_too() {
        let (host, own) = UnixStream::pair().unwrap();
        let (events, mut happened) = mpsc::channel(UNHEARD);
        let (reads, to_host) = own.into_split();
        let mut carrier = carrier(events, to_host);
        let since = Instant::now();
        for link in 0..9 {
            carrier.said(link, "job".to_owned(), Said::Look).await.unwrap();
        }
        let (link, event) = happened.recv().await.unwrap();
        assert!(since.elapsed() >= LOOK_EVERY, "{:?}", since.elapsed());
        carrier.happened(link, event).await.unwrap();
        // All that there is to tell is told.
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
