//! The connections to the admin endpoint: few, each for a bounded time.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// So many are open at a time. One more, and the oldest is cut off: those who only hold theirs open, however many they
/// are, keep no probe out.
pub(super) const AT_ONCE: usize = 100;

/// How long a request's head may take, and how long a connection may rest between two.
const HEAD: Duration = Duration::from_secs(5);

/// How long a connection is there, whatever is asked on it.
const LIFETIME: Duration = Duration::from_secs(60);

/// The longest head, in bytes. Nothing that is asked here has a body.
const LONGEST_HEAD: usize = 16 << 10;

/// While the system lets nobody in, it is asked again after so long.
const REFUSED: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let mut open = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|one| !one.is_finished());
                    if oldest_first.len() >= AT_ONCE && let Some(oldest) = oldest_first.pop_front() {
                        oldest.abort();
                    }
                    oldest_first.push_back(open.spawn(converse(stream, routes.clone())));
                }
                // Its client has hung up, or there are no descriptors left.
                Err(_) => tokio::time::sleep(REFUSED).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

async fn converse(stream: TcpStream, routes: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // What goes wrong on a connection is its client's affair.
    let _ = timeout(LIFETIME, connection).await;
}
