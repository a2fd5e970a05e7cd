//! The status socket: what the store does not know, `baton status` learns from the hosts of its machine.
//!
//! Each host listens on a socket without a file (Linux's abstract namespace), whose name has its user and its
//! incarnation. Whoever connects, if it is the same user, gets one JSON document. Nothing can be asked for,
//! and nothing rests on it: a host without it runs as well.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;

use baton_election::Term;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::runtime::{InUse, Running};
use crate::store::StoreUrl;

/// How long either side waits for the other. They are processes of one machine.
const PATIENCE: Duration = Duration::from_millis(500);

/// No host says more, in bytes: a thousand elections stay under it.
const LONGEST_ANSWER: u64 = 1 << 20;

/// Where Linux lists the sockets of this network namespace.
const SOCKETS: &str = "/proc/net/unix";

/// What an instance on this machine uses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LocalUse {
    /// The store of its election.
    pub store: String,
    /// The election.
    pub election: String,
    /// Its term.
    pub term: Term,
    /// What it uses.
    pub in_use: InUse,
}

/// A host's end of it.
pub struct StatusSocket(UnixListener);

impl StatusSocket {
    /// Opens the socket of one start of the host. Needs a Tokio runtime.
    ///
    /// # Errors
    /// Where the system has no such sockets.
    pub fn open(incarnation: &str) -> io::Result<Self> {
        let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(prefix() + incarnation)?)?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener).map(Self)
    }

    /// Answers, until it is dropped. One after the other is enough for people.
    pub async fn serve(self, store: &StoreUrl, running: &Running) {
        let store = name_of(store);
        loop {
            match self.0.accept().await {
                // Whoever does not read, or goes away, harms nobody.
                Ok((client, _)) => drop(timeout(PATIENCE, answer(client, &store, running)).await),
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }
}

async fn answer(mut client: UnixStream, store: &str, running: &Running) -> io::Result<()> {
    if !is_same_user(&client)? {
        return Ok(());
    }
    let local = running.in_use().into_iter().map(|(election, term, in_use)| LocalUse {
        store: store.to_owned(),
        election: election.to_string(),
        term,
        in_use,
    });
    client.write_all(&serde_json::to_vec(&local.collect::<Vec<_>>())?).await?;
    client.shutdown().await
}

/// Asks all hosts of this user on this machine what their instances use of a store's elections. A host that does
/// not answer is left out.
pub async fn ask(store: &StoreUrl) -> Vec<LocalUse> {
    let store = name_of(store);
    let mut all = Vec::new();
    for name in names() {
        if let Ok(Ok(local)) = timeout(PATIENCE, ask_one(&name)).await {
            all.extend(local.into_iter().filter(|local| local.store == store));
        }
    }
    all
}

async fn ask_one(name: &str) -> io::Result<Vec<LocalUse>> {
    let host = StdStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    host.set_nonblocking(true)?;
    let host = UnixStream::from_std(host)?;
    if !is_same_user(&host)? {
        return Ok(Vec::new());
    }
    let mut answer = Vec::new();
    host.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// The names of this user's sockets. None where the system does not list them.
fn names() -> Vec<String> {
    let listed = std::fs::read_to_string(SOCKETS).unwrap_or_default();
    let mut names: Vec<String> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| name.starts_with(&prefix()))
        .map(str::to_owned)
        .collect();
    // Connections are listed by the same name.
    names.sort();
    names.dedup();
    names
}

fn prefix() -> String {
    format!("baton/{}/", rustix::process::geteuid().as_raw())
}

/// Anybody may take a name in that namespace.
fn is_same_user(peer: &UnixStream) -> io::Result<bool> {
    Ok(peer.peer_cred()?.uid() == rustix::process::geteuid().as_raw())
}

/// One name for all ways to write a store.
fn name_of(store: &StoreUrl) -> String {
    match store {
        StoreUrl::Sqlite(folder) => match std::fs::canonicalize(folder) {
            Ok(folder) => StoreUrl::Sqlite(folder).to_string(),
            Err(_) => store.to_string(),
        },
        _ => store.to_string(),
    }
}
