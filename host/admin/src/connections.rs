//! The connections to the admin endpoint. The endpoint limits their number and their lifetime, except for connections
//! that carry a stream (see `streams`).

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::access::{Caller, Certificate};
use super::streams::ConnectionState;
use crate::local_socket::is_of_this_user;

/// Maximum number of open connections. At this number, the endpoint closes an open connection ([`least_wanted`]) for
/// each new one. Without this rule, a client that keeps opening connections could lock out probes.
pub(super) const AT_ONCE: usize = 100;

/// Timeout for receiving the head of a request. Also the timeout for idle connections.
const HEAD: Duration = Duration::from_secs(5);

/// Maximum lifetime of a connection. A connection that carries a stream has no maximum lifetime, but is closed if its
/// client reads nothing for this long.
const LIFETIME: Duration = Duration::from_secs(60);

/// Maximum size of a request's head, in bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// The first byte of a TLS connection (RFC 8446, 5.1: the content type `handshake`). No HTTP method starts with this
/// byte.
const HANDSHAKE: u8 = 22;

const ACCEPT_RETRY: Duration = Duration::from_millis(100);

enum Accepted {
    Address(TcpStream, IpAddr),
    Socket(UnixStream),
}

async fn accept(listener: Option<&TcpListener>, socket: Option<&UnixListener>) -> io::Result<Accepted> {
    let at_address = async {
        match listener {
            Some(listener) => listener.accept().await.map(|(stream, peer)| Accepted::Address(stream, peer.ip())),
            None => pending().await,
        }
    };
    let at_socket = async {
        let Some(socket) = socket else { return pending().await };
        loop {
            let (stream, _) = socket.accept().await?;
            // Any user can connect to the socket, so check which user did.
            if is_of_this_user(&stream) {
                return Ok(Accepted::Socket(stream));
            }
        }
    };
    tokio::select! {
        accepted = at_address => accepted,
        accepted = at_socket => accepted,
    }
}

pub(super) async fn serve(
    listener: Option<TcpListener>,
    socket: Option<UnixListener>,
    routes: Router,
    certificate: Option<Certificate>,
) {
    let mut tasks = JoinSet::new();
    let mut oldest_first: VecDeque<Open> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = accept(listener.as_ref(), socket.as_ref()) => match accepted {
                Ok(accepted) => {
                    oldest_first.retain(|open| !open.task.is_finished() && !open.place.is_stream());
                    if oldest_first.len() >= AT_ONCE
                        && let Some(open) = least_wanted(&oldest_first).and_then(|at| oldest_first.remove(at))
                    {
                        open.task.abort();
                    }
                    let place = Arc::new(ConnectionState::default());
                    let routes = routes.clone().layer(Extension(Arc::clone(&place)));
                    let (task, group) = match accepted {
                        Accepted::Address(stream, peer) => {
                            let tls = certificate.as_ref().map(Certificate::acceptor);
                            let served = serve_address(stream, peer, routes, tls, Arc::clone(&place));
                            (tasks.spawn(served), ClientGroup::Network(network(peer)))
                        }
                        Accepted::Socket(stream) => {
                            (tasks.spawn(serve_socket(stream, routes, Arc::clone(&place))), ClientGroup::LocalSocket)
                        }
                    };
                    oldest_first.push_back(Open { task, place, group });
                    // Yield, so that a request that has already arrived is answered before the next connection is
                    // accepted.
                    tokio::task::yield_now().await;
                }
                // The client has closed the connection, or no file descriptors are left.
                Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// A group of clients. The endpoint counts the connections of a group together when it chooses a connection to close.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum ClientGroup {
    LocalSocket,
    /// The clients from one [`network`] on the TCP address.
    Network(IpAddr),
}

/// A connection that may be closed in favor of a new one.
struct Open {
    task: AbortHandle,
    place: Arc<ConnectionState>,
    group: ClientGroup,
}

/// Returns a client's network: for IPv4, the address itself; for IPv6, the /64 network, since a single client may use
/// all addresses in it.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Returns the index of the connection to close. Chooses the group with the most connections. Within that group,
/// chooses the oldest connection that has not sent a request, or the oldest connection if all have sent one. A client
/// that keeps requests open therefore cannot cause connections of other groups to be closed.
fn least_wanted(oldest_first: &VecDeque<Open>) -> Option<usize> {
    let mut held: HashMap<ClientGroup, usize> = HashMap::new();
    for open in oldest_first {
        *held.entry(open.group).or_default() += 1;
    }
    let most = held.values().max()?;
    let candidates = || oldest_first.iter().enumerate().filter(|(_, open)| held.get(&open.group) == Some(most));
    let idle = candidates().find(|(_, open)| !open.place.has_asked());
    idle.or_else(|| candidates().next()).map(|(at, _)| at)
}

/// Serves a connection on the TCP address: TLS if the client starts with a handshake, otherwise plain HTTP.
async fn serve_address(
    stream: TcpStream,
    peer: IpAddr,
    routes: Router,
    tls: Option<TlsAcceptor>,
    place: Arc<ConnectionState>,
) {
    let served = async {
        let mut first = [0];
        let Ok(Ok(1..)) = timeout(HEAD, stream.peek(&mut first)).await else { return };
        match tls.filter(|_| first == [HANDSHAKE]) {
            None => answer(stream, routes.layer(Extension(Caller::at(peer, false))), &place).await,
            Some(tls) => {
                let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await else { return };
                answer(stream, routes.layer(Extension(Caller::at(peer, true))), &place).await;
            }
        }
    };
    tokio::select! {
        () = served => {}
        () = place.ends(LIFETIME) => {}
    }
}

async fn serve_socket(stream: UnixStream, routes: Router, place: Arc<ConnectionState>) {
    tokio::select! {
        () = answer(stream, routes.layer(Extension(Caller::own_user())), &place) => {}
        () = place.ends(LIFETIME) => {}
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router, place: &ConnectionState) {
    let routes = TowerToHyperService::new(routes);
    let answers = service_fn(|request| {
        place.asks();
        routes.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    // Ignore connection errors, which only concern the client.
    let _ = http.serve_connection(TokioIo::new(stream), answers).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    /// Returns connections from these client addresses; `socket` is the local socket. The flag says whether the client
    /// has sent a request.
    async fn open(clients: &[(&str, bool)]) -> VecDeque<Open> {
        let mut tasks = JoinSet::new();
        let mut open = VecDeque::new();
        for (address, has_asked) in clients {
            let place = Arc::new(ConnectionState::default());
            if *has_asked {
                place.asks();
            }
            let group = match *address {
                "socket" => ClientGroup::LocalSocket,
                address => ClientGroup::Network(network(address.parse().unwrap())),
            };
            open.push_back(Open { task: tasks.spawn(async {}), place, group });
        }
        while tasks.join_next().await.is_some() {}
        open
    }

    #[tokio::test]
    async fn idle_connection_of_the_busiest_network_is_closed_first() {
        let flood = [&[("10.0.0.2", false)][..], &[("10.0.0.1", true); 99]].concat();
        for (clients, cut_off) in [
            (&[][..], None),
            // If all connections are from one client, the oldest is closed.
            (&[("10.0.0.1", false), ("10.0.0.1", false)], Some(0)),
            // A connection that has sent no request is closed first.
            (&[("10.0.0.1", true), ("10.0.0.1", false)], Some(1)),
            (&[("10.0.0.1", true), ("10.0.0.1", true)], Some(0)),
            // The single connection of 10.0.0.1 is kept, although it is the oldest: another client has two.
            (&[("10.0.0.1", false), ("10.0.0.2", false), ("10.0.0.2", false)], Some(1)),
            (&[("10.0.0.1", false), ("::ffff:10.0.0.2", false), ("10.0.0.2", false)], Some(1)),
            // Addresses in one /64 network count as one client.
            (&[("2001:db8::1", false), ("2001:db8:0:1::1", false), ("2001:db8:0:1::2", false)], Some(1)),
            // The clients on the local socket are a group of their own, and not the network of `::1`.
            (&[("socket", false), ("::1", false), ("::1", false)], Some(1)),
            // All connections from a network count, even those that have sent a request.
            (&[("10.0.0.1", true), ("10.0.0.1", true), ("10.0.0.2", false), ("10.0.0.1", false)], Some(3)),
            // The single connection of 10.0.0.2 is kept, although it is the only one that has sent no request.
            (&flood[..], Some(1)),
            // Each network has one connection, so the one that has sent no request is closed.
            (&[("10.0.0.1", true), ("10.0.0.2", false)], Some(1)),
        ] {
            assert_eq!(least_wanted(&open(clients).await), cut_off, "{clients:?}");
        }
    }
}
