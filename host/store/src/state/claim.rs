//! The claim: a term's right to change the document, and the document's content as last read or written by the term.
//!
//! Safety depends only on the conditional write. If the outcome of a write is unknown, the term repeats the same write
//! until the store reports that the write succeeded or that its condition failed. If the condition failed, the term
//! reads the document. If the document has the marks (random ids) of that write, the write has succeeded, and the term
//! adopts the document's version. If the document has any other mark, the term is over.
//!
//! During a swap, no instance has to wait for the store. While the old instance is still running, its process claims
//! the document for the next term in one additional write. The old instance's later commits are based on that claim.
//!
//! Before its first term, a node reads the document while it requests the lease, or while it surveys the store because
//! the leader is giving up the lease. If the document changes afterwards, the claim's condition fails, and the node
//! reads the document again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::{ElectionName, StoreError, Term, Version};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::JoinSet;

use super::document::{Document, DocumentError, KEY, Limits, Mark};
use crate::pace::{RetryPacer, tried};
use crate::{ObjectStore, Reading, VersionedObject};
use baton_base::gate::Gate;

/// A host that claims an election's state.
#[derive(Clone)]
pub struct Claimant {
    /// The store that contains the state.
    pub store: Arc<dyn ObjectStore>,
    /// The election.
    pub election: ElectionName,
    /// The limits that apply to the state.
    pub limits: Limits,
    /// The document that the previous term in this process has left for the next one.
    pub handover: Handover,
    /// The document that was read before the term began.
    pub read_ahead: ReadAhead,
    /// Called once for each claim or commit that the store does not accept at the first attempt.
    pub tell: Arc<dyn Fn(&StoreError) + Send + Sync>,
}

/// The document that a term leaves to the next term in the same process, if the next term's claim was made in advance.
#[derive(Clone, Default)]
pub struct Handover(Arc<Mutex<Option<HandoverOffer>>>);

/// The document as it was read before the term began. The next claim starts from this document.
#[derive(Clone, Default)]
pub struct ReadAhead(Arc<Mutex<JoinSet<Found>>>);

type Found = Result<Option<(Version, Bytes)>, StoreError>;

struct HandoverOffer {
    term: Term,
    /// The mark of the claim for `term`. The claim may have failed.
    claim: Mark,
    /// The document and its version, if both are known for certain.
    document: Option<(Version, Arc<Document>)>,
}

/// One term's claim on its election's state. When this value is dropped, it offers the document to the next term in
/// this process, if that term's claim was made in advance. Drop it only after all claims and commits have finished.
pub struct Claim {
    document: Arc<Document>,
    history: Arc<AsyncMutex<History>>,
}

/// A handle that claims the state for the next term while this term's instance is still running.
pub struct HandoverClaim(Arc<AsyncMutex<History>>);

/// The document as one term knows it, and the term's writes. There is only one write at a time, and each write is based
/// on the previous one.
struct History {
    home: Claimant,
    term: Term,
    gate: Arc<Gate>,
    document: Arc<Document>,
    version: Version,
    /// A write that may have reached the store, but whose outcome is unknown.
    unsettled: Option<Arc<Document>>,
    /// The next term and the mark of its claim. Set once this claim has been attempted.
    next: Option<(Term, Mark)>,
}

/// One change of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Saves a value under a key.
    Put(String, Bytes),
    /// Removes a key. Does nothing if the key does not exist.
    Delete(String),
}

/// The reason why a term could not claim the state. The term's instance is not started.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ClaimError {
    /// This term or a higher one has already claimed the state, because the election's record was lost or reset to an
    /// earlier term.
    #[error("term {0} has already claimed the state")]
    Superseded(Term),
    /// The stored document cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The term ended before the state was claimed.
    #[error("the term ended before it could claim its state")]
    TermOver,
    /// The state could not be read or written.
    #[error("the state cannot be claimed: {0}")]
    Store(String),
}

/// The reason why a commit was not saved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// A key is empty or too long. Nothing was saved.
    #[error("{0}")]
    InvalidKey(String),
    /// The commit exceeds a limit. Nothing was saved.
    #[error("{0}")]
    TooLarge(String),
    /// The term's deadline has passed. Nothing was saved.
    #[error("the term is over: the host refuses this instance's effects")]
    Refused,
    /// The store refuses the commit. Nothing was saved.
    #[error("the state cannot be saved: {0}")]
    Unavailable(String),
    /// The term ended before the store answered. The commit may or may not have been saved.
    #[error("the term ended before the store answered: the commit may or may not have been saved")]
    Unknown,
    /// Another term has claimed the state, or an operator has changed it. This term is over.
    #[error("another term or an operator has claimed the state: this term is over")]
    Superseded(Term),
}

impl Claimant {
    async fn read(&self) -> Found {
        read(&*self.store, &self.election).await
    }

    async fn write(&self, version: Option<&Version>, content: Bytes) -> Result<Version, StoreError> {
        tried(self.store.write(VersionedObject::State, &self.election, version, content)).await
    }

    /// Claims the state for `term`. `gate` is the gate of that term's instance.
    ///
    /// # Errors
    /// [`ClaimError`] if the state could not be claimed.
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

    /// `ahead` is the mark of the claim that was made for this term in advance, if any. The stored document keeps this
    /// mark even if the old instance has committed since.
    async fn write_claim(
        &self,
        term: Term,
        ahead: Option<Mark>,
        gate: &Gate,
    ) -> Result<(Version, Arc<Document>), ClaimError> {
        let claim = Mark::new().map_err(|error| ClaimError::Store(error.to_string()))?;
        let mut pace = RetryPacer::new(&*self.tell);
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
            // Do not fail because of a document that was read ahead: the stored document may have been repaired since.
            // Read the document again instead.
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
                // Either another writer was faster, or an earlier attempt has succeeded. The next read shows which.
                Err(StoreError::Conflict) => {}
                Err(error) => pace.wait(&error).await.map_err(ClaimError::Store)?,
            }
        }
    }
}

async fn read(store: &dyn ObjectStore, election: &ElectionName) -> Found {
    Ok(match tried(store.read(VersionedObject::State, election, None)).await? {
        Reading::Found(version, content) => Some((version, content)),
        // The request contains no known version, so the answer is never `Unchanged`.
        Reading::Nothing | Reading::Unchanged => None,
    })
}

impl ReadAhead {
    /// Starts to read the document on the given runtime, unless a read has already been started.
    pub fn begin(&self, runtime: &Handle, store: Arc<dyn ObjectStore>, election: ElectionName) {
        let mut reading = self.lock();
        if reading.is_empty() {
            reading.spawn_on(async move { read(&*store, &election).await }, runtime);
        }
    }

    /// Discards the result of the read, because another node has the lease.
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.lock()));
    }

    /// Returns `None` if no read has been started, or if its task failed.
    async fn take(&self) -> Option<Found> {
        let mut reading = std::mem::take(&mut *self.lock());
        reading.join_next().await?.ok()
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handover {
    /// Discards the offer, because no term will accept it.
    pub fn clear(&self) {
        drop(self.take());
    }

    fn take(&self) -> Option<HandoverOffer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn leave(&self, offer: HandoverOffer) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(offer);
    }
}

impl Claim {
    /// Returns the saved keys and values, as they were when this claim was made, plus the changes by this claim's
    /// commits.
    pub fn entries(&self) -> &BTreeMap<String, Bytes> {
        &self.document.entries
    }

    /// Saves either all changes or none. Returns when the store has answered, or when the term has ended.
    ///
    /// # Errors
    /// [`CommitError`] if the changes were not saved, or if the outcome is unknown.
    pub async fn commit(&mut self, changes: Vec<Change>) -> Result<(), CommitError> {
        let mut history = self.history.lock().await;
        let committed = history.commit(changes).await;
        self.document = Arc::clone(&history.document);
        committed
    }

    /// Returns a handle that claims the state for the next term.
    pub fn succession(&self) -> HandoverClaim {
        HandoverClaim(Arc::clone(&self.history))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Ok(history) = self.history.try_lock() else { return };
        let Some((term, claim)) = history.next else { return };
        // If there is an unsettled write, do not offer the document: the write might still be saved after the next
        // instance has started to read.
        let is_known = history.unsettled.is_none() && history.document.claim == claim;
        let document = is_known.then(|| (history.version.clone(), Arc::clone(&history.document)));
        history.home.handover.leave(HandoverOffer { term, claim, document });
    }
}

impl HandoverClaim {
    /// Claims the state for `term`. Dropping the future is safe: when `term` begins, its own claim finds out whether
    /// this claim succeeded.
    ///
    /// # Errors
    /// [`CommitError`], as for a commit.
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
                Change::Put(key, value) => drop(document.entries.insert(key, value)),
                Change::Delete(key) => drop(document.entries.remove(&key)),
            }
        }
        let (size, before) = (document.size(), self.document.size());
        // If the limit has been lowered and the state exceeds it, commits may still make the state smaller.
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

    /// Repeats the unsettled write until its outcome is known. `in_doubt` is true if an earlier attempt may have
    /// succeeded.
    async fn settle(&mut self, mut in_doubt: bool) -> Result<(), CommitError> {
        let Some(next) = self.unsettled.clone() else { return Ok(()) };
        let content = next.encode_aside().await.map_err(|error| CommitError::Unavailable(error.to_string()))?;
        let tell = Arc::clone(&self.home.tell);
        let mut pace = RetryPacer::new(&*tell);
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

    /// Finds out why the version has changed: either an earlier attempt has succeeded, or another writer has claimed
    /// the state.
    async fn after_conflict(&mut self, next: Arc<Document>, in_doubt: bool) -> Result<(), CommitError> {
        let tell = Arc::clone(&self.home.tell);
        let mut pace = RetryPacer::new(&*tell);
        loop {
            if self.gate.pass().is_err() {
                // The stored document has changed, and this term can no longer read it. Leave the write unsettled, so
                // that the next term reads the document from the store.
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
                            // Only this process claims the state for the next term. So if the stored document already
                            // has the next term, but not the marks of this write, an operator has changed the document.
                            let ours = self.next.map(|(term, _)| term);
                            let term = other.map_or(0, |(_, found)| found.term);
                            let term = if Some(term) == ours { self.term } else { term };
                            self.gate.close();
                            Err(self.end(in_doubt, CommitError::Superseded(term)))
                        }
                    };
                }
                // Repeating the read is safe: the write's condition has failed, and can never hold again.
                Err(error) => drop(pace.wait(&error).await),
            }
        }
    }

    fn adopt(&mut self, document: Arc<Document>, version: Version) {
        self.document = document;
        self.version = version;
        self.unsettled = None;
    }

    /// Returns the error with which a commit ends. If the commit may have succeeded, it stays unsettled, and the error
    /// says that the outcome is unknown.
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
        return Err(CommitError::InvalidKey(format!("a key must have 1 to {KEY} bytes, not {}", key.len())));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
