//! The headers that the runner adds to each request, and the headers that a guest may not set.

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use wasmtime_wasi_http::DEFAULT_FORBIDDEN_HEADERS;

const ELECTION: HeaderName = HeaderName::from_static("baton-election");
const TERM: HeaderName = HeaderName::from_static("baton-term");
const NODE: HeaderName = HeaderName::from_static("baton-node");

/// Prefix of the headers that only Baton may set.
const OURS: &[u8] = b"baton-";

/// The three headers that identify the term of a request.
pub(super) struct Stamp([(HeaderName, HeaderValue); 3]);

impl Stamp {
    /// Creates the headers for a term. The names of elections and nodes are always valid header values, so the empty
    /// fallback is never used.
    pub(super) fn new(election: &str, term: u64, node: &str) -> Self {
        let value = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""));
        Self([(ELECTION, value(election)), (TERM, HeaderValue::from(term)), (NODE, value(node))])
    }

    /// Removes forbidden headers, and sets `Host` and the term's headers.
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

/// Returns true if a guest may not set this header. A guest may not set:
///
/// - Baton's own headers;
/// - headers of the connection, not of the request;
/// - names that a server may read as a forbidden name or as `Content-Length`: many servers read `Baton_Term` as
///   `Baton-Term`.
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

/// Normalizes a byte of a header name as the most lenient servers do: letters become lower case, and every byte that is
/// not a letter or digit becomes `-`.
pub(super) fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn forbidden_headers_are_recognized_in_every_spelling() {
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
    fn stamp_replaces_the_guests_forbidden_headers() {
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
