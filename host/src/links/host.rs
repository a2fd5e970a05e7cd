//! The host's side: one thread that starts the process which carries the links, gives it what to tell and takes what it has
//! heard, and starts it again where it ends.
//!
//! The process is believed nothing either: a line is short, of lines there are no more in a second than this thread takes,
//! and what it says of a hint's age or term a standby's elector treats as it treats every lie. What it asks about nodes of
//! other machines is looked up beside, and no more often than a [`Directory`] has it.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use baton_election::{ElectionName, Hint};
use baton_runtime::escape::escape;
use baton_store::jitter::{between, doubled};
use baton_store::{ObjectStore, Tidings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::directory::Directory;
use super::place::Listening;
use super::words::{LONGEST, News, Order, Peer, Question, Said, Told, encode, next_line, read};
use super::{CARRY_LINKS, Line, Port, line};
use crate::telemetry::{Event, Log, Standing};

/// From the end of the process to its next start: at first, and at the most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// One that lasted so long starts anew as at first.
const WELL_AFTER: Duration = Duration::from_secs(60);
/// How soon it must listen.
const READY_WITHIN: Duration = Duration::from_secs(5);
/// From one of its lines to the next, where there are many.
const LINE_EVERY: Duration = Duration::from_millis(1);
/// Orders that wait for the process.
const WAITING: usize = 256;
/// How long it may take to take one.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// How long the end waits for the last that is told.
const LAST_WORD: Duration = Duration::from_millis(500);
/// More of what it says as it ends is left out, in bytes.
const LAST_WORDS: u64 = 500;
/// More of why somebody is not reached is left out, in characters.
const MOST_OF_WHY: usize = 300;
/// Questions of it that are looked up at a time.
const QUESTIONS: usize = 128;
/// How long one may wait for its turn, and for the store.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Threads that wait for the system to find a name, or the store's.
const THREADS: usize = 8;

/// The links of a host.
pub struct Links {
    node: String,
    incarnation: String,
    /// None where there are none with hosts of this machine.
    folder: Option<PathBuf>,
    /// None where there are none with others, which are looked up in the store.
    peers: Option<(Listening, Arc<dyn ObjectStore>)>,
    ports: Vec<Port>,
}

/// The thread. It ends by itself once the supervisors of all elections have, and when this is dropped.
pub struct Linking {
    ends: watch::Sender<bool>,
    /// Closed once it is about to end.
    works: watch::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Those of the host of that incarnation: with hosts of this machine, with their sockets in a folder, and with those of
    /// others, which the store tells of.
    #[must_use]
    pub fn new(
        node: &str,
        incarnation: &str,
        folder: Option<PathBuf>,
        peers: Option<(Listening, Arc<dyn ObjectStore>)>,
    ) -> Self {
        Self { node: node.to_owned(), incarnation: incarnation.to_owned(), folder, peers, ports: Vec::new() }
    }

    /// An election's end of them, for its supervisor. What is to be read soon goes to `tidings`.
    pub fn line(&mut self, election: ElectionName, tidings: &Tidings, standing: &Arc<Standing>, log: &Log) -> Line {
        if self.folder.is_none() && self.peers.is_none() {
            return Line::off();
        }
        let (line, port) = line(election, tidings.clone(), Arc::clone(standing), log.clone());
        self.ports.push(port);
        line
    }

    /// Starts the thread, if there is anything to link.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(self, log: Log) -> io::Result<Option<Linking>> {
        let Self { node, incarnation, folder, peers, ports } = self;
        if ports.is_empty() {
            return Ok(None);
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build()?;
        let (ends, mut ended) = watch::channel(false);
        let (at_work, works) = watch::channel(());
        let thread = std::thread::Builder::new().name("links".into()).spawn(move || {
            let identity = peers.as_ref().map(|(listening, _)| listening.identity.clone());
            let begin = Order::Begin { node, incarnation, identity };
            let peers = peers.map(|(listening, store)| Peers {
                listener: listening.listener,
                leaders: Directory::new(Arc::clone(&store)),
                callers: Directory::new(store),
            });
            let host = Host { begin, folder, peers, log };
            runtime.block_on(async {
                tokio::select! {
                    () = host.keep_linked(ports) => {}
                    _ = ended.wait_for(|ended| *ended) => {}
                }
            });
            drop(at_work);
            // A name that the system looks for in vain is nothing to wait for.
            runtime.shutdown_background();
        })?;
        Ok(Some(Linking { ends, works, thread: Some(thread) }))
    }
}

impl Linking {
    /// Waits a moment until all that was to be told is, and ends process and thread.
    pub async fn shutdown(mut self) {
        let _ = timeout(LAST_WORD, self.works.changed()).await;
    }
}

impl Drop for Linking {
    fn drop(&mut self) {
        self.ends.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It has said what it panicked with.
            let _ = thread.join();
        }
    }
}

/// What the thread is given.
struct Host {
    begin: Order,
    folder: Option<PathBuf>,
    peers: Option<Peers>,
    log: Log,
}

/// What links with other machines need of the host.
struct Peers {
    listener: TcpListener,
    /// Those that it would connect to: whoever connects to it is in nobody's way there.
    leaders: Arc<Directory>,
    callers: Arc<Directory>,
}

/// What of an election is told back.
struct Ear {
    heard: mpsc::Sender<Hint>,
    listened: watch::Sender<bool>,
    tidings: Tidings,
    standing: Arc<Standing>,
    log: Log,
    /// Whom it is linked with.
    linked: Option<(String, String)>,
    /// The incarnation that was said to be out of reach.
    unreached: Option<String>,
}

impl Host {
    async fn keep_linked(self, ports: Vec<Port>) {
        let (orders, mut ordered) = mpsc::channel(WAITING);
        let mut ears = BTreeMap::new();
        let mut wanted = Vec::new();
        let mut forwarders = JoinSet::new();
        for Port { election, wanted: wants, words, heard, listened, tidings, standing, log } in ports {
            wanted.push((election.to_string(), wants.clone()));
            forwarders.spawn(forward(election.to_string(), wants, words, tidings.finds(), orders.clone()));
            let ear = Ear { heard, listened, tidings, standing, log, linked: None, unreached: None };
            ears.insert(election.to_string(), ear);
        }
        drop(orders);
        let mut failures = 0_u32;
        let mut said = None;
        loop {
            let began = Instant::now();
            let why = match self.carry(&wanted, &mut ordered, &mut ears).await {
                Ok(()) => return,
                Err(why) => format!("{why:#}"),
            };
            for ear in ears.values_mut() {
                ear.ended();
                ear.listeners(0);
            }
            if began.elapsed() >= WELL_AFTER {
                (failures, said) = (0, None);
            }
            if said.as_ref() != Some(&why) {
                let error = format!("links are down, so this node polls the store more often: {why}");
                self.log.emit(None, Event::Error { error });
                said = Some(why);
            }
            let wait = doubled(AGAIN, failures);
            failures = failures.saturating_add(1);
            sleep(between(wait / 2, wait)).await;
        }
    }

    /// Has a process carry the links until nobody has anything to tell any more.
    ///
    /// # Errors
    /// What is wrong with the process.
    async fn carry(
        &self,
        wanted: &[(String, watch::Receiver<super::Wanted>)],
        ordered: &mut mpsc::Receiver<Order>,
        ears: &mut BTreeMap<String, Ear>,
    ) -> anyhow::Result<()> {
        let (own, its) = StdStream::pair()?;
        own.set_nonblocking(true)?;
        let mut child = start(self.folder.as_deref(), its, self.peers.as_ref().map(|peers| &peers.listener))?;
        let mut answers: JoinSet<Answer> = JoinSet::new();
        let (from, mut to) = UnixStream::from_std(own)?.into_split();
        let (mut from, mut line) = (BufReader::with_capacity(LONGEST, from), Vec::new());
        let mut first = encode(&self.begin);
        for (election, wants) in wanted {
            first.extend(encode(&want(election, &wants.borrow())));
        }
        to.write_all(&first).await?;
        match timeout(READY_WITHIN, next_line(&mut from, &mut line)).await {
            Ok(Ok(Some(said))) if matches!(read(said), Ok(Some(News::Ready))) => line.clear(),
            Ok(_) => anyhow::bail!("{}", last_words(&mut child).await),
            Err(_) => anyhow::bail!("the links process was not ready within {READY_WITHIN:?}"),
        }
        // Who had something to tell before had nobody to tell it to.
        ears.values().for_each(|ear| ear.tidings.look());
        loop {
            tokio::select! {
                order = ordered.recv() => {
                    let Some(order) = order else {
                        drop(to);
                        // It ends once what it was to tell is told.
                        let _ = timeout(LAST_WORD, child.wait()).await;
                        return Ok(());
                    };
                    timeout(TAKEN_WITHIN, to.write_all(&encode(&order))).await??;
                }
                Some(answer) = answers.join_next() => {
                    // What it has panicked with, it has said.
                    let Ok(Answer { number, question, found }) = answer else { continue };
                    let ear = ears.get_mut(&question.election);
                    let peer = found.unwrap_or_else(|why| {
                        ear.into_iter().for_each(|ear| ear.unreached(&question.incarnation, &why));
                        None
                    });
                    timeout(TAKEN_WITHIN, to.write_all(&encode(&Order::Answer { number, peer }))).await??;
                }
                said = next_line(&mut from, &mut line) => {
                    let Some(said) = said? else { anyhow::bail!("{}", last_words(&mut child).await) };
                    let news = read(said)?;
                    line.clear();
                    match news {
                        Some(News::Heard { election, from, said }) => {
                            if let (Some(ear), said) = (ears.get_mut(&election), said.checked()?) {
                                ear.heard(from, said);
                            }
                        }
                        Some(News::Linked { election, incarnation, node }) => {
                            if let Some(ear) = ears.get_mut(&election) {
                                ear.linked(incarnation, node);
                            }
                        }
                        Some(News::Ended { election, .. }) => {
                            if let Some(ear) = ears.get_mut(&election) {
                                ear.ended();
                            }
                        }
                        Some(News::Listeners { election, count }) => {
                            if let Some(ear) = ears.get(&election) {
                                ear.listeners(count);
                            }
                        }
                        Some(News::Unreached { election, incarnation, why }) => {
                            if let Some(ear) = ears.get_mut(&election) {
                                ear.unreached(&incarnation, &why);
                            }
                        }
                        Some(News::Asks { number, question }) => {
                            let is_fit = question.is_within_bounds() && ears.contains_key(&question.election);
                            match &self.peers {
                                Some(peers) if is_fit && answers.len() < QUESTIONS => {
                                    drop(answers.spawn(peers.look_up(number, question)));
                                }
                                _ => {
                                    let nothing = encode(&Order::Answer { number, peer: None });
                                    timeout(TAKEN_WITHIN, to.write_all(&nothing)).await??;
                                }
                            }
                        }
                        Some(News::Ready) | None => {}
                    }
                    sleep(LINE_EVERY).await;
                }
            }
        }
    }
}

/// What was looked up for the process.
struct Answer {
    number: u64,
    question: Question,
    /// None where the node has not said so, or why it is not found.
    found: Result<Option<Peer>, String>,
}

impl Peers {
    fn look_up(&self, number: u64, question: Question) -> impl Future<Output = Answer> + use<> {
        let directory = Arc::clone(if question.wants_addresses { &self.leaders } else { &self.callers });
        async move {
            let found = timeout(ANSWERED_WITHIN, directory.find(&question)).await.unwrap_or(Ok(None));
            Answer { number, question, found }
        }
    }
}

impl Ear {
    fn heard(&self, from: String, said: Said) {
        let hint = match said {
            Said::Look => return self.tidings.look(),
            Said::Leads { term, age_ms, place } => {
                Hint::Leads { from, term, age: Duration::from_millis(age_ms), place }
            }
            Said::GivesUp { place } => Hint::GivesUp { from, place },
            Said::Hello { .. } | Said::Is(_) => return,
        };
        self.standing.heard_a_hint();
        // One that is late is of no use.
        let _ = self.heard.try_send(hint);
    }

    fn listeners(&self, count: u32) {
        self.standing.listeners(count);
        self.listened.send_if_modified(|listened| std::mem::replace(listened, count > 0) != (count > 0));
    }

    fn linked(&mut self, incarnation: String, node: String) {
        self.ended();
        self.standing.listens(Some(node.clone()));
        self.log.emit(None, Event::Linked { leader: node.clone() });
        self.unreached = None;
        self.linked = Some((incarnation, node));
    }

    /// Says once that the leader of that incarnation is not where it says that it is.
    fn unreached(&mut self, incarnation: &str, why: &str) {
        if self.unreached.as_deref() == Some(incarnation) || !super::words::is_incarnation(incarnation) {
            return;
        }
        self.unreached = Some(incarnation.to_owned());
        let why: String = why.chars().take(MOST_OF_WHY).collect();
        let error = format!(
            "cannot reach the leader over the network, so this node polls the store more often: {}",
            escape(&why)
        );
        self.log.emit(None, Event::Error { error });
    }

    fn ended(&mut self) {
        let Some((from, node)) = self.linked.take() else { return };
        self.standing.listens(None);
        self.log.emit(None, Event::LinkEnded { leader: node });
        let _ = self.heard.try_send(Hint::Silent { from });
    }
}

fn want(election: &str, wanted: &super::Wanted) -> Order {
    let super::Wanted { leader, candidate } = wanted.clone();
    Order::Want { election: election.to_owned(), leader, candidate }
}

/// Gives on what the supervisor of an election wants, tells and has found.
async fn forward(
    election: String,
    mut wants: watch::Receiver<super::Wanted>,
    mut words: mpsc::Receiver<Told>,
    mut finds: watch::Receiver<u64>,
    orders: mpsc::Sender<Order>,
) {
    loop {
        let tell = |told| Order::Tell { election: election.clone(), told };
        let order = tokio::select! {
            biased;
            told = words.recv() => match told {
                Some(told) => tell(told),
                // Its supervisor has ended.
                None => return,
            },
            Ok(()) = wants.changed() => want(&election, &wants.borrow_and_update()),
            Ok(()) = finds.changed() => tell(Told::Look),
        };
        if orders.send(order).await.is_err() {
            return;
        }
    }
}

/// This program once more, with nothing but its line to this one, and the socket at which those of other machines connect.
fn start(folder: Option<&Path>, line: StdStream, listener: Option<&TcpListener>) -> io::Result<Child> {
    let listener = listener.map(TcpListener::try_clone).transpose()?;
    Command::new("/proc/self/exe")
        .arg(CARRY_LINKS)
        .args(["--parent", &std::process::id().to_string()])
        .args(folder)
        .env_clear()
        .stdin(OwnedFd::from(line))
        .stdout(listener.map_or_else(Stdio::null, |listener| OwnedFd::from(listener).into()))
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
}

/// How the process has ended, and what it said.
async fn last_words(child: &mut Child) -> String {
    let _ = child.start_kill();
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = timeout(TAKEN_WITHIN, stderr.take(LAST_WORDS).read_to_end(&mut said)).await;
    }
    let how = match child.wait().await {
        Ok(status) => format!("the links process exited ({status})"),
        Err(error) => error.to_string(),
    };
    let said = String::from_utf8_lossy(&said);
    if said.trim().is_empty() { how } else { format!("{how}: {}", said.trim()) }
}
