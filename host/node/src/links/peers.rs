//! Links with hosts on other machines. The links use TLS with the announced certificates, and carry the same messages
//! as local sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use baton_store::{Digest, ObjectStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::rustls::Error;
use tokio_rustls::{TlsAcceptor, client, server};

use super::directory::Directory;
use super::link::{HELLO_WITHIN, LOOKED_UP_WITHIN};
use super::peer_addr::notices_death;
use super::tls::{self, Identity};
use super::wire::PeerQuery;

const CONNECTED_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Network {
    identity: Identity,
    acceptor: TlsAcceptor,
    /// Cache of the leaders' announcements. Callers have a separate cache, so that strangers cannot delay this host's
    /// connection to a leader.
    leaders: Directory,
    pub(super) callers: Directory,
    pub(super) elections: BTreeSet<String>,
}

impl Network {
    /// # Errors
    /// If the certificate and the key of the identity do not match.
    pub(super) fn new(
        identity: Identity,
        store: Arc<dyn ObjectStore>,
        elections: BTreeSet<String>,
    ) -> Result<Self, Error> {
        let acceptor = identity.acceptor()?;
        let (leaders, callers) = (Directory::new(Arc::clone(&store)), Directory::new(store));
        Ok(Self { identity, acceptor, leaders, callers, elections })
    }
}

/// Accepts a TLS connection. Returns the stream and the fingerprint of the peer's certificate. Returns `None` if the
/// handshake fails or takes longer than [`HELLO_WITHIN`].
pub(super) async fn accept(network: &Network, stream: TcpStream) -> Option<(server::TlsStream<TcpStream>, Digest)> {
    timeout(HELLO_WITHIN, tls::accept(&network.acceptor, stream)).await.ok()?.ok()
}

/// Connects to a peer at one of its announced addresses. Returns `None` if the peer has announced no address, or if the
/// address was not found within [`LOOKED_UP_WITHIN`].
///
/// # Errors
/// If the announced name cannot be resolved, or no address can be reached. Returns the last address's error.
pub(super) async fn connect(
    network: &Network,
    peer: PeerQuery,
) -> Result<Option<client::TlsStream<TcpStream>>, String> {
    let found = timeout(LOOKED_UP_WITHIN, network.leaders.addresses(&peer)).await;
    let Some((certificate, addresses)) = found.unwrap_or(Ok(None))? else { return Ok(None) };
    let connector = network.identity.connector(certificate).map_err(|error| error.to_string())?;
    let mut why = "the leader's host name does not resolve to an address".to_owned();
    for address in addresses {
        let connects = async {
            let stream = TcpStream::connect(address).await?;
            notices_death(&stream)?;
            tls::connect(&connector, stream).await
        };
        why = match timeout(CONNECTED_WITHIN, connects).await {
            Ok(Ok(stream)) => return Ok(Some(stream)),
            Ok(Err(error)) => format!("{address}: {error}"),
            Err(_) => format!("{address}: no response within {CONNECTED_WITHIN:?}"),
        };
    }
    Err(why)
}
