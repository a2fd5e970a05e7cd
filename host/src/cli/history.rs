//! The output of `baton history`.

use std::io;

use baton_election::ElectionName;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use super::status::short;
use super::{columns, print, print_json};
use baton_store::PastTerm;

/// A past or current term. Its JSON keys are a public interface.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct TermRow {
    /// Number of the term.
    pub term: u64,
    /// The node that served it.
    pub node: String,
    /// Incarnation of the host, which identifies one run of it.
    pub incarnation: String,
    /// Digest of the module that ran; null if unknown.
    pub module: Option<String>,
    /// Start of the term (RFC 3339).
    pub began: String,
    /// Time at which its instance exited (RFC 3339); null until a node reports it.
    pub ended: Option<String>,
    /// Outcome of its instance: `done`, `failed`, `fatal`, `unable`, `killed` or `superseded`; null if its node has not
    /// reported one.
    pub outcome: Option<String>,
    /// Reason for its end, as logged; null if the outcome needs no explanation.
    pub reason: Option<String>,
    /// Time without a leader before the term, as observed by its node, in seconds; null if there was none or it is
    /// unknown.
    pub leaderless_s: Option<f64>,
    /// The node that took over and reported the end; null if the term's own node reported it. If set, `ended` is an
    /// upper bound.
    pub closed_by: Option<String>,
}

impl From<PastTerm> for TermRow {
    fn from(past: PastTerm) -> Self {
        let PastTerm { term, node, incarnation, module, begun, ended, outcome, reason, leaderless_ms, closed_by } =
            past;
        #[expect(clippy::cast_precision_loss, reason = "an f64 holds milliseconds exactly for 285,000 years")]
        let leaderless_s = leaderless_ms.map(|time| time as f64 / 1e3);
        Self { term, node, incarnation, module, began: begun, ended, outcome, reason, leaderless_s, closed_by }
    }
}

/// Prints the terms, as a table or as a JSON array.
///
/// # Errors
/// As for [`print()`].
pub fn print_history(election: &ElectionName, rows: &[TermRow], json: bool) -> io::Result<()> {
    match rows {
        _ if json => print_json(&rows),
        [] => print(&format!("{election} has had no term yet, or `--limit` is 0.\n")),
        rows => print(&table(rows)),
    }
}

fn table(rows: &[TermRow]) -> String {
    let head = ["TERM", "NODE", "MODULE", "BEGAN", "LED", "LEADERLESS", "OUTCOME", "REASON"];
    let mut lines = vec![head.map(String::from)];
    let dash = |text: Option<String>| text.unwrap_or("-".to_owned());
    for row in rows {
        // If another node took over, its takeover gives only an upper bound.
        let bound = if row.closed_by.is_some() { "<" } else { "" };
        let led = row.ended.as_deref().and_then(|ended| Some(format!("{bound}{}", elapsed(&row.began, ended)?)));
        lines.push([
            row.term.to_string(),
            row.node.clone(),
            dash(row.module.as_deref().map(short)),
            to_the_second(&row.began),
            dash(led),
            dash(row.leaderless_s.map(|seconds| format!("{seconds:.1}s"))),
            dash(row.outcome.clone()),
            dash(row.reason.clone()),
        ]);
    }
    columns(&lines)
}

/// Removes the microseconds from a time. Returns a string that is not a UTC time unchanged.
fn to_the_second(time: &str) -> String {
    match (time.split_once('.'), OffsetDateTime::parse(time, &Rfc3339)) {
        (Some((seconds, _)), Ok(at)) if at.offset().is_utc() => format!("{seconds}Z"),
        _ => time.to_owned(),
    }
}

/// Formats the time between two times, rounded down to seconds. Returns `None` if either string is not a time, or if
/// `to` is earlier than `from`, which is possible because the clocks of two nodes may differ.
fn elapsed(from: &str, to: &str) -> Option<String> {
    let [from, to] = [from, to].map(|time| OffsetDateTime::parse(time, &Rfc3339).ok());
    let time: std::time::Duration = (to? - from?).try_into().ok()?;
    if time.as_secs() == 0 {
        return Some(format!("{:.1}s", time.as_secs_f64()));
    }
    Some(humantime::format_duration(std::time::Duration::from_secs(time.as_secs())).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<TermRow> {
        let text = |text: &str| Some(text.to_owned());
        let past = |term, node: &str, begun: &str| {
            let (node, begun, module) =
                (node.to_owned(), begun.to_owned(), Some(format!("sha256:{}", "ab".repeat(32))));
            PastTerm { term, node, begun, module, incarnation: "i".to_owned(), ..PastTerm::default() }
        };
        let runs = PastTerm { leaderless_ms: Some(2430), ..past(9, "web-2", "2026-11-21T11:10:30.000042Z") };
        let reason = text("lease-at-risk: \u{1b}[2J");
        let (ended, outcome) = (text("2026-11-21T11:10:00.000000Z"), text("killed"));
        let killed = PastTerm { ended, outcome, reason, ..past(8, "web-2", "2026-11-21T10:00:00.000000Z") };
        let (ended, closed_by) = (text("2026-11-21T10:00:00.000000Z"), text("web-2"));
        let died = PastTerm { ended, closed_by, module: None, ..past(6, "web-1", "2026-11-21T09:59:59.400000Z") };
        let odd = PastTerm { ended: text("2026-11-21T10:00:00Z"), ..past(5, "web-1", "soon") };
        [runs, killed, died, odd].map(TermRow::from).to_vec()
    }

    #[test]
    fn table_is_aligned_and_escapes_control_characters() {
        assert_eq!(
            table(&rows()),
            "TERM  NODE   MODULE               BEGAN                 LED     LEADERLESS  OUTCOME  REASON\n\
             9     web-2  sha256:abababababab  2026-11-21T11:10:30Z  -       2.4s        -        -\n\
             8     web-2  sha256:abababababab  2026-11-21T10:00:00Z  1h 10m  -           killed   lease-at-risk: \\u{1b}[2J\n\
             6     web-1  -                    2026-11-21T09:59:59Z  <0.6s   -           -        -\n\
             5     web-1  sha256:abababababab  soon                  -       -           -        -\n"
        );
    }
}
