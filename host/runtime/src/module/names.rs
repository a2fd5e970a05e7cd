//! Demangles the names of Rust functions in text from modules.
//!
//! A demangled name may be far longer than its mangled form, and for C++ there is no bound on the length at all. So
//! long names, and names from languages other than Rust, are left mangled.

use std::fmt::{self, Write as _};

/// Maximum length of a name (bytes), mangled or demangled. Longer names are left unchanged.
const LONGEST: usize = 1024;

/// Demangles the Rust names in a string.
pub(crate) fn plain(text: &str) -> String {
    let parts = text.as_bytes().chunk_by(|one, other| is_name_byte(*one) == is_name_byte(*other));
    let parts = parts.map(String::from_utf8_lossy);
    parts.map(|part| demangled(&part).unwrap_or_else(|| part.into_owned())).collect()
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$')
}

/// Demangles a Rust name. Returns `None` for other names, and for names that are too long.
fn demangled(name: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(name).ok().filter(|_| name.len() <= LONGEST)?;
    let mut plain = Bounded(String::new());
    write!(plain, "{name}").ok()?;
    Some(plain.0)
}

/// A string of at most `LONGEST` bytes. A write beyond this length fails.
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
    fn rust_names_are_demangled_and_other_text_is_kept() {
        let text = plain(&format!("  1: 0x8112 - job.wasm!{MANGLED}\n  2: job.wasm!main é _Z1f1AIiiE _R"));
        assert!(text.starts_with("  1: 0x8112 - job.wasm!std["), "{text}");
        assert!(text.ends_with("]::process::abort\n  2: job.wasm!main é _Z1f1AIiiE _R"), "{text}");
        for whole in ["", "_R", "_", "plain", &"_RN".repeat(LONGEST), "_ZN3foo17h05af221e174051e9"] {
            assert_eq!(plain(whole), whole);
        }
        assert_eq!(plain("_ZN3foo3bar17h05af221e174051e9E"), "foo::bar::h05af221e174051e9");
    }

    #[test]
    fn name_stays_mangled_when_plain_form_is_too_long() {
        // Each step refers to the previous type twice, and so doubles the length of the plain form.
        let mut name = "_RINvC1a1bTuuE".to_owned();
        for at in ["9", "e"].into_iter().cycle().take(40) {
            write!(name, "TB{at}_B{at}_E").unwrap();
        }
        name.push('E');
        assert!(plain(&name).len() <= name.len().max(LONGEST));
    }
}
