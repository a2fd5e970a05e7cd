//! Grants, which name the servers that a coordinator may send requests to, and the check of a request against them.
//!
//! The same URL parser reads grants and requests, so a host has the same form in both: lower case, international names
//! in ASCII, and one form for all spellings of an IPv4 address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::path::is_ambiguous;
use crate::wire::protocol::Resolved;
use baton_base::address::{AddressKind, is_certainly_loopback};
use baton_base::shell;

/// Maximum length of a host in a URL (bytes). No DNS name or IP address is longer.
const LONGEST_HOST: usize = 255;

/// Maximum length of a path in a proposed grant (bytes).
const LONGEST_PROPOSED: usize = 1000;

/// The text after `#` in a grant that allows private addresses.
const PRIVATE: &str = "private";

/// Permission for requests with one scheme, one port and one path prefix, to one host or to all hosts of one domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    scheme: Scheme,
    host: HostRule,
    port: u16,
    /// The path prefix: empty, or with a leading slash and without a trailing slash.
    path: String,
    private: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Scheme {
    Http,
    Https,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum HostRule {
    Exactly(Host<String>),
    /// All names that end with this suffix. The suffix starts with a dot.
    Under(String),
}

/// The addresses that a granted host may resolve to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum AddressReach {
    Public,
    /// Loopback addresses of this machine. Applies if the grant names `localhost`.
    Loopback,
    /// Private and loopback addresses, in addition to public ones. Applies if the grant ends with `#private`.
    Private,
    /// Only this address. Applies if the grant names an IP address.
    Exactly(IpAddr),
}

impl AddressReach {
    pub(super) fn includes(self, Resolved { address, kind }: Resolved) -> bool {
        match self {
            Self::Exactly(granted) => granted == address.ip(),
            Self::Public => kind == AddressKind::Public,
            Self::Loopback => kind == AddressKind::Loopback,
            Self::Private => kind != AddressKind::Special,
        }
    }
}

/// The reason a string is not a valid grant, and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct GrantError(String);

impl FromStr for Grant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let wrong = |problem: &str| GrantError(format!("{:?}: {problem}", without_secrets(text)));
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| wrong("there is no scheme: write a server like https://api.example.com"))?;
        let scheme = Scheme::named(&scheme.to_ascii_lowercase())
            .ok_or_else(|| wrong("the scheme must be https or http, as in https://api.example.com"))?;
        let (rest, private) = match rest.split_once('#') {
            None => (rest, false),
            Some((rest, PRIVATE)) => (rest, true),
            Some(_) => return Err(wrong("only `private` may follow `#`")),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '\\', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            // Do not include the text in the error, since it may contain a password.
            return Err(GrantError(
                "remove the user and password before the host: the coordinator sends its own authorization".to_owned(),
            ));
        }
        if path.contains('?') {
            return Err(wrong("a query cannot be granted: end the URL with the path, which allows every query"));
        }
        if is_ambiguous(path) {
            return Err(wrong(
                "the path must not contain `.` or `..` as a segment (encoded or not), control characters, invalid \
                 percent-encoding or invalid UTF-8",
            ));
        }
        let (authority, wild) = match authority.strip_prefix("*.") {
            Some(domain) => (domain, true),
            None => (authority, false),
        };
        if authority.contains('*') {
            return Err(wrong("`*` can only stand for subdomains, as in https://*.example.com"));
        }
        let url = Url::parse(&format!("{scheme}://{authority}{path}"))
            .map_err(|error| wrong(&format!("{error}: write a server like https://api.example.com")))?;
        let host = url.host().ok_or_else(|| wrong("there is no host: write one, as in https://api.example.com"))?;
        if let Host::Domain(name) = &host
            && let Some(strange) = name.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '.' | '_'))
        {
            return Err(wrong(&format!(
                "a host name must not contain {strange:?}; separate several servers with spaces"
            )));
        }
        let host = match (host.to_owned(), wild) {
            (host, false) => HostRule::Exactly(host),
            (Host::Domain(domain), true) if domain.trim_end_matches('.').contains('.') => {
                HostRule::Under(format!(".{domain}"))
            }
            (_, true) => return Err(wrong("a wildcard needs a domain with at least two parts, as in *.example.com")),
        };
        let port = url.port_or_known_default().unwrap_or(scheme.port());
        Ok(Self { scheme, host, port, path: url.path().trim_end_matches('/').to_owned(), private })
    }
}

/// Removes the parts of a URL that may contain a token or a password (the query and the user), so that the URL can be
/// shown.
fn without_secrets(text: &str) -> String {
    let (text, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let query = if query.is_empty() { "" } else { "?…" };
    let authority = text.find("://").map_or(0, |at| at + 3);
    match text.rfind('@').filter(|at| *at >= authority) {
        Some(at) => format!("{}…{}{query}", &text[..authority], &text[at..]),
        None => format!("{text}{query}"),
    }
}

/// Formats the grant as it is written in the configuration.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match &self.host {
            HostRule::Exactly(host) => write!(f, "{host}")?,
            HostRule::Under(domain) => write!(f, "*{domain}")?,
        }
        if self.port != self.scheme.port() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "{}{}", self.path, if self.private { "#private" } else { "" })
    }
}

impl Grant {
    fn covers_origin(&self, origin: &Origin) -> bool {
        let host = match (&self.host, &origin.host) {
            (HostRule::Exactly(granted), host) => granted == host,
            // The star in `*.example.com` stands for at least one character.
            (HostRule::Under(domain), Host::Domain(name)) => name.len() > domain.len() && name.ends_with(domain),
            (HostRule::Under(_), _) => false,
        };
        host && (self.scheme, self.port) == (origin.scheme, origin.port)
    }

    fn covers_path(&self, path: &str) -> bool {
        let Some(rest) = path.strip_prefix(&self.path) else { return false };
        self.path.is_empty() || ((rest.is_empty() || rest.starts_with('/')) && !is_ambiguous(rest))
    }

    fn reach(&self) -> AddressReach {
        match &self.host {
            HostRule::Exactly(Host::Ipv4(address)) => AddressReach::Exactly(IpAddr::V4(*address)),
            HostRule::Exactly(Host::Ipv6(address)) => AddressReach::Exactly(IpAddr::V6(*address)),
            _ if self.private => AddressReach::Private,
            HostRule::Exactly(host) if is_certainly_loopback(host) => AddressReach::Loopback,
            _ => AddressReach::Public,
        }
    }
}

impl Scheme {
    fn named(name: &str) -> Option<Self> {
        match name {
            "http" => Some(Self::Http),
            "https" => Some(Self::Https),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Origin {
    pub(super) scheme: Scheme,
    pub(super) host: Host<String>,
    pub(super) port: u16,
}

impl Origin {
    /// Returns the origin of a request's URL. Returns `None` if the URL is not HTTP, contains a user name, or has an
    /// invalid or too long host.
    pub(super) fn of(uri: &http::Uri) -> Option<Self> {
        let scheme = Scheme::named(uri.scheme_str()?)?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let url = Url::parse(&format!("{scheme}://{authority}")).ok()?;
        url.host_str().filter(|host| host.len() <= LONGEST_HOST)?;
        Some(Self { scheme, host: url.host()?.to_owned(), port: url.port().unwrap_or(scheme.port()) })
    }

    pub(super) fn authority(&self) -> String {
        if self.port == self.scheme.port() { self.host.to_string() } else { format!("{}:{}", self.host, self.port) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.authority())
    }
}

/// All grants of a coordinator.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Grants(Vec<Grant>);

impl From<Grants> for Vec<String> {
    fn from(grants: Grants) -> Self {
        grants.0.iter().map(Grant::to_string).collect()
    }
}

impl TryFrom<Vec<String>> for Grants {
    type Error = GrantError;

    fn try_from(grants: Vec<String>) -> Result<Self, GrantError> {
        grants.iter().map(|grant| grant.parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl Grants {
    /// Creates the list of a coordinator's grants.
    #[must_use]
    pub fn new(grants: Vec<Grant>) -> Self {
        Self(grants)
    }

    /// Iterates over the grants.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter()
    }

    /// Returns the addresses that a request may connect to, or `None` if no grant covers the request. If several grants
    /// cover the request, the greatest of their reaches applies, in the order of [`AddressReach`].
    pub(super) fn reach(&self, origin: &Origin, path: &str) -> Option<AddressReach> {
        let covering = self.0.iter().filter(|grant| grant.covers_origin(origin) && grant.covers_path(path));
        covering.map(Grant::reach).max()
    }

    /// Returns true if a grant covers this host name, which must be spelled as in a request's URL.
    pub(super) fn cover_host(&self, host: &str) -> bool {
        let is_name = host.len() <= LONGEST_HOST && Host::parse(host) == Ok(Host::Domain(host.to_owned()));
        is_name
            && self.0.iter().any(|grant| match &grant.host {
                HostRule::Exactly(Host::Domain(name)) => name == host,
                HostRule::Exactly(_) => false,
                HostRule::Under(domain) => host.ends_with(domain),
            })
    }

    /// Proposes a grant that would allow a refused request. If the origin already has a grant, the proposed grant is
    /// for the request's path, otherwise for the whole origin. Returns `None` if no grant would help.
    pub(super) fn wanted(&self, origin: &Origin, path: &str) -> Option<Grant> {
        let knows_origin = self.0.iter().any(|grant| grant.covers_origin(origin));
        if knows_origin && path.len() > LONGEST_PROPOSED {
            return None;
        }
        let text = if knows_origin { format!("{origin}{path}") } else { origin.to_string() };
        // Parsing may change the path, for example by replacing backslashes. Do not propose a grant that then no longer
        // covers the request.
        text.parse().ok().filter(|grant: &Grant| grant.covers_path(path))
    }

    /// Returns the grant that would allow this origin's host to have a private address.
    pub(super) fn wanted_private(&self, origin: &Origin) -> Option<Grant> {
        let covering = self.0.iter().find(|grant| grant.covers_origin(origin))?;
        Some(Grant { private: true, ..covering.clone() })
    }

    /// Returns the existing grants plus this grant, in two forms: as a line of `baton.toml`, and as flags. This grant
    /// replaces a grant that differs only in `#private`.
    pub(super) fn lines_with(&self, grant: &Grant) -> [String; 2] {
        let is_other = |other: &&Grant| Grant { private: grant.private, ..(*other).clone() } != *grant;
        let all: Vec<String> =
            self.0.iter().filter(is_other).chain(std::iter::once(grant)).map(Grant::to_string).collect();
        let quoted: Vec<String> = all.iter().map(|grant| toml::Value::from(grant.as_str()).to_string()).collect();
        let flags: Vec<String> = all.iter().map(|grant| format!("--allow-http {}", shell::quoted(grant))).collect();
        [format!("allow-http = [{}]", quoted.join(", ")), flags.join(" ")]
    }
}

#[cfg(test)]
mod tests;
