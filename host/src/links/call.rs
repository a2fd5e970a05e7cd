//! How a command of this user says that the store has something new, so that nobody waits for a poll.

use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::StoreUrl;
use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::sockets;
use super::words::{Said, encode};

/// However long the hosts take to listen.
const PATIENCE: Duration = Duration::from_millis(500);

/// Says to every host of this machine that there is something to read: one that nobody leads listens to nobody. Nothing
/// depends on it: who does not hear it finds it a few seconds later.
pub async fn call(url: &StoreUrl, election: &ElectionName) {
    let Some(folder) = super::folder(url) else { return };
    // By this path it is short, however long the folder's is.
    let Ok(folder) = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let folder = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let folder = Path::new(&folder);
    let call = async {
        for to in sockets::listed(folder) {
            tell(folder, to, election).await;
        }
    };
    let _ = timeout(PATIENCE, call).await;
}

/// None is told where nobody listens any more, or does not take it.
async fn tell(folder: &Path, to: String, election: &ElectionName) -> Option<()> {
    let mut host = UnixStream::connect(folder.join(&to)).await.ok().filter(sockets::is_same_user)?;
    let hello = Said::Hello { election: election.to_string(), to, node: None, incarnation: None };
    host.write_all(&[encode(&hello), encode(&Said::Look)].concat()).await.ok()
}
