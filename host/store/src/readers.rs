//! Readers of untrusted bytes in this package, for fuzzing: see [`baton_base::untrusted`].

#[cfg(feature = "sqlite")]
use super::sqlite;
use super::{Announcement, History, HistoryError, KEPT_TERMS, PastTerm, StoreUrl, state, steering::Steering};
#[cfg(feature = "azure")]
use super::{azure, witness};
use baton_base::untrusted::{Reader, text};

/// All readers in this package.
pub const READERS: &[Reader] = &[
    #[cfg(feature = "azure")]
    Reader { name: "record", read: azure::untrusted::record },
    #[cfg(feature = "azure")]
    Reader { name: "connection-string", read: azure::untrusted::connection_string },
    #[cfg(feature = "azure")]
    Reader { name: "note", read: witness::untrusted::note },
    #[cfg(feature = "sqlite")]
    Reader { name: "row", read: sqlite::untrusted::row },
    #[cfg(feature = "sqlite")]
    Reader { name: "holder", read: sqlite::untrusted::holder },
    Reader { name: "store-url", read: store_url },
    Reader { name: "state", read: state::untrusted::state },
    Reader { name: "announcement", read: announcement },
    Reader { name: "steering", read: steering },
    Reader { name: "history", read: history },
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

fn history(bytes: &[u8]) {
    let mut history = match History::decode(bytes) {
        Ok(history) => history,
        Err(error) => return drop(HistoryError::to_string(&error)),
    };
    // A host that has read this history adds a term and writes the history back. The written history must be readable
    // and within the limit.
    history.tell(PastTerm { term: 7, node: "node".to_owned(), ..PastTerm::default() });
    history.close();
    let written = history.encode();
    let Ok(again) = History::decode(&written) else { panic!("what is written cannot be read") };
    assert!(again.terms.len() <= KEPT_TERMS && history.terms.ends_with(&again.terms), "it is read as it was written");
    assert_eq!(again.encode(), written, "it is written as it is read");
    let is_over = |pair: &&[PastTerm]| pair[0].ended.is_none() && pair[0].incarnation != pair[1].incarnation;
    assert_eq!(again.terms.windows(2).filter(is_over).count(), 0, "what a term of another has followed is over");
}
