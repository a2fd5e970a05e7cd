//! The reader of stored states, for fuzzing: see [`baton_base::untrusted`].

use super::Document;
use crate::state::document::HEAD;

pub(crate) fn state(bytes: &[u8]) {
    let term = Document::term_in(&bytes[..bytes.len().min(HEAD)]);
    let Ok(document) = Document::decode(bytes) else { return };
    assert_eq!(term, Ok(document.term), "its beginning names its term");
    let written = document.encode().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(Document::decode(&written), Ok(document), "it is written as it is read");
}
