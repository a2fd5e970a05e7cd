//! A plan: everything that a run does not leave to the elector. Hosts, faults at their times, what the
//! network does to each request, how each instance behaves. A plan is made from a seed, or read from a
//! replay; the world executes both in the same way.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::rng::Rng;
use crate::store::Instant;

/// How far a host's clock may run wrong, in millionths. The bound follows from the design: a holder that
/// waits D out on a fast clock must find an instance gone that is ended at 0.93 D on a slow one, so
/// `0.93 * (1 + drift) / (1 - drift)` plus the lateness of a wake-up (D/100) stays below 1.
pub const DRIFT_PPM: i64 = 30_000;
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
    /// From here on nothing goes wrong any more.
    pub heal_at: Instant,
    pub faults: Vec<(Instant, Fault)>,
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
    /// The wall clock, and so the host's clock, steps forward.
    Jump {
        host: usize,
        by: Duration,
    },
    /// The store fails a host, or all.
    Outage {
        host: Option<usize>,
        length: Duration,
        kind: Outage,
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

pub const HEALTHY: Life =
    Life { runs: None, ends: Ending::Done, stops: Some(Duration::from_millis(50)), gone: Duration::from_millis(10) };

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
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Weather {
    pub lost: u64,
    pub answer_lost: u64,
    pub late: u64,
    pub doubt: u64,
    pub repeated: u64,
    pub short_lives: u64,
    pub failures: u64,
    pub deaf: u64,
    pub stuck: u64,
}

impl Plan {
    /// The plan that a seed stands for. Each plan leaves some kinds of faults out, so that the others
    /// are met in purer form.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::about(&[seed, 1]);
        let hosts = draw_hosts(&mut rng);
        let longest = hosts.iter().map(|host| host.lease).max().unwrap_or_default();
        let heal_at = rng.between(Duration::from_secs(60), Duration::from_secs(120).max(longest * 8));
        let mut weather = draw_weather(&mut rng);
        let faults = draw_faults(&mut rng, &hosts, heal_at, longest);
        let has_state = rng.per_mille(500);
        // Where versions come and go, some of them are bad.
        if rng.per_mille(500) && faults.iter().any(|(_, fault)| matches!(fault, Fault::Publish { .. })) {
            weather.short_lives = weather.short_lives.max(500);
            weather.failures = weather.failures.max(500);
        }
        Self { seed, hosts, has_state, heal_at, faults, details: Details::Drawn(weather) }
    }

    pub fn longest_lease(&self) -> Duration {
        self.hosts.iter().map(|host| host.lease).max().unwrap_or_default()
    }

    pub fn shortest_lease(&self) -> Duration {
        self.hosts.iter().map(|host| host.lease).min().unwrap_or_default()
    }

    pub fn fate(&self, key: Key, healed: bool) -> Fate {
        match &self.details {
            Details::Written { fates, .. } => fates.get(&key).copied().unwrap_or(CALM),
            Details::Drawn(_) if healed => CALM,
            Details::Drawn(weather) => self.draw_fate(weather, key),
        }
    }

    pub fn life(&self, key: Key, healed: bool) -> Life {
        match &self.details {
            Details::Written { lives, .. } => lives.get(&key).copied().unwrap_or(HEALTHY),
            Details::Drawn(_) if healed => HEALTHY,
            Details::Drawn(weather) => self.draw_life(weather, key),
        }
    }

    fn draw_fate(&self, weather: &Weather, (host, incarnation, number): Key) -> Fate {
        let mut rng = Rng::about(&[self.seed, 2, host as u64, u64::from(incarnation), number]);
        let lease = self.hosts[host].lease;
        let quick = Duration::from_millis(2);
        let mut fate = CALM;
        fate.arrives = Some(rng.between(quick, lease / 40));
        fate.answer = Some(rng.between(quick, lease / 40));
        if rng.per_mille(weather.lost) {
            fate.arrives = None;
        } else if rng.per_mille(weather.late) {
            fate.arrives = Some(rng.between(lease / 12, lease * LATEST_ARRIVAL));
        }
        if rng.per_mille(weather.answer_lost) {
            fate.answer = None;
        } else if rng.per_mille(weather.late) {
            fate.answer = Some(rng.between(lease / 12, lease));
        }
        if rng.per_mille(weather.repeated) {
            fate.again = Some(rng.between(quick, lease * 2));
        }
        if rng.per_mille(weather.repeated) {
            fate.answer_again = Some(rng.between(quick, lease));
        }
        fate.doubt = rng.per_mille(weather.doubt);
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
    let mut some = |often: u64, highest: u64| if rng.per_mille(often) { rng.below(highest) } else { 0 };
    Weather {
        lost: some(500, 250),
        answer_lost: some(500, 250),
        late: some(600, 250),
        doubt: some(400, 200),
        repeated: some(500, 300),
        short_lives: some(600, 1000),
        failures: some(600, 1000),
        deaf: some(500, 1000),
        stuck: some(400, 500),
    }
}

fn draw_faults(rng: &mut Rng, hosts: &[HostPlan], heal_at: Instant, longest: Duration) -> Vec<(Instant, Fault)> {
    const KINDS: u64 = 15;
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
                // One under which the lease is kept may last longer than that.
                let longest = if kind == Outage::Unwritable { lease * 6 } else { lease * 2 };
                let length = rng.between(Duration::from_millis(100), longest);
                Fault::Outage { host: rng.per_mille(500).then_some(host), length, kind }
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
        Fault::Outage { host: Some(cut_off), length, kind: Outage::Hang },
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
