//! The claim: one term's right to change the document, and the document as it knows it.
//!
//! All that this rests on is the conditional write. A write of unknown outcome is repeated as it is, until
//! the store says that it succeeded or that its condition failed; only then is the document read, and a
//! version is adopted from it only if this claim's own mark is on it. Any other mark means that the term
//! is over.
//!
//! In a change-over nobody waits for the store between two instances: while the old one still runs, its process
//! claims the document for the term that follows, as one more write on top of the last, and the old one's commits
//! go on top of that. What the old one leaves is then the next one's.
//!
//! A node that asks for the lease, or surveys what is given up, reads the document meanwhile, so that its first term finds
//! it read. Should it have changed since, the claim's condition fails, and it is read again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::{ElectionName, StoreError, Term, Version};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;

use super::document::{Document, DocumentError, KEY, Limits, Mark};
use crate::gate::Gate;
use crate::pace::{Pace, tried};
use crate::{ObjectStore, Reading, VersionedObject};

/// A host that claims an election's state.
#[derive(Clone)]
pub struct Claimant {
    /// Where it is.
    pub store: Arc<dyn ObjectStore>,
    /// Whose it is.
    pub election: ElectionName,
    /// How large it may become.
    pub limits: Limits,
    /// What the term before leaves.
    pub handover: Handover,
    /// What was read before there was a term.
    pub read_ahead: ReadAhead,
    /// Told once of each claim and commit that the store does not take at the first try.
    pub tell: Arc<dyn Fn(&StoreError) + Send + Sync>,
}

/// What a term leaves to the one that follows it in the same process, where that was claimed ahead.
#[derive(Clone, Default)]
pub struct Handover(Arc<Mutex<Option<HandoverOffer>>>);

/// The document as it is read before there is a term: the next claim begins with it.
#[derive(Clone, Default)]
pub struct ReadAhead(Arc<Mutex<JoinSet<Found>>>);

/// The document as it is stored, with its version; nothing if there is none.
type Found = Result<Option<(Version, Bytes)>, StoreError>;

struct HandoverOffer {
    /// To whom.
    term: Term,
    /// The claim for that term, made or tried.
    claim: Mark,
    /// The document and its version, where both are known for certain.
    document: Option<(Version, Arc<Document>)>,
}

/// One term's hold on its election's state. Dropping it leaves what is known to the term that follows in this process,
/// where that was claimed ahead; nobody may be claiming or committing any more.
pub struct Claim {
    /// What the instance reads: its own commits, on top of what it began with.
    document: Arc<Document>,
    history: Arc<AsyncMutex<History>>,
}

/// Claims the state for the term that follows, while this one's instance still runs.
pub struct HandoverClaim(Arc<AsyncMutex<History>>);

/// The document as one term knows it, and its writes: one after the other, each on top of the last.
struct History {
    home: Claimant,
    term: Term,
    gate: Arc<Gate>,
    document: Arc<Document>,
    version: Version,
    /// A write that may have arrived, whose answer nobody waited for.
    unsettled: Option<Arc<Document>>,
    /// The term that follows, and the mark of its claim, once that was tried.
    next: Option<(Term, Mark)>,
}

/// One change of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Saves a value under a key.
    Put(String, Bytes),
    /// Removes a key. Harmless if there is none.
    Delete(String),
}

/// Why a term could not claim the state: its instance is not started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClaimError {
    /// A term as high as this one or higher has claimed it: the record of the election was lost or set back.
    #[error("term {0} has already claimed the state")]
    Superseded(Term),
    /// What is stored cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The term ended first.
    #[error("the term ended before it could claim its state")]
    TermOver,
    /// The store cannot be used.
    #[error("the state cannot be claimed: {0}")]
    Store(String),
}

/// Why a commit was not saved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// It breaks a rule. Nothing was saved.
    #[error("{0}")]
    InvalidKey(String),
    /// It is larger than the limits allow. Nothing was saved.
    #[error("{0}")]
    TooLarge(String),
    /// The term's deadline has passed. Nothing was saved.
    #[error("the term is over: the host refuses this instance's effects")]
    Refused,
    /// The store refuses it. Nothing was saved.
    #[error("the state cannot be saved: {0}")]
    Unavailable(String),
    /// The term ended before the store answered: it may have been saved, or not.
    #[error("the term ended before the store answered: the commit may or may not have been saved")]
    Unknown,
    /// Another has claimed the state, or changed it for an operator: the term is over.
    #[error("another term or an operator has claimed the state: this term is over")]
    Superseded(Term),
}

impl Claimant {
    /// One try to read the document.
    async fn read(&self) -> Found {
        read(&*self.store, &self.election).await
    }

    /// One try to write it.
    async fn write(&self, version: Option<&Version>, content: Bytes) -> Result<Version, StoreError> {
        tried(self.store.write(VersionedObject::State, &self.election, version, content)).await
    }

    /// Claims the state for `term`, whose effects pass `gate`.
    ///
    /// # Errors
    /// [`ClaimError`] where there is no claim.
    pub async fn claim(self, term: Term, gate: Arc<Gate>) -> Result<Claim, ClaimError> {
        gate.pass().map_err(|_| ClaimError::TermOver)?;
        let left = self.handover.take().filter(|left| left.term == term);
        let ahead = left.as_ref().map(|left| left.claim);
        let (version, document) = match left.and_then(|left| left.document) {
            Some(known) => known,
            None => self.write_claim(term, ahead, &gate).await?,
        };
        let history =
            History { home: self, term, gate, document: Arc::clone(&document), version, unsettled: None, next: None };
        Ok(Claim { document, history: Arc::new(AsyncMutex::new(history)) })
    }

    /// Writes the claim of `term`. The claim `ahead` is this term's own, but something else may still come on top.
    async fn write_claim(
        &self,
        term: Term,
        ahead: Option<Mark>,
        gate: &Gate,
    ) -> Result<(Version, Arc<Document>), ClaimError> {
        let claim = Mark::new().map_err(|error| ClaimError::Store(error.to_string()))?;
        let mut pace = Pace::new(&*self.tell);
        let mut read_ahead = self.read_ahead.take().await;
        loop {
            gate.pass().map_err(|_| ClaimError::TermOver)?;
            let (read, is_old) = match read_ahead.take() {
                Some(read) => (read, true),
                None => (self.read().await, false),
            };
            let (version, found) = match read {
                Ok(Some((version, content))) => (Some(version), Document::decode_aside(content).await),
                Ok(None) => (None, Ok(Document::default())),
                Err(error) => {
                    pace.wait(&error).await.map_err(ClaimError::Store)?;
                    continue;
                }
            };
            let is_superseded =
                |found: &Document| found.term > term || (found.term == term && Some(found.claim) != ahead);
            // Nothing but a write follows from what was read a while ago: it may have been put right since.
            if is_old && found.as_ref().map_or(true, is_superseded) {
                continue;
            }
            let found = found?;
            if found.claim == claim
                && let Some(version) = version
            {
                return Ok((version, Arc::new(found)));
            }
            if is_superseded(&found) {
                return Err(ClaimError::Superseded(found.term));
            }
            let document = Arc::new(found.claimed(term, claim));
            let content = document.encode_aside().await?;
            gate.pass().map_err(|_| ClaimError::TermOver)?;
            match self.write(version.as_ref(), content).await {
                Ok(version) => return Ok((version, document)),
                // Somebody else wrote, or an earlier try of this did: the next reading tells.
                Err(StoreError::Conflict) => {}
                Err(error) => pace.wait(&error).await.map_err(ClaimError::Store)?,
            }
        }
    }
}

/// One try to read the document.
async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Found {
    Ok(match tried(store.read(VersionedObject::State, election, None)).await? {
        Reading::Found(version, content) => Some((version, content)),
        // To a reader that knows no version nothing is unchanged.
        Reading::Nothing | Reading::Unchanged => None,
    })
}

impl ReadAhead {
    /// Begins to read in that runtime, unless that was begun already.
    pub fn begin(&self, runtime: &Handle, store: Arc<dyn ObjectStore>, election: ElectionName) {
        let mut reading = self.lock();
        if reading.is_empty() {
            reading.spawn_on(async move { read(&*store, &election).await }, runtime);
        }
    }

    /// Forgets it: the lease is another's.
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.lock()));
    }

    /// What came of it, once something has; none if nothing was begun.
    async fn take(&self) -> Option<Found> {
        let mut reading = std::mem::take(&mut *self.lock());
        reading.join_next().await?.ok()
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handover {
    /// Forgets it: nobody is there to take it.
    pub fn clear(&self) {
        drop(self.take());
    }

    fn take(&self) -> Option<HandoverOffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave(&self, bequest: HandoverOffer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bequest);
    }
}

impl Claim {
    /// What is saved: this claim's own commits, on top of what it began with.
    pub fn entries(&self) -> &BTreeMap<String, Bytes> {
        &self.document.entries
    }

    /// Saves all changes, or none. Ends when the store has answered, or with the term.
    ///
    /// # Errors
    /// [`CommitError`] says why not, and whether it is known that nothing was saved.
    pub async fn commit(&mut self, changes: Vec<Change>) -> Result<(), CommitError> {
        let mut history = self.history.lock().await;
        let committed = history.commit(changes).await;
        self.document = Arc::clone(&history.document);
        committed
    }

    /// The way to claim the state for the term that follows.
    pub fn succession(&self) -> HandoverClaim {
        HandoverClaim(Arc::clone(&self.history))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Ok(history) = self.history.try_lock() else { return };
        let Some((term, claim)) = history.next else { return };
        // What is under way might still be saved after the next instance has begun to read.
        let is_known = history.unsettled.is_none() && history.document.claim == claim;
        let document = is_known.then(|| (history.version.clone(), Arc::clone(&history.document)));
        history.home.handover.leave(HandoverOffer { term, claim, document });
    }
}

impl HandoverClaim {
    /// Claims the state for `term`. Dropping this loses nothing: that term's own claim finds out how far it got.
    ///
    /// # Errors
    /// [`CommitError`] as for a commit.
    pub async fn claim(&self, term: Term) -> Result<(), CommitError> {
        let mut history = self.0.lock().await;
        history.settle_earlier().await?;
        let claim = new_mark()?;
        history.next = Some((term, claim));
        let next = history.document.as_ref().clone().claimed(term, claim);
        history.write(next).await
    }
}

impl History {
    async fn commit(&mut self, changes: Vec<Change>) -> Result<(), CommitError> {
        self.settle_earlier().await?;
        let next = self.changed(changes)?;
        self.write(next).await
    }

    fn changed(&self, changes: Vec<Change>) -> Result<Document, CommitError> {
        let mut document = self.document.as_ref().clone();
        for change in changes {
            let (Change::Put(key, _) | Change::Delete(key)) = &change;
            check_key(key)?;
            match change {
                Change::Put(key, value) if value.len() as u64 > self.home.limits.value => {
                    return Err(CommitError::TooLarge(format!(
                        "the value of {key:?} has {} bytes; the limit is {}, and `--max-state-value` raises it",
                        value.len(),
                        self.home.limits.value
                    )));
                }
                Change::Put(key, value) => drop(document.entries.insert(key, value)),
                Change::Delete(key) => drop(document.entries.remove(&key)),
            }
        }
        let (size, before) = (document.size(), self.document.size());
        // What is too large already, because the limit was lowered, may still shrink.
        if size > self.home.limits.total && size > before {
            return Err(CommitError::TooLarge(format!(
                "the state would have {size} bytes; the limit is {}, and `--max-state` raises it",
                self.home.limits.total
            )));
        }
        let (keys, most) = (document.entries.len() as u64, self.home.limits.keys());
        if keys > most && keys > self.document.entries.len() as u64 {
            return Err(CommitError::TooLarge(format!(
                "the state would have {keys} keys; the limit is {most}, and `--max-state` raises it"
            )));
        }
        document.commit = new_mark()?;
        Ok(document)
    }

    async fn settle_earlier(&mut self) -> Result<(), CommitError> {
        if self.unsettled.is_some() { self.settle(true).await } else { Ok(()) }
    }

    async fn write(&mut self, next: Document) -> Result<(), CommitError> {
        self.unsettled = Some(Arc::new(next));
        self.settle(false).await
    }

    /// Writes what is unsettled until it is known whether it was written. `in_doubt`: an earlier try may
    /// have been.
    async fn settle(&mut self, mut in_doubt: bool) -> Result<(), CommitError> {
        let Some(next) = self.unsettled.clone() else { return Ok(()) };
        let content = next.encode_aside().await.map_err(|error| CommitError::Unavailable(error.to_string()))?;
        let tell = Arc::clone(&self.home.tell);
        let mut pace = Pace::new(&*tell);
        loop {
            if self.gate.pass().is_err() {
                return Err(self.end(in_doubt, CommitError::Refused));
            }
            match self.home.write(Some(&self.version), content.clone()).await {
                Ok(version) => {
                    self.adopt(next, version);
                    return Ok(());
                }
                Err(StoreError::Conflict) => return self.after_conflict(next, in_doubt).await,
                Err(error) => {
                    in_doubt |= matches!(error, StoreError::Unknown(_));
                    if let Err(why) = pace.wait(&error).await
                        && !in_doubt
                    {
                        return Err(self.end(false, CommitError::Unavailable(why)));
                    }
                }
            }
        }
    }

    /// The document has another version: because an earlier try was written, or another's claim.
    async fn after_conflict(&mut self, next: Arc<Document>, in_doubt: bool) -> Result<(), CommitError> {
        let tell = Arc::clone(&self.home.tell);
        let mut pace = Pace::new(&*tell);
        loop {
            if self.gate.pass().is_err() {
                // The document is another by now: it stays unsettled, so that nobody goes on with this one.
                return Err(if in_doubt { CommitError::Unknown } else { CommitError::Refused });
            }
            match self.home.read().await {
                Ok(found) => {
                    let found = found.and_then(|(version, content)| Some((version, Document::decode(&content).ok()?)));
                    return match found {
                        Some((version, found)) if (found.claim, found.commit) == (next.claim, next.commit) => {
                            self.adopt(next, version);
                            Ok(())
                        }
                        other => {
                            // Nobody else claims it for the term that follows here: an operator has changed it.
                            let ours = self.next.map(|(term, _)| term);
                            let term = other.map_or(0, |(_, found)| found.term);
                            let term = if Some(term) == ours { self.term } else { term };
                            self.gate.close();
                            Err(self.end(in_doubt, CommitError::Superseded(term)))
                        }
                    };
                }
                // Nothing is lost by asking again: the condition has failed for good.
                Err(error) => drop(pace.wait(&error).await),
            }
        }
    }

    fn adopt(&mut self, document: Arc<Document>, version: Version) {
        self.document = document;
        self.version = version;
        self.unsettled = None;
    }

    /// What a commit ended with. One in doubt stays unsettled, and is not reported as failed.
    fn end(&mut self, in_doubt: bool, error: CommitError) -> CommitError {
        match error {
            CommitError::Superseded(_) => error,
            _ if in_doubt => CommitError::Unknown,
            _ => {
                self.unsettled = None;
                error
            }
        }
    }
}

fn new_mark() -> Result<Mark, CommitError> {
    Mark::new().map_err(|error| CommitError::Unavailable(error.to_string()))
}

fn check_key(key: &str) -> Result<(), CommitError> {
    if key.is_empty() || key.len() > KEY {
        return Err(CommitError::InvalidKey(format!("a key has 1 to {KEY} bytes, not {}", key.len())));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
