//! What goes to stdout.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::telemetry::escape;

/// Prints a result. A reader that has read enough and went away (`baton status | head -1`) is no error.
///
/// # Errors
/// What the system says, of a full disk for instance.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("cannot write the result: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Prints a report as a JSON object, or as its own text. The text must already be harmless.
///
/// # Errors
/// As for [`print()`].
pub fn print_report<R: Serialize + Display>(report: &R, json: bool) -> io::Result<()> {
    let text = if json { serde_json::to_string_pretty(report)? } else { report.to_string() };
    print(&(text.trim_end().to_string() + "\n"))
}

/// Lines in aligned columns, made harmless for a terminal.
#[must_use]
pub fn columns<const N: usize>(lines: &[[String; N]]) -> String {
    let lines: Vec<_> = lines.iter().map(|line| line.each_ref().map(|cell| escape(cell))).collect();
    let mut widths = [0; N];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let padded: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text
}
