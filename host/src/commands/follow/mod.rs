//! `baton events` and `baton logs`: print events and output from the leader's host, even when leadership moves.
//!
//! The record in the store names the current or last leader. The leader's announcement names the leader's admin
//! endpoint. With `--follow`, the reader polls the store and switches hosts when leadership moves. On a host that it
//! has read before, the reader continues after the last id that it received. On a new host, the reader skips all terms
//! up to the highest term that it has read from other hosts. The reader therefore prints nothing twice.

mod sent_events;

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use baton_election::{ElectionName, Snapshot, Term};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep};

use super::client::{Answer, AskError, Client, Endpoint};
use super::{elections, open_store, patiently, read, unheard_of};
use crate::cli::{StreamArgs, print_entry, print_error, say};
use baton_admin::{AdminUrl, is_of_one_machine};
use baton_base::jitter::between;
use baton_runtime::LogLevel;
use baton_store::{Announcement, ModuleStore as _, Store};
pub(crate) use sent_events::READER;
use sent_events::SentEvents;

/// Interval at which this command reads the store to find a new leader.
const POLL: Duration = Duration::from_secs(2);

/// Time for which this command keeps reading the previous leader's stream once leadership has moved.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Shortest and longest pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// Maximum number of elections to follow at once, because hosts limit the number of streams.
const MOST_FOLLOWED: usize = 50;

const ALL: usize = usize::MAX;

pub(super) async fn follow(args: &StreamArgs) -> anyhow::Result<ExitCode> {
    let store = open_store(&args.store)?;
    let client = Arc::new(Client::with(args.token_file.as_deref(), args.ca.as_deref(), &args.store)?);
    let names = match &args.election {
        Some(election) => vec![election.clone()],
        None => elections(&*store).await.context("cannot list the elections")?,
    };
    if names.len() > MOST_FOLLOWED && args.follow {
        anyhow::bail!("there are {} elections, more than this command can follow at once: name one", names.len());
    }
    let is_one_machine = is_of_one_machine(&args.store);
    let one = |election: ElectionName| Reader {
        finder: LeaderFinder {
            store: Arc::clone(&store),
            is_one_machine,
            has_token: client.has_token(),
            election: election.clone(),
        },
        client: Arc::clone(&client),
        election,
        is_output: args.is_output,
        tail: args.tail,
        level: args.level,
        json: args.json,
        highest_term: None,
        ids: HashMap::new(),
        last_message: String::new(),
    };
    if let [name] = names.as_slice()
        && matches!(read(&*store, name).await?, Snapshot::Nothing)
    {
        return Err(unheard_of(name, &args.store, &*store).await);
    }
    let is_one = names.len() == 1;
    if !args.follow {
        let mut exit = ExitCode::SUCCESS;
        for name in names {
            let reader = one(name);
            match reader.list().await {
                Ok(entries) => {
                    for entry in &entries {
                        if !reader.print(entry)? {
                            return Ok(exit);
                        }
                    }
                }
                Err(error) if is_one => return Err(error),
                // The other elections may still be readable.
                Err(error) => {
                    print_error(&format!("{error:#}"));
                    exit = ExitCode::FAILURE;
                }
            }
        }
        return Ok(exit);
    }
    let mut readers: FuturesUnordered<_> = names.into_iter().map(|name| one(name).follow()).collect();
    let mut stdout_closed = pin!(stdout_closed());
    loop {
        let ended = tokio::select! {
            ended = readers.next() => ended,
            () = &mut stdout_closed => break,
        };
        let Some(ended) = ended else { break };
        match ended {
            Ok(()) => break,
            Err(error) if readers.is_empty() || error.is::<std::io::Error>() => return Err(error),
            Err(error) => {
                print_error(&format!("{error:#}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns once stdout is closed, even if nothing is printed for days. Never returns if stdout is a file.
async fn stdout_closed() {
    if let Ok(stdout) = std::io::stdout().as_fd().try_clone_to_owned() {
        // SAFETY: `stdout` is an owned, open descriptor, which only the `AsyncFd` uses and closes. So it stays valid
        // and refers to the same file until the `AsyncFd` is dropped, and `as_raw_fd` always returns it.
        if let Ok(stdout) = unsafe { AsyncFd::register_with_interest(stdout, Interest::ERROR) } {
            return drop(stdout.ready(Interest::ERROR).await);
        }
    }
    std::future::pending().await
}

struct Reader {
    finder: LeaderFinder,
    client: Arc<Client>,
    election: ElectionName,
    is_output: bool,
    tail: usize,
    level: LogLevel,
    json: bool,
    /// The highest term of any leader whose stream has been read so far. `None` before the first one.
    highest_term: Option<Term>,
    /// The last id received from each host, by incarnation.
    ids: HashMap<String, String>,
    /// The last progress message, which is not printed twice in a row.
    last_message: String,
}

#[derive(Clone, PartialEq, Eq)]
struct Leader {
    node: String,
    incarnation: String,
    term: Term,
    endpoint: Endpoint,
}

#[derive(Debug, thiserror::Error)]
enum NoLeader {
    #[error("no node has led yet")]
    NeverLed,
    #[error("{node} was the last leader, and its host has exited: only that host's log still has the events")]
    HostExited { node: String },
    #[error(
        "{node} is the leader, or was the last one, but announces no admin endpoint that this machine can reach: start \
         {node} with `--admin` and `--admin-advertise`, or run this command on its machine as its user"
    )]
    NoEndpoint { node: String },
    #[error(
        "two hosts have the node id {node}, so this command cannot tell which one leads: give each host its own \
         `--node`"
    )]
    DuplicateNode { node: String },
    #[error("{0}")]
    Store(String),
}

enum Stopped {
    StdoutClosed,
    WriteFailed(std::io::Error),
    Moved,
    Ended,
}

impl Reader {
    async fn list(&self) -> anyhow::Result<Vec<Value>> {
        let leader =
            self.finder.leader().await.map_err(|no_leader| anyhow::anyhow!("{}: {no_leader}", self.election))?;
        let at = || format!("{}: {} did not answer ({})", self.election, leader.node, leader.endpoint);
        let path = self.path(self.tail, self.level);
        let answer = self.ask(&leader, &path, "application/json", None);
        let list = match answer.await {
            Ok(answer) => answer.whole().await,
            Err(error) => Err(error),
        };
        serde_json::from_slice(&list.with_context(at)?).with_context(at)
    }

    /// Requests a path from the leader's host. Without the token, refuses to request a coordinator's output from an
    /// admin endpoint, because only the local sockets of this user's hosts provide the output without the token.
    async fn ask(
        &self,
        leader: &Leader,
        path: &str,
        accepts: &'static str,
        after: Option<&str>,
    ) -> Result<Answer, AskError> {
        if self.is_output && !self.client.has_token() && matches!(leader.endpoint, Endpoint::Url(_)) {
            let why = "reading the logs of a host on another machine, or run by another user, requires the nodes' \
                       token: pass its file with `--token-file` (`baton token` creates one)";
            return Err(AskError::Refused(why.to_owned()));
        }
        self.client.ask(&leader.endpoint, path, accepts, after).await
    }

    async fn follow(mut self) -> anyhow::Result<()> {
        let mut previous: Option<Leader> = None;
        loop {
            let leader = match self.finder.leader().await {
                Ok(leader) => leader,
                Err(no_leader) => {
                    self.say(&no_leader.to_string());
                    sleep(between(RETRY.0, RETRY.1)).await;
                    continue;
                }
            };
            if previous.as_ref().is_some_and(|previous| previous.incarnation != leader.incarnation) {
                self.say(&format!("{} now leads, in term {}", leader.node, leader.term));
            }
            previous = Some(leader.clone());
            match self.read(&leader).await {
                Ok(Stopped::StdoutClosed) => return Ok(()),
                Ok(Stopped::WriteFailed(error)) => return Err(error.into()),
                Ok(Stopped::Moved) => continue,
                // The host has ended the stream, for example because it limits how long a stream lasts. Reconnect.
                Ok(Stopped::Ended) => {}
                // Before this command has read from any leader, a refusal is final. Later, a refusal may be temporary:
                // the leader's host may have exited, and another host may respond at the same address.
                Err(AskError::Refused(why)) if self.highest_term.is_none() => {
                    anyhow::bail!("{}: {} ({}): {why}", self.election, leader.node, leader.endpoint)
                }
                Err(AskError::Refused(why) | AskError::Failed(why)) => {
                    self.say(&format!("{} ({}): {why}; retrying", leader.node, leader.endpoint));
                }
            }
            sleep(between(RETRY.0, RETRY.1)).await;
        }
    }

    /// Reads from one host until the stream ends or another node becomes the leader.
    async fn read(&mut self, leader: &Leader) -> Result<Stopped, AskError> {
        let previous = self.highest_term;
        let last = self.ids.get(&leader.incarnation).cloned();
        // If this command has read nothing from this host yet, skip the terms that it has already read from other
        // hosts.
        let mut awaits = previous.filter(|_| last.is_none());
        let tail = if awaits.is_some() { ALL } else { self.tail };
        // Request all levels of events, and filter by level below. If the host filtered, it could omit the `elected`
        // event, which shows where the new leader's terms begin.
        let path = self.path(tail, if self.is_output { self.level } else { LogLevel::Trace });
        let mut answer = self.ask(leader, &path, "text/event-stream", last.as_deref()).await?;
        self.last_message.clear();
        self.highest_term = self.highest_term.max(Some(leader.term));
        let mut events = SentEvents::default();
        let finder = self.finder.clone();
        let mut another = pin!(finder.wait_for_another_than(leader));
        let mut moved: Option<Instant> = None;
        loop {
            let piece = tokio::select! {
                piece = next(&mut answer, moved) => piece?,
                () = &mut another, if moved.is_none() => {
                    moved = Some(Instant::now() + LAST_WORDS);
                    continue;
                }
            };
            let Some(piece) = piece else {
                return Ok(if moved.is_some() { Stopped::Moved } else { Stopped::Ended });
            };
            for sent in events.read(&piece).map_err(|error| AskError::Failed(error.to_string()))? {
                let Ok(entry) = serde_json::from_str::<Value>(&sent.data) else { continue };
                if sent.kind == "missed" {
                    let missed = entry["missed"].as_u64().unwrap_or_default();
                    if awaits.is_none() {
                        self.say(&format!(
                            "missed {missed} lines: the host sent them faster than this command read them, or no \
                             longer has them"
                        ));
                    }
                    continue;
                }
                // Read this host's terms only from `elected` and `output` entries. Other entries may contain another
                // node's term.
                let own =
                    entry["term"].as_u64().filter(|_| ["elected", "output"].iter().any(|own| entry["event"] == *own));
                if awaits.is_some_and(|known| own.is_none_or(|term| term <= known)) {
                    continue;
                }
                awaits = None;
                // Leadership has moved, so this entry with a higher term concerns the next leader. Skip the entry: this
                // command reads the next leader's entries from that leader's host.
                if moved.is_some() && entry["term"].as_u64() > self.highest_term {
                    continue;
                }
                self.highest_term = self.highest_term.max(own);
                if LogLevel::deserialize(&entry["level"]).is_ok_and(|level| level < self.level) {
                    continue;
                }
                match self.print(&entry) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Stopped::StdoutClosed),
                    Err(error) => return Ok(Stopped::WriteFailed(error)),
                }
            }
            if let Some(id) = &events.last_id {
                self.ids.insert(leader.incarnation.clone(), id.clone());
            }
        }
    }

    fn print(&self, entry: &Value) -> std::io::Result<bool> {
        print_entry(entry, self.json)
    }

    fn say(&mut self, what: &str) {
        if self.last_message != what {
            what.clone_into(&mut self.last_message);
            say(&format!("{}: {what}", self.election));
        }
    }

    fn path(&self, tail: usize, level: LogLevel) -> String {
        let level = serde_json::to_value(level).ok();
        let level = level.as_ref().and_then(Value::as_str).unwrap_or("trace");
        // The name of a shard contains a slash. No other character needs an escape.
        let election = self.election.as_str().replace('/', "%2F");
        if self.is_output {
            return format!("/v1/elections/{election}/logs?level={level}&tail={tail}");
        }
        format!("/v1/events?election={election}&level={level}&tail={tail}")
    }
}

#[derive(Clone)]
struct LeaderFinder {
    store: Arc<dyn Store>,
    /// True if all nodes of the store run on this machine. This command can then reach the nodes' loopback addresses.
    is_one_machine: bool,
    has_token: bool,
    election: ElectionName,
}

impl LeaderFinder {
    /// Returns the current or last leader with its endpoint.
    async fn leader(&self) -> Result<Leader, NoLeader> {
        let snapshot =
            read(&*self.store, &self.election).await.map_err(|error| NoLeader::Store(format!("{error:#}")))?;
        let Snapshot::Object { record: Some(record), .. } = snapshot else { return Err(NoLeader::NeverLed) };
        let Some(node) = record.node else { return Err(NoLeader::NeverLed) };
        let (incarnation, term) = (record.incarnation, record.term);
        // Without the token, try the local socket first: it needs neither an announcement nor the token.
        let here = async || Endpoint::here(&incarnation).await.ok();
        if !self.has_token
            && let Some(endpoint) = here().await
        {
            return Ok(Leader { node, incarnation, term, endpoint });
        }
        let announced = patiently(2, async || self.store.announced(&self.election, &node).await).await;
        let cannot = |error| NoLeader::Store(format!("cannot read the announcement of {node}: {error}"));
        let announced = announced.map_err(cannot)?;
        // A host withdraws its announcement only when it shuts down cleanly, and announces itself right after it
        // starts. So if there is no announcement, the host has exited.
        let Some(announced) = announced else { return Err(NoLeader::HostExited { node }) };
        let announcement = Announcement::decode(&announced);
        let has_duplicate = |found: &Announcement| found.duplicate.is_some() && found.incarnation != incarnation;
        if announcement.as_ref().is_some_and(has_duplicate) {
            return Err(NoLeader::DuplicateNode { node });
        }
        let admin = announcement.and_then(|announcement| announcement.admin.parse().ok());
        // Never connect to a loopback address that was announced on another machine: on this machine, another program
        // may listen on that address.
        let is_there = |admin: &AdminUrl| self.is_one_machine || admin.is_encrypted() || !admin.is_private();
        let endpoint = match admin.filter(is_there) {
            Some(admin) => Some(Endpoint::Url(admin)),
            None => here().await,
        };
        match endpoint {
            Some(endpoint) => Ok(Leader { node, incarnation, term, endpoint }),
            None => Err(NoLeader::NoEndpoint { node }),
        }
    }

    /// Waits until the store shows another leader or endpoint. Ignores failed reads.
    async fn wait_for_another_than(&self, leader: &Leader) {
        loop {
            sleep(POLL).await;
            if let Ok(now) = self.leader().await
                && (now.incarnation != leader.incarnation || now.endpoint != leader.endpoint)
            {
                return;
            }
        }
    }
}

/// Returns `None` at the end of the stream, and once `until` has passed.
async fn next(answer: &mut Answer, until: Option<Instant>) -> Result<Option<axum::body::Bytes>, AskError> {
    match until {
        None => answer.piece().await,
        Some(until) => tokio::time::timeout_at(until, answer.piece()).await.unwrap_or(Ok(None)),
    }
}
