//! A node's announcements. The announcements report the node's modules and state to operators, and tell other nodes the
//! highest term that the node has seen. Leadership does not depend on announcements, so a failed announcement is
//! retried, but not logged.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::{rfc3339, wall};
use baton_base::jitter::doubled;
use baton_election::{ElectionName, Recalled, StoreError};
use baton_store::{
    AnnouncedPeer, Announcement, Digest, Labels, LeaseStore, ModuleStore as _, ObjectStore, withdraw, withdraw_gone,
};
use futures::future::select_all;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::steering::NodeIncarnation;
use crate::telemetry::{Event, Log};
use crate::view::NodeView;

/// Delay between a change of this node's state and the announcement of the change. Without this delay, the announcement
/// of a new term could slow down the start of the term's instance.
const NEWS_AFTER: Duration = Duration::from_millis(10);
/// Delay between a change of only this node's link and the announcement of the change. A link may end because the
/// leader has released the lease. The delay then lets the next leader's requests reach the store first.
const LINK_AFTER: Duration = Duration::from_millis(250);
/// Interval between announcements if nothing changes. Because live nodes repeat their announcements, an old
/// announcement shows that its node has crashed.
const EVERY: Duration = Duration::from_secs(60);
/// Wait after a failed announcement: the initial and the maximum wait. The wait doubles after each further failure.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const TRY: Duration = Duration::from_secs(10);
/// Timeout at shutdown for withdrawing the announcement. Includes the wait for an announcement that is in progress.
const WITHDRAWS_WITHIN: Duration = Duration::from_secs(1);
/// Interval at which a leader withdraws the announcements of dead nodes, and the timeout for each such cleanup.
const TIDIES_EVERY: Duration = Duration::from_secs(600);
const TIDIES_WITHIN: Duration = Duration::from_secs(120);

/// Properties of a node that other nodes and operators see. The properties do not change while the node runs.
#[derive(Clone, Debug, Default)]
pub struct NodeProperties {
    /// Human-readable labels.
    pub labels: Labels,
    /// Address of the admin endpoint; empty if the node has none.
    pub admin: String,
    /// Address and certificate fingerprint for links from other machines; `None` if the node has no such links.
    pub peer: Option<AnnouncedPeer>,
    /// Maximum number of elections and shards that the node leads at the same time; `None` for no limit. The node
    /// exceeds this number only if no other node can lead an election.
    pub max_leaderships: Option<usize>,
}

pub(crate) struct Announcer {
    pub store: Arc<dyn ObjectStore>,
    pub leases: Arc<dyn LeaseStore>,
    pub election: ElectionName,
    pub itself: NodeIncarnation,
    pub source: String,
    pub priority: u8,
    pub properties: NodeProperties,
    /// This node's views of the election or, for a group, of each shard.
    pub views: Vec<(ElectionName, watch::Receiver<NodeView>)>,
    /// The modules that the node could start immediately.
    pub holds: watch::Receiver<Vec<Digest>>,
    pub log: Log,
}

struct Announced {
    /// The last announcement. The time and the incarnation of a duplicate host are missing, because [`Announcer::say`]
    /// adds them to a copy just before it writes the announcement.
    said: Option<Announcement>,
    /// The highest term and the progress of each election that this node has announced, in this or an earlier
    /// incarnation. `None` until this host has read the stored announcement.
    named: Option<Named>,
    /// Time of the next announcement, if no change triggers an earlier one. After a failure, this is the time of the
    /// retry.
    again: Instant,
    failures: u32,
    /// Incarnation of another host with the same id, and the time until which that host is assumed to be running.
    duplicate: Option<(String, Instant)>,
}

/// The highest term and the progress of each election: of the election itself or, for a group, of each shard.
type Named = BTreeMap<ElectionName, Recalled>;

fn merge(named: &mut Named, others: impl IntoIterator<Item = (ElectionName, Recalled)>) {
    for (election, recalled) in others {
        named.entry(election).or_default().merge(&recalled);
    }
}

struct AnnouncementResult {
    named: Named,
    duplicate: Option<String>,
}

impl Announcer {
    /// Announces the node until the sender of `over` is dropped, and then withdraws the announcement. The first
    /// announcement starts immediately.
    pub(crate) async fn run(mut self, mut over: watch::Receiver<()>) {
        let mut announced = Announced { said: None, named: None, again: Instant::now(), failures: 0, duplicate: None };
        let mut tidies_at = Instant::now() + TIDIES_EVERY;
        // Holds at most one task: the cleanup that withdraws the announcements of dead nodes.
        let mut tidying = JoinSet::new();
        loop {
            tokio::select! {
                // `biased` checks `over` first, because the node must not announce itself after its supervisor has
                // ended.
                biased;
                _ = over.changed() => break,
                // If a cleanup fails, a later one withdraws the remaining announcements.
                Some(_) = tidying.join_next() => {}
                announcement = self.due(&announced) => {
                    if announcement.runs.is_some() && Instant::now() >= tidies_at && tidying.is_empty() {
                        tidies_at = Instant::now() + TIDIES_EVERY;
                        tidying.spawn(self.tidy());
                    }
                    announced.again = Instant::now() + EVERY;
                    announced.said = Some(announcement.clone());
                    let mut saying = pin!(self.say(announcement, &announced));
                    let said = tokio::select! {
                        said = &mut saying => said,
                        _ = over.changed() => {
                            let ends_by = Instant::now() + WITHDRAWS_WITHIN;
                            // Wait for an announcement in progress: otherwise, it could overwrite the withdrawal.
                            let Ok(said) = timeout_at(ends_by, saying).await else { return };
                            announced.hear(said);
                            let _ = timeout_at(ends_by, self.withdraw(announced)).await;
                            return;
                        }
                    };
                    if let Some(duplicate) = announced.hear(said) {
                        self.log.emit(None, Event::Error { error: self.another_has_this_id(&duplicate) });
                    }
                }
            }
        }
        let _ = timeout(WITHDRAWS_WITHIN, self.withdraw(announced)).await;
    }

    /// Waits until there is a change to announce, or until the last announcement is too old.
    async fn due(&mut self, announced: &Announced) -> Announcement {
        let mut news: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let views = self.latest_views();
            let holds = self.holds.borrow_and_update().clone();
            let next = self.announcement(&views, holds);
            let wait = announced.said.as_ref().and_then(|said| {
                // At shutdown, this node soon withdraws its announcement. Another update would only compete with the
                // successor's requests to the store.
                let is_leaving = views.iter().all(|(_, view)| view.is_leaving);
                let waits_for_end =
                    is_leaving && said.all_recalled(&self.election) == next.all_recalled(&self.election);
                outdated_after(said, &next).filter(|_| !waits_for_end)
            });
            news = wait.map(|wait| news.map_or(now + wait, |news| news.min(now + wait)));
            let due = news.map_or(announced.again, |news| news.min(announced.again));
            if now >= due {
                return next;
            }
            let changes = self.views.iter_mut().map(|(_, views)| Box::pin(views.changed()));
            tokio::select! {
                (Ok(()), ..) = select_all(changes) => {}
                Ok(()) = self.holds.changed() => {}
                () = sleep_until(due) => {}
            }
        }
    }

    /// Returns the announcement of the current state. The time and the incarnation of a duplicate host are still
    /// missing: [`Announcer::say`] adds them.
    fn announcement(&self, views: &[(ElectionName, NodeView)], holds: Vec<Digest>) -> Announcement {
        let NodeIncarnation { node, incarnation } = &self.itself;
        let runs = views.iter().find_map(|(_, view)| view.instance).map(|instance| instance.module);
        let NodeProperties { labels, admin, peer, max_leaderships } = self.properties.clone();
        let mut announcement = Announcement {
            at: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            steered: common(views, |view| view.steered.clone()),
            ineligible: common(views, |view| view.ineligible).map(str::to_owned),
            at_leadership_limit: views.iter().any(|(_, view)| view.at_leadership_limit),
            max_leaderships,
            link: common(views, |view| view.link.clone()).filter(|_| views.len() == 1),
            labels,
            priority: Some(self.priority),
            admin,
            peer,
            ..Announcement::now(node, incarnation, &self.source, holds, runs)
        };
        announcement.shard_count = u16::try_from(views.len()).ok().filter(|shards| *shards > 1);
        for (election, view) in views {
            announcement.set_recalled(election, &view.recalled());
            if let Some(shard) = election.shard() {
                let shard = announcement.shards.entry(shard).or_default();
                (shard.leads, shard.refuses) = (view.leads.is_some(), view.ineligible.is_some());
            }
        }
        announcement
    }

    fn latest_views(&mut self) -> Vec<(ElectionName, NodeView)> {
        self.views.iter_mut().map(|(election, views)| (election.clone(), views.borrow_and_update().clone())).collect()
    }

    fn say(
        &self,
        announcement: Announcement,
        announced: &Announced,
    ) -> impl Future<Output = Result<AnnouncementResult, StoreError>> + use<> {
        let duplicate = announced.duplicate.as_ref().filter(|(_, until)| Instant::now() < *until);
        let announcement = Announcement {
            at: rfc3339(wall()),
            duplicate: duplicate.map(|(duplicate, _)| duplicate.clone()),
            ..announcement
        };
        let said = say(Arc::clone(&self.store), self.election.clone(), announcement, announced.named.clone());
        async {
            timeout(TRY, said).await.unwrap_or_else(|_| Err(StoreError::Unknown(format!("no response within {TRY:?}"))))
        }
    }

    fn tidy(&self) -> impl Future<Output = ()> + Send + use<> {
        let (leases, store, election) = (Arc::clone(&self.leases), Arc::clone(&self.store), self.election.clone());
        async move {
            let _ = timeout(TIDIES_WITHIN, withdraw_gone(&*leases, &*store, &election)).await;
        }
    }

    /// Withdraws the announcement. If this node might be the only one that knows the last term, announces that term
    /// instead.
    async fn withdraw(self, announced: Announced) {
        let NodeIncarnation { node, incarnation } = &self.itself;
        // If this incarnation has announced nothing, leave an earlier incarnation's announcement in the store. That
        // announcement may be the only record of a term.
        let (Some(named), Some(said)) = (announced.named, announced.said) else { return };
        let mut known = named.clone();
        merge(&mut known, said.all_recalled(&self.election));
        merge(&mut known, self.views.iter().map(|(election, views)| (election.clone(), views.borrow().recalled())));
        // If this fails, the announcement stays in the store, but its age will show that the node has exited.
        let is_taken_back = withdraw(&*self.leases, &*self.store, &self.election, node, &known).await;
        if matches!(is_taken_back, Ok(false)) && (known != named || said.runs.is_some()) {
            // The node is shutting down: it no longer holds modules or runs an instance.
            let mut announcement = Announcement {
                version: said.version,
                labels: said.labels,
                ..Announcement::now(node, incarnation, &self.source, Vec::new(), None)
            };
            known.iter().for_each(|(election, recalled)| announcement.set_recalled(election, recalled));
            let _ = say(self.store, self.election, announcement, Some(named)).await;
        }
    }

    /// Returns the error message for another host with this node's id. Other nodes cannot distinguish the two hosts,
    /// and each of the two overwrites the other's announcement.
    fn another_has_this_id(&self, other: &str) -> String {
        let NodeIncarnation { node, incarnation } = &self.itself;
        format!(
            "another host has the id {node} ({other}; this host is {incarnation}): give one of the hosts another id \
             with `--node`"
        )
    }
}

impl Announced {
    /// Records the result of an announcement. If the result shows for the first time that another host has this
    /// node's id, returns that host's incarnation.
    fn hear(&mut self, heard: Result<AnnouncementResult, StoreError>) -> Option<String> {
        match heard {
            Ok(AnnouncementResult { named, duplicate }) => {
                self.named = Some(named);
                let known = self.duplicate.as_ref().map(|(known, _)| known);
                let news = duplicate.clone().filter(|duplicate| Some(duplicate) != known);
                // Each host announces itself at least once a minute. If two minutes pass without an announcement,
                // assume that the other host has exited.
                self.duplicate = duplicate
                    .map(|duplicate| (duplicate, Instant::now() + 2 * EVERY))
                    .or_else(|| self.duplicate.take());
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
}

/// Returns the delay before `next` is announced. Returns `None` if `next` equals `said`, the last announcement.
fn outdated_after(said: &Announcement, next: &Announcement) -> Option<Duration> {
    let differs_only_in_link = || Announcement { link: next.link.clone(), ..said.clone() } == *next;
    (said != next).then(|| if differs_only_in_link() { LINK_AFTER } else { NEWS_AFTER })
}

/// Announces the node. Before the write, merges `named` and the stored announcement's term and progress into the new
/// announcement, because the stored announcement may be the only record of a term. Another host with this id may have
/// written the stored announcement.
async fn say(
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    mut announcement: Announcement,
    named: Option<Named>,
) -> Result<AnnouncementResult, StoreError> {
    let before = store.announced(&election, &announcement.node).await?;
    let before = before.and_then(|content| Announcement::decode(&content));
    let other = before.as_ref().map(|before| &before.incarnation).filter(|other| **other != announcement.incarnation);
    let duplicate = named.as_ref().and(other).cloned();
    announcement.duplicate = duplicate.clone().or(announcement.duplicate);
    let mut named = named.unwrap_or_default();
    before.iter().for_each(|before| merge(&mut named, before.all_recalled(&election)));
    merge(&mut named, announcement.all_recalled(&election));
    named.iter().for_each(|(election, recalled)| announcement.set_recalled(election, recalled));
    store.announce(&election, &announcement.node, announcement.encode()).await?;
    Ok(AnnouncementResult { named, duplicate })
}

/// Returns the value that all views have in common, if any.
fn common<T: PartialEq>(views: &[(ElectionName, NodeView)], value: impl Fn(&NodeView) -> Option<T>) -> Option<T> {
    let mut values = views.iter().map(|(_, view)| value(view));
    let first = values.next()??;
    values.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::MemoryStore;
    use baton_store::memory::Fault;
    use tokio::task::JoinHandle;

    use baton_election::Term;

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::{Format, LogWriter, Style};
    use crate::view::InstanceView;

    const GUARD: Duration = Duration::from_secs(60);

    struct Bench {
        store: MemoryStore,
        election: ElectionName,
        views: watch::Sender<NodeView>,
        holds: watch::Sender<Vec<Digest>>,
        contending: watch::Sender<()>,
        running: JoinHandle<()>,
        _writer: LogWriter,
    }

    impl Bench {
        fn start(store: MemoryStore) -> Self {
            let style = Style { format: Format::Json, terminal: false, colours: false };
            let nowhere = Box::new(std::fs::File::create("/dev/null").unwrap());
            let (log, writer) = Log::start(style, &NodeId::new("a").unwrap(), nowhere).unwrap();
            let election = ElectionName::new("job").unwrap();
            let ((views, seen), (holds, held)) = (watch::channel(NodeView::default()), watch::channel(Vec::new()));
            let (contending, over) = watch::channel(());
            let announcer = Announcer {
                store: Arc::new(store.clone()),
                leases: Arc::new(store.clone()),
                election: election.clone(),
                itself: NodeIncarnation { node: "a".to_owned(), incarnation: "1".to_owned() },
                source: "store://job".to_owned(),
                priority: 50,
                properties: NodeProperties::default(),
                views: vec![(election.clone(), seen)],
                holds: held,
                log,
            };
            let running = tokio::spawn(announcer.run(over));
            Self { store, election, views, holds, contending, running, _writer: writer }
        }

        async fn announced(&self, test: impl Fn(&Announcement) -> bool) {
            let waited = timeout(GUARD, async {
                loop {
                    let said = self.store.announced(&self.election, "a").await;
                    let said = said.ok().flatten().and_then(|said| Announcement::decode(&said));
                    if said.is_some_and(|said| test(&said)) {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
            assert!(waited.await.is_ok(), "the announcement does not come");
        }

        fn becomes(&self, term: Term, runs: Option<Digest>) {
            let instance = runs.map(|module| InstanceView { term, module, is_killed: false });
            self.views.send_modify(|view| *view = NodeView { term, instance, ..NodeView::default() });
        }

        async fn end(self) -> MemoryStore {
            drop(self.contending);
            timeout(GUARD, self.running).await.unwrap().unwrap();
            self.store
        }
    }

    fn store() -> MemoryStore {
        MemoryStore::new(Arc::new(|| Duration::ZERO))
    }

    #[tokio::test]
    async fn node_announces_its_state_and_withdraws_at_its_end() {
        let bench = Bench::start(store());
        bench.announced(|said| said.holds.is_empty() && said.runs.is_none() && said.source == "store://job").await;
        let module = Digest::of(b"");
        bench.holds.send_replace(vec![module]);
        bench
            .announced(|said| said.holds == [module] && (said.priority, said.at_leadership_limit) == (Some(50), false))
            .await;
        bench.views.send_modify(|view| {
            view.instance = Some(InstanceView { term: 0, module, is_killed: false });
            view.at_leadership_limit = true;
        });
        bench.announced(|said| said.runs == Some(module) && said.at_leadership_limit).await;
        let election = bench.election.clone();
        assert!(bench.end().await.announcements(&election).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn announcement_stays_when_nothing_else_names_its_term() {
        let bench = Bench::start(store());
        // The store contains no record of the lease, as if an operator had deleted it.
        bench.becomes(7, None);
        bench.announced(|said| said.term == 7).await;
        // The node is shut down before it has announced term 8. It must announce this term before it exits.
        bench.becomes(8, None);
        let election = bench.election.clone();
        let said = bench.end().await.announced(&election, "a").await.unwrap();
        assert_eq!(Announcement::decode(&said.unwrap()).unwrap().term, 8);
    }

    #[tokio::test]
    async fn node_never_announces_a_lower_term_than_before() {
        let (store, election) = (store(), ElectionName::new("job").unwrap());
        let before = Announcement { term: 7, ..Announcement::now("a", "0", "", vec![], None) };
        store.announce(&election, "a", before.encode()).await.unwrap();
        // The node's first read of its previous announcement fails. The node must repeat the read before it writes.
        store.fail_next(Fault::LoseRequest);
        let bench = Bench::start(store);
        // The new incarnation has not seen a term of this election, so it announces the term of the previous
        // incarnation.
        bench.announced(|said| said.incarnation == "1").await;
        bench.announced(|said| said.term == 7).await;
        for (seen, named) in [(3, 7), (8, 8), (2, 8)] {
            // The announced term may stay the same, so the test recognizes the new announcement by its digest.
            let runs = Digest::of(&[seen as u8]);
            bench.becomes(seen, Some(runs));
            bench.announced(|said| said.runs == Some(runs)).await;
            bench.announced(|said| said.term == named).await;
        }
        bench.end().await;
    }

    #[tokio::test]
    async fn node_that_leaves_announces_only_a_new_term() {
        let bench = Bench::start(store());
        bench.becomes(7, Some(Digest::of(b"")));
        bench.announced(|said| said.runs.is_some()).await;
        bench.views.send_modify(|view| (view.instance, view.is_leaving) = (None, true));
        bench.views.send_modify(|view| view.ineligible = Some("suspended"));
        bench.views.send_modify(|view| view.term = 8);
        bench.announced(|said| said.term == 8).await;
        bench.end().await;
    }

    #[tokio::test]
    async fn another_host_with_the_same_id_is_announced() {
        let bench = Bench::start(store());
        bench.announced(|said| said.incarnation == "1").await;
        let twin = Announcement::now("a", "2", "", vec![], None);
        bench.store.announce(&bench.election, "a", twin.encode()).await.unwrap();
        bench.becomes(1, None);
        bench.announced(|said| said.incarnation == "1" && said.duplicate.as_deref() == Some("2")).await;
        bench.end().await;
    }
}
