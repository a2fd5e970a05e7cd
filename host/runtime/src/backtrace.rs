//! Shortens a guest's backtrace for the log: function names as their author wrote them, one frame for a recursion, and
//! one line for frames of the language's runtime.

use std::fmt::Write as _;

use super::names::plain;

/// Number of frames to capture. Up to a dozen frames of a panic precede the author's code.
pub(super) const FRAMES: usize = 32;

/// Longest line (bytes). Longer names are cut.
const LONGEST_LINE: usize = 400;

/// Shortens the text of a [`wasmtime::WasmBacktrace`].
pub(super) fn shortened(text: &str) -> String {
    let mut short = String::new();
    let mut last: Option<String> = None;
    let mut folded = Folded::default();
    for line in text.lines() {
        let line = plain(line);
        let line = readable(&line[..line.floor_char_boundary(LONGEST_LINE)]);
        let function = line.split_once(" - ").map(|(_, function)| function.to_owned());
        if function.is_some() && function == last {
            folded.alike += 1;
            continue;
        }
        if function.as_deref().is_some_and(is_of_a_runtime) {
            folded.tell_alike(&mut short);
            folded.of_runtime += 1;
        } else {
            folded.tell(&mut short);
            short.push_str(line.trim_end());
            short.push('\n');
        }
        last = function;
    }
    folded.tell(&mut short);
    short.truncate(short.trim_end().len());
    short
}

/// Frames that have no line of their own.
#[derive(Default)]
struct Folded {
    /// Repetitions of the last frame.
    alike: usize,
    /// Frames of the language's runtime in a row.
    of_runtime: usize,
}

impl Folded {
    fn tell_alike(&mut self, short: &mut String) {
        // Repetitions of a frame of the runtime count as such.
        match (std::mem::take(&mut self.alike), self.of_runtime) {
            (0, _) => {}
            // Writing to a string does not fail.
            (alike, 0) => drop(writeln!(short, "         ... and {alike} more of the same")),
            (alike, _) => self.of_runtime += alike,
        }
    }

    fn tell(&mut self, short: &mut String) {
        self.tell_alike(short);
        match std::mem::take(&mut self.of_runtime) {
            0 => {}
            1 => short.push_str("         ... 1 frame of the language's runtime\n"),
            frames => drop(writeln!(short, "         ... {frames} frames of the language's runtime")),
        }
    }
}

/// True if the function belongs to a standard library or an interpreter, so that the author of the coordinator did not
/// write it.
fn is_of_a_runtime(function: &str) -> bool {
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
        let short = "error while executing at wasm backtrace:\n         \
            ... 1 frame of the language's runtime\n    \
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
