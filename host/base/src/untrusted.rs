//! Readers of untrusted bytes: those of other hosts, operators, servers, guests and users.
//!
//! Each is a function of the bytes alone. For any bytes it must return soon, and panics if the result is inconsistent.
//! `make fuzz` searches for such bytes, and a test tries all kept ones.

/// Reads untrusted bytes as one kind of value.
pub struct Reader {
    /// The reader's name, and the folder of its kept bytes.
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
