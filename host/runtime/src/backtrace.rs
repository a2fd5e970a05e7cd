//! A guest's backtrace for a line of the log: function names as their author wrote them, and a recursion's
//! frames told as one.

use std::fmt::Write as _;

use super::names::plain;

/// How many frames are captured. A panic's own machinery takes up to a dozen before the author's code begins.
pub(super) const FRAMES: usize = 32;

/// Nobody reads more of a name, in bytes.
const LONGEST_LINE: usize = 400;

/// Shortens the text of a [`wasmtime::WasmBacktrace`].
pub(super) fn shortened(text: &str) -> String {
    let mut short = String::new();
    let mut last: Option<String> = None;
    let mut alike = 0;
    for line in text.lines() {
        let line = plain(line);
        let line = readable(&line[..line.floor_char_boundary(LONGEST_LINE)]);
        let function = line.split_once(" - ").map(|(_, function)| function.to_owned());
        if function.is_some() && function == last {
            alike += 1;
            continue;
        }
        tell_alike(&mut short, &mut alike);
        short.push_str(line.trim_end());
        short.push('\n');
        last = function;
    }
    tell_alike(&mut short, &mut alike);
    short.truncate(short.trim_end().len());
    short
}

fn tell_alike(short: &mut String, alike: &mut usize) {
    if *alike > 0 {
        // Writing to a string does not fail.
        let _ = writeln!(short, "         ... and {alike} more of the same");
        *alike = 0;
    }
}

/// Leaves out the hashes that Rust's compiler adds to names: `core[9f8d08631ff90aa5]::…`, `…::h340f1d7a407b57a9`.
fn readable(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['[', ':']) {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let (opens, closes) = if from.starts_with('[') { ("[", "]") } else { ("::h", "") };
        let hash = from.strip_prefix(opens).and_then(|tail| Some((tail.get(..HASH)?, tail.get(HASH..)?)));
        rest = match hash {
            Some((hash, tail)) if is_hash(hash) && tail.starts_with(closes) && !continues(opens, tail) => {
                &tail[closes.len()..]
            }
            _ => {
                plain.push_str(&from[..1]);
                &from[1..]
            }
        };
    }
    plain + rest
}

/// The hexadecimal digits of a hash.
const HASH: usize = 16;

fn is_hash(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether what looks like a hash at a name's end is the beginning of a longer name.
fn continues(opens: &str, tail: &str) -> bool {
    opens == "::h" && tail.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recursion_is_told_once_and_names_are_plain() {
        let text = "error while executing at wasm backtrace:\n    \
            0:   0x2aa7 - job.wasm!std[a88812da5ee6ad9e]::process::abort\n    \
            1:   0x2aa8 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            2:   0x2cb4 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            3:   0x2cb4 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            4:   0x2cb4 - job.wasm!<job[0123456789abcdef]::T as core[9f8d08631ff90aa5]::F>::run::{closure#0}\n";
        let short = "error while executing at wasm backtrace:\n    \
            0:   0x2aa7 - job.wasm!std::process::abort\n    \
            1:   0x2aa8 - job.wasm!job::recurse\n         \
            ... and 2 more of the same\n    \
            4:   0x2cb4 - job.wasm!<job::T as core::F>::run::{closure#0}";
        assert_eq!(shortened(text), short);
    }

    #[test]
    fn what_only_looks_like_a_hash_stays() {
        for name in
            ["a::hello", "a::h", "[", "a[0]", "a::hdeadbeefdeadbeef_and_more", "a[deadbeefdeadbeef", "日本::h語", ""]
        {
            assert_eq!(readable(name), name);
        }
    }
}
