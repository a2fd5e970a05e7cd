//! The status socket: what the store does not know, `baton status` learns from the hosts of its machine.
//!
//! Each host listens on a socket without a file (Linux's abstract namespace), whose name has its user and its
//! incarnation. A client of the same user that connects gets one JSON document. Nothing can be asked for,
//! and nothing rests on it: a host without it runs as well.

use std::collections::BTreeSet;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener};
use std::time::Duration;

use baton_election::Term;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use baton_runtime::{InUse, RunningInstances};
use baton_store::StoreUrl;
use baton_store::foreign::Reader;

/// How long either side waits for the other. They are processes of one machine.
const PATIENCE: Duration = Duration::from_millis(500);

/// No host says more, in bytes: a thousand elections stay under it.
const LONGEST_ANSWER: u64 = 1 << 20;

/// So many sockets are asked at a time: each takes a descriptor.
const AT_A_TIME: usize = 64;

/// However many there are, the answers that have come by then are all.
const ALL_WITHIN: Duration = Duration::from_secs(3);

/// What is read of others' bytes, for [`crate::foreign`]: a host's answer, and the list of sockets.
pub(crate) const READER: Reader = Reader {
    name: "status",
    read: |bytes| {
        drop(serde_json::from_slice::<Vec<LocalUse>>(bytes));
        let names = names_in(&String::from_utf8_lossy(bytes), "baton/0/");
        assert!(names.iter().all(|name| name.starts_with("baton/0/")), "another's sockets are left alone: {names:?}");
    },
};

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
    pub async fn serve(self, store: StoreUrl, running: &RunningInstances) {
        // A folder may be on a disk that hangs.
        let Ok(store) = tokio::task::spawn_blocking(move || name_of(&store)).await else { return };
        loop {
            match self.0.accept().await {
                // A client that does not read, or goes away, harms nobody.
                Ok((client, _)) => drop(timeout(PATIENCE, answer(client, &store, running)).await),
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        }
    }
}

async fn answer(mut client: UnixStream, store: &str, running: &RunningInstances) -> io::Result<()> {
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
/// not answer is left out. Anybody may take a name in that namespace, any number of them, and then not answer: all are
/// asked at a time, and none is waited for longer than the others.
pub async fn ask(store: &StoreUrl) -> Vec<LocalUse> {
    let store = name_of(store);
    let answers = names().into_iter().map(|name| async move { timeout(PATIENCE, ask_one(&name)).await });
    let mut answers = futures::stream::iter(answers).buffer_unordered(AT_A_TIME);
    let mut all = Vec::new();
    let asking = async {
        while let Some(answer) = answers.next().await {
            let local = answer.ok().and_then(Result::ok).unwrap_or_default();
            all.extend(local.into_iter().filter(|local| local.store == store));
        }
    };
    // Those that have answered by then are shown.
    let _ = timeout(ALL_WITHIN, asking).await;
    all
}

async fn ask_one(name: &str) -> io::Result<Vec<LocalUse>> {
    let host = loop {
        // It never waits for the listener there: where nobody takes connections, there is soon no room for more.
        match UnixStream::connect(format!("\0{name}")).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(PATIENCE / 20).await,
            connected => break connected?,
        }
    };
    if !is_same_user(&host)? {
        return Ok(Vec::new());
    }
    let mut answer = Vec::new();
    host.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// The names of this user's sockets, if it is this user who has taken them. None where the system does not list them.
fn names() -> BTreeSet<String> {
    // A name may be of any bytes.
    let listed = std::fs::read(SOCKETS).unwrap_or_default();
    names_in(&String::from_utf8_lossy(&listed), &prefix())
}

/// Connections are listed by the name of what they were made to.
fn names_in(listed: &str, prefix: &str) -> BTreeSet<String> {
    let names = listed.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    names.filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
}

fn prefix() -> String {
    format!("baton/{}/", rustix::process::geteuid().as_raw())
}

/// Whether it is this user who listens, or who has connected. Anybody may take a name in that namespace.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[tokio::test]
    async fn a_socket_that_takes_no_more_connections_holds_nobody_up() {
        let [full, host] = ["full", "host"].map(|name| format!("test-{}-{name}", std::process::id()));
        let address = SocketAddr::from_abstract_name(prefix() + &full).unwrap();
        let listener = StdListener::bind_addr(&address).unwrap();
        // SAFETY: the descriptor is open, and a second call only changes how many may wait.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let waits = StdStream::connect_addr(&address).unwrap();
        assert!(timeout(PATIENCE, ask_one(&(prefix() + &full))).await.is_err(), "there is no room for another");

        let socket = StatusSocket::open(&host).unwrap();
        let serving = tokio::spawn(async move { socket.serve(StoreUrl::Memory, &RunningInstances::default()).await });
        assert!(names().is_superset(&[full, host.clone()].map(|name| prefix() + &name).into()));
        // The one that answers does so all the same.
        assert_eq!(ask(&StoreUrl::Memory).await.len(), 0);
        assert_eq!(ask_one(&(prefix() + &host)).await.unwrap().len(), 0);
        serving.abort();
        drop((listener, waits));
    }

    #[test]
    fn names_are_found_whatever_else_is_listed() {
        let listed = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 1 @baton/7/one\n\
            0000000000000000: 00000003 00000000 00000000 0001 03 2 @baton/7/one\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 3 @\u{fffd}\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 4 /run/baton/7/two\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 5\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 6 @baton/70/three\n";
        assert_eq!(names_in(listed, "baton/7/"), BTreeSet::from(["baton/7/one".to_owned()]));
    }
}
