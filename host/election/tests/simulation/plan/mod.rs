//! A plan: everything that a run does not leave to the elector. Hosts, faults at their times, what the
//! network does to each request, how each instance behaves. A plan is made from a seed, or read from a
//! replay; the world executes both in the same way.

mod aim;
mod draw;

use std::collections::BTreeMap;
use std::time::Duration;

use baton_election::Op;

use crate::rng::Rng;
use crate::store::Instant;

/// How far a host's clock may run wrong, in millionths. The bound follows from the design: a holder that
/// waits D out on a fast clock must find an instance gone that is ended at 0.93 D on a slow one, so
/// `0.93 * (1 + drift) / (1 - drift)` plus the lateness of a wake-up (D/100) stays below 1.
pub const DRIFT_PPM: i64 = 30_000;
/// The same where a host that ends itself says why before: that takes up to a third of what is left of the lease then,
/// so `(0.93 + 0.07 / 3) * (1 + drift) / (1 - drift)` and the lateness must stay below 1.
pub const DRIFT_WITH_WORDS_PPM: i64 = 18_000;
/// How much faster or slower than the others one of a host's clocks may run while somebody slews it, in millionths. That
/// does no harm: what a host may still do follows from its fastest clock, and what it waits out from its slowest.
pub const SLEW_PPM: u64 = 90_000;
/// How late a request may arrive at the store, in D.
pub const LATEST_ARRIVAL: u32 = 3;

/// What happens in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Determines the electors' own randomness and the lateness of wake-ups.
    pub seed: u64,
    pub hosts: Vec<HostPlan>,
    /// Whether each term claims the coordinator's state; if not, only what nodes announce names a term besides the
    /// record.
    pub has_state: bool,
    /// True if each host has a watchdog, and each instance a thread that ends it at its deadline, so that the supervisor
    /// alone need not end an instance in time.
    pub is_watched: bool,
    /// What tells the store that a host is gone.
    pub witness: Witness,
    /// What the hosts tell each other.
    pub links: Links,
    /// From here on nothing goes wrong any more.
    pub heal_at: Instant,
    pub faults: Vec<(Instant, Fault)>,
    pub aimed: Vec<Aimed>,
    pub details: Details,
}

/// What tells the store that a host is gone, before its lease has run out. Those of the others are faults of the store that
/// no elector can make up for, and must be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Nothing.
    None,
    /// It says so once all of the host's processes are gone, or later.
    Sees,
    /// It says so while the host's runner may still be there.
    ForgetsTheRunner,
    /// It looks at the lock file of another folder, which nobody holds.
    LooksElsewhere,
    /// Hosts keep notes of their leases, by which those of the same machine go on with them once all processes of the
    /// holder are gone, or later.
    Notes,
    /// The same while the holder's runner may still be there.
    NotesForgetTheRunner,
    /// The same whomever the record names.
    NotesForgetTheRecord,
}

impl Witness {
    /// Whether a lease is gone on with, instead of being taken by another.
    pub fn has_notes(self) -> bool {
        matches!(self, Self::Notes | Self::NotesForgetTheRunner | Self::NotesForgetTheRecord)
    }
}

/// What the hosts tell each other. What is true may be lost, late or heard twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Nothing.
    None,
    /// What is so.
    Work,
    /// Anything else as well.
    Lie,
}

/// One host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPlan {
    pub lease: Duration,
    pub grace: Duration,
    pub pause: Duration,
    /// How much its clock is fast, in millionths.
    pub drift: i64,
    pub finish: bool,
    pub module: u64,
}

/// What goes wrong, or what a person does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The process ends without a word and starts again after a while.
    Crash {
        host: usize,
        down: Duration,
    },
    /// The process does not run; its clock goes on.
    Freeze {
        host: usize,
        length: Duration,
    },
    /// The supervisor is not driven; instance and watchdog go on.
    SupervisorStops {
        host: usize,
        length: Duration,
    },
    /// The watchdog is late; supervisor and instance go on.
    WatchdogStops {
        host: usize,
        length: Duration,
    },
    /// One of the clocks runs at another speed. If it is faster, so is the host's clock; if it is slower, so is what the
    /// host waits by.
    Slew {
        host: usize,
        ppm: i64,
        length: Duration,
    },
    /// The wall clock, and so the host's clock, steps forward.
    Jump {
        host: usize,
        by: Duration,
    },
    /// The store fails a host, or all, in whatever they ask or in requests of one kind.
    Outage {
        host: Option<usize>,
        length: Duration,
        kind: Outage,
        of: Option<Ask>,
    },
    /// The host does not send what its elector asks for the lease: others may ask first.
    LetsOthersAsk {
        host: usize,
        length: Duration,
    },
    /// An operator breaks the lease.
    Break {
        period: Duration,
    },
    /// An operator deletes the object, leased or not.
    Delete,
    /// Somebody makes an object without a record, where there is none.
    Plant,
    /// Somebody writes the record without the lease, as it was so many writes ago: that frees a lease that is broken or
    /// has run out.
    Rewrite {
        back: usize,
    },
    /// A client that is not Baton breaks the lease, takes it and gives it back, all at once.
    Seize,
    /// An operator lets a finished election run again; also the way in which a free record is rewritten.
    StartAgain,
    /// An operator restores a state that a later term has claimed.
    Restore {
        ahead: u64,
    },
    /// A client that is not Baton takes the lease if it is to be had.
    Outside {
        length: Option<Duration>,
    },
    /// That client gives it back.
    OutsideReturns,
    /// A host hears of what it has to serve; none, and there is nothing any more.
    Publish {
        host: usize,
        module: Option<u64>,
        fallback: Option<u64>,
    },
    /// The host's instance makes no progress.
    Stall {
        host: usize,
    },
    StepDown {
        host: usize,
    },
    /// An orderly end; the host starts again after a while.
    Shutdown {
        host: usize,
        down: Duration,
    },
    SkipGrace {
        host: usize,
    },
}

/// A fault that comes with what a host does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimed {
    /// What happens before does not count.
    pub from: Instant,
    pub host: usize,
    pub moment: Moment,
    /// So much later.
    pub after: Duration,
    pub fault: Fault,
}

/// What a host does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// It sends a request of that kind.
    Asks(Ask),
    /// A renewal has succeeded.
    Extends,
    /// An instance starts.
    Starts,
    /// An instance is asked to stop.
    Stops,
    /// An instance is killed.
    Kills,
}

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    Read,
    Recall,
    Create,
    Acquire,
    Renew,
    Write,
    Release,
    /// What a host tells others of the terms that it has seen.
    Announce,
    /// An instance's claim of the coordinator's state.
    Claim,
}

impl Ask {
    /// What that is.
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

/// How the store fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outage {
    /// Requests vanish.
    Hang,
    /// 503, and nothing is done.
    Refuse,
    /// 503, and it is done nevertheless.
    Doubt,
    Misconfigured,
    /// The record can be read and the lease renewed, but nothing can be written.
    Unwritable,
}

/// What the network does to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fate {
    /// How long it takes to the store; none if it is lost.
    pub arrives: Option<Duration>,
    /// A second copy arrives that much later.
    pub again: Option<Duration>,
    /// How long the answer takes back; none if it is lost.
    pub answer: Option<Duration>,
    /// A second copy of the answer comes that much later, even after the timeout.
    pub answer_again: Option<Duration>,
    /// The answer is a 5xx although the request was carried out.
    pub doubt: bool,
}

/// How one instance behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// From its start until its guest runs; none, and it never does.
    pub begins: Option<Duration>,
    /// How long it is there by itself; none for ever.
    pub runs: Option<Duration>,
    pub ends: Ending,
    /// How long it takes to heed a stop; none if it ignores it.
    pub stops: Option<Duration>,
    /// From its end or its kill until it is gone.
    pub gone: Duration,
    /// From the same until its supervisor hears that the system has taken that, and still works on it; none where it never
    /// does.
    pub dying: Option<Duration>,
    /// How long what it sends is on its way to the receiver.
    pub lands: Duration,
    /// How long its host's last words take, if it is not gone in time.
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

/// Host, incarnation, number of the request or of the instance.
pub type Key = (usize, u32, u64);

/// The small decisions, of which there are too many to take them beforehand.
#[derive(Clone, Debug, PartialEq)]
pub enum Details {
    /// Each follows from the seed and its key.
    Drawn(Weather),
    /// Those that are not the calm one, by key.
    Written { fates: BTreeMap<Key, Fate>, lives: BTreeMap<Key, Life> },
}

/// How often the small things go wrong, in a thousand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    pub network: Network,
    /// Requests of that kind have a network of their own.
    pub apart: Option<(Ask, Network)>,
    pub short_lives: u64,
    pub failures: u64,
    pub deaf: u64,
    pub stuck: u64,
    pub lands_late: u64,
    pub words: u64,
    pub begins_late: u64,
}

/// The same, of requests.
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
        match &self.details {
            Details::Written { lives, .. } => lives.get(&key).copied().unwrap_or(HEALTHY),
            Details::Drawn(_) if healed => HEALTHY,
            Details::Drawn(weather) => self.draw_life(weather, key),
        }
    }
}
