//! What Baton reads of others' bytes, each as a function of the bytes alone: what other hosts, operators, servers,
//! guests and users have written. Whatever the bytes are, a reader returns, soon, and what it has read holds together: it
//! panics where that is not so. `make fuzz` looks for such bytes, and a test tries all that are kept.

/// Reads bytes as one kind of thing.
pub struct Reader {
    /// What it is called, and the folder of its kept bytes.
    pub name: &'static str,
    /// Reads them, and panics where something about the reading is wrong.
    pub read: fn(&[u8]),
}

/// The text that these bytes are; empty if they are none.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The lines of a text as pairs `NAME=VALUE`.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    text(bytes).lines().filter_map(|line| line.split_once('='))
}
