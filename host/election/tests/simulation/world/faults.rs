//! Faults, actions that people take, and the end of all faults.

use super::*;

impl World {
    pub(super) fn fault(&mut self, fault: Fault) -> Checked {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Crash { host, down } if self.hosts[host].process.is_some() => {
                self.hosts[host].down = down;
                self.end_process(host);
            }
            Fault::Freeze { host, length } if self.now + length < self.plan.heal_at => {
                self.sends(host)?;
                self.hosts[host].frozen_until = self.hosts[host].frozen_until.max(self.now + length);
                self.cannot_be_ended(host);
            }
            Fault::SupervisorStops { host, length } if self.now + length < self.plan.heal_at => {
                self.coverage.supervisors_stopped += 1;
                self.sends(host)?;
                self.hosts[host].stopped_until = self.hosts[host].stopped_until.max(self.now + length);
                self.cannot_be_ended(host);
            }
            Fault::WatchdogStops { host, length } if self.now + length < self.plan.heal_at => {
                self.hosts[host].unwatched_until = self.hosts[host].unwatched_until.max(self.now + length);
                self.cannot_be_ended(host);
            }
            Fault::Slew { host, ppm, length } => {
                self.coverage.slewed += 1;
                let until = (self.now + length).min(self.plan.heal_at);
                self.hosts[host].slewed.1 = until;
                self.slew(host, ppm);
                self.push(until, Event::SlewEnds { host });
            }
            Fault::Jump { host, by } => {
                if let Some(process) = &mut self.hosts[host].process {
                    process.jump(by);
                }
                self.clocks_have_changed(host);
            }
            Fault::Outage { host, length, kind, of } => {
                let until = (self.now + length).min(self.plan.heal_at);
                self.outages.push(Failing { until, host, kind, of });
            }
            Fault::Command(command) => self.command(command),
            Fault::Maintain { host, length } => {
                if self.now < self.resumes_at(host) {
                    self.push(self.resumes_at(host), Event::Fault(fault));
                    return Ok(());
                }
                let until = (self.now + length).min(self.plan.heal_at);
                let incarnation = self.hosts[host].incarnation;
                self.push(until, Event::MaintenanceEnds { host, incarnation });
                return self.maintain(host, Some(self.queued));
            }
            Fault::LetsOthersAsk { host, length } => {
                self.hosts[host].lets_others_ask_until = (self.now + length).min(self.plan.heal_at);
            }
            Fault::Break { period } => self.store.break_lease(self.now, period),
            Fault::Delete => self.delete(),
            Fault::Plant => {
                if self.creates_under_way == 0 {
                    let _exists = self.store.create(None);
                }
            }
            Fault::Rewrite { back } => self.rewrite(back),
            Fault::Seize => self.seize(),
            Fault::StartAgain => self.start_again(),
            Fault::Restore { ahead } => self.restore_state(ahead),
            Fault::Outside { length } => self.take_outside(length),
            Fault::OutsideReturns => self.return_outside(),
            Fault::Publish { host, module, fallback } => {
                let [module, fallback] = [module, fallback].map(|one| one.map(|module| version(module, self.queued)));
                let plan = baton_election::Plan { module, fallback };
                self.hosts[host].serves = plan.clone();
                return self.tell(host, Input::Plan(plan), fault);
            }
            Fault::Stall { host } => {
                if self.instance(host).is_some() {
                    return self.tell(host, Input::Stalled { reason: "no progress".to_string() }, fault);
                }
            }
            Fault::StepDown { host } => return self.tell(host, Input::StepDown { reason: "asked".to_string() }, fault),
            Fault::Shutdown { host, down } => {
                self.hosts[host].down = down;
                let ends_by = self.now + Duration::from_secs(5 + 60) + self.plan.longest_lease() * 4;
                let incarnation = self.hosts[host].incarnation;
                if self.hosts[host].process.is_some() {
                    self.push(ends_by, Event::EndsBy { host, incarnation });
                }
                return self.tell(host, Input::Shutdown, fault);
            }
            Fault::SkipGrace { host } => return self.tell(host, Input::SkipGrace, fault),
            Fault::Crash { .. }
            | Fault::Freeze { .. }
            | Fault::SupervisorStops { .. }
            | Fault::WatchdogStops { .. } => {}
        }
        Ok(())
    }

    fn tell(&mut self, host: usize, input: Input, fault: Fault) -> Checked {
        if self.now < self.resumes_at(host) {
            self.push(self.resumes_at(host), Event::Fault(fault));
            return Ok(());
        }
        self.feed(host, input)
    }

    /// Records the time until which the host's instance cannot be ended: the supervisor and the watchdog are both
    /// paused, or have resumed too recently. Even during this time, the gate refuses effects after the deadline.
    fn cannot_be_ended(&mut self, host: usize) {
        let machine = &self.hosts[host];
        let unwatched_until = if self.plan.is_watched { machine.unwatched_until } else { Duration::MAX };
        let until = machine.frozen_until.max(machine.stopped_until.min(unwatched_until));
        let (now, lateness, lease) = (self.now, self.lateness(), self.plan.hosts[host].lease);
        if let Some(instance) = self.instance(host).filter(|instance| until + instance.ends_within(lease) > now) {
            instance.was_frozen_until = instance.was_frozen_until.max(until + lateness);
        }
    }

    pub(super) fn slew(&mut self, host: usize, ppm: i64) {
        let now = self.now;
        self.hosts[host].slewed.0 = ppm;
        if let Some(process) = &mut self.hosts[host].process {
            process.slew(now, ppm);
        }
        self.clocks_have_changed(host);
    }

    /// Makes the supervisor and the watchdog read the clock soon: the clock may have advanced further than their timers
    /// expect.
    fn clocks_have_changed(&mut self, host: usize) {
        let incarnation = self.hosts[host].incarnation;
        let Some(process) = &self.hosts[host].process else { return };
        let number = process.wakes;
        let watched = process.instance.as_ref().map(|instance| (host, incarnation, instance.number));
        self.push(self.now + self.lateness(), Event::Wake { host, incarnation, number });
        if let Some(key) = watched {
            self.look_at(key, self.now + self.lateness());
        }
    }

    /// Deletes the object, as an operator may do. Keeps the object if a node could then start the latest term again.
    /// This is so if the term is neither in the state nor in the announcement of the host that wrote the term, and one
    /// of these conditions holds:
    ///
    /// - No process is running, so no process knows the term.
    /// - A process has never read the object, so it may start a term immediately.
    /// - A create is in transit. If the create succeeds, its sender may believe that the new object is the first
    ///   object.
    /// - Hosts have different lease lengths, and a process does not know the latest term.
    fn delete(&mut self) {
        let alive: Vec<_> = self.hosts.iter().filter_map(|host| host.process.as_ref()).collect();
        if self.store.object.is_none() {
            return;
        }
        let lowest = alive.iter().map(|process| process.elector.written_term()).min().unwrap_or_default();
        if !self.latest_is_witnessed() {
            let all_know = alive.iter().all(|process| process.has_read_object);
            // If lease lengths differ, a host knows only the lengths that it has read.
            let latest = self.latest_term();
            let all_know_it = self.hosts.iter().enumerate().all(|(host, machine)| {
                let Some(process) = &machine.process else { return true };
                let own = name(host, machine.incarnation);
                let is_own = |record: &Record| record.term == latest && record.incarnation == own;
                process.elector.written_term() >= latest || self.records.iter().any(is_own)
            });
            let is_mixed = self.plan.shortest_lease() < self.plan.longest_lease();
            if alive.is_empty() || !all_know || self.creates_under_way > 0 || is_mixed && !all_know_it {
                return;
            }
        }
        self.history.deleted(lowest.max(self.witnessed()));
        self.coverage.deleted += 1;
        self.store.object = None;
        self.deleted = true;
    }

    /// The latest term that may have an instance. A term counts as soon as it is written. Its instance may start even
    /// if the record is deleted before the writer receives the answer.
    fn latest_term(&self) -> Term {
        self.history.floor().max(self.store.record().map_or(0, |record| record.term))
    }

    /// True if the latest term is in the state, or in the announcement of the host that wrote the term. Other hosts'
    /// announcements do not count: they may be removed while an instance of that term is still running.
    fn latest_is_witnessed(&self) -> bool {
        let latest = self.latest_term();
        let is_writers = |host: usize| {
            let node = format!("node-{host}");
            self.records.iter().any(|record| record.term == latest && record.node.as_ref() == Some(&node))
        };
        let by_state = self.plan.has_state && self.state_term >= latest;
        let is_announced = |host: usize| self.announced[host].term >= latest;
        latest == 0 || by_state || (0..self.hosts.len()).filter(|host| is_writers(*host)).any(is_announced)
    }

    /// Clears the outcome in the record if nobody holds the lease. Marks the record as released only if the last holder
    /// released the lease, or if the lease expired.
    fn start_again(&mut self) {
        if let Snapshot::Object { lease, record: Some(record), .. } = self.store.snapshot(self.now)
            && !lease.is_held()
            && record.outcome.is_some()
        {
            let released = match lease {
                LeaseState::Free => record.released,
                lease => lease == LeaseState::Expired,
            };
            self.store.rewrite(self.now, Record { outcome: None, released, ..record });
        }
    }

    /// Writes the latest record, or an earlier record, without holding the lease. If the latest term is neither in the
    /// state nor in the announcement of the host that wrote the term, writes only the latest record: after an earlier
    /// record, nobody could know the latest term.
    fn rewrite(&mut self, back: usize) {
        let Some(record) = self.records.iter().nth_back(back).cloned() else { return };
        let is_latest = self.store.record().is_some_and(|current| *current == record);
        if !is_latest && !self.latest_is_witnessed() {
            return;
        }
        let lowest = record.term.max(self.witnessed());
        if self.store.rewrite(self.now, record) {
            self.history.set_back(lowest);
            self.coverage.rewritten += 1;
        }
    }

    /// Breaks, acquires and releases the lease as an outside client, before any node can read it.
    fn seize(&mut self) {
        self.store.break_lease(self.now, Duration::ZERO);
        let id = LeaseId::from_random(u128::from(self.queued) << 64 | 2);
        if self.store.take_outside(self.now, id, None) {
            let _released = self.store.execute(self.now, &Op::Release { id });
            self.coverage.seized += 1;
        }
    }

    /// Restores the state, as an operator may do. The restored state may contain a later term, which then supersedes
    /// running instances.
    fn restore_state(&mut self, ahead: u64) {
        if !self.plan.has_state {
            return;
        }
        self.state_term += ahead;
        self.coverage.restored += 1;
        for host in 0..self.hosts.len() {
            let (incarnation, term) = (self.hosts[host].incarnation, self.state_term);
            if let Some(instance) = self.instance(host) {
                instance.superseded = Some(term);
                self.end_instance(host, incarnation, false);
            }
        }
    }

    /// Acquires the lease as an outside client. If the lease was broken, the client keeps it for longer than any
    /// instance can live: hosts could not notice a shorter lease.
    fn take_outside(&mut self, length: Option<Duration>) {
        let id = LeaseId::from_random(u128::from(self.queued) << 64 | 1);
        let after_break = matches!(self.store.object.as_ref().map(|one| one.lease), Some(Lease::Broken { .. }));
        let least = if after_break { Duration::from_secs(70) } else { Duration::ZERO };
        if self.store.take_outside(self.now, id, length.map(|length| length.max(least))) {
            self.outside = Some(id);
        }
    }

    fn return_outside(&mut self) {
        if let Some(id) = self.outside {
            let _ = self.store.execute(self.now, &Op::Release { id });
        }
    }

    /// Ends all faults. From now on, the machines run, the store answers, and nobody interferes.
    pub(super) fn heal(&mut self) -> Checked {
        self.note(|| "everything heals".to_string());
        self.outages.clear();
        if matches!(self.store.object.as_ref().map(|one| one.lease), Some(Lease::Breaking { .. })) {
            self.store.break_lease(self.now, Duration::ZERO);
        }
        if let Some(id) = self.outside
            && let Some(Lease::Forever { id: holder } | Lease::Held { id: holder, .. }) =
                self.store.object.as_ref().map(|one| one.lease)
            && id == holder
        {
            self.store.break_lease(self.now, Duration::ZERO);
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].serves.module.is_none() {
                self.fault(Fault::Publish { host, module: Some(0), fallback: None })?;
            }
        }
        self.end_commands()?;
        for count in 0..40 {
            self.push(self.now + Duration::from_secs(5) * count, Event::Fault(Fault::StartAgain));
        }
        Ok(())
    }
}
