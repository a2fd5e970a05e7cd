//! Access control of the admin endpoint.
//!
//! - **Health**, the leader and the metrics are open to every client that reaches the address.
//! - **Status** is open to all clients on this machine, whichever user runs them. Clients on other machines need the
//!   token and TLS. If a proxy on this machine forwards a request, the request counts as coming from another machine.
//!   The host recognizes such a request by the headers that proxies add.
//! - The **output** of coordinators requires the token even on this machine, since other users share the machine.
//! - **Changes** require the token even on this machine. This module refuses changes that a page on another site
//!   requests.
//!
//! A web page in a browser on this machine could make its own host name resolve to this machine, and then read
//! responses (DNS rebinding). However, the page cannot choose the `Host` header. From clients on this machine, this
//! module therefore accepts only requests in which the header is an IP address or `localhost`.
//!
//! The host's own user has a separate socket ([`crate::local_socket`]), on which everything can be read without a
//! token.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use baton_store::Digest;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use utoipa::IntoResponses;

use super::routes::{AdminState, text};
use baton_base::escape::escape;
use baton_runtime::read_file;

/// Maximum size of a token file, in bytes. A token is a few dozen bytes long.
const LONGEST_TOKEN: u64 = 4096;

/// Minimum length of a token, in characters: 96 random bits in Base64, which cannot be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Maximum size of a file with certificates or a key, in bytes.
const LARGEST_PEM: u64 = 1 << 20;

const READ: Duration = Duration::from_secs(5);

/// The error returned when a file named in the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// The file does not contain a valid token.
    #[error(
        "{flag} {path}: {why}; the file must have one line of at least {SHORTEST_TOKEN} printable ASCII characters, \
         such as the output of `openssl rand -base64 24`"
    )]
    Token {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
    },
    /// The certificate file contains no valid certificate, or the key file does not contain the certificate's key.
    #[error("{flag} {path}: {why}; the file must have {needs} in PEM format")]
    Tls {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        why: String,
        /// The content that the file must have.
        needs: &'static str,
    },
}

/// The files with the endpoint's certificate and key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificate chain, with the endpoint's own certificate first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Fails if a file is invalid, or if the key does not belong to the certificate.
    pub(super) fn acceptor(&self) -> Result<TlsAcceptor, UnusableFile> {
        let unusable = |is_key: bool, why: String| {
            let (flag, path, needs) = match is_key {
                false => ("--admin-tls-cert", &self.certificate, "certificates"),
                true => ("--admin-tls-key", &self.key, "the certificate's private key"),
            };
            UnusableFile::Tls { flag, path: path.clone(), why, needs }
        };
        let certificates = read(&self.certificate, LARGEST_PEM).map_err(|why| unusable(false, why))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificates).collect();
        let certificates = certificates.map_err(|error| unusable(false, error.to_string()))?;
        if certificates.is_empty() {
            return Err(unusable(false, "it has no certificate".to_owned()));
        }
        let key = read(&self.key, LARGEST_PEM).map_err(|why| unusable(true, why))?;
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable(true, error.to_string()))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, key))
            .map_err(|error| unusable(true, error.to_string()))?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The certificate in use. After a replacement, open connections continue to use the previous certificate.
#[derive(Clone)]
pub struct Certificate {
    files: TlsFiles,
    acceptor: Arc<watch::Sender<TlsAcceptor>>,
}

/// A certificate that has been read but is not in use yet.
pub struct NewCertificate(TlsAcceptor);

impl Certificate {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, UnusableFile> {
        let acceptor = Arc::new(watch::Sender::new(files.acceptor()?));
        Ok(Self { files: files.clone(), acceptor })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.borrow().clone()
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// [`UnusableFile`] if a file is invalid, or if the key does not belong to the certificate.
    pub fn reload(&self) -> Result<NewCertificate, UnusableFile> {
        self.files.acceptor().map(NewCertificate)
    }

    /// Uses the certificate for all new connections.
    pub fn renew(&self, NewCertificate(acceptor): NewCertificate) {
        self.acceptor.send_replace(acceptor);
    }
}

fn read(path: &Path, longest: u64) -> Result<Vec<u8>, String> {
    read_file(path, longest).map_err(|error| format!("it {error}"))
}

/// The flag that names a host's token file.
pub const TOKEN_FILE: &str = "--admin-token-file";

/// Reads the token from a file. The host reads the file for each request that presents a token, so the token can be
/// changed while the host runs. `flag` is the setting to show in errors.
///
/// # Errors
/// [`UnusableFile`] if the file does not contain a valid token.
pub fn token(flag: &'static str, path: &Path) -> Result<String, UnusableFile> {
    let unusable = |why: &str| UnusableFile::Token { flag, path: path.to_owned(), why: why.to_owned() };
    let bytes = read(path, LONGEST_TOKEN).map_err(|why| unusable(&why))?;
    let token = String::from_utf8(bytes).map_err(|_| unusable("it is not UTF-8"))?;
    let token = token.trim();
    if token.len() < SHORTEST_TOKEN {
        return Err(unusable(&format!("it has only {} characters", token.len())));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(unusable("it has spaces, or more than one line"));
    }
    Ok(token.to_owned())
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// True if the connection comes from a loopback address of this machine.
    pub(super) is_local: bool,
    /// True if no third party can read the connection.
    pub(super) is_encrypted: bool,
    /// True if the caller runs as the host's own user and connected through the separate socket.
    is_own_user: bool,
}

impl Caller {
    pub(super) fn at(address: IpAddr, is_encrypted: bool) -> Self {
        Self { is_local: address.to_canonical().is_loopback(), is_encrypted, is_own_user: false }
    }

    /// The host's own user may read everything, but needs the token to make changes. The user's own commands need no
    /// token, because they write directly to the store.
    pub(super) fn own_user() -> Self {
        Self { is_local: true, is_encrypted: true, is_own_user: true }
    }

    /// Treats an unknown or forwarded client as being on another machine.
    fn of(parts: &Parts) -> Self {
        let unknown = Self { is_local: false, is_encrypted: false, is_own_user: false };
        let caller = parts.extensions.get().copied().unwrap_or(unknown);
        if is_forwarded(&parts.headers) {
            return Self { is_local: false, is_own_user: false, ..caller };
        }
        caller
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    pub(super) token_file: Option<PathBuf>,
    pub(super) has_tls: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    /// The node has no token or no TLS, so it serves only clients on this machine.
    OnlyHere,
    OnlyOverTls,
    NeedsToken,
    /// The request requires a token, but the node has none.
    HasNoToken,
    /// The node's token file cannot be read.
    NoToken(String),
    /// The request's `Host` header has a host name, which a malicious page may control (DNS rebinding).
    OtherHost(String),
    /// The node has no token, so it accepts no changes.
    ChangesNothing,
    ChangesOverTls,
    CrossSite,
}

/// The refusals, as described in the OpenAPI document.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "only describes the responses of `Denied`")]
pub(super) enum Withheld {
    /// the token is missing or wrong
    #[response(status = 401)]
    Token,
    /// this node does not accept such a request
    #[response(status = 403)]
    Forbidden,
    /// the token file cannot be read
    #[response(status = 503)]
    Unavailable,
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let start = "other machines, and clients behind proxies, can read the status only";
        let (status, why) = match self {
            Self::OnlyHere => (
                StatusCode::FORBIDDEN,
                format!("{start} of nodes with --admin-token-file, --admin-tls-cert and --admin-tls-key\n"),
            ),
            Self::OnlyOverTls => (StatusCode::FORBIDDEN, format!("{start} over TLS: use https\n")),
            Self::NeedsToken => {
                let why = "send the token of --admin-token-file, in the header Authorization: Bearer TOKEN\n";
                let mut response = text(StatusCode::UNAUTHORIZED, why);
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                return response;
            }
            Self::ChangesNothing => {
                (StatusCode::FORBIDDEN, "this node accepts changes only if it has --admin-token-file\n".to_owned())
            }
            Self::ChangesOverTls => {
                let why = "other machines, and clients behind proxies, can make changes only over TLS, on nodes with \
                           --admin-tls-cert and --admin-tls-key";
                (StatusCode::FORBIDDEN, format!("{why}\n"))
            }
            Self::CrossSite => (StatusCode::FORBIDDEN, "pages of other sites cannot make changes\n".to_owned()),
            Self::HasNoToken => {
                (StatusCode::FORBIDDEN, "this needs a token, but the node has no --admin-token-file\n".to_owned())
            }
            Self::NoToken(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            Self::OtherHost(name) => {
                (StatusCode::FORBIDDEN, format!("use an IP address or localhost in the URL, not {}\n", escape(&name)))
            }
        };
        text(status, why)
    }
}

pub(super) struct MaySeeStatus;

impl FromRequestParts<Arc<AdminState>> for MaySeeStatus {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<AdminState>) -> Result<Self, Denied> {
        asked.access.status(Caller::of(parts), &parts.headers, &parts.uri).await.map(|()| Self)
    }
}

pub(super) struct MayChange;

impl FromRequestParts<Arc<AdminState>> for MayChange {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<AdminState>) -> Result<Self, Denied> {
        asked.access.change(Caller::of(parts), &parts.headers, &parts.uri).await.map(|()| Self)
    }
}

/// A client that may read the status. With the token, the client may also read the coordinators' output.
pub(super) struct MayReadOutput {
    /// True if the request has the token, or comes from the host's own user.
    pub(super) has_token: bool,
}

impl FromRequestParts<Arc<AdminState>> for MayReadOutput {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<AdminState>) -> Result<Self, Denied> {
        MaySeeStatus::from_request_parts(parts, asked).await?;
        // A request that contains a token must contain the right one. If the endpoint answered a request with a wrong
        // token, but without the output, the client would not notice the mistake.
        let has_token = parts.headers.contains_key(AUTHORIZATION) || Caller::of(parts).is_own_user;
        if has_token {
            HasToken::from_request_parts(parts, asked).await?;
        }
        Ok(Self { has_token })
    }
}

/// A client with the token, or the host's own user.
pub(super) struct HasToken;

impl FromRequestParts<Arc<AdminState>> for HasToken {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<AdminState>) -> Result<Self, Denied> {
        if Caller::of(parts).is_own_user {
            return Ok(Self);
        }
        let access = &asked.access;
        if access.token_file.is_none() {
            return Err(Denied::HasNoToken);
        }
        // This call checks the token only for clients on other machines. The next call also checks the token for
        // clients on this machine.
        MaySeeStatus::from_request_parts(parts, asked).await?;
        access.token(&parts.headers).await.map(|()| Self)
    }
}

impl Access {
    /// Checks the token even for clients on this machine, since other users share the loopback interface. As a second
    /// barrier, refuses requests from pages on other sites, although browsers do not add the token to such requests.
    async fn change(&self, caller: Caller, headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
        let Some(file) = self.token_file.clone() else { return Err(Denied::ChangesNothing) };
        refuse_other_sites(headers, uri)?;
        if caller.is_local {
            refuse_other_hosts(headers, uri)?;
        } else if !self.has_tls || !caller.is_encrypted {
            return Err(Denied::ChangesOverTls);
        }
        if has_token(file, headers).await? { Ok(()) } else { Err(Denied::NeedsToken) }
    }

    async fn status(&self, caller: Caller, headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
        if caller.is_own_user {
            return Ok(());
        }
        if caller.is_local {
            return refuse_other_hosts(headers, uri);
        }
        if self.token_file.is_none() || !self.has_tls {
            return Err(Denied::OnlyHere);
        }
        if !caller.is_encrypted {
            return Err(Denied::OnlyOverTls);
        }
        self.token(headers).await
    }

    async fn token(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let Some(file) = self.token_file.clone() else { return Err(Denied::HasNoToken) };
        if has_token(file, headers).await? { Ok(()) } else { Err(Denied::NeedsToken) }
    }
}

async fn has_token(file: PathBuf, headers: &HeaderMap) -> Result<bool, Denied> {
    let given = headers.get(AUTHORIZATION).and_then(|given| given.to_str().ok());
    let given =
        given.and_then(|given| given.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let Some((_, given)) = given else { return Ok(false) };
    let read = timeout(READ, spawn_blocking(move || token(TOKEN_FILE, &file))).await;
    let own = match read {
        Ok(Ok(Ok(own))) => own,
        Ok(Ok(Err(error))) => return Err(Denied::NoToken(error.to_string())),
        Ok(Err(_)) | Err(_) => return Err(Denied::NoToken("the token file cannot be read".to_owned())),
    };
    // Compare digests instead of tokens, so that the time taken reveals nothing about the token.
    Ok(Digest::of(given.trim().as_bytes()) == Digest::of(own.as_bytes()))
}

/// Refuses requests that a browser sends on behalf of a page on another site. Two headers reveal such a request:
/// `Sec-Fetch-Site`, and an `Origin` that differs from the requested host. Clients that are not browsers send neither
/// header.
fn refuse_other_sites(headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| ![b"same-origin".as_slice(), b"none"].contains(&site)) {
        return Err(Denied::CrossSite);
    }
    let host = requested_host(headers, uri);
    let is_own = |origin: &HeaderValue| {
        let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
        origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(&host))
    };
    if headers.get_all(ORIGIN).iter().all(is_own) { Ok(()) } else { Err(Denied::CrossSite) }
}

/// Recognizes proxies by their headers. The client of a forwarded request may be on any machine.
fn is_forwarded(headers: &HeaderMap) -> bool {
    let by_proxy = |name: &str| ["forwarded", "via", "x-real-ip"].contains(&name) || name.starts_with("x-forwarded-");
    headers.keys().any(|name| by_proxy(name.as_str()))
}

fn requested_host(headers: &HeaderMap, uri: &Uri) -> String {
    let host = headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    host.or_else(|| uri.authority().map(ToString::to_string)).unwrap_or_default()
}

/// Protects against DNS rebinding: refuses requests whose host is neither an IP address nor `localhost`.
fn refuse_other_hosts(headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
    let requested = requested_host(headers, uri);
    let host = match requested.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => &requested,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if address.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok() {
        Ok(())
    } else {
        Err(Denied::OtherHost(requested))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use axum::http::Request;

    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn asks(host: &str, token: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(token) = token {
            headers.insert(AUTHORIZATION, token.parse().unwrap());
        }
        headers
    }

    #[tokio::test]
    async fn other_machines_need_token_and_tls() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
        let plain = Caller::at([10, 0, 0, 7].into(), false);
        let encrypted = Caller { is_encrypted: true, ..plain };
        let whole = Access { token_file: Some(file.clone()), has_tls: true };
        let right = format!("Bearer {TOKEN}");
        let ask = async |access: &Access, caller, token: Option<&str>| {
            access.status(caller, &asks("node.example", token), &Uri::default()).await
        };
        for lacking in [
            Access::default(),
            Access { has_tls: false, ..whole.clone() },
            Access { token_file: None, ..whole.clone() },
        ] {
            assert_eq!(ask(&lacking, encrypted, Some(&right)).await, Err(Denied::OnlyHere), "{lacking:?}");
        }
        assert_eq!(ask(&whole, plain, Some(&right)).await, Err(Denied::OnlyOverTls));
        for wrong in
            [None, Some("Bearer"), Some("Bearer 0123456789abcdeg"), Some("Basic 0123456789abcdef"), Some(TOKEN)]
        {
            assert_eq!(ask(&whole, encrypted, wrong).await, Err(Denied::NeedsToken), "{wrong:?}");
        }
        assert_eq!(ask(&whole, encrypted, Some(&right)).await, Ok(()));
        // The token file is read for each request: it may change or disappear at any time.
        std::fs::write(&file, "another-token-of-ours").unwrap();
        assert_eq!(ask(&whole, encrypted, Some(&right)).await, Err(Denied::NeedsToken));
        assert_eq!(ask(&whole, encrypted, Some("bearer another-token-of-ours")).await, Ok(()));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(ask(&whole, encrypted, Some(&right)).await, Err(Denied::NoToken(_))));
    }

    #[tokio::test]
    async fn local_client_may_read_status_unless_host_is_another() {
        let access = Access::default();
        for local in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            let caller = Caller::at(local.parse().unwrap(), false);
            for host in ["127.0.0.1:7070", "localhost", "LOCALHOST:7070", "[::1]:7070", "10.0.0.7"] {
                assert_eq!(access.status(caller, &asks(host, None), &Uri::default()).await, Ok(()), "{host}");
            }
            for host in
                ["evil.example", "evil.example:7070", "", "localhost.evil.example", "127.0.0.1.evil.example:7070"]
            {
                let denied = access.status(caller, &asks(host, None), &Uri::default()).await;
                assert_eq!(denied, Err(Denied::OtherHost(host.to_owned())), "{host}");
            }
        }
        let other = Caller::at([192, 168, 0, 7].into(), false);
        assert_eq!(access.status(other, &asks("127.0.0.1", None), &Uri::default()).await, Err(Denied::OnlyHere));
    }

    #[test]
    fn client_behind_a_proxy_counts_as_another_machine() {
        let of = |header: Option<&str>| {
            let mut request = Request::get("/v1/nodes").extension(Caller::at([127, 0, 0, 1].into(), true));
            if let Some(name) = header {
                request = request.header(name, "203.0.113.7");
            }
            Caller::of(&request.body(()).unwrap().into_parts().0)
        };
        assert!(of(None).is_local && of(Some("x-request-id")).is_local);
        for header in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"] {
            let caller = of(Some(header));
            assert!(!caller.is_local && caller.is_encrypted, "{header}: {caller:?}");
        }
        let (parts, ()) = Request::get("/v1/nodes").body(()).unwrap().into_parts();
        assert!(!Caller::of(&parts).is_local, "an unknown client counts as another machine");
    }

    #[test]
    fn token_that_is_short_or_malformed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        for (content, why) in [
            ("", "it has only 0 characters"),
            ("0123456789abcde\n", "it has only 15 characters"),
            ("0123456789abcdef 0123456789abcdef", "it has spaces"),
            ("0123456789abcdef\n0123456789abcdef", "it has spaces"),
            ("0123456789abcdefü", "it has spaces"),
        ] {
            std::fs::write(&file, content).unwrap();
            let error = token("--token-file", &file).unwrap_err().to_string();
            assert!(error.starts_with("--token-file ") && error.contains("openssl rand"), "{content:?}: {error}");
            assert!(error.contains(why), "{content:?}: {error}");
        }
        std::fs::write(&file, " 0123456789abcdef\r\n").unwrap();
        assert_eq!(token(TOKEN_FILE, &file).unwrap(), TOKEN);
        assert!(token(TOKEN_FILE, folder.path()).unwrap_err().to_string().contains("is not a regular file"));
    }
}
