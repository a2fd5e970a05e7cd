//! The offers of a file or a registry to this process, with serials of this process alone.

use super::ready::{Candidate, ReadyVersions};
use crate::{ListedVersion, Offer, VersionList};
use baton_store::Digest;

#[derive(Default)]
pub(super) struct OfferHistory {
    serial: u64,
    /// Newest first: the newest version, and older ones that are still of use.
    versions: Vec<Version>,
}

struct Version {
    candidate: Candidate,
    /// The bytes, until the version is ready.
    offer: Option<Offer>,
    was_rejected: bool,
}

impl OfferHistory {
    /// Adds an offer. The newest one counts as new if repeated before it is ready, since it may be signed by now.
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

    /// The versions that are not rejected. A version whose rejection is removed gets a new serial.
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

    /// The offer of a candidate, if it is still to be prepared.
    pub fn offer(&self, candidate: &Candidate) -> Option<Offer> {
        self.versions.iter().find(|version| version.candidate.is(candidate))?.offer.clone()
    }

    /// Size of an offered module, in bytes.
    pub fn size(&self, digest: &Digest) -> Option<u64> {
        self.versions.iter().find(|version| version.candidate.digest == *digest).map(|version| version.candidate.size)
    }

    pub fn newest(&self) -> Option<Digest> {
        self.versions.first().map(|version| version.candidate.digest)
    }

    /// Records that a version passed its probation.
    pub fn prove(&mut self, digest: Digest, serial: u64) {
        for version in &mut self.versions {
            let candidate = &mut version.candidate;
            candidate.is_good |= (candidate.digest, candidate.serial) == (digest, serial);
        }
    }

    /// Drops the bytes of ready versions, and versions that are neither ready nor the newest.
    pub fn tidy(&mut self, ready: &ReadyVersions) {
        for version in self.versions.iter_mut().filter(|version| ready.has(&version.candidate.digest)) {
            version.offer = None;
        }
        let newest = self.newest();
        self.versions
            .retain(|version| Some(version.candidate.digest) == newest || ready.has(&version.candidate.digest));
    }
}

/// The reason for the rejection of a module, pushed or not, if it is rejected.
pub(super) fn rejection<'a>(control: &'a VersionList, digest: &Digest) -> Option<&'a str> {
    let entries = control.pushed.iter().chain(&control.unpushed);
    entries.filter(|entry| entry.digest == *digest).find_map(ListedVersion::rejection)
}
