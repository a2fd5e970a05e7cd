//! How a command of this user says that the store has something new, so that nobody waits for a poll.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use baton_election::{ElectionName, Op, Reply, Snapshot};
use baton_store::{LeaseStore, StoreUrl};
use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::sockets;
use super::words::{Said, encode, is_incarnation};

/// However long whoever leads takes to listen.
const PATIENCE: Duration = Duration::from_millis(500);

/// Says to whoever leads that there is something to read. Nothing depends on it: where nobody hears it, everybody finds it
/// a few seconds later.
pub async fn call(url: &StoreUrl, store: &(impl LeaseStore + ?Sized), election: &ElectionName) {
    let call = async {
        let folder = super::folder(url)?;
        let Ok(Reply::Read(Snapshot::Object { record: Some(record), .. })) = store.request(election, Op::Read).await
        else {
            return None;
        };
        let to = Some(record.incarnation).filter(|incarnation| is_incarnation(incarnation))?;
        // By this path it is short, however long the folder's is.
        let folder =
            rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let path = format!("/proc/self/fd/{}/{to}", folder.as_raw_fd());
        let mut leader = UnixStream::connect(path).await.ok().filter(sockets::is_same_user)?;
        let hello = Said::Hello { election: election.to_string(), to, node: None, incarnation: None };
        let words = [encode(&hello), encode(&Said::Look)].concat();
        leader.write_all(&words).await.ok()
    };
    let _ = timeout(PATIENCE, call).await;
}
