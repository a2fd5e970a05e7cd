//! A host's socket for its own user on this machine: the admin API, for reading without a token.
//!
//! The socket has no file (Linux's abstract namespace). Its name has the host's user and incarnation. Both sides check that
//! the other one's process belongs to the same user, since any user may take such a name. Nothing rests on it: a host
//! without the socket works as well.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use rustix::process::geteuid;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Longest time that a client waits for the connection. Both ends are processes of one machine.
const CONNECTED_WITHIN: Duration = Duration::from_millis(500);

/// Time between two tries to connect to a socket without room.
const AGAIN: Duration = Duration::from_millis(25);

/// Opens the socket of one start of a host.
///
/// # Errors
/// If the system has no such sockets, or the name is taken.
pub fn open(incarnation: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(incarnation))?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to the socket of that start of a host, if it runs on this machine as this user.
///
/// # Errors
/// If there is no such socket, another user has its name, or its host does not accept in time.
pub async fn connect(incarnation: &str) -> io::Result<UnixStream> {
    let connecting = async {
        loop {
            // The kernel does not queue this call: without room for another connection, it fails at once.
            match UnixStream::connect(format!("\0{}", name(incarnation))).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(AGAIN).await,
                connected => break connected,
            }
        }
    };
    let host = timeout(CONNECTED_WITHIN, connecting).await??;
    if is_of_this_user(&host) { Ok(host) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// True if the process at the other end belongs to this user.
pub fn is_of_this_user(peer: &UnixStream) -> bool {
    peer.peer_cred().is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

fn name(incarnation: &str) -> String {
    format!("baton/{}/{incarnation}", geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[tokio::test]
    async fn socket_without_room_holds_nobody_up() {
        let full = format!("test-{}-full", std::process::id());
        let listener = open(&full).unwrap();
        // SAFETY: the descriptor is open, and a second call only changes how many may wait.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = SocketAddr::from_abstract_name(name(&full)).unwrap();
        let waits = StdStream::connect_addr(&address).unwrap();
        assert!(connect(&full).await.is_err(), "there is no room for another");
        assert!(connect("no-such-host").await.is_err());
        let other = open(&format!("{full}-not")).unwrap();
        assert!(connect(&format!("{full}-not")).await.is_ok());
        drop((listener, waits, other));
    }
}
