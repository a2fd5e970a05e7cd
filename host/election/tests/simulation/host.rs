//! A host of the simulation: its clock, its process with the elector, and the instance that the process
//! runs. What the supervisor of a real host does with the elector's effects is done in `world/supervisor.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::{Elector, LeaseId, ModuleVersion, Now, OnDone, Plan, RequestId, Settings, Term, Time, Timing};

use crate::host_rules::HostRules;
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
    /// What was left of the process before: a runner that has not ended yet, until then.
    pub orphan: Option<(Process, Instant)>,
    /// Its process does not run before.
    pub frozen_until: Instant,
    /// Its supervisor is not driven before.
    pub stopped_until: Instant,
    /// Until then it lets others ask for the lease first.
    pub lets_others_ask_until: Instant,
    /// Its watchdog does nothing before.
    pub unwatched_until: Instant,
    /// By how much one of its clocks is made faster or slower, in millionths, and until when.
    pub slewed: (i64, Instant),
    /// A shutdown or an end of the process is followed by a new start after that long.
    pub down: Duration,
}

/// One start of the host.
pub struct Process {
    pub elector: Elector,
    pub rules: HostRules,
    pub instance: Option<Instance>,
    /// Requests without an answer so far.
    pub unanswered: BTreeSet<RequestId>,
    /// How many recalls it has asked for, and what else: each of the two is numbered by itself.
    pub asked: (u64, u64),
    pub announced: Announced,
    /// The id of the last acquire.
    pub lease: Option<LeaseId>,
    /// The ids of all.
    pub leases: Vec<LeaseId>,
    pub instances: u64,
    /// Wakes that were asked for; only the last one counts.
    pub wakes: u64,
    /// Wakes in a row at which time did not go on.
    pub idle_wakes: u32,
    drift: i64,
    /// What its clocks had shown when the speed of one changed for the last time.
    shown: Shown,
    jumped: Duration,
}

/// What the clocks of a process show at a moment, but for steps of the wall clock.
#[derive(Clone, Copy)]
struct Shown {
    at: Instant,
    most: Duration,
    least: Duration,
    /// By how much one of them is faster or slower than its machine's drift makes it, in millionths.
    slew: i64,
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
    /// Its supervisor has yet to hear that it has.
    pub begins_at_once: bool,
    /// The term that its state turned out to be claimed by.
    pub superseded: Option<Term>,
    /// Effects pass until then, by the host's clock.
    pub deadline: Time,
    /// If it is not gone by then, by the host's clock, the watchdog ends the host.
    pub abort_at: Time,
    /// When the watchdog first found that it had been paused past the deadline.
    pub woken: Option<Time>,
    /// Looks of the watchdog that were planned; only the last one counts.
    pub looks: u64,
    /// Nothing is left of it, whether its supervisor knows that or not.
    pub is_gone: bool,
    /// Closed for good by a kill or by its end.
    pub closed: bool,
    /// It has ended or was killed, and is gone soon.
    pub ending: bool,
    /// It could not be told the time: its process did not run when the gate's time came.
    pub was_frozen_until: Instant,
}

impl Process {
    pub fn new(now: Instant, host: usize, incarnation: u32, plan: &HostPlan, seed: u64, slew: i64) -> Self {
        let settings = settings(host, incarnation, plan);
        let random = Rng::about(&[seed, 4, host as u64, u64::from(incarnation)]).for_elector();
        let first = Now { time: Time::default(), least: Duration::ZERO, wall: now };
        Self {
            elector: Elector::new(settings.clone(), first, random),
            rules: HostRules::new(settings),
            instance: None,
            unanswered: BTreeSet::new(),
            asked: (0, 0),
            announced: Announced::default(),
            lease: None,
            leases: Vec::new(),
            instances: 0,
            wakes: 0,
            idle_wakes: 0,
            drift: plan.drift,
            shown: Shown { at: now, most: Duration::ZERO, least: Duration::ZERO, slew },
            jumped: Duration::ZERO,
        }
    }

    /// What the host's clock says, which is the fastest of all.
    pub fn local(&self, now: Instant) -> Time {
        Time(self.shown.most + self.run(now, self.shown.slew.max(0)) + self.jumped)
    }

    /// What its slowest clock says, which no step of the wall clock moves.
    pub fn least(&self, now: Instant) -> Duration {
        self.shown.least + self.run(now, self.shown.slew.min(0))
    }

    /// How far a clock runs until `now` that is slewed so.
    fn run(&self, now: Instant, slew: i64) -> Duration {
        let true_nanos = now.saturating_sub(self.shown.at).as_nanos() as i128;
        let nanos = true_nanos * (1_000_000 + i128::from(self.drift + slew)) / 1_000_000;
        Duration::from_nanos(nanos as u64)
    }

    /// When the host's clock will have said that.
    pub fn instant(&self, local: Time) -> Instant {
        let nanos = local.0.saturating_sub(self.jumped).saturating_sub(self.shown.most).as_nanos() as i128;
        let speed = 1_000_000 + i128::from(self.drift + self.shown.slew.max(0));
        let true_nanos = (nanos * 1_000_000).div_euclid(speed) + 2;
        self.shown.at.saturating_add(Duration::from_nanos(true_nanos as u64))
    }

    /// From here on one of the clocks is slewed so.
    pub fn slew(&mut self, now: Instant, slew: i64) {
        let most = self.shown.most + self.run(now, self.shown.slew.max(0));
        self.shown = Shown { at: now, most, least: self.least(now), slew };
    }

    pub fn jump(&mut self, by: Duration) {
        self.jumped += by;
    }

    /// Whether an effect of its instance would pass the gate.
    pub fn passes(&self, now: Instant) -> bool {
        self.instance.as_ref().is_some_and(|one| !one.closed && self.local(now) < one.deadline)
    }
}

impl Instance {
    /// From when on its watchdog counts it as not gone in time. After a pause past the deadline, in which the gate has
    /// refused everything, the kill may take as long as it may otherwise; that is given once.
    pub fn overdue_at(&self) -> Time {
        let room = self.abort_at.since(self.deadline);
        let woken = self.woken.filter(|woken| *woken >= self.deadline);
        woken.map_or(self.abort_at, |woken| self.abort_at.max(woken + room))
    }

    /// Whether the system was told to end it and does, however long it takes.
    pub fn is_dying(&self) -> bool {
        self.ending && self.life.dying.is_some()
    }

    /// How long it takes at most, by any clock, until it is gone or its host is, once somebody is there to see to that.
    pub fn ends_within(&self, lease: Duration) -> Duration {
        lease * 15 / 100 + self.life.words
    }
}

fn settings(host: usize, incarnation: u32, plan: &HostPlan) -> Settings {
    let timing = Timing::new(plan.lease, LEASE_RANGE, plan.grace, 128 << 20).expect("the plan's lease is possible");
    Settings {
        node: format!("node-{host}"),
        incarnation: name(host, incarnation),
        timing,
        lease_range: LEASE_RANGE,
        pause: plan.pause,
        on_done: if plan.finish { OnDone::Finish } else { OnDone::Repeat },
        probation: Duration::from_secs(30),
    }
}

/// What the record calls that start of a host.
pub fn name(host: usize, incarnation: u32) -> String {
    format!("node-{host}/{incarnation}")
}

/// A version of that module.
pub fn version(module: u64, serial: u64) -> ModuleVersion {
    ModuleVersion { digest: format!("sha256:{module}"), serial }
}
