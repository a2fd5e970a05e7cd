//! Draws a plan from a seed.

use super::aim::draw_aimed;
use baton_election::eligibility::HIGHEST_PRIORITY;

use super::*;

/// Minimum time between the last command and the end of the faults, so that all hosts have read the command by then.
const LAST_COMMAND: Duration = Duration::from_secs(6);

impl Plan {
    /// The plan for a seed. Each plan omits some kinds of faults, so that the other kinds also occur in isolation.
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
        let notes = if Rng::about(&[seed, 11]).per_mille(500) { Witness::Notes } else { Witness::None };
        let witness = if rng.per_mille(400) { Witness::Sees } else { notes };
        // In half of the plans that publish new versions, make some of the versions bad.
        if rng.per_mille(500) && faults.iter().any(|(_, fault)| matches!(fault, Fault::Publish { .. })) {
            weather.short_lives = weather.short_lives.max(500);
            weather.failures = weather.failures.max(500);
        }
        let mut beginnings = Rng::about(&[seed, 12]);
        if beginnings.per_mille(300) {
            weather.begins_late = beginnings.below(1000);
        }
        let links = Rng::about(&[seed, 11]).pick(&[Links::None, Links::Work, Links::Lie]);
        let mut faults = faults;
        draw_letting_others_ask(&mut Rng::about(&[seed, 4]), &hosts, heal_at, &mut faults);
        draw_commands(&mut Rng::about(&[seed, 13]), &mut hosts, heal_at, &mut faults);
        let schedule = draw_schedule(&mut Rng::about(&[seed, 17]));
        let details = Details::Drawn(weather);
        Self { seed, hosts, has_state, is_watched, witness, links, schedule, heal_at, faults, aimed, details }
    }

    pub(super) fn draw_fate(&self, network: &Network, (host, incarnation, number): Key) -> Fate {
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

    pub(super) fn draw_life(&self, weather: &Weather, (host, incarnation, number): Key) -> Life {
        let mut rng = Rng::about(&[self.seed, 3, host as u64, u64::from(incarnation), number]);
        let HostPlan { lease, grace, .. } = self.hosts[host];
        let mut life = HEALTHY;
        if rng.per_mille(weather.short_lives) {
            life.runs = Some(rng.pick(&[rng.clone().millis(1, 500), rng.clone().millis(1000, 90_000)]));
        }
        if rng.per_mille(weather.failures) {
            life.ends = rng.pick(&[
                Ending::Fatal,
                Ending::Crashed,
                Ending::Unable,
                Ending::Failed,
                Ending::Failed,
                Ending::Failed,
            ]);
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
        life.dying = rng.per_mille(500).then(|| rng.between(Duration::ZERO, lease / 20));
        if rng.per_mille(weather.begins_late) {
            life.begins = (!rng.per_mille(300)).then(|| rng.millis(0, 45_000));
        }
        life
    }
}

fn draw_schedule(rng: &mut Rng) -> Option<SchedulePlan> {
    if !rng.per_mille(300) {
        return None;
    }
    let skew = if rng.per_mille(300) { rng.millis(0, 15_000) } else { Duration::ZERO };
    let (period, skips) = (Duration::from_secs(rng.pick(&[5, 20, 60])), rng.per_mille(500));
    Some(SchedulePlan { period, skips, is_mixed: rng.per_mille(250), skew })
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
                priority: HIGHEST_PRIORITY,
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
        begins_late: 0,
    }
}

/// Draws fault rates. With a probability of `often` ‰, a kind of fault gets a random rate below `highest` ‰. Otherwise,
/// its rate is 0.
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
                // An outage during which renewals still work may last longer than the lease.
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
        // Repeat some faults within 2 s.
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

/// In some plans, draws a time for each host during which the host counts as leading its maximum number of elections.
/// For some hosts, this time starts with the run.
fn draw_letting_others_ask(rng: &mut Rng, hosts: &[HostPlan], heal_at: Instant, faults: &mut Vec<(Instant, Fault)>) {
    if !rng.per_mille(100) {
        return;
    }
    for (host, HostPlan { lease, .. }) in hosts.iter().enumerate() {
        let at = rng.pick(&[Duration::ZERO, rng.clone().between(Duration::ZERO, heal_at - Duration::from_secs(1))]);
        let length = rng.between(Duration::from_secs(1), *lease * 2);
        faults.push((at, Fault::LetsOthersAsk { host, length }));
    }
    faults.sort_by_key(|(at, _)| *at);
}

fn draw_commands(rng: &mut Rng, hosts: &mut [HostPlan], heal_at: Instant, faults: &mut Vec<(Instant, Fault)>) {
    if rng.per_mille(300) {
        hosts.iter_mut().for_each(|host| host.priority = rng.pick(&[0, 50, 90, HIGHEST_PRIORITY]));
    }
    if !rng.per_mille(300) {
        return;
    }
    for _ in 0..=rng.below(5) {
        let at = rng.between(Duration::ZERO, heal_at - LAST_COMMAND);
        let host = rng.below(hosts.len() as u64) as usize;
        let length = rng.millis(500, 30_000);
        let fault = match rng.below(6) {
            0 => Fault::Command(Command::Suspend),
            1 => Fault::Command(Command::Resume),
            2 => Fault::Command(Command::StepDown { host, length }),
            3 => Fault::Maintain { host, length },
            _ => Fault::Command(Command::Transfer { to: host, by_operator: rng.per_mille(500) }),
        };
        faults.push((at, fault));
        // Most suspended elections are resumed.
        if fault == Fault::Command(Command::Suspend) && rng.per_mille(700) {
            faults.push(((at + length).min(heal_at - LAST_COMMAND), Fault::Command(Command::Resume)));
        }
    }
    faults.sort_by_key(|(at, _)| *at);
}

/// Draws a publication that reaches one host after another. In some cases, the lease is lost at the same time, and each
/// host receives two more versions.
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

/// Draws a loss of the lease, and at the same time a new version for each host. Each host receives yet another version
/// so soon that the store has usually not answered yet.
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

/// Draws faults around a break of the lease: the leader may be cut off from the store and not notice the break, and
/// other hosts soon crash, step down or shut down. Because of this case, a new holder must wait after a break.
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
