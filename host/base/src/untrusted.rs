//! Readers of untrusted bytes, which come from other hosts, operators, servers, guests and users.
//!
//! The result of a reader depends on the bytes alone. A reader must return soon for any bytes, and panics if its result
//! is inconsistent. `make fuzz` searches for bytes with which a reader fails, and a test runs each reader on all bytes
//! that were kept.

/// Reads untrusted bytes as one kind of value.
pub struct Reader {
    /// The reader's name, which is also the name of the folder with the bytes that were kept for it.
    pub name: &'static str,
    /// Reads the bytes. Panics if the result is inconsistent.
    pub read: fn(&[u8]),
}

/// The bytes as text. Empty if they are not UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The lines of a text that are `NAME=VALUE` pairs.
pub fn pairs(bytes: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    text(bytes).lines().filter_map(|line| line.split_once('='))
}
