//! Function names as their author wrote them: Rust's, which stand mangled in the modules that its compiler makes.
//!
//! A name has a plain text that may be far longer than itself, C++'s without any bound: what is long, or not Rust's, is
//! left as it stands in the module.

use std::fmt::{self, Write as _};
use std::io;

/// A mangled name that is longer is left alone, in bytes, and so is one whose plain text is.
const LONGEST: usize = 1024;

/// Makes the names in a text plain.
pub(super) fn plain(text: &str) -> String {
    let mut told = Vec::with_capacity(text.len());
    let mut writer = PlainNames { inner: &mut told, name: Vec::new(), is_long: false, as_json: false };
    // Writing to memory does not fail, and names are made plain as text.
    let written = io::Write::write_all(&mut writer, text.as_bytes()).and_then(|()| writer.end());
    match (written, String::from_utf8(told)) {
        (Ok(()), Ok(told)) => told,
        _ => text.to_owned(),
    }
}

/// A writer that makes the names in JSON plain, in whatever pieces that comes.
pub(super) struct PlainNames<W: io::Write> {
    inner: W,
    /// What may be a name, as far as it was written.
    name: Vec<u8>,
    /// That is longer than a name that is made plain, and its beginning has been handed on.
    is_long: bool,
    as_json: bool,
}

impl<W: io::Write> PlainNames<W> {
    pub fn in_json(inner: W) -> Self {
        Self { inner, name: Vec::new(), is_long: false, as_json: true }
    }

    /// Hands on what may have been the beginning of a longer name.
    pub fn end(&mut self) -> io::Result<()> {
        let name = std::mem::take(&mut self.name);
        if !std::mem::take(&mut self.is_long)
            && let Some(plain) = std::str::from_utf8(&name).ok().and_then(demangled)
        {
            let told = if self.as_json { serde_json::json!(plain).to_string() } else { plain };
            let quotes = usize::from(self.as_json);
            self.inner.write_all(&told.as_bytes()[quotes..told.len() - quotes])?;
        } else {
            self.inner.write_all(&name)?;
        }
        Ok(())
    }
}

impl<W: io::Write> io::Write for PlainNames<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.chunk_by(|one, other| is_of_a_name(*one) == is_of_a_name(*other)) {
            if !part.first().copied().is_some_and(is_of_a_name) {
                self.end()?;
                self.inner.write_all(part)?;
            } else if self.name.len() + part.len() > LONGEST {
                self.is_long = true;
                self.inner.write_all(&std::mem::take(&mut self.name))?;
                self.inner.write_all(part)?;
            } else {
                self.name.extend_from_slice(part);
            }
        }
        Ok(bytes.len())
    }

    /// What may be the beginning of a name waits for the rest.
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$')
}

/// The plain text of a mangled name of Rust's.
fn demangled(name: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(name).ok()?;
    let mut plain = Bounded(String::new());
    write!(plain, "{name}").ok()?;
    Some(plain.0)
}

/// Takes so much, and then fails.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    const MANGLED: &str = "_RNvNtCshXfaRvt2tfW_3std7process5abort";

    #[test]
    fn names_of_rust_are_plain_and_all_else_stays() {
        let text = plain(&format!("  1: 0x8112 - job.wasm!{MANGLED}\n  2: job.wasm!main é _Z1f1AIiiE _R"));
        assert!(text.starts_with("  1: 0x8112 - job.wasm!std["), "{text}");
        assert!(text.ends_with("]::process::abort\n  2: job.wasm!main é _Z1f1AIiiE _R"), "{text}");
        for whole in ["", "_R", "_", "plain", &"_RN".repeat(LONGEST), "_ZN3foo17h05af221e174051e9"] {
            assert_eq!(plain(whole), whole);
        }
        assert_eq!(plain("_ZN3foo3bar17h05af221e174051e9E"), "foo::bar::h05af221e174051e9");
    }

    #[test]
    fn a_name_comes_in_any_pieces() {
        let json = format!(r#"["{MANGLED}","a{MANGLED}","é"]"#);
        let whole = plain(&json);
        for size in 1..MANGLED.len() {
            let mut told = Vec::new();
            let mut writer = PlainNames::in_json(&mut told);
            json.as_bytes().chunks(size).for_each(|piece| io::Write::write_all(&mut writer, piece).unwrap());
            writer.end().unwrap();
            assert_eq!(String::from_utf8(told).unwrap(), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn a_plain_text_that_is_long_is_not_told() {
        // Each backreference tells the whole type before it twice.
        let mut name = "_RINvC1a1bTuuE".to_owned();
        for at in ["9", "e"].into_iter().cycle().take(40) {
            write!(name, "TB{at}_B{at}_E").unwrap();
        }
        name.push('E');
        assert!(plain(&name).len() <= name.len().max(LONGEST));
    }
}
