//! What a node has ready of the versions that it could run, and what it prepares next.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::{PrepareError, Prepared, Supply};
use baton_runtime::Module;
use baton_store::Digest;

/// A version that its source names and that nobody has rejected. A source's **candidates** stand in a list, the
/// newest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    pub digest: Digest,
    /// Which publishing it is.
    pub serial: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The text of its minisign signature.
    pub signature: Option<String>,
    /// Whether its probation is over: then nothing is needed to fall back on.
    pub is_good: bool,
}

impl Candidate {
    /// Whether it is the same, whatever is known of it: signed anew it is another.
    pub fn is(&self, other: &Self) -> bool {
        (self.digest, self.serial, &self.signature) == (other.digest, other.serial, &other.signature)
    }
}

/// Why a candidate could not be prepared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Setback {
    /// Its bytes cannot be had at the moment: it is waited for.
    Unreachable(String),
    /// It cannot run here: the next candidate takes its place, until a later try succeeds.
    Refused(String),
}

impl Setback {
    pub fn of(error: PrepareError) -> Self {
        Self::Refused(format!("{:#}", anyhow::Error::from(error)))
    }
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Prepare this one.
    Prepare(Candidate),
    /// Nothing before this moment.
    Wait(Instant),
    /// Nothing, until there are other candidates.
    Rest,
}

/// How long after a setback the candidate is tried again: at first, and at the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub unreachable: (Duration, Duration),
    pub refused: (Duration, Duration),
}

/// The modules that are ready, and those that could not be made so.
pub(super) struct ReadyVersions {
    ready: BTreeMap<Digest, Module>,
    failed: Vec<Failed>,
    patience: Patience,
}

struct Failed {
    candidate: Candidate,
    setback: Setback,
    wait: Duration,
    again: Instant,
}

impl ReadyVersions {
    pub fn new(patience: Patience) -> Self {
        Self { ready: BTreeMap::new(), failed: Vec::new(), patience }
    }

    pub fn add(&mut self, candidate: &Candidate, module: Module) {
        self.failed.retain(|failed| !failed.candidate.is(candidate));
        self.ready.insert(candidate.digest, module);
    }

    /// Notes why a candidate is not ready. Says whether that is news.
    pub fn set_back(&mut self, candidate: &Candidate, setback: Setback, now: Instant) -> bool {
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

    /// The newest candidate that can run here comes first; then, while it is on probation, the one after it.
    pub fn next(&self, candidates: &[Candidate], now: Instant) -> Step {
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

    /// The newest candidate that is ready; and while that is on probation, the next that is.
    pub fn supply(&self, candidates: &[Candidate]) -> Supply {
        let mut ready = candidates.iter().filter_map(|candidate| {
            let module = self.ready.get(&candidate.digest)?.clone();
            Some((Prepared { serial: candidate.serial, module }, candidate.is_good))
        });
        let Some((current, is_good)) = ready.next() else { return Supply::default() };
        Supply { current: Some(current), fallback: ready.next().map(|(next, _)| next).filter(|_| !is_good) }
    }

    /// Forgets what is neither supplied nor wanted, except for `also`.
    pub fn tidy(&mut self, candidates: &[Candidate], also: Option<Digest>) {
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

    /// What it holds, in the order of the digests.
    pub fn holds(&self) -> Vec<Digest> {
        self.ready.keys().copied().collect()
    }

    pub fn has(&self, digest: &Digest) -> bool {
        self.ready.contains_key(digest)
    }

    /// Whether the bytes of a candidate could not be had so far.
    pub fn waits_for_bytes(&self) -> bool {
        self.failed.iter().any(|failed| matches!(failed.setback, Setback::Unreachable(_)))
    }

    fn failed(&self, candidate: &Candidate) -> Option<&Failed> {
        self.failed.iter().find(|failed| failed.candidate.is(candidate))
    }

    fn supplied(&self, candidates: &[Candidate]) -> impl Iterator<Item = Digest> + use<> {
        let mut ready = candidates.iter().filter(|candidate| self.ready.contains_key(&candidate.digest));
        let first = ready.next();
        let second = ready.next().filter(|_| first.is_some_and(|first| !first.is_good));
        [first, second].map(|found| found.map(|candidate| candidate.digest)).into_iter().flatten()
    }
}
