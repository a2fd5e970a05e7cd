//! Escapes untrusted text for terminals and line-based readers.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes characters that could move the cursor, end the line or change the text direction: control characters, line
/// and paragraph separators, and bidirectional formatting characters.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Escapes multi-line text, but keeps its line breaks.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c != '\n' && is_harmful(c)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.split('\n').map(escape).collect::<Vec<_>>().join("\n"))
}

/// Makes serialized JSON safe to display on one line: harmful characters that the serializer does not escape become
/// `\uXXXX`.
pub fn escape_json(json: String) -> String {
    if !json.chars().any(is_harmful) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_harmful(c) {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(c));
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Returns true for characters that can control a terminal or break a line. All of these characters are in the Basic
/// Multilingual Plane, so each character needs only one `\uXXXX` escape in JSON.
#[must_use]
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape("plain – ünïcode \\n 日本"), "plain – ünïcode \\n 日本");
        assert_eq!(escape("a\nb\r\t\0\x1b[31m\x7f\u{9b}"), r"a\nb\r\t\u{0}\u{1b}[31m\u{7f}\u{9b}");
        assert_eq!(escape("\u{202e}txet\u{2028}"), r"\u{202e}txet\u{2028}");
        for c in (0..=0x10_ffff).filter_map(char::from_u32).filter(|c| c.is_control()) {
            assert!(!escape(&c.to_string()).contains(c));
            assert!(u32::from(c) <= 0xffff);
        }
    }

    #[test]
    fn escape_lines_keeps_line_ends() {
        assert_eq!(escape_lines("a\nb\n"), "a\nb\n");
        assert_eq!(escape_lines("a\u{1b}\r\n\nb"), "a\\u{1b}\\r\n\nb");
    }

    #[test]
    fn escaped_json_parses_to_the_same_text() {
        let text = "a\u{9b}\u{7f}\u{2028}\n";
        let json = escape_json(serde_json::json!(text).to_string());
        assert_eq!(json, r#""a\u009b\u007f\u2028\n""#);
        assert_eq!(serde_json::from_str::<String>(&json).ok().as_deref(), Some(text));
    }
}
