//! What has become of an election's terms: `ELECTION/history`, for people alone. No rule reads it, and nothing waits for it.
//!
//! Each node tells of the terms that it has served, soon after they began and ended. One that dies tells no more: its
//! successor tells of its last term what the record says, and a term that another node's has followed is over. What its own
//! node says of a term counts more than what another does, whichever comes first, so that nodes may tell late, at the same
//! time, and more than once.

use baton_election::{ElectionName, Record, StoreError, Term};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::edit::{Edit, GivenUp, Tried};
use crate::{ObjectStore, VersionedObject};

/// The format that this version reads and writes. A change that adds a field raises it, since an older host would
/// write the object without it.
const FORMAT: u64 = 1;

/// So many terms are kept, the last ones.
pub const KEPT_TERMS: usize = 1000;

/// Fewer are where they would take more, in bytes: the object is read and written whole.
const LARGEST: usize = 512 << 10;

/// What is larger nobody of Baton has written, in bytes.
const LARGEST_READ: usize = 2 * LARGEST;

/// What stands between two terms.
const SEPARATOR: &str = ",\n";

/// So much of each text is kept, in characters.
pub const LONGEST_TEXT: usize = 200;

/// Whoever tells of a term after so many others is not late: the numbers were set back with the store.
const LATE: usize = 100;

const UNHEARD: &str = "did not end cleanly: its node was not heard from again";
const UNTOLD: &str = "its node has not reported how the term ended";
const GIVEN_UP: &str = "ended cleanly; its node has not reported the outcome, or whether an instance ever started";

/// One term. Times are those of the nodes' wall clocks, which may differ.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PastTerm {
    /// Its number.
    pub term: Term,
    /// The node that served it.
    pub node: String,
    /// This start of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    /// The digest of what ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// When it began, in RFC 3339.
    pub begun: String,
    /// When its instance was gone, in RFC 3339; where another node tells, when that took over. None as long as nobody has
    /// told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// How its instance ended, in the words of the event `ended`; none where its node has not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why it ended; none where the outcome says it all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long nobody had led before, as its node saw it, in milliseconds; none where somebody had, or that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaderless_ms: Option<u64>,
    /// The node that told of its end, where it was not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_by: Option<String>,
}

impl PastTerm {
    /// What a record says of the term that it names; none where nobody has begun one.
    #[must_use]
    pub fn of(record: &Record) -> Option<Self> {
        let Record { term, node, incarnation, since, module, .. } = record;
        let (incarnation, module, begun) = (incarnation.clone(), module.clone(), rfc3339(*since));
        let node = node.clone().filter(|_| *term > 0)?;
        Some(Self { term: *term, node, incarnation, module, begun, ..Self::default() })
    }

    /// What the successor tells of the term that it found in the record.
    #[must_use]
    pub fn before(record: &Record, successor: &str, took_over: &str) -> Option<Self> {
        let reason = if record.released { GIVEN_UP } else { UNHEARD };
        Self::of(record).map(|term| term.closed(reason, successor, took_over))
    }

    fn closed(self, reason: &str, by: &str, at: &str) -> Self {
        let [reason, by, at] = [reason, by, at].map(|text| Some(text.to_owned()));
        Self { ended: at, reason, closed_by: by, ..self }
    }

    /// With no text longer than it may be.
    fn bounded(mut self) -> Self {
        let Self { node, incarnation, begun, module, ended, outcome, reason, closed_by, .. } = &mut self;
        let optional = [module, ended, outcome, reason, closed_by].into_iter().flatten();
        for text in [node, incarnation, begun].into_iter().chain(optional) {
            if let Some((end, _)) = text.char_indices().nth(LONGEST_TEXT) {
                text.truncate(end);
            }
        }
        self
    }
}

/// The last terms of an election, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The terms.
    pub terms: Vec<PastTerm>,
}

/// Why a history cannot be read or written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HistoryError {
    /// It is damaged, or somebody else's.
    #[error("the election's history is damaged: {0}; the next term starts a new history")]
    Damaged(String),
    /// It is of a later version of Baton.
    #[error("the election's history has format {0}, and this version of Baton reads {FORMAT}: update Baton")]
    Format(u64),
    /// The store cannot be used.
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
    /// From what is stored.
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

    /// As it is stored: the last terms, as many as there is room for.
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

    /// Adds what is told of a term, or puts it in the place of what is known less well.
    pub fn tell(&mut self, told: PastTerm) {
        let told = told.bounded();
        let is_same = |known: &&mut PastTerm| known.term == told.term && known.incarnation == told.incarnation;
        match self.terms.iter_mut().rev().find(is_same) {
            None => self.insert(told),
            Some(known) if told.closed_by.is_none() && told.ended.is_some() => *known = told,
            // Its node has told of its end before.
            Some(known) if known.ended.is_some() && known.closed_by.is_none() => {}
            Some(known) if told.ended.is_none() => {
                // Of the beginning its node knows the most.
                let PastTerm { ended, reason, closed_by, .. } = std::mem::take(known);
                *known = PastTerm { ended, reason, closed_by, ..told };
            }
            Some(known) => {
                let PastTerm { ended, reason, closed_by, .. } = told;
                *known = PastTerm { ended, reason, closed_by, ..std::mem::take(known) };
            }
        }
    }

    fn insert(&mut self, told: PastTerm) {
        let last = self.terms.len();
        let place = self.terms.iter().rposition(|known| known.term <= told.term).map_or(0, |before| before + 1);
        self.terms.insert(if last - place > LATE { last } else { place }, told);
    }

    /// Adds the term that a record names, if nobody has told of it yet. One that was given up is over, though the record
    /// does not say when; its instance may never have begun.
    pub fn note(&mut self, record: &Record) {
        let is_told = |known: &PastTerm| known.term == record.term && known.incarnation == record.incarnation;
        if let Some(term) = PastTerm::of(record).filter(|_| !self.terms.iter().any(is_told)) {
            let reason = record.released.then(|| GIVEN_UP.to_owned());
            self.insert(PastTerm { reason, ..term }.bounded());
        }
    }

    /// Ends what a term of another start has followed. Of its own terms each will tell itself.
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

/// Reads an election's history; none if nobody has told of a term.
///
/// # Errors
/// [`HistoryError`].
pub async fn read_history(store: &dyn ObjectStore, election: &ElectionName) -> Result<Option<History>, HistoryError> {
    let found = Edit::of(store, VersionedObject::History, election).read().await?;
    found.map(|content| History::decode(&content)).transpose()
}

/// Tells of terms in one conditional write, or in none where all is known. A history that is damaged is begun anew, and
/// that it was is returned; one of a later version is left alone. Dropping the future may leave the request under way; it
/// does no harm to tell again.
///
/// # Errors
/// [`HistoryError`] where that was not written, or may not have been.
pub async fn tell_terms(
    store: &dyn ObjectStore,
    election: &ElectionName,
    told: &[PastTerm],
) -> Result<Option<HistoryError>, HistoryError> {
    let mut edit = Edit::of(store, VersionedObject::History, election);
    let mut damage = None;
    loop {
        let (found, told) = (edit.read().await?, told.to_vec());
        // A thousand terms take longer to read and write than any thread should be kept that also renews.
        let next = tokio::task::spawn_blocking(move || with(found.as_deref(), told)).await;
        let (content, problem) =
            next.map_err(|error| StoreError::Unknown(format!("the history could not be assembled: {error}")))??;
        damage = problem.or(damage);
        let Some(content) = content else { return Ok(damage) };
        if edit.write(content).await? == Tried::Written {
            return Ok(damage);
        }
    }
}

/// What is to be written in the place of what was found, and what was wrong with that.
fn with(found: Option<&[u8]>, told: Vec<PastTerm>) -> Result<(Option<Bytes>, Option<HistoryError>), HistoryError> {
    let (mut history, damage) = match found.map(History::decode).transpose() {
        Ok(history) => (history.unwrap_or_default(), None),
        Err(damage @ HistoryError::Damaged(_)) => (History::default(), Some(damage)),
        Err(error) => return Err(error),
    };
    told.into_iter().for_each(|told| history.tell(told));
    history.close();
    let content = history.encode();
    Ok((Some(content).filter(|content| found != Some(content)), damage))
}

#[cfg(test)]
mod tests;
