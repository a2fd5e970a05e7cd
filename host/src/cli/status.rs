//! The output of `baton status`.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use baton_election::{ElectionName, LeaseState, Outcome, Progress, Snapshot, Term};
use serde::{Serialize, Serializer};

use super::nodes::in_one_cell;
use super::print::{print_error, print_json, print_json_again, to_the_second};
use super::progress::moves_its_cursor;
use super::tone::{Tone, on_stdout, print_drawing, print_styled, table};
use crate::config::ConfigError;
use baton_base::clock::{rfc3339, rfc3339_seconds, wall};
use baton_base::escape::{escape, escape_lines};
use baton_node::schedule::next_run;
use baton_runtime::{InstanceUsage, LimitUsage};
use baton_store::steering::CommandOrigin;
use baton_store::{Digest, Labels, StoreUrl};

/// The state of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseLabel {
    /// Held by the node in the record.
    Held,
    /// Never acquired, or released.
    Free,
    /// Expired.
    Expired,
    /// Broken by an operator, but not free yet.
    Breaking,
    /// Broken by an operator, and free.
    Broken,
    /// Held by a client other than Baton.
    Outside,
}

impl LeaseLabel {
    /// Classifies a lease. An infinite lease, or a lease on an object without a record, is held by a client other than
    /// Baton.
    fn of(state: LeaseState, has_record: bool) -> Self {
        match state {
            // Show these three states as held. Only a node that could acquire the lease needs to know that the holder
            // has exited.
            LeaseState::Held | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. } if has_record => {
                Self::Held
            }
            LeaseState::Held
            | LeaseState::Abandoned { .. }
            | LeaseState::Reclaimable { .. }
            | LeaseState::HeldForever => Self::Outside,
            LeaseState::Free => Self::Free,
            LeaseState::Expired => Self::Expired,
            LeaseState::Breaking => Self::Breaking,
            LeaseState::Broken => Self::Broken,
        }
    }

    fn tone(word: &str) -> Tone {
        match word {
            "held" => Tone::Good,
            "outside" | "broken" => Tone::Bad,
            "expired" | "breaking" => Tone::Doubtful,
            _ => Tone::Plain,
        }
    }

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

/// One election. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StatusRow {
    /// The election's name.
    pub election: String,
    /// The state of its lease.
    pub lease: LeaseLabel,
    /// The highest term that has begun; `None` if the store has no record.
    pub term: Option<Term>,
    /// The node that began this term.
    pub node: Option<String>,
    /// Start of the term, as wall-clock time since the Unix epoch; RFC 3339 in JSON.
    #[serde(serialize_with = "as_rfc3339")]
    pub since: Option<Duration>,
    /// The digest of the module that ran.
    pub module: Option<String>,
    /// The outcome of a finished election.
    pub outcome: Option<String>,
    /// Number of consecutive terms that failed, across all nodes; `None` if the store has no record.
    pub failures: Option<u32>,
    /// The scheduled runs; `None` if the election has no schedule.
    pub schedule: Option<ScheduleRow>,
    /// The suspension; `None` if the election is not suspended, or if the steering object cannot be read.
    pub suspended: Option<SuspendedRow>,
    /// The node's labels; empty if the node has announced none.
    pub labels: Labels,
    /// Resources that the election's instance uses; `None` unless the instance runs on this machine, under one of this
    /// user's hosts.
    #[serde(rename = "usage")]
    pub in_use: Option<InstanceUsage>,
}

/// The scheduled runs of an election. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ScheduleRow {
    /// The pattern and the time zone.
    pub schedule: String,
    /// Due time of the next run (RFC 3339). While a run is under way or missed, the due time of that run.
    pub next: Option<String>,
    /// True if the run that is due at `next` has begun but is not completed.
    pub begun: bool,
    /// Due time of the last completed run (RFC 3339), if any.
    pub last_completed: Option<String>,
}

impl ScheduleRow {
    fn of(progress: &Progress, now: Duration) -> Option<Self> {
        if !progress.has_schedule() {
            return None;
        }
        Some(Self {
            schedule: progress.schedule.clone(),
            next: next_run(progress, now).map(rfc3339_seconds),
            begun: progress.unfinished().is_some(),
            last_completed: progress.last_completed().map(rfc3339_seconds),
        })
    }

    fn text(&self) -> String {
        let Self { schedule, next, begun, last_completed } = self;
        let last =
            last_completed.as_ref().map_or("no run completed yet".to_owned(), |last| format!("last completed: {last}"));
        match next {
            Some(due) if *begun => format!("carries out the run of {due}; {last}; schedule {schedule}"),
            Some(due) => format!("runs next at {due}; {last}; schedule {schedule}"),
            None => format!("has no further run; {last}; schedule {schedule}"),
        }
    }
}

/// A suspension: no node leads until the election is resumed. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SuspendedRow {
    /// The user who suspended the election, as `USER@HOST`.
    pub by: String,
    /// Time of the suspension (RFC 3339).
    pub at: String,
    /// The reason, if one was given.
    pub reason: Option<String>,
}

impl From<CommandOrigin> for SuspendedRow {
    fn from(order: CommandOrigin) -> Self {
        let CommandOrigin { by, at, reason, .. } = order;
        Self { by, at, reason }
    }
}

impl StatusRow {
    /// Creates the row from a snapshot of an election. Returns `None` if the election does not exist.
    #[must_use]
    pub fn of(election: &ElectionName, snapshot: Snapshot) -> Option<Self> {
        let Snapshot::Object { lease, record, .. } = snapshot else {
            return None;
        };
        let lease = LeaseLabel::of(lease, record.is_some());
        let election = election.to_string();
        Some(match record {
            None => Self {
                election,
                lease,
                term: None,
                node: None,
                since: None,
                module: None,
                outcome: None,
                failures: None,
                schedule: None,
                suspended: None,
                labels: Labels::default(),
                in_use: None,
            },
            Some(record) => Self {
                election,
                lease,
                term: Some(record.term),
                // If the lease has never been held, the record's `since` is only the time at which the record was
                // created. Omit it.
                since: record.node.is_some().then_some(record.since),
                node: record.node,
                module: record.module,
                outcome: record.outcome.map(|Outcome::Done| "done".to_string()),
                failures: Some(record.failures),
                schedule: record.progress.and_then(|progress| ScheduleRow::of(&progress, wall())),
                suspended: None,
                labels: Labels::default(),
                in_use: None,
            },
        })
    }
}

impl StatusRow {
    /// True if a node holds the lease. The node's instance may still be starting or stopping.
    #[must_use]
    pub fn has_leader(&self) -> bool {
        self.lease == LeaseLabel::Held
    }

    /// Returns the group and the index, if this is the row of a shard.
    fn shard(&self) -> Option<(&str, &str)> {
        self.election.split_once('/')
    }
}

fn as_rfc3339<S: Serializer>(since: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    since.map(rfc3339).serialize(serializer)
}

/// Prints the elections, as a table or as a JSON array. If `are_grouped` is true, the table has one line for each group
/// of shards.
///
/// # Errors
/// As for [`print_json`].
pub fn print_status(rows: &[StatusRow], json: bool, are_grouped: bool) -> io::Result<()> {
    if json { print_json(&rows) } else { print_styled(&text(rows, are_grouped)).map(drop) }
}

/// Prints the rows that were read at the time `at`, and an error for each election that could not be read. On a
/// terminal, replaces the previous output; otherwise appends to it. Returns false if stdout is closed.
///
/// # Errors
/// As for [`print_json`].
pub fn print_again(
    place: &StoreUrl,
    at: Duration,
    read: Result<(&[StatusRow], &[String]), &str>,
    json: bool,
    are_grouped: bool,
) -> io::Result<bool> {
    if json {
        // Print nothing but rows to stdout; print errors to stderr.
        return match read {
            Ok((rows, unread)) => {
                for error in unread {
                    print_error(error);
                }
                print_json_again(&rows)
            }
            Err(error) => Ok(print_error(error)),
        };
    }
    let at = to_the_second(&rfc3339(at));
    let body = match read {
        Ok((rows, unread)) => {
            let errors = unread.iter().map(|error| format!("error: {error}\n")).collect::<String>();
            text(rows, are_grouped) + &escape_lines(&errors)
        }
        Err(error) => escape_lines(&format!("error: {error}\n")).into_owned(),
    };
    let text = format!("{at}  {}\n\n{body}", escape(&place.to_string()));
    if !moves_its_cursor(&io::stdout()) {
        return print_styled(&(text + "\n"));
    }
    // The new output overwrites the previous output from the top of the screen. Each line break erases the rest of the
    // old line, and the end of the text erases everything below it.
    const HOME: &str = "\u{1b}[H";
    const REST_OF_LINE: &str = "\u{1b}[K\n";
    const BELOW: &str = "\u{1b}[J";
    print_drawing(&format!("{HOME}{}{BELOW}", on_stdout(&text).replace('\n', REST_OF_LINE)))
}

pub(super) fn seconds(text: &str) -> Result<Duration, ConfigError> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        let problem =
            format!("{text:?} is not an interval: write 0.1 to 3600 seconds, and put the election before the flag");
        ConfigError::of_argument("--watch", problem)
    })
}

fn text(rows: &[StatusRow], are_grouped: bool) -> String {
    if rows.is_empty() {
        return "There are no elections in this store.\n".to_string();
    }
    let mut lines =
        vec![["ELECTION", "LEASE", "TERM", "NODE", "SINCE", "MODULE", "OUTCOME", "LABELS"].map(String::from)];
    let dash = |text: Option<String>| text.unwrap_or("-".to_string());
    let is_group = |one: &StatusRow, next: &StatusRow| {
        are_grouped && one.shard().zip(next.shard()).is_some_and(|((one, _), (next, _))| one == next)
    };
    for group in rows.chunk_by(is_group) {
        let [row, rest @ ..] = group else { continue };
        if !rest.is_empty() {
            lines.push(group_line(group));
            continue;
        }
        // While the lease is free, no node leads, but the record still names the last leader.
        let leads = !matches!(row.lease, LeaseLabel::Free | LeaseLabel::Expired | LeaseLabel::Broken);
        let node = row.node.as_ref().map(|node| if leads { node.clone() } else { format!("(last: {node})") });
        lines.push([
            row.election.clone(),
            row.lease.as_str().to_string(),
            dash(row.term.map(|term| term.to_string())),
            dash(node),
            dash(row.since.filter(|_| leads).map(|since| to_the_second(&rfc3339(since)))),
            dash(row.module.as_deref().map(short)),
            dash(row.outcome.clone().or(row.failures.and_then(in_a_row))),
            dash(in_one_cell(&row.labels)),
        ]);
    }
    let mut text = table(&lines, |column, cell| if column == 1 { LeaseLabel::tone(cell) } else { Tone::Plain });
    for row in rows {
        let (group, shard) = row.shard().map_or((&*row.election, None), |(group, shard)| (group, Some(shard)));
        if let Some(SuspendedRow { by, at, reason }) =
            row.suspended.as_ref().filter(|_| shard.is_none_or(|shard| shard == "0"))
        {
            let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            text.push_str(&format!(
                "\n{} has been suspended since {} by {}\n",
                group,
                escape(at),
                escape(&(by.clone() + &why))
            ));
        }
        if let Some(schedule) = &row.schedule {
            text.push_str(&format!("\n{} {}\n", row.election, escape(&schedule.text())));
        }
        if let Some(in_use) = row.in_use.as_ref().filter(|_| shard.is_none() || !are_grouped) {
            text.push_str(&format!("\n{} uses {}\n", escape(&row.election), used(in_use)));
        }
    }
    text
}

/// Returns the line for a group of shards: how many have a leader, and how many each node leads.
fn group_line(shards: &[StatusRow]) -> [String; 8] {
    let led: Vec<&StatusRow> = shards.iter().filter(|shard| shard.has_leader()).collect();
    let mut nodes = BTreeMap::<&str, usize>::new();
    for node in led.iter().filter_map(|shard| shard.node.as_deref()) {
        *nodes.entry(node).or_default() += 1;
    }
    let nodes = nodes.iter().map(|(node, count)| format!("{node}: {count}")).collect::<Vec<_>>().join(", ");
    let group = shards.first().and_then(StatusRow::shard).map_or("", |(group, _)| group);
    let module = shards.first().and_then(|shard| shard.module.clone());
    let is_one = shards.iter().all(|shard| shard.module == module);
    let lease = if led.len() == shards.len() { LeaseLabel::Held.as_str() } else { "partly" };
    [
        format!("{group} ({} shards)", shards.len()),
        lease.to_owned(),
        "-".to_owned(),
        if nodes.is_empty() { "-".to_owned() } else { nodes },
        "-".to_owned(),
        module.filter(|_| is_one).as_deref().map_or("-".to_owned(), short),
        format!("{} of {} lead", led.len(), shards.len()),
        "-".to_owned(),
    ]
}

fn used(in_use: &InstanceUsage) -> String {
    let InstanceUsage { memory, table_elements, instances, handles, files, requests, lines, dropped, process, .. } =
        in_use;
    let of = |share: &LimitUsage, what: &str| format!("{} of {} {what}", share.used, share.limit);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut parts = vec![format!("{:.1} of {:.1} MiB of memory", mib(memory.used), mib(memory.limit))];
    // Show only limits that are more than half used; the JSON output has all of them.
    let near = [
        (table_elements, "table elements"),
        (instances, "instances"),
        (handles, "handles"),
        (files, "open files"),
        (requests, "requests in flight"),
    ];
    parts.extend(near.iter().filter(|(share, _)| share.used > share.limit / 2).map(|(share, what)| of(share, what)));
    if *dropped > 0 {
        parts.push(format!("{lines} lines of output, {dropped} dropped"));
    }
    parts.push(format!(
        "{:.1} s of CPU time in process {}, which uses {:.1} MiB",
        Duration::from_millis(process.cpu_ms).as_secs_f64(),
        process.pid,
        mib(process.memory)
    ));
    parts.join(", ")
}

fn in_a_row(failures: u32) -> Option<String> {
    match failures {
        0 => None,
        1 => Some("failed once".to_string()),
        _ => Some(format!("failed {failures} times in a row")),
    }
}

/// Shortens a digest to as many digits as are needed to tell modules apart.
pub(super) fn short(digest: &str) -> String {
    digest.chars().take("sha256:".len() + Digest::SHOWN).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn rows() -> Vec<StatusRow> {
        vec![
            StatusRow {
                election: "heartbeat".to_string(),
                lease: LeaseLabel::Held,
                term: Some(7),
                node: Some("web-3\x1b[2J".to_string()),
                since: Some(Duration::from_micros(1_709_210_096_000_042)),
                module: Some(format!("sha256:{}", "ab".repeat(32))),
                outcome: None,
                failures: Some(3),
                schedule: None,
                suspended: Some(SuspendedRow {
                    by: "ann@desk".to_string(),
                    at: "2024-02-29T12:00:00Z".to_string(),
                    reason: Some("\x1b[2J".to_string()),
                }),
                labels: [("zone".to_string(), "west".to_string())].into(),
                in_use: None,
            },
            StatusRow {
                election: "x".to_string(),
                lease: LeaseLabel::Outside,
                term: None,
                node: None,
                since: None,
                module: None,
                outcome: Some("done".to_string()),
                failures: None,
                schedule: None,
                suspended: None,
                labels: Labels::default(),
                in_use: None,
            },
        ]
    }

    #[test]
    fn table_is_aligned_and_escapes_control_characters() {
        assert_eq!(
            anstream::adapter::strip_str(&text(&rows(), true)).to_string(),
            "ELECTION   LEASE    TERM  NODE            SINCE                 MODULE               OUTCOME                  LABELS\n\
             heartbeat  held     7     web-3\\u{1b}[2J  2024-02-29T12:34:56Z  sha256:abababababab  failed 3 times in a row  zone=west\n\
             x          outside  -     -               -                     -                    done                     -\n\
             \n\
             heartbeat has been suspended since 2024-02-29T12:00:00Z by ann@desk: \\u{1b}[2J\n"
        );
        let shard = |index: usize, node: &str, lease| StatusRow {
            election: format!("crawl/{index}"),
            node: Some(node.to_owned()),
            lease,
            ..rows()[0].clone()
        };
        let mut shards =
            [shard(0, "a", LeaseLabel::Held), shard(1, "b", LeaseLabel::Free), shard(2, "a", LeaseLabel::Held)];
        shards.iter_mut().for_each(|shard| shard.suspended = None);
        assert_eq!(
            anstream::adapter::strip_str(&text(&shards, true)).to_string(),
            "ELECTION          LEASE   TERM  NODE  SINCE  MODULE               OUTCOME      LABELS\n\
             crawl (3 shards)  partly  -     a: 2  -      sha256:abababababab  2 of 3 lead  -\n"
        );
        assert_eq!(text(&shards, false).lines().count(), 4, "one line for each shard");
        assert_eq!(text(&[], true), "There are no elections in this store.\n");
    }

    #[test]
    fn row_is_made_from_lease_and_record() {
        let name = ElectionName::new("job").unwrap();
        let record = baton_election::Record {
            term: 3,
            node: Some("n".to_string()),
            incarnation: "i".to_string(),
            since: Duration::from_secs(9),
            lease: Duration::from_secs(15),
            module: Some("sha256:ab".to_string()),
            outcome: Some(Outcome::Done),
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        };
        let of = |lease, record| {
            let version = baton_election::Version(String::new());
            StatusRow::of(&name, Snapshot::Object { lease, version, record }).unwrap()
        };
        assert_eq!(StatusRow::of(&name, Snapshot::Nothing), None);
        assert_eq!(of(LeaseState::Held, None).lease, LeaseLabel::Outside);
        assert_eq!(of(LeaseState::HeldForever, Some(record.clone())).lease, LeaseLabel::Outside);
        assert_eq!(
            of(LeaseState::Held, Some(record)),
            StatusRow {
                election: "job".to_string(),
                lease: LeaseLabel::Held,
                term: Some(3),
                node: Some("n".to_string()),
                since: Some(Duration::from_secs(9)),
                module: Some("sha256:ab".to_string()),
                outcome: Some("done".to_string()),
                failures: Some(0),
                schedule: None,
                suspended: None,
                labels: Labels::default(),
                in_use: None,
            }
        );
    }

    #[test]
    fn json_has_its_keys_in_order() {
        let digest = "ab".repeat(32);
        assert_eq!(
            serde_json::to_string(&rows()).unwrap(),
            format!(
                r#"[{{"election":"heartbeat","lease":"held","term":7,"node":"web-3\u001b[2J","since":"2024-02-29T12:34:56.000042Z","module":"sha256:{digest}","outcome":null,"failures":3,"schedule":null,"suspended":{{"by":"ann@desk","at":"2024-02-29T12:00:00Z","reason":"\u001b[2J"}},"labels":{{"zone":"west"}},"usage":null}},{{"election":"x","lease":"outside","term":null,"node":null,"since":null,"module":null,"outcome":"done","failures":null,"schedule":null,"suspended":null,"labels":{{}},"usage":null}}]"#
            )
        );
    }
}
