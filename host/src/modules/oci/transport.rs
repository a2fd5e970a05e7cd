//! The way to a registry: over TLS or within this machine, within bounds of time and size, and nowhere that a
//! registry may not lead.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::{Host, Origin, Url};

use super::artifact::short;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a registry may say nothing.
pub const SILENCE: Duration = Duration::from_secs(10);
/// How much of what a registry says of an error is read, in bytes.
const COMPLAINT: usize = 64 << 10;

/// The way to a registry and to where it leads.
pub struct Transport {
    client: reqwest::Client,
    registry: Url,
}

/// Why a registry did not give what it was asked for.
#[derive(Debug)]
pub enum AskError {
    /// It is not there, or does not speak HTTP.
    Unreachable(reqwest::Error),
    /// It leads on, and on.
    Redirects,
    /// It leads to where it may not, for this.
    Elsewhere(&'static str, String),
    /// It answers with this status, and this beginning of a body.
    Status(StatusCode, Bytes),
    /// Its token server gives no token for these credentials.
    Denied,
    /// This has more than so many bytes.
    TooLarge(&'static str, usize),
    /// This is not what the protocol says.
    Unclear(String),
}

impl AskError {
    fn unreachable(error: reqwest::Error) -> Self {
        // An address may have a signature in it that is as good as a password.
        Self::Unreachable(error.without_url())
    }

    /// It may not lead to this place for this.
    pub fn elsewhere(what: &'static str, place: &Url) -> Self {
        // The rest of the address may be secret.
        let place = match place.origin() {
            origin @ Origin::Tuple(..) => origin.ascii_serialization(),
            Origin::Opaque(_) => format!("{}:", place.scheme()),
        };
        Self::Elsewhere(what, short(&place))
    }
}

impl Transport {
    /// The way to the registry at this address. It reads the certificates of the system.
    ///
    /// # Errors
    /// If there is no TLS, with why.
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
            // What is in the clear does not leave this machine.
            builder = builder.no_proxy();
        }
        let client = builder.build().map_err(|error| cause(&error))?;
        Ok(Self { client, registry: registry.clone() })
    }

    /// The client, for requests to be made with.
    pub fn client(&self) -> &reqwest::Client {
        &self.client
    }

    /// Whether this is an address of the registry itself.
    pub fn is_registry(&self, url: &Url) -> bool {
        url.origin() == self.registry.origin()
    }

    /// Whether the registry may lead there: over TLS only, or within this machine, and never from elsewhere to this
    /// machine.
    pub fn may_lead_to(&self, url: &Url) -> bool {
        let from_here = is_loopback(&self.registry);
        let has_user = !url.username().is_empty() || url.password().is_some();
        match url.scheme() {
            _ if has_user => false,
            "https" => from_here || !may_be_here(url),
            "http" => from_here && is_loopback(url),
            _ => false,
        }
    }
}

/// Sends it and waits for the answer's head.
pub async fn send(request: RequestBuilder) -> Result<Response, AskError> {
    request.send().await.map_err(AskError::unreachable)
}

/// What was asked for, of at most so many bytes; whatever length the answer claims to have.
pub async fn content(response: Response, what: &'static str, most: usize) -> Result<Bytes, AskError> {
    let response = successful(response).await?;
    match read(response, most).await? {
        (bytes, true) => Ok(bytes),
        (_, false) => Err(AskError::TooLarge(what, most)),
    }
}

/// The answer, if there is something in it.
pub async fn successful(response: Response) -> Result<Response, AskError> {
    match response.status() {
        StatusCode::OK => Ok(response),
        status => {
            // A complaint that ends early still says something; none at all does not hide the status.
            let complaint = read(response, COMPLAINT).await.unwrap_or_default().0;
            Err(AskError::Status(status, complaint))
        }
    }
}

/// At most so much of a body, and whether that is all.
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

/// A header's value that no log shows; none if these are not the characters of one.
pub fn secret(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Whether it is on this machine by its name.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether it may be on this machine, however that is written.
fn may_be_here(url: &Url) -> bool {
    let is_here = |address: IpAddr| address.is_loopback() || address.is_unspecified();
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => is_here(address.into()),
        Some(Host::Ipv6(address)) => is_here(address.to_canonical()),
        None => false,
    }
}

/// What is at the bottom of an error. What is above it may name addresses, with what is secret in them.
pub fn cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Whom to trust: the authorities of the system. Who needs no TLS need not have any.
fn tls(is_optional: bool) -> Result<ClientConfig, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() && !is_optional {
        let why = found.errors.first().map(ToString::to_string);
        return Err(why.unwrap_or_else(|| "the system has no certificates".to_owned()));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_leads_over_tls_or_within_this_machine() -> Result<(), Box<dyn Error>> {
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
            ("https://0.0.0.0/token", false, true),
            ("https://[::]/token", false, true),
            ("https://[::1]/token", false, true),
            ("https://[::ffff:127.0.0.1]/token", false, true),
        ] {
            let url = place.parse()?;
            assert_eq!((far.may_lead_to(&url), near.may_lead_to(&url)), (of_far, of_near), "{place}");
        }
        Ok(())
    }
}
