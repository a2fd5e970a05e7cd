//! The list of an election's versions: the control object `ELECTION/control`.
//!
//! Versions are listed in the order in which they were pushed. The **current** version is the newest version that is
//! not rejected. Each push, rollback or rejection therefore takes only one conditional write, so no concurrent change
//! is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Judgement, Verdict};
use baton_store::{Digest, DigestPrefix};

/// Format that this version of Baton reads and writes. Raise this number with each new field: an older host then asks
/// for an update, instead of reporting a damaged object.
const FORMAT: u64 = 1;
/// Maximum size of the object after a push, in bytes. The size is limited because every node reads the whole object
/// after each change.
const LARGEST: usize = 512 << 10;
/// Maximum size of an object that is parsed, in bytes. Parsing needs many times the object's size in memory. This limit
/// is higher than [`LARGEST`], because verdicts may make an object larger after a push.
const LARGEST_READ: usize = 8 * LARGEST;
/// Highest valid serial. At a million pushes per second, reaching this serial would take more than 100,000 years.
const HIGHEST_SERIAL: u64 = 1 << 62;
/// Maximum number of kept rejections of modules that were not pushed.
const UNPUSHED: usize = 20;
/// Maximum length of a stored reason, in characters. With short reasons, verdicts cannot make an object larger than
/// [`LARGEST_READ`].
const REASON: usize = 500;

/// The versions of an election's coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionList {
    /// Serial of the newest entry. Each push and each rollback uses the next serial.
    pub serial: u64,
    /// The pushed versions, in order. Each digest occurs only once, at the position of its last push.
    pub pushed: Vec<ListedVersion>,
    /// Rejected modules that came from files or registries and were not pushed, oldest first.
    pub unpushed: Vec<ListedVersion>,
}

/// A version, and what is known about it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedVersion {
    /// Digest of the module.
    pub digest: Digest,
    /// Size of the module, in bytes.
    pub size: u64,
    /// Serial of the publication.
    pub serial: u64,
    /// The author of the entry, if known: `USER@HOST` for a push, the node's id for a judgement.
    pub by: String,
    /// The time of the push or judgement, in RFC 3339 format.
    pub at: String,
    /// Text of the minisign signature, if any.
    pub signature: Option<String>,
    /// The verdict, if there is one yet.
    pub verdict: Option<RecordedVerdict>,
}

/// The stored form of a [`Verdict`]. A rejection also contains the node and the time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RecordedVerdict {
    /// The version has passed its probation.
    Good,
    /// The version must not run until it is pushed again.
    Rejected {
        /// Human-readable reason.
        reason: String,
        /// The node that rejected the version.
        node: String,
        /// The time of the rejection, in RFC 3339 format.
        at: String,
    },
}

/// A module to push.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "those of the entry that it becomes")]
pub struct Publication {
    pub digest: Digest,
    pub size: u64,
    pub by: String,
    pub at: String,
    pub signature: Option<String>,
}

/// The result of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pushed {
    /// The module is now the current version.
    Current,
    /// The module was already current, and now has a different signature.
    SignedAnew,
    /// The module was already current.
    Already,
}

/// The result of a rollback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RolledBack {
    /// This version is now current.
    To(Digest),
    /// This version was already current.
    Already(Digest),
    /// The module was never pushed. Its rejection was removed.
    Forgiven(Digest),
}

/// The reason why a control object cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VersionListError {
    /// The object is damaged, or was written by another program.
    #[error("the election's control object is damaged: {0}; `baton push` refuses to touch it, so repair or delete it")]
    Damaged(String),
    /// The object has the format of a later version of Baton.
    #[error("the election's control object has format {0}, but this version of Baton reads 1: update this host")]
    Format(u64),
    /// The list is so large that no version can be added.
    #[error("too many versions are kept ({0}): remove old ones with `baton prune`, then try again")]
    Full(usize),
}

/// The reason why a rollback is impossible.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RollbackError {
    /// Nothing was ever pushed.
    #[error("no module was pushed for this election to this store: correct the name, or run `baton push`")]
    Empty,
    /// There is no other version, or all other versions are rejected.
    #[error(
        "there is no other version, or all others are rejected: push a version, or name the digest of a rejected \
         version to retry it"
    )]
    NoOther,
    /// No version's digest begins with this prefix.
    #[error("there is no version {0}: `baton modules` lists them")]
    Unknown(DigestPrefix),
    /// The digests of several versions begin with this prefix.
    #[error("several versions begin with {0}: give more digits of the digest")]
    Ambiguous(DigestPrefix),
    /// Hosts would not be able to read the resulting list.
    #[error(transparent)]
    Damaged(#[from] VersionListError),
}

impl VersionList {
    /// Returns the initial list of an election for which nothing is stored. `now` is the time since the Unix epoch. If
    /// an earlier list was deleted, running hosts may still remember its serials and their rejections. The serials of
    /// the new list therefore start at the current time in microseconds, which no earlier serial has reached.
    #[must_use]
    pub fn begun(now: Duration) -> Self {
        let serial = u64::try_from(now.as_micros()).unwrap_or(u64::MAX).min(HIGHEST_SERIAL / 2);
        Self { serial, ..Self::default() }
    }

    /// Decodes a stored list.
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

    /// Encodes the list for the store.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let Self { serial, pushed, unpushed } = self;
        let json = serde_json::json!({ "format": FORMAT, "serial": serial, "pushed": pushed, "unpushed": unpushed });
        json.to_string().into()
    }

    /// Returns the version that every node should run: the newest version that is not rejected.
    #[must_use]
    pub fn current(&self) -> Option<&ListedVersion> {
        self.candidates().next()
    }

    /// Returns the version to fall back to while the current version is on probation.
    #[must_use]
    pub fn fallback(&self) -> Option<&ListedVersion> {
        let on_probation = self.current()?.verdict.is_none();
        self.candidates().nth(1).filter(|_| on_probation)
    }

    /// Makes a module the current version. Removes the module's rejection, if any. Also removes the rejections of all
    /// modules that were not pushed. A module with the verdict `Good` keeps it. If `new` has no signature, the module
    /// keeps its previous signature.
    ///
    /// # Errors
    /// [`VersionListError::Full`], or [`VersionListError::Damaged`] if the serials are exhausted. The list is unchanged
    /// after an error.
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

    /// Makes an earlier version current: the version `to`, or by default the newest other version that is not rejected.
    /// If `to` was never pushed, only removes its rejection.
    ///
    /// # Errors
    /// [`RollbackError`]. The list is unchanged after an error.
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

    /// Records the verdict on a pushed version. Ignores the verdict if the digest has been pushed again, because the
    /// verdict is about the earlier push. A rejection is final. The last version that is not rejected cannot be
    /// rejected. Returns true if the list has changed.
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

    /// Records the rejection of a module that was not pushed. `size` is the module's size in bytes. Keeps the 20 newest
    /// of these rejections. Returns true if the list has changed.
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

    /// Removes all versions except the newest `keep`, the current version, its fallback and the versions in use.
    /// Returns the removed versions, oldest first.
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

    /// Returns true if the change that made `newest` the newest version has been written, even if other changes
    /// followed.
    pub(super) fn includes(&self, newest: &ListedVersion) -> bool {
        self.pushed.iter().any(|entry| entry.serial == newest.serial && entry.digest == newest.digest)
    }

    fn candidates(&self) -> impl Iterator<Item = &ListedVersion> {
        self.pushed.iter().rev().filter(|entry| !is_rejected(entry))
    }

    /// Adds an entry as the newest version. Also removes the rejection of the entry, and the rejections of all modules
    /// that were not pushed.
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
    /// Returns the reason for the rejection, if the version is rejected.
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

/// The field that all formats have in common. The decoder reads this field first, to recognize the format of a later
/// version.
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
