//! One event, one line.

use std::fmt::Write as _;

use serde::Serialize;

use super::queue::Entry;
use super::{Event, Format, GuestStream, Level, escape, rfc3339};
use crate::telemetry::escape::escape_json;

/// How lines look, and for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// Text or JSON.
    pub format: Format,
    /// A person is watching: the time without its date is enough.
    pub terminal: bool,
    /// Colours in text.
    pub colours: bool,
}

/// Makes lines; remembers how wide a column was, so that text stays aligned.
#[derive(Debug)]
pub(super) struct Formatter {
    style: Style,
    width: usize,
}

impl Formatter {
    pub fn new(style: Style) -> Self {
        Self { style, width: 0 }
    }

    /// The line with its end.
    pub fn line(&mut self, entry: &Entry) -> String {
        let mut line = match self.style.format {
            Format::Json => json(entry),
            Format::Text => self.text(entry),
        };
        line.push('\n');
        line
    }

    fn text(&mut self, entry: &Entry) -> String {
        let (name, level) = entry.event.kind();
        let full = rfc3339(entry.at);
        let time =
            full.split_once('T').map_or(full.as_str(), |(_, time)| if self.style.terminal { time } else { &full });
        let mut who = entry.scope.election.as_ref().map_or("-", |election| election.as_str()).to_string();
        if let Some(term) = entry.term {
            // Cannot fail: the target is a string.
            let _ = write!(who, " term {term}");
        }
        self.width = self.width.max(who.len());
        let message = entry.event.to_string();
        let message = escape(&message);
        let (tag, colour, rest) = match &entry.event {
            Event::Output { stream: GuestStream::Stdout, .. } => ("out", "36", format!("| {message}")),
            Event::Output { stream: GuestStream::Stderr, .. } => ("err", "36", format!("| {message}")),
            Event::Output { stream: GuestStream::Log, .. } => {
                let (tag, colour) = tag(level);
                (tag, colour, format!("| {message}"))
            }
            _ => {
                let (tag, colour) = tag(level);
                (tag, colour, format!("{name}: {message}"))
            }
        };
        let (on, off) = if self.style.colours { (format!("\x1b[{colour}m"), "\x1b[0m") } else { (String::new(), "") };
        format!("{time} {on}{tag:>5}{off} {who:<width$}  {rest}", width = self.width)
    }
}

/// The level as people read it, and its colour.
fn tag(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::Trace => ("TRACE", "90"),
        Level::Debug => ("DEBUG", "90"),
        Level::Info => ("INFO", "32"),
        Level::Warn => ("WARN", "33"),
        Level::Error => ("ERROR", "31"),
        Level::Critical => ("CRIT", "31"),
    }
}

fn json(entry: &Entry) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        ts: String,
        level: Level,
        event: &'static str,
        node: &'a str,
        election: Option<&'a str>,
        term: Option<u64>,
        #[serde(flatten)]
        fields: &'a Event,
    }
    let (event, level) = entry.event.kind();
    let line = Line {
        ts: rfc3339(entry.at),
        level,
        event,
        node: entry.scope.node.as_str(),
        election: entry.scope.election.as_ref().map(|election| election.as_str()),
        term: entry.term,
        fields: &entry.event,
    };
    match serde_json::to_string(&line) {
        Ok(json) => escape_json(json),
        // Numbers, texts and their names serialise; should that change, the event is still named.
        Err(error) => serde_json::json!({ "ts": line.ts, "event": event, "error": error.to_string() }).to_string(),
    }
}
