//! Colored tables. The terminal and the variables `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` decide whether a table
//! has colors, as for clap's help.

use std::io;

use anstyle::{AnsiColor, Style};

use super::print::{padded, write_all};

/// The style of a table cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// No color.
    Plain,
    /// Green: nothing to do.
    Good,
    /// Yellow: may need attention.
    Doubtful,
    /// Red: needs attention.
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Doubtful => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
        }
    }
}

/// Formats a table. The first row is the header. For every other cell, `tone` chooses the tone from the cell's column
/// and text. Escapes all control characters except the colors. Print the table with [`print_styled`], which keeps the
/// colors.
#[must_use]
pub fn table<const N: usize>(lines: &[[String; N]], tone: impl Fn(usize, &str) -> Tone) -> String {
    let mut text = String::new();
    for (row, cells) in padded(lines).into_iter().enumerate() {
        let shown = cells.iter().enumerate().map(|(column, cell)| {
            let style = match row {
                0 => Style::new().bold(),
                _ => tone(column, cell.trim_end()).style(),
            };
            let (word, space) = cell.split_at(cell.trim_end().len());
            format!("{style}{word}{style:#}{space}")
        });
        let line: Vec<String> = shown.collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Prints text whose control characters have been escaped, except for the colors. Strips the colors if stdout does not
/// support them. Returns false if stdout is closed.
///
/// # Errors
/// As for [`print()`](super::print()).
pub fn print_styled(text: &str) -> io::Result<bool> {
    print_drawing(&on_stdout(text))
}

/// Returns the text, without its colors if stdout does not support them.
pub(super) fn on_stdout(text: &str) -> String {
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// Prints text that moves the terminal's cursor. The caller must have escaped all untrusted parts.
///
/// # Errors
/// As for [`print()`](super::print()).
pub(super) fn print_drawing(text: &str) -> io::Result<bool> {
    write_all(text.as_bytes())
}
