//! Who may ask for what.
//!
//! Health, the way to the leader and the metrics are for all who reach the address. **Status** (what each node has, uses
//! and knows) is for those who ask from this machine, and for others only with the token and over TLS. Another user of the
//! machine sees it, too; a page in a browser does not, though its requests come from here: it can have a name of its own
//! lead to this machine, and then reads what is answered, but it cannot choose what stands in `Host`. Nor does who asks
//! through a proxy on this machine, which says for whom it asks, or that it does.
//!
//! The **output** of coordinators needs the token, from this machine, too: other users share it. The
//! host's own user asks at a socket of its own ([`crate::local_socket`]), and may read everything without a token.

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

use super::routes::{Asked, text};
use baton_runtime::escape::escape;
use baton_runtime::read_file;

/// In bytes. A token has some dozens.
const LONGEST_TOKEN: u64 = 4096;

/// The fewest characters that nobody guesses: 96 random bits in base 64.
const SHORTEST_TOKEN: usize = 16;

/// The largest file of certificates or of a key, in bytes.
const LARGEST_PEM: u64 = 1 << 20;

/// How long the file of the token may take.
const READ: Duration = Duration::from_secs(5);

/// Why a file that was named cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableFile {
    /// It is no token.
    #[error(
        "{flag} {path}: {why}; the file must have one line of at least {SHORTEST_TOKEN} printable ASCII characters, \
         such as `openssl rand -base64 24` prints"
    )]
    Token {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It is no certificate, or no key of it.
    #[error("{flag} {path}: {why}; the file must have {needs} in PEM format")]
    Tls {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What it must have.
        needs: &'static str,
    },
}

/// The certificate by which the endpoint is known, and its key: two files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificates, its own first.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// What answers in TLS with them.
    ///
    /// # Errors
    /// [`UnusableFile`] where they are none, or do not belong together.
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

/// The certificate in use. It can be renewed while connections are answered, which keep the one that they began with.
#[derive(Clone)]
pub struct Certificate {
    files: TlsFiles,
    acceptor: Arc<watch::Sender<TlsAcceptor>>,
}

/// One that is read and not used yet.
pub struct NewCertificate(TlsAcceptor);

impl Certificate {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, UnusableFile> {
        let acceptor = Arc::new(watch::Sender::new(files.acceptor()?));
        Ok(Self { files: files.clone(), acceptor })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.borrow().clone()
    }

    /// What the files have now.
    ///
    /// # Errors
    /// [`UnusableFile`] where it is none, or its key is another's.
    pub fn read_anew(&self) -> Result<NewCertificate, UnusableFile> {
        self.files.acceptor().map(NewCertificate)
    }

    /// Uses it for all connections from now on.
    pub fn renew(&self, NewCertificate(acceptor): NewCertificate) {
        self.acceptor.send_replace(acceptor);
    }
}

fn read(path: &Path, longest: u64) -> Result<Vec<u8>, String> {
    read_file(path, longest).map_err(|error| format!("it {error}"))
}

/// The flag of a host that names the file of its token.
pub const TOKEN_FILE: &str = "--admin-token-file";

/// The token in a file, which is read anew whenever somebody asks with one: so it can be changed while the host runs. The
/// flag is the one that names the file.
///
/// # Errors
/// [`UnusableFile`] where there is none.
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

/// Who asks, and how: known of each connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    /// Whether the connection comes from this machine's loopback.
    pub(super) is_local: bool,
    /// Whether nobody else reads it.
    pub(super) is_encrypted: bool,
    /// True if a process of the host's own user asks, at the socket for it.
    is_own_user: bool,
}

impl Caller {
    pub(super) fn at(address: IpAddr, is_encrypted: bool) -> Self {
        Self { is_local: address.to_canonical().is_loopback(), is_encrypted, is_own_user: false }
    }

    /// A process of the host's own user, which may read everything. Its commands steer through the store.
    pub(super) fn own_user() -> Self {
        Self { is_local: true, is_encrypted: true, is_own_user: true }
    }

    /// Who has sent this request; of whom nothing is known comes from elsewhere.
    fn of(parts: &Parts) -> Self {
        let unknown = Self { is_local: false, is_encrypted: false, is_own_user: false };
        let caller = parts.extensions.get().copied().unwrap_or(unknown);
        if is_forwarded(&parts.headers) {
            return Self { is_local: false, is_own_user: false, ..caller };
        }
        caller
    }
}

/// What those who ask need.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    /// The file of the token.
    pub(super) token_file: Option<PathBuf>,
    /// Whether the endpoint speaks TLS.
    pub(super) has_tls: bool,
}

/// Why somebody is not told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    /// The node has no way to tell other machines.
    OnlyHere,
    /// It has, and this was not it.
    OnlyOverTls,
    /// The token is missing, or another one.
    NeedsToken,
    /// Nobody can have one: the node has none.
    HasNoToken,
    /// This node's own cannot be read.
    NoToken(String),
    /// A browser may have been led here.
    OtherHost(String),
    /// The node has no token, and so changes nothing for anybody.
    ChangesNothing,
    /// Changes are made for other machines over TLS only.
    ChangesOverTls,
    /// A page of another site asks.
    CrossSite,
}

/// The same, as OpenAPI has it.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "it describes what others answer")]
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
        let told = "other machines, and clients behind proxies, can read the status only";
        let (status, why) = match self {
            Self::OnlyHere => (
                StatusCode::FORBIDDEN,
                format!("{told} of nodes with --admin-token-file, --admin-tls-cert and --admin-tls-key\n"),
            ),
            Self::OnlyOverTls => (StatusCode::FORBIDDEN, format!("{told} over TLS: use https\n")),
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

/// Somebody who may see the status.
pub(super) struct MaySeeStatus;

impl FromRequestParts<Arc<Asked>> for MaySeeStatus {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<Asked>) -> Result<Self, Denied> {
        asked.access.status(Caller::of(parts), &parts.headers, &parts.uri).await.map(|()| Self)
    }
}

/// Somebody who may change something.
pub(super) struct MayChange;

impl FromRequestParts<Arc<Asked>> for MayChange {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<Asked>) -> Result<Self, Denied> {
        asked.access.change(Caller::of(parts), &parts.headers, &parts.uri).await.map(|()| Self)
    }
}

/// Somebody who may see the status, and perhaps more.
pub(super) struct MaySeeMore {
    /// Whether the token came along, so that what coordinators say is told, too.
    pub(super) has_token: bool,
}

impl FromRequestParts<Arc<Asked>> for MaySeeMore {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<Asked>) -> Result<Self, Denied> {
        MaySeeStatus::from_request_parts(parts, asked).await?;
        // A wrong one is somebody's mistake: less than is expected would be no answer to it.
        let has_token = parts.headers.contains_key(AUTHORIZATION) || Caller::of(parts).is_own_user;
        if has_token {
            HasToken::from_request_parts(parts, asked).await?;
        }
        Ok(Self { has_token })
    }
}

/// Somebody who has the token, wherever they are.
pub(super) struct HasToken;

impl FromRequestParts<Arc<Asked>> for HasToken {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, asked: &Arc<Asked>) -> Result<Self, Denied> {
        if Caller::of(parts).is_own_user {
            return Ok(Self);
        }
        let access = &asked.access;
        if access.token_file.is_none() {
            return Err(Denied::HasNoToken);
        }
        // From elsewhere that asks for the token.
        MaySeeStatus::from_request_parts(parts, asked).await?;
        access.token(&parts.headers).await.map(|()| Self)
    }
}

impl Access {
    /// The token is needed on this machine, too: other users share its loopback. A browser would send it along for no page,
    /// and yet answers none of another site's.
    async fn change(&self, caller: Caller, headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
        let Some(file) = self.token_file.clone() else { return Err(Denied::ChangesNothing) };
        is_no_other_sites(headers, uri)?;
        if caller.is_local {
            has_asked_for_this_machine(headers, uri)?;
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
            return has_asked_for_this_machine(headers, uri);
        }
        if self.token_file.is_none() || !self.has_tls {
            return Err(Denied::OnlyHere);
        }
        if !caller.is_encrypted {
            return Err(Denied::OnlyOverTls);
        }
        self.token(headers).await
    }

    /// That this node's token came along.
    async fn token(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let Some(file) = self.token_file.clone() else { return Err(Denied::HasNoToken) };
        if has_token(file, headers).await? { Ok(()) } else { Err(Denied::NeedsToken) }
    }
}

/// Whether the token that comes along is the one in this file.
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
    // How long it takes to compare two digests tells nothing of what they are of.
    Ok(Digest::of(given.trim().as_bytes()) == Digest::of(own.as_bytes()))
}

/// Refuses what a browser says is of another site's page: by its kind of request, where it tells, or by the page's origin,
/// which has to be where the request goes. What is no browser says neither.
fn is_no_other_sites(headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| ![b"same-origin".as_slice(), b"none"].contains(&site)) {
        return Err(Denied::CrossSite);
    }
    let host = named(headers, uri);
    let is_own = |origin: &HeaderValue| {
        let origin = String::from_utf8_lossy(origin.as_bytes()).into_owned();
        origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(&host))
    };
    if headers.get_all(ORIGIN).iter().all(is_own) { Ok(()) } else { Err(Denied::CrossSite) }
}

/// Whether a proxy has sent it on, for somebody who may be anywhere.
fn is_forwarded(headers: &HeaderMap) -> bool {
    let says_so = |name: &str| ["forwarded", "via", "x-real-ip"].contains(&name) || name.starts_with("x-forwarded-");
    headers.keys().any(|name| says_so(name.as_str()))
}

/// The name that was asked for.
fn named(headers: &HeaderMap, uri: &Uri) -> String {
    let named = headers.get(HOST).map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    named.or_else(|| uri.authority().map(ToString::to_string)).unwrap_or_default()
}

/// Whether the name that was asked for is this machine, and not one of somebody else's that leads here.
fn has_asked_for_this_machine(headers: &HeaderMap, uri: &Uri) -> Result<(), Denied> {
    let named = named(headers, uri);
    let host = match named.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => &named,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']');
    if address.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok() {
        Ok(())
    } else {
        Err(Denied::OtherHost(named))
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
        // It may be changed at any time, and be gone.
        std::fs::write(&file, "another-token-of-ours").unwrap();
        assert_eq!(ask(&whole, encrypted, Some(&right)).await, Err(Denied::NeedsToken));
        assert_eq!(ask(&whole, encrypted, Some("bearer another-token-of-ours")).await, Ok(()));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(ask(&whole, encrypted, Some(&right)).await, Err(Denied::NoToken(_))));
    }

    #[tokio::test]
    async fn this_machine_is_told_unless_it_was_asked_for_under_anothers_name() {
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
    fn who_asks_through_a_proxy_on_this_machine_is_not_of_this_machine() {
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
        assert!(!Caller::of(&parts).is_local, "nothing is known of who asks");
    }

    #[test]
    fn a_token_that_could_be_guessed_or_sent_wrongly_is_none() {
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
