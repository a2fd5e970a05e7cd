//! Lets people know what a node holds and runs, and other nodes which term it has seen. A leader does not wait for
//! it: its failures are tried again, and not said.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, StoreError, Term};
use tokio::time::{Instant, timeout};

use super::KnownBy;
use super::in_flight::InFlight;
use crate::Presence;
use baton_store::LeaseStore;
use baton_store::jitter::doubled;
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore, withdraw, withdraw_gone};

/// News is said so long after it came: a term that begins needs the machine for its instance.
const NEWS_AFTER: Duration = Duration::from_millis(10);
/// The same where it only hears from another node, or from none any more: that changes as a lease is given up, and the store
/// is busy then with who takes it.
const HEARS_AFTER: Duration = Duration::from_millis(250);
/// It is said anew so often, so that what a node said that crashed looks old.
const EVERY: Duration = Duration::from_secs(60);
/// After a failure it is said anew so soon; after each further one in a row twice as late, at the latest so late.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How long one try may take.
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
    known_by: KnownBy,
    said: Option<Said>,
    /// When something else is to be said.
    news: Option<Instant>,
    /// The highest term that this node has named, in whatever start of it; none while that is not known.
    named: Option<Term>,
    again: Instant,
    /// Failures in a row.
    failures: u32,
    saying: InFlight<Result<Heard, StoreError>>,
    /// The withdrawal of dead nodes' announcements.
    tidying: InFlight<()>,
    /// The time of a leader's next withdrawal.
    tidies_at: Instant,
    /// Another start of a host that says the same id, and until when it counts as there unless it is heard again.
    rival: Option<(String, Instant)>,
}

/// What has come of saying something.
struct Heard {
    /// The term that was named.
    named: Term,
    /// Another start of a host whose word was there in this one's place.
    rival: Option<String>,
}

/// What others are to know.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub holds: Vec<Digest>,
    pub presence: Presence,
}

impl Said {
    /// How long it may take until what is so now is said instead; none where that is the same.
    fn outdated_after(&self, now: &Self) -> Option<Duration> {
        let hears_alone = || {
            let presence = Presence { listens: now.presence.listens.clone(), ..self.presence.clone() };
            Self { presence, ..self.clone() } == *now
        };
        (self != now).then(|| if hears_alone() { HEARS_AFTER } else { NEWS_AFTER })
    }
}

impl Announcer {
    /// `source` is what people call the one that the modules come from.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        leases: Arc<dyn LeaseStore>,
        election: ElectionName,
        node: String,
        incarnation: String,
        source: String,
        known_by: KnownBy,
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

    /// Begins to say it, if that has been news for a moment, or was said long ago. What is said first is said at once.
    pub fn begin(&mut self, what: Said, now: Instant) {
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
        let Said { holds, presence: Presence { runs, term, steered, stays_out, leads_enough, listens } } = what;
        let KnownBy { labels, priority, admin, peer } = self.known_by.clone();
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

    /// Waits for what is under way: until something was said, of which it returns what [`Self::said`] does, or until
    /// announcements of dead nodes were withdrawn. May be dropped, and then nothing is lost.
    pub async fn attend(&mut self) -> Option<String> {
        let heard = tokio::select! {
            heard = self.saying.done() => heard,
            () = self.tidying.done() => return None,
        };
        self.heard(heard)
    }

    /// When it is to be said anew; none while it is being said.
    pub fn due(&self) -> Option<Instant> {
        self.saying.is_idle().then(|| self.news.map_or(self.again, |news| news.min(self.again)))
    }

    /// Waits until it is said, or not. Returns another start of a host that calls itself the same, the first time that it is
    /// heard.
    pub async fn said(&mut self) -> Option<String> {
        let heard = self.saying.done().await;
        self.heard(heard)
    }

    fn heard(&mut self, heard: Result<Heard, StoreError>) -> Option<String> {
        match heard {
            Ok(Heard { named, rival }) => {
                self.named = Some(named);
                let known = self.rival.as_ref().map(|(known, _)| known);
                let news = rival.clone().filter(|rival| Some(rival) != known);
                // Each says something once a minute.
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

    /// Takes it back, unless nothing else may know of the term that this node has `seen`: then that is said instead, if it
    /// is news still.
    pub async fn withdraw(mut self, seen: Term) {
        // What is under way could otherwise come after it.
        if !self.saying.is_idle() {
            self.said().await;
        }
        let Self { store, leases, election, node, incarnation, source, known_by, said, named, .. } = self;
        // What it had named before this start, nobody may know but who reads that.
        let (Some(named), Some(said)) = (named, said) else { return };
        let known = named.max(said.presence.term).max(seen);
        // A node that has said something looks old after a while anyway.
        let is_taken_back = withdraw(&*leases, &*store, &election, &node, known).await;
        if matches!(is_taken_back, Ok(false)) && (known > named || said.presence.runs.is_some()) {
            // It ends, and can start nothing any more.
            let announcement = Announcement::now(&node, &incarnation, &source, Vec::new(), None);
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let KnownBy { labels, .. } = known_by;
            let _ =
                say(store, election, Announcement { term: known, version, labels, ..announcement }, Some(named)).await;
        }
    }
}

/// Says it, and returns what came of it. The term that it names is never a lower one than the node has `named` before. What
/// was said last is read first. Before this start's first word that may be the only thing that knows of a term, since this
/// node has not seen the election yet; later it shows whether another start of a host says the same id.
async fn say(
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    mut announcement: Announcement,
    named: Option<Term>,
) -> Result<Heard, StoreError> {
    let before = store.announced(&election, &announcement.node).await?;
    let before = before.and_then(|content| Announcement::decode(&content));
    let other = before.as_ref().map(|before| &before.incarnation).filter(|other| **other != announcement.incarnation);
    let rival = named.and(other).cloned();
    announcement.rival = rival.clone().or(announcement.rival);
    // Another host of this id may know a higher term, and be the only one.
    let named = named.unwrap_or(0).max(before.map_or(0, |before| before.term));
    announcement.term = announcement.term.max(named);
    store.announce(&election, &announcement.node, announcement.encode()).await?;
    Ok(Heard { named: announcement.term, rival })
}
