//! The socket on which a host serves its own user on this machine. On this socket, the admin API can be read without a
//! token. None of Baton's promises depends on this socket.
//!
//! The socket has no file (Linux's abstract namespace). The socket's name contains the host's user and incarnation. Any
//! user can take such a name, so both sides check that the other process belongs to the same user.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use rustix::process::geteuid;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Timeout for connecting, short because both ends are on the same machine.
const CONNECTED_WITHIN: Duration = Duration::from_millis(500);

/// Pause between attempts to connect while the backlog is full.
const RETRY_AFTER: Duration = Duration::from_millis(25);

/// Opens the socket of a host's incarnation.
///
/// # Errors
/// Fails if the system does not support such sockets, or the name is taken.
pub fn open(incarnation: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name(incarnation))?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to the socket of a host's incarnation, if that host runs on this machine as this user.
///
/// # Errors
/// Fails if there is no such socket, another user has taken its name, or the host does not accept the connection in
/// time.
pub async fn connect(incarnation: &str) -> io::Result<UnixStream> {
    let connecting = async {
        loop {
            // The kernel does not block this call: if the backlog is full, the call fails at once.
            match UnixStream::connect(format!("\0{}", name(incarnation))).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(RETRY_AFTER).await,
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
    async fn connect_fails_in_time_when_the_backlog_is_full() {
        let full = format!("test-{}-full", std::process::id());
        let listener = open(&full).unwrap();
        // SAFETY: `listener` keeps the descriptor open, and a second `listen` only changes the length of the backlog.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let address = SocketAddr::from_abstract_name(name(&full)).unwrap();
        let pending = StdStream::connect_addr(&address).unwrap();
        assert!(connect(&full).await.is_err(), "there is no room for another");
        assert!(connect("no-such-host").await.is_err());
        let other = open(&format!("{full}-not")).unwrap();
        assert!(connect(&format!("{full}-not")).await.is_ok());
        drop((listener, pending, other));
    }
}
