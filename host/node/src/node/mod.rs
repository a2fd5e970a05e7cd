//! A node: the code that takes part in elections, in a host's process or in a test. The module `id` determines the
//! node's id.
//!
//! A host is one node. Tests run several nodes in one process, over one store, with a clock that the tests advance.

mod id;

use std::sync::Arc;
use std::time::Duration;

use baton_election::eligibility::HIGHEST_PRIORITY;
use baton_election::{ElectionName, OnDone, Schedule, Settings, Timing};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use crate::announcer::{Announcer, NodeProperties};
use crate::balance::{Balance, BalancedShard, ShardBalance};
use crate::historian::{Historian, HistorianPace};
use crate::links::{Links, LinksThread};
use crate::maintenance::Drained;
use crate::steering::{HandOvers, NodeIncarnation, Preemption, SteeringWatch};
use crate::supervisor::{LeadershipQuota, Shutdown, Supervisor};
use crate::telemetry::{ElectionTracker, Event, Log};
use baton_base::clock::Clock;
use baton_modules::{Follower, Judgement, Supply};
use baton_runtime::Launch;
use baton_store::{GroupGuard, LeaseStore, ObjectStore, Store};
pub use id::{ClaimedId, NodeChoice, NodeError, NodeId};

/// Three handles to the same store. Because the handles are separate, renewals do not wait for other requests, and
/// operators' requests do not delay a node's own requests.
#[derive(Clone)]
pub struct Stores {
    /// The handle for leases.
    pub leases: Arc<dyn LeaseStore>,
    /// The handle for modules, steering and history.
    pub modules: Arc<dyn ObjectStore>,
    /// The handle for operators' requests.
    pub status: Arc<dyn Store>,
}

/// Settings and dependencies of a node.
pub struct NodeConfig {
    /// The node and the incarnation of its host.
    pub itself: NodeIncarnation,
    /// The store.
    pub stores: Stores,
    /// The host's clock.
    pub clock: Clock,
    /// The host's log.
    pub log: Log,
    /// Properties that the node announces.
    pub properties: NodeProperties,
    /// The host's links, to which no election has been added yet.
    pub links: Links,
    /// The elections.
    pub elections: Vec<ElectionConfig>,
}

/// Settings and dependencies of a node in one election, or in a group of shards.
pub struct ElectionConfig {
    /// The election or the group.
    pub election: ElectionName,
    /// The shards of the group, by index. An election without shards has one entry: the election itself.
    pub shards: Vec<ShardConfig>,
    /// The lease's length, and the times derived from it.
    pub timing: Timing,
    /// Time to wait after an instance has returned ok, before the next term begins under the same lease.
    pub pause: Duration,
    /// The action to take after an instance has returned ok.
    pub on_done: OnDone,
    /// The length of a probation.
    pub probation: Duration,
    /// The schedule of the runs, if any: see [`schedule`](crate::schedule::schedule). Then `pause` must be zero, and
    /// `on_done` must be [`OnDone::Repeat`].
    pub schedule: Option<Schedule>,
    /// Time without progress after which an instance counts as stalled; `None` for no limit.
    pub stall_after: Option<Duration>,
    /// The node's priority. Nodes with a higher priority take a free lease earlier.
    pub priority: u8,
    /// True if the node, while it leads, should hand over to a node with a higher priority.
    pub preempt: bool,
    /// True if all nodes are expected to run the same module. The node then logs any difference.
    pub one_module: bool,
    /// The follower of the module's source, with the supervisors' channels to the follower.
    pub modules: ModuleFollower,
}

/// Dependencies of a node in one shard, or in an election without shards.
pub struct ShardConfig {
    /// Starts instances.
    pub launcher: Arc<dyn Launch>,
    /// Makes the node's state in this election available to observers, such as the metrics. Names the election.
    pub tracker: Arc<ElectionTracker>,
}

/// A follower of a coordinator's module source, and the supervisor's ends of the channels to the follower.
pub struct ModuleFollower {
    /// The follower.
    pub follower: Follower,
    /// The modules to run, which change over time.
    pub supply: watch::Receiver<Supply>,
    /// The channel for the supervisor's judgements on versions.
    pub judgements: mpsc::UnboundedSender<Judgement>,
    /// The display name of the source, for the node's announcement.
    pub source: String,
}

/// A node that takes part in its elections.
pub struct Node {
    shutdown: watch::Sender<Shutdown>,
    drained: watch::Sender<Drained>,
    supervisors: JoinSet<Result<(), getrandom::Error>>,
    followers: JoinSet<()>,
    /// Announcers end after their supervisors.
    announcers: JoinSet<()>,
    historians: JoinSet<()>,
    /// Tasks that never end by themselves: steering watches and preemptions.
    watches: JoinSet<()>,
    links: Option<LinksThread>,
    /// Historians end once this sender is dropped.
    serving: watch::Sender<()>,
    log: Log,
}

/// The error returned when a supervisor has ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeEnd {
    /// The supervisor panicked.
    #[error("a supervisor failed")]
    Failed(#[source] JoinError),
    /// The system cannot provide random numbers for lease ids.
    #[error("cannot get random numbers from the system")]
    NoRandomNumbers(#[source] getrandom::Error),
}

impl Node {
    /// Starts to take part in the elections. Call this in the runtime that runs the node's tasks.
    #[must_use]
    pub fn start(config: NodeConfig) -> Self {
        let NodeConfig { itself, stores, clock, log, properties, mut links, elections } = config;
        let quota = LeadershipQuota::at_most(properties.max_leaderships);
        let host = Host { itself, stores, clock, properties, quota, hand_overs: HandOvers::default() };
        let mut node = Self {
            shutdown: watch::Sender::new(Shutdown::No),
            drained: watch::Sender::new(None),
            supervisors: JoinSet::new(),
            followers: JoinSet::new(),
            announcers: JoinSet::new(),
            historians: JoinSet::new(),
            watches: JoinSet::new(),
            links: None,
            serving: watch::Sender::new(()),
            log,
        };
        for election in elections {
            node.contend(&host, &mut links, election);
        }
        node.links = start_links(links, &node.log);
        node
    }

    fn contend(&mut self, host: &Host, links: &mut Links, config: ElectionConfig) {
        let Host { itself, stores, clock, properties, .. } = host;
        // The shards of a group share their module, operators' commands and announcement. The tasks for these use the
        // links of the first shard.
        let Some(first) = config.shards.first().map(|shard| Arc::clone(&shard.tracker)) else { return };
        let log = self.log.for_election(&first);
        let steering_watch = Arc::new(SteeringWatch::new(
            config.election.clone(),
            (itself.clone(), config.timing),
            Arc::clone(&stores.modules),
            clock.clone(),
            log.clone(),
            first.notifier.clone(),
        ));
        self.watches.spawn(Arc::clone(&steering_watch).watch());
        let views = config.shards.iter().map(|shard| (shard.tracker.election.clone(), shard.tracker.views()));
        let announcer = Announcer {
            store: Arc::clone(&stores.modules),
            leases: Arc::clone(&stores.leases),
            election: config.election.clone(),
            itself: itself.clone(),
            source: config.modules.source.clone(),
            priority: config.priority,
            properties: properties.clone(),
            views: views.collect(),
            holds: config.modules.follower.holds(),
            log,
        };
        let (contending, over) = watch::channel(());
        let contending = Arc::new(contending);
        let shares = self.balance(host, &config);
        for (shard, share) in config.shards.iter().zip(shares) {
            // A node with the highest priority never hands over, because no other node's priority is higher.
            if config.preempt && config.priority < HIGHEST_PRIORITY {
                self.watches.spawn(host.preemption(&config, shard).watch());
            }
            let supervisor = self.supervisor(host, links, &config, shard, Arc::clone(&steering_watch), share);
            let (supervisor, contending) = (supervisor.run(self.shutdown.subscribe()), Arc::clone(&contending));
            self.supervisors.spawn(async move {
                let result = supervisor.await;
                drop(contending);
                result
            });
            let historian = Historian {
                election: shard.tracker.election.clone(),
                node: itself.node.clone(),
                incarnation: itself.incarnation.clone(),
                store: Arc::clone(&stores.modules),
                tracker: Arc::clone(&shard.tracker),
                log: self.log.for_election(&shard.tracker),
                pace: HistorianPace::default(),
            };
            self.historians.spawn(historian.run(self.serving.subscribe()));
        }
        self.followers.spawn(config.modules.follower.run());
        self.announcers.spawn(announcer.run(over));
    }

    /// Starts to balance the shards. Returns the channels to the supervisors of the shards.
    fn balance(&mut self, host: &Host, config: &ElectionConfig) -> Vec<watch::Receiver<ShardBalance>> {
        let (shares, received): (Vec<_>, Vec<_>) =
            config.shards.iter().map(|_| watch::channel(ShardBalance::default())).unzip();
        if shares.len() > 1 {
            let shards = config.shards.iter().zip(shares);
            let balance = Balance {
                group: config.election.clone(),
                node: host.itself.node.clone(),
                store: Arc::clone(&host.stores.modules),
                clock: host.clock.clone(),
                max_leaderships: host.properties.max_leaderships,
                shards: shards.map(|(shard, share)| BalancedShard { views: shard.tracker.views(), share }).collect(),
            };
            self.watches.spawn(balance.run());
        }
        received
    }

    fn supervisor(
        &self,
        host: &Host,
        links: &mut Links,
        config: &ElectionConfig,
        ShardConfig { launcher, tracker }: &ShardConfig,
        steering_watch: Arc<SteeringWatch>,
        share: watch::Receiver<ShardBalance>,
    ) -> Supervisor {
        let (election, log) = (tracker.election.clone(), self.log.for_election(tracker));
        Supervisor {
            settings: host.settings(config),
            store: host.leases(config),
            launcher: Arc::clone(launcher),
            supply: config.modules.supply.clone(),
            one_module: config.one_module,
            drained: self.drained.subscribe(),
            judgements: config.modules.judgements.clone(),
            steering_watch,
            priority: config.priority,
            share,
            quota: host.quota.clone(),
            stall_after: config.stall_after,
            clock: host.clock.clone(),
            link: links.handle(election.clone(), &tracker.notifier, tracker, &log),
            log,
            tracker: Arc::clone(tracker),
            election,
        }
    }

    /// Returns the channel that asks the node to shut down.
    #[must_use]
    pub fn shutdown(&self) -> watch::Sender<Shutdown> {
        self.shutdown.clone()
    }

    /// Returns the channel that makes the node ineligible in all elections, for maintenance of its machine.
    #[must_use]
    pub fn drained(&self) -> watch::Sender<Drained> {
        self.drained.clone()
    }

    /// Waits until the node has left all elections. Dropping the future ends the node at once: its instances are
    /// killed, and its leases expire.
    ///
    /// # Errors
    /// [`NodeEnd`] if a supervisor ended without being asked to.
    pub async fn finished(mut self) -> Result<(), NodeEnd> {
        loop {
            tokio::select! {
                ended = self.supervisors.join_next() => match ended {
                    None => break,
                    Some(ended) => ended.map_err(NodeEnd::Failed)?.map_err(NodeEnd::NoRandomNumbers)?,
                },
                // A follower ends after its supervisor. If a follower fails, the node continues.
                Some(ended) = self.followers.join_next() => report_failed_follower(ended, &self.log),
                Some(ended) = self.announcers.join_next() => report_failed_announcer(ended, &self.log),
            }
        }
        if let Some(links) = self.links {
            links.shutdown().await;
        }
        while let Some(ended) = self.followers.join_next().await {
            report_failed_follower(ended, &self.log);
        }
        // If an announcer fails, its announcement stays in the store, but the announcement's age will show that the
        // node has exited.
        while let Some(ended) = self.announcers.join_next().await {
            report_failed_announcer(ended, &self.log);
        }
        // Historians write last, so that they do not delay takeovers. A failed historian has nothing more to write.
        drop(self.serving);
        while self.historians.join_next().await.is_some() {}
        self.watches.shutdown().await;
        Ok(())
    }
}

/// The parts of a node that its elections share.
struct Host {
    itself: NodeIncarnation,
    stores: Stores,
    clock: Clock,
    properties: NodeProperties,
    quota: LeadershipQuota,
    hand_overs: HandOvers,
}

impl Host {
    fn settings(&self, config: &ElectionConfig) -> Settings {
        Settings {
            node: self.itself.node.clone(),
            incarnation: self.itself.incarnation.clone(),
            timing: config.timing,
            lease_range: self.stores.leases.lease_range(),
            pause: config.pause,
            on_done: config.on_done,
            probation: config.probation,
            schedule: config.schedule.clone(),
        }
    }

    /// Returns the store of the leases. The store refuses to begin a term if the election has another number of shards.
    fn leases(&self, config: &ElectionConfig) -> Arc<dyn LeaseStore> {
        let (leases, objects) = (Arc::clone(&self.stores.leases), Arc::clone(&self.stores.modules));
        let shards = u16::try_from(config.shards.len()).unwrap_or(u16::MAX);
        Arc::new(GroupGuard { leases, objects, shards })
    }

    fn preemption(&self, config: &ElectionConfig, shard: &ShardConfig) -> Preemption {
        Preemption {
            election: shard.tracker.election.clone(),
            itself: self.itself.clone(),
            priority: config.priority,
            timing: config.timing,
            store: Arc::clone(&self.stores.status),
            tracker: Arc::clone(&shard.tracker),
            clock: self.clock.clone(),
            hand_overs: self.hand_overs.clone(),
        }
    }
}

fn start_links(links: Links, log: &Log) -> Option<LinksThread> {
    links.start(log.clone()).unwrap_or_else(|error| {
        let error = format!("cannot start links, so this node exchanges no hints and polls the store: {error}");
        log.emit(None, Event::Error { error });
        None
    })
}

fn report_failed_announcer(ended: Result<(), JoinError>, log: &Log) {
    if let Err(error) = ended {
        let error = format!(
            "this node no longer announces itself ({error}): it looks dead to commands and to other nodes until its \
             host is restarted"
        );
        log.emit(None, Event::Error { error });
    }
}

fn report_failed_follower(ended: Result<(), JoinError>, log: &Log) {
    if let Err(error) = ended {
        let error = format!(
            "the task that follows a module source failed ({error}): this host runs no new version until its next start"
        );
        log.emit(None, Event::Error { error });
    }
}
