//! Detects ambiguous paths. Baton checks a request's path against the grants, but the server may interpret the path
//! differently. So no grant covers a path that a server could interpret as a different path.

/// Number of layers of percent-encoding that are decoded. A path with more layers counts as ambiguous.
const ROUNDS: usize = 3;

/// Returns true if a server might interpret a path, or the rest of a path, as a different path. An ambiguous path
/// contains at least one of:
///
/// - a segment `.` or `..`, including spellings that some servers accept: with percent-encoding (any number of layers),
///   backslashes, parameters after a semicolon, non-ASCII dots and slashes, or trailing dots and spaces;
/// - control characters, including NUL, which some servers drop or treat as the end of the path;
/// - invalid UTF-8, such as a dot that is encoded in two bytes;
/// - percent signs without two hexadecimal digits after them.
pub(super) fn is_ambiguous(path: &str) -> bool {
    let mut bytes = path.as_bytes().to_vec();
    let is_undefined = |at: usize| bytes[at] == b'%' && encoded(&bytes, at).is_none();
    if (0..bytes.len()).any(is_undefined) {
        return true;
    }
    for _ in 0..=ROUNDS {
        let Ok(text) = std::str::from_utf8(&bytes) else { return true };
        if is_ambiguous_as_it_is(text) {
            return true;
        }
        let decoded = percent_decoded(&bytes);
        if decoded == bytes {
            return false;
        }
        bytes = decoded;
    }
    true
}

fn is_ambiguous_as_it_is(text: &str) -> bool {
    // Some servers on Windows decode `%uXXXX`.
    let has_wide = text.split('%').skip(1).any(|rest| rest.starts_with(['u', 'U']));
    has_wide || text.chars().any(char::is_control) || text.split(is_slash).any(is_dots)
}

fn is_slash(c: char) -> bool {
    matches!(c, '/' | '\\' | '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{fe68}' | '\u{ff0f}' | '\u{ff3c}')
}

/// Returns true if a segment consists only of dots, apart from parameters and spaces.
fn is_dots(part: &str) -> bool {
    let is_dot = |c| matches!(c, '.' | '\u{2024}'..='\u{2026}' | '\u{fe52}' | '\u{ff0e}');
    let name = part.split(';').next().unwrap_or_default();
    name.contains(is_dot) && name.chars().all(|c| is_dot(c) || c.is_whitespace())
}

fn encoded(bytes: &[u8], at: usize) -> Option<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (b'%', Some(high), Some(low)) = (*bytes.get(at)?, digit(at + 1), digit(at + 2)) else { return None };
    u8::try_from(high * 16 + low).ok()
}

fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let encoded = encoded(bytes, at);
        decoded.push(encoded.unwrap_or(*byte));
        at += if encoded.is_some() { 3 } else { 1 };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_ambiguous_when_a_server_could_read_it_otherwise() {
        for path in [
            "/..",
            "/./x",
            "/%2e%2e/x",
            "/..%2fx",
            "/x%5c..%5c",
            "/%252e%252E/x",
            "/%25252e%25252e/x",
            "/%2525252525252e",
            "/..;a=b/x",
            "/..%3ba/x",
            "/x%00",
            "/..%00/x",
            "/%2500",
            "/.%09./x",
            "/x%0d%0aX: y",
            "/%7f",
            "/%c2%85",
            // Dots and slashes with overlong encodings.
            "/%c0%ae%c0%ae/x",
            "/..%c0%afx",
            "/%e0%80%ae/x",
            "/%f0%80%80%ae/x",
            "/%25c0%25ae/x",
            "/%c0.",
            "/%ff",
            "/%e2%80%a5/x",
            "/%ef%bc%8e%ef%bc%8e/x",
            "/x%ef%bc%8f..%ef%bc%8fy",
            "/..%20/x",
            "/.../x",
            "/.%20./x",
            "/%u002e%u002e/x",
            "/%",
            "/100%",
            "/%2",
            "/%zz",
            "/%25u002e",
        ] {
            assert!(is_ambiguous(path), "{path}");
        }
        for path in [
            "",
            "/",
            "/v1/x",
            "//x",
            "/a.b/..c/c..",
            "/%20",
            "/a%2fb",
            "/100%25",
            "/100%25%20x",
            "/b%C3%BCcher/%E6%97%A5%E6%9C%AC",
            "/x;v=1.2/y",
            "/.well-known/x",
            "/a%3Fb%23c",
        ] {
            assert!(!is_ambiguous(path), "{path}");
        }
    }

    #[test]
    fn long_path_is_checked_quickly() {
        assert!(is_ambiguous(&format!("/%{}2e", "25".repeat(30_000))));
        assert!(!is_ambiguous(&"/a%20".repeat(10_000)));
    }
}
