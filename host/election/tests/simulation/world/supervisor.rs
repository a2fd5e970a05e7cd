//! The supervisor, which carries out the elector's effects and reports the results.

use baton_election::IneligibleCause;

use super::*;

impl World {
    pub(super) fn execute(&mut self, host: usize, incarnation: u32, effect: Effect) -> Checked {
        match effect {
            Effect::Request { id, op, timeout, within_quota } => {
                self.send(host, incarnation, id, op, timeout, within_quota)
            }
            Effect::Start { term, version, run, deadline, abort_at } => {
                let running = self.running();
                self.history.start(host, incarnation, term, &running)?;
                self.run_is_due(host, incarnation, term, run)?;
                self.coverage.started += 1;
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                process.instances += 1;
                let key = (host, incarnation, process.instances);
                let life = self.plan.life(key, self.now >= self.plan.heal_at);
                if life != HEALTHY {
                    self.lives.insert(key, life);
                }
                process.instance = Some(Instance {
                    number: key.2,
                    term,
                    version,
                    lease: process.lease,
                    life,
                    begins_at_once: life.begins == Some(Duration::ZERO),
                    superseded: None,
                    deadline,
                    abort_at,
                    woken: None,
                    looks: 0,
                    is_gone: false,
                    closed: false,
                    is_asked_to_stop: false,
                    ending: false,
                    was_frozen_until: Duration::ZERO,
                });
                self.ask_for_the_state(key);
                match life.begins {
                    Some(Duration::ZERO) => {}
                    Some(begins) => self.push(self.now + begins, Event::Begins { key }),
                    None => self.coverage.never_begun += 1,
                }
                if let Some(runs) = life.runs {
                    self.push(self.now + runs, Event::Ends { key });
                }
                self.reads_its_deadline(key);
                self.look_at(key, self.now);
                self.comes_with(host, Moment::Starts);
                self.sends(host)
            }
            Effect::Extend { deadline, abort_at } => {
                if let Some(instance) = self.instance(host) {
                    (instance.deadline, instance.abort_at) = (deadline, abort_at);
                }
                self.comes_with(host, Moment::Extends);
                self.sends(host)
            }
            Effect::Stop { reason, .. } => {
                self.coverage.replaced += u64::from(reason == StopReason::Replaced);
                if let Some(instance) = self.instance(host) {
                    instance.is_asked_to_stop = true;
                }
                let now = self.now;
                if let Some(instance) = self.instance(host)
                    && let Some(stops) = instance.life.stops
                {
                    let key = (host, incarnation, instance.number);
                    self.push(now + stops, Event::Ends { key });
                }
                self.comes_with(host, Moment::Stops);
                Ok(())
            }
            Effect::Kill { .. } => {
                self.coverage.killed += 1;
                self.end_instance(host, incarnation, true);
                self.comes_with(host, Moment::Kills);
                Ok(())
            }
            Effect::Abort { .. } => {
                self.coverage.aborted += 1;
                self.end_itself(host);
                Ok(())
            }
            Effect::Finished => {
                self.coverage.shut_down += 1;
                // Remove the announcement only if the record contains the announced term or a higher term.
                if self.store.snapshot(self.now).covers(&self.announced[host]) {
                    self.announced[host] = Recalled::default();
                }
                self.end_process(host);
                Ok(())
            }
            Effect::Prove { version, .. } => {
                self.coverage.proven += 1;
                let serves = &mut self.hosts[host].serves;
                serves.fallback.take_if(|_| serves.module.as_ref() == Some(&version));
                Ok(())
            }
            Effect::Reject { version, instead, .. } => {
                self.coverage.rejected += 1;
                let plan = baton_election::Plan { module: Some(version), fallback: instead.clone() };
                self.push(self.now + Duration::from_millis(1), Event::Outdated { host, incarnation, plan });
                self.hosts[host].serves = baton_election::Plan { module: instead, ..baton_election::Plan::default() };
                Ok(())
            }
            Effect::Tell(word) => {
                self.tell_others(host, incarnation, &word);
                Ok(())
            }
            Effect::Report(report) => {
                match report {
                    Report::Settling { .. } => self.coverage.settled += 1,
                    Report::CoolOff { .. } => self.coverage.cooled_off += 1,
                    Report::HeldOutside { .. } => self.coverage.held_outside += 1,
                    Report::Lost { .. } => self.coverage.lost += 1,
                    Report::Released => self.coverage.released += 1,
                    Report::ElectionOver { .. } => self.coverage.over += 1,
                    Report::Deferring { .. } => self.coverage.deferred += 1,
                    Report::AwaitingRun { .. } => self.coverage.awaited += 1,
                    Report::RunSkipped { .. } => self.coverage.skipped += 1,
                    Report::ProgressAhead { .. } => self.coverage.ahead += 1,
                    Report::Eligible { before } => {
                        let now = self.now;
                        let process = self.hosts[host].process.as_ref();
                        let local = process.map_or(Time::default(), |process| process.local(now));
                        let ended_early = before.until.is_some_and(|until| local < until);
                        let is_transfer = matches!(before.cause, IneligibleCause::Transferring { .. });
                        self.coverage.transfers_failed += u64::from(is_transfer && ended_early);
                    }
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn run_is_due(&mut self, host: usize, incarnation: u32, term: Term, run: Option<ScheduledRun>) -> Checked {
        // Use the fastest of the hosts' wall clocks: if this instance repeats a run, a host with a faster clock may
        // have begun that run.
        let wall = self.wall(self.hosts.len());
        let Some(schedule) = &self.plan.schedule else {
            return if run.is_some() { broken("runs_when_due", format!("{run:?} without a schedule")) } else { Ok(()) };
        };
        let Some(run) = run else { return broken("runs_when_due", format!("term {term} has no due time")) };
        if run.due > wall || !run.due.as_secs().is_multiple_of(schedule.period.as_secs()) {
            return broken("runs_when_due", format!("{run:?} begins at {wall:?}"));
        }
        self.coverage.runs += 1;
        self.coverage.repeated += u64::from(self.history.run_begins((host, incarnation, term), run)?);
        Ok(())
    }

    /// Claims the state for a term, before the term's instance does anything else.
    fn ask_for_the_state(&mut self, key: Key) {
        let (host, incarnation, number) = key;
        if !self.plan.has_state {
            return;
        }
        let fate_key = (host, incarnation, CLAIMS + number);
        let fate = self.plan.fate(fate_key, Ask::Claim, self.now >= self.plan.heal_at);
        self.comes_with(host, Moment::Asks(Ask::Claim));
        if fate == CALM {
            return self.claim(key);
        }
        self.fates.insert(fate_key, fate);
        self.push(self.now + fate.arrives.unwrap_or(CLAIMED_AGAIN), Event::Claim { key });
    }

    /// Fails the claim if the same or a later term has already claimed the state.
    pub(super) fn claim(&mut self, key: Key) {
        let (host, incarnation, number) = key;
        let is_failing = self.outage(host, Ask::Claim).is_some_and(|kind| kind != Outage::Doubt);
        let claimed = self.state_term;
        let is_there = |one: &&mut Instance| one.number == number && !one.ending;
        if self.process((host, incarnation)).is_none() {
            return;
        }
        let Some(instance) = self.instance(host).filter(is_there) else { return };
        if is_failing {
            self.push(self.now + CLAIMED_AGAIN, Event::Claim { key });
        } else if claimed < instance.term {
            self.state_term = instance.term;
        } else {
            instance.superseded = Some(claimed);
            self.end_instance(host, incarnation, false);
        }
    }

    /// Makes the instance send an effect, if its gate is open. The effect may take a while to arrive.
    pub(super) fn sends(&mut self, host: usize) -> Checked {
        let now = self.now;
        let incarnation = self.hosts[host].incarnation;
        let Some(process) = self.hosts[host].process.as_ref().filter(|process| process.passes(now)) else {
            return Ok(());
        };
        let Some(instance) = process.instance.as_ref().filter(|_| now >= self.hosts[host].frozen_until) else {
            return Ok(());
        };
        let lands = instance.life.lands;
        let Some(sent) = self.history.sends(instance.term, (host, incarnation, instance.number)) else {
            return Ok(());
        };
        if lands.is_zero() {
            return self.history.receiver.takes_at_once(sent);
        }
        self.push(now + lands, Event::Lands(sent));
        Ok(())
    }

    fn send(
        &mut self,
        host: usize,
        incarnation: u32,
        id: RequestId,
        op: Op,
        timeout: Duration,
        within_quota: bool,
    ) -> Checked {
        let key = (host, incarnation, id.0);
        let lets_others_ask = self.now < self.hosts[host].lets_others_ask_until;
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let was_sent = match &op {
            Op::Acquire { id, .. } | Op::Reclaim { id, .. } => process.lease == Some(*id),
            _ => true,
        };
        if within_quota && was_sent {
            return broken("sent_requests_are_not_withheld", format!("{op:?}"));
        }
        if within_quota && lets_others_ask {
            self.coverage.not_sent += 1;
            self.push(self.now, Event::NotSent { key });
            return Ok(());
        }
        let (recalls, others) = &mut process.asked;
        let (count, from) = if op == Op::Recall { (recalls, RECALLS) } else { (others, 0) };
        *count += 1;
        let fate_key = (host, incarnation, from + *count);
        let ask = Ask::of(&op);
        let fate = self.plan.fate(fate_key, ask, self.now >= self.plan.heal_at);
        if fate != CALM {
            self.fates.insert(fate_key, fate);
        }
        process.unanswered.insert(id);
        if let Op::Acquire { id, .. } | Op::Reclaim { id, .. } = &op {
            process.lease = Some(*id);
            process.leases.push(*id);
            if self.plan.witness.has_notes() {
                self.store.notes.ids.insert(name(host, incarnation), vec![*id]);
            }
            if self.plan.witness == Witness::LooksElsewhere {
                let ids = vec![*id];
                self.push(self.now + Duration::from_millis(100), Event::IsSeenGone { host, incarnation, ids });
            }
        }
        if let Op::Release { .. } = &op {
            self.store.notes.remove(&name(host, incarnation));
            self.store.notes.ids.remove(&name(host, incarnation));
        }
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let gives_up = process.instant(process.local(self.now) + timeout);
        self.push(gives_up, Event::Timeout { key });
        self.comes_with(host, Moment::Asks(ask));
        let is_create = matches!(op, Op::Create { .. });
        let Some(arrives) = fate.arrives else { return Ok(()) };
        self.creates_under_way += u32::from(is_create);
        if let Some(again) = fate.again {
            self.creates_under_way += u32::from(is_create);
            let silent = Fate { answer: None, answer_again: None, ..fate };
            self.push(self.now + arrives + again, Event::Arrive { key, op: op.clone(), fate: silent });
        }
        self.push(self.now + arrives, Event::Arrive { key, op, fate });
        Ok(())
    }

    /// Ends or kills an instance: its gate closes now, and its process exits a little later.
    pub(super) fn end_instance(&mut self, host: usize, incarnation: u32, killed: bool) {
        let now = self.now;
        let Some(instance) = self.instance(host) else { return };
        instance.closed = true;
        if std::mem::replace(&mut instance.ending, true) {
            return;
        }
        let (key, life) = ((host, incarnation, instance.number), instance.life);
        self.push(now + life.gone, Event::Gone { key, killed });
        if let Some(dying) = life.dying {
            self.push(now + dying, Event::Dying { key });
        }
    }

    pub(super) fn happen(&mut self, host: usize, event: Event) -> Checked {
        match event {
            Event::Answer { key: (.., id), result, is_stale } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                let is_awaited = process.unanswered.remove(&RequestId(id));
                if is_awaited && let Ok(Reply::Read(read) | Reply::Surveyed { read, .. }) = &result {
                    process.has_read_object |= *read != Snapshot::Nothing;
                }
                if is_awaited || is_stale {
                    if let Ok(reply) = &result {
                        self.reads_commands_with(host, reply)?;
                    }
                    return self.feed(host, Input::Answer { id: RequestId(id), result });
                }
                Ok(())
            }
            Event::NotSent { key: (.., id) } => {
                self.feed(host, Input::NotSent { id: RequestId(id), reason: "it leads enough".to_string() })
            }
            Event::ReadsCommands { .. } => self.reads_commands(host),
            Event::MaintenanceEnds { .. } => self.maintain(host, None),
            Event::Timeout { key: (.., id) } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                if process.unanswered.remove(&RequestId(id)) {
                    let result = Err(StoreError::Unknown("timeout".to_string()));
                    return self.feed(host, Input::Answer { id: RequestId(id), result });
                }
                Ok(())
            }
            Event::Begins { key: (.., number) } => {
                // The instance may have ended, but the supervisor cannot know that yet.
                if self.instance(host).is_some_and(|instance| instance.number == number) {
                    return self.feed(host, Input::Begun);
                }
                Ok(())
            }
            Event::Ends { key: (_, incarnation, number) } => {
                if self.instance(host).is_some_and(|instance| instance.number == number) {
                    self.end_instance(host, incarnation, false);
                }
                Ok(())
            }
            Event::Gone { key, killed } => {
                if let Some(instance) = self.instance(host).filter(|one| one.number == key.2) {
                    instance.is_gone = true;
                }
                self.step(Event::GoneIsTold { key, killed })
            }
            Event::Dying { key: (.., number) } => match self.instance(host) {
                Some(instance) if instance.number == number && !instance.is_gone => {
                    self.coverage.dying += 1;
                    self.feed(host, Input::Dying)
                }
                _ => Ok(()),
            },
            Event::Hint { hint, .. } => self.feed(host, Input::Hint(hint)),
            Event::GoneIsTold { key: (.., number), killed } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                let Some(instance) = process.instance.take_if(|one| one.number == number) else { return Ok(()) };
                let end = match instance.life.ends {
                    _ if killed => End::Killed,
                    _ if instance.superseded.is_some() => End::Superseded { term: instance.superseded.unwrap_or(0) },
                    Ending::Done => End::Done,
                    Ending::Failed => End::Failed("it failed".to_string()),
                    Ending::Crashed => End::Crashed("it trapped".to_string()),
                    Ending::Fatal => End::Fatal("it failed for good".to_string()),
                    Ending::Unable => End::Unable("no secret".to_string()),
                };
                self.feed(host, Input::Gone { end })
            }
            _ => Ok(()),
        }
    }
}
