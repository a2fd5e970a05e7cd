//! The connections to the admin endpoint: few, each for a bounded time, but for those with a stream (see `streams`).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::access::{Caller, Certificate};
use super::streams::Place;

/// So many are open at a time. One more, and the oldest is cut off: those who only hold theirs open, however many they
/// are, keep no probe out.
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

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, routes: Router, certificate: Option<Certificate>) {
    let mut open = JoinSet::new();
    let mut oldest_first: VecDeque<(AbortHandle, Arc<Place>)> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    oldest_first.retain(|(one, place)| !one.is_finished() && !place.is_stream());
                    if oldest_first.len() >= AT_ONCE && let Some((oldest, _)) = oldest_first.pop_front() {
                        oldest.abort();
                    }
                    let place = Arc::new(Place::default());
                    let routes = routes.clone().layer(Extension(Arc::clone(&place)));
                    let tls = certificate.as_ref().map(Certificate::acceptor);
                    let conversation = converse(stream, peer.ip(), routes, tls, Arc::clone(&place));
                    oldest_first.push_back((open.spawn(conversation), place));
                }
                // Its client has hung up, or there are no descriptors left.
                Err(_) => tokio::time::sleep(REFUSED).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

/// Speaks TLS with those who do, and plain HTTP with the others, on one address.
async fn converse(stream: TcpStream, peer: IpAddr, routes: Router, tls: Option<TlsAcceptor>, place: Arc<Place>) {
    let conversation = async {
        let mut first = [0];
        let Ok(Ok(1..)) = timeout(HEAD, stream.peek(&mut first)).await else { return };
        match tls.filter(|_| first == [HANDSHAKE]) {
            None => answer(stream, routes.layer(Extension(Caller::at(peer, false)))).await,
            Some(tls) => {
                let Ok(Ok(stream)) = timeout(HEAD, tls.accept(stream)).await else { return };
                answer(stream, routes.layer(Extension(Caller::at(peer, true)))).await;
            }
        }
    };
    // What is under way then is cut off.
    tokio::select! {
        () = conversation => {}
        () = place.ends(LIFETIME) => {}
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, routes: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    // What goes wrong on a connection is its client's affair.
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await;
}
