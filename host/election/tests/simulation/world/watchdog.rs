//! Threads that act without the supervisor: an instance's own thread, which ends the instance at its deadline, and the
//! host's watchdog, which ends the host if the instance is not gone in time. Both threads know only the deadlines in
//! the elector's effects.

use super::*;

/// Maximum lateness of a check. If a check is later, the watchdog itself was paused.
const PAUSED: Duration = Duration::from_millis(500);

impl World {
    pub(super) fn look_at(&mut self, key: Key, at: Instant) {
        let Some(process) = self.hosts[key.0].process.as_mut().filter(|_| self.plan.is_watched) else { return };
        let planned = process.local(at);
        let Some(instance) = &mut process.instance else { return };
        instance.looks += 1;
        let look = instance.looks;
        self.push(at, Event::Watch { key, look, planned });
    }

    /// The instance's own thread reads the deadline, at least every D/12, and ends the instance after the deadline. A
    /// pause of the whole host also pauses the thread, but a pause of the watchdog does not.
    pub(super) fn reads_its_deadline(&mut self, key: Key) {
        let (host, incarnation, number) = key;
        if !self.plan.is_watched || self.process((host, incarnation)).is_none() {
            return;
        }
        let (now, frozen_until) = (self.now, self.hosts[host].frozen_until);
        let Some(process) = &mut self.hosts[host].process else { return };
        let runs = |one: &&Instance| one.number == number && !one.is_gone && !one.ending;
        let Some(deadline) = process.instance.as_ref().filter(runs).map(|instance| instance.deadline) else { return };
        if now < frozen_until {
            return self.push(frozen_until, Event::ReadsItsDeadline { key });
        }
        if process.local(now) >= deadline {
            self.coverage.ended_at_its_deadline += 1;
            return self.end_instance(host, incarnation, true);
        }
        let at = process.instant(deadline).min(now + self.plan.hosts[host].lease / 12);
        self.push(at + Duration::from_micros(100), Event::ReadsItsDeadline { key });
    }

    /// Checks an instance, unless the instance is gone or dying, or the watchdog is paused.
    pub(super) fn watch(&mut self, key: Key, look: u64, planned: Time) {
        let (host, incarnation, number) = key;
        let (now, lateness) = (self.now, self.lateness());
        if self.process((host, incarnation)).is_none() {
            return;
        }
        let machine = &mut self.hosts[host];
        let runs_from = machine.frozen_until.max(machine.unwatched_until);
        let Some(process) = &mut machine.process else { return };
        let local = process.local(now);
        let is_over = |one: &Instance| one.is_gone || one.is_dying();
        let is_watched = |one: &&mut Instance| one.number == number && one.looks == look && !is_over(one);
        let Some(instance) = process.instance.as_mut().filter(is_watched) else { return };
        if now < runs_from {
            return self.push(runs_from, Event::Watch { key, look, planned });
        }
        let deadline = instance.deadline;
        if local.since(planned) > PAUSED && local >= deadline && instance.woken.is_none_or(|woken| woken < deadline) {
            instance.woken = Some(local);
        }
        let overdue_at = instance.overdue_at();
        if local >= overdue_at {
            self.coverage.ended_by_watchdog += 1;
            return self.end_itself(host);
        }
        let at = process.instant(if local < deadline { deadline } else { overdue_at });
        let mut rng = Rng::about(&[self.plan.seed, 8, host as u64, number, look]);
        let late = if rng.per_mille(100) { rng.between(Duration::ZERO, lateness) } else { Duration::from_micros(100) };
        self.look_at(key, at + late);
    }

    /// Ends a host after it has sent its last report. The supervisor does nothing else while it sends the report.
    pub(super) fn end_itself(&mut self, host: usize) {
        self.hosts[host].down = self.plan.hosts[host].lease / 10;
        let words = self.instance(host).map_or(Duration::ZERO, |instance| instance.life.words);
        if words.is_zero() {
            return self.end_process(host);
        }
        let incarnation = self.hosts[host].incarnation;
        let at = self.now.max(self.hosts[host].frozen_until) + words;
        self.hosts[host].stopped_until = at + words;
        self.push(at, Event::EndsItself { host, incarnation });
    }
}
