//! What stores read of others' bytes, for [`crate::foreign`].

#[cfg(feature = "azure")]
use super::azure;
#[cfg(feature = "sqlite")]
use super::sqlite;
use super::{Announcement, StoreUrl, state, steering::Steering};
use crate::foreign::{Reader, text};

/// All of them.
pub const READERS: &[Reader] = &[
    #[cfg(feature = "azure")]
    Reader { name: "record", read: azure::foreign::record },
    #[cfg(feature = "azure")]
    Reader { name: "connection-string", read: azure::foreign::connection_string },
    #[cfg(feature = "sqlite")]
    Reader { name: "row", read: sqlite::foreign::row },
    Reader { name: "store-url", read: store_url },
    Reader { name: "state", read: state::foreign::state },
    Reader { name: "announcement", read: announcement },
    Reader { name: "steering", read: steering },
];

fn store_url(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<StoreUrl>() {
        Ok(url) => assert_eq!(url.to_string().parse(), Ok(url), "it is written as it is read"),
        Err(error) => drop(error.to_string()),
    }
}

fn steering(bytes: &[u8]) {
    match Steering::decode(bytes) {
        Ok(steering) => assert_eq!(Steering::decode(&steering.encode()), Ok(steering), "it is written as it is read"),
        Err(error) => drop(error.to_string()),
    }
}

fn announcement(bytes: &[u8]) {
    let Some(said) = Announcement::decode(bytes) else { return };
    let _ = said.when();
    assert_eq!(Announcement::decode(&said.encode()), Some(said), "it is written as it is read");
}
