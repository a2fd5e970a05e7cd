//! What must not be seen in logs and tables.

use std::fmt;

/// A text that is shown as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one who needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A store's URL without what could open it: user and password, query (a SAS), fragment, and the
/// values of a connection string.
#[must_use]
pub fn redact_store(store: &str) -> String {
    if store.contains(';') {
        return store.split(';').map(redact_pair).collect::<Vec<_>>().join(";");
    }
    let (body, hidden) = match store.find(['?', '#']) {
        Some(at) => (&store[..at], format!("{}***", &store[at..=at])),
        None => (store, String::new()),
    };
    let body = match body.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit_once('@').map_or(authority.to_string(), |(_, host)| format!("***@{host}"));
            format!("{scheme}://{host}{path}")
        }
        None => redact_pair(body),
    };
    body + &hidden
}

/// In a connection string only what is known to be harmless is shown.
fn redact_pair(pair: &str) -> String {
    const HARMLESS: [&str; 5] =
        ["AccountName", "DefaultEndpointsProtocol", "EndpointSuffix", "BlobEndpoint", "UseDevelopmentStorage"];
    match pair.split_once('=') {
        Some((name, value)) if HARMLESS.iter().any(|word| name.trim().ends_with(word)) => {
            let value = value.split(['?', '#']).next().unwrap_or_default();
            format!("{name}={value}")
        }
        Some((name, _)) => format!("{name}=***"),
        None => pair.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_opens_a_store_is_hidden_and_the_rest_is_not() {
        for (store, shown) in [
            ("sqlite:/var/lib/baton", "sqlite:/var/lib/baton"),
            ("azure://acct/box", "azure://acct/box"),
            ("azurite", "azurite"),
            ("azure://acct/box?sv=2024&sig=abc%3D", "azure://acct/box?***"),
            ("azure://acct:key@host/box", "azure://***@host/box"),
            ("azure://acct/box#frag", "azure://acct/box#***"),
            (
                "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=S3cr3t==;EndpointSuffix=core.windows.net",
                "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=***;EndpointSuffix=core.windows.net",
            ),
            (
                "BlobEndpoint=https://a.b/?sig=x;SharedAccessSignature=sv=1&sig=y",
                "BlobEndpoint=https://a.b/;SharedAccessSignature=***",
            ),
            ("AccountKey=S3cr3t==", "AccountKey=***"),
        ] {
            assert_eq!(redact_store(store), shown);
        }
    }
}
