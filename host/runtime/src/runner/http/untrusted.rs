//! Fuzzing targets that read untrusted grants and request headers, listed in [`crate::untrusted`].

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};

use super::grant::{Grant, Grants, Origin};
use super::headers::{Stamp, plain};
use baton_base::untrusted::text;

/// Reads a grant from the first line, and applies it to the URLs on the other lines.
pub(crate) fn grant(bytes: &[u8]) {
    let mut lines = text(bytes).lines();
    let Ok(grant) = lines.next().unwrap_or_default().parse::<Grant>() else { return };
    assert_eq!(grant.to_string().parse(), Ok(grant.clone()), "it is written as it is read");
    let grants = Grants::new(vec![grant]);
    for uri in lines.filter_map(|line| line.parse::<http::Uri>().ok()) {
        let Some(origin) = Origin::of(&uri) else { continue };
        assert!(HeaderValue::from_str(&origin.authority()).is_ok(), "an address that was read fits into a header");
        if grants.reach(&origin, uri.path()).is_none()
            && let Some(wanted) = grants.wanted(&origin, uri.path())
        {
            drop(grants.lines_with(&wanted));
            let reach = Grants::new(vec![wanted.clone()]).reach(&origin, uri.path());
            assert!(reach.is_some(), "who is told to grant {wanted} grants {uri}");
        }
    }
}

/// Parses a guest's headers, one per line, and adds the term's headers. Panics if one of the term's headers does not
/// appear exactly once, or if a forbidden header remains. Compares names as the most lenient servers do.
pub(crate) fn headers(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let (name, value) = line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
            && headers.try_append(name, value).is_err()
        {
            return;
        }
    }
    Stamp::new("election", 7, "node").put_on(&mut headers, &HeaderValue::from_static("example.com:81"));
    let said = |word: &str| {
        let reads_as = |name: &HeaderName| name.as_str().bytes().map(plain).eq(word.bytes());
        let said: Vec<_> =
            headers.iter().filter(|(name, _)| reads_as(name)).map(|(_, value)| value.as_bytes()).collect();
        said
    };
    for (word, value) in [("baton-election", "election"), ("baton-term", "7"), ("baton-node", "node")] {
        assert_eq!(said(word), [value.as_bytes()], "{word}");
    }
    assert_eq!(said(HOST.as_str()), [b"example.com:81"], "the server that was granted");
    for word in ["baton", "transfer-encoding", "connection", "upgrade", "keep-alive"] {
        assert!(said(word).is_empty(), "{word}");
    }
}
