//! Follows one coordinator's source, on the leader and on standbys alike. Fetches, verifies, compiles and links the
//! version that the source names, ahead of time, so that a takeover is fast. Records verdicts in the store, for all
//! nodes.
//!
//! A follower makes no decisions about leases or instances. The follower gives its node's supervisor a [`Supply`], and
//! receives [`Judgement`]s until the last sender is dropped. A version that is ready stays ready, no matter what fails
//! later.

mod in_flight;
mod offer_history;
mod ready;
mod recorder;
mod report;
mod reporter;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, StoreError, Version};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::slow_notice::notify_if_slow;
use super::{Judgement, Offer, Preparation, PrepareError, Preparer, VersionList};
use super::{RecordedVerdict, Source, SourceError, Supply, Verdict};
use baton_base::jitter::doubled;
use baton_runtime::LARGEST_MODULE;
use baton_store::{ChangeNotifier, ChangeReader, Digest, ModuleStore as _, ObjectStore, Reading};
use in_flight::InFlight;
use offer_history::{OfferHistory, rejection};
use ready::{CandidateVersion, ReadyVersions, RetryWaits, Setback, Step};
use recorder::{Judged, Recorder};
use reporter::Reporter;

pub use report::{FollowerReport, FollowerReportSink};

/// Timeout for fetching a module. Long enough for a slow connection.
const FETCH: Duration = Duration::from_secs(600);
const READ: Duration = Duration::from_secs(4);
/// Half of the wait after the first failed read. The wait doubles with each further failure.
const RETRY: Duration = Duration::from_millis(250);
/// Timeout for store requests at shutdown.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Parameters of a [`Follower`].
pub struct FollowerConfig {
    /// The election whose modules the follower prepares.
    pub election: ElectionName,
    /// This node's id. The follower records the id with each verdict.
    pub node: String,
    /// Display name of the source.
    pub name: String,
    /// The source of modules. `None` if modules are pushed into the store.
    pub source: Option<Box<dyn Source>>,
    /// Store that contains the control object. Do not use this handle for urgent requests, because they may have to
    /// wait while a large module is transferred.
    pub store: Arc<dyn ObjectStore>,
    /// Prepares the modules.
    pub preparer: Arc<dyn Prepare>,
    /// Exchanges hints about the control object with other nodes, and decides how often the object is read.
    pub notifier: ChangeNotifier,
    /// Receives reports about the modules.
    pub reports: Arc<dyn FollowerReportSink>,
    /// Intervals between reads, and waits before retries.
    pub pace: Pace,
}

/// Prepares modules.
#[async_trait]
pub trait Prepare: Send + Sync {
    /// Verifies, compiles and links an offer. Dropping the future cancels the preparation.
    ///
    /// # Errors
    /// [`PrepareError`] says what is wrong and what to do.
    async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError>;
}

#[async_trait]
impl Prepare for Preparer {
    async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError> {
        self.prepare(offer).await
    }
}

/// Intervals of a [`Follower`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Minimum and maximum interval between reads of the control object.
    pub poll: (Duration, Duration),
    /// Maximum wait after repeated failures of the store.
    pub outage: Duration,
    /// Initial and maximum wait before the follower retries a refused module.
    pub refused: (Duration, Duration),
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            poll: (Duration::from_secs(2), Duration::from_secs(4)),
            outage: Duration::from_secs(15),
            refused: (Duration::from_secs(10), Duration::from_secs(600)),
        }
    }
}

/// The reason why the first module of a source cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The source does not offer a module.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The module cannot be prepared.
    #[error("{name}: {error}")]
    Prepare {
        /// Display name of the source.
        name: String,
        /// The preparation's error.
        error: PrepareError,
    },
}

/// Follows the source of one coordinator.
pub struct Follower {
    config: FollowerConfig,
    supply: watch::Sender<Supply>,
    /// Digests of the modules that this node could start immediately.
    holds: watch::Sender<Vec<Digest>>,
    judgements: mpsc::UnboundedReceiver<Judgement>,
    /// The list of versions at the last read, plus the verdicts that this node has written since.
    control: VersionList,
    version: Option<Version>,
    /// True once the control object has been read, or once a module from a file or a registry should no longer wait for
    /// a store that fails. Until then, the follower supplies nothing.
    has_read: bool,
    offers: OfferHistory,
    candidates: Vec<CandidateVersion>,
    ready: ReadyVersions,
    reading: InFlight<Result<Reading, StoreError>>,
    read_at: Instant,
    read_began: Instant,
    notifier: ChangeReader,
    failed_reads: u32,
    hashing: InFlight<(Digest, Offer)>,
    preparing: InFlight<Result<Preparation, Setback>>,
    prepares: Option<CandidateVersion>,
    recorder: Recorder,
    reporter: Reporter,
}

impl Follower {
    /// Creates a follower. Also returns the receiver for its supply and the sender for judgements.
    #[must_use]
    pub fn new(config: FollowerConfig) -> (Self, watch::Receiver<Supply>, mpsc::UnboundedSender<Judgement>) {
        let (supply, supplied) = watch::channel(Supply::default());
        let (judge, judgements) = mpsc::unbounded_channel();
        let FollowerConfig { store, election, reports, pace, .. } = &config;
        let unreachable = (Duration::from_secs(1).min(pace.outage), pace.outage);
        let follower = Self {
            supply,
            holds: watch::Sender::default(),
            judgements,
            control: VersionList::default(),
            version: None,
            has_read: false,
            offers: OfferHistory::default(),
            candidates: Vec::new(),
            ready: ReadyVersions::new(RetryWaits { unreachable, refused: pace.refused }),
            reading: InFlight::none(),
            read_at: Instant::now(),
            read_began: Instant::now(),
            notifier: config.notifier.reader(),
            failed_reads: 0,
            hashing: InFlight::none(),
            preparing: InFlight::none(),
            prepares: None,
            recorder: Recorder::new(Arc::clone(store), election.clone()),
            reporter: Reporter::new(Arc::clone(reports), election.clone()),
            config,
        };
        (follower, supplied, judge)
    }

    /// Returns a receiver for the modules that the node could start immediately.
    #[must_use]
    pub fn holds(&self) -> watch::Receiver<Vec<Digest>> {
        self.holds.subscribe()
    }

    /// Prepares the first module of the source, for a host that must not start without a usable module. Returns the
    /// module's digest, or `None` if modules are pushed. Ignores temporary errors, since the follower retries.
    ///
    /// # Errors
    /// [`LoadError`] if the module cannot run here.
    pub async fn load(&mut self) -> Result<Option<Digest>, LoadError> {
        let Some(source) = &mut self.config.source else { return Ok(None) };
        let (digest, offer) = hash(source.next().await?).await;
        let compiling = self.reporter.later(FollowerReport::Compiling { module: digest });
        let prepared = notify_if_slow(self.config.preparer.prepare(&offer), compiling).await;
        self.offers.add(digest, offer);
        self.candidates = self.offers.candidates(&self.control);
        self.prepares = self.candidates.first().cloned();
        match prepared {
            Err(error) if !error.may_pass() => {
                return Err(LoadError::Prepare { name: self.config.name.clone(), error });
            }
            prepared => self.prepared(prepared.map_err(Setback::of)),
        }
        Ok(Some(digest))
    }

    /// Follows the source until the last sender of judgements is dropped. Then tries for up to 1 s to write the
    /// remaining verdicts.
    pub async fn run(mut self) {
        loop {
            let now = Instant::now();
            self.settle();
            self.begin_what_is_due(now);
            let wake = self.next_wake(now);
            let next_offer = async {
                match &mut self.config.source {
                    Some(source) => source.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                judgement = self.judgements.recv() => match judgement {
                    Some(judgement) => self.judged(judgement),
                    None => break,
                },
                read = self.reading.done() => self.read(read),
                written = self.recorder.written() => match written {
                    Ok(judged) => self.recorded(&judged),
                    Err(Some(error)) => self.reporter.error(format!("cannot record a verdict yet, retrying: {error}")),
                    Err(None) => {}
                },
                prepared = self.preparing.done() => self.prepared(prepared),
                (digest, offer) = self.hashing.done() => self.offers.add(digest, offer),
                offer = next_offer => self.offer(offer),
                // Do not act on hints while the store is failing or a read is in progress. A hint that arrives during a
                // read is handled afterwards, because the response may be older than the hint.
                at = self.notifier.reason(self.read_began), if self.failed_reads == 0 && self.reading.is_idle() => {
                    self.read_at = self.read_at.min(at);
                }
                () = sleep_until(wake) => {}
            }
        }
        self.finish().await;
    }

    fn settle(&mut self) {
        let control = self.recorder.apply(&self.control);
        self.candidates = match self.config.source {
            Some(_) => self.offers.candidates(&control),
            None => published(&control),
        };
        self.ready.tidy(&self.candidates, self.offers.newest());
        self.offers.tidy(&self.ready);
        if !self.has_read {
            return;
        }
        self.tell_what_is_missing(&control);
        let supply = self.ready.supply(&self.candidates);
        self.supply.send_if_modified(|before| {
            let is_news = before.versions() != supply.versions();
            *before = supply;
            is_news
        });
    }

    fn begin_what_is_due(&mut self, now: Instant) {
        if self.reading.is_idle() && now >= self.read_at {
            let (store, election) = (Arc::clone(&self.config.store), self.config.election.clone());
            let known = self.version.clone();
            self.read_began = now;
            self.reading.begin(async move {
                let read = timeout(READ, store.read_control(&election, known.as_ref())).await;
                read.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {READ:?}"))))
            });
        }
        match self.ready.next(&self.candidates, now) {
            Step::Prepare(candidate) => {
                if self.preparing.is_idle() || !self.prepares.as_ref().is_some_and(|other| other.is(&candidate)) {
                    self.prepare(candidate);
                }
            }
            Step::Wait(_) | Step::Rest => self.preparing.stop(),
        }
        self.recorder.begin(now);
        self.publish_holds();
    }

    fn next_wake(&self, now: Instant) -> Instant {
        let read = self.reading.is_idle().then_some(self.read_at);
        let retry = match self.ready.next(&self.candidates, now) {
            Step::Wait(until) => Some(until),
            Step::Prepare(_) | Step::Rest => None,
        };
        let wakes = [read, retry, self.recorder.due()];
        wakes.into_iter().flatten().min().unwrap_or(now + self.config.pace.outage)
    }

    fn prepare(&mut self, candidate: CandidateVersion) {
        let offer = self.offers.offer(&candidate);
        let (store, preparer) = (Arc::clone(&self.config.store), Arc::clone(&self.config.preparer));
        let module = candidate.digest;
        let pulling = self.reporter.later(FollowerReport::Pulling { module });
        let compiling = self.reporter.later(FollowerReport::Compiling { module });
        self.prepares = Some(candidate.clone());
        self.preparing.begin(async move {
            let offer = match offer {
                Some(offer) => offer,
                None => notify_if_slow(fetch(store.as_ref(), &candidate), pulling).await?,
            };
            let prepared = notify_if_slow(preparer.prepare(&offer), compiling).await;
            prepared.map_err(Setback::of)
        });
    }

    fn prepared(&mut self, prepared: Result<Preparation, Setback>) {
        let Some(candidate) = self.prepares.take() else { return };
        match prepared {
            Ok(preparation) => {
                self.ready(&candidate, preparation);
                self.reachable();
            }
            Err(setback) => {
                if !self.ready.set_back(&candidate, setback.clone(), Instant::now()) {
                    return;
                }
                match setback {
                    Setback::Unreachable(error) => self.reporter.unreachable(error),
                    Setback::Refused(error) => self.reporter.refused(Some(candidate.digest), error, self.has_ready()),
                }
            }
        }
    }

    /// Returns the newest candidate that this node could run, if any.
    fn has_ready(&self) -> Option<Digest> {
        self.candidates.iter().map(|candidate| candidate.digest).find(|digest| self.ready.has(digest))
    }

    fn ready(&mut self, candidate: &CandidateVersion, preparation: Preparation) {
        self.reporter.ready(candidate.digest, &preparation);
        self.ready.add(candidate, preparation.module);
        self.publish_holds();
    }

    fn publish_holds(&self) {
        let holds = self.ready.holds();
        self.holds.send_if_modified(|before| std::mem::replace(before, holds) != *before);
    }

    fn offer(&mut self, offer: Result<Offer, SourceError>) {
        match offer {
            Ok(offer) => {
                self.hashing.begin(hash(offer));
                self.reachable();
            }
            Err(SourceError::Unreachable(error)) => self.reporter.unreachable(error),
            Err(SourceError::Unusable(error)) => self.reporter.refused(None, error, self.has_ready()),
        }
    }

    fn judged(&mut self, judgement: Judgement) {
        let Ok(digest) = judgement.version.digest.parse::<Digest>() else { return };
        let serial = judgement.version.serial;
        let is_published = self.config.source.is_none();
        if let Verdict::Rejected { .. } = judgement.verdict {
            // The supervisor reports this rejection, so the follower must not report it again.
            self.reporter.is_told_of((digest, if is_published { serial } else { 0 }));
        } else if !is_published {
            self.offers.prove(digest, serial);
            return;
        }
        let unpushed = (!is_published).then(|| self.offers.size(&digest).unwrap_or_default());
        self.recorder.add(Judged::now(judgement, unpushed, &self.config.node));
    }

    /// Adds a verdict that was just written to the known list. Discards a read in progress, because its result may be
    /// older than the verdict, and reads again.
    fn recorded(&mut self, judged: &Judged) {
        judged.apply(&mut self.control);
        self.notifier.found();
        self.reading.stop();
        self.read_at = Instant::now();
    }

    fn read(&mut self, answer: Result<Reading, StoreError>) {
        let now = Instant::now();
        let found = match answer {
            Ok(reading) => reading,
            Err(error) => {
                self.failed_reads += 1;
                // Do not report a single failure: the store may be new or briefly busy, and a retry follows.
                let is_trouble = self.failed_reads > 1;
                // A module from a file or a registry should not wait for a store that fails. The node may then run it
                // without knowing if it is rejected.
                self.has_read |=
                    self.config.source.is_some() && (is_trouble || matches!(error, StoreError::Misconfigured(_)));
                self.read_at = now + doubled((RETRY, self.config.pace.outage), self.failed_reads);
                if is_trouble && self.config.source.is_none() {
                    self.reporter.unreachable(format!("cannot read the published versions: {error}"));
                }
                return;
            }
        };
        let had_read = std::mem::replace(&mut self.has_read, true);
        self.failed_reads = 0;
        self.read_at = self.notifier.next(now, self.config.pace.poll);
        if self.config.source.is_none() {
            self.reachable();
        }
        match found {
            Reading::Unchanged => {}
            Reading::Nothing if self.version.is_none() => {}
            Reading::Nothing => {
                let error = "the election's control object is missing from the store: this node keeps the versions \
                             that it knows, and the next push starts a new list";
                self.reporter.control_is_wrong(error.to_owned());
            }
            Reading::Found(version, content) => {
                // Do not notify the other nodes after this node's first read: they already know this version.
                self.version = Some(version);
                if had_read {
                    self.notifier.found();
                }
                match VersionList::decode(&content) {
                    Ok(control) => {
                        self.control = control;
                        self.reporter.control_is_right();
                    }
                    Err(error) => {
                        self.reporter.control_is_wrong(format!("{error}; this node keeps the versions that it knows"));
                    }
                }
            }
        }
    }

    fn tell_what_is_missing(&mut self, control: &VersionList) {
        let newest = match self.config.source {
            None => {
                self.reporter.nothing_is_pushed(control.pushed.is_empty());
                control.pushed.last().map(|entry| ((entry.digest, entry.serial), entry.rejection()))
            }
            Some(_) => self.offers.newest().map(|digest| ((digest, 0), rejection(control, &digest))),
        };
        if let Some((newest, rejection)) = newest {
            self.reporter.newest(newest, rejection, self.candidates.first().map(|candidate| candidate.digest));
        }
    }

    fn reachable(&mut self) {
        if !self.ready.waits_for_bytes() {
            self.reporter.reachable();
        }
    }

    /// Tries to write this node's remaining verdicts, because no other node would write them.
    async fn finish(self) {
        // These verdicts are useful, but not important enough to wait for a store that does not respond.
        let _ = timeout(LAST_WORDS, self.recorder.finish()).await;
    }
}

fn published(control: &VersionList) -> Vec<CandidateVersion> {
    let entries = control.pushed.iter().rev().filter(|entry| entry.rejection().is_none());
    let candidates = entries.map(|entry| CandidateVersion {
        digest: entry.digest,
        serial: entry.serial,
        size: entry.size,
        signature: entry.signature.clone(),
        is_good: entry.verdict == Some(RecordedVerdict::Good),
    });
    candidates.collect()
}

/// Reads a module from the store, which is untrusted.
async fn fetch(store: &dyn ObjectStore, candidate: &CandidateVersion) -> Result<Offer, Setback> {
    let CandidateVersion { digest, signature, .. } = candidate;
    let read = timeout(FETCH, store.get_module(digest, LARGEST_MODULE + 1)).await;
    let read = read.unwrap_or_else(|_| Err(StoreError::Unknown(format!("the module did not arrive within {FETCH:?}"))));
    let unreachable = |error| Setback::Unreachable(format!("cannot read the module {digest}: {error}"));
    let Some(bytes) = read.map_err(unreachable)? else {
        return Err(Setback::Refused("the store does not have the module: push it again".to_owned()));
    };
    let size = bytes.len() as u64;
    if size > LARGEST_MODULE {
        return Err(Setback::Refused(PrepareError::TooLarge(size).to_string()));
    }
    let (found, offer) = hash(Offer { bytes, signature: signature.clone() }).await;
    if found != *digest {
        return Err(Setback::Refused(format!(
            "the store's object for this digest has different content: {size} bytes with the digest {found}; remove \
             the object, and push the module again"
        )));
    }
    Ok(offer)
}

async fn hash(offer: Offer) -> (Digest, Offer) {
    let bytes = offer.bytes.clone();
    match tokio::task::spawn_blocking(move || Digest::of(&bytes)).await {
        Ok(digest) => (digest, offer),
        // The runtime is shutting down, and will drop this task.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
