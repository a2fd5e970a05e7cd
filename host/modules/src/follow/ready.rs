//! The versions that are ready on a node, and the choice of the version to prepare next.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::{PrepareError, PreparedVersion, Supply};
use baton_runtime::Module;
use baton_store::Digest;

/// A version that the source names and no node has rejected. Lists of candidates begin with the newest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CandidateVersion {
    pub digest: Digest,
    pub serial: u64,
    pub size: u64,
    pub signature: Option<String>,
    /// True if the version has passed its probation, so that it needs no fallback.
    pub is_good: bool,
}

impl CandidateVersion {
    pub fn is(&self, other: &Self) -> bool {
        (self.digest, self.serial, &self.signature) == (other.digest, other.serial, &other.signature)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Setback {
    /// The bytes are currently unavailable. The node waits for them, and prepares no older candidate.
    Unreachable(String),
    /// The module cannot run here. The node prepares the next candidate instead, and retries this one later.
    Refused(String),
}

impl Setback {
    pub fn of(error: PrepareError) -> Self {
        Self::Refused(format!("{:#}", anyhow::Error::from(error)))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Prepare(CandidateVersion),
    Wait(Instant),
    /// Do nothing until the candidates change.
    Rest,
}

/// Pairs of the initial and the maximum wait before the node retries a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryWaits {
    pub unreachable: (Duration, Duration),
    pub refused: (Duration, Duration),
}

pub(super) struct ReadyVersions {
    ready: BTreeMap<Digest, Module>,
    failed: Vec<Failed>,
    patience: RetryWaits,
}

struct Failed {
    candidate: CandidateVersion,
    setback: Setback,
    wait: Duration,
    again: Instant,
}

impl ReadyVersions {
    pub fn new(patience: RetryWaits) -> Self {
        Self { ready: BTreeMap::new(), failed: Vec::new(), patience }
    }

    pub fn add(&mut self, candidate: &CandidateVersion, module: Module) {
        self.failed.retain(|failed| !failed.candidate.is(candidate));
        self.ready.insert(candidate.digest, module);
    }

    /// Records why a candidate could not be prepared, and when to retry. The wait doubles after each failure. Returns
    /// true if this setback differs from the candidate's last one, so that the caller reports each problem only once.
    pub fn set_back(&mut self, candidate: &CandidateVersion, setback: Setback, now: Instant) -> bool {
        let (first, most) = match setback {
            Setback::Unreachable(_) => self.patience.unreachable,
            Setback::Refused(_) => self.patience.refused,
        };
        let before = self.failed.iter().position(|failed| failed.candidate.is(candidate));
        let before = before.map(|place| self.failed.swap_remove(place));
        let is_news = before.as_ref().is_none_or(|before| before.setback != setback);
        let wait = before.map_or(first, |before| (before.wait * 2).clamp(first, most));
        self.failed.push(Failed { candidate: candidate.clone(), setback, wait, again: now + wait });
        is_news
    }

    /// Chooses the next candidate to prepare: first the newest candidate that can run here, and then its fallback if
    /// that candidate is on probation.
    pub fn next(&self, candidates: &[CandidateVersion], now: Instant) -> Step {
        let mut wake: Option<Instant> = None;
        let mut ready = 0;
        for candidate in candidates {
            if self.ready.contains_key(&candidate.digest) {
                ready += 1;
                if candidate.is_good || ready == 2 {
                    break;
                }
                continue;
            }
            match self.failed(candidate) {
                Some(failed) if now < failed.again => {
                    wake = Some(wake.map_or(failed.again, |wake| wake.min(failed.again)));
                    if matches!(failed.setback, Setback::Unreachable(_)) {
                        break;
                    }
                }
                _ => return Step::Prepare(candidate.clone()),
            }
        }
        wake.map_or(Step::Rest, Step::Wait)
    }

    /// Returns the newest candidate that is ready. If that candidate is on probation, also returns the next ready
    /// candidate, as the fallback.
    pub fn supply(&self, candidates: &[CandidateVersion]) -> Supply {
        let mut ready = candidates.iter().filter_map(|candidate| {
            let module = self.ready.get(&candidate.digest)?.clone();
            Some((PreparedVersion { serial: candidate.serial, module }, candidate.is_good))
        });
        let Some((current, is_good)) = ready.next() else { return Supply::default() };
        Supply { current: Some(current), fallback: ready.next().map(|(next, _)| next).filter(|_| !is_good) }
    }

    /// Drops the modules that are no longer needed. Keeps the supplied modules, the module `also`, and the modules that
    /// will be supplied next: the newest candidate that can run here, and its fallback.
    pub fn tidy(&mut self, candidates: &[CandidateVersion], also: Option<Digest>) {
        let mut kept: Vec<Digest> = self.supplied(candidates).chain(also).collect();
        let mut able = candidates
            .iter()
            .filter(|candidate| !matches!(self.failed(candidate), Some(Failed { setback: Setback::Refused(_), .. })));
        if let Some(first) = able.next() {
            kept.push(first.digest);
            kept.extend(able.next().filter(|_| !first.is_good).map(|next| next.digest));
        }
        self.ready.retain(|digest, _| kept.contains(digest));
        self.failed.retain(|failed| candidates.iter().any(|candidate| failed.candidate.is(candidate)));
    }

    pub fn holds(&self) -> Vec<Digest> {
        self.ready.keys().copied().collect()
    }

    pub fn has(&self, digest: &Digest) -> bool {
        self.ready.contains_key(digest)
    }

    pub fn waits_for_bytes(&self) -> bool {
        self.failed.iter().any(|failed| matches!(failed.setback, Setback::Unreachable(_)))
    }

    fn failed(&self, candidate: &CandidateVersion) -> Option<&Failed> {
        self.failed.iter().find(|failed| failed.candidate.is(candidate))
    }

    fn supplied(&self, candidates: &[CandidateVersion]) -> impl Iterator<Item = Digest> + use<> {
        let mut ready = candidates.iter().filter(|candidate| self.ready.contains_key(&candidate.digest));
        let first = ready.next();
        let second = ready.next().filter(|_| first.is_some_and(|first| !first.is_good));
        [first, second].map(|found| found.map(|candidate| candidate.digest)).into_iter().flatten()
    }
}
