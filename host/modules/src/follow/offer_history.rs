//! The offers that this process has received from a file or a registry. Such modules have no serial in the store, so
//! this history numbers them. The numbers are valid only in this process.

use super::ready::{CandidateVersion, ReadyVersions};
use crate::{ListedVersion, Offer, VersionList};
use baton_store::Digest;

#[derive(Default)]
pub(super) struct OfferHistory {
    serial: u64,
    /// Newest first. Rejected versions stay in the list for a while, because an operator may remove a rejection.
    versions: Vec<Version>,
}

struct Version {
    candidate: CandidateVersion,
    offer: Option<Offer>,
    was_rejected: bool,
}

impl OfferHistory {
    /// Adds an offer. If the newest version is offered again before it is ready, the offer counts as a new version,
    /// because it may have a signature that the earlier offer lacked.
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
        let candidate = CandidateVersion { digest, serial: self.serial, size, signature, is_good };
        self.versions.insert(0, Version { candidate, offer: Some(offer), was_rejected });
    }

    /// Returns the versions that are not rejected. Gives a version a new serial if its rejection has been removed.
    pub fn candidates(&mut self, control: &VersionList) -> Vec<CandidateVersion> {
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

    /// Returns the bytes of a candidate and its signature. Returns `None` if the candidate is ready, because the
    /// history drops the bytes that are no longer needed.
    pub fn offer(&self, candidate: &CandidateVersion) -> Option<Offer> {
        self.versions.iter().find(|version| version.candidate.is(candidate))?.offer.clone()
    }

    pub fn size(&self, digest: &Digest) -> Option<u64> {
        self.versions.iter().find(|version| version.candidate.digest == *digest).map(|version| version.candidate.size)
    }

    pub fn newest(&self) -> Option<Digest> {
        self.versions.first().map(|version| version.candidate.digest)
    }

    pub fn prove(&mut self, digest: Digest, serial: u64) {
        for version in &mut self.versions {
            let candidate = &mut version.candidate;
            candidate.is_good |= (candidate.digest, candidate.serial) == (digest, serial);
        }
    }

    pub fn tidy(&mut self, ready: &ReadyVersions) {
        for version in self.versions.iter_mut().filter(|version| ready.has(&version.candidate.digest)) {
            version.offer = None;
        }
        let newest = self.newest();
        self.versions
            .retain(|version| Some(version.candidate.digest) == newest || ready.has(&version.candidate.digest));
    }
}

/// Returns the reason why a module is rejected, if it is. Finds the rejection both of a module that was pushed and of a
/// module from a file or a registry.
pub(super) fn rejection<'a>(control: &'a VersionList, digest: &Digest) -> Option<&'a str> {
    let entries = control.pushed.iter().chain(&control.unpushed);
    entries.filter(|entry| entry.digest == *digest).find_map(ListedVersion::rejection)
}
