//! What a file or a registry has offered to this process, which nobody but the process counts.

use super::ready::{Candidate, ReadyVersions};
use crate::{ListedVersion, Offer, VersionList};
use baton_store::Digest;

/// The offers of this process.
#[derive(Default)]
pub(super) struct OfferHistory {
    serial: u64,
    /// The newest first; nothing but that one and what is still of use.
    versions: Vec<Version>,
}

struct Version {
    candidate: Candidate,
    /// Until it is ready.
    offer: Option<Offer>,
    was_rejected: bool,
}

impl OfferHistory {
    /// Takes an offer of that digest. What is offered once more is a new version only if it was not ready: it may be
    /// signed by now.
    pub fn add(&mut self, digest: Digest, offer: Offer) {
        if self.versions.first().is_some_and(|newest| newest.candidate.digest == digest && newest.offer.is_none()) {
            return;
        }
        let before = self.versions.iter().position(|version| version.candidate.digest == digest);
        let before = before.map(|at| self.versions.remove(at));
        let is_good = before.as_ref().is_some_and(|before| before.candidate.is_good);
        let was_rejected = before.is_some_and(|before| before.was_rejected);
        self.serial += 1;
        let (size, signature) = (offer.bytes.len() as u64, offer.signature.clone());
        let candidate = Candidate { digest, serial: self.serial, size, signature, is_good };
        self.versions.insert(0, Version { candidate, offer: Some(offer), was_rejected });
    }

    /// Those that nobody has rejected. One that is not rejected any more is a version of its own.
    pub fn candidates(&mut self, control: &VersionList) -> Vec<Candidate> {
        for version in &mut self.versions {
            let is_rejected = rejection(control, &version.candidate.digest).is_some();
            if std::mem::replace(&mut version.was_rejected, is_rejected) && !is_rejected {
                self.serial += 1;
                version.candidate.serial = self.serial;
                version.candidate.is_good = false;
            }
        }
        self.versions.iter().filter(|version| !version.was_rejected).map(|version| version.candidate.clone()).collect()
    }

    /// What there is to prepare of a candidate.
    pub fn offer(&self, candidate: &Candidate) -> Option<Offer> {
        self.versions.iter().find(|version| version.candidate.is(candidate))?.offer.clone()
    }

    /// The size of a module that was offered, in bytes.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        self.versions.iter().find(|version| version.candidate.digest == *digest).map(|version| version.candidate.size)
    }

    /// The newest one.
    pub fn newest(&self) -> Option<Digest> {
        self.versions.first().map(|version| version.candidate.digest)
    }

    /// Notes that a version's probation is over.
    pub fn prove(&mut self, digest: Digest, serial: u64) {
        for version in &mut self.versions {
            let candidate = &mut version.candidate;
            candidate.is_good |= (candidate.digest, candidate.serial) == (digest, serial);
        }
    }

    /// Forgets what is of no use any more: bytes of what is ready, and versions that are neither ready nor the newest.
    pub fn tidy(&mut self, ready: &ReadyVersions) {
        for version in self.versions.iter_mut().filter(|version| ready.has(&version.candidate.digest)) {
            version.offer = None;
        }
        let newest = self.newest();
        self.versions
            .retain(|version| Some(version.candidate.digest) == newest || ready.has(&version.candidate.digest));
    }
}

/// Why a module is not to be run, whether it was pushed or not.
pub(super) fn rejection<'a>(control: &'a VersionList, digest: &Digest) -> Option<&'a str> {
    let entries = control.pushed.iter().chain(&control.unpushed);
    entries.filter(|entry| entry.digest == *digest).find_map(ListedVersion::rejection)
}
