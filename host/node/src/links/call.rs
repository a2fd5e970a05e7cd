//! Notifies the hosts on this machine that a command has changed the store. The hosts then do not wait for their next
//! poll. The hosts and the command must run as the same user.

use std::time::Duration;

use baton_election::ElectionName;
use baton_store::StoreUrl;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::sockets::{self, SocketFolder};
use super::wire::{PeerMessage, encode};

/// Timeout for all notifications together.
const PATIENCE: Duration = Duration::from_millis(500);

/// Notifies every host on this machine. Notifying one host is not enough: without a leader, hosts have no links over
/// which to forward the notification. If a host misses the notification, the host finds the change at its next poll, a
/// few seconds later.
pub async fn call(url: &StoreUrl, election: &ElectionName) {
    let Some(folder) = super::folder(url) else { return };
    let Ok(folder) = SocketFolder::open(&folder) else { return };
    let call = async {
        for to in sockets::listed(&folder.path()) {
            tell(&folder, to, election).await;
        }
    };
    let _ = timeout(PATIENCE, call).await;
}

/// Notifies one host. Returns `None` if no host listens on the socket, or if the message could not be sent.
async fn tell(folder: &SocketFolder, to: String, election: &ElectionName) -> Option<()> {
    let mut host = UnixStream::connect(folder.socket(&to)).await.ok().filter(sockets::is_same_user)?;
    let hello = PeerMessage::Hello { election: election.to_string(), to, node: None, incarnation: None };
    host.write_all(&[encode(&hello), encode(&PeerMessage::Look)].concat()).await.ok()
}
