//! What stores read of others' bytes, for [`crate::foreign`].

use super::{StoreUrl, azure, sqlite};
use crate::foreign::{Reader, text};

/// These.
pub(crate) const READERS: &[Reader] = &[
    Reader { name: "record", read: azure::foreign::record },
    Reader { name: "connection-string", read: azure::foreign::connection_string },
    Reader { name: "row", read: sqlite::foreign::row },
    Reader { name: "store-url", read: store_url },
];

fn store_url(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<StoreUrl>() {
        Ok(url) => assert_eq!(url.to_string().parse(), Ok(url), "it is written as it is read"),
        Err(error) => drop(error.to_string()),
    }
}
