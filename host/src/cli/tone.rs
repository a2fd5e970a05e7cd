//! Tables in colours, where they are read on a terminal that has some: `NO_COLOR`, `CLICOLOR` and `CLICOLOR_FORCE` are
//! heeded, as by the parser's own help.

use std::io;

use anstyle::{AnsiColor, Style};

use super::print::{padded, write_all};

/// How a cell is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tone {
    /// Like all else.
    Plain,
    /// It is as it should be.
    Good,
    /// Somebody may want to look.
    Doubtful,
    /// Somebody should look.
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

/// A table below its heads, with a tone for each cell by its column and text. It is harmless for a terminal but for these
/// colours: print it with [`print_styled`].
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

/// Prints a text that is harmless but for its colours, which are left out where nobody sees them. Tells whether somebody
/// reads it.
///
/// # Errors
/// As for [`print()`](super::print()).
pub fn print_styled(text: &str) -> io::Result<bool> {
    print_drawing(&on_stdout(text))
}

/// The text as stdout would have it: with its colours or without.
pub(super) fn on_stdout(text: &str) -> String {
    match anstream::AutoStream::choice(&io::stdout()) {
        anstream::ColorChoice::Never => anstream::adapter::strip_str(text).to_string(),
        _ => text.to_owned(),
    }
}

/// Prints what moves a terminal's cursor. What others have written in it was made harmless before.
///
/// # Errors
/// As for [`print()`](super::print()).
pub(super) fn print_drawing(text: &str) -> io::Result<bool> {
    write_all(text.as_bytes())
}
