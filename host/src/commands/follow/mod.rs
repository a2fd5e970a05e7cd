//! `baton events` and `baton logs`: what the leader's host has to tell, whoever leads.
//!
//! The record in the store says which node leads, or led last, and that node's announcement where its admin endpoint is.
//! A reader that follows asks the store again and again, and goes over to the next leader's host when leadership has
//! moved. It comes back to a host with the last id that it has from there, and takes from the next leader's only what
//! follows its own term: nothing is printed twice.

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
use crate::admin::{AdminUrl, is_of_one_machine};
use crate::cli::{Told, print_told, say, say_error};
use baton_runtime::LogLevel;
use baton_store::jitter::between;
use baton_store::{Announcement, ModuleStore as _, Store};
pub(crate) use sent_events::READER;
use sent_events::SentEvents;

/// The store is asked so often who leads.
const LOOK: Duration = Duration::from_secs(2);

/// After leadership has moved, so long is read what the host that led has to tell still.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// From a failure to the next try: at least and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// So many elections are followed at a time: hosts have places for so many readers.
const MOST: usize = 50;

/// Everything that there is.
const ALL: usize = usize::MAX;

pub(super) async fn told(told: &Told) -> anyhow::Result<ExitCode> {
    let store = open_store(&told.store)?;
    let client = Arc::new(Client::with(told.token_file.as_deref(), told.ca.as_deref(), &told.store)?);
    let names = match &told.election {
        Some(election) => vec![election.clone()],
        None => elections(&*store).await.context("cannot list the elections")?,
    };
    if names.len() > MOST && told.follow {
        anyhow::bail!("there are {} elections, more than this command can follow at once: name one", names.len());
    }
    let is_one_machine = is_of_one_machine(&told.store);
    let one = |election: ElectionName| Reader {
        place: Place {
            store: Arc::clone(&store),
            is_one_machine,
            has_token: client.has_token(),
            election: election.clone(),
        },
        client: Arc::clone(&client),
        election,
        is_output: told.is_output,
        tail: told.tail,
        level: told.level,
        json: told.json,
        begun: None,
        ids: HashMap::new(),
        said: String::new(),
    };
    if let [name] = names.as_slice()
        && matches!(read(&*store, name).await?, Snapshot::Nothing)
    {
        return Err(unheard_of(name, &told.store, &*store).await);
    }
    let is_one = names.len() == 1;
    if !told.follow {
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
                // Of the others there is something to tell.
                Err(error) => {
                    say_error(&format!("{error:#}"));
                    exit = ExitCode::FAILURE;
                }
            }
        }
        return Ok(exit);
    }
    let mut readers: FuturesUnordered<_> = names.into_iter().map(|name| one(name).follow()).collect();
    let mut unread = pin!(unread());
    loop {
        let ended = tokio::select! {
            ended = readers.next() => ended,
            () = &mut unread => break,
        };
        let Some(ended) = ended else { break };
        match ended {
            // Nobody reads any more.
            Ok(()) => break,
            Err(error) if readers.is_empty() || error.is::<std::io::Error>() => return Err(error),
            // The others go on.
            Err(error) => {
                say_error(&format!("{error:#}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns once nobody reads what this process prints, though it may have nothing to print for days; never where that is not
/// to be seen, as of a file.
async fn unread() {
    if let Ok(stdout) = std::io::stdout().as_fd().try_clone_to_owned() {
        // SAFETY: the descriptor is the `AsyncFd`'s own until that is dropped, and nobody else knows its number.
        if let Ok(stdout) = unsafe { AsyncFd::register_with_interest(stdout, Interest::ERROR) } {
            return drop(stdout.ready(Interest::ERROR).await);
        }
    }
    std::future::pending().await
}

/// Reads what is told of one election.
struct Reader {
    place: Place,
    client: Arc<Client>,
    election: ElectionName,
    is_output: bool,
    tail: usize,
    level: LogLevel,
    json: bool,
    /// The highest term that a host had begun that was asked; none before any was.
    begun: Option<Term>,
    /// The last id from each start of a host.
    ids: HashMap<String, String>,
    /// What was said last of how it goes.
    said: String,
}

/// The node that leads, or led last.
#[derive(Clone, PartialEq, Eq)]
struct Leader {
    node: String,
    incarnation: String,
    term: Term,
    endpoint: Endpoint,
}

/// Why nobody can be asked now.
#[derive(Debug, thiserror::Error)]
enum Nobody {
    #[error("no node has led yet")]
    HasLed,
    #[error("{node} was the last leader, and its host has exited: only that host's log still has the events")]
    IsThere { node: String },
    #[error(
        "{node} is the leader, or was the last one, but announces no admin endpoint that this machine can reach: start \
         {node} with `--admin` and `--admin-advertise`, or run this command on its machine as its user"
    )]
    SaysWhere { node: String },
    #[error(
        "two hosts have the node id {node}, so this command cannot tell which one leads: give each host its own \
         `--node`"
    )]
    IsOne { node: String },
    #[error("{0}")]
    Store(String),
}

/// Why a reader has stopped.
enum Stopped {
    /// Nobody reads what it prints.
    Unread,
    /// What it prints cannot be written.
    Unwritten(std::io::Error),
    /// Another node leads.
    Moved,
    /// The stream has ended.
    Ended,
}

impl Reader {
    /// What there is.
    async fn list(&self) -> anyhow::Result<Vec<Value>> {
        let leader = self.place.leader().await.map_err(|nobody| anyhow::anyhow!("{}: {nobody}", self.election))?;
        let at = || format!("{}: {} did not answer ({})", self.election, leader.node, leader.endpoint);
        let path = self.path(self.tail, self.level);
        let answer = self.ask(&leader, &path, "application/json", None);
        let list = match answer.await {
            Ok(answer) => answer.whole().await,
            Err(error) => Err(error),
        };
        serde_json::from_slice(&list.with_context(at)?).with_context(at)
    }

    /// Asks the leader's host. What coordinators print, another user's or machine's host tells only with the token.
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

    /// Prints what there is and what comes, until nobody reads it.
    async fn follow(mut self) -> anyhow::Result<()> {
        let mut before: Option<Leader> = None;
        loop {
            let leader = match self.place.leader().await {
                Ok(leader) => leader,
                Err(nobody) => {
                    self.say(&nobody.to_string());
                    sleep(between(AGAIN.0, AGAIN.1)).await;
                    continue;
                }
            };
            if before.as_ref().is_some_and(|before| before.incarnation != leader.incarnation) {
                self.say(&format!("{} leads now, in term {}", leader.node, leader.term));
            }
            before = Some(leader.clone());
            match self.read(&leader).await {
                Ok(Stopped::Unread) => return Ok(()),
                Ok(Stopped::Unwritten(error)) => return Err(error.into()),
                Ok(Stopped::Moved) => continue,
                // As each does after a while.
                Ok(Stopped::Ended) => {}
                // Later, another host may answer at the address of one that is gone.
                Err(AskError::Refused(why)) if self.begun.is_none() => {
                    anyhow::bail!("{}: {} ({}): {why}", self.election, leader.node, leader.endpoint)
                }
                Err(AskError::Refused(why) | AskError::Failed(why)) => {
                    self.say(&format!("{} ({}): {why}; retrying", leader.node, leader.endpoint));
                }
            }
            sleep(between(AGAIN.0, AGAIN.1)).await;
        }
    }

    /// Reads from one host until that ends, or another leads.
    async fn read(&mut self, leader: &Leader) -> Result<Stopped, AskError> {
        let before = self.begun;
        let last = self.ids.get(&leader.incarnation).cloned();
        // From one that was not asked before, after another was, all that follows the terms that are known.
        let mut awaits = before.filter(|_| last.is_none());
        let tail = if awaits.is_some() { ALL } else { self.tail };
        // An election shows where the next leader's events begin, whatever is to be printed of them.
        let path = self.path(tail, if self.is_output { self.level } else { LogLevel::Trace });
        let mut answer = self.ask(leader, &path, "text/event-stream", last.as_deref()).await?;
        self.said.clear();
        self.begun = self.begun.max(Some(leader.term));
        let mut events = SentEvents::default();
        let place = self.place.clone();
        let mut another = pin!(place.has_another_than(leader));
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
                // Other events of a host may name others' terms.
                let own =
                    entry["term"].as_u64().filter(|_| ["elected", "output"].iter().any(|own| entry["event"] == *own));
                if awaits.is_some_and(|known| own.is_none_or(|term| term <= known)) {
                    continue;
                }
                awaits = None;
                // Of the next leader's term the next leader tells.
                if moved.is_some() && entry["term"].as_u64() > self.begun {
                    continue;
                }
                self.begun = self.begun.max(own);
                if LogLevel::deserialize(&entry["level"]).is_ok_and(|level| level < self.level) {
                    continue;
                }
                match self.print(&entry) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Stopped::Unread),
                    Err(error) => return Ok(Stopped::Unwritten(error)),
                }
            }
            if let Some(id) = &events.last_id {
                self.ids.insert(leader.incarnation.clone(), id.clone());
            }
        }
    }

    fn print(&self, entry: &Value) -> std::io::Result<bool> {
        print_told(entry, self.json)
    }

    /// Says how it goes, unless that is what was said last.
    fn say(&mut self, what: &str) {
        if self.said != what {
            what.clone_into(&mut self.said);
            say(&format!("{}: {what}", self.election));
        }
    }

    fn path(&self, tail: usize, level: LogLevel) -> String {
        let level = serde_json::to_value(level).ok();
        let level = level.as_ref().and_then(Value::as_str).unwrap_or("trace");
        let election = &self.election;
        if self.is_output {
            return format!("/v1/elections/{election}/logs?level={level}&tail={tail}");
        }
        format!("/v1/events?election={election}&level={level}&tail={tail}")
    }
}

/// Where it is found who leads.
#[derive(Clone)]
struct Place {
    store: Arc<dyn Store>,
    /// Whether a node's loopback is this machine's.
    is_one_machine: bool,
    has_token: bool,
    election: ElectionName,
}

impl Place {
    /// The node that leads, or led last, and where it is asked.
    async fn leader(&self) -> Result<Leader, Nobody> {
        let snapshot = read(&*self.store, &self.election).await.map_err(|error| Nobody::Store(format!("{error:#}")))?;
        let Snapshot::Object { record: Some(record), .. } = snapshot else { return Err(Nobody::HasLed) };
        let Some(node) = record.node else { return Err(Nobody::HasLed) };
        let (incarnation, term) = (record.incarnation, record.term);
        // On this machine, the host's own user needs neither an announcement nor the token.
        let here = async || Endpoint::here(&incarnation).await.ok();
        if !self.has_token
            && let Some(endpoint) = here().await
        {
            return Ok(Leader { node, incarnation, term, endpoint });
        }
        let said = patiently(2, async || self.store.announced(&self.election, &node).await).await;
        let said = said.map_err(|error| Nobody::Store(format!("cannot read the announcement of {node}: {error}")))?;
        // A host takes back what it has said when it ends in order. One that has begun says something at once.
        let Some(said) = said else { return Err(Nobody::IsThere { node }) };
        let said = Announcement::decode(&said);
        if said.as_ref().is_some_and(|said| said.rival.is_some() && said.incarnation != incarnation) {
            return Err(Nobody::IsOne { node });
        }
        let admin = said.and_then(|said| said.admin.parse().ok());
        // Another machine's loopback is not this one's, where somebody else may listen.
        let is_there = |admin: &AdminUrl| self.is_one_machine || admin.is_encrypted() || !admin.is_private();
        let endpoint = match admin.filter(is_there) {
            Some(admin) => Some(Endpoint::Url(admin)),
            None => here().await,
        };
        match endpoint {
            Some(endpoint) => Ok(Leader { node, incarnation, term, endpoint }),
            None => Err(Nobody::SaysWhere { node }),
        }
    }

    /// Waits until the store names another than this one. One that does not answer says nothing of who leads.
    async fn has_another_than(&self, leader: &Leader) {
        loop {
            sleep(LOOK).await;
            if let Ok(now) = self.leader().await
                && (now.incarnation != leader.incarnation || now.endpoint != leader.endpoint)
            {
                return;
            }
        }
    }
}

/// The next piece; none once that time has come.
async fn next(answer: &mut Answer, until: Option<Instant>) -> Result<Option<axum::body::Bytes>, AskError> {
    match until {
        None => answer.piece().await,
        Some(until) => tokio::time::timeout_at(until, answer.piece()).await.unwrap_or(Ok(None)),
    }
}
