//! The formats of log lines. Each event is one line.

use std::borrow::Cow;

use serde::Serialize;

use super::queue::LogEntry;
use super::{Ended, Event, Format, GuestStream};
use baton_base::clock::rfc3339;
use baton_base::escape::{escape, escape_json, escape_lines};
use baton_election::ElectionName;
use baton_runtime::LogLevel;
use baton_store::Digest;

/// The format of log lines, and the features of the output that the lines may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// The format.
    pub format: Format,
    /// True if the output is a terminal. Times then omit the date.
    pub terminal: bool,
    /// True if text is colored.
    pub colours: bool,
}

/// Formats entries, and aligns their messages. `width` is the width of the column before the message: the greatest
/// width that an entry has needed so far.
#[derive(Debug)]
pub(super) struct Formatter {
    style: Style,
    width: usize,
}

impl Formatter {
    pub fn new(style: Style) -> Self {
        Self { style, width: 0 }
    }

    /// Returns the line, including the line terminator, or an empty string if the format omits the event.
    pub fn line(&mut self, entry: &LogEntry) -> String {
        let mut line = match self.style.format {
            Format::Json => json(entry),
            Format::Brief if !matters(&entry.event) => return String::new(),
            Format::Text | Format::Brief => self.text(entry),
        };
        line.push('\n');
        line
    }

    fn text(&mut self, entry: &LogEntry) -> String {
        let (name, level) = entry.event.kind();
        let is_brief = self.style.format == Format::Brief;
        let full = rfc3339(entry.at);
        let time = full.split_once('T').map_or(full.as_str(), |(_, time)| time);
        let time = match (is_brief, self.style.terminal) {
            (true, _) => time.get(..12).unwrap_or(time),
            (false, true) => time,
            (false, false) => &full,
        };
        let election = entry.scope.election().map_or("-", ElectionName::as_str);
        let term = entry.term.map(|term| format!("term {term}"));
        // Omit the election from a brief log, because such a log always covers a single election.
        let who = Some(election.to_owned()).filter(|_| !is_brief).into_iter().chain(term).collect::<Vec<_>>().join(" ");
        self.width = self.width.max(who.len());
        let message = if is_brief { for_a_developer(&entry.event) } else { None };
        let message = message.unwrap_or_else(|| entry.event.to_string());
        // Keep the lines of a backtrace separate, because a person reads this output. Indent each line, so that a
        // guest's text cannot pose as a log line.
        let message = match &entry.event {
            Event::Ended { .. } if is_brief || self.style.terminal => {
                Cow::Owned(escape_lines(&message).replace('\n', "\n             "))
            }
            _ => escape(&message),
        };
        let (tag, colour, rest) = match &entry.event {
            Event::Output { stream: GuestStream::Stdout, .. } => ("out", "36", format!("| {message}")),
            Event::Output { stream: GuestStream::Stderr, .. } => ("err", "36", format!("| {message}")),
            Event::Output { stream: GuestStream::Log, .. } => {
                let (tag, colour) = tag(level);
                (tag, colour, format!("| {message}"))
            }
            _ => {
                let (tag, colour) = tag(level);
                let message = shortened(&entry.event, &message);
                (tag, colour, format!("{name}: {message}"))
            }
        };
        let (color_on, color_off) =
            if self.style.colours { (format!("\x1b[{colour}m"), "\x1b[0m") } else { (String::new(), "") };
        format!("{time} {color_on}{tag:>5}{color_off} {who:<width$}  {rest}", width = self.width)
    }
}

fn tag(level: LogLevel) -> (&'static str, &'static str) {
    match level {
        LogLevel::Trace => ("TRACE", "90"),
        LogLevel::Debug => ("DEBUG", "90"),
        LogLevel::Info => ("INFO", "32"),
        LogLevel::Warn => ("WARN", "33"),
        LogLevel::Error => ("ERROR", "31"),
        LogLevel::Critical => ("CRIT", "31"),
    }
}

/// Shortens digests to the length that `baton modules` shows.
fn shortened(event: &Event, message: &str) -> String {
    // Keep these messages unshortened. The operator may need a refused module's full digest for `--pin`, or a refused
    // request's full path for a grant.
    if matches!(event, Event::ModuleRefused { .. } | Event::RequestRefused { .. }) {
        return message.to_owned();
    }
    let mut parts = message.split("sha256:");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("sha256:");
        match part.split_at_checked(64) {
            Some((digest, rest)) if digest.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                text.extend([&digest[..Digest::SHOWN], rest]);
            }
            _ => text.push_str(part),
        }
    }
    text
}

/// Returns the message for a coordinator's developer, if it differs from the message for an operator. A developer saves
/// files and does not push modules.
fn for_a_developer(event: &Event) -> Option<String> {
    match event {
        Event::VersionRejected { module, reason, fallback } => {
            let runs = fallback.as_ref().map(|fallback| format!("; {fallback} runs again")).unwrap_or_default();
            Some(format!("module {module} failed: {reason}{runs}; save a file to build again"))
        }
        Event::VersionAccepted { module } => Some(format!("module {module} works")),
        Event::ModuleRefused { source, error, .. } => Some(format!("{source}: {error}; save a file to build again")),
        _ => None,
    }
}

fn matters(event: &Event) -> bool {
    match event {
        Event::Starting { .. }
        | Event::Standby { .. }
        | Event::Link { .. }
        | Event::Elected { .. }
        | Event::Stopping { .. }
        | Event::ModuleReady { .. }
        | Event::Released {} => false,
        Event::Ended { outcome, .. } => *outcome != Ended::Done,
        _ => true,
    }
}

fn json(entry: &LogEntry) -> String {
    object(entry, &entry.event, None)
}

/// Returns an entry as a JSON object for the admin endpoint, with the message of the text format. Uses `event` instead
/// of the entry's own event, because the caller may have hidden some of its text.
pub(super) fn admin_json(entry: &LogEntry, event: &Event) -> String {
    // An output event already contains its text.
    let text = (!matches!(event, Event::Output { .. })).then(|| shortened(event, &event.to_string()));
    object(entry, event, text)
}

fn object(entry: &LogEntry, fields: &Event, text: Option<String>) -> String {
    #[derive(Serialize)]
    struct Line<'a> {
        ts: String,
        level: LogLevel,
        event: &'static str,
        node: &'a str,
        election: Option<&'a str>,
        term: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(flatten)]
        fields: &'a Event,
    }
    let (event, level) = fields.kind();
    let line = Line {
        ts: rfc3339(entry.at),
        level,
        event,
        node: entry.scope.node.as_str(),
        election: entry.scope.election().map(ElectionName::as_str),
        term: entry.term,
        text,
        fields,
    };
    match serde_json::to_string(&line) {
        Ok(json) => escape_json(json),
        // Serialization should never fail. If it does, the line still names the event.
        Err(error) => serde_json::json!({ "ts": line.ts, "event": event, "error": error.to_string() }).to_string(),
    }
}
