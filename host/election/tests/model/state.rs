//! The parts of the model: nodes with their electors, requests in transit, one store, and the faults that may still
//! occur.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use baton_election::{
    Elector, End, Hint, LeaseId, Now, OnDone, Op, Plan, Random, Record, Reply, RequestId, Settings, StoreError, Term,
    Time, Timing,
};

use crate::store::{Instant, Store};

/// The lease length D, which is also the store's longest lease. A node that does not know a lease's length therefore
/// waits for one D.
pub const LEASE: Duration = Duration::from_secs(60);
const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), LEASE);

#[derive(Clone, Debug)]
pub struct State {
    /// Number of actions since the start. The comparison of states ignores the depth.
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

#[derive(Clone, Debug, Hash)]
pub struct World {
    /// The real time. Every node's clock shows exactly this time: only the simulation tests inaccurate clocks.
    pub now: Instant,
    pub store: Store,
    pub nodes: Vec<Arc<Node>>,
    pub flights: Vec<Flight>,
    /// The last records written, oldest first.
    pub written: Vec<Record>,
    /// Messages between processes, without duplicates. Messages are kept only while hints can still arrive.
    pub told: Vec<Hint>,
    pub announced: Vec<Term>,
    /// The highest term in which an instance was started.
    pub started: Term,
    pub left: Faults,
    /// True if the store can detect that a process and its runner are dead.
    pub sees_deaths: bool,
    /// True if all nodes run on one machine and keep notes of their leases. The nodes then detect each other's deaths.
    pub keeps_notes: bool,
    pub broken: Option<&'static str>,
}

/// The number of faults that may still occur, by kind.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Faults {
    /// Requests that arrive late, never or twice, and requests whose answer is lost.
    pub network: u8,
    /// Processes that pause or crash.
    pub machine: u8,
    /// Changes to the lease and its record by a client other than the nodes.
    pub outsider: u8,
    /// Actions of the operator, such as publishing a module or shutting down a node.
    pub operator: u8,
    /// Instances that end by themselves, stall or hang.
    pub guest: u8,
    /// Hints that are false or outdated.
    pub links: u8,
}

#[derive(Clone, Debug, Hash)]
pub struct Node {
    pub incarnation: u64,
    pub plan: Plan,
    pub process: Option<Process>,
    /// A crashed process, until the kernel reports its exit: its incarnation, its instance, and the lease ids that it
    /// used.
    pub orphan: Option<(u64, Option<Instance>, Vec<LeaseId>)>,
    /// True if the process has ended cleanly, but its announcement has not been removed yet.
    pub has_finished: bool,
}

#[derive(Clone, Debug, Hash)]
pub struct Process {
    pub incarnation: u64,
    pub elector: Elector,
    /// True while the process is paused. Its instance keeps running until the deadline.
    pub is_paused: bool,
    pub waiting: Vec<Waiting>,
    pub instance: Option<Instance>,
    /// True if the process's last request was for the lease.
    pub is_acquiring: bool,
    pub is_suspended: bool,
    pub leases: Vec<LeaseId>,
}

/// A request whose answer the process has not read yet.
#[derive(Clone, Debug, Hash)]
pub struct Waiting {
    pub id: RequestId,
    pub until: Instant,
    /// The answer, if it arrived while the process was paused.
    pub answer: Option<Result<Reply, StoreError>>,
}

#[derive(Clone, Debug, Hash)]
pub struct Flight {
    pub node: usize,
    pub incarnation: u64,
    pub id: RequestId,
    pub op: Op,
    /// True if time may pass before the request arrives. The request may also never arrive.
    pub is_late: bool,
    pub within_quota: bool,
}

#[derive(Clone, Debug, Hash)]
pub struct Instance {
    pub deadline: Time,
    /// Set once the instance has ended or was killed. From then on, none of its effects passes the gate.
    pub end: Option<End>,
    pub has_begun: bool,
    pub is_asked_to_stop: bool,
    /// True if the instance was killed, but its process has not exited.
    pub hangs: bool,
    /// True if the host knows that the kernel is removing the process.
    pub dying: bool,
}

impl Instance {
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
            schedule: None,
        };
        Self {
            incarnation,
            elector: Elector::new(settings, at(now), numbers(node, incarnation)),
            is_paused: false,
            waiting: Vec::new(),
            instance: None,
            is_acquiring: false,
            is_suspended: false,
            leases: Vec::new(),
        }
    }
}

/// The incarnation of a node's process, as the record names it.
pub fn name(node: usize, incarnation: u64) -> String {
    format!("node-{node}/{incarnation}")
}

/// The time as an elector reads it. The wall clock is always 0, because no rule that the model checks depends on the
/// wall clock.
pub fn at(now: Instant) -> Now {
    Now { time: Time(now), least: now, wall: Duration::ZERO }
}

/// Returns an elector's source of random numbers. No two processes or draws get the same number, so lease ids are
/// unique. The numbers are small. An elector turns them into waits of a few nanoseconds, so random waits have no effect
/// in the model.
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
