//! A client for the admin endpoints of hosts, and for the local sockets of hosts on this machine.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{ACCEPT, AUTHORIZATION, HOST};
use axum::http::{HeaderValue, Request, StatusCode};
use futures::{Stream, StreamExt as _};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::process::geteuid;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::WrongConfiguration;
use super::listener::user_behind;
use baton_admin::local_socket;
use baton_admin::{AdminUrl, token};
use baton_runtime::read_file;
use baton_store::StoreUrl;

const TOKEN_FILE: &str = "--token-file";

/// Timeout for the head of a node's response.
const RESPONSE_WITHIN: Duration = Duration::from_secs(10);

/// Maximum silence on a stream before it counts as broken: three times the nodes' keep-alive interval.
const SILENT: Duration = Duration::from_secs(30);

/// Largest response to accept in bytes, except for streams. A node keeps 1 MiB of each kind of entry, and JSON escaping
/// can make the entries several times larger.
const LONGEST: usize = 32 << 20;

/// Maximum length of the explanation in an error response, in bytes. The rest is not read.
const LONGEST_REASON: usize = 4 << 10;

/// Largest file of CA certificates, in bytes.
const LARGEST_PEM: u64 = 16 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Endpoint {
    /// The local socket of the host with this incarnation (the id of a host process). The socket serves only the user
    /// who runs the host.
    Here(String),
    Url(AdminUrl),
}

impl Endpoint {
    /// Returns the local socket of a host on this machine. Fails unless this user runs the host.
    pub(super) async fn here(incarnation: &str) -> std::io::Result<Self> {
        local_socket::connect(incarnation).await.map(|_| Self::Here(incarnation.to_owned()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(_) => f.write_str("on this machine"),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// Requests a document from a host that this user runs on this machine.
pub(super) async fn ask_here(incarnation: &str, path: &str) -> Result<Vec<u8>, AskError> {
    let stream = local_socket::connect(incarnation).await.map_err(AskError::failed)?;
    let request = Request::get(path).header(HOST, LOCALHOST).body(Body::empty()).map_err(AskError::failed)?;
    let (status, answer) =
        timeout(RESPONSE_WITHIN, send(stream, request)).await.map_err(AskError::failed)?.map_err(AskError::failed)?;
    if status == StatusCode::OK { answer.whole().await } else { Err(AskError::Failed(status.to_string())) }
}

const LOCALHOST: &str = "localhost";

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    /// Retries are useless until the cause is fixed.
    #[error("{0}")]
    Refused(String),
    /// A retry may succeed.
    #[error("{0}")]
    Failed(String),
}

impl AskError {
    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) struct Client {
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    /// The users whose processes on this machine may receive the token without TLS.
    trusted: BTreeSet<u32>,
}

pub(super) struct Answer {
    pieces: std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, axum::Error>> + Send>>,
    /// Drives the connection. The connection ends when this value is dropped.
    _carrier: JoinSet<()>,
}

impl Client {
    pub(super) fn with(token_file: Option<&Path>, ca: Option<&Path>, store: &StoreUrl) -> anyhow::Result<Self> {
        let mut trusted = BTreeSet::from([0, geteuid().as_raw()]);
        // Also trust the owner of a SQLite store's folder, who controls the store's hosts anyway.
        if let StoreUrl::Sqlite(folder) = store {
            trusted.extend(std::fs::metadata(folder).map(|folder| folder.uid()));
        }
        let client = Self { token_file: token_file.map(Path::to_owned), ca: ca.map(Path::to_owned), trusted };
        // Check the files now, to report errors before the first request. Each request reads the files again.
        if let Some(file) = &client.token_file {
            token(TOKEN_FILE, file).map_err(WrongConfiguration::new)?;
        }
        if client.ca.is_some() {
            client.tls().map_err(WrongConfiguration::new)?;
        }
        Ok(client)
    }

    pub(super) fn has_token(&self) -> bool {
        self.token_file.is_some()
    }

    /// Requests a path from a host. `accepts` is the requested media type. `after` is the id of the last event that the
    /// caller has received, if any.
    pub(super) async fn ask(
        &self,
        endpoint: &Endpoint,
        path: &str,
        accepts: &'static str,
        after: Option<&str>,
    ) -> Result<Answer, AskError> {
        let response = timeout(RESPONSE_WITHIN, self.send_request_to(endpoint, path, accepts, after)).await;
        response.unwrap_or_else(|_| Err(AskError::Failed(format!("no response within {RESPONSE_WITHIN:?}"))))
    }

    async fn send_request_to(
        &self,
        endpoint: &Endpoint,
        path: &str,
        accepts: &'static str,
        after: Option<&str>,
    ) -> Result<Answer, AskError> {
        let (target, host) = match endpoint {
            Endpoint::Here(_) => (path.to_owned(), LOCALHOST),
            Endpoint::Url(node) => (node.target(path), node.authority()),
        };
        let mut request = Request::get(target).header(HOST, host).header(ACCEPT, HeaderValue::from_static(accepts));
        if let Some(id) = after {
            request = request.header("last-event-id", id);
        }
        if let (Some(file), Endpoint::Url(node)) = (&self.token_file, endpoint) {
            if !node.is_private() {
                let why = "the token is not sent in plain text: the node's URL is neither https nor on this machine";
                return Err(AskError::Refused(why.to_owned()));
            }
            let token = token(TOKEN_FILE, file).map_err(|error| AskError::Refused(error.to_string()))?;
            let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(AskError::failed)?;
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Body::empty()).map_err(AskError::failed)?;
        let answer = match endpoint {
            Endpoint::Here(incarnation) => {
                send(local_socket::connect(incarnation).await.map_err(AskError::failed)?, request).await
            }
            Endpoint::Url(node) => {
                let (host, port) = node.place();
                let stream = TcpStream::connect((&*host, port)).await.map_err(AskError::failed)?;
                if node.is_encrypted() {
                    let name = ServerName::try_from(host).map_err(AskError::failed)?;
                    let tls = self.tls().map_err(|error| AskError::Refused(error.to_string()))?;
                    send(tls.connect(name, stream).await.map_err(AskError::failed)?, request).await
                } else {
                    if self.token_file.is_some() {
                        self.check_listener_is_trusted(&stream).await?;
                    }
                    send(stream, request).await
                }
            }
        };
        let (status, answer) = answer.map_err(AskError::failed)?;
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let explanation = answer.beginning(LONGEST_REASON).await;
        let why = format!("{status}: {}", String::from_utf8_lossy(&explanation).trim());
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => AskError::Refused(why),
            _ => AskError::Failed(why),
        })
    }

    /// Checks that a trusted user runs the process that listens. After a host has exited, another user could take over
    /// the host's port.
    async fn check_listener_is_trusted(&self, stream: &TcpStream) -> Result<(), AskError> {
        let who = match user_behind(stream).await.map_err(AskError::failed)? {
            Some(user) if self.trusted.contains(&user) => return Ok(()),
            Some(user) => format!("a process of user {user} listens there"),
            None => "the user of the process that listens there is unknown".to_owned(),
        };
        let trusted: Vec<String> = self.trusted.iter().map(ToString::to_string).collect();
        Err(AskError::Refused(format!(
            "the token is not sent: {who}, but only users {} may receive it (root, the store's owner, and you); if \
             that process is the node, run this command as its user, or start the node with `--admin-tls-cert` and \
             `--admin-advertise https://…`",
            trusted.join(", ")
        )))
    }

    fn tls(&self) -> Result<TlsConnector, UntrustedTls> {
        let mut roots = RootCertStore::empty();
        let mut why = None;
        if let Some(path) = &self.ca {
            let unusable = |why: String| UntrustedTls { place: format!("--ca {}", path.display()), why };
            let pem = read_file(path, LARGEST_PEM).map_err(|error| unusable(format!("the file {error}")))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
                roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            why = found.errors.first().map(ToString::to_string);
        }
        let place = self.ca.as_ref().map_or("the system".to_owned(), |path| format!("--ca {}", path.display()));
        if roots.is_empty() {
            let why = why.unwrap_or_else(|| "no certificate (PEM) was found".to_owned());
            return Err(UntrustedTls { place, why });
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| UntrustedTls { place, why: error.to_string() })?;
        Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{place}: cannot load CA certificates for verifying nodes: {why}")]
struct UntrustedTls {
    place: String,
    why: String,
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Body>,
) -> Result<(StatusCode, Answer), hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut carrier = JoinSet::new();
    // Ignore the result: `Answer::piece` also returns the connection's errors.
    carrier.spawn(async move { drop(connection.await) });
    let (head, body) = sender.send_request(request).await?.into_parts();
    let pieces = Box::pin(Body::new(body).into_data_stream());
    Ok((head.status, Answer { pieces, _carrier: carrier }))
}

impl Answer {
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, AskError> {
        match timeout(SILENT, self.pieces.next()).await {
            Ok(None) => Ok(None),
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(Some(Err(error))) => Err(AskError::failed(error)),
            Err(_) => Err(AskError::Failed(format!("the node sent nothing for {SILENT:?}"))),
        }
    }

    pub(super) async fn whole(mut self) -> Result<Vec<u8>, AskError> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece().await? {
            whole.extend_from_slice(&piece);
            if whole.len() > LONGEST {
                return Err(AskError::Failed(format!(
                    "the response is longer than {LONGEST} bytes, so it is not from a node"
                )));
            }
        }
        Ok(whole)
    }

    /// Reads up to `longest` bytes, and stops at the first error.
    async fn beginning(mut self, longest: usize) -> Vec<u8> {
        let mut beginning = Vec::new();
        while beginning.len() < longest
            && let Ok(Some(piece)) = self.piece().await
        {
            beginning.extend_from_slice(&piece);
        }
        beginning.truncate(longest);
        beginning
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn token_is_not_sent_to_a_process_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Endpoint::Url(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let received = Arc::new(Mutex::new(String::new()));
        let server_received = Arc::clone(&received);
        let _answers = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).await.unwrap();
                server_received.lock().unwrap().push_str(&String::from_utf8_lossy(&request[..length]));
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]").await;
            }
        });
        let client = |token: Option<&Path>| Client::with(token, None, &StoreUrl::Memory).unwrap();
        let other = Client { trusted: BTreeSet::from([12_345]), ..client(Some(&file)) };
        let refused = other.ask(&node, "/v1/events", "application/json", None).await.err().unwrap();
        let own = geteuid().as_raw();
        let reason = format!("a process of user {own} listens there, but only users 12345 may receive it");
        assert!(matches!(&refused, AskError::Refused(why) if why.contains(&reason)), "{refused}");
        assert_eq!(*received.lock().unwrap(), "", "nothing was sent at all");
        // The first client trusts no user, but may connect anyway, because it has no token to protect. The second
        // client trusts the user who runs the listening process, and sends its token.
        for (client, has_token) in
            [(Client { trusted: BTreeSet::new(), ..client(None) }, false), (client(Some(&file)), true)]
        {
            client.ask(&node, "/v1/events", "application/json", None).await.unwrap().whole().await.unwrap();
            let request = std::mem::take(&mut *received.lock().unwrap());
            assert_eq!(request.contains("0123456789abcdef"), has_token, "{request}");
        }
    }
}
