//! Links with hosts of other machines: TCP and TLS with the announced certificates, then the same lines as on a socket.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, client};

use super::attend::{Event, Events, HELLO_WITHIN, Shown, ask, attend};
use super::place::notices_death;
use super::tls::{self, Identity};
use super::words::{Peer, Question};

const REACHED_WITHIN: Duration = Duration::from_secs(2);

/// Completes the handshake with a peer that has connected, and carries the link. The peer must be quick and name this
/// incarnation.
pub(super) async fn meet(
    link: u64,
    stream: TcpStream,
    (acceptor, to): (TlsAcceptor, String),
    waiting: mpsc::Receiver<Vec<u8>>,
    events: Events,
) {
    if let Ok(Ok((stream, certificate))) = timeout(HELLO_WITHIN, tls::accept(&acceptor, stream)).await {
        attend(link, stream, Some(Shown { certificate, to }), HELLO_WITHIN, waiting, &events).await;
    }
    let _ = events.send((link, Event::Ended(None))).await;
}

/// Connects to a peer at its announced addresses. Returns none if the host knows nothing of the peer.
///
/// # Errors
/// No address could be reached. Holds the last reason.
pub(super) async fn reach(
    link: u64,
    peer: Question,
    identity: &Identity,
    events: &Events,
) -> Result<Option<client::TlsStream<TcpStream>>, String> {
    let Some(Peer { certificate, addresses }) = ask(link, peer, events).await else { return Ok(None) };
    let connector = identity.connector(certificate).map_err(|error| error.to_string())?;
    let mut why = "the name of the leader's host has no address".to_owned();
    for address in addresses {
        let connects = async {
            let stream = TcpStream::connect(address).await?;
            notices_death(&stream)?;
            tls::connect(&connector, stream).await
        };
        why = match timeout(REACHED_WITHIN, connects).await {
            Ok(Ok(stream)) => return Ok(Some(stream)),
            Ok(Err(error)) => format!("{address}: {error}"),
            Err(_) => format!("{address}: no response within {REACHED_WITHIN:?}"),
        };
    }
    Err(why)
}
