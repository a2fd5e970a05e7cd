//! A plan: everything that a run does not leave to the elector. Hosts, faults at their times, what the
//! network does to each request, how each instance behaves. A plan is made from a seed, or read from a
//! replay; the world executes both in the same way.

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
/// How much faster than the others one of a host's clocks may run while somebody slews it, in millionths. It goes either
/// way without harm, for what a host may still do follows from its fastest clock, and what it waits out from its slowest.
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
    /// Whether each host has a watchdog and a warden beside its supervisor, so that this one alone need not end an
    /// instance in time.
    pub is_watched: bool,
    /// From here on nothing goes wrong any more.
    pub heal_at: Instant,
    pub faults: Vec<(Instant, Fault)>,
    pub aimed: Vec<Aimed>,
    pub details: Details,
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
    /// The supervisor is not driven; instance, watchdog and warden go on.
    SupervisorStops {
        host: usize,
        length: Duration,
    },
    /// Watchdog and warden are late; the supervisor goes on.
    WatchdogStops {
        host: usize,
        length: Duration,
    },
    /// One of the clocks runs at another speed: if it is faster, the host's clock does, and if it is slower, so does what
    /// the host waits by.
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
            Op::Read => Self::Read,
            Op::Recall => Self::Recall,
            Op::Create { .. } => Self::Create,
            Op::Acquire { .. } => Self::Acquire,
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
    /// How long it runs by itself; none for ever.
    pub runs: Option<Duration>,
    pub ends: Ending,
    /// How long it takes to heed a stop; none if it ignores it.
    pub stops: Option<Duration>,
    /// From its end or its kill until it is gone.
    pub gone: Duration,
    /// How long what it sends is on its way to whoever takes it.
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
}

pub const CALM: Fate = Fate {
    arrives: Some(Duration::from_millis(5)),
    again: None,
    answer: Some(Duration::from_millis(5)),
    answer_again: None,
    doubt: false,
};

pub const HEALTHY: Life = Life {
    runs: None,
    ends: Ending::Done,
    stops: Some(Duration::from_millis(50)),
    gone: Duration::from_millis(10),
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
    /// The plan that a seed stands for. Each plan leaves some kinds of faults out, so that the others
    /// are met in purer form.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::about(&[seed, 1]);
        let mut hosts = draw_hosts(&mut rng);
        let longest = hosts.iter().map(|host| host.lease).max().unwrap_or_default();
        let heal_at = rng.between(Duration::from_secs(60), Duration::from_secs(120).max(longest * 8));
        let mut weather = draw_weather(&mut rng);
        let faults = draw_faults(&mut rng, &hosts, heal_at, longest);
        let has_state = rng.per_mille(500);
        let is_watched = rng.per_mille(400);
        let aimed = draw_aimed(&mut rng, &hosts, heal_at);
        if weather.words > 0 {
            hosts.iter_mut().for_each(|host| host.drift = host.drift * DRIFT_WITH_WORDS_PPM / DRIFT_PPM);
        }
        // Where versions come and go, some of them are bad.
        if rng.per_mille(500) && faults.iter().any(|(_, fault)| matches!(fault, Fault::Publish { .. })) {
            weather.short_lives = weather.short_lives.max(500);
            weather.failures = weather.failures.max(500);
        }
        Self { seed, hosts, has_state, is_watched, heal_at, faults, aimed, details: Details::Drawn(weather) }
    }

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

    fn draw_fate(&self, network: &Network, (host, incarnation, number): Key) -> Fate {
        let mut rng = Rng::about(&[self.seed, 2, host as u64, u64::from(incarnation), number]);
        let lease = self.hosts[host].lease;
        let quick = Duration::from_millis(2);
        let mut fate = CALM;
        fate.arrives = Some(rng.between(quick, lease / 40));
        fate.answer = Some(rng.between(quick, lease / 40));
        if rng.per_mille(network.lost) {
            fate.arrives = None;
        } else if rng.per_mille(network.late) {
            fate.arrives = Some(rng.between(lease / 12, lease * LATEST_ARRIVAL));
        }
        if rng.per_mille(network.answer_lost) {
            fate.answer = None;
        } else if rng.per_mille(network.late) {
            fate.answer = Some(rng.between(lease / 12, lease));
        }
        if rng.per_mille(network.repeated) {
            fate.again = Some(rng.between(quick, lease * 2));
        }
        if rng.per_mille(network.repeated) {
            fate.answer_again = Some(rng.between(quick, lease));
        }
        fate.doubt = rng.per_mille(network.doubt);
        fate
    }

    fn draw_life(&self, weather: &Weather, (host, incarnation, number): Key) -> Life {
        let mut rng = Rng::about(&[self.seed, 3, host as u64, u64::from(incarnation), number]);
        let HostPlan { lease, grace, .. } = self.hosts[host];
        let mut life = HEALTHY;
        if rng.per_mille(weather.short_lives) {
            life.runs = Some(rng.pick(&[rng.clone().millis(1, 500), rng.clone().millis(1000, 90_000)]));
        }
        if rng.per_mille(weather.failures) {
            life.ends = rng.pick(&[Ending::Fatal, Ending::Crashed, Ending::Failed, Ending::Failed, Ending::Failed]);
        }
        life.stops = (!rng.per_mille(weather.deaf)).then(|| rng.between(Duration::ZERO, grace * 5 / 4));
        life.gone = rng.between(Duration::ZERO, lease / 20);
        if rng.per_mille(weather.stuck) {
            life.gone = rng.between(lease / 20, lease * 2);
        }
        if rng.per_mille(weather.lands_late) {
            life.lands = rng.between(Duration::ZERO, lease * LATEST_ARRIVAL);
        }
        if rng.per_mille(weather.words) {
            life.words = rng.between(Duration::ZERO, lease * 7 / 100 / 3);
        }
        life
    }
}

fn draw_hosts(rng: &mut Rng) -> Vec<HostPlan> {
    let count = 2 + rng.below(4);
    let lease = rng.pick(&[2, 5, 15, 15, 15, 20, 60]);
    let mixed = rng.per_mille(200);
    let finish = rng.per_mille(150);
    (0..count)
        .map(|_| {
            let seconds = if mixed { rng.pick(&[2, 5, 15, 30, 60]) } else { lease };
            HostPlan {
                lease: Duration::from_secs(seconds),
                grace: rng.millis(0, 5000),
                pause: rng.millis(0, 20_000),
                drift: rng.below(2 * DRIFT_PPM as u64 + 1) as i64 - DRIFT_PPM,
                finish,
                module: u64::from(rng.per_mille(100)),
            }
        })
        .collect()
}

fn draw_weather(rng: &mut Rng) -> Weather {
    let mut network = draw_network(rng, 500, 250);
    let apart = rng.per_mille(350).then(|| (rng.pick(&ASKS), draw_network(rng, 300, 1000)));
    if apart.is_some() && rng.per_mille(500) {
        network = Network::default();
    }
    let mut some = |often: u64, highest: u64| if rng.per_mille(often) { rng.below(highest) } else { 0 };
    Weather {
        network,
        apart,
        short_lives: some(600, 1000),
        failures: some(600, 1000),
        deaf: some(500, 1000),
        stuck: some(400, 500),
        lands_late: some(300, 1000),
        words: some(300, 1000),
    }
}

/// Each kind of trouble so often there at all, and then with any one request in so many of a thousand cases at most.
fn draw_network(rng: &mut Rng, often: u64, highest: u64) -> Network {
    let mut some = |often: u64| if rng.per_mille(often) { rng.below(highest) } else { 0 };
    Network {
        lost: some(often),
        answer_lost: some(often),
        late: some(often),
        doubt: some(often),
        repeated: some(often),
    }
}

/// Faults that come with what a host does, or shortly after.
fn draw_aimed(rng: &mut Rng, hosts: &[HostPlan], heal_at: Instant) -> Vec<Aimed> {
    let mut aimed = Vec::new();
    if rng.per_mille(650) {
        return aimed;
    }
    for _ in 0..=rng.below(4) {
        let from = rng.between(Duration::ZERO, heal_at - Duration::from_secs(1));
        let host = rng.below(hosts.len() as u64) as usize;
        let lease = hosts[host].lease;
        if rng.per_mille(400) {
            draw_trouble_at_the_deadline(rng, from, host, lease, &mut aimed);
            continue;
        }
        if rng.per_mille(100) {
            draw_end_without_a_trace(rng, from, host, lease, &mut aimed);
            continue;
        }
        if hosts[host].finish && rng.per_mille(300) {
            draw_return_to_what_is_over(rng, from, (host, &hosts[host]), &mut aimed);
            continue;
        }
        let moments = [
            Moment::Asks(rng.pick(&ASKS)),
            Moment::Asks(Ask::Renew),
            Moment::Asks(Ask::Write),
            Moment::Asks(Ask::Release),
            Moment::Extends,
            Moment::Starts,
            Moment::Stops,
            Moment::Kills,
        ];
        let (moment, after) = (rng.pick(&moments), rng.between(Duration::ZERO, lease / 12));
        aimed.push(Aimed { from, host, moment, after, fault: draw_blow(rng, host, lease) });
        // What is sent or answered as a machine stands still may be lost as well.
        if rng.per_mille(300) {
            let of = rng.per_mille(700).then(|| rng.pick(&ASKS));
            let kind = rng.pick(&[Outage::Hang, Outage::Doubt]);
            let fault = Fault::Outage { host: Some(host), length: rng.between(Duration::ZERO, lease / 6), kind, of };
            aimed.push(Aimed { from, host, moment, after: Duration::ZERO, fault });
        }
    }
    aimed
}

/// After a renewal there is no other for a while, and as the instance is to be stopped, killed or gone, something of its
/// host is late.
fn draw_trouble_at_the_deadline(rng: &mut Rng, from: Instant, host: usize, lease: Duration, aimed: &mut Vec<Aimed>) {
    let moment = Moment::Extends;
    let length = rng.between(lease / 2, lease);
    let kind = rng.pick(&[Outage::Hang, Outage::Refuse, Outage::Doubt]);
    let of = rng.per_mille(800).then_some(Ask::Renew);
    let outage = Fault::Outage { host: Some(host), length, kind, of };
    aimed.push(Aimed { from, host, moment, after: Duration::ZERO, fault: outage });
    for _ in 0..=rng.below(2) {
        let after = rng.between(lease * 6 / 10, lease * 95 / 100);
        let length = rng.between(lease / 100, lease / 2);
        let fault = rng.pick(&[
            Fault::SupervisorStops { host, length },
            Fault::WatchdogStops { host, length },
            Fault::Freeze { host, length },
        ]);
        aimed.push(Aimed { from, host, moment, after, fault });
    }
}

/// A term is known to hardly anybody but by its announcement when its record is deleted and its host ends.
fn draw_end_without_a_trace(rng: &mut Rng, from: Instant, host: usize, lease: Duration, aimed: &mut Vec<Aimed>) {
    let moment = Moment::Starts;
    let deleted = rng.between(lease / 40, lease / 10);
    let ends = deleted + rng.between(Duration::ZERO, lease / 6);
    let down = rng.between(Duration::from_millis(100), lease);
    aimed.push(Aimed { from, host, moment, after: deleted, fault: Fault::Delete });
    aimed.push(Aimed { from, host, moment, after: ends, fault: Fault::Shutdown { host, down } });
}

/// A standby of an election that may be over hears of another version, and of the one before again as it asks for the
/// lease.
fn draw_return_to_what_is_over(rng: &mut Rng, from: Instant, (host, plan): (usize, &HostPlan), aimed: &mut Vec<Aimed>) {
    let publish = |module| Fault::Publish { host, module: Some(module), fallback: None };
    let other = Aimed { from, host, moment: Moment::Asks(Ask::Read), after: Duration::ZERO, fault: publish(2) };
    let after = rng.between(Duration::ZERO, plan.lease / 12);
    aimed.push(other);
    aimed.push(Aimed { moment: Moment::Asks(Ask::Acquire), after, fault: publish(plan.module), ..other });
}

/// What may come with anything that a host does.
fn draw_blow(rng: &mut Rng, host: usize, lease: Duration) -> Fault {
    let length = rng.between(lease / 100, lease * 3 / 2);
    match rng.below(11) {
        0 => Fault::Crash { host, down: length },
        1 => Fault::Freeze { host, length },
        2 => Fault::SupervisorStops { host, length },
        3 => Fault::Jump { host, by: length },
        4 => Fault::Break { period: rng.pick(&[Duration::ZERO, lease / 4]) },
        5 => Fault::Seize,
        6 => Fault::StepDown { host },
        7 => Fault::Publish { host, module: Some(rng.below(4)), fallback: None },
        8 => Fault::Delete,
        9 => Fault::Rewrite { back: rng.below(3) as usize },
        _ => Fault::Shutdown { host, down: length },
    }
}

fn draw_faults(rng: &mut Rng, hosts: &[HostPlan], heal_at: Instant, longest: Duration) -> Vec<(Instant, Fault)> {
    const KINDS: u64 = 18;
    let enabled: Vec<u64> = (0..KINDS).filter(|_| rng.per_mille(450)).collect();
    if enabled.is_empty() {
        return Vec::new();
    }
    let count = rng.below(2 + heal_at.as_secs() / longest.as_secs().max(4));
    let mut faults = Vec::new();
    for _ in 0..count {
        let at = rng.between(Duration::ZERO, heal_at - Duration::from_secs(1));
        let host = rng.below(hosts.len() as u64) as usize;
        let lease = hosts[host].lease;
        let kind = rng.pick(&enabled);
        let fault = match kind {
            0 => Fault::Crash { host, down: rng.between(Duration::from_millis(100), lease * 2) },
            1 => Fault::Freeze { host, length: rng.between(Duration::from_millis(100), lease * 2) },
            2 => Fault::Jump { host, by: rng.between(Duration::from_millis(100), lease * 2) },
            3 => {
                let all = [Outage::Hang, Outage::Refuse, Outage::Doubt, Outage::Misconfigured, Outage::Unwritable];
                let kind = rng.pick(&all);
                let of = rng.per_mille(400).then(|| rng.pick(&ASKS));
                // One under which the lease is kept may last longer than that.
                let is_kept = kind == Outage::Unwritable || of.is_some_and(|of| of != Ask::Renew);
                let length = rng.between(Duration::from_millis(100), lease * if is_kept { 6 } else { 2 });
                Fault::Outage { host: rng.per_mille(500).then_some(host), length, kind, of }
            }
            4 => {
                if rng.per_mille(300) {
                    draw_trouble_after_a_break(rng, hosts, at, &mut faults);
                }
                if rng.per_mille(300) {
                    faults.push((at + rng.millis(0, 1500), Fault::Rewrite { back: rng.below(3) as usize }));
                }
                Fault::Break { period: rng.pick(&[Duration::ZERO, lease / 4, lease]) }
            }
            5 => {
                if rng.per_mille(300) {
                    faults.push((at + rng.millis(1, 500), Fault::Plant));
                }
                Fault::Delete
            }
            6 => Fault::StartAgain,
            7 => Fault::Restore { ahead: rng.below(4) },
            8 => {
                faults.push((at + rng.between(Duration::from_secs(1), longest * 3), Fault::OutsideReturns));
                Fault::Outside { length: rng.per_mille(500).then(|| rng.between(lease, longest * 4)) }
            }
            9 => Fault::StepDown { host },
            10 => draw_publishing(rng, hosts, at, &mut faults),
            11 => Fault::Stall { host },
            12 => Fault::Rewrite { back: rng.below(4) as usize },
            13 => {
                if rng.per_mille(300) {
                    draw_trouble_after_a_break(rng, hosts, at, &mut faults);
                }
                Fault::Seize
            }
            14 => Fault::SupervisorStops { host, length: rng.between(Duration::from_millis(100), lease * 2) },
            15 => Fault::WatchdogStops { host, length: rng.between(Duration::from_millis(100), lease * 2) },
            16 => {
                let ppm = rng.below(SLEW_PPM * 2 + 1) as i64 - SLEW_PPM as i64;
                Fault::Slew { host, ppm, length: rng.between(lease / 2, lease * 8) }
            }
            _ => {
                if rng.per_mille(300) {
                    faults.push((at + rng.millis(0, 3000), Fault::SkipGrace { host }));
                }
                Fault::Shutdown { host, down: rng.between(Duration::from_millis(100), lease * 2) }
            }
        };
        faults.push((at, fault));
        // What is done is often done again.
        if rng.per_mille(150) {
            faults.push((at + rng.millis(1, 2000), fault));
        }
    }
    if rng.per_mille(50) {
        faults.push((Duration::ZERO, Fault::Plant));
    }
    faults.retain(|(at, _)| *at < heal_at);
    faults.sort_by_key(|(at, _)| *at);
    faults
}

/// A module is published, and every host hears of it within a while. Some hear of another soon after.
fn draw_publishing(rng: &mut Rng, hosts: &[HostPlan], at: Instant, faults: &mut Vec<(Instant, Fault)>) -> Fault {
    let mut publishing = Fault::Stall { host: 0 };
    for host in 0..hosts.len() {
        let module = (!rng.per_mille(50)).then(|| rng.below(4));
        let fallback =
            rng.per_mille(800).then(|| rng.below(4)).filter(|fallback| module.is_some_and(|one| one != *fallback));
        publishing = Fault::Publish { host, module, fallback };
        faults.push((at + rng.millis(0, 5000), publishing));
    }
    if rng.per_mille(200) {
        draw_loss_as_versions_come(rng, hosts, at, faults);
    }
    publishing
}

/// The lease is lost as each host hears of a version, and of another before the store can have answered to the first.
fn draw_loss_as_versions_come(rng: &mut Rng, hosts: &[HostPlan], at: Instant, faults: &mut Vec<(Instant, Fault)>) {
    faults.push((at, rng.pick(&[Fault::Seize, Fault::Break { period: Duration::ZERO }])));
    for (host, HostPlan { lease, .. }) in hosts.iter().enumerate() {
        let first = at + rng.between(Duration::ZERO, *lease / 40);
        let second = first + rng.between(Duration::ZERO, *lease / 20);
        for at in [first, second] {
            faults.push((at, Fault::Publish { host, module: Some(rng.below(4)), fallback: None }));
        }
    }
}

/// A leader that cannot hear of the break, and candidates that do not last: what the wait after a break is
/// for.
fn draw_trouble_after_a_break(rng: &mut Rng, hosts: &[HostPlan], at: Instant, faults: &mut Vec<(Instant, Fault)>) {
    let cut_off = rng.below(hosts.len() as u64) as usize;
    let length = hosts[cut_off].lease;
    faults.push((
        at.saturating_sub(rng.millis(0, 500)),
        Fault::Outage { host: Some(cut_off), length, kind: Outage::Hang, of: None },
    ));
    for host in (0..hosts.len()).filter(|host| *host != cut_off) {
        let later = at + rng.between(Duration::ZERO, length * 2 / 3);
        let down = rng.millis(100, 2000);
        match rng.below(4) {
            0 => faults.push((later, Fault::Crash { host, down })),
            1 => faults.push((later, Fault::StepDown { host })),
            2 => faults.push((later, Fault::Shutdown { host, down })),
            _ => {}
        }
    }
}
