//! Shortens a guest's backtrace for the log: demangles names, and folds recursion and the frames of language runtimes.

use std::fmt::Write as _;

use crate::module::names::plain;

/// Number of frames to capture. The backtrace of a panic begins with up to a dozen frames that are not the author's own
/// code.
pub(crate) const FRAMES: usize = 32;

/// Maximum length of a line (bytes). Longer lines are cut.
const LONGEST_LINE: usize = 400;

/// Shortens the text of a [`wasmtime::WasmBacktrace`].
pub(crate) fn shortened(text: &str) -> String {
    let mut short = String::new();
    let mut last: Option<String> = None;
    let mut folded = Folded::default();
    for line in text.lines() {
        let line = plain(line);
        let line = readable(&line[..line.floor_char_boundary(LONGEST_LINE)]);
        let function = line.split_once(" - ").map(|(_, function)| function.to_owned());
        if function.is_some() && function == last {
            folded.repeats += 1;
            continue;
        }
        if function.as_deref().is_some_and(is_runtime_frame) {
            folded.write_repeats(&mut short);
            folded.runtime_frames += 1;
        } else {
            folded.write_folded(&mut short);
            short.push_str(line.trim_end());
            short.push('\n');
        }
        last = function;
    }
    folded.write_folded(&mut short);
    short.truncate(short.trim_end().len());
    short
}

/// Counts of the frames that are not printed.
#[derive(Default)]
struct Folded {
    repeats: usize,
    /// Number of consecutive frames in the language's runtime.
    runtime_frames: usize,
}

impl Folded {
    fn write_repeats(&mut self, short: &mut String) {
        // Count repeated runtime frames as runtime frames, so that one line covers all of them.
        match (std::mem::take(&mut self.repeats), self.runtime_frames) {
            (0, _) => {}
            // Writing to a string cannot fail.
            (repeats, 0) => drop(writeln!(short, "         ... and {repeats} more of the same")),
            (repeats, _) => self.runtime_frames += repeats,
        }
    }

    fn write_folded(&mut self, short: &mut String) {
        self.write_repeats(short);
        match std::mem::take(&mut self.runtime_frames) {
            0 => {}
            1 => short.push_str("         ... 1 frame of the language's runtime\n"),
            frames => drop(writeln!(short, "         ... {frames} frames of the language's runtime")),
        }
    }
}

/// True if the function belongs to a standard library or an interpreter, not to the coordinator's own code.
fn is_runtime_frame(function: &str) -> bool {
    const PREFIXES: [&str; 22] = [
        "std::",
        "core::",
        "alloc::",
        "__rust",
        "rust_begin_unwind",
        "rust_panic",
        "__rdl",
        "dlmalloc",
        "__wasm",
        "__wasi",
        "__libc",
        "__main",
        "_start",
        "js::",
        "JS::",
        "JS_",
        "mozilla::",
        "_Py",
        "Py_",
        "PyEval_",
        "PyObject_",
        "runtime.",
    ];
    let name = function.split_once('!').map_or(function, |(_, name)| name).trim_start_matches(['<', '&']);
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes the hashes that the Rust compiler adds to names: `core[9f8d08631ff90aa5]::…`, `…::h340f1d7a407b57a9`.
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

/// Number of hexadecimal digits in a hash.
const HASH: usize = 16;

fn is_hash(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// True if the apparent hash after `::h` is only the start of a longer name.
fn continues(opens: &str, tail: &str) -> bool {
    opens == "::h" && tail.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recursion_is_folded_and_names_are_plain() {
        let text = "error while executing at wasm backtrace:\n    \
            0:   0x2aa7 - job.wasm!std[a88812da5ee6ad9e]::process::abort\n    \
            1:   0x2aa8 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            2:   0x2cb4 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            3:   0x2cb4 - job.wasm!job::recurse::he340f1d7a407b57a\n    \
            4:   0x2cb4 - job.wasm!<job[0123456789abcdef]::T as core[9f8d08631ff90aa5]::F>::run::{closure#0}\n";
        let short = "error while executing at wasm backtrace:\n         \
            ... 1 frame of the language's runtime\n    \
            1:   0x2aa8 - job.wasm!job::recurse\n         \
            ... and 2 more of the same\n    \
            4:   0x2cb4 - job.wasm!<job::T as core::F>::run::{closure#0}";
        assert_eq!(shortened(text), short);
    }

    #[test]
    fn text_that_only_resembles_a_hash_is_kept() {
        for name in
            ["a::hello", "a::h", "[", "a[0]", "a::hdeadbeefdeadbeef_and_more", "a[deadbeefdeadbeef", "日本::h語", ""]
        {
            assert_eq!(readable(name), name);
        }
    }
}
