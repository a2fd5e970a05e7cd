//! The output of `baton modules`.

use std::io;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::print::to_the_second;
use super::status::short;
use super::{Tone, print_json, print_styled, table};
use baton_admin::{ModuleRow, NodeRow};
use baton_store::SILENT;

/// Prints the versions, as a table or as a JSON array. Ages are relative to `now`.
///
/// # Errors
/// As for [`print_json`].
pub fn print_modules(rows: &[ModuleRow], now: OffsetDateTime, json: bool) -> io::Result<()> {
    if json { print_json(&rows) } else { print_styled(&text(rows, now)).map(drop) }
}

fn text(rows: &[ModuleRow], now: OffsetDateTime) -> String {
    let mut lines = vec![["VERSION", "DIGEST", "BYTES", "PUSHED", "BY", "VERDICT", "NODES"].map(String::from)];
    let dash = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or("-".to_owned());
    for row in rows {
        let nodes: Vec<String> = row.nodes.iter().map(|node| node_cell(node, now)).collect();
        lines.push([
            match (row.current, row.pushed) {
                (true, _) => "current".to_owned(),
                (false, true) => "-".to_owned(),
                (false, false) => "unpushed".to_owned(),
            },
            short(&row.digest.to_string()),
            dash(row.size.map(|size| size.to_string())),
            dash(row.at.as_deref().map(to_the_second)),
            dash(row.by.clone()),
            verdict(row),
            dash(Some(nodes.join(", "))),
        ]);
    }
    table(&lines, |column, cell| match (column, cell) {
        (5, "good") => Tone::Good,
        (5, "on probation") => Tone::Doubtful,
        (5, cell) if cell.starts_with("rejected") => Tone::Bad,
        _ => Tone::Plain,
    })
}

fn verdict(row: &ModuleRow) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match row.verdict {
        None => "-".to_owned(),
        Some("rejected") => {
            let at = to_the_second(&text(&row.rejected_at));
            format!("rejected: {} ({}, {at})", text(&row.reason), text(&row.rejected_by))
        }
        Some(verdict) => verdict.replace('-', " "),
    }
}

/// Formats the age of the time `at`, as in `5 min ago`. Returns `None` if `at` is not a time.
pub(super) fn age(at: &str, now: OffsetDateTime) -> Option<String> {
    let age = now - OffsetDateTime::parse(at, &Rfc3339).ok()?;
    Some(match age.whole_minutes() {
        // The time may come from another machine, whose clock may be ahead of this machine's clock.
        minutes if minutes < 2 => format!("{} s ago", age.whole_seconds().max(0)),
        minutes if minutes < 120 => format!("{minutes} min ago"),
        minutes if minutes < 48 * 60 => format!("{} h ago", minutes / 60),
        minutes => format!("{} days ago", minutes / (24 * 60)),
    })
}

fn node_cell(node: &NodeRow, now: OffsetDateTime) -> String {
    let is_old = OffsetDateTime::parse(&node.at, &Rfc3339).is_ok_and(|at| now - at > SILENT);
    let age = age(&node.at, now).filter(|_| is_old);
    match (node.runs, age) {
        (true, None) => format!("{} (runs)", node.node),
        (true, Some(age)) => format!("{} (ran, {age})", node.node),
        (false, None) => node.node.clone(),
        (false, Some(age)) => format!("{} ({age})", node.node),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_modules::{ListedVersion, RecordedVerdict, VersionList};
    use baton_store::{Announcement, Digest};

    use super::*;

    fn entry(name: &str, serial: u64, verdict: Option<RecordedVerdict>) -> ListedVersion {
        let (by, at) = ("ann@desk\x1b[2J".to_owned(), "2026-11-21T12:00:00.500000Z".to_owned());
        ListedVersion { digest: Digest::of(name.as_bytes()), size: 70_000, serial, by, at, signature: None, verdict }
    }

    fn said(node: &str, at: &str, holds: &[&str], runs: Option<&str>) -> Announcement {
        let digest = |name: &str| Digest::of(name.as_bytes());
        let (holds, runs) = (holds.iter().map(|name| digest(name)).collect(), runs.map(digest));
        Announcement { at: at.to_owned(), ..Announcement::now(node, "", "", holds, runs) }
    }

    fn rows() -> Vec<ModuleRow> {
        let (node, at) = ("alpha".to_owned(), "2026-11-21T12:03:00Z".to_owned());
        let rejected = RecordedVerdict::Rejected { reason: "it trapped".to_owned(), node, at };
        let control = VersionList {
            serial: 3,
            pushed: vec![
                entry("a", 1, Some(RecordedVerdict::Good)),
                entry("b", 2, None),
                entry("c", 3, Some(rejected.clone())),
            ],
            unpushed: vec![entry("d", 1, Some(rejected))],
        };
        let now = "2026-11-21T12:09:30Z";
        ModuleRow::of(
            &control,
            &[
                said("alpha", now, &["a", "b"], Some("b")),
                said("beta", "2026-11-21T12:05:00Z", &["a"], Some("e")),
                said("gamma", "yesterday", &["b"], None),
            ],
        )
    }

    #[test]
    fn table_shows_nodes_and_verdict_of_each_version() {
        let digest = |name: &str| short(&Digest::of(name.as_bytes()).to_string());
        let (a, b, c, d, e) = (digest("a"), digest("b"), digest("c"), digest("d"), digest("e"));
        let now = OffsetDateTime::parse("2026-11-21T12:10:00Z", &Rfc3339).unwrap();
        assert_eq!(
            anstream::adapter::strip_str(&text(&rows(), now)).to_string(),
            format!(
                "\
VERSION   DIGEST               BYTES  PUSHED                BY                 VERDICT                                             NODES
-         {c}  70000  2026-11-21T12:00:00Z  ann@desk\\u{{1b}}[2J  rejected: it trapped (alpha, 2026-11-21T12:03:00Z)  -
current   {b}  70000  2026-11-21T12:00:00Z  ann@desk\\u{{1b}}[2J  on probation                                        alpha (runs), gamma
-         {a}  70000  2026-11-21T12:00:00Z  ann@desk\\u{{1b}}[2J  good                                                alpha, beta (5 min ago)
unpushed  {d}  70000  -                     -                  rejected: it trapped (alpha, 2026-11-21T12:03:00Z)  -
unpushed  {e}  -      -                     -                  -                                                   beta (ran, 5 min ago)
"
            )
        );
    }

    #[test]
    fn json_has_its_keys_in_order() {
        let digest = Digest::of(b"c");
        assert_eq!(
            serde_json::to_string(&rows()[0]).unwrap(),
            format!(
                r#"{{"digest":"{digest}","size":70000,"current":false,"pushed":true,"by":"ann@desk\u001b[2J","at":"2026-11-21T12:00:00.500000Z","signed":false,"verdict":"rejected","reason":"it trapped","rejected_by":"alpha","rejected_at":"2026-11-21T12:03:00Z","nodes":[]}}"#
            )
        );
        let nodes = serde_json::to_string(&rows()[1].nodes).unwrap();
        assert!(nodes.starts_with(r#"[{"node":"alpha","runs":true,"at":"2026-11-21T12:09:30Z"},"#), "{nodes}");
    }
}
