//! The host's side of the links: one thread that starts the links process, restarts it if it ends, sends it messages
//! and forwards the hints that it hears.
//!
//! The process is untrusted: its lines are short, the thread limits their rate, and a standby's elector treats a hint's
//! age and term as possible lies. The thread looks up peers for the process concurrently, at most as often as a
//! [`Directory`] allows.

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

/// Backoff between the end of the process and its next start: initial and maximum delay.
const RESTART_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Lifetime from which the process counts as a success, and resets the backoff.
const SUCCESS_AFTER: Duration = Duration::from_secs(60);
const READY_WITHIN: Duration = Duration::from_secs(5);
/// Minimum interval between lines from the process, to limit their rate.
const LINE_EVERY: Duration = Duration::from_millis(1);
const ORDER_QUEUE: usize = 256;
/// Upper bound on the time that the process takes to receive a line.
const WRITE_WITHIN: Duration = Duration::from_secs(1);
/// Time at the end of the host for the process to send the remaining messages.
const STOP_WITHIN: Duration = Duration::from_millis(500);
/// Upper bound on the output of the process that an error quotes, in bytes.
const MAX_STDERR: u64 = 500;
/// Upper bound on the reason in an error about an unreachable leader, in characters.
const MAX_REASON: usize = 300;
const MAX_QUESTIONS: usize = 128;
/// Upper bound on a lookup, including the wait for its turn and for the store.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of threads that wait for name resolution, for a peer or by the store's client.
const THREADS: usize = 8;

/// The links of a host.
pub struct Links {
    node: String,
    incarnation: String,
    /// None without links to hosts of this machine.
    folder: Option<PathBuf>,
    /// None without links to other machines. The store is for looking up peers.
    peers: Option<(Listening, Arc<dyn ObjectStore>)>,
    ports: Vec<Port>,
}

/// The links thread. It ends after the supervisors of all elections, or if this handle is dropped.
pub struct Linking {
    stop: watch::Sender<bool>,
    /// Closed once the thread is about to end.
    works: watch::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Links {
    /// Creates the links of a host's incarnation. If `folder` is set, it contains the sockets of this machine's hosts.
    /// If `peers` is set, there are links with other machines, which are looked up in the store.
    #[must_use]
    pub fn new(
        node: &str,
        incarnation: &str,
        folder: Option<PathBuf>,
        peers: Option<(Listening, Arc<dyn ObjectStore>)>,
    ) -> Self {
        Self { node: node.to_owned(), incarnation: incarnation.to_owned(), folder, peers, ports: Vec::new() }
    }

    /// Returns the supervisor's end of an election's links. `tidings` gets notified of news in the store.
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
    /// The operating system refused a resource.
    pub fn start(self, log: Log) -> io::Result<Option<Linking>> {
        let Self { node, incarnation, folder, peers, ports } = self;
        if ports.is_empty() {
            return Ok(None);
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build()?;
        let (stop, mut stopped) = watch::channel(false);
        let (at_work, works) = watch::channel(());
        let thread = std::thread::Builder::new().name("links".into()).spawn(move || {
            let identity = peers.as_ref().map(|(listening, _)| listening.identity.clone());
            let begin = Order::Begin { node, incarnation, identity };
            let peers = peers.map(|(listening, store)| Peers {
                listener: listening.listener,
                leaders: Directory::new(Arc::clone(&store)),
                callers: Directory::new(store),
            });
            let thread = LinksThread { begin, folder, peers, log };
            runtime.block_on(async {
                tokio::select! {
                    () = thread.keep_linked(ports) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
            drop(at_work);
            // A pending name lookup must not delay the end.
            runtime.shutdown_background();
        })?;
        Ok(Some(Linking { stop, works, thread: Some(thread) }))
    }
}

impl Linking {
    /// Waits briefly for the remaining messages to be sent, and ends the process and the thread.
    pub async fn shutdown(mut self) {
        let _ = timeout(STOP_WITHIN, self.works.changed()).await;
    }
}

impl Drop for Linking {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // The thread has already printed a panic.
            let _ = thread.join();
        }
    }
}

struct LinksThread {
    begin: Order,
    folder: Option<PathBuf>,
    peers: Option<Peers>,
    log: Log,
}

struct Peers {
    listener: TcpListener,
    /// Lookups of leaders to connect to, apart from `callers` so that peers that connect cannot delay them.
    leaders: Arc<Directory>,
    callers: Arc<Directory>,
}

struct ElectionSinks {
    heard: mpsc::Sender<Hint>,
    listened: watch::Sender<bool>,
    tidings: Tidings,
    standing: Arc<Standing>,
    log: Log,
    linked: Option<(String, String)>,
    /// The incarnation of the leader that was last logged as unreachable.
    unreached: Option<String>,
}

impl LinksThread {
    async fn keep_linked(self, ports: Vec<Port>) {
        let (orders, mut ordered) = mpsc::channel(ORDER_QUEUE);
        let mut all_sinks = BTreeMap::new();
        let mut wanted = Vec::new();
        let mut forwarders = JoinSet::new();
        for Port { election, wanted: wants, words, heard, listened, tidings, standing, log } in ports {
            wanted.push((election.to_string(), wants.clone()));
            forwarders.spawn(forward(election.to_string(), wants, words, tidings.finds(), orders.clone()));
            let sinks = ElectionSinks { heard, listened, tidings, standing, log, linked: None, unreached: None };
            all_sinks.insert(election.to_string(), sinks);
        }
        drop(orders);
        let mut failures = 0_u32;
        let mut last_error = None;
        loop {
            let began = Instant::now();
            let why = match self.carry(&wanted, &mut ordered, &mut all_sinks).await {
                Ok(()) => return,
                Err(why) => format!("{why:#}"),
            };
            for sinks in all_sinks.values_mut() {
                sinks.ended();
                sinks.listeners(0);
            }
            if began.elapsed() >= SUCCESS_AFTER {
                (failures, last_error) = (0, None);
            }
            if last_error.as_ref() != Some(&why) {
                let error = format!("links are down, so this node polls the store more often: {why}");
                self.log.emit(None, Event::Error { error });
                last_error = Some(why);
            }
            let wait = doubled(RESTART_BACKOFF, failures);
            failures = failures.saturating_add(1);
            sleep(between(wait / 2, wait)).await;
        }
    }

    /// Runs a links process until all supervisors have ended.
    ///
    /// # Errors
    /// The process failed, with the reason.
    async fn carry(
        &self,
        wanted: &[(String, watch::Receiver<super::Wanted>)],
        ordered: &mut mpsc::Receiver<Order>,
        all_sinks: &mut BTreeMap<String, ElectionSinks>,
    ) -> anyhow::Result<()> {
        let (own, child_end) = StdStream::pair()?;
        own.set_nonblocking(true)?;
        let mut child = start(self.folder.as_deref(), child_end, self.peers.as_ref().map(|peers| &peers.listener))?;
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
        // Earlier notifications from other nodes may have been missed.
        all_sinks.values().for_each(|sinks| sinks.tidings.look());
        loop {
            tokio::select! {
                order = ordered.recv() => {
                    let Some(order) = order else {
                        drop(to);
                        // The process sends the remaining messages and then ends.
                        let _ = timeout(STOP_WITHIN, child.wait()).await;
                        return Ok(());
                    };
                    timeout(WRITE_WITHIN, to.write_all(&encode(&order))).await??;
                }
                Some(answer) = answers.join_next() => {
                    // A panic of a lookup was already printed.
                    let Ok(Answer { number, question, found }) = answer else { continue };
                    let sinks = all_sinks.get_mut(&question.election);
                    let peer = found.unwrap_or_else(|why| {
                        sinks.into_iter().for_each(|sinks| sinks.unreached(&question.incarnation, &why));
                        None
                    });
                    timeout(WRITE_WITHIN, to.write_all(&encode(&Order::Answer { number, peer }))).await??;
                }
                said = next_line(&mut from, &mut line) => {
                    let Some(said) = said? else { anyhow::bail!("{}", last_words(&mut child).await) };
                    let news = read(said)?;
                    line.clear();
                    match news {
                        Some(News::Heard { election, from, said }) => {
                            if let (Some(sinks), said) = (all_sinks.get_mut(&election), said.checked()?) {
                                sinks.heard(from, said);
                            }
                        }
                        Some(News::Linked { election, incarnation, node }) => {
                            if let Some(sinks) = all_sinks.get_mut(&election) {
                                sinks.linked(incarnation, node);
                            }
                        }
                        Some(News::Ended { election, .. }) => {
                            if let Some(sinks) = all_sinks.get_mut(&election) {
                                sinks.ended();
                            }
                        }
                        Some(News::Listeners { election, count }) => {
                            if let Some(sinks) = all_sinks.get(&election) {
                                sinks.listeners(count);
                            }
                        }
                        Some(News::Unreached { election, incarnation, why }) => {
                            if let Some(sinks) = all_sinks.get_mut(&election) {
                                sinks.unreached(&incarnation, &why);
                            }
                        }
                        Some(News::Asks { number, question }) => {
                            let is_fit = question.is_within_bounds() && all_sinks.contains_key(&question.election);
                            match &self.peers {
                                Some(peers) if is_fit && answers.len() < MAX_QUESTIONS => {
                                    drop(answers.spawn(peers.look_up(number, question)));
                                }
                                _ => {
                                    let nothing = encode(&Order::Answer { number, peer: None });
                                    timeout(WRITE_WITHIN, to.write_all(&nothing)).await??;
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

struct Answer {
    number: u64,
    question: Question,
    /// None if the node has not announced it. An error if its address cannot be resolved.
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

impl ElectionSinks {
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
        // If the queue is full, the hint is dropped: it would arrive late anyway.
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

    /// Logs once per incarnation that a leader cannot be reached at its announced address.
    fn unreached(&mut self, incarnation: &str, why: &str) {
        if self.unreached.as_deref() == Some(incarnation) || !super::words::is_incarnation(incarnation) {
            return;
        }
        self.unreached = Some(incarnation.to_owned());
        let why: String = why.chars().take(MAX_REASON).collect();
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

/// Starts this program as the links process, with an empty environment and no descriptors other than its socket to this
/// process, the listening socket for other machines, and a pipe for errors.
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

/// Kills the process, and returns its exit status and its error output.
async fn last_words(child: &mut Child) -> String {
    let _ = child.start_kill();
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = timeout(WRITE_WITHIN, stderr.take(MAX_STDERR).read_to_end(&mut said)).await;
    }
    let how = match child.wait().await {
        Ok(status) => format!("the links process exited ({status})"),
        Err(error) => error.to_string(),
    };
    let said = String::from_utf8_lossy(&said);
    if said.trim().is_empty() { how } else { format!("{how}: {}", said.trim()) }
}
