//! What goes to stdout.

use std::io::{self, IsTerminal as _, Write};

use serde::Serialize;

use baton_runtime::escape::{escape, escape_json, escape_lines};

/// Prints a result of lines that others may have written: only their ends reach a terminal as they are. A reader
/// that has read enough and went away (`baton status | head -1`) is no error.
///
/// # Errors
/// What the system says, of a full disk for instance.
pub fn print(text: &str) -> io::Result<()> {
    write(escape_lines(text).as_bytes())
}

/// Says a line on stderr, beside what is printed. Tells whether somebody may read it; nothing else depends on that.
pub fn say(line: &str) -> bool {
    writeln!(io::stderr(), "{}", escape(line)).is_ok()
}

/// The same of what is wrong.
pub fn say_error(error: &str) -> bool {
    say(&format!("error: {error}"))
}

/// Prints a result as JSON, in which what could harm a terminal is written as `\uXXXX`.
///
/// # Errors
/// As for [`print()`], or if it cannot be JSON.
pub fn print_json(result: &impl Serialize) -> io::Result<()> {
    print_json_again(result).map(drop)
}

/// The same, one of many; tells whether somebody reads it.
pub(super) fn print_json_again(result: &impl Serialize) -> io::Result<bool> {
    // The ends of lines are no part of its texts.
    let json = serde_json::to_string_pretty(result)?;
    let lines: Vec<String> = json.lines().map(|line| escape_json(line.to_owned())).collect();
    write_all((lines.join("\n") + "\n").as_bytes())
}

/// Prints a value that somebody saved: as it is, but to a terminal as lines of harmless text.
///
/// # Errors
/// As for [`print()`].
pub fn print_value(value: &[u8]) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return write(value);
    }
    write(harmless(value).as_bytes())
}

/// Prints what this program has made itself, as it is.
///
/// # Errors
/// As for [`print()`].
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    write(bytes)
}

/// Bytes that are no text are written as `\xHH`.
fn harmless(value: &[u8]) -> String {
    let mut text = String::new();
    for part in value.utf8_chunks() {
        text.push_str(&escape_lines(part.valid()));
        text.extend(part.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Prints more of a result that has no end, as by [`print()`]. Says whether somebody still reads.
///
/// # Errors
/// As for [`print()`].
pub fn print_on(text: &str) -> io::Result<bool> {
    write_all(escape_lines(text).as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    write_all(bytes).map(drop)
}

/// Writes a result, and tells whether somebody reads it.
pub(super) fn write_all(bytes: &[u8]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot write the result: {error}"))),
        Ok(()) => Ok(true),
    }
}

/// Lines in aligned columns, made harmless for a terminal.
#[must_use]
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let mut text = String::new();
    for line in padded(lines) {
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Their cells, harmless for a terminal and each as wide as its column.
pub(super) fn padded<const N: usize>(lines: &[[String; N]]) -> Vec<[String; N]> {
    let lines: Vec<_> = lines.iter().map(|line| line.each_ref().map(|cell| escape(cell))).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let pad = |line: &[std::borrow::Cow<'_, str>; N]| {
        std::array::from_fn(|column| format!("{:<width$}", line[column], width = widths[column]))
    };
    lines.iter().map(pad).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_harmless_to_a_terminal() {
        let value = "{\n  \"key\": \"\u{1b}[2J\u{9b}\u{202e}é\"\n}\n".as_bytes();
        assert_eq!(harmless(value), "{\n  \"key\": \"\\u{1b}[2J\\u{9b}\\u{202e}é\"\n}\n");
        assert_eq!(harmless(b"a\xff\x9b2J\xc0\xae\r"), r"a\xff\x9b2J\xc0\xae\r");
    }
}
