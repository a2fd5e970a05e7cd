//! A host of the simulation: its clock, its process with the elector, and the instance that the process
//! runs. What the supervisor of a real host does with the elector's effects is done in `world/supervisor.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::{Elector, LeaseId, ModuleVersion, Now, OnDone, Plan, RequestId, Settings, Term, Time, Timing};

use crate::conduct::Conduct;
use crate::plan::{HostPlan, Life};
use crate::rng::Rng;
use crate::store::Instant;

/// What the simulated store keeps.
pub const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A machine: it outlives its processes.
#[derive(Default)]
pub struct Host {
    pub incarnation: u32,
    /// What it has to serve.
    pub serves: Plan,
    pub process: Option<Process>,
    /// Its process does not run before.
    pub frozen_until: Instant,
    /// A shutdown or an end of the process is followed by a new start after that long.
    pub down: Duration,
}

/// One start of the host.
pub struct Process {
    pub elector: Elector,
    pub conduct: Conduct,
    pub instance: Option<Instance>,
    /// Requests without an answer so far.
    pub unanswered: BTreeSet<RequestId>,
    /// How many recalls it has asked for, and what else: each of the two is numbered by itself.
    pub asked: (u64, u64),
    pub announced: Announced,
    /// The id of the last acquire.
    pub lease: Option<LeaseId>,
    pub instances: u64,
    /// Wakes that were asked for; only the last one counts.
    pub wakes: u64,
    /// Wakes in a row at which time did not go on.
    pub idle_wakes: u32,
    started: Instant,
    drift: i64,
    jumped: Duration,
}

/// What a process has told others of the terms that it has seen.
#[derive(Default)]
pub struct Announced {
    pub term: Term,
    pub number: u64,
}

/// One running copy of the coordinator.
pub struct Instance {
    pub number: u64,
    pub term: Term,
    pub version: ModuleVersion,
    pub lease: Option<LeaseId>,
    pub life: Life,
    /// The term that its state turned out to be claimed by.
    pub superseded: Option<Term>,
    /// Effects pass until then, by the host's clock.
    pub deadline: Time,
    /// Closed for good by a kill or by its end.
    pub closed: bool,
    /// It has ended or was killed, and is gone soon.
    pub ending: bool,
    /// It could not be told the time: its process did not run when the gate's time came.
    pub was_frozen_until: Instant,
}

impl Process {
    pub fn new(now: Instant, host: usize, incarnation: u32, plan: &HostPlan, seed: u64) -> Self {
        let settings = settings(host, incarnation, plan);
        let random = Rng::about(&[seed, 4, host as u64, u64::from(incarnation)]).for_elector();
        let first = Now { time: Time::default(), least: Duration::ZERO, wall: now };
        Self {
            elector: Elector::new(settings.clone(), first, random),
            conduct: Conduct::new(settings),
            instance: None,
            unanswered: BTreeSet::new(),
            asked: (0, 0),
            announced: Announced::default(),
            lease: None,
            instances: 0,
            wakes: 0,
            idle_wakes: 0,
            started: now,
            drift: plan.drift,
            jumped: Duration::ZERO,
        }
    }

    /// What the host's clock says.
    pub fn local(&self, now: Instant) -> Time {
        Time(self.least(now) + self.jumped)
    }

    /// What its slowest clock says, which no step of the wall clock moves.
    pub fn least(&self, now: Instant) -> Duration {
        let true_nanos = now.saturating_sub(self.started).as_nanos() as i128;
        let nanos = true_nanos * (1_000_000 + i128::from(self.drift)) / 1_000_000;
        Duration::from_nanos(nanos as u64)
    }

    /// When the host's clock will have said that.
    pub fn instant(&self, local: Time) -> Instant {
        let nanos = local.0.saturating_sub(self.jumped).as_nanos() as i128;
        let true_nanos = (nanos * 1_000_000).div_euclid(1_000_000 + i128::from(self.drift)) + 2;
        self.started.saturating_add(Duration::from_nanos(true_nanos as u64))
    }

    pub fn jump(&mut self, by: Duration) {
        self.jumped += by;
    }

    /// Whether an effect of its instance would pass the gate.
    pub fn passes(&self, now: Instant) -> bool {
        self.instance.as_ref().is_some_and(|one| !one.closed && self.local(now) < one.deadline)
    }
}

fn settings(host: usize, incarnation: u32, plan: &HostPlan) -> Settings {
    let timing = Timing::new(plan.lease, LEASE_RANGE, plan.grace, 128 << 20).expect("the plan's lease is possible");
    Settings {
        node: format!("node-{host}"),
        incarnation: format!("node-{host}/{incarnation}"),
        timing,
        lease_range: LEASE_RANGE,
        pause: plan.pause,
        on_done: if plan.finish { OnDone::Finish } else { OnDone::Repeat },
        probation: Duration::from_secs(30),
    }
}

/// A version of that module.
pub fn version(module: u64, serial: u64) -> ModuleVersion {
    ModuleVersion { digest: format!("sha256:{module}"), serial }
}
