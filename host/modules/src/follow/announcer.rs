//! Announces a node's modules and state to operators, and the highest term that the node has seen to other nodes.
//! Leadership does not depend on announcements: failures are retried, but not reported.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, StoreError, Term};
use tokio::time::{Instant, timeout};

use super::NodeProperties;
use super::in_flight::InFlight;
use crate::SupervisorState;
use baton_store::LeaseStore;
use baton_store::jitter::doubled;
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore, withdraw, withdraw_gone};

/// Delay between a change and its announcement: when a term begins, the instance needs the machine.
const NEWS_AFTER: Duration = Duration::from_millis(10);
/// Delay if only `listens` changed: a lease may just have been released, and the store is busy with the next leader.
const HEARS_AFTER: Duration = Duration::from_millis(250);
/// Interval between announcements. It is finite so that the announcement of a crashed node becomes recognizably old.
const EVERY: Duration = Duration::from_secs(60);
/// Initial and maximum wait after a failure. The wait doubles each time.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Timeout for one announcement.
const TRY: Duration = Duration::from_secs(10);
/// Interval at which a leader withdraws the announcements of dead nodes, and the timeout for one withdrawal.
const TIDIES_EVERY: Duration = Duration::from_secs(600);
const TIDIES_WITHIN: Duration = Duration::from_secs(120);

pub(super) struct Announcer {
    store: Arc<dyn ObjectStore>,
    leases: Arc<dyn LeaseStore>,
    election: ElectionName,
    node: String,
    incarnation: String,
    source: String,
    known_by: NodeProperties,
    said: Option<AnnouncedState>,
    /// Time at which a pending change is announced.
    news: Option<Instant>,
    /// The highest term that this node has announced, in any incarnation. `None` until that is known.
    named: Option<Term>,
    again: Instant,
    failures: u32,
    saying: InFlight<Result<AnnouncementResult, StoreError>>,
    /// The withdrawal of dead nodes' announcements, if in progress.
    tidying: InFlight<()>,
    /// Time of the next withdrawal of dead nodes' announcements, if this node leads.
    tidies_at: Instant,
    /// Incarnation of another host with the same id, and the time until which that host is assumed to be running.
    rival: Option<(String, Instant)>,
}

struct AnnouncementResult {
    named: Term,
    /// Incarnation of another host with the same id, if its announcement was found where this host writes its own.
    rival: Option<String>,
}

/// The part of an announcement that changes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AnnouncedState {
    pub holds: Vec<Digest>,
    pub presence: SupervisorState,
}

impl AnnouncedState {
    /// Returns the delay until `now` must be announced, or `None` if nothing changed.
    fn outdated_after(&self, now: &Self) -> Option<Duration> {
        let hears_alone = || {
            let presence = SupervisorState { listens: now.presence.listens.clone(), ..self.presence.clone() };
            Self { presence, ..self.clone() } == *now
        };
        (self != now).then(|| if hears_alone() { HEARS_AFTER } else { NEWS_AFTER })
    }
}

impl Announcer {
    /// Creates an announcer. `source` is the display name of the modules' source.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        leases: Arc<dyn LeaseStore>,
        election: ElectionName,
        node: String,
        incarnation: String,
        source: String,
        known_by: NodeProperties,
    ) -> Self {
        Self {
            store,
            leases,
            election,
            node,
            incarnation,
            source,
            known_by,
            said: None,
            news: None,
            named: None,
            again: Instant::now(),
            failures: 0,
            saying: InFlight::none(),
            tidying: InFlight::none(),
            tidies_at: Instant::now() + TIDIES_EVERY,
            rival: None,
        }
    }

    /// Starts an announcement if a change is due for announcement, or if the last announcement is too old. The first
    /// announcement starts immediately.
    pub fn begin(&mut self, what: AnnouncedState, now: Instant) {
        let wait = self.said.as_ref().and_then(|said| said.outdated_after(&what));
        self.news = wait.map(|wait| self.news.map_or(now + wait, |news| news.min(now + wait)));
        if self.due().is_none_or(|due| now < due) {
            return;
        }
        self.news = None;
        if what.presence.runs.is_some() && now >= self.tidies_at && self.tidying.is_idle() {
            self.tidies_at = now + TIDIES_EVERY;
            let (leases, store, election) = (Arc::clone(&self.leases), Arc::clone(&self.store), self.election.clone());
            self.tidying.begin(async move {
                let withdrawn = withdraw_gone(&*leases, &*store, &election);
                // The next withdrawal retries the rest.
                let _ = timeout(TIDIES_WITHIN, withdrawn).await;
            });
        }
        self.said = Some(what.clone());
        self.again = now + EVERY;
        let (store, election) = (Arc::clone(&self.store), self.election.clone());
        let AnnouncedState {
            holds,
            presence: SupervisorState { runs, term, steered, stays_out, leads_enough, listens },
        } = what;
        let NodeProperties { labels, priority, admin, peer } = self.known_by.clone();
        let announcement = Announcement {
            term,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            steered,
            stays_out: stays_out.map(str::to_owned),
            rival: self.rival.as_ref().filter(|(_, until)| now < *until).map(|(rival, _)| rival.clone()),
            leads_enough,
            listens,
            labels,
            priority: Some(priority),
            admin,
            peer,
            ..Announcement::now(&self.node, &self.incarnation, &self.source, holds, runs)
        };
        let said = say(store, election, announcement, self.named);
        self.saying.begin(async move {
            timeout(TRY, said).await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {TRY:?}"))))
        });
    }

    /// Waits until an announcement or a withdrawal has ended. Returns the same value as [`Self::said`]. Cancel-safe.
    pub async fn attend(&mut self) -> Option<String> {
        let heard = tokio::select! {
            heard = self.saying.done() => heard,
            () = self.tidying.done() => return None,
        };
        self.heard(heard)
    }

    /// Returns the time of the next announcement, or `None` while one is in progress.
    pub fn due(&self) -> Option<Instant> {
        self.saying.is_idle().then(|| self.news.map_or(self.again, |news| news.min(self.again)))
    }

    /// Waits until the announcement has ended. If it revealed another host with this node's id for the first time,
    /// returns that host's incarnation.
    pub async fn said(&mut self) -> Option<String> {
        let heard = self.saying.done().await;
        self.heard(heard)
    }

    fn heard(&mut self, heard: Result<AnnouncementResult, StoreError>) -> Option<String> {
        match heard {
            Ok(AnnouncementResult { named, rival }) => {
                self.named = Some(named);
                let known = self.rival.as_ref().map(|(known, _)| known);
                let news = rival.clone().filter(|rival| Some(rival) != known);
                // Each host sends an announcement every minute.
                self.rival = rival.map(|rival| (rival, Instant::now() + 2 * EVERY)).or_else(|| self.rival.take());
                self.failures = 0;
                news
            }
            Err(_) => {
                self.again = Instant::now() + doubled(AGAIN, self.failures);
                self.failures = self.failures.saturating_add(1);
                None
            }
        }
    }

    /// Withdraws the announcement. If this node might be the only one that knows the term `seen`, announces that term
    /// instead.
    pub async fn withdraw(mut self, seen: Term) {
        // An announcement in progress could overwrite the withdrawal.
        if !self.saying.is_idle() {
            self.said().await;
        }
        let Self { store, leases, election, node, incarnation, source, known_by, said, named, .. } = self;
        // An earlier incarnation's announcement may be the only record of its term, so leave it.
        let (Some(named), Some(said)) = (named, said) else { return };
        let known = named.max(said.presence.term).max(seen);
        // If this fails, the announcement still becomes recognizably old.
        let is_taken_back = withdraw(&*leases, &*store, &election, &node, known).await;
        if matches!(is_taken_back, Ok(false)) && (known > named || said.presence.runs.is_some()) {
            // The node is shutting down: it no longer holds modules or runs an instance.
            let announcement = Announcement::now(&node, &incarnation, &source, Vec::new(), None);
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let NodeProperties { labels, .. } = known_by;
            let _ =
                say(store, election, Announcement { term: known, version, labels, ..announcement }, Some(named)).await;
        }
    }
}

/// Writes an announcement. Its term is at least `named`, the highest term that this node has announced before. Reads
/// the previous announcement first: it may be the only record of a term, and it reveals another host with the same id.
async fn say(
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    mut announcement: Announcement,
    named: Option<Term>,
) -> Result<AnnouncementResult, StoreError> {
    let before = store.announced(&election, &announcement.node).await?;
    let before = before.and_then(|content| Announcement::decode(&content));
    let other = before.as_ref().map(|before| &before.incarnation).filter(|other| **other != announcement.incarnation);
    let rival = named.and(other).cloned();
    announcement.rival = rival.clone().or(announcement.rival);
    // Another host with this id may be the only one that knows a higher term.
    let named = named.unwrap_or(0).max(before.map_or(0, |before| before.term));
    announcement.term = announcement.term.max(named);
    store.announce(&election, &announcement.node, announcement.encode()).await?;
    Ok(AnnouncementResult { named: announcement.term, rival })
}
