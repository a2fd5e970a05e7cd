//! What an election is told about its modules: `ELECTION/control`.
//!
//! It is a list of versions in the order in which they were pushed. The **current** one is the newest that is
//! not rejected: so a push, a rollback and a rejection are each one conditional write, and two at once end
//! with one of them current and both kept.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Judgement, Verdict};
use baton_store::{Digest, DigestPrefix};

/// The format that this version reads and writes. A change that adds a field raises it, since an older host would
/// write the object without it.
const FORMAT: u64 = 1;
/// Nothing more is pushed once the object is as large, in bytes: every node reads it whole at each change.
const LARGEST: usize = 512 << 10;
/// What is larger nobody of Baton has written, in bytes: verdicts come on top of what is pushed. To read it as JSON would
/// take many times as much.
const LARGEST_READ: usize = 8 * LARGEST;
/// No election gets as far, even if a million are pushed each second. A higher serial was not counted up to.
const HIGHEST_SERIAL: u64 = 1 << 62;
/// So many rejections of modules that were not pushed are kept.
const UNPUSHED: usize = 20;
/// So much of a reason is kept, in characters: every judgement has room beyond [`LARGEST`].
const REASON: usize = 500;

/// All versions of an election's coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionList {
    /// The serial of the newest entry; each push and each rollback takes the next one.
    pub serial: u64,
    /// What was pushed, in that order; each digest once, at its last place.
    pub pushed: Vec<ListedVersion>,
    /// What was judged without having been pushed: modules from files and registries, the oldest first.
    pub unpushed: Vec<ListedVersion>,
}

/// A version, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedVersion {
    /// What it is.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Which publishing this is.
    pub serial: u64,
    /// Who did it, where that is known: `USER@HOST` of a push, a node's id of a judgement.
    pub by: String,
    /// When, in RFC 3339.
    pub at: String,
    /// The text of its minisign signature.
    pub signature: Option<String>,
    /// What has become of it; none as long as nobody knows.
    pub verdict: Option<RecordedVerdict>,
}

/// What has become of a version that ran: a [`Verdict`] as it is stored, a rejection with who found out and when.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RecordedVerdict {
    /// Its probation is over.
    Good,
    /// It is not run any more, until it is pushed again.
    Rejected {
        /// Why, for a person.
        reason: String,
        /// The node that found out.
        node: String,
        /// When, in RFC 3339.
        at: String,
    },
}

/// A module that is pushed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "those of the entry that it becomes")]
pub struct Publication {
    pub digest: Digest,
    pub size: u64,
    pub by: String,
    pub at: String,
    pub signature: Option<String>,
}

/// What a push has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// It is the current version from now on.
    Current,
    /// It was already, and has another signature now.
    SignedAnew,
    /// It was already.
    Already,
}

/// What a rollback has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RolledBack {
    /// This is the current version from now on.
    To(Digest),
    /// This was already.
    Already(Digest),
    /// This was rejected without having been pushed, and is not any more.
    Forgiven(Digest),
}

/// Why a control object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VersionListError {
    /// It is damaged, or somebody else's.
    #[error("the election's control object is damaged: {0}; `baton push` refuses to touch it, so repair or delete it")]
    Damaged(String),
    /// It is of a later version of Baton.
    #[error("the election's control object has format {0}, and this version of Baton reads 1: update this host")]
    Format(u64),
    /// It has no room for one more version.
    #[error("too many versions are kept ({0}): remove old ones with `baton prune`, then try again")]
    Full(usize),
}

/// Why there is nothing to roll back to.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RollbackError {
    /// Nothing was ever pushed.
    #[error("no module was pushed for this election to this store: correct the name, or run `baton push`")]
    Empty,
    /// There is one version and no other, or all others are rejected.
    #[error(
        "there is no other version, or all others are rejected: push a version, or name the digest of a rejected \
         version to retry it"
    )]
    NoOther,
    /// No version has such a digest.
    #[error("there is no version {0}: `baton modules` lists them")]
    Unknown(DigestPrefix),
    /// Several have.
    #[error("several versions begin with {0}: give more digits of the digest")]
    Ambiguous(DigestPrefix),
    /// No host could read what would be written.
    #[error(transparent)]
    Damaged(#[from] VersionListError),
}

impl VersionList {
    /// That of an election of which nothing is stored at this time since the Unix epoch. Something may have been, and was
    /// deleted: hosts that run remember its serials, and which of them they have rejected. So these go on from the time
    /// in microseconds, which no count has come up to.
    #[must_use]
    pub fn begun(now: Duration) -> Self {
        let serial = u64::try_from(now.as_micros()).unwrap_or(u64::MAX).min(HIGHEST_SERIAL / 2);
        Self { serial, ..Self::default() }
    }

    /// From what is stored.
    ///
    /// # Errors
    /// [`VersionListError::Format`] and [`VersionListError::Damaged`].
    pub fn decode(content: &[u8]) -> Result<Self, VersionListError> {
        let damaged = |error: serde_json::Error| VersionListError::Damaged(error.to_string());
        if content.len() > LARGEST_READ {
            return Err(VersionListError::Damaged(format!("it has {} bytes, which is too many", content.len())));
        }
        let Head { format } = serde_json::from_slice(content).map_err(damaged)?;
        if format != FORMAT {
            return Err(VersionListError::Format(format));
        }
        let Stored { format: _, serial, pushed, unpushed } = serde_json::from_slice(content).map_err(damaged)?;
        let control = Self { serial, pushed, unpushed };
        control.check().map(|()| control)
    }

    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Self { serial, pushed, unpushed } = self;
        let json = serde_json::json!({ "format": FORMAT, "serial": serial, "pushed": pushed, "unpushed": unpushed });
        json.to_string().into()
    }

    /// What every node should run: the newest that is not rejected.
    #[must_use]
    pub fn current(&self) -> Option<&ListedVersion> {
        self.candidates().next()
    }

    /// What it runs instead while the current one is on probation.
    #[must_use]
    pub fn fallback(&self) -> Option<&ListedVersion> {
        let on_probation = self.current()?.verdict.is_none();
        self.candidates().nth(1).filter(|_| on_probation)
    }

    /// Makes a module the current version. A rejection of it is over, and so are those of all that was not
    /// pushed; what is known to be good stays so. Without a signature it keeps the one that it had.
    ///
    /// # Errors
    /// [`VersionListError::Full`], and [`VersionListError::Damaged`] where no serial is left; then nothing is changed.
    pub fn push(&mut self, new: Publication) -> Result<Pushed, VersionListError> {
        let Publication { digest, size, by, at, signature } = new;
        if let Some(current) = self.current().filter(|current| current.digest == digest) {
            let serial = current.serial;
            self.unpushed.clear();
            return Ok(match self.pushed.iter_mut().find(|entry| entry.serial == serial) {
                Some(entry) if signature.is_some() && entry.signature != signature => {
                    entry.signature = signature;
                    Pushed::SignedAnew
                }
                _ => Pushed::Already,
            });
        }
        let mut next = self.clone();
        let before = next.take(&digest);
        let (verdict, had) = before.map_or((None, None), |before| (before.verdict, before.signature));
        next.publish(ListedVersion { digest, size, serial: 0, by, at, signature: signature.or(had), verdict })?;
        if next.encode().len() > LARGEST {
            return Err(VersionListError::Full(self.pushed.len()));
        }
        *self = next;
        Ok(Pushed::Current)
    }

    /// Makes an earlier version the current one: this one, else the newest other that is not rejected.
    ///
    /// # Errors
    /// [`RollbackError`]; then nothing is changed.
    pub fn rollback(&mut self, to: Option<&DigestPrefix>) -> Result<RolledBack, RollbackError> {
        let current = self.current().map(|current| current.digest);
        let digest = match to {
            Some(prefix) => self.the_one(prefix)?,
            None if self.pushed.is_empty() => return Err(RollbackError::Empty),
            None => self.candidates().nth(1).ok_or(RollbackError::NoOther)?.digest,
        };
        if current == Some(digest) {
            return Ok(RolledBack::Already(digest));
        }
        let mut next = self.clone();
        let Some(entry) = next.take(&digest) else {
            self.unpushed.retain(|entry| entry.digest != digest);
            return Ok(RolledBack::Forgiven(digest));
        };
        next.publish(entry)?;
        *self = next;
        Ok(RolledBack::To(digest))
    }

    /// Notes what was found out about a version that was pushed, and tells whether that is news. It is of no
    /// meaning for a later publishing of the same digest. A rejection is the last word, but the only version
    /// that is left is not rejected: there is nothing to run instead.
    pub fn judge(&mut self, judgement: &Judgement, node: &str, at: &str) -> bool {
        let version = &judgement.version;
        let others = self.candidates().filter(|entry| entry.serial != version.serial).count();
        let judged =
            |entry: &&mut ListedVersion| entry.serial == version.serial && entry.digest.to_string() == version.digest;
        let Some(entry) = self.pushed.iter_mut().find(judged) else { return false };
        let news = match (&judgement.verdict, &entry.verdict) {
            (Verdict::Rejected { .. }, Some(RecordedVerdict::Rejected { .. })) => false,
            (Verdict::Rejected { .. }, _) => others > 0,
            (Verdict::Good, before) => before.is_none(),
        };
        if news {
            entry.verdict = Some(RecordedVerdict::new(&judgement.verdict, node, at));
        }
        news
    }

    /// Notes that a module from a file or a registry was rejected, of so many bytes, and tells whether that is
    /// news. Of the others nothing is noted. The newest 20 are kept.
    pub fn judge_unpushed(&mut self, judgement: &Judgement, size: u64, node: &str, at: &str) -> bool {
        let Ok(digest) = judgement.version.digest.parse::<Digest>() else { return false };
        let is_known = self.unpushed.iter().any(|entry| entry.digest == digest);
        if is_known || judgement.verdict == Verdict::Good {
            return false;
        }
        let verdict = Some(RecordedVerdict::new(&judgement.verdict, node, at));
        let (by, at) = (node.to_owned(), at.to_owned());
        let serial = judgement.version.serial;
        self.unpushed.push(ListedVersion { digest, size, serial, by, at, signature: None, verdict });
        self.unpushed.drain(..self.unpushed.len().saturating_sub(UNPUSHED));
        true
    }

    /// Removes all versions but the newest `keep`, the current one, its fallback and those in use, and returns
    /// them, the oldest first.
    pub fn prune(&mut self, keep: usize, in_use: &BTreeSet<Digest>) -> Vec<ListedVersion> {
        let needed: BTreeSet<Digest> =
            [self.current(), self.fallback()].into_iter().flatten().map(|entry| entry.digest).collect();
        let old = self.pushed.len().saturating_sub(keep);
        let mut place = 0;
        let removable = |entry: &mut ListedVersion| {
            place += 1;
            place <= old && !needed.contains(&entry.digest) && !in_use.contains(&entry.digest)
        };
        self.pushed.extract_if(.., removable).collect()
    }

    /// Whether a change that made this version the newest is in here, whatever has been changed since.
    pub(super) fn includes(&self, newest: &ListedVersion) -> bool {
        self.pushed.iter().any(|entry| entry.serial == newest.serial && entry.digest == newest.digest)
    }

    fn candidates(&self) -> impl Iterator<Item = &ListedVersion> {
        self.pushed.iter().rev().filter(|entry| !is_rejected(entry))
    }

    /// Puts an entry last, under a new serial, without a rejection.
    fn publish(&mut self, entry: ListedVersion) -> Result<(), VersionListError> {
        self.serial += 1;
        let verdict = entry.verdict.filter(|verdict| *verdict == RecordedVerdict::Good);
        self.pushed.push(ListedVersion { serial: self.serial, verdict, ..entry });
        self.unpushed.clear();
        self.check()
    }

    fn take(&mut self, digest: &Digest) -> Option<ListedVersion> {
        let place = self.pushed.iter().position(|entry| entry.digest == *digest)?;
        Some(self.pushed.remove(place))
    }

    fn the_one(&self, prefix: &DigestPrefix) -> Result<Digest, RollbackError> {
        let all = self.pushed.iter().chain(&self.unpushed).map(|entry| entry.digest);
        let fitting: BTreeSet<Digest> = all.filter(|digest| prefix.fits(digest)).collect();
        match fitting.first() {
            Some(digest) if fitting.len() == 1 => Ok(*digest),
            Some(_) => Err(RollbackError::Ambiguous(prefix.clone())),
            None => Err(RollbackError::Unknown(prefix.clone())),
        }
    }

    /// What every method here relies on.
    fn check(&self) -> Result<(), VersionListError> {
        let damaged = |problem: &str| Err(VersionListError::Damaged(problem.to_owned()));
        let digests: BTreeSet<Digest> = self.pushed.iter().map(|entry| entry.digest).collect();
        if digests.len() < self.pushed.len() {
            return damaged("it names a digest twice");
        }
        let serials = self.pushed.iter().map(|entry| entry.serial).chain([self.serial.saturating_add(1)]);
        if self.serial > HIGHEST_SERIAL {
            return damaged(&format!("its serial {} is too high", self.serial));
        }
        if !serials.is_sorted_by(|one, next| one < next) {
            return damaged("its serials do not increase");
        }
        Ok(())
    }
}

impl ListedVersion {
    /// Why it is not run any more; none if it is not rejected.
    #[must_use]
    pub fn rejection(&self) -> Option<&str> {
        match &self.verdict {
            Some(RecordedVerdict::Rejected { reason, .. }) => Some(reason),
            Some(RecordedVerdict::Good) | None => None,
        }
    }
}

impl RecordedVerdict {
    fn new(verdict: &Verdict, node: &str, at: &str) -> Self {
        match verdict {
            Verdict::Good => Self::Good,
            Verdict::Rejected { reason } => Self::Rejected {
                reason: reason.chars().take(REASON).collect(),
                node: node.to_owned(),
                at: at.to_owned(),
            },
        }
    }
}

/// What tells one format from another.
#[derive(Deserialize)]
struct Head {
    format: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    #[expect(dead_code, reason = "the head has it")]
    format: u64,
    serial: u64,
    pushed: Vec<ListedVersion>,
    unpushed: Vec<ListedVersion>,
}

fn is_rejected(entry: &ListedVersion) -> bool {
    entry.rejection().is_some()
}

#[cfg(test)]
mod tests;
