//! The process that carries a host's links. It has neither the store nor a lease, and its words are hints: whatever becomes
//! of it, or whoever speaks to it, costs speed and nothing else.
//!
//! Everybody who connects is of the same user, and is believed nothing: how many may connect, how soon they must say who
//! they are, how long a line is, how many come in a second and how many wait to be taken is bounded, for each and in all. A
//! peer beyond a bound is cut off. One task for each link reads and writes; [`Carrier`] decides, in one loop.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use baton_runtime::confine;
use baton_store::jitter::{between, doubled};
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::listeners::Listeners;
use super::sockets;
use super::words::{Candidate, News, Order, Said, Told, encode, next_line, read};

/// The hidden command.
pub const CARRY_LINKS: &str = "carry-links";

/// Links at a time, of all elections.
const MOST_LINKS: usize = 1024;
/// Of these, those that have not said who they are.
const MOST_STRANGERS: usize = 64;
/// How soon they must.
const HELLO_WITHIN: Duration = Duration::from_secs(1);
/// From one connection that is taken to the next, where many come.
const ACCEPT_EVERY: Duration = Duration::from_millis(2);
/// Lines that a peer may say at once, and how often one more.
const LINES: (u32, Duration) = (50, Duration::from_millis(50));
/// Lines that wait for a peer to read them: one that does not is cut off.
const UNREAD: usize = 16;
/// How long a peer may take to take one.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// What the tasks of all links have said and nobody has taken.
const UNHEARD: usize = 256;
/// Of an election, the host is told no more often that there is something to read.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the end waits until everybody has taken what was to be told.
const ALL_TOLD: Duration = Duration::from_millis(200);
/// From one try to reach whom the host listens to, to the next: at first, and at the most.
const DIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// The whole life of the process, which ends with its host, the process `parent`. Its standard input is its line to that.
#[must_use]
pub fn carry_links(parent: u32, folder: &Path) -> ExitCode {
    match carry(parent, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The host says it, once.
            let _ = writeln!(io::stderr(), "{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry(parent: u32, folder: &Path) -> anyhow::Result<()> {
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
        let Some(Order::Begin { node, incarnation }) = read(first)? else { anyhow::bail!("the host says no name") };
        line.clear();
        // Sockets are found from here: a path to one is no longer than some hundred bytes.
        sockets::make(folder)?;
        std::env::set_current_dir(folder)?;
        sockets::tidy_up(Path::new("."));
        let listener = UnixListener::from_std(sockets::listen(Path::new("."), &incarnation)?)?;
        confine::to_linking(false)?;
        to_host.write_all(&encode(&News::Ready)).await?;
        let (events, mut happened) = mpsc::channel(UNHEARD);
        let mut carrier = Carrier {
            node,
            incarnation,
            events,
            to_host,
            links: BTreeMap::new(),
            strangers: BTreeSet::new(),
            elections: BTreeMap::new(),
            tasks: JoinSet::new(),
            numbers: 0,
        };
        let mut next_accept = Instant::now();
        loop {
            let accept = async {
                sleep_until(next_accept).await;
                listener.accept().await
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
            }
        }
    })
}

struct Carrier {
    node: String,
    incarnation: String,
    events: mpsc::Sender<(u64, Event)>,
    to_host: tokio::net::unix::OwnedWriteHalf,
    /// What each link's task is to write: without that it ends.
    links: BTreeMap<u64, Link>,
    /// Those that have connected and not said who they are.
    strangers: BTreeSet<u64>,
    elections: BTreeMap<String, Election>,
    /// Those that read and write, and those that wait for another try.
    tasks: JoinSet<()>,
    numbers: u64,
}

struct Link {
    lines: mpsc::Sender<Vec<u8>>,
    election: Option<String>,
}

/// What happens to a link.
enum Event {
    Said(Said),
    Ended,
    /// It is time to try once more.
    Dial(String),
}

#[derive(Default)]
struct Election {
    candidate: Candidate,
    listeners: Listeners,
    /// What the host told last of its renewals, and when that was.
    leads: Option<(Told, Instant)>,
    listens: Option<Listens>,
    looked: Option<Instant>,
}

/// Whom the host listens to.
struct Listens {
    incarnation: String,
    link: u64,
    is_linked: bool,
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
                let leader =
                    leader.filter(|leader| *leader != self.incarnation && super::words::is_incarnation(leader));
                if known.listens.as_ref().map(|listens| &listens.incarnation) == leader.as_ref() {
                    let linked = known.listens.as_ref().filter(|listens| listens.is_linked).map(|listens| listens.link);
                    linked.into_iter().for_each(|link| self.say(link, &Said::Is(candidate)));
                    return Ok(());
                }
                if let Some(before) = known.listens.take() {
                    self.links.remove(&before.link);
                    if before.is_linked {
                        self.tell(&News::Ended { election: election.clone(), incarnation: before.incarnation }).await?;
                    }
                }
                if let Some(leader) = leader {
                    self.dial(election, leader, 0);
                }
            }
            Order::Tell { election, told } => self.tell_listeners(&election, told),
        }
        Ok(())
    }

    fn tell_listeners(&mut self, election: &str, told: Told) {
        let Some(known) = self.elections.get_mut(election) else { return };
        let to = if let Told::GivesUp { to } = &told { to.as_deref() } else { None };
        let places = known.listeners.places(to);
        let mut words: Vec<(u64, Said)> =
            places.into_iter().map(|(link, place)| (link, as_said(&told, Duration::ZERO, place))).collect();
        match told {
            Told::Look => words.extend(known.listens.iter().map(|listens| (listens.link, Said::Look))),
            Told::GivesUp { .. } => known.leads = None,
            Told::Leads { .. } => known.leads = Some((told, Instant::now())),
        }
        words.into_iter().for_each(|(link, said)| self.say(link, &said));
    }

    /// Says it, unless the peer has not read so much that it is cut off.
    fn say(&mut self, link: u64, said: &Said) {
        if self.links.get(&link).is_some_and(|known| known.lines.try_send(encode(said)).is_err()) {
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
        let is_full = self.links.len() >= MOST_LINKS || self.strangers.len() >= MOST_STRANGERS;
        if is_full || !sockets::is_same_user(&stream) {
            return;
        }
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(UNREAD));
        self.links.insert(link, Link { lines, election: None });
        self.strangers.insert(link);
        self.tasks.spawn(attend(link, stream, waiting, self.events.clone()));
    }

    fn dial(&mut self, election: String, leader: String, failures: u32) {
        let (link, (lines, waiting)) = (self.number(), mpsc::channel(UNREAD));
        let Some(known) = self.elections.get_mut(&election) else { return };
        let hello = Said::Hello {
            election: election.clone(),
            to: leader.clone(),
            node: Some(self.node.clone()),
            incarnation: Some(self.incarnation.clone()),
        };
        let candidate = known.candidate;
        known.listens = Some(Listens { incarnation: leader.clone(), link, is_linked: false, failures });
        self.links.insert(link, Link { lines, election: Some(election) });
        for said in [hello, Said::Is(candidate)] {
            self.say(link, &said);
        }
        let events = self.events.clone();
        self.tasks.spawn(async move {
            match timeout(HELLO_WITHIN, UnixStream::connect(&leader)).await {
                Ok(Ok(stream)) if sockets::is_same_user(&stream) => attend(link, stream, waiting, events).await,
                _ => drop(events.send((link, Event::Ended)).await),
            }
        });
    }

    async fn happened(&mut self, link: u64, event: Event) -> io::Result<()> {
        match event {
            Event::Dial(election) => {
                let listens = self.elections.get(&election).and_then(|known| known.listens.as_ref());
                // Only if nothing else is wanted by now.
                if let Some(Listens { incarnation, failures, .. }) = listens.filter(|listens| listens.link == link) {
                    let (incarnation, failures) = (incarnation.clone(), *failures);
                    self.dial(election, incarnation, failures);
                }
                Ok(())
            }
            Event::Ended => self.ended(link).await,
            Event::Said(said) => match self.links.get(&link).map(|known| known.election.clone()) {
                None => Ok(()),
                Some(None) => self.greeted(link, said).await,
                Some(Some(election)) => self.said(link, election, said).await,
            },
        }
    }

    async fn ended(&mut self, link: u64) -> io::Result<()> {
        self.strangers.remove(&link);
        self.links.remove(&link);
        let mut news = Vec::new();
        for (election, known) in &mut self.elections {
            if known.listeners.remove(link) {
                news.push(listeners(election, known));
            }
            let Some(listens) = known.listens.as_mut().filter(|listens| listens.link == link) else { continue };
            if std::mem::take(&mut listens.is_linked) {
                listens.failures = 0;
                news.push(News::Ended { election: election.clone(), incarnation: listens.incarnation.clone() });
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
        self.strangers.remove(&link);
        let Said::Hello { election, to, node, incarnation } = said else { return self.ended(link).await };
        let Some(known) = self.elections.get_mut(&election).filter(|_| to == self.incarnation) else {
            return self.ended(link).await;
        };
        if let Some(known) = self.links.get_mut(&link) {
            known.election = Some(election.clone());
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
            known.listeners.add(link, node, luck());
            // It has said nothing of itself so far, and hears of its place with the next renewal.
            words.extend(known.leads.as_ref().map(|(told, at)| as_said(told, at.elapsed(), None)));
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
                if known.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
                    return Ok(());
                }
                known.looked = Some(Instant::now());
                News::Heard { election, from: String::new(), said: Said::Look }
            }
            (Some(listens), Said::Hello { incarnation, node, .. }) if !listens.is_linked => {
                let (Some(node), true) = (node, incarnation.as_ref() == Some(&listens.incarnation)) else {
                    return self.ended(link).await;
                };
                listens.is_linked = true;
                News::Linked { election, incarnation: listens.incarnation.clone(), node }
            }
            (Some(listens), said @ (Said::Leads { .. } | Said::GivesUp { .. })) if listens.is_linked => {
                News::Heard { election, from: listens.incarnation.clone(), said }
            }
            (None, Said::Is(candidate)) => {
                known.listeners.is(link, candidate);
                return Ok(());
            }
            // It says what is not for it to say.
            _ => return self.ended(link).await,
        };
        self.tell(&news).await
    }
}

fn listeners(election: &str, known: &Election) -> News {
    News::Listeners { election: election.to_owned(), count: u32::try_from(known.listeners.count()).unwrap_or(u32::MAX) }
}

/// What the host tells, as it is said to one that has this place, so much later.
fn as_said(told: &Told, later: Duration, place: Option<u32>) -> Said {
    match told {
        Told::Leads { term, age_ms } => {
            let later = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
            Said::Leads { term: *term, age_ms: age_ms.saturating_add(later), place }
        }
        Told::GivesUp { .. } => Said::GivesUp { place },
        Told::Look => Said::Look,
    }
}

fn luck() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers all are equal.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Reads and writes what one peer says and is told, until it ends, says what no host says or more than it may, or does not
/// read. Its first line comes soon.
async fn attend(
    link: u64,
    mut stream: UnixStream,
    mut waiting: mpsc::Receiver<Vec<u8>>,
    events: mpsc::Sender<(u64, Event)>,
) {
    let mut is_stranger = true;
    let (from, mut to) = stream.split();
    let (mut from, mut line) = (BufReader::with_capacity(super::words::LONGEST, from), Vec::new());
    let mut budget = Budget::new();
    let hello_by = Instant::now() + HELLO_WITHIN;
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
                if !matches!(timeout(TAKEN_WITHIN, to.write_all(&said)).await, Ok(Ok(()))) {
                    break;
                }
            }
            () = sleep_until(hello_by), if is_stranger => break,
        }
    }
    let _ = events.send((link, Event::Ended)).await;
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
