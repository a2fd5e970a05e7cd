//! What the host says in the headers of every request, and what a guest may not.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use wasmtime_wasi_http::DEFAULT_FORBIDDEN_HEADERS;

const ELECTION: HeaderName = HeaderName::from_static("baton-election");
const TERM: HeaderName = HeaderName::from_static("baton-term");
const NODE: HeaderName = HeaderName::from_static("baton-node");

/// The headers of this name and under it are the host's own.
const OURS: &[u8] = b"baton-";

/// What makes a request this term's: three headers.
pub(super) struct Stamp([(HeaderName, HeaderValue); 3]);

impl Stamp {
    /// The stamp of a term. Elections and nodes have names that fit into a header.
    pub(super) fn new(election: &str, term: u64, node: &str) -> Self {
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        Self([(ELECTION, value(election)), (TERM, HeaderValue::from(term)), (NODE, value(node))])
    }

    /// Makes the headers of a guest those of a request of this term to that host, whatever they were.
    pub(super) fn put_on(&self, headers: &mut HeaderMap, host: &HeaderValue) {
        let forbidden: Vec<HeaderName> = headers.keys().filter(|name| is_forbidden(name)).cloned().collect();
        for name in forbidden {
            headers.remove(name);
        }
        headers.insert(HOST, host.clone());
        for (name, value) in &self.0 {
            headers.insert(name, value.clone());
        }
    }
}

/// Whether a guest may not send this header: it is the host's own, it is about the connection and not about the
/// request, or a server might take it for one of these, since many see no difference between `Baton-Term` and
/// `Baton_Term`.
pub(super) fn is_forbidden(name: &HeaderName) -> bool {
    if DEFAULT_FORBIDDEN_HEADERS.contains(name) {
        return true;
    }
    let name = name.as_str().as_bytes();
    let begins = |word: &[u8]| name.len() >= word.len() && name.iter().zip(word).all(|(a, b)| plain(*a) == *b);
    let is = |word: &[u8]| name.len() == word.len() && begins(word);
    let is_disguised = |word: &str| is(word.as_bytes()) && name != word.as_bytes();
    begins(OURS)
        || is(&OURS[..OURS.len() - 1])
        || is_disguised("content-length")
        || DEFAULT_FORBIDDEN_HEADERS.iter().any(|word| is_disguised(word.as_str()))
}

/// A byte of a header's name as the most careless of servers reads it.
pub(super) fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn no_spelling_of_the_hosts_headers_is_a_guests() {
        for name in [
            "Baton-Term",
            "BATON-TERM",
            "baton_term",
            "Baton.Term",
            "baton-",
            "baton-anything",
            "Baton",
            "Host",
            "Transfer-Encoding",
            "transfer_encoding",
            "Content_Length",
            "Connection",
            "Keep-Alive",
            "proxy.connection",
        ] {
            assert!(is_forbidden(&name.parse().unwrap()), "{name}");
        }
        for name in ["content-length", "batons", "x-baton-term", "accept", "te", "trailer", "authorization", "hosts"] {
            assert!(!is_forbidden(&name.parse().unwrap()), "{name}");
        }
    }

    #[test]
    fn the_stamp_replaces_what_is_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("baton-term", "9"), ("baton-term", "10"), ("baton_node", "x"), ("host", "evil"), ("a", "b")]
        {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        Stamp::new("e", 7, "n").put_on(&mut headers, &HeaderValue::from_static("example.com:81"));
        let mut all: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        all.sort_unstable();
        let stamp =
            [("a", "b"), ("baton-election", "e"), ("baton-node", "n"), ("baton-term", "7"), ("host", "example.com:81")];
        assert_eq!(all, stamp);
    }
}
