//! Tests of several nodes in this process. The nodes share a store in memory. Their instances are not real guests: they
//! do what the test tells them to do. Time advances only when every task waits, so a scenario that spans minutes runs
//! in milliseconds on any machine.
//!
//! In addition to its own subject, each test checks that no two instances could act at the same time.

mod history;
mod outage;
mod preference;
mod schedules;
mod shards;
mod steering;
mod swaps;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use baton_base::clock::Clock;
use baton_election::{
    ElectionName, End, Missed, OnDone, Op, Reply, ScheduledRun, StopReason, StoreError, Term, Time, Timing,
};
use baton_modules::{
    EditError, Follower, FollowerConfig, Offer, Pace, Preparation, Prepare, PrepareError, Publication, VersionList,
    edit_versions,
};
use baton_node::announcer::NodeProperties;
use baton_node::links::Links;
use baton_node::node::{ElectionConfig, ModuleFollower, Node, NodeConfig, NodeId, ShardConfig, Stores};
use baton_node::schedule::schedule;
use baton_node::steering::NodeIncarnation;
use baton_node::steering::operator::{HintTarget, Operator, SteerResult, SteeringCommand};
use baton_node::supervisor::Shutdown;
use baton_node::telemetry::{ElectionTracker, FollowerLog, Format, Log, LogWriter, Ring, Style};
use baton_runtime::{EffectCounts, Engine, Gone, InstanceEvent, InstanceHandle, Launch, Module, Output, Usage};
use baton_store::{
    Announcement, Digest, Intercept, Interceptor, LeaseStore as _, MemoryStore, ModuleStore as _, ObjectStore as _,
    Reading, StoreAnswer, StoreCall, memory,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(15);

/// Virtual time after which a wait fails.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);

const POLL: Duration = Duration::from_millis(20);

struct Fleet {
    store: MemoryStore,
    clock: Clock,
    elections: Vec<ElectionName>,
    instances: Instances,
}

#[derive(Clone, Copy)]
struct NodeSettings {
    priority: u8,
    preempt: bool,
    max_leaderships: Option<usize>,
    pause: Duration,
    /// The cron pattern of the scheduled runs, in UTC, if any.
    schedule: Option<&'static str>,
    /// The number of shards of each election.
    shards: u8,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            priority: 100,
            preempt: false,
            max_leaderships: None,
            pause: Duration::from_secs(1),
            schedule: None,
            shards: 1,
        }
    }
}

impl Fleet {
    /// Creates a store that holds one version of a module for each election.
    async fn new(elections: &[&str]) -> Self {
        let began = Instant::now();
        let source: Arc<dyn Fn() -> Duration + Send + Sync> = Arc::new(move || began.elapsed());
        let store = MemoryStore::new(Arc::clone(&source));
        let elections = elections.iter().map(|name| ElectionName::new(name).unwrap()).collect();
        let fleet = Self { store, clock: Clock::of_source(source), elections, instances: Instances::default() };
        for election in &fleet.elections {
            fleet.push(election, 1).await;
        }
        fleet
    }

    /// Publishes a module for an election. Different numbers give different modules.
    async fn push(&self, election: &ElectionName, number: u32) -> Digest {
        let bytes = component(number);
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        self.store.put_module(&digest, bytes).await.unwrap();
        // If the election already has a list of versions, the store refuses this write, and the list stays as it is.
        let _exists = self.store.write_control(election, None, VersionList::default().encode()).await;
        let publication = Publication { digest, size, by: "me".into(), at: "now".into(), signature: None };
        let edit = |list: &mut VersionList| Ok::<_, EditError>(list.push(publication.clone())?);
        edit_versions(&self.store, election, edit).await.unwrap();
        digest
    }

    fn start(&self, name: &str) -> TestNode {
        self.start_with(name, NodeSettings::default())
    }

    fn start_with(&self, name: &str, settings: NodeSettings) -> TestNode {
        let incarnation = format!("{name}/{}", self.clock.now().0.as_nanos());
        let itself = NodeIncarnation { node: name.to_owned(), incarnation };
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere = File::create("/dev/null").unwrap();
        let (log, writer) = Log::start(style, &NodeId::new(name).unwrap(), Box::new(nowhere)).unwrap();
        let (events, incarnation) = (log.events(), itself.incarnation.clone());
        let network = Network::default();
        let store = Arc::new(Intercept { store: Arc::new(self.store.clone()), interceptor: network.clone() });
        let elections = self.elections.iter().map(|one| self.election(one, &itself, settings, &log, &store)).collect();
        let node = Node::start(NodeConfig {
            properties: NodeProperties { max_leaderships: settings.max_leaderships, ..NodeProperties::default() },
            links: Links::new((name, &itself.incarnation), None, None, 0),
            itself,
            stores: Stores {
                leases: Arc::clone(&store) as _,
                modules: Arc::clone(&store) as _,
                status: Arc::clone(&store) as _,
            },
            clock: self.clock.clone(),
            log,
            elections,
        });
        let shutdown = node.shutdown();
        let task = tokio::spawn(async { node.finished().await.unwrap() });
        TestNode { name: name.to_owned(), incarnation, network, events, shutdown, task, _writer: writer }
    }

    fn election(
        &self,
        election: &ElectionName,
        itself: &NodeIncarnation,
        settings: NodeSettings,
        log: &Log,
        store: &Arc<Intercept<MemoryStore, Network>>,
    ) -> ElectionConfig {
        let names: Vec<ElectionName> = match settings.shards {
            1 => vec![election.clone()],
            shards => (0..shards).map(|index| election.with_shard(index)).collect(),
        };
        let trackers: Vec<_> = names.iter().map(|name| Arc::new(ElectionTracker::new(name.clone(), LEASE))).collect();
        let tracker = Arc::clone(&trackers[0]);
        let (follower, supply, judgements) = Follower::new(FollowerConfig {
            election: election.clone(),
            node: itself.node.clone(),
            name: format!("store://{election}"),
            source: None,
            store: Arc::clone(store) as _,
            preparer: Arc::new(InProcess),
            notifier: tracker.notifier.clone(),
            reports: Arc::new(FollowerLog {
                log: log.for_election(&tracker),
                trackers: trackers.clone(),
                source: "store".to_owned(),
            }),
            pace: Pace::default(),
        });
        ElectionConfig {
            election: election.clone(),
            timing: timing(),
            pause: settings.pause,
            on_done: OnDone::Repeat,
            probation: Duration::from_secs(30),
            schedule: settings.schedule.map(|pattern| schedule(pattern, "UTC", Missed::RunOnce).unwrap()),
            stall_after: None,
            priority: settings.priority,
            preempt: settings.preempt,
            one_module: false,
            modules: ModuleFollower { follower, supply, judgements, source: format!("store://{election}") },
            shards: trackers
                .into_iter()
                .map(|tracker| ShardConfig {
                    launcher: Arc::new(Scripted {
                        node: itself.node.clone(),
                        election: tracker.election.clone(),
                        clock: self.clock.clone(),
                        instances: self.instances.clone(),
                    }),
                    tracker,
                })
                .collect(),
        }
    }

    /// Waits until an instance of the first election runs on a node, and returns its term.
    async fn leads(&self, node: &TestNode) -> Term {
        self.leads_in(&self.elections[0], node).await
    }

    async fn leads_in(&self, election: &ElectionName, node: &TestNode) -> Term {
        let running = || {
            let instances = self.instances.all.lock().unwrap();
            let mut running = instances.iter().filter(|one| !one.is_gone && one.election == *election);
            running.find(|one| one.node == node.name).map(|one| one.term)
        };
        until(&format!("{} to lead {election}", node.name), running).await
    }

    async fn is_ready(&self, node: &TestNode) {
        self.announced(node, |announcement| {
            announcement.ineligible.is_none() && !announcement.holds.is_empty() && announcement.steered.is_some()
        })
        .await;
    }

    async fn announced(&self, node: &TestNode, test: impl Fn(&Announcement) -> bool) {
        let waits = async {
            loop {
                let announcements = self.store.announcements(&self.elections[0]).await.unwrap();
                let decoded = announcements.iter().filter_map(|(_, announcement)| Announcement::decode(announcement));
                if decoded
                    .into_iter()
                    .any(|announcement| announcement.incarnation == node.incarnation && test(&announcement))
                {
                    return;
                }
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("the announcement of {} does not come", node.name));
    }

    async fn steer(&self, command: SteeringCommand) -> SteerResult {
        self.steer_because(command, None).await
    }

    async fn steer_because(&self, command: SteeringCommand, reason: Option<&str>) -> SteerResult {
        self.steer_in(&self.elections[0], command, reason).await
    }

    async fn steer_in(&self, election: &ElectionName, command: SteeringCommand, reason: Option<&str>) -> SteerResult {
        let operator = Operator {
            store: &self.store,
            election,
            by: "ann@desk".to_owned(),
            reason: reason.map(str::to_owned),
            patience: Duration::from_secs(60),
            called: HintTarget::Nobody,
        };
        operator.steer(&command).await
    }
}

/// Returns true if the event reports that a node lets other nodes take a free lease first.
fn is_deferral(event: &Value) -> bool {
    event["reason"].as_str().is_some_and(|reason| reason.contains("lets other nodes take it first"))
}

fn timing() -> Timing {
    Timing::new(LEASE, memory::LEASE_RANGE, Duration::from_secs(5), 64 << 20).unwrap()
}

async fn until<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
    let waits = async {
        loop {
            if let Some(found) = find() {
                return found;
            }
            sleep(POLL).await;
        }
    };
    timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

struct TestNode {
    name: String,
    incarnation: String,
    network: Network,
    events: Arc<Ring>,
    shutdown: watch::Sender<Shutdown>,
    task: JoinHandle<()>,
    _writer: LogWriter,
}

impl TestNode {
    /// Returns the logged events with this name, oldest first.
    fn logged(&self, name: &str) -> Vec<Value> {
        let lines = self.events.since(0).said;
        let events = lines.iter().map(|line| serde_json::from_str::<Value>(&line.json(true)).unwrap());
        events.filter(|event| event["event"] == name).collect()
    }

    async fn event(&self, name: &str, test: impl Fn(&Value) -> bool) -> Value {
        let what = format!("the event {name} of {}", self.name);
        until(&what, || self.logged(name).into_iter().find(&test)).await
    }

    async fn end(self) {
        self.shutdown.send_replace(Shutdown::Requested);
        timeout(PATIENCE, self.task).await.expect("the node ends").unwrap();
    }

    /// Ends the node without a shutdown, as if its machine had crashed.
    fn crash(self) {
        self.task.abort();
    }
}

#[derive(Clone, Default)]
struct Network {
    is_cut: Arc<AtomicBool>,
}

impl Network {
    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

#[async_trait]
impl Interceptor<MemoryStore> for Network {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        if self.is_cut.load(Ordering::Relaxed) {
            return Err(StoreError::Unknown("the store cannot be reached".to_owned()));
        }
        call.send(store).await
    }
}

// ---- scripted instances ----

/// The instances of all nodes. Clones of this value share one list.
#[derive(Clone, Default)]
struct Instances {
    all: Arc<Mutex<Vec<ScriptedState>>>,
    ignore_stops: Arc<AtomicBool>,
    /// Modules whose instances trap as soon as they run.
    crashing: Arc<Mutex<HashSet<Digest>>>,
}

impl Instances {
    /// The term of the latest instance in any election, or 0 if there is none.
    fn latest(&self) -> Term {
        self.all.lock().unwrap().last().map_or(0, |last| last.term)
    }

    fn running_module(&self) -> Option<Digest> {
        self.all.lock().unwrap().iter().rfind(|one| !one.is_gone).map(|one| one.module)
    }

    fn starts_of(&self, module: Digest) -> usize {
        self.all.lock().unwrap().iter().filter(|one| one.module == module).count()
    }

    fn leader(&self) -> String {
        self.all.lock().unwrap().last().expect("a term has begun").node.clone()
    }

    fn ignore_stops(&self) {
        self.ignore_stops.store(true, Ordering::Relaxed);
    }

    /// Marks the instance of this term as gone, because its node has crashed.
    fn forget(&self, term: Term) {
        let mut all = self.all.lock().unwrap();
        all.iter_mut().filter(|one| one.term == term).for_each(|one| one.is_gone = true);
    }

    /// Marks the instances of a node as gone, because the node has crashed.
    fn forget_node(&self, node: &str) {
        let mut all = self.all.lock().unwrap();
        all.iter_mut().filter(|one| one.node == node).for_each(|one| one.is_gone = true);
    }

    fn end(&self, term: Term, end: End) {
        let mut all = self.all.lock().unwrap();
        all.iter_mut().find(|one| one.term == term).expect("an instance").end(end);
    }
}

struct ScriptedState {
    node: String,
    election: ElectionName,
    term: Term,
    run: Option<ScheduledRun>,
    module: Digest,
    deadline: Time,
    is_gone: bool,
    tell: mpsc::UnboundedSender<InstanceEvent>,
}

impl ScriptedState {
    fn end(&mut self, end: End) {
        if !std::mem::replace(&mut self.is_gone, true) {
            let _receiver_exists = self.tell.send(InstanceEvent::Gone(Gone { end, backtrace: None }));
        }
    }
}

struct Scripted {
    node: String,
    election: ElectionName,
    clock: Clock,
    instances: Instances,
}

impl Launch for Scripted {
    fn start(
        &self,
        module: &Module,
        term: Term,
        run: Option<ScheduledRun>,
        deadline: Time,
        _abort_at: Time,
        _output: Arc<dyn Output>,
    ) -> Box<dyn InstanceHandle> {
        let (tell, events) = mpsc::unbounded_channel();
        let mut all = self.instances.all.lock().unwrap();
        let now = self.clock.now();
        for other in all.iter().filter(|other| other.election == self.election) {
            assert!(other.is_gone || other.deadline <= now, "term {} starts while {} runs", term, other.term);
            assert!(other.term < term, "term {term} starts after term {}", other.term);
        }
        let number = all.len();
        let (node, election) = (self.node.clone(), self.election.clone());
        let _receiver_exists = tell.send(InstanceEvent::Begun);
        let module = module.digest();
        all.push(ScriptedState { node, election, term, run, module, deadline, is_gone: false, tell });
        if self.instances.crashing.lock().unwrap().contains(&module) {
            all[number].end(End::Crashed("a trap".to_owned()));
        }
        Box::new(ScriptedInstance { number, clock: self.clock.clone(), instances: self.instances.clone(), events })
    }

    fn keep(&self, _modules: &[&Module]) {}

    fn expects(&self, _module: &Module) {}

    fn expects_none(&self) {}

    fn clear_handover(&self) {}

    fn missed_by_timers(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }
}

/// An instance that runs until it is asked to stop, and then returns ok at once.
struct ScriptedInstance {
    number: usize,
    clock: Clock,
    instances: Instances,
    events: mpsc::UnboundedReceiver<InstanceEvent>,
}

impl ScriptedInstance {
    fn end(&self, end: End) {
        self.instances.all.lock().unwrap()[self.number].end(end);
    }
}

impl InstanceHandle for ScriptedInstance {
    fn next_event(&mut self) -> BoxFuture<'_, InstanceEvent> {
        Box::pin(async { self.events.recv().await.expect("the state of the instance has a sender") })
    }

    fn stop(&mut self, _reason: StopReason, _message: String, _grace_ends: Time, _next: Option<Term>) {
        if !self.instances.ignore_stops.load(Ordering::Relaxed) {
            self.end(End::Done);
        }
    }

    fn kill(&mut self) {
        self.end(End::Killed);
    }

    fn extend(&self, deadline: Time, _abort_at: Time) {
        self.instances.all.lock().unwrap()[self.number].deadline = deadline;
    }

    fn remaining(&self) -> Duration {
        self.instances.all.lock().unwrap()[self.number].deadline.since(self.clock.now())
    }

    fn last_progress(&self) -> Time {
        self.clock.now()
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn effects(&self) -> EffectCounts {
        EffectCounts::default()
    }
}

impl Drop for ScriptedInstance {
    fn drop(&mut self) {
        self.end(End::Killed);
    }
}

// ---- modules ----

/// Prepares modules in this process. The tests share the compiled modules, so each module is compiled only once.
struct InProcess;

static PREPARED: LazyLock<Mutex<HashMap<Digest, Module>>> = LazyLock::new(Mutex::default);

#[async_trait]
impl Prepare for InProcess {
    async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError> {
        let mut prepared = PREPARED.lock().unwrap();
        let module = prepared.entry(Digest::of(&offer.bytes)).or_insert_with(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("it.wasm");
            std::fs::write(&path, &offer.bytes).unwrap();
            Module::load(&Engine::new().unwrap(), &path).unwrap()
        });
        Ok(Preparation { module: module.clone(), cached: true, took: Duration::ZERO })
    }
}

/// A command component that does nothing. Different numbers give different components.
fn component(number: u32) -> Bytes {
    let text = format!(
        r#"(component
            (core module $code (func (export "main") (result i32) i32.const {number} drop i32.const 0))
            (core instance $code (instantiate $code))
            (func $main (result (result)) (canon lift (core func $code "main")))
            (instance $main (export "run" (func $main)))
            (export "wasi:cli/run@0.2.0" (instance $main)))"#
    );
    wat::parse_str(text).unwrap().into()
}
