//! Readers of registries' responses and of credential files, used by fuzz tests through [`crate::untrusted`].

use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};

use super::challenge::Challenge;
use super::{artifact, authorization, credentials, registry};

pub(crate) fn manifest(bytes: &[u8]) {
    match artifact::content(bytes) {
        Ok(artifact::Content::Module(layer)) => assert!(layer.size <= baton_runtime::LARGEST_MODULE),
        Ok(artifact::Content::Elsewhere(_)) => {}
        Err(error) => drop(error.to_string()),
    }
}

/// Expects one `WWW-Authenticate` header per line.
pub(crate) fn challenge(bytes: &[u8]) {
    let values = bytes.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok());
    let headers: HeaderMap = values.map(|value| (WWW_AUTHENTICATE, value)).collect();
    drop(Challenge::of(&headers));
}

pub(crate) fn credentials(bytes: &[u8]) {
    drop(credentials::in_text(bytes, "registry.example.com"));
}

/// Reads bytes as each kind of response: from a token server, as a registry's error, and from a credential helper.
pub(crate) fn answer(bytes: &[u8]) {
    authorization::token(bytes);
    registry::complaint(bytes);
    drop(credentials::helpers(bytes));
}
