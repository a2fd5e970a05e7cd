//! The balance of a group's shards: hands shards of this node to nodes that lead fewer.
//!
//! One task per group and node reads the other nodes' announcements, and passes the decisions of [`Balancer`] to the
//! supervisors of the shards. No promise depends on this task.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::jitter::between;
use baton_election::balance::{Balancer, Decision, FORGOTTEN_AFTER, HEIR_HAS, Peer};
use baton_election::{ElectionName, Eligibility, Ineligibility, IneligibleCause, Time};
use baton_store::{AnnouncedShard, Announcement, ModuleStore as _, ObjectStore, SILENT};
use futures::future::select_all;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::view::NodeView;

/// Shortest and longest interval between two readings of the announcements.
const LISTS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(5));
/// Timeout for a reading of the announcements.
const LISTED_WITHIN: Duration = Duration::from_secs(10);
/// Longest interval between two decisions.
const DECIDES: Duration = Duration::from_secs(1);

/// The part of one shard in the balance of its group, as the shard's supervisor applies it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardBalance {
    yields: bool,
    given: Option<Given>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Given {
    id: String,
    heir: String,
    until: Time,
}

impl ShardBalance {
    /// Adds the shard's part to the conditions under which this node may lead the shard.
    pub(crate) fn apply(&self, eligibility: &mut Eligibility) {
        eligibility.yields = self.yields;
        eligibility.commands.extend(self.given.as_ref().map(|Given { id, heir, until }| Ineligibility {
            id: id.clone(),
            cause: IneligibleCause::Transferring { to: heir.clone() },
            reason: format!("the shards are spread evenly: {heir} takes this one"),
            until: Some(*until),
            after_release: Some(HEIR_HAS),
        }));
    }
}

/// One shard, as the task of the balance sees it.
pub(crate) struct BalancedShard {
    pub views: watch::Receiver<NodeView>,
    pub share: watch::Sender<ShardBalance>,
}

/// The balance of one group on one node.
pub(crate) struct Balance {
    pub group: ElectionName,
    pub node: String,
    pub store: Arc<dyn ObjectStore>,
    pub clock: Clock,
    pub max_leaderships: Option<usize>,
    /// The shards of the group, by index.
    pub shards: Vec<BalancedShard>,
}

/// The announcements of the other nodes.
#[derive(Default)]
struct Peers {
    announced: Vec<Announcement>,
    /// The mark of each node's last announcement, and the time at which this node first read it. A node that was there
    /// at the first reading has no time yet.
    seen: HashMap<String, (String, Option<Instant>)>,
}

impl Balance {
    /// Keeps the shards in balance, until the future is dropped.
    pub(crate) async fn run(mut self) {
        let mut balancer = Balancer::new(&self.node);
        let (mut peers, mut list_at, mut given) = (None::<Peers>, Instant::now(), 0_u64);
        loop {
            if Instant::now() >= list_at {
                let listed = timeout(LISTED_WITHIN, self.store.announcements(&self.group)).await;
                if let Ok(Ok(announced)) = listed {
                    peers
                        .get_or_insert_default()
                        .take(announced.iter().filter_map(|(_, said)| Announcement::decode(said)).collect());
                }
                list_at = Instant::now() + between(LISTS.0, LISTS.1);
            }
            let views: Vec<NodeView> =
                self.shards.iter_mut().map(|shard| shard.views.borrow_and_update().clone()).collect();
            if let Some(peers) = peers.as_ref().filter(|_| views.iter().all(|view| view.has_store)) {
                let decision = self.decide(&mut balancer, &views, peers);
                self.carry_out(decision, &balancer, &mut given);
            }
            let changes = self.shards.iter_mut().map(|shard| Box::pin(shard.views.changed()));
            tokio::select! {
                _ = select_all(changes) => {}
                () = sleep_until(list_at.min(Instant::now() + DECIDES)) => {}
            }
        }
    }

    fn decide(&self, balancer: &mut Balancer, views: &[NodeView], peers: &Peers) -> Decision {
        let leader = |view: &NodeView| if view.leads.is_some() { Some(self.node.clone()) } else { view.leader.clone() };
        let leaders: Vec<Option<String>> = views.iter().map(leader).collect();
        let own = views.iter().filter(|view| view.leads.is_some()).count();
        let may_lead =
            views.iter().all(|view| view.ineligible.is_none() && !view.at_leadership_limit && !view.is_leaving);
        let own_room = if may_lead { room(self.max_leaderships, own) } else { 0 };
        let module = views.iter().find_map(|view| view.module);
        let others = peers.announced.iter().filter(|said| said.node != self.node);
        let others: Vec<Peer> = others
            .map(|said| {
                let indexes = |is: fn(&AnnouncedShard) -> bool| {
                    said.shards.iter().filter(|(_, shard)| is(shard)).map(|(index, _)| *index).collect()
                };
                let is_able = said.ineligible.is_none()
                    && said.shard_count == u16::try_from(self.shards.len()).ok()
                    && !said.at_leadership_limit
                    && said.duplicate.is_none()
                    && module.is_some_and(|module| said.holds.contains(&module))
                    && peers.lives(said);
                let led = said.shards.values().filter(|shard| shard.leads).count();
                let room = if is_able { room(said.max_leaderships, led) } else { 0 };
                Peer {
                    node: said.node.clone(),
                    incarnation: said.incarnation.clone(),
                    mark: mark(said),
                    leads: indexes(|shard| shard.leads),
                    refuses: indexes(|shard| shard.refuses),
                    room,
                }
            })
            .collect();
        balancer.decide(self.clock.now(), &leaders, &others, own_room)
    }

    /// Passes the decision to the supervisors. `given` is the number of shards given so far.
    fn carry_out(&self, Decision { gives, yields }: Decision, balancer: &Balancer, given: &mut u64) {
        for (index, shard) in (0..=u8::MAX).zip(&self.shards) {
            let heir = gives.iter().find(|(gives, _)| *gives == index).map(|(_, heir)| heir);
            let next = heir.map(|heir| {
                *given += 1;
                let until = self.clock.now() + FORGOTTEN_AFTER;
                Given { id: format!("balance {given}"), heir: heir.clone(), until }
            });
            shard.share.send_if_modified(|share| {
                let last = share.given.clone().filter(|_| balancer.is_giving(index));
                let next = ShardBalance { yields, given: next.or(last) };
                std::mem::replace(share, next.clone()) != next
            });
        }
    }
}

fn room(max_leaderships: Option<usize>, leads: usize) -> usize {
    max_leaderships.map_or(usize::MAX, |most| most.saturating_sub(leads))
}

fn mark(said: &Announcement) -> String {
    format!("{} {}", said.incarnation, said.at)
}

impl Peers {
    fn take(&mut self, announced: Vec<Announcement>) {
        let is_first = self.seen.is_empty();
        self.seen.retain(|node, _| announced.iter().any(|said| said.node == *node));
        for said in &announced {
            let seen = self.seen.entry(said.node.clone());
            let at = (!is_first).then(Instant::now);
            let (known, since) = seen.or_insert_with(|| (mark(said), at));
            if *known != mark(said) {
                (*known, *since) = (mark(said), Some(Instant::now()));
            }
        }
        self.announced = announced;
    }

    /// True if the node has announced itself recently. Its clock may be wrong, so a new announcement counts even if its
    /// time is old.
    fn lives(&self, said: &Announcement) -> bool {
        let is_recent = |since: Instant| since.elapsed() < SILENT.unsigned_abs();
        let seen = self.seen.get(&said.node).and_then(|(_, since)| *since);
        seen.map_or_else(|| said.is_fresh(OffsetDateTime::now_utc()), is_recent)
    }
}
