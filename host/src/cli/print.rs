//! Printing to stdout and stderr.

use std::io::{self, IsTerminal as _, Write};

use serde::Serialize;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use baton_base::escape::{escape, escape_json, escape_lines};

/// Prints one or more lines of a command's result. Escapes all control characters except line endings. A closed stdout
/// is not an error, as in `baton status | head -1`.
///
/// # Errors
/// The operating system's error, for example if the disk is full.
pub fn print(text: &str) -> io::Result<()> {
    write(escape_lines(text).as_bytes())
}

/// Prints a line to stderr. Returns false if stderr is closed.
pub fn say(line: &str) -> bool {
    writeln!(io::stderr(), "{}", escape(line)).is_ok()
}

/// Prints an error to stderr. Returns false if stderr is closed.
pub fn print_error(error: &str) -> bool {
    say(&format!("error: {error}"))
}

/// Prints a result as JSON, with control characters escaped as `\uXXXX`.
///
/// # Errors
/// As for [`print()`], and if the result cannot be converted to JSON.
pub fn print_json(result: &impl Serialize) -> io::Result<()> {
    print_json_again(result).map(drop)
}

/// Prints a result as [`print_json`] does, for commands that print repeatedly. Returns false if stdout is closed, so
/// that the caller can stop.
pub(super) fn print_json_again(result: &impl Serialize) -> io::Result<bool> {
    // In pretty-printed JSON, line breaks occur only between tokens, so the line breaks need no escaping.
    let json = serde_json::to_string_pretty(result)?;
    let lines: Vec<String> = json.lines().map(|line| escape_json(line.to_owned())).collect();
    write_all((lines.join("\n") + "\n").as_bytes())
}

/// Prints a stored value. Escapes control characters if stdout is a terminal.
///
/// # Errors
/// As for [`print()`].
pub fn print_value(value: &[u8]) -> io::Result<()> {
    if !io::stdout().is_terminal() {
        return write(value);
    }
    write(escaped(value).as_bytes())
}

/// Prints bytes that this program generated itself, without escaping them.
///
/// # Errors
/// As for [`print()`].
pub fn print_bytes(bytes: &[u8]) -> io::Result<()> {
    write(bytes)
}

/// Escapes control characters. Writes each byte that is not valid UTF-8 as `\xHH`.
fn escaped(value: &[u8]) -> String {
    let mut text = String::new();
    for part in value.utf8_chunks() {
        text.push_str(&escape_lines(part.valid()));
        text.extend(part.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Prints one part of an endless result, as [`print()`] does. Returns false if stdout is closed, so that the caller can
/// stop.
///
/// # Errors
/// As for [`print()`].
pub fn print_on(text: &str) -> io::Result<bool> {
    write_all(escape_lines(text).as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    write_all(bytes).map(drop)
}

/// Returns false if stdout is closed.
pub(super) fn write_all(bytes: &[u8]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot write the result: {error}"))),
        Ok(()) => Ok(true),
    }
}

/// Removes the fraction of a second from a time. If the string is not a UTC time, returns it unchanged.
pub(super) fn to_the_second(time: &str) -> String {
    match (time.split_once('.'), OffsetDateTime::parse(time, &Rfc3339)) {
        (Some((seconds, _)), Ok(at)) if at.offset().is_utc() => format!("{seconds}Z"),
        _ => time.to_owned(),
    }
}

/// Formats rows as aligned columns. Escapes control characters.
#[must_use]
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let mut text = String::new();
    for line in padded(lines) {
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

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
    fn value_is_escaped_for_a_terminal() {
        let value = "{\n  \"key\": \"\u{1b}[2J\u{9b}\u{202e}é\"\n}\n".as_bytes();
        assert_eq!(escaped(value), "{\n  \"key\": \"\\u{1b}[2J\\u{9b}\\u{202e}é\"\n}\n");
        assert_eq!(escaped(b"a\xff\x9b2J\xc0\xae\r"), r"a\xff\x9b2J\xc0\xae\r");
    }
}
