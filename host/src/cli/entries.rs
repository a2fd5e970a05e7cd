//! The output of `baton events` and `baton logs`.

use std::io;

use serde::Deserialize;
use serde_json::Value;

use super::print_on;
use baton_base::escape::{escape, escape_json};

/// An event or a line of output, in the form in which the admin endpoint sends it.
#[derive(Deserialize)]
struct Entry {
    ts: String,
    level: String,
    event: String,
    #[serde(default)]
    election: Option<String>,
    #[serde(default)]
    term: Option<u64>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    stream: Option<String>,
    #[serde(default)]
    context: Option<String>,
    #[serde(default)]
    line: Option<String>,
}

/// Prints an entry, as a line of text or JSON. Returns false if stdout is closed.
///
/// # Errors
/// As for [`print_on`].
pub fn print_entry(entry: &Value, json: bool) -> io::Result<bool> {
    let line = if json { escape_json(entry.to_string()) } else { text(entry) };
    print_on(&(line + "\n"))
}

fn text(entry: &Value) -> String {
    let Ok(Entry { ts, level, event, election, term, text: message, stream, context, line }) =
        Entry::deserialize(entry)
    else {
        // An entry from a newer host may lack some of these fields. Show such an entry as JSON.
        return escape(&entry.to_string()).into_owned();
    };
    let level = match (stream.as_deref(), &*level) {
        (Some("stdout"), _) => "OUT".to_owned(),
        (Some("stderr"), _) => "ERR".to_owned(),
        (_, "critical") => "CRIT".to_owned(),
        (_, level) => level.to_ascii_uppercase(),
    };
    let election = election.unwrap_or("-".to_owned());
    let source = term.map_or(election.clone(), |term| format!("{election} term {term}"));
    let message = match (line, context) {
        (Some(line), Some(context)) => format!("| {context}: {line}"),
        (Some(line), None) => format!("| {line}"),
        (None, _) => format!("{event}: {}", message.unwrap_or_default()),
    };
    escape(&format!("{ts} {level:>5} {source}  {message}")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entry_prints_as_a_line_of_the_log() {
        for (entry, line) in [
            (
                json!({"ts": "T", "level": "warn", "event": "ended", "node": "n", "election": "job", "term": 7, "text": "failed"}),
                "T  WARN job term 7  ended: failed",
            ),
            (
                json!({"ts": "T", "level": "info", "event": "output", "node": "n", "election": "job", "term": 7, "stream": "stdout", "line": "a\u{1b}[2J\nb"}),
                "T   OUT job term 7  | a\\u{1b}[2J\\nb",
            ),
            (
                json!({"ts": "T", "level": "critical", "event": "output", "node": "n", "election": "job", "term": 7, "stream": "log", "context": "c", "line": "l"}),
                "T  CRIT job term 7  | c: l",
            ),
            (
                json!({"ts": "T", "level": "info", "event": "shutting_down", "node": "n", "election": null, "term": null, "text": "SIGTERM"}),
                "T  INFO -  shutting_down: SIGTERM",
            ),
            (json!({"of": "a later host\u{202e}"}), "{\"of\":\"a later host\\u{202e}\"}"),
        ] {
            assert_eq!(text(&entry), line);
        }
    }
}
