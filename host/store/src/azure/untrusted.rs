//! Readers of untrusted metadata and credentials, for [`baton_base::untrusted`].

use std::collections::HashMap;

use azure_core::headers::Header as _;

use super::access::{AccountAccess, OWN_CONNECTION_STRING};
use super::{recall, record};
use baton_base::untrusted::{pairs, text};

/// Reads a term and a record from metadata, which has one `NAME=VALUE` per line.
pub(crate) fn record(bytes: &[u8]) {
    let metadata: HashMap<String, String> =
        pairs(bytes).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    recall::term_in(&metadata);
    if let Ok(Some(read)) = record::decode(metadata) {
        let written = record::encode(&read);
        let written = written.iter().map(|entry| {
            let name = entry.name();
            let name = name.as_str().trim_start_matches("x-ms-meta-").to_owned();
            (name, entry.value().as_str().to_owned())
        });
        assert_eq!(record::decode(written.collect()), Ok(Some(read)), "it is written as it is read");
    }
}

/// Asserts that no error reveals a secret of the connection string.
pub(crate) fn connection_string(bytes: &[u8]) {
    let text = text(bytes);
    let variables = |name: &str| (name == OWN_CONNECTION_STRING).then(|| text.to_owned());
    let accesses =
        [AccountAccess::of_account("account1", &variables), AccountAccess::of_emulator("127.0.0.1:10000", &variables)];
    let is_secret = |(name, _): &(&str, &str)| ["AccountKey", "SharedAccessSignature"].contains(name);
    let (secrets, shown): (Vec<_>, Vec<_>) =
        text.split(';').filter_map(|pair| pair.split_once('=')).partition(is_secret);
    // An error may show the values that are not secret. Skip a secret that is part of such a value.
    let is_shown = |secret: &str| shown.iter().any(|(_, value)| value.contains(secret));
    let secrets = secrets.into_iter().map(|(_, secret)| secret);
    let secrets: Vec<&str> = secrets.filter(|secret| secret.len() > 20 && !is_shown(secret)).collect();
    for error in accesses.into_iter().filter_map(Result::err) {
        let told = error.to_string();
        assert!(!secrets.iter().any(|secret| told.contains(secret)), "{told:?} tells a secret of {text:?}");
    }
}
