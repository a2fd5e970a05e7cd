//! Functions that read untrusted bytes: input from other hosts, operators, servers, guests and users.
//!
//! The result of a reader depends on the bytes alone. A reader must return quickly for any bytes, and panics if its
//! result is inconsistent. `make fuzz` searches for bytes that make a reader fail. A test runs each reader on all
//! inputs that earlier searches have kept.

/// Reads untrusted bytes as one kind of value.
pub struct Reader {
    /// The reader's name, which is also the name of the folder with the inputs kept for the reader.
    pub name: &'static str,
    /// Parses the bytes, which may be malformed. Panics only if a parsed value violates an invariant.
    pub read: fn(&[u8]),
}

/// The bytes as text. Empty if they are not UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The `NAME=VALUE` lines in a text. Skips other lines.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    text(bytes).lines().filter_map(|line| line.split_once('='))
}
