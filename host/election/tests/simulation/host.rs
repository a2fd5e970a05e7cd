//! A host in the simulation: its clock, its process with the elector, and the process's instance. As in a real host,
//! the supervisor (`world/supervisor.rs`) carries out the elector's effects.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::timing::overdue_at;
use baton_election::{
    Elector, LeaseId, ModuleVersion, Now, OnDone, Plan, Recalled, RequestId, Settings, Term, Time, Timing,
};

use crate::plan::Life;
use crate::rng::Rng;
use crate::store::Instant;
use crate::world::Heard;

pub const LEASE_RANGE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// A machine, which outlives the processes that run on it.
#[derive(Default)]
pub struct Host {
    pub incarnation: u32,
    pub serves: Plan,
    pub process: Option<Process>,
    /// The previous process after its exit, and the time at which its runner exits.
    pub orphan: Option<(Process, Instant)>,
    /// The time at which the pause of the process ends.
    pub frozen_until: Instant,
    /// The time at which the pause of the supervisor ends.
    pub stopped_until: Instant,
    /// The time until which the host counts as leading its maximum number of elections. Until then, the host holds back
    /// requests for the lease.
    pub lets_others_ask_until: Instant,
    /// The time at which the pause of the watchdog ends.
    pub unwatched_until: Instant,
    /// The slew of one of the machine's clocks, in millionths, and the time at which this slew ends.
    pub slewed: (i64, Instant),
    pub down: Duration,
}

pub struct Process {
    pub elector: Elector,
    pub heard: Heard,
    pub instance: Option<Instance>,
    pub unanswered: BTreeSet<RequestId>,
    /// True once an answer from the store has shown that the object exists.
    pub has_read_object: bool,
    /// The number of recalls so far, and the number of other requests so far.
    pub asked: (u64, u64),
    pub announced: Announced,
    pub lease: Option<LeaseId>,
    pub leases: Vec<LeaseId>,
    pub instances: u64,
    /// The number of scheduled wake-ups. Only the last scheduled wake-up has an effect.
    pub wakes: u64,
    /// The number of consecutive times that the elector has asked to be woken immediately.
    pub idle_wakes: u32,
    drift: i64,
    /// The readings of the clocks when one of them last changed its speed.
    shown: Shown,
    jumped: Duration,
}

/// Readings of a process's clocks at one moment. Steps of the wall clock are not included.
#[derive(Clone, Copy)]
struct Shown {
    at: Instant,
    most: Duration,
    least: Duration,
    /// The slew of one of the clocks, in millionths. The slew adds to the machine's drift.
    slew: i64,
}

#[derive(Default)]
pub struct Announced {
    pub last: Recalled,
    pub number: u64,
}

pub struct Instance {
    pub number: u64,
    pub term: Term,
    pub version: ModuleVersion,
    pub lease: Option<LeaseId>,
    pub life: Life,
    /// True if the guest runs as soon as the instance starts, but the supervisor has not been notified yet.
    pub begins_at_once: bool,
    /// The term that claimed the state before this instance did, if any.
    pub superseded: Option<Term>,
    /// Effects pass the gate until this time on the host's clock.
    pub deadline: Time,
    /// If the instance is not gone by this time on the host's clock, the watchdog ends the host.
    pub abort_at: Time,
    /// The time at which the watchdog first noticed that the host had been paused past the deadline.
    pub woken: Option<Time>,
    /// The number of checks that the watchdog has scheduled. Only the last scheduled check has an effect.
    pub looks: u64,
    /// True once the instance is completely gone, even if the supervisor does not know that yet.
    pub is_gone: bool,
    /// True once the gate is closed, because the instance was killed or has ended.
    pub closed: bool,
    pub is_asked_to_stop: bool,
    /// True if the instance has ended or was killed, and will be gone soon.
    pub ending: bool,
    /// The end of the last period during which nothing could end the instance.
    pub was_frozen_until: Instant,
}

impl Process {
    pub fn new(now: Instant, host: usize, incarnation: u32, plan: &crate::plan::Plan, slew: i64) -> Self {
        let settings = settings(host, incarnation, plan);
        let random = Rng::about(&[plan.seed, 4, host as u64, u64::from(incarnation)]).for_elector();
        let first = Now { time: Time::default(), least: Duration::ZERO, wall: now };
        Self {
            elector: Elector::new(settings, first, random),
            heard: Heard::default(),
            instance: None,
            unanswered: BTreeSet::new(),
            has_read_object: false,
            asked: (0, 0),
            announced: Announced::default(),
            lease: None,
            leases: Vec::new(),
            instances: 0,
            wakes: 0,
            idle_wakes: 0,
            drift: plan.hosts[host].drift,
            shown: Shown { at: now, most: Duration::ZERO, least: Duration::ZERO, slew },
            jumped: Duration::ZERO,
        }
    }

    /// The host's clock: the fastest of the machine's clocks.
    pub fn local(&self, now: Instant) -> Time {
        Time(self.shown.most + self.run(now, self.shown.slew.max(0)) + self.jumped)
    }

    /// The elapsed time on the slowest of the machine's clocks. A step of the wall clock does not change this time.
    pub fn least(&self, now: Instant) -> Duration {
        self.shown.least + self.run(now, self.shown.slew.min(0))
    }

    /// The time by which a clock with this slew has advanced since the last change of speed.
    fn run(&self, now: Instant, slew: i64) -> Duration {
        let true_nanos = now.saturating_sub(self.shown.at).as_nanos() as i128;
        let nanos = true_nanos * (1_000_000 + i128::from(self.drift + slew)) / 1_000_000;
        Duration::from_nanos(nanos as u64)
    }

    /// The real time at which the host's clock shows `local`.
    pub fn instant(&self, local: Time) -> Instant {
        let nanos = local.0.saturating_sub(self.jumped).saturating_sub(self.shown.most).as_nanos() as i128;
        let speed = 1_000_000 + i128::from(self.drift + self.shown.slew.max(0));
        let true_nanos = (nanos * 1_000_000).div_euclid(speed) + 2;
        self.shown.at.saturating_add(Duration::from_nanos(true_nanos as u64))
    }

    pub fn slew(&mut self, now: Instant, slew: i64) {
        let most = self.shown.most + self.run(now, self.shown.slew.max(0));
        self.shown = Shown { at: now, most, least: self.least(now), slew };
    }

    pub fn jump(&mut self, by: Duration) {
        self.jumped += by;
    }

    pub fn passes(&self, now: Instant) -> bool {
        self.instance.as_ref().is_some_and(|one| !one.closed && self.local(now) < one.deadline)
    }
}

impl Instance {
    pub fn overdue_at(&self) -> Time {
        overdue_at(self.deadline, self.abort_at, self.woken)
    }

    /// True if the kernel is removing the instance's process, which may take a long time.
    pub fn is_dying(&self) -> bool {
        self.ending && self.life.dying.is_some()
    }

    /// The longest time, on any clock, that a running thread needs to end the instance or its host.
    pub fn ends_within(&self, lease: Duration) -> Duration {
        lease * 15 / 100 + self.life.words
    }
}

fn settings(host: usize, incarnation: u32, plan: &crate::plan::Plan) -> Settings {
    let schedule = plan.schedule.as_ref().map(|schedule| schedule.schedule(host));
    let plan = &plan.hosts[host];
    let timing = Timing::new(plan.lease, LEASE_RANGE, plan.grace, 128 << 20).expect("the plan's lease is possible");
    Settings {
        node: format!("node-{host}"),
        incarnation: name(host, incarnation),
        timing,
        lease_range: LEASE_RANGE,
        pause: if schedule.is_some() { Duration::ZERO } else { plan.pause },
        on_done: if plan.finish && schedule.is_none() { OnDone::Finish } else { OnDone::Repeat },
        probation: Duration::from_secs(30),
        schedule,
    }
}

pub fn name(host: usize, incarnation: u32) -> String {
    format!("node-{host}/{incarnation}")
}

pub fn version(module: u64, serial: u64) -> ModuleVersion {
    ModuleVersion { digest: format!("sha256:{module}"), serial }
}
