//! The reader of notes, for fuzzing: see [`baton_base::untrusted`].

use super::is_incarnation;
use super::notes::Note;

pub(crate) fn note(bytes: &[u8]) {
    if let Some(note) = Note::decode(bytes) {
        assert_eq!(note.encode().as_bytes(), bytes, "it is written as it is read");
        assert!(is_incarnation(&note.place.incarnation), "it names nothing outside the folder");
    }
}
