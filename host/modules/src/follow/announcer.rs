//! Announces a node's modules and state to people, and the highest term that it has seen to other nodes. Leading does
//! not depend on it: failures are retried, and not reported.

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

/// Delay from a change to its announcement: when a term begins, the machine is needed for the instance.
const NEWS_AFTER: Duration = Duration::from_millis(10);
/// The delay if only `listens` changed: a lease may have been released, and the store is busy with the next leader.
const HEARS_AFTER: Duration = Duration::from_millis(250);
/// Interval between announcements, so that the announcement of a crashed node looks old.
const EVERY: Duration = Duration::from_secs(60);
/// First and longest wait after a failure. Each wait doubles.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Time limit on one announcement.
const TRY: Duration = Duration::from_secs(10);
/// Interval at which a leader withdraws the announcements of dead nodes, and the limit on one withdrawal.
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
    /// Time of the announcement of a pending change.
    news: Option<Instant>,
    /// The highest term that this node has announced, in any incarnation. `None` until that is known.
    named: Option<Term>,
    again: Instant,
    failures: u32,
    saying: InFlight<Result<AnnouncementResult, StoreError>>,
    /// The withdrawal of dead nodes' announcements.
    tidying: InFlight<()>,
    /// The time of a leader's next withdrawal.
    tidies_at: Instant,
    /// Incarnation of another host with the same id, and the time until which it counts as running.
    rival: Option<(String, Instant)>,
}

struct AnnouncementResult {
    named: Term,
    /// Incarnation of another host whose announcement was in this one's place.
    rival: Option<String>,
}

/// The part of an announcement that changes.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct AnnouncedState {
    pub holds: Vec<Digest>,
    pub presence: SupervisorState,
}

impl AnnouncedState {
    /// Delay until `now` must be announced instead. `None` if nothing changed.
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

    /// Starts an announcement if a change is due, or if the last one is too old. The first one starts at once.
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
                // The next turn retries the rest.
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

    /// Waits until an announcement or a withdrawal has ended. Returns as [`Self::said`] does. Cancel-safe.
    pub async fn attend(&mut self) -> Option<String> {
        let heard = tokio::select! {
            heard = self.saying.done() => heard,
            () = self.tidying.done() => return None,
        };
        self.heard(heard)
    }

    /// Time of the next announcement. `None` while one is in progress.
    pub fn due(&self) -> Option<Instant> {
        self.saying.is_idle().then(|| self.news.map_or(self.again, |news| news.min(self.again)))
    }

    /// Waits until the announcement has ended. Returns the incarnation of another host with this id when first seen.
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
                // Each host announces something once a minute.
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

    /// Withdraws the announcement, or announces the term that this node has `seen` if nothing else may know that term.
    pub async fn withdraw(mut self, seen: Term) {
        // An announcement in progress could overwrite the withdrawal.
        if !self.saying.is_idle() {
            self.said().await;
        }
        let Self { store, leases, election, node, incarnation, source, known_by, said, named, .. } = self;
        // The announcement of an earlier incarnation may be the only record of its term, so it stays.
        let (Some(named), Some(said)) = (named, said) else { return };
        let known = named.max(said.presence.term).max(seen);
        // If this fails, the announcement looks old after a while anyway.
        let is_taken_back = withdraw(&*leases, &*store, &election, &node, known).await;
        if matches!(is_taken_back, Ok(false)) && (known > named || said.presence.runs.is_some()) {
            // The node is ending, and holds and runs nothing.
            let announcement = Announcement::now(&node, &incarnation, &source, Vec::new(), None);
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let NodeProperties { labels, .. } = known_by;
            let _ =
                say(store, election, Announcement { term: known, version, labels, ..announcement }, Some(named)).await;
        }
    }
}

/// Writes an announcement, with no lower term than this node has `named` before. Reads the previous announcement first:
/// it may be the only record of a term, and shows whether another host has the same id.
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
    // Another host with this id may know a higher term, as the only one.
    let named = named.unwrap_or(0).max(before.map_or(0, |before| before.term));
    announcement.term = announcement.term.max(named);
    store.announce(&election, &announcement.node, announcement.encode()).await?;
    Ok(AnnouncementResult { named: announcement.term, rival })
}
