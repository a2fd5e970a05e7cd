//! The output of `baton nodes`.

use std::io;

use baton_election::{LeaseState, Record, Snapshot};
use serde::Serialize;
use time::OffsetDateTime;

use super::modules::age;
use super::status::short;
use super::{columns, print, print_json};
use baton_base::escape::escape;
use baton_node::node_announcement::NodeAnnouncement;
use baton_store::steering::CommandOrigin;
use baton_store::{AnnouncedLink, Announcement, Labels};

/// One node of an election. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeStatusRow {
    /// The node's announcement.
    #[serde(flatten)]
    pub announcement: NodeAnnouncement,
    /// `leader` or `standby`.
    pub role: &'static str,
    /// True if the node could start a module at once; `None` if the node has not announced itself.
    pub ready: Option<bool>,
    /// True if this machine's kernel reports that the node's host has exited. The node's announcement may still be in
    /// the store.
    pub exited: bool,
}

impl NodeStatusRow {
    /// Returns the rows, with the leader first. A leader without an announcement also gets a row. `exited` takes the
    /// incarnation of a host, and returns true if this machine's kernel reports that the host has exited.
    #[must_use]
    pub fn of(snapshot: &Snapshot, announcements: &[Announcement], exited: impl Fn(&str) -> bool) -> Vec<Self> {
        let leader = leader(snapshot);
        let leads = |incarnation: &str| leader.is_some_and(|record| record.incarnation == incarnation);
        let mut rows: Vec<Self> = announcements
            .iter()
            .map(|announcement| {
                let exited = exited(&announcement.incarnation);
                let (is_able, announcement) = (!announcement.holds.is_empty(), NodeAnnouncement::from(announcement));
                let leads = leads(&announcement.incarnation) || !announcement.shards.is_empty() && !exited;
                Self {
                    announcement,
                    role: if leads { "leader" } else { "standby" },
                    ready: Some(is_able && !exited),
                    exited,
                }
            })
            .collect();
        if let Some(record) = leader.filter(|_| rows.iter().all(|row| row.role != "leader")) {
            let node = record.node.clone().unwrap_or_default();
            let announcement =
                NodeAnnouncement { node, incarnation: record.incarnation.clone(), ..NodeAnnouncement::default() };
            let exited = exited(&record.incarnation);
            rows.push(Self { announcement, role: "leader", ready: None, exited });
        }
        rows.sort_by(|one, other| (one.role, &one.announcement.node).cmp(&(other.role, &other.announcement.node)));
        rows
    }

    fn state(&self) -> String {
        let announcement = &self.announcement;
        if self.exited {
            return "exited".to_owned();
        }
        match (&announcement.duplicate, &announcement.ineligible, &announcement.version) {
            (Some(duplicate), ..) => format!("duplicate node id: {} and {duplicate}", announcement.incarnation),
            (None, Some(why), _) => why.replace('-', " "),
            (None, None, _) if announcement.at_leadership_limit => "at its leadership limit".to_owned(),
            (None, None, None) if announcement.at.is_some() => "does not support steering".to_owned(),
            (None, None, _) => "-".to_owned(),
        }
    }
}

fn leader(snapshot: &Snapshot) -> Option<&Record> {
    let Snapshot::Object { lease: LeaseState::Held | LeaseState::Breaking, record: Some(record), .. } = snapshot else {
        return None;
    };
    Some(record).filter(|record| record.node.is_some() && !record.released)
}

/// Prints the nodes, as a table or as a JSON array. Ages are relative to `now`.
///
/// # Errors
/// As for [`print()`].
pub fn print_nodes(
    rows: &[NodeStatusRow],
    suspended: Option<&CommandOrigin>,
    now: OffsetDateTime,
    json: bool,
) -> io::Result<()> {
    match rows {
        _ if json => print_json(&rows),
        [] => print("No node has announced itself in this election.\n"),
        rows => print(&table(rows, suspended, now)),
    }
}

fn table(rows: &[NodeStatusRow], suspended: Option<&CommandOrigin>, now: OffsetDateTime) -> String {
    let mut lines = vec![
        ["NODE", "ROLE", "PRIORITY", "VERSION", "MODULE", "RUNS", "ANNOUNCED", "LINK", "LABELS", "STATE"]
            .map(String::from),
    ];
    let dash = |text: Option<String>| text.unwrap_or("-".to_owned());
    for row in rows {
        let announcement = &row.announcement;
        lines.push([
            announcement.node.clone(),
            match announcement.shards.len() {
                shards @ 1.. if row.role == "leader" => format!("leads {shards}"),
                _ => row.role.to_owned(),
            },
            dash(announcement.priority.map(|priority| priority.to_string())),
            dash(announcement.version.clone()),
            dash(row.ready.map(|ready| if ready { "ready" } else { "none" }.to_owned())),
            dash(announcement.runs.map(|digest| short(&digest.to_string()))),
            dash(announcement.at.as_deref().map(|at| age(at, now).unwrap_or_else(|| at.to_owned()))),
            dash(announcement.link.as_ref().map(|link| link_cell(link, now))),
            dash(in_one_cell(&announcement.labels)),
            row.state(),
        ]);
    }
    let mut text = columns(&lines);
    if let Some(order) = suspended {
        text.push_str(&format!("\nsuspended since {} by {}\n", escape(&order.at), escape(&order.told())));
    }
    text
}

fn link_cell(AnnouncedLink { to, since }: &AnnouncedLink, now: OffsetDateTime) -> String {
    match age(since, now) {
        Some(since) => format!("{to}, opened {since}"),
        None => to.clone(),
    }
}

pub(super) fn in_one_cell(labels: &Labels) -> Option<String> {
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if labels.is_empty() { None } else { Some(labels.join(",")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use baton_election::Version;
    use baton_store::Digest;
    use time::format_description::well_known::Rfc3339;

    use super::*;

    fn rows() -> Vec<NodeStatusRow> {
        let record = Record {
            term: 7,
            node: Some("web-2".to_owned()),
            incarnation: "b".to_owned(),
            since: Duration::from_secs(9),
            lease: Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        };
        let version = Version(String::new());
        let snapshot = Snapshot::Object { lease: LeaseState::Held, version, record: Some(record) };
        let announcement = |node: &str, incarnation: &str, holds: &[&str]| Announcement {
            at: "2026-11-21T12:00:00Z".to_owned(),
            version: "0.1.0".to_owned(),
            ..Announcement::now(
                node,
                incarnation,
                "",
                holds.iter().map(|name| Digest::of(name.as_bytes())).collect(),
                None,
            )
        };
        let ineligible = Some("cooling-off".to_owned());
        let labels = [("rack", "7\x1b[2J"), ("zone", "west")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = labels.into();
        let link = Some(AnnouncedLink { to: "web-2".to_owned(), since: "2026-11-21T12:00:05Z".to_owned() });
        let rows = [
            Announcement { ineligible, priority: Some(50), link, ..announcement("web-1", "a", &["one"]) },
            Announcement { priority: Some(100), labels, ..announcement("web-2", "b", &["one"]) },
            Announcement { version: String::new(), ..announcement("web-3", "c", &[]) },
            Announcement { duplicate: Some("e".to_owned()), ..announcement("web-4", "d", &["one"]) },
            Announcement { at_leadership_limit: true, ..announcement("web-5", "f", &["one"]) },
            announcement("web-6", "g", &["one"]),
        ];
        NodeStatusRow::of(&snapshot, &rows, |incarnation| incarnation == "g")
    }

    #[test]
    fn table_shows_why_a_node_cannot_lead() {
        let now = OffsetDateTime::parse("2026-11-21T12:00:30Z", &Rfc3339).unwrap();
        let [id, by, at] = ["1", "ann@desk\x1b[2J", "2026-11-21T12:00:10Z"].map(str::to_owned);
        let order = CommandOrigin { id, by, at, reason: Some("maintenance".to_owned()) };
        assert_eq!(
            table(&rows(), Some(&order), now),
            "\
NODE   ROLE     PRIORITY  VERSION  MODULE  RUNS  ANNOUNCED  LINK                    LABELS                     STATE
web-2  leader   100       0.1.0    ready   -     30 s ago   -                       rack=7\\u{1b}[2J,zone=west  -
web-1  standby  50        0.1.0    ready   -     30 s ago   web-2, opened 25 s ago  -                          cooling off
web-3  standby  -         -        none    -     30 s ago   -                       -                          does not support steering
web-4  standby  -         0.1.0    ready   -     30 s ago   -                       -                          duplicate node id: d and e
web-5  standby  -         0.1.0    ready   -     30 s ago   -                       -                          at its leadership limit
web-6  standby  -         0.1.0    none    -     30 s ago   -                       -                          exited

suspended since 2026-11-21T12:00:10Z by ann@desk\\u{1b}[2J: maintenance
"
        );
    }

    #[test]
    fn leader_is_listed_before_it_announces_itself() {
        let record = Record { incarnation: "x".to_owned(), ..leader_record() };
        let snapshot =
            Snapshot::Object { lease: LeaseState::Held, version: Version(String::new()), record: Some(record.clone()) };
        let rows = NodeStatusRow::of(&snapshot, &[], |_| false);
        assert_eq!((rows.len(), rows[0].role, rows[0].ready), (1, "leader", None));
        let released = Record { released: true, ..record };
        let snapshot =
            Snapshot::Object { lease: LeaseState::Held, version: Version(String::new()), record: Some(released) };
        assert_eq!(NodeStatusRow::of(&snapshot, &[], |_| false), []);
    }

    fn leader_record() -> Record {
        Record {
            term: 1,
            node: Some("web-9".to_owned()),
            incarnation: String::new(),
            since: Duration::ZERO,
            lease: Duration::from_secs(15),
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        }
    }
}
