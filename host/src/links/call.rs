//! Lets a command of this user notify the hosts of this machine that the store has something new, so that none waits
//! for its next poll.

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

/// Upper bound on the time that all notifications take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Notifies every host of this machine, because a host whose election has no leader listens to nobody. Best effort: a
/// host that misses the notification finds the news in its next poll, a few seconds later.
pub async fn call(url: &StoreUrl, election: &ElectionName) {
    let Some(folder) = super::folder(url) else { return };
    // A path through the descriptor fits into a socket address, however long the folder's path is.
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

/// Returns none if nobody listens there any more, or the host does not receive the message.
async fn tell(folder: &Path, to: String, election: &ElectionName) -> Option<()> {
    let mut host = UnixStream::connect(folder.join(&to)).await.ok().filter(sockets::is_same_user)?;
    let hello = Said::Hello { election: election.to_string(), to, node: None, incarnation: None };
    host.write_all(&[encode(&hello), encode(&Said::Look)].concat()).await.ok()
}
