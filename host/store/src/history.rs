//! The history of an election's terms (`ELECTION/history`), for people to read. No node makes a decision based on the
//! history.
//!
//! Each node reports its own terms, soon after they begin and after they end. If a node dies, the next leader reports
//! the dead node's last term, which is in the record. A term is over once a term of another incarnation (another run of
//! a node) has followed. A report by the term's own node overrides reports by other nodes, so nodes may report late, at
//! the same time, and more than once.

use baton_election::{ElectionName, Record, StoreError, Term};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::edit::{Edit, GivenUp, WriteOutcome};
use crate::{ObjectStore, VersionedObject};
use baton_base::clock::{rfc3339, rfc3339_seconds};

/// The format that this version reads and writes. If a field is added, the format must change, because an older host
/// would drop the new field.
const FORMAT: u64 = 1;

/// Maximum number of terms in the history. The earliest terms are dropped first.
pub const KEPT_TERMS: usize = 1000;

/// Maximum size of the object, in bytes. There is a limit because the object is read and written as a whole. If the
/// terms do not fit, the earliest ones are dropped first.
const LARGEST: usize = 512 << 10;

/// Maximum size of an object to read, in bytes. Baton never writes a larger object.
const LARGEST_READ: usize = 2 * LARGEST;

const SEPARATOR: &str = ",\n";

/// Maximum length of each string, in characters.
pub const LONGEST_TEXT: usize = 200;

/// Number of terms that decides where to insert a reported term. If at most this many terms in the history have a
/// higher number, the report is late, and is inserted before these terms. If more terms have a higher number, the store
/// was reset to lower term numbers, and the report is appended.
const LATE: usize = 100;

const UNHEARD: &str = "did not end cleanly: its node was not heard from again";
const UNTOLD: &str = "its node has not reported how the term ended";
const GIVEN_UP: &str = "ended cleanly; its node has not reported the outcome, or whether an instance ever started";

/// One term. Times are from the nodes' wall clocks, which may differ.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PastTerm {
    /// The term's number.
    pub term: Term,
    /// The node that led during the term.
    pub node: String,
    /// The incarnation: the id of this run of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// The digest of the module that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Start of the term, in RFC 3339.
    pub begun: String,
    /// The due time of the scheduled run that the term carried out, in RFC 3339. `None` without a schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<String>,
    /// End of the instance, in RFC 3339. If another node has reported the end, this is the time at which that node took
    /// over. `None` until the end has been reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// The outcome of the instance, in the words of the event `ended`. `None` until the term's own node has reported
    /// the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The reason for the end. `None` if the outcome needs no explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time without a leader before the term, in milliseconds, as observed by the term's node. `None` if there was
    /// no such time, or if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaderless_ms: Option<u64>,
    /// The node that reported the end, if it is not the term's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_by: Option<String>,
}

impl PastTerm {
    /// Returns the term in a record, or `None` if no node has begun a term.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        let Record { term, node, incarnation, since, module, .. } = record;
        let (incarnation, module, begun) = (incarnation.clone(), module.clone(), rfc3339(*since));
        let due = record.run().map(|run| rfc3339_seconds(run.due));
        let node = node.clone().filter(|_| *term > 0)?;
        Some(Self { term: *term, node, incarnation, module, begun, due, ..Self::default() })
    }

    /// Returns the term in the record that a successor found. The term counts as ended at the successor's takeover.
    #[must_use]
    pub fn before(record: &Record, successor: &str, took_over: &str) -> Option<Self> {
        let reason = if record.released { GIVEN_UP } else { UNHEARD };
        Self::of(record).map(|term| term.closed(reason, successor, took_over))
    }

    fn closed(self, reason: &str, by: &str, at: &str) -> Self {
        let [reason, by, at] = [reason, by, at].map(|text| Some(text.to_owned()));
        Self { ended: at, reason, closed_by: by, ..self }
    }

    fn bounded(mut self) -> Self {
        let Self { node, incarnation, begun, due, module, ended, outcome, reason, closed_by, .. } = &mut self;
        let optional = [due, module, ended, outcome, reason, closed_by].into_iter().flatten();
        for text in [node, incarnation, begun].into_iter().chain(optional) {
            if let Some((end, _)) = text.char_indices().nth(LONGEST_TEXT) {
                text.truncate(end);
            }
        }
        self
    }
}

/// The latest terms of an election, earliest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The terms.
    pub terms: Vec<PastTerm>,
}

/// The error returned when a history cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HistoryError {
    /// The history is damaged, or another program wrote it.
    #[error("the election's history is damaged: {0}; the next term starts a new history")]
    Damaged(String),
    /// A later version of Baton wrote the history.
    #[error("the election's history has format {0}, but this version of Baton reads {FORMAT}: update Baton")]
    Format(u64),
    /// The store refused a request, or did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<GivenUp> for HistoryError {
    fn from(given_up: GivenUp) -> Self {
        match given_up {
            GivenUp::Unwritten(error) | GivenUp::InDoubt(error) => Self::Store(error),
        }
    }
}

#[derive(Deserialize)]
struct Head {
    format: u64,
}

#[derive(Deserialize)]
struct Stored {
    terms: Vec<PastTerm>,
}

impl History {
    /// Decodes a stored history.
    ///
    /// # Errors
    /// [`HistoryError::Format`] and [`HistoryError::Damaged`].
    pub fn decode(content: &[u8]) -> Result<Self, HistoryError> {
        let damaged = |error: serde_json::Error| HistoryError::Damaged(error.to_string());
        let Head { format } = serde_json::from_slice(content).map_err(damaged)?;
        if format != FORMAT {
            return Err(HistoryError::Format(format));
        }
        if content.len() > LARGEST_READ {
            return Err(HistoryError::Damaged(format!("{} bytes are more than Baton writes", content.len())));
        }
        let Stored { terms } = serde_json::from_slice(content).map_err(damaged)?;
        Ok(Self { terms: terms.into_iter().map(PastTerm::bounded).collect() })
    }

    /// Encodes the history. If it is too large, encodes only as many of the latest terms as fit.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut room = LARGEST;
        let mut kept = Vec::new();
        for term in self.terms.iter().rev().take(KEPT_TERMS) {
            let json = serde_json::json!(term).to_string();
            let Some(left) = room.checked_sub(json.len() + SEPARATOR.len()) else { break };
            room = left;
            kept.push(json);
        }
        kept.reverse();
        format!("{{\"format\":{FORMAT},\"terms\":[\n{}\n]}}\n", kept.join(SEPARATOR)).into()
    }

    /// Adds a report on a term, or merges the report with an earlier one.
    pub fn tell(&mut self, reported: PastTerm) {
        let reported = reported.bounded();
        let is_same = |known: &&mut PastTerm| known.term == reported.term && known.incarnation == reported.incarnation;
        match self.terms.iter_mut().rev().find(is_same) {
            None => self.insert(reported),
            Some(known) if reported.closed_by.is_none() && reported.ended.is_some() => *known = reported,
            // The term's own node has already reported the end of the term, and knows best. Ignore this report.
            Some(known) if known.ended.is_some() && known.closed_by.is_none() => {}
            Some(known) if reported.ended.is_none() => {
                // The term's own node knows best how the term began, so take that part from its report.
                let PastTerm { ended, reason, closed_by, .. } = std::mem::take(known);
                *known = PastTerm { ended, reason, closed_by, ..reported };
            }
            Some(known) => {
                let PastTerm { ended, reason, closed_by, .. } = reported;
                *known = PastTerm { ended, reason, closed_by, ..std::mem::take(known) };
            }
        }
    }

    fn insert(&mut self, reported: PastTerm) {
        let last = self.terms.len();
        let place = self.terms.iter().rposition(|known| known.term <= reported.term).map_or(0, |before| before + 1);
        self.terms.insert(if last - place > LATE { last } else { place }, reported);
    }

    /// Adds the term in a record, if no node has reported it yet. If the lease was released, the term is over, but the
    /// record does not say when the term ended. The term's instance may never have started.
    pub fn note(&mut self, record: &Record) {
        let is_told = |known: &PastTerm| known.term == record.term && known.incarnation == record.incarnation;
        if let Some(term) = PastTerm::of(record).filter(|_| !self.terms.iter().any(is_told)) {
            let reason = record.released.then(|| GIVEN_UP.to_owned());
            self.insert(PastTerm { reason, ..term }.bounded());
        }
    }

    /// Closes each open term that was followed by a term of another incarnation. A term that was followed only by terms
    /// of its own incarnation stays open, because an incarnation reports the ends of its own terms.
    pub fn close(&mut self) {
        let mut successor = None;
        for at in (1..self.terms.len()).rev() {
            let [open, next] = &self.terms[at - 1..=at] else { continue };
            if open.incarnation != next.incarnation {
                successor = Some((next.node.clone(), next.begun.clone()));
            }
            if let (Some((node, begun)), open @ PastTerm { ended: None, .. }) = (&successor, &mut self.terms[at - 1]) {
                *open = std::mem::take(open).closed(UNTOLD, node, begun);
            }
        }
    }
}

/// Reads an election's history. Returns `None` if no node has reported a term.
///
/// # Errors
/// [`HistoryError`].
pub async fn read_history(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<History>, HistoryError> {
    let found = Edit::of(store, VersionedObject::History, election).read().await?;
    found.map(|content| History::decode(&content)).transpose()
}

/// Reports terms in one conditional write. Writes nothing if the history already contains the reports. If the stored
/// history is damaged, replaces the history and returns the problem. Fails if a later version of Baton wrote the
/// history. If the future is dropped, the request may still be carried out. Reporting a term again does no harm.
///
/// # Errors
/// [`HistoryError`] if the report was not written, or may not have been.
pub async fn report_terms(
    store: &dyn ObjectStore,
    election: &ElectionName,
    reported: &[PastTerm],
) -> Result<Option<HistoryError>, HistoryError> {
    let mut edit = Edit::of(store, VersionedObject::History, election);
    let mut damage = None;
    loop {
        let (found, reported) = (edit.read().await?, reported.to_vec());
        // Use another thread: this one also renews leases, and processing a thousand terms would block it for too long.
        let next = tokio::task::spawn_blocking(move || with(found.as_deref(), reported)).await;
        let (content, problem) =
            next.map_err(|error| StoreError::Unknown(format!("the history could not be assembled: {error}")))??;
        damage = problem.or(damage);
        let Some(content) = content else { return Ok(damage) };
        if edit.write(content).await? == WriteOutcome::Written {
            return Ok(damage);
        }
    }
}

/// Returns the new content of the history, if it differs from the stored content `found`. If `found` is damaged, also
/// returns the problem.
fn with(found: Option<&[u8]>, reported: Vec<PastTerm>) -> Result<(Option<Bytes>, Option<HistoryError>), HistoryError> {
    let (mut history, damage) = match found.map(History::decode).transpose() {
        Ok(history) => (history.unwrap_or_default(), None),
        Err(damage @ HistoryError::Damaged(_)) => (History::default(), Some(damage)),
        Err(error) => return Err(error),
    };
    reported.into_iter().for_each(|reported| history.tell(reported));
    history.close();
    let content = history.encode();
    Ok((Some(content).filter(|content| found != Some(content)), damage))
}

#[cfg(test)]
mod tests;
