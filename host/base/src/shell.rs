//! Quotes the values in commands and flags that messages propose, so that they are safe to paste into a shell.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::escape::is_harmful;

/// Quotes a string as one shell word. Use this function for every value in a proposed command or flag, unless the
/// value's type allows only plain characters, as the types of election names and digests do.
///
/// The word means the same to sh, bash, zsh and fish, unless the text contains control characters. A log escapes
/// control characters, so a word must not contain them. A text with control characters therefore becomes a word of the
/// form `$'…'`. A shell that does not know this form reads a different text or refuses the word, but runs nothing.
#[must_use]
pub fn quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':' | '@' | ',' | '+');
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let has_harmful = text.chars().any(is_harmful);
    let mut word = String::with_capacity(text.len() + 8);
    word.push_str(if has_harmful { "$'" } else { "'" });
    for c in text.chars() {
        match c {
            // An argument cannot contain NUL.
            '\0' => word.push(char::REPLACEMENT_CHARACTER),
            _ if is_harmful(c) => push_bytes(&mut word, c),
            // In some shells, an unescaped quote or backslash would end the quoted word.
            '\'' | '\\' if has_harmful => push_bytes(&mut word, c),
            // Inside the quotes, fish treats a backslash as an escape.
            '\'' => word.push_str("'\\''"),
            '\\' => word.push_str("'\\\\'"),
            _ => word.push(c),
        }
    }
    word.push('\'');
    Cow::Owned(word)
}

fn push_bytes(word: &mut String, c: char) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        // Always write three octal digits, so that a digit that follows does not become part of the escape. Writing to
        // a string cannot fail.
        let _ = write!(word, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::process::Command;

    use super::*;
    use crate::escape::escape;

    #[test]
    fn plain_text_is_kept_and_other_text_is_quoted() {
        for (text, word) in [
            ("https://api.example.com:8443/v1", "https://api.example.com:8443/v1"),
            ("", "''"),
            ("http://worker:8080#private", "'http://worker:8080#private'"),
            ("https://*.example.com", "'https://*.example.com'"),
            ("it's", r"'it'\''s'"),
            (r"a\", r"'a'\\''"),
            ("~root", "'~root'"),
            ("a=b", "'a=b'"),
            ("a\nb'c", r"$'a\012b\047c'"),
            ("\u{202e}1", r"$'\342\200\2561'"),
        ] {
            assert_eq!(quoted(text), word);
        }
    }

    const NASTY: [&str; 12] = [
        "x'; touch ran; '",
        "x\\'; touch ran; #",
        "$(touch ran)`touch ran`",
        "a\\'\\\\'\"; touch ran #\"",
        "!! && touch ran",
        "-rf *",
        "{a,b}[c]?*~",
        "\\",
        "'",
        "é 日本 \u{1f600}",
        "a|b&c;d<e>f(g)",
        "%s%n \\x41 \\101 ",
    ];
    const WITH_CONTROLS: [&str; 6] = [
        "a\nb",
        "\n; touch ran",
        "'\n'; touch ran #",
        "\\'\t'; touch ran\r\n#",
        "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}1",
        "\\\n\\' touch ran '",
    ];

    /// Returns the bytes that a program gets if a user pastes `text` from a log into this shell. Returns `None` if the
    /// shell is not installed.
    fn read_by(shell: &str, text: &str) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let pasted = escape(&quoted(text)).into_owned();
        let line = format!("printf '%s' {pasted}");
        let done = Command::new(shell).arg("-c").arg(line).current_dir(folder.path()).output().ok()?;
        let made: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(made.is_empty(), "{shell} ran something of {text:?}: {pasted}");
        Some(done.stdout)
    }

    #[test]
    fn shell_reads_quoted_text_and_runs_nothing() {
        for text in NASTY {
            assert_eq!(read_by("sh", text).unwrap(), text.as_bytes(), "{text:?}");
            for shell in ["bash", "zsh", "fish"] {
                assert!(read_by(shell, text).is_none_or(|read| read == text.as_bytes()), "{shell}: {text:?}");
            }
        }
        for text in WITH_CONTROLS {
            assert!(read_by("bash", text).is_none_or(|read| read == text.as_bytes()), "{text:?}");
            for shell in ["sh", "zsh", "fish"] {
                read_by(shell, text);
            }
        }
        assert_eq!(quoted("a\0b"), "$'a\u{fffd}b'");
    }
}
