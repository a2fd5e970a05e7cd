//! The connection to a registry, and to the servers to which the registry may redirect. Connections to other machines
//! always use TLS. Time and size are limited.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::{Origin, Url};

use super::artifact::short;
use baton_base::address::{self, AddressKind};

const CONNECT: Duration = Duration::from_secs(5);
/// Maximum time to wait for more data from a registry.
pub const SILENCE: Duration = Duration::from_secs(10);
/// Maximum number of bytes that are read from an error response.
const COMPLAINT: usize = 64 << 10;
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

pub struct Transport {
    client: reqwest::Client,
    registry: Url,
}

#[derive(Debug)]
pub enum AskError {
    Unreachable(reqwest::Error),
    Redirects,
    /// The registry tried to send the client to a forbidden location. The strings are the requested object and the
    /// location.
    Elsewhere(&'static str, String),
    /// Status and the first part of the body.
    Status(StatusCode, Bytes),
    /// The token server refuses the credentials.
    Denied,
    /// The object, and the limit that it exceeds, in bytes.
    TooLarge(&'static str, usize),
    Unclear(String),
}

impl AskError {
    fn unreachable(error: reqwest::Error) -> Self {
        // Omit the URL: it may contain a signature that is as sensitive as a password.
        Self::Unreachable(error.without_url())
    }

    /// Creates an [`AskError::Elsewhere`]. Keeps only the origin of the location, because the rest may be secret.
    pub fn elsewhere(what: &'static str, place: &Url) -> Self {
        let place = match place.origin() {
            origin @ Origin::Tuple(..) => origin.ascii_serialization(),
            Origin::Opaque(_) => format!("{}:", place.scheme()),
        };
        Self::Elsewhere(what, short(&place))
    }
}

impl Transport {
    /// Loads the system's certificates. The error is the reason why TLS cannot be set up.
    pub fn open(registry: &Url) -> Result<Self, String> {
        let is_plain = registry.scheme() == "http";
        let mut builder = reqwest::Client::builder()
            .use_preconfigured_tls(tls(is_plain)?)
            .https_only(!is_plain)
            .redirect(Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .user_agent(concat!("baton/", env!("CARGO_PKG_VERSION")));
        if is_plain {
            // Unencrypted requests must not leave this machine, so they must not go through a proxy.
            builder = builder.no_proxy();
        } else {
            builder = builder.dns_resolver(Arc::new(Lookup::of(registry)));
        }
        let client = builder.build().map_err(|error| cause(&error))?;
        Ok(Self { client, registry: registry.clone() })
    }

    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    pub fn is_registry(&self, url: &Url) -> bool {
        url.origin() == self.registry.origin()
    }

    /// Returns true if the registry may redirect to this URL, which must not contain a user name or a password:
    /// - A registry may redirect over TLS to itself, because the operator chose the registry's address.
    /// - A registry may redirect over TLS to other machines, but not to special addresses such as a cloud's metadata
    ///   server.
    /// - A registry on this machine may redirect to this machine, with or without TLS.
    ///
    /// [`Lookup`] checks the addresses to which a name resolves.
    pub fn may_redirect_to(&self, url: &Url) -> bool {
        let from_here = stays_here(&self.registry);
        let has_user = !url.username().is_empty() || url.password().is_some();
        match url.scheme() {
            _ if has_user => false,
            "https" if self.is_registry(url) => true,
            "https" => match url.host().map(|host| address::kind_of_host(&host)) {
                Some(AddressKind::Public | AddressKind::Private) => true,
                Some(AddressKind::Loopback) => from_here,
                Some(AddressKind::Special) | None => false,
            },
            "http" => from_here && stays_here(url),
            _ => false,
        }
    }
}

pub async fn send(request: RequestBuilder) -> Result<Response, AskError> {
    request.send().await.map_err(AskError::unreachable)
}

/// Reads a response body. Fails if the body is longer than `most` bytes, whatever length the response declares.
pub async fn content(response: Response, what: &'static str, most: usize) -> Result<Bytes, AskError> {
    let response = successful(response).await?;
    match read(response, most).await? {
        (bytes, true) => Ok(bytes),
        (_, false) => Err(AskError::TooLarge(what, most)),
    }
}

pub async fn successful(response: Response) -> Result<Response, AskError> {
    match response.status() {
        StatusCode::OK => Ok(response),
        status => {
            // The start of a long error body is enough for a message. If reading the body fails, report only the
            // status.
            let complaint = read(response, COMPLAINT).await.unwrap_or_default().0;
            Err(AskError::Status(status, complaint))
        }
    }
}

/// Reads at most `most` bytes of a body. The returned flag is true if these bytes are the complete body.
pub async fn read(mut response: Response, most: usize) -> Result<(Bytes, bool), AskError> {
    let mut bytes = Vec::new();
    while let Some(part) = response.chunk().await.map_err(AskError::unreachable)? {
        let room = most - bytes.len();
        if part.len() > room {
            bytes.extend_from_slice(&part[..room]);
            return Ok((bytes.into(), false));
        }
        bytes.extend_from_slice(&part);
    }
    Ok((bytes.into(), true))
}

/// Marks the value as sensitive, so that logs omit it. Returns `None` if the text contains characters that are not
/// valid in a header.
pub fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Returns true if a request to this URL certainly stays on this machine, so that it needs no encryption.
pub fn stays_here(url: &Url) -> bool {
    url.host().is_some_and(|host| address::is_certainly_loopback(&host))
}

/// Resolves names for connections to a registry on another machine. A redirect must not lead to this machine or to a
/// cloud's metadata server. The operator chose the names of the registry and the proxies, so these names may have any
/// address.
struct Lookup {
    trusted: Arc<BTreeSet<String>>,
}

impl Lookup {
    fn of(registry: &Url) -> Self {
        let proxies = PROXIES.iter().filter_map(|name| std::env::var(name).ok());
        let host = |url: &Url| url.host_str().map(str::to_ascii_lowercase);
        let proxies = proxies.filter_map(|proxy| host(&proxy.parse().or_else(|_| with_scheme(&proxy)).ok()?));
        Self { trusted: Arc::new(proxies.chain(host(registry)).collect()) }
    }
}

fn with_scheme(proxy: &str) -> Result<Url, url::ParseError> {
    format!("http://{proxy}").parse()
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let trusted = Arc::clone(&self.trusted);
        Box::pin(async move {
            let lookup = tokio::task::spawn_blocking(move || {
                let found: Vec<SocketAddr> = (name.as_str(), 0).to_socket_addrs()?.collect();
                within_reach(&trusted, name.as_str(), found)
            });
            let addresses: Addrs = Box::new(lookup.await??.into_iter());
            Ok(addresses)
        })
    }
}

/// Keeps only the addresses to which a request may be sent.
fn within_reach(trusted: &BTreeSet<String>, name: &str, found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    if trusted.contains(&name.to_ascii_lowercase()) {
        return Ok(found);
    }
    let is_allowed = |address: &SocketAddr| {
        matches!(address::kind_from_here(address.ip()), AddressKind::Public | AddressKind::Private)
    };
    let allowed: Vec<_> = found.iter().copied().filter(is_allowed).collect();
    match found.first() {
        Some(first) if allowed.is_empty() => {
            let (name, address) = (short(name), first.ip());
            Err(io::Error::other(format!("{name} resolves to {address}, to which a registry must not redirect")))
        }
        _ => Ok(allowed),
    }
}

/// Returns the root cause, because the outer errors may contain URLs with secrets.
pub fn cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Fails if the system has no certificate authorities, unless TLS is optional.
fn tls(is_optional: bool) -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() && !is_optional {
        let why = found.errors.first().map(ToString::to_string);
        return Err(why.unwrap_or_else(|| "the system has no CA certificates".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn registry_may_redirect_over_tls_or_within_this_machine() -> Result<(), Box<dyn Error>> {
        let far = Transport { client: reqwest::Client::new(), registry: "https://ghcr.io/".parse()? };
        let near = Transport { client: reqwest::Client::new(), registry: "http://localhost:5000/".parse()? };
        for (place, of_far, of_near) in [
            ("https://ghcr.io/token", true, true),
            ("https://sso.example:8443/realms/registry?a=b", true, true),
            ("http://ghcr.io/token", false, false),
            ("http://169.254.169.254/metadata", false, false),
            ("https://ali:sesame@ghcr.io/token", false, false),
            ("https://ali@ghcr.io/token", false, false),
            ("ftp://ghcr.io/token", false, false),
            ("file:///etc/passwd", false, false),
            ("https://localhost/token", false, true),
            ("https://127.1/token", false, true),
            ("http://127.0.0.2:81/token", false, true),
            ("http://[::1]/token", false, true),
            ("http://localhost.example/token", false, false),
            ("https://localhost./token", false, true),
            ("https://a.localhost/token", false, true),
            ("http://localhost./token", false, false),
            ("http://[::ffff:127.0.0.1]/token", false, false),
            ("https://0.0.0.0/token", false, false),
            ("https://[::]/token", false, false),
            ("https://10.0.0.7/token", true, true),
            ("https://169.254.169.254/token", false, false),
            ("https://[fd00:ec2::254]/token", false, false),
            ("https://168.63.129.16/token", false, false),
            ("https://[64:ff9b::7f00:1]/token", false, true),
            ("https://[::1]/token", false, true),
            ("https://[::ffff:127.0.0.1]/token", false, true),
        ] {
            let url = place.parse()?;
            assert_eq!((far.may_redirect_to(&url), near.may_redirect_to(&url)), (of_far, of_near), "{place}");
        }
        Ok(())
    }

    #[test]
    fn registry_at_an_ip_address_may_redirect_to_itself() -> Result<(), Box<dyn Error>> {
        let registry: Url = "https://[::ffff:127.0.0.1]:5000/".parse()?;
        let transport = Transport { client: reqwest::Client::new(), registry: registry.clone() };
        assert!(transport.may_redirect_to(&registry.join("/token")?));
        for elsewhere in ["https://[::ffff:127.0.0.1]:5001/", "http://[::ffff:127.0.0.1]:5000/"] {
            assert!(!transport.may_redirect_to(&elsewhere.parse()?), "{elsewhere}");
        }
        assert!(!transport.may_redirect_to(&"https://ali@[::ffff:127.0.0.1]:5000/".parse()?));
        Ok(())
    }

    #[test]
    fn name_resolves_only_to_allowed_addresses() -> Result<(), Box<dyn Error>> {
        let trusted = BTreeSet::from(["registry.example".to_owned()]);
        let at = |text: &str| text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
        let (here, metadata, private, public) =
            (at("127.0.0.1")?, at("169.254.169.254")?, at("10.0.0.7")?, at("1.1.1.1")?);
        let of = |name: &str, found: &[SocketAddr]| within_reach(&trusted, name, found.to_vec());
        assert_eq!(of("cdn.example", &[here, private, metadata, public])?, [private, public]);
        assert_eq!(of("Registry.example", &[here])?, [here], "that one the operator has named");
        assert!(of("cdn.example", &[])?.is_empty());
        for place in [here, metadata] {
            let refused = of("cdn.example", &[place]).map_err(|error| error.to_string());
            assert!(refused.is_err_and(|why| why.contains(&place.ip().to_string())), "{place}");
        }
        Ok(())
    }
}
