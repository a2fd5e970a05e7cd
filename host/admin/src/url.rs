//! An admin endpoint's URL, as nodes announce it.

use std::fmt;
use std::str::FromStr;

use baton_base::address::{is_certainly_loopback, without_user};
use url::Url;

/// Maximum length of a URL, in bytes. A longer URL is a mistake or an attack.
const LONGEST: usize = 2048;

/// An admin endpoint's URL: `http://HOST:PORT` or `https://HOST:PORT`. If a proxy serves the endpoint under a path, the
/// URL includes that path.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AdminUrl(Url);

/// The error returned when a string is not a valid [`AdminUrl`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not the address of an admin endpoint: {why}; write it like https://web-3.example:7070")]
pub struct InvalidAdminUrl {
    text: String,
    why: String,
}

impl FromStr for AdminUrl {
    type Err = InvalidAdminUrl;

    fn from_str(text: &str) -> Result<Self, InvalidAdminUrl> {
        let invalid =
            |why: &str| InvalidAdminUrl { text: without_user(text).chars().take(100).collect(), why: why.to_owned() };
        if text.len() > LONGEST {
            return Err(invalid("it is too long"));
        }
        let url: Url =
            text.trim().trim_end_matches('/').parse().map_err(|error: url::ParseError| invalid(&error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(invalid("it begins with neither http:// nor https://"));
        }
        if url.host().is_none() {
            return Err(invalid("it has no host"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("it has a user or a password in it"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it has a query or a fragment"));
        }
        Ok(Self(url))
    }
}

impl AdminUrl {
    /// Returns true if no other machine can read the requests, because they stay on this machine or are encrypted.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.is_encrypted() || self.0.host().is_some_and(|host| is_certainly_loopback(&host))
    }

    /// Returns true if the endpoint uses TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the host, in the form that DNS and certificates use, and the port.
    #[must_use]
    pub fn place(&self) -> (String, u16) {
        let host = self.0.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (host.to_owned(), self.0.port_or_known_default().unwrap_or_default())
    }

    /// Returns the host and the port, as in the header `Host`.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.0.authority()
    }

    /// Returns the request target for a path, which must start with a slash.
    #[must_use]
    pub fn target(&self, path: &str) -> String {
        format!("{}{path}", self.0.path().trim_end_matches('/'))
    }
}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn url_is_parsed_into_host_port_and_target() {
        for (text, shown, host, port, is_private) in [
            ("http://127.0.0.1:7070", "http://127.0.0.1:7070", "127.0.0.1", 7070, true),
            ("http://web-3:7070/", "http://web-3:7070", "web-3", 7070, false),
            (" https://web-3.example/baton/ ", "https://web-3.example/baton", "web-3.example", 443, true),
            ("http://[::1]:7070", "http://[::1]:7070", "::1", 7070, true),
            ("http://localhost", "http://localhost", "localhost", 80, true),
            ("http://localhost.example:1", "http://localhost.example:1", "localhost.example", 1, false),
        ] {
            let url: AdminUrl = text.parse().unwrap();
            assert_eq!((url.to_string().as_str(), url.place()), (shown, (host.to_owned(), port)));
            assert_eq!(url.is_private(), is_private, "{text}");
            assert_eq!(shown.parse(), Ok(url));
        }
        let below: AdminUrl = "https://web-3.example/baton/".parse().unwrap();
        assert_eq!((below.target("/v1/events").as_str(), below.authority()), ("/baton/v1/events", "web-3.example"));
    }

    #[test]
    fn text_that_is_not_an_endpoint_is_refused() {
        for text in [
            "",
            "web-3:7070",
            "ftp://web-3",
            "http://",
            "file:///etc/passwd",
            "http://user@web-3",
            "http://:secret@web-3",
            "http://web-3/?a=b",
            "http://web-3/#a",
            "javascript:alert(1)",
            &format!("http://web-3/{}", "x".repeat(LONGEST)),
        ] {
            let error = text.parse::<AdminUrl>().unwrap_err().to_string();
            assert!(error.contains("write it like https://") && error.len() < 400, "{error}");
        }
    }
}
