//! The connections to the admin endpoint: few, each for a bounded time, but for those with a stream (see `streams`).

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
use super::streams::Place;
use crate::local_socket::is_of_this_user;

/// Bound on the open connections. If one more comes, another is cut off ([`least_wanted`]): clients that open connections
/// and ask nothing keep no probe out.
pub(super) const AT_ONCE: usize = 100;

/// How long a request's head may take, and how long a connection may rest between two.
const HEAD: Duration = Duration::from_secs(5);

/// How long a connection is there, whatever is asked on it; and how long one with a stream is that its client does not
/// read.
const LIFETIME: Duration = Duration::from_secs(60);

/// The longest head, in bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// The first byte of a connection that begins with TLS (RFC 8446, 5.1: the content type of a handshake). No method of
/// HTTP begins so.
const HANDSHAKE: u8 = 22;

/// While the system lets nobody in, it is asked again after so long.
const REFUSED: Duration = Duration::from_millis(100);

/// A new connection.
enum Accepted {
    /// At the address, from this client.
    Address(TcpStream, IpAddr),
    /// At the socket, from the host's own user.
    Socket(UnixStream),
}

/// The next connection at the address, if there is one, or at the socket, if there is one.
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
            // Every user can connect.
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

/// Serves until it is dropped.
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
                    let place = Arc::new(Place::default());
                    let routes = routes.clone().layer(Extension(Arc::clone(&place)));
                    let (task, network) = match accepted {
                        Accepted::Address(stream, peer) => {
                            let tls = certificate.as_ref().map(Certificate::acceptor);
                            let conversation = converse(stream, peer, routes, tls, Arc::clone(&place));
                            (tasks.spawn(conversation), network(peer))
                        }
                        Accepted::Socket(stream) => {
                            (tasks.spawn(converse_here(stream, routes, Arc::clone(&place))), OWN_USER)
                        }
                    };
                    oldest_first.push_back(Open { task, place, network });
                    // If its request is there already, it is answered before the next connection is accepted.
                    tokio::task::yield_now().await;
                }
                // Its client has hung up, or there are no descriptors left.
                Err(_) => tokio::time::sleep(REFUSED).await,
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// The network that clients of the socket are counted with: no client of the address has it.
const OWN_USER: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// A connection that may be cut off.
struct Open {
    task: AbortHandle,
    place: Arc<Place>,
    network: IpAddr,
}

/// The network that a client is counted with: an IPv6 client may have all 2^64 addresses of its own.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The index of the connection to cut off. The network with the most connections loses its oldest one without a request,
/// or its oldest one if each has sent a request. A client that keeps its requests open thus cuts off no other network.
fn least_wanted(oldest_first: &VecDeque<Open>) -> Option<usize> {
    let mut held: HashMap<IpAddr, usize> = HashMap::new();
    for open in oldest_first {
        *held.entry(open.network).or_default() += 1;
    }
    let most = held.values().max()?;
    let candidates = || oldest_first.iter().enumerate().filter(|(_, open)| held.get(&open.network) == Some(most));
    let idle = candidates().find(|(_, open)| !open.place.has_asked());
    idle.or_else(|| candidates().next()).map(|(at, _)| at)
}

/// Speaks TLS with those who do, and plain HTTP with the others, on one address.
async fn converse(stream: TcpStream, peer: IpAddr, routes: Router, tls: Option<TlsAcceptor>, place: Arc<Place>) {
    let conversation = async {
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
    // What is under way then is cut off.
    tokio::select! {
        () = conversation => {}
        () = place.ends(LIFETIME) => {}
    }
}

/// Speaks HTTP with the host's own user.
async fn converse_here(stream: UnixStream, routes: Router, place: Arc<Place>) {
    tokio::select! {
        () = answer(stream, routes.layer(Extension(Caller::own_user())), &place) => {}
        () = place.ends(LIFETIME) => {}
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router, place: &Place) {
    let routes = TowerToHyperService::new(routes);
    let answers = service_fn(|request| {
        place.asks();
        routes.call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    // What goes wrong on a connection is its client's affair.
    let _ = http.serve_connection(TokioIo::new(stream), answers).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    /// A list of connections from pairs of a client's address and whether it has asked.
    async fn open(clients: &[(&str, bool)]) -> VecDeque<Open> {
        let mut tasks = JoinSet::new();
        let mut open = VecDeque::new();
        for (address, has_asked) in clients {
            let place = Arc::new(Place::default());
            if *has_asked {
                place.asks();
            }
            open.push_back(Open { task: tasks.spawn(async {}), place, network: network(address.parse().unwrap()) });
        }
        while tasks.join_next().await.is_some() {}
        open
    }

    #[tokio::test]
    async fn idle_connections_of_the_busiest_network_are_cut_off_first() {
        let flood = [&[("10.0.0.2", false)][..], &[("10.0.0.1", true); 99]].concat();
        for (clients, cut_off) in [
            (&[][..], None),
            // The oldest of one client.
            (&[("10.0.0.1", false), ("10.0.0.1", false)], Some(0)),
            // Not the one that has asked.
            (&[("10.0.0.1", true), ("10.0.0.1", false)], Some(1)),
            (&[("10.0.0.1", true), ("10.0.0.1", true)], Some(0)),
            // Not the probe, though it is the oldest.
            (&[("10.0.0.1", false), ("10.0.0.2", false), ("10.0.0.2", false)], Some(1)),
            (&[("10.0.0.1", false), ("::ffff:10.0.0.2", false), ("10.0.0.2", false)], Some(1)),
            // A network has many addresses.
            (&[("2001:db8::1", false), ("2001:db8:0:1::1", false), ("2001:db8:0:1::2", false)], Some(1)),
            // A connection counts whether it has asked or not.
            (&[("10.0.0.1", true), ("10.0.0.1", true), ("10.0.0.2", false), ("10.0.0.1", false)], Some(3)),
            // Not the probe, though all others are in the middle of a request.
            (&flood[..], Some(1)),
            // No network has the most.
            (&[("10.0.0.1", true), ("10.0.0.2", false)], Some(1)),
        ] {
            assert_eq!(least_wanted(&open(clients).await), cut_off, "{clients:?}");
        }
    }
}
