//! The claim: one term's right to change the document, and the document as it knows it.
//!
//! All that this rests on is the conditional write. A write of unknown outcome is repeated as it is, until
//! the store says that it succeeded or that its condition failed; only then is the document read, and a
//! version is adopted from it only if this claim's own mark is on it. Any other mark means that the term
//! is over.

use std::sync::Arc;

use baton_election::{ElectionName, Refusal, Term, Version};
use bytes::Bytes;

use super::StateStore;
use super::document::{Document, DocumentError, KEY, Limits, Mark};
use super::pace::{Pace, tried};
use crate::gate::Gate;

/// Whoever claims an election's state.
#[derive(Clone)]
pub struct Claimant {
    /// Where it is.
    pub store: Arc<dyn StateStore>,
    /// Whose it is.
    pub election: ElectionName,
    /// How large it may become.
    pub limits: Limits,
    /// Told once of each claim and commit that the store does not take at the first try.
    pub tell: Arc<dyn Fn(&Refusal) + Send + Sync>,
}

/// One term's hold on its election's state.
pub struct Claim {
    home: Claimant,
    gate: Arc<Gate>,
    document: Document,
    version: Version,
    /// A commit that may have been written, whose answer nobody waited for.
    unsettled: Option<Document>,
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
    #[error("the state was claimed by term {0} already")]
    Superseded(Term),
    /// What is stored cannot be used.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// The term ended first.
    #[error("the term was over before its state was claimed")]
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
    #[error("the term is over: effects of this instance are refused")]
    Refused,
    /// The store refuses it. Nothing was saved.
    #[error("the state cannot be saved: {0}")]
    Unavailable(String),
    /// The term ended before the store answered: it may have been saved, or not.
    #[error("the term ended before the store answered: the commit may have been saved, or not")]
    Unknown,
    /// Another has claimed the state, or changed it for an operator: the term is over.
    #[error("another has claimed the state: the term is over")]
    Superseded(Term),
}

impl Claimant {
    /// Claims the state for `term`, whose effects pass `gate`.
    ///
    /// # Errors
    /// [`ClaimError`] where there is no claim.
    pub async fn claim(self, term: Term, gate: Arc<Gate>) -> Result<Claim, ClaimError> {
        let claim = Mark::new().map_err(|error| ClaimError::Store(error.to_string()))?;
        let mut pace = Pace::new(&*self.tell);
        let (version, document) = loop {
            gate.pass().map_err(|_| ClaimError::TermOver)?;
            let (version, found) = match tried(self.store.read(&self.election)).await {
                Ok(Some((version, content))) => (Some(version), Document::decode(&content)?),
                Ok(None) => (None, Document::default()),
                Err(refusal) => {
                    pace.wait(&refusal).await.map_err(ClaimError::Store)?;
                    continue;
                }
            };
            if found.claim == claim
                && let Some(version) = version
            {
                break (version, found);
            }
            if found.term >= term {
                return Err(ClaimError::Superseded(found.term));
            }
            let document = Document { term, claim, commit: claim, ..found };
            let content = document.encode()?;
            gate.pass().map_err(|_| ClaimError::TermOver)?;
            match tried(self.store.write(&self.election, version.as_ref(), content)).await {
                Ok(version) => break (version, document),
                // Somebody else wrote, or an earlier try of this did: the next reading tells.
                Err(Refusal::Conflict) => {}
                Err(refusal) => pace.wait(&refusal).await.map_err(ClaimError::Store)?,
            }
        };
        Ok(Claim { home: self, gate, document, version, unsettled: None })
    }
}

impl Claim {
    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.document.entries.get(key)
    }

    /// All keys that begin with `prefix`, in order.
    pub fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        let from =
            self.document.entries.range::<str, _>((std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded));
        from.map(|(key, _)| key.as_str()).take_while(move |key| key.starts_with(prefix))
    }

    /// Saves all changes, or none. Ends when the store has answered, or with the term.
    ///
    /// # Errors
    /// [`CommitError`] says why not, and whether it is known that nothing was saved.
    pub async fn commit(&mut self, changes: Vec<Change>) -> Result<(), CommitError> {
        if self.unsettled.is_some() {
            self.settle(true).await?;
        }
        let next = self.changed(changes)?;
        self.unsettled = Some(next);
        self.settle(false).await
    }

    fn changed(&self, changes: Vec<Change>) -> Result<Document, CommitError> {
        let mut document = self.document.clone();
        for change in changes {
            let (Change::Put(key, _) | Change::Delete(key)) = &change;
            check_key(key)?;
            match change {
                Change::Put(key, value) if value.len() as u64 > self.home.limits.value => {
                    return Err(CommitError::TooLarge(format!(
                        "the value of {key:?} has {} bytes; the limit is {}, and --max-state-value raises it",
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
                "the state would have {size} bytes; the limit is {}, and --max-state raises it",
                self.home.limits.total
            )));
        }
        let (keys, most) = (document.entries.len() as u64, self.home.limits.keys());
        if keys > most && keys > self.document.entries.len() as u64 {
            return Err(CommitError::TooLarge(format!(
                "the state would have {keys} keys; the limit is {most}, and --max-state raises it"
            )));
        }
        document.commit = Mark::new().map_err(|error| CommitError::Unavailable(error.to_string()))?;
        Ok(document)
    }

    /// Writes what is unsettled until it is known whether it was written. `in_doubt`: an earlier try may
    /// have been.
    async fn settle(&mut self, mut in_doubt: bool) -> Result<(), CommitError> {
        let Some(next) = self.unsettled.clone() else { return Ok(()) };
        let content = next.encode().map_err(|error| CommitError::Unavailable(error.to_string()))?;
        let tell = Arc::clone(&self.home.tell);
        let mut pace = Pace::new(&*tell);
        loop {
            if self.gate.pass().is_err() {
                return Err(self.end(in_doubt, CommitError::Refused));
            }
            match tried(self.home.store.write(&self.home.election, Some(&self.version), content.clone())).await {
                Ok(version) => {
                    self.adopt(next, version);
                    return Ok(());
                }
                Err(Refusal::Conflict) => return self.after_conflict(next, in_doubt).await,
                Err(refusal) => {
                    in_doubt |= matches!(refusal, Refusal::Unknown(_));
                    if let Err(why) = pace.wait(&refusal).await
                        && !in_doubt
                    {
                        return Err(self.end(false, CommitError::Unavailable(why)));
                    }
                }
            }
        }
    }

    /// The document has another version: because an earlier try was written, or another's claim.
    async fn after_conflict(&mut self, next: Document, in_doubt: bool) -> Result<(), CommitError> {
        let tell = Arc::clone(&self.home.tell);
        let mut pace = Pace::new(&*tell);
        loop {
            if self.gate.pass().is_err() {
                return Err(self.end(in_doubt, CommitError::Refused));
            }
            match tried(self.home.store.read(&self.home.election)).await {
                Ok(found) => {
                    let found = found.and_then(|(version, content)| Some((version, Document::decode(&content).ok()?)));
                    return match found {
                        Some((version, found)) if (found.claim, found.commit) == (next.claim, next.commit) => {
                            self.adopt(next, version);
                            Ok(())
                        }
                        other => {
                            let term = other.map_or(0, |(_, found)| found.term);
                            self.gate.close();
                            Err(self.end(in_doubt, CommitError::Superseded(term)))
                        }
                    };
                }
                // Nothing is lost by asking again: the condition has failed for good.
                Err(refusal) => drop(pace.wait(&refusal).await),
            }
        }
    }

    fn adopt(&mut self, document: Document, version: Version) {
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

fn check_key(key: &str) -> Result<(), CommitError> {
    if key.is_empty() || key.len() > KEY {
        return Err(CommitError::InvalidKey(format!("a key has 1 to {KEY} bytes, not {}", key.len())));
    }
    Ok(())
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
