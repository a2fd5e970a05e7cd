//! Rows about terms and versions, as the admin API and `-o json` show them.

use baton_modules::{ListedVersion, RecordedVerdict, VersionList};
use baton_store::{Announcement, Digest, PastTerm};
use serde::Serialize;
use utoipa::ToSchema;

/// A past or current term. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Debug, Serialize, ToSchema)]
pub struct TermRow {
    /// Number of the term.
    pub term: u64,
    /// The node that led in this term.
    pub node: String,
    /// Incarnation of the host. Each run of a host has its own.
    pub incarnation: String,
    /// Digest of the module that ran; null if unknown.
    pub module: Option<String>,
    /// Start of the term (RFC 3339).
    pub began: String,
    /// Due time of the scheduled run that the term carried out (RFC 3339); null without a schedule.
    pub due: Option<String>,
    /// Time at which the instance exited (RFC 3339); null until a node reports it.
    pub ended: Option<String>,
    /// Outcome of the instance: `done`, `failed`, `fatal`, `unable`, `killed` or `superseded`; null if the term's node
    /// has not reported one.
    pub outcome: Option<String>,
    /// Reason for the instance's end, as logged; null if the outcome needs no explanation.
    pub reason: Option<String>,
    /// Time without a leader before the term, in seconds, as observed by the term's node; null if there was always a
    /// leader, or if the time is unknown.
    pub leaderless_s: Option<f64>,
    /// The node that took over and reported the end of the term; null if the term's own node reported the end. If this
    /// is set, `ended` is only an upper bound.
    pub closed_by: Option<String>,
}

impl From<PastTerm> for TermRow {
    fn from(past: PastTerm) -> Self {
        let PastTerm { term, node, incarnation, module, begun, due, ended, outcome, reason, .. } = past;
        #[expect(clippy::cast_precision_loss, reason = "an f64 holds milliseconds exactly for 285,000 years")]
        let leaderless_s = past.leaderless_ms.map(|time| time as f64 / 1e3);
        let (began, closed_by) = (begun, past.closed_by);
        Self { term, node, incarnation, module, began, due, ended, outcome, reason, leaderless_s, closed_by }
    }
}

/// A version of a module. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ModuleRow {
    /// Digest of the module.
    pub digest: Digest,
    /// Size in bytes; `None` if only announcements mention the version.
    pub size: Option<u64>,
    /// True if every node should run this version.
    pub current: bool,
    /// True if the version was pushed; false if it comes from a file or a registry.
    pub pushed: bool,
    /// The user who pushed the version, as `USER@HOST`.
    pub by: Option<String>,
    /// Time of the push (RFC 3339).
    pub at: Option<String>,
    /// True if the version is signed.
    pub signed: bool,
    /// `on-probation`, `good` or `rejected`; `None` if the version has not run long enough.
    pub verdict: Option<&'static str>,
    /// Reason for the rejection.
    pub reason: Option<String>,
    /// The node that rejected the version.
    pub rejected_by: Option<String>,
    /// Time of the rejection (RFC 3339).
    pub rejected_at: Option<String>,
    /// The nodes that have the version.
    pub nodes: Vec<NodeRow>,
}

/// A node that has a version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct NodeRow {
    /// The node's id.
    pub node: String,
    /// True if the node's instance runs this version; false if the node could start it at once.
    pub runs: bool,
    /// Time of the node's announcement (RFC 3339).
    pub at: String,
}

impl ModuleRow {
    /// Returns the rows: pushed versions, newest first, then modules that were never pushed.
    #[must_use]
    pub fn of(control: &VersionList, announcements: &[Announcement]) -> Vec<Self> {
        let current = control.current().map(|entry| entry.digest);
        let pushed = control.pushed.iter().rev().map(|entry| {
            let mut row = Self::of_entry(entry, announcements);
            (row.pushed, row.current) = (true, current == Some(entry.digest));
            if row.current && row.verdict.is_none() {
                row.verdict = Some("on-probation");
            }
            row
        });
        let mut rows: Vec<Self> = pushed.collect();
        for entry in control.unpushed.iter().rev() {
            if rows.iter().all(|row| row.digest != entry.digest) {
                let own = Self { by: None, at: None, ..Self::of_entry(entry, announcements) };
                rows.push(own);
            }
        }
        for digest in announcements.iter().flat_map(|announcement| announcement.holds.iter().chain(&announcement.runs))
        {
            if rows.iter().all(|row| row.digest != *digest) {
                rows.push(Self::of_digest(*digest, announcements));
            }
        }
        rows
    }

    fn of_entry(entry: &ListedVersion, announcements: &[Announcement]) -> Self {
        let row = Self {
            size: Some(entry.size),
            by: Some(entry.by.clone()),
            at: Some(entry.at.clone()),
            signed: entry.signature.is_some(),
            ..Self::of_digest(entry.digest, announcements)
        };
        match &entry.verdict {
            None => row,
            Some(RecordedVerdict::Good) => Self { verdict: Some("good"), ..row },
            Some(RecordedVerdict::Rejected { reason, node, at }) => Self {
                verdict: Some("rejected"),
                reason: Some(reason.clone()),
                rejected_by: Some(node.clone()),
                rejected_at: Some(at.clone()),
                ..row
            },
        }
    }

    fn of_digest(digest: Digest, announcements: &[Announcement]) -> Self {
        let nodes = announcements.iter().filter_map(|announcement| {
            let runs = announcement.runs == Some(digest);
            let has = runs || announcement.holds.contains(&digest);
            has.then(|| NodeRow { node: announcement.node.clone(), runs, at: announcement.at.clone() })
        });
        Self {
            digest,
            size: None,
            current: false,
            pushed: false,
            by: None,
            at: None,
            signed: false,
            verdict: None,
            reason: None,
            rejected_by: None,
            rejected_at: None,
            nodes: nodes.collect(),
        }
    }
}
