//! What `baton status` prints.

use std::io;
use std::time::Duration;

use baton_election::{LeaseState, Term};
use serde::{Serialize, Serializer};

use super::{columns, print};
use crate::telemetry::rfc3339;

/// Whether the lease is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseWord {
    /// By the node of the record.
    Held,
    /// By nobody: never held, or released.
    Free,
    /// Its time ran out.
    Expired,
    /// Broken by an operator, with some of its time still to go.
    Breaking,
    /// Broken by an operator.
    Broken,
    /// By something that is no host of Baton.
    Outside,
}

impl From<LeaseState> for LeaseWord {
    /// [`LeaseState::Held`] may still be by an outside client: only the record can tell.
    fn from(state: LeaseState) -> Self {
        match state {
            LeaseState::Held => Self::Held,
            LeaseState::HeldForever => Self::Outside,
            LeaseState::Free => Self::Free,
            LeaseState::Expired => Self::Expired,
            LeaseState::Breaking => Self::Breaking,
            LeaseState::Broken => Self::Broken,
        }
    }
}

impl LeaseWord {
    fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Free => "free",
            Self::Expired => "expired",
            Self::Breaking => "breaking",
            Self::Broken => "broken",
            Self::Outside => "outside",
        }
    }
}

/// One election. The keys of its JSON are an interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StatusRow {
    /// Its name.
    pub election: String,
    /// Whether its lease is held.
    pub lease: LeaseWord,
    /// The highest term begun; none if the store has no record.
    pub term: Option<Term>,
    /// The node that began it.
    pub node: Option<String>,
    /// When: wall-clock time since the Unix epoch; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    pub since: Option<Duration>,
    /// The digest of the module that ran.
    pub module: Option<String>,
    /// How the election ended, where it has.
    pub outcome: Option<String>,
}

fn as_rfc3339<S: Serializer>(since: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    since.map(rfc3339).serialize(serializer)
}

/// Prints the elections, as a table or as a JSON array.
///
/// # Errors
/// As for [`print`].
pub fn print_status(rows: &[StatusRow], json: bool) -> io::Result<()> {
    let text = if json {
        serde_json::to_string_pretty(rows)? + "\n"
    } else {
        table(rows)
    };
    print(&text)
}

fn table(rows: &[StatusRow]) -> String {
    if rows.is_empty() {
        return "There are no elections in this store.\n".to_string();
    }
    let mut lines = vec![
        [
            "ELECTION", "LEASE", "TERM", "NODE", "SINCE", "MODULE", "OUTCOME",
        ]
        .map(String::from),
    ];
    let dash = |text: Option<String>| text.unwrap_or("-".to_string());
    for row in rows {
        lines.push([
            row.election.clone(),
            row.lease.as_str().to_string(),
            dash(row.term.map(|term| term.to_string())),
            dash(row.node.clone()),
            // A person does not miss the microseconds.
            dash(
                row.since.map(|since| {
                    rfc3339(Duration::from_secs(since.as_secs())).replace(".000000", "")
                }),
            ),
            dash(row.module.as_deref().map(short)),
            dash(row.outcome.clone()),
        ]);
    }
    columns(&lines)
}

/// Enough of a digest to tell modules apart.
fn short(digest: &str) -> String {
    digest.chars().take("sha256:".len() + 12).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn rows() -> Vec<StatusRow> {
        vec![
            StatusRow {
                election: "heartbeat".to_string(),
                lease: LeaseWord::Held,
                term: Some(7),
                node: Some("web-3\x1b[2J".to_string()),
                since: Some(Duration::from_micros(1_709_210_096_000_042)),
                module: Some(format!("sha256:{}", "ab".repeat(32))),
                outcome: None,
            },
            StatusRow {
                election: "x".to_string(),
                lease: LeaseWord::Outside,
                term: None,
                node: None,
                since: None,
                module: None,
                outcome: Some("done".to_string()),
            },
        ]
    }

    #[test]
    fn the_table_is_aligned_and_harmless() {
        assert_eq!(
            table(&rows()),
            "ELECTION   LEASE    TERM  NODE            SINCE                 MODULE               OUTCOME\n\
             heartbeat  held     7     web-3\\u{1b}[2J  2024-02-29T12:34:56Z  sha256:abababababab  -\n\
             x          outside  -     -               -                     -                    done\n"
        );
        assert_eq!(table(&[]), "There are no elections in this store.\n");
    }

    #[test]
    fn json_has_its_keys_in_order() {
        let digest = "ab".repeat(32);
        assert_eq!(
            serde_json::to_string(&rows()).unwrap(),
            format!(
                r#"[{{"election":"heartbeat","lease":"held","term":7,"node":"web-3\u001b[2J","since":"2024-02-29T12:34:56.000042Z","module":"sha256:{digest}","outcome":null}},{{"election":"x","lease":"outside","term":null,"node":null,"since":null,"module":null,"outcome":"done"}}]"#
            )
        );
    }
}
