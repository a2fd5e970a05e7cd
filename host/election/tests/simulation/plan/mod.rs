//! A plan: everything in a run that the electors do not decide. The plan contains the hosts, the faults and their
//! times, the network's effect on each request, and the behavior of each instance. A plan is drawn from a seed or read
//! from a replay. The world executes both kinds of plans in the same way.

mod aim;
mod draw;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_election::{Missed, Op, Schedule};

use crate::rng::Rng;
use crate::store::Instant;

/// Maximum drift of a host's clock, in millionths. A slow clock makes an instance end late: at 0.93 D on that clock. A
/// fast clock makes another holder start early: after D on its own clock. The instance must be gone by then, so `0.93 *
/// (1 + drift) / (1 - drift)`, plus the lateness of a wake-up (D/100), must stay below 1.
pub const DRIFT_PPM: i64 = 30_000;
/// Maximum drift if a host sends a report before it aborts itself. The report takes up to a third of the rest of the
/// lease, so `(0.93 + 0.07 / 3) * (1 + drift) / (1 - drift)`, plus the lateness of a wake-up, must stay below 1.
pub const DRIFT_WITH_WORDS_PPM: i64 = 18_000;
/// Maximum slew of one of a host's clocks against the host's other clocks, in millionths. Slew is harmless: the fastest
/// clock limits what a host may do, and the slowest clock determines when its waits end.
pub const SLEW_PPM: u64 = 90_000;
/// Maximum time that a request may take to reach the store, in multiples of D.
pub const LATEST_ARRIVAL: u32 = 3;

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed for the electors' own randomness and for late wake-ups.
    pub seed: u64,
    pub hosts: Vec<HostPlan>,
    /// True if each term claims the coordinator's state. Otherwise, only the record and announcements contain terms.
    pub has_state: bool,
    /// True if each host has a watchdog, and each instance has a thread that ends the instance at its deadline.
    pub is_watched: bool,
    pub witness: Witness,
    pub links: Links,
    pub schedule: Option<SchedulePlan>,
    /// The time at which all faults have ended.
    pub heal_at: Instant,
    pub faults: Vec<(Instant, Fault)>,
    pub aimed: Vec<Aimed>,
    pub details: Details,
}

/// The way in which the store detects a holder's death before the lease expires. The variants whose names contain
/// `Forget` or `Elsewhere` are bugs in the store. No elector can compensate for these bugs, but the simulation must
/// notice them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    None,
    /// Reports a death some time after all of the host's processes have exited.
    Sees,
    /// Reports a death while the host's runner may still exist.
    ForgetsTheRunner,
    /// Checks a lock file in the wrong folder, which no process has locked. The witness therefore reports every holder
    /// as dead.
    LooksElsewhere,
    /// All hosts run on one machine. A host resumes a dead holder's lease from the holder's note, some time after all
    /// of the holder's processes have exited.
    Notes,
    /// Like `Notes`, but a host may resume the lease while the holder's runner still exists.
    NotesForgetTheRunner,
    /// Like `Notes`, but a host may resume the lease even if the dead holder did not write the record.
    NotesForgetTheRecord,
}

impl Witness {
    pub fn has_notes(self) -> bool {
        matches!(self, Self::Notes | Self::NotesForgetTheRunner | Self::NotesForgetTheRecord)
    }
}

/// The messages between hosts, which may be lost, late or repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    None,
    /// Only genuine messages.
    Work,
    /// Genuine and forged messages.
    Lie,
}

/// A schedule with a due time in each period.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePlan {
    pub period: Duration,
    pub skips: bool,
    /// True if hosts with odd numbers have a schedule with a period of twice the length.
    pub is_mixed: bool,
    /// The amount by which each host's wall clock is ahead of the previous host's.
    pub skew: Duration,
}

impl SchedulePlan {
    pub fn schedule(&self, host: usize) -> Schedule {
        let factor = if self.is_mixed && host % 2 == 1 { 2 } else { 1 };
        Schedule {
            text: (self.period.as_secs() * factor).to_string(),
            next: |text, after| Some(Duration::from_secs((after.as_secs() / seconds(text) + 1) * seconds(text))),
            latest: |text, until| Some(Duration::from_secs(until.as_secs() / seconds(text) * seconds(text))),
            missed: if self.skips { Missed::Skip } else { Missed::RunOnce },
            missed_after: Duration::from_secs(10),
        }
    }
}

fn seconds(text: &str) -> u64 {
    text.parse().expect("the text is the period in seconds")
}

#[derive(Clone, Debug, PartialEq)]
pub struct HostPlan {
    pub lease: Duration,
    pub grace: Duration,
    pub pause: Duration,
    /// The drift of the host's clock, in millionths. Positive if the clock runs fast.
    pub drift: i64,
    pub finish: bool,
    pub module: u64,
    pub priority: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    Suspend,
    Resume,
    /// A host steps down. If the host has restarted since the command, it ignores the command.
    StepDown {
        host: usize,
        length: Duration,
    },
    /// An operator, or a leader with a lower priority, transfers the lease to a host.
    Transfer {
        to: usize,
        by_operator: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The process crashes, and restarts after a while.
    Crash {
        host: usize,
        down: Duration,
    },
    /// The process is paused, but its clock keeps running.
    Freeze {
        host: usize,
        length: Duration,
    },
    /// The supervisor is paused, but the instance and the watchdog keep running.
    SupervisorStops {
        host: usize,
        length: Duration,
    },
    /// The watchdog is paused, but the supervisor and the instance keep running.
    WatchdogStops {
        host: usize,
        length: Duration,
    },
    /// One of the machine's clocks changes its speed. If the clock runs faster, the host's clock does, too. If the
    /// clock runs slower, the host waits longer.
    Slew {
        host: usize,
        ppm: i64,
        length: Duration,
    },
    /// The wall clock steps forward, and the host's clock with it.
    Jump {
        host: usize,
        by: Duration,
    },
    /// The store fails for one host or for all hosts. Either all requests fail, or only the requests of one kind.
    Outage {
        host: Option<usize>,
        length: Duration,
        kind: Outage,
        of: Option<Ask>,
    },
    Command(Command),
    Maintain {
        host: usize,
        length: Duration,
    },
    /// The host counts as leading its maximum number of elections for a while. During this time, the host holds back
    /// each request for the lease that its elector allows it to hold back.
    LetsOthersAsk {
        host: usize,
        length: Duration,
    },
    Break {
        period: Duration,
    },
    /// An operator deletes the object, even if the lease is held.
    Delete,
    /// An outsider creates an object without a record, if no object exists.
    Plant,
    /// An outsider restores an earlier record, without holding the lease. This frees a broken or expired lease. A
    /// `back` of 0 stands for the last record, and 1 for the record before it.
    Rewrite {
        back: usize,
    },
    /// An outside client breaks, acquires and releases the lease in a single moment.
    Seize,
    /// An operator restarts a finished election. If nobody holds the lease, the operator rewrites the record.
    StartAgain,
    /// An operator restores the coordinator's state. The restored state may contain a later term than the record.
    Restore {
        ahead: u64,
    },
    /// An outside client acquires the lease if it is available.
    Outside {
        length: Option<Duration>,
    },
    OutsideReturns,
    /// A host receives a plan, which may have no module.
    Publish {
        host: usize,
        module: Option<u64>,
        fallback: Option<u64>,
    },
    Stall {
        host: usize,
    },
    StepDown {
        host: usize,
    },
    /// The host shuts down cleanly, and restarts after a while.
    Shutdown {
        host: usize,
        down: Duration,
    },
    SkipGrace {
        host: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimed {
    /// Actions before this time do not trigger the fault.
    pub from: Instant,
    pub host: usize,
    pub moment: Moment,
    pub after: Duration,
    pub fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    Asks(Ask),
    /// A renewal succeeds.
    Extends,
    Starts,
    Stops,
    Kills,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    Read,
    Recall,
    Create,
    Acquire,
    Renew,
    Write,
    Release,
    /// A host announces the highest term that it has seen.
    Announce,
    /// An instance claims the coordinator's state.
    Claim,
}

impl Ask {
    pub fn of(op: &Op) -> Self {
        match op {
            Op::Read | Op::Survey => Self::Read,
            Op::Recall => Self::Recall,
            Op::Create { .. } => Self::Create,
            Op::Acquire { .. } | Op::Reclaim { .. } => Self::Acquire,
            Op::Renew { .. } => Self::Renew,
            Op::Write { .. } => Self::Write,
            Op::Release { .. } => Self::Release,
        }
    }
}

pub const ASKS: [Ask; 9] = [
    Ask::Read,
    Ask::Recall,
    Ask::Create,
    Ask::Acquire,
    Ask::Renew,
    Ask::Write,
    Ask::Release,
    Ask::Announce,
    Ask::Claim,
];

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outage {
    Hang,
    /// The store answers 503, and does not carry out the request.
    Refuse,
    /// The store answers 503, but carries out the request.
    Doubt,
    Misconfigured,
    /// The record can be read, and the lease can be renewed, but all writes fail.
    Unwritable,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fate {
    /// The time that the request takes to reach the store; `None` if the request is lost.
    pub arrives: Option<Duration>,
    /// The delay of a second copy of the request, if one is sent.
    pub again: Option<Duration>,
    /// The time that the answer takes to return; `None` if the answer is lost.
    pub answer: Option<Duration>,
    /// The delay of a second copy of the answer, if one is sent. This copy may arrive after the timeout.
    pub answer_again: Option<Duration>,
    /// True if the answer has a 5xx status although the store has carried out the request.
    pub doubt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// The time from the start of the instance until the guest runs; `None` if the guest never runs.
    pub begins: Option<Duration>,
    /// The time until the instance ends by itself; `None` if it never does.
    pub runs: Option<Duration>,
    pub ends: Ending,
    /// The time that the instance takes to obey a stop; `None` if the instance ignores the stop.
    pub stops: Option<Duration>,
    /// The time from the end or kill of the instance until its process has exited.
    pub gone: Duration,
    /// The time until the supervisor learns that the kernel is removing the instance's process; `None` if the
    /// supervisor does not learn this.
    pub dying: Option<Duration>,
    /// The time that an effect takes to reach the receiver.
    pub lands: Duration,
    /// The time that the host needs for its last report, if the instance is not gone in time.
    pub words: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Done,
    Failed,
    Crashed,
    Fatal,
    Unable,
}

pub const CALM: Fate = Fate {
    arrives: Some(Duration::from_millis(5)),
    again: None,
    answer: Some(Duration::from_millis(5)),
    answer_again: None,
    doubt: false,
};

/// The length of a scheduled run without faults.
const RUN: Duration = Duration::from_secs(2);

pub const HEALTHY: Life = Life {
    begins: Some(Duration::ZERO),
    runs: None,
    ends: Ending::Done,
    stops: Some(Duration::from_millis(50)),
    gone: Duration::from_millis(10),
    dying: None,
    lands: Duration::ZERO,
    words: Duration::ZERO,
};

/// Host, incarnation, and the number of the request or instance.
pub type Key = (usize, u32, u64);

/// The fate of each request and the life of each instance in the run.
#[derive(Clone, Debug, PartialEq)]
pub enum Details {
    /// Computes the fate of a request, or the life of an instance, from the seed and the [`Key`] of the request or
    /// instance. The rates of faults are those in `Weather`.
    Drawn(Weather),
    /// The fates and lives that differ from those of a run without faults.
    Written { fates: BTreeMap<Key, Fate>, lives: BTreeMap<Key, Life> },
}

/// The rates of small faults, in ‰.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    pub network: Network,
    /// Separate rates for one kind of request, if any.
    pub apart: Option<(Ask, Network)>,
    pub short_lives: u64,
    pub failures: u64,
    pub deaf: u64,
    pub stuck: u64,
    pub lands_late: u64,
    pub words: u64,
    pub begins_late: u64,
}

/// The rates of the network's faults, in ‰.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Network {
    pub lost: u64,
    pub answer_lost: u64,
    pub late: u64,
    pub doubt: u64,
    pub repeated: u64,
}

impl Weather {
    fn network_of(&self, ask: Ask) -> &Network {
        match &self.apart {
            Some((kind, network)) if *kind == ask => network,
            _ => &self.network,
        }
    }
}

impl Plan {
    pub fn longest_lease(&self) -> Duration {
        self.hosts.iter().map(|host| host.lease).max().unwrap_or_default()
    }

    pub fn shortest_lease(&self) -> Duration {
        self.hosts.iter().map(|host| host.lease).min().unwrap_or_default()
    }

    pub fn fate(&self, key: Key, ask: Ask, healed: bool) -> Fate {
        match &self.details {
            Details::Written { fates, .. } => fates.get(&key).copied().unwrap_or(CALM),
            Details::Drawn(_) if healed => CALM,
            Details::Drawn(weather) => self.draw_fate(weather.network_of(ask), key),
        }
    }

    pub fn life(&self, key: Key, healed: bool) -> Life {
        let life = match &self.details {
            Details::Written { lives, .. } => lives.get(&key).copied().unwrap_or(HEALTHY),
            Details::Drawn(_) if healed => HEALTHY,
            Details::Drawn(weather) => self.draw_life(weather, key),
        };
        // A scheduled run ends by itself.
        let runs = life.runs.or(self.schedule.is_some().then_some(RUN));
        Life { runs, ..life }
    }
}
