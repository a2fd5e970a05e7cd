//! Draws the faults that a host's actions trigger.

use super::*;

pub(super) fn draw_aimed(rng: &mut Rng, hosts: &[HostPlan], heal_at: Instant) -> Vec<Aimed> {
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
        // In some cases, requests or answers are also lost at this moment.
        if rng.per_mille(300) {
            let of = rng.per_mille(700).then(|| rng.pick(&ASKS));
            let kind = rng.pick(&[Outage::Hang, Outage::Doubt]);
            let fault = Fault::Outage { host: Some(host), length: rng.between(Duration::ZERO, lease / 6), kind, of };
            aimed.push(Aimed { from, host, moment, after: Duration::ZERO, fault });
        }
    }
    // Draw from a clone, so that these draws change nothing else that the seed determines.
    let rng = &mut rng.clone();
    if rng.per_mille(60) {
        let from = rng.between(Duration::ZERO, heal_at - Duration::from_secs(1));
        let host = rng.below(hosts.len() as u64) as usize;
        draw_nothing_in_a_cool_off(rng, from, (host, &hosts[host]), &mut aimed);
    }
    if rng.per_mille(60) {
        let from = rng.between(Duration::ZERO, heal_at - Duration::from_secs(1));
        let host = rng.below(hosts.len() as u64) as usize;
        draw_pauses_after_a_kill(rng, from, (host, hosts[host].lease), &mut aimed);
    }
    aimed
}

/// Draws two kinds of faults for a leader: an outage of its renewals, and pauses around the time at which its instance
/// must be stopped, killed or gone.
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

/// Draws a deletion of the record, soon followed by a shutdown of the host that leads. Afterwards, only the host's
/// announcement and the coordinator's state can contain the host's term.
fn draw_end_without_a_trace(rng: &mut Rng, from: Instant, host: usize, lease: Duration, aimed: &mut Vec<Aimed>) {
    let moment = Moment::Starts;
    let deleted = rng.between(lease / 40, lease / 10);
    let ends = deleted + rng.between(Duration::ZERO, lease / 6);
    let down = rng.between(Duration::from_millis(100), lease);
    aimed.push(Aimed { from, host, moment, after: deleted, fault: Fault::Delete });
    aimed.push(Aimed { from, host, moment, after: ends, fault: Fault::Shutdown { host, down } });
}

/// Draws two plans for a standby. The first plan contains another version. The second plan contains the finished
/// version again, and arrives when the standby requests the lease, or soon after.
fn draw_return_to_what_is_over(rng: &mut Rng, from: Instant, (host, plan): (usize, &HostPlan), aimed: &mut Vec<Aimed>) {
    let publish = |module| Fault::Publish { host, module: Some(module), fallback: None };
    let other = Aimed { from, host, moment: Moment::Asks(Ask::Read), after: Duration::ZERO, fault: publish(2) };
    let after = rng.between(Duration::ZERO, plan.lease / 12);
    aimed.push(other);
    aimed.push(Aimed { moment: Moment::Asks(Ask::Acquire), after, fault: publish(plan.module), ..other });
}

/// Draws a step-down of a leader. In the cool-off that follows, the host has no module for a short time.
fn draw_nothing_in_a_cool_off(rng: &mut Rng, from: Instant, (host, plan): (usize, &HostPlan), aimed: &mut Vec<Aimed>) {
    let leaves = Fault::StepDown { host };
    aimed.push(Aimed { from, host, moment: Moment::Extends, after: Duration::ZERO, fault: leaves });
    let mut after = Duration::ZERO;
    for module in [None, Some(plan.module)] {
        after += rng.between(Duration::ZERO, plan.lease / 6);
        let fault = Fault::Publish { host, module, fallback: None };
        aimed.push(Aimed { from, host, moment: Moment::Asks(Ask::Release), after, fault });
    }
}

/// Draws a kill by a leader, and one or more pauses of that leader. The pauses start right after the kill, or around
/// the deadline.
fn draw_pauses_after_a_kill(rng: &mut Rng, from: Instant, (host, lease): (usize, Duration), aimed: &mut Vec<Aimed>) {
    let after = rng.between(Duration::ZERO, lease / 2);
    let kills = rng.pick(&[Fault::Break { period: Duration::ZERO }, Fault::StepDown { host }]);
    aimed.push(Aimed { from, host, moment: Moment::Extends, after, fault: kills });
    let unwatched = Fault::WatchdogStops { host, length: lease * 3 };
    if rng.per_mille(500) {
        aimed.push(Aimed { from, host, moment: Moment::Kills, after: Duration::ZERO, fault: unwatched });
    }
    let (at_once, about_the_deadline) = (rng.between(Duration::ZERO, lease / 50), rng.between(lease * 7 / 10, lease));
    let mut after = rng.pick(&[at_once, about_the_deadline]);
    for _ in 0..rng.pick(&[1, 1, 2, 20]) {
        let length = rng.between(lease / 30, lease);
        aimed.push(Aimed { from, host, moment: Moment::Kills, after, fault: Fault::Freeze { host, length } });
        after += length + rng.between(Duration::ZERO, lease / 20);
    }
}

/// Draws a fault that any action can trigger.
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
