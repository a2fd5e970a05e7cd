//! What the model is made of: nodes with their electors, requests under way, one store, and what may still go wrong.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use baton_election::{
    Elector, End, Hint, LeaseId, Now, OnDone, Op, Plan, Random, Record, Reply, RequestId, Settings, StoreError, Term,
    Time, Timing,
};

use crate::store::{Instant, Store};

/// D: as long as the longest that there is, so that a lease that is not known is waited out in one D.
pub const LEASE: Duration = Duration::from_secs(60);
const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), LEASE);

/// All of the modelled world at one moment.
#[derive(Clone, Debug)]
pub struct State {
    /// Actions since the start. Two states that differ in nothing else are one.
    pub depth: usize,
    pub world: World,
}

impl State {
    fn digest(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest() == other.digest()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.world.hash(hasher);
    }
}

/// See [`State`].
#[derive(Clone, Debug, Hash)]
pub struct World {
    /// True time, which every node's clock says: drift is the simulation's.
    pub now: Instant,
    pub store: Store,
    pub nodes: Vec<Arc<Node>>,
    pub flights: Vec<Flight>,
    /// The records that were written, oldest first.
    pub written: Vec<Record>,
    /// What processes have told others while anything could still be heard, each once.
    pub told: Vec<Hint>,
    /// What each node has announced.
    pub announced: Vec<Term>,
    /// The highest term that was started.
    pub started: Term,
    /// What may still go wrong.
    pub left: Faults,
    /// Whether the store finds out that a process is gone, once its runner is.
    pub sees_deaths: bool,
    /// Whether all nodes are of one machine and keep notes of their leases, and find out the same of each other.
    pub keeps_notes: bool,
    /// The promise that was broken.
    pub broken: Option<&'static str>,
}

/// How often something may go wrong, by who does it.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Faults {
    /// Requests that come late or never, twice, or whose answer is lost.
    pub network: u8,
    /// Processes that are stopped for a while, or end.
    pub machine: u8,
    /// What others do to the lease and its record.
    pub outsider: u8,
    /// What this election's own operator does: publishing, stepping down, shutting down.
    pub operator: u8,
    /// Instances that end by themselves, stall or hang.
    pub guest: u8,
    /// What is heard, and need not be so, or not any more.
    pub links: u8,
}

/// A machine.
#[derive(Clone, Debug, Hash)]
pub struct Node {
    pub incarnation: u64,
    pub plan: Plan,
    pub process: Option<Process>,
    /// What is left of the process before: which it was, its runner, if it had one, and the leases that it has asked for.
    pub orphan: Option<(u64, Option<Instance>, Vec<LeaseId>)>,
    /// Its process has ended in order, and what it has announced is still there.
    pub has_finished: bool,
}

/// One start of the host on it.
#[derive(Clone, Debug, Hash)]
pub struct Process {
    pub incarnation: u64,
    pub elector: Elector,
    /// It does not run; its instance does, until its deadline.
    pub is_paused: bool,
    /// What it has asked for and not heard of.
    pub waiting: Vec<Waiting>,
    pub instance: Option<Instance>,
    /// Whether it has asked for the lease, and for nothing since.
    pub is_acquiring: bool,
    /// The leases that it has asked for.
    pub leases: Vec<LeaseId>,
}

/// A request whose answer its process waits for.
#[derive(Clone, Debug, Hash)]
pub struct Waiting {
    pub id: RequestId,
    pub until: Instant,
    /// The answer, where it came while the process was paused.
    pub answer: Option<Result<Reply, StoreError>>,
}

/// A request on its way to the store.
#[derive(Clone, Debug, Hash)]
pub struct Flight {
    pub node: usize,
    pub incarnation: u64,
    pub id: RequestId,
    pub op: Op,
    /// Time may pass before it arrives, and perhaps it never does.
    pub is_late: bool,
    /// It asks for the lease, and nothing was asked under its id before.
    pub may_be_put_off: bool,
}

/// One running copy of the coordinator.
#[derive(Clone, Debug, Hash)]
pub struct Instance {
    pub deadline: Time,
    /// It was killed or has ended: nothing passes any more.
    pub end: Option<End>,
    pub has_begun: bool,
    pub is_asked_to_stop: bool,
    /// What was killed does not go.
    pub hangs: bool,
    /// And its host knows that the system has taken the kill.
    pub dying: bool,
}

impl Instance {
    /// Whether an effect of it would pass.
    pub fn passes(&self, now: Instant) -> bool {
        self.end.is_none() && Time(now) < self.deadline
    }
}

impl Process {
    pub fn new(node: usize, incarnation: u64, now: Instant) -> Self {
        let timing = Timing::new(LEASE, LEASE_RANGE, Duration::from_secs(5), 128 << 20).unwrap();
        let settings = Settings {
            node: format!("node-{node}"),
            incarnation: name(node, incarnation),
            timing,
            lease_range: LEASE_RANGE,
            pause: Duration::from_secs(1),
            on_done: OnDone::Repeat,
            probation: Duration::from_secs(30),
        };
        Self {
            incarnation,
            elector: Elector::new(settings, at(now), numbers(node, incarnation)),
            is_paused: false,
            waiting: Vec::new(),
            instance: None,
            is_acquiring: false,
            leases: Vec::new(),
        }
    }
}

/// What the record calls that start of a node's host.
pub fn name(node: usize, incarnation: u64) -> String {
    format!("node-{node}/{incarnation}")
}

/// What an elector is told of the time. People's time is nothing that a rule reads.
pub fn at(now: Instant) -> Now {
    Now { time: Time(now), least: now, wall: Duration::ZERO }
}

/// Numbers that differ from process to process and from draw to draw, and are so small that as lengths, in
/// nanoseconds, they are next to nothing: chance is the checker's, not the elector's.
fn numbers(node: usize, incarnation: u64) -> Random {
    let first = ((node as u64) << 20) + (incarnation << 14);
    let next = |state: &mut [u8; 32]| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&state[..8]);
        let number = u64::from_le_bytes(bytes);
        state[..8].copy_from_slice(&(number + 1).to_le_bytes());
        number
    };
    let mut state = [0; 32];
    state[..8].copy_from_slice(&first.to_le_bytes());
    Random { state, next }
}
