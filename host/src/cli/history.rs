//! The output of `baton history`.

use std::io;

use baton_election::ElectionName;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::print::to_the_second;
use super::status::short;
use super::{columns, print, print_json};
use baton_admin::TermRow;

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

/// Formats the terms as a table. Contains due times only if an election has a schedule.
fn table(rows: &[TermRow]) -> String {
    let head = ["TERM", "NODE", "MODULE", "DUE", "BEGAN", "LED", "LEADERLESS", "OUTCOME", "REASON"];
    let mut lines = vec![head.map(String::from)];
    let dash = |text: Option<String>| text.unwrap_or("-".to_owned());
    for row in rows {
        // If another node closed the term, `ended` is the time at which that node took over. The duration is then only
        // an upper bound.
        let bound = if row.closed_by.is_some() { "<" } else { "" };
        let led = row.ended.as_deref().and_then(|ended| Some(format!("{bound}{}", elapsed(&row.began, ended)?)));
        lines.push([
            row.term.to_string(),
            row.node.clone(),
            dash(row.module.as_deref().map(short)),
            dash(row.due.as_deref().map(to_the_second)),
            to_the_second(&row.began),
            dash(led),
            dash(row.leaderless_s.map(|seconds| format!("{seconds:.1}s"))),
            dash(row.outcome.clone()),
            dash(row.reason.clone()),
        ]);
    }
    if rows.iter().any(|row| row.due.is_some()) {
        return columns(&lines);
    }
    let without_due = lines.into_iter().map(|[term, node, module, _, began, led, leaderless, outcome, reason]| {
        [term, node, module, began, led, leaderless, outcome, reason]
    });
    columns(&without_due.collect::<Vec<_>>())
}

/// Formats the time from `from` to `to`, rounded down to seconds. Returns `None` if either string is not a time, or if
/// `to` is earlier than `from`. The order can be wrong, because the clocks of two nodes may differ.
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
    use baton_store::PastTerm;

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
        let due = PastTerm { due: Some("2026-11-21T10:00:00Z".to_owned()), ..PastTerm::default() };
        assert_eq!(
            table(&[TermRow::from(due)]),
            "TERM  NODE  MODULE  DUE                   BEGAN  LED  LEADERLESS  OUTCOME  REASON\n\
             0           -       2026-11-21T10:00:00Z         -    -           -        -\n"
        );
    }
}
