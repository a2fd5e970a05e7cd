//! Tests that a supervisor survives panics in requests to the store.

use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use baton_base::clock::Clock;

use baton_election::{ElectionName, OnDone, Settings, StoreError, Timing};
use baton_modules::{PreparedVersion, Supply};
use baton_node::balance::ShardBalance;
use baton_node::links::LinkHandle;
use baton_node::node::NodeId;
use baton_node::steering::{NodeIncarnation, SteeringWatch};
use baton_node::supervisor::{LeadershipQuota, Shutdown, Supervisor};
use baton_node::telemetry::{ElectionTracker, Format, Log, Style};
use baton_store::{ChangeNotifier, Intercept, Interceptor, MemoryStore, StoreAnswer, StoreCall, memory};
use tokio::sync::{mpsc, watch};

use super::patience::Patience;
use super::{GUARD, launcher, module};

/// The length of the lease. A busy machine delays a renewal by far less than this.
const LEASE: Duration = Duration::from_secs(15);

/// Panics at the first request of each kind, instead of sending the request to the store.
struct Panics {
    seen: Mutex<HashSet<String>>,
    answered: watch::Sender<HashSet<String>>,
}

#[async_trait]
impl Interceptor<MemoryStore> for Panics {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        let StoreCall::Request(_, op) = &call else { return call.send(store).await };
        let kind = op.to_string();
        let first = self.seen.lock().unwrap().insert(kind.clone());
        assert!(!first, "the first {kind} panics on purpose");
        let answer = call.send(store).await;
        self.answered.send_modify(|answered| {
            answered.insert(kind);
        });
        answer
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_request_is_repeated_when_it_panics() {
    let launcher = launcher("beat");
    let module = module();
    let supply = Supply { current: Some(PreparedVersion { serial: 1, module }), fallback: None };
    let clock: Clock = launcher.clock.clone();
    let time = clock.clone();
    let store = Arc::new(Intercept {
        store: Arc::new(MemoryStore::new(Arc::new(move || time.now().0))),
        interceptor: Panics { seen: Mutex::default(), answered: watch::Sender::default() },
    });
    let mut answered = store.interceptor.answered.subscribe();
    let style = Style { format: Format::Json, terminal: false, colours: false };
    let nowhere = File::create("/dev/null").unwrap();
    let (log, writer) = Log::start(style, &NodeId::new("alpha").unwrap(), Box::new(nowhere)).unwrap();
    let election = ElectionName::new("fleet").unwrap();
    let timing = Timing::new(LEASE, memory::LEASE_RANGE, Duration::from_secs(1), 64 << 20).unwrap();
    let itself = NodeIncarnation { node: "alpha".to_owned(), incarnation: "1".to_owned() };
    let objects = Arc::clone(&store.store);
    let steering_watch = SteeringWatch::new(
        election.clone(),
        (itself, timing),
        objects,
        clock.clone(),
        log.clone(),
        ChangeNotifier::default(),
    );
    let supervisor = Supervisor {
        link: LinkHandle::off(),
        share: watch::channel(ShardBalance::default()).1,
        election: election.clone(),
        settings: Settings {
            node: "alpha".to_owned(),
            incarnation: "1".to_owned(),
            timing,
            lease_range: memory::LEASE_RANGE,
            pause: Duration::from_secs(1),
            on_done: OnDone::Repeat,
            probation: Duration::from_secs(30),
            schedule: None,
        },
        store,
        launcher: Arc::new(launcher),
        supply: watch::Sender::new(supply).subscribe(),
        one_module: true,
        drained: watch::Sender::default().subscribe(),
        judgements: mpsc::unbounded_channel().0,
        steering_watch: Arc::new(steering_watch),
        priority: 100,
        quota: LeadershipQuota::at_most(None),
        stall_after: None,
        clock,
        log,
        tracker: Arc::new(ElectionTracker::new(election, LEASE)),
    };
    let (ask, asked) = watch::channel(Shutdown::No);
    let running = tokio::spawn(supervisor.run(asked));
    // The first request of each kind panics. Wait until the supervisor has repeated the write of its term and a
    // renewal.
    let kinds = |answered: &HashSet<String>| ["write", "renew"].iter().all(|kind| answered.contains(*kind));
    Patience::of_future(answered.wait_for(kinds)).await.expect("a request is never answered").unwrap();
    ask.send_replace(Shutdown::Requested);
    Patience::of_future(running).await.expect("the supervisor does not end").unwrap().unwrap();
    assert!(answered.borrow().contains("release"), "{:?}", answered.borrow());
    assert!(writer.shutdown(GUARD));
}
