//! The world: hosts, network and store as one queue of events in true time. It executes the electors'
//! effects as a supervisor does, lets go wrong what the plan says, and checks every promise after each
//! event. Then everything heals, and somebody must lead within [`World::bound`].

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use baton_election::{Effect, End, Input, LeaseId, LeaseState, Now, Op, Refusal, Reply, Report, RequestId, Snapshot};

use crate::coverage::Coverage;
use crate::host::{Host, Instance, Process};
use crate::invariants::{Checked, History, Running, Violation, broken};
use crate::plan::{CALM, Ending, Fate, Fault, HEALTHY, Key, LATEST_ARRIVAL, Life, Outage, Plan};
use crate::rng::Rng;
use crate::store::{Instant, Lease, Store};

/// Everything, at one moment.
pub struct World {
    plan: Plan,
    now: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    queued: u64,
    hosts: Vec<Host>,
    store: Store,
    history: History,
    outages: Vec<(Instant, Option<usize>, Outage)>,
    /// Creates that may still reach the store.
    creates_under_way: u32,
    /// The object was deleted, and no record has been made since.
    deleted: bool,
    /// When an outside client may give back a lease that it took although an instance may have run.
    outside: Option<(LeaseId, Instant)>,
    pub coverage: Coverage,
    /// What the plan decided about requests and instances, where it is not the calm one.
    pub fates: BTreeMap<Key, Fate>,
    pub lives: BTreeMap<Key, Life>,
    /// What happened, for a person; kept only if asked for.
    pub trace: Option<Vec<String>>,
}

#[derive(Debug)]
enum Event {
    Start {
        host: usize,
    },
    Wake {
        host: usize,
        incarnation: u32,
        number: u64,
    },
    Arrive {
        key: Key,
        op: Op,
        fate: Fate,
    },
    Answer {
        key: Key,
        result: Result<Reply, Refusal>,
        is_stale: bool,
    },
    Timeout {
        key: Key,
    },
    Ends {
        key: Key,
    },
    Gone {
        key: Key,
        killed: bool,
    },
    Fault(Fault),
    /// Only so that the promises are checked at this moment.
    Look,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            queued: 0,
            hosts: plan.hosts.iter().map(|_| Host::default()).collect(),
            store: Store::default(),
            history: History::default(),
            outages: Vec::new(),
            creates_under_way: 0,
            deleted: false,
            outside: None,
            coverage: Coverage::default(),
            fates: BTreeMap::new(),
            lives: BTreeMap::new(),
            trace: None,
            plan,
        };
        for host in 0..world.hosts.len() {
            let at = Rng::about(&[world.plan.seed, 5, host as u64]).millis(0, 3000);
            world.push(at, Event::Start { host });
        }
        for (at, fault) in world.plan.faults.clone() {
            world.push(at, Event::Fault(fault));
        }
        world
    }

    /// Runs the plan to its end, and after it until somebody leads for good.
    pub fn run(&mut self) -> Checked {
        self.run_until(self.plan.heal_at, |_| false)?;
        self.heal()?;
        let bound = self.bound();
        let led = self.run_until(self.plan.heal_at + bound, |world| world.leading_term().is_some())?;
        let Some(term) = self.leading_term().filter(|_| led) else {
            return broken("host_survives", format!("nobody leads {bound:?} after everything has healed"));
        };
        let one =
            self.hosts.iter().filter_map(|host| host.process.as_ref()?.instance.as_ref()).find(|one| one.term == term);
        if one.is_none_or(|one| one.life != HEALTHY) {
            return Ok(());
        }
        let stable = self.now + self.plan.longest_lease() * 2;
        self.run_until(stable, |_| false)?;
        if self.leading_term() != Some(term) {
            return broken("host_survives", format!("term {term} did not last, though nothing went wrong"));
        }
        Ok(())
    }

    /// Within this time after the last fault somebody leads: what is still under way arrives (3 D), the
    /// lease that it may take or keep alive runs out (60 s at most), a holder that cannot exclude another
    /// waits (60 s), the longest back-off (30 s and its jitter), the 10 s for which a node in cool-off
    /// must see the lease free, a rest or pause under the lease (75 s), three polls.
    pub fn bound(&self) -> Duration {
        self.plan.longest_lease() * LATEST_ARRIVAL + Duration::from_secs(60 + 60 + 38 + 10 + 75 + 4)
    }

    fn run_until(&mut self, end: Instant, is_enough: impl Fn(&Self) -> bool) -> Result<bool, Violation> {
        while !is_enough(self) {
            let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) else {
                self.now = end;
                return Ok(false);
            };
            let (at, _) = *entry.key();
            let event = entry.remove();
            self.now = self.now.max(at);
            self.step(event)?;
            let running = self.running();
            History::one_at_a_time(&running)?;
            self.history.gone_in_time(self.now, &running)?;
        }
        Ok(true)
    }

    fn step(&mut self, event: Event) -> Checked {
        match event {
            Event::Start { host } => self.start_process(host),
            Event::Arrive { key, op, fate } => self.arrive(key, &op, fate),
            Event::Fault(fault) => self.fault(fault),
            Event::Look => Ok(()),
            Event::Wake { host, incarnation, number } => {
                if self.process((host, incarnation)).is_none_or(|process| process.wakes != number) {
                    return Ok(());
                }
                if self.is_frozen(host) {
                    let late = Rng::about(&[self.plan.seed, 6, number]).between(Duration::ZERO, self.lateness());
                    self.push(self.hosts[host].frozen_until + late, event);
                    return Ok(());
                }
                self.feed(host, Input::Tick)
            }
            Event::Answer { key: (host, incarnation, _), .. }
            | Event::Timeout { key: (host, incarnation, _) }
            | Event::Ends { key: (host, incarnation, _) }
            | Event::Gone { key: (host, incarnation, _), .. } => {
                if self.process((host, incarnation)).is_none() {
                    return Ok(());
                }
                if self.is_frozen(host) {
                    self.push(self.hosts[host].frozen_until, event);
                    return Ok(());
                }
                self.happen(host, event)
            }
        }
    }

    // ---- processes ----

    fn start_process(&mut self, host: usize) -> Checked {
        // A host that starts after the object was deleted under somebody's feet cannot know that it must
        // wait: the design lets it start at once. The operator who deletes keeps such hosts away.
        if self.deleted && self.hosts.iter().any(|host| host.process.is_some()) {
            self.push(self.now + Duration::from_secs(1), Event::Start { host });
            return Ok(());
        }
        if self.deleted {
            // Nobody is left who knows of any term: the election begins anew.
            self.deleted = false;
            self.history.deleted(0);
        }
        let machine = &mut self.hosts[host];
        if machine.process.is_some() {
            return Ok(());
        }
        machine.incarnation += 1;
        let process = Process::new(self.now, host, machine.incarnation, &self.plan.hosts[host], self.plan.seed);
        machine.process = Some(process);
        self.note(|| format!("host {host} starts"));
        self.feed(host, Input::Tick)
    }

    fn end_process(&mut self, host: usize) {
        self.note(|| format!("host {host} ends"));
        let machine = &mut self.hosts[host];
        machine.process = None;
        let soon = self.now + Duration::from_millis(100);
        let at = (self.now.max(machine.frozen_until) + machine.down).min(self.plan.heal_at).max(soon);
        self.push(at, Event::Start { host });
    }

    /// Lets the elector take an input, and executes what comes out.
    fn feed(&mut self, host: usize, input: Input) -> Checked {
        let now = self.now;
        let incarnation = self.hosts[host].incarnation;
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        process.conduct.input(local, &input);
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:10.3?} host {host} at {local:?} <- {input:?}"));
        }
        let elector = &mut process.elector;
        let handled = catch_unwind(AssertUnwindSafe(|| {
            elector.handle(Now { time: local, wall: now }, input);
            std::iter::from_fn(|| elector.poll_effect()).collect::<Vec<_>>()
        }));
        let Ok(effects) = handled else { return broken("host_survives", format!("host {host} panics")) };
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{now:10.3?} host {host} at {local:?} -> {effect:?}"));
            }
            if let Effect::Request { op, .. } = &effect {
                self.history.sent(op)?;
            }
            let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
            process.conduct.effect(local, &effect)?;
            self.execute(host, incarnation, effect)?;
        }
        self.schedule_wake(host, incarnation)
    }

    fn schedule_wake(&mut self, host: usize, incarnation: u32) -> Checked {
        let now = self.now;
        let lateness = self.lateness();
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        let wakeup = process.elector.next_wakeup();
        process.conduct.settled(local, wakeup)?;
        process.wakes += 1;
        let Some(wakeup) = wakeup else { return Ok(()) };
        process.idle_wakes = if wakeup <= local { process.idle_wakes + 1 } else { 0 };
        if process.idle_wakes > 100 {
            return broken("host_survives", format!("host {host} spins: it wants to wake at {wakeup:?}"));
        }
        let mut rng = Rng::about(&[self.plan.seed, 7, host as u64, process.wakes]);
        let late = if rng.per_mille(100) { rng.between(Duration::ZERO, lateness) } else { Duration::from_micros(100) };
        let (at, number) = (process.instant(wakeup).max(now) + late, process.wakes);
        self.push(at, Event::Wake { host, incarnation, number });
        Ok(())
    }

    /// How late a wake-up may be.
    fn lateness(&self) -> Duration {
        self.plan.shortest_lease() / 100
    }

    // ---- what the supervisor does ----

    fn execute(&mut self, host: usize, incarnation: u32, effect: Effect) -> Checked {
        match effect {
            Effect::Request { id, op, timeout } => self.send(host, incarnation, id, op, timeout),
            Effect::Start { term, deadline, .. } => {
                let running = self.running();
                self.history.start(host, incarnation, term, &running)?;
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
                    lease: process.lease,
                    life,
                    deadline,
                    closed: false,
                    ending: false,
                    was_frozen_until: Duration::ZERO,
                });
                if let Some(runs) = life.runs {
                    self.push(self.now + runs, Event::Ends { key });
                }
                Ok(())
            }
            Effect::Extend { deadline, .. } => {
                if let Some(instance) = self.instance(host) {
                    instance.deadline = deadline;
                }
                Ok(())
            }
            Effect::Stop { .. } => {
                let now = self.now;
                if let Some(instance) = self.instance(host)
                    && let Some(stops) = instance.life.stops
                {
                    let key = (host, incarnation, instance.number);
                    self.push(now + stops, Event::Ends { key });
                }
                Ok(())
            }
            Effect::Kill { .. } => {
                self.coverage.killed += 1;
                self.end_instance(host, incarnation, true);
                Ok(())
            }
            Effect::Abort { .. } => {
                self.coverage.aborted += 1;
                self.hosts[host].down = self.plan.hosts[host].lease / 10;
                self.end_process(host);
                Ok(())
            }
            Effect::Finished => {
                self.coverage.shut_down += 1;
                self.end_process(host);
                Ok(())
            }
            Effect::Report(report) => {
                match report {
                    Report::Settling { .. } => {
                        self.coverage.settled += 1;
                        self.hosts[host].is_settling = true;
                    }
                    Report::Standby { .. } | Report::Elected { .. } => self.hosts[host].is_settling = false,
                    Report::CoolOff { .. } => self.coverage.cooled_off += 1,
                    Report::HeldOutside { .. } => self.coverage.held_outside += 1,
                    Report::Lost { .. } => self.coverage.lost += 1,
                    Report::Released => self.coverage.released += 1,
                    Report::ElectionOver { .. } => self.coverage.over += 1,
                    _ => {}
                }
                Ok(())
            }
        }
    }

    fn send(&mut self, host: usize, incarnation: u32, id: RequestId, op: Op, timeout: Duration) -> Checked {
        let key = (host, incarnation, id.0);
        let fate = self.plan.fate(key, self.now >= self.plan.heal_at);
        if fate != CALM {
            self.fates.insert(key, fate);
        }
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        process.unanswered.insert(id);
        if let Op::Acquire { id, .. } = &op {
            process.lease = Some(*id);
        }
        let gives_up = process.instant(process.local(self.now) + timeout);
        self.push(gives_up, Event::Timeout { key });
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

    /// An instance has ended or is killed: nothing of it passes any more, and it is gone a little later.
    fn end_instance(&mut self, host: usize, incarnation: u32, killed: bool) {
        let now = self.now;
        let Some(instance) = self.instance(host) else { return };
        instance.closed = true;
        if std::mem::replace(&mut instance.ending, true) {
            return;
        }
        let (key, at) = ((host, incarnation, instance.number), now + instance.life.gone);
        self.push(at, Event::Gone { key, killed });
    }

    fn happen(&mut self, host: usize, event: Event) -> Checked {
        match event {
            Event::Answer { key: (.., id), result, is_stale } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                if process.unanswered.remove(&RequestId(id)) || is_stale {
                    return self.feed(host, Input::Answer { id: RequestId(id), result });
                }
                Ok(())
            }
            Event::Timeout { key: (.., id) } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                if process.unanswered.remove(&RequestId(id)) {
                    let result = Err(Refusal::Unknown("timeout".to_string()));
                    return self.feed(host, Input::Answer { id: RequestId(id), result });
                }
                Ok(())
            }
            Event::Ends { key: (_, incarnation, number) } => {
                if self.instance(host).is_some_and(|instance| instance.number == number) {
                    self.end_instance(host, incarnation, false);
                }
                Ok(())
            }
            Event::Gone { key: (.., number), killed } => {
                let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
                let Some(instance) = process.instance.take_if(|one| one.number == number) else { return Ok(()) };
                let end = match instance.life.ends {
                    _ if killed => End::Killed,
                    Ending::Done => End::Done,
                    Ending::Failed => End::Failed("it failed".to_string()),
                    Ending::Fatal => End::Fatal("it failed for good".to_string()),
                };
                self.feed(host, Input::Gone { end })
            }
            _ => Ok(()),
        }
    }

    // ---- the network and the store ----

    fn arrive(&mut self, key: Key, op: &Op, fate: Fate) -> Checked {
        let (host, incarnation, _) = key;
        self.creates_under_way -= u32::from(matches!(op, Op::Create { .. }));
        self.outages.retain(|(until, ..)| *until > self.now);
        let outage = self.outages.iter().find(|(_, scope, _)| scope.is_none_or(|scope| scope == host));
        let mut result = match outage.map(|(.., kind)| *kind) {
            Some(Outage::Hang) => return Ok(()),
            Some(Outage::Refuse) => Err(Refusal::Unknown("503".to_string())),
            Some(Outage::Misconfigured) => Err(Refusal::Misconfigured("no such account".to_string())),
            Some(Outage::Doubt) => {
                let _unknown = self.carry_out(host, incarnation, op)?;
                Err(Refusal::Unknown("503".to_string()))
            }
            None => self.carry_out(host, incarnation, op)?,
        };
        if fate.doubt {
            result = Err(Refusal::Unknown("500".to_string()));
        }
        if let Some(answer) = fate.answer {
            if let Some(again) = fate.answer_again {
                let event = Event::Answer { key, result: result.clone(), is_stale: true };
                self.push(self.now + answer + again, event);
            }
            self.push(self.now + answer, Event::Answer { key, result, is_stale: false });
        }
        Ok(())
    }

    fn carry_out(&mut self, host: usize, incarnation: u32, op: &Op) -> Result<Result<Reply, Refusal>, Violation> {
        let before = self.store.object.as_ref().and_then(|object| object.record.clone());
        let was_expired = self.store.lease_end().is_some_and(|end| end <= self.now);
        let result = self.store.execute(self.now, op);
        self.note(|| format!("store: {op:?} of host {host} -> {result:?}"));
        let end = self.store.lease_end();
        self.history.executed((host, incarnation), op, &result, before.as_ref(), end)?;
        if result.is_ok() {
            if let (Op::Acquire { .. } | Op::Renew { .. }, Some(end)) = (op, end) {
                self.push(end, Event::Look);
            }
            if matches!(op, Op::Renew { .. }) && was_expired {
                self.coverage.renewed_late += 1;
            }
            if matches!(op, Op::Create { .. } | Op::Write { .. }) {
                self.deleted = false;
            }
        }
        Ok(result)
    }

    // ---- faults ----

    fn fault(&mut self, fault: Fault) -> Checked {
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Crash { host, down } if self.hosts[host].process.is_some() => {
                self.hosts[host].down = down;
                self.end_process(host);
            }
            Fault::Freeze { host, length } if self.now + length < self.plan.heal_at => {
                self.hosts[host].frozen_until = self.hosts[host].frozen_until.max(self.now + length);
                let until = self.hosts[host].frozen_until + self.lateness();
                if let Some(instance) = self.instance(host) {
                    instance.was_frozen_until = until;
                }
            }
            Fault::Jump { host, by } if !self.hosts[host].is_settling => {
                let incarnation = self.hosts[host].incarnation;
                if let Some(process) = &mut self.hosts[host].process {
                    process.jump(by);
                    let number = process.wakes;
                    // A clock that is read every 250 ms is seen to have jumped.
                    self.push(self.now + self.lateness(), Event::Wake { host, incarnation, number });
                }
            }
            Fault::Outage { host, length, kind } => {
                let until = (self.now + length).min(self.plan.heal_at);
                self.outages.push((until, host, kind));
            }
            Fault::Break { period } => self.store.break_lease(self.now, period),
            Fault::Delete => self.delete(),
            Fault::Plant => {
                if self.creates_under_way == 0 {
                    let _exists = self.store.create(None);
                }
            }
            Fault::StartAgain => self.start_again(),
            Fault::Outside { length } => self.take_outside(length),
            Fault::OutsideReturns => self.return_outside(),
            Fault::StepDown { host } => return self.tell(host, Input::StepDown { reason: "asked".to_string() }, fault),
            Fault::Shutdown { host, down } => {
                self.hosts[host].down = down;
                return self.tell(host, Input::Shutdown, fault);
            }
            Fault::SkipGrace { host } => return self.tell(host, Input::SkipGrace, fault),
            // A step forward would shorten the wait of a holder that waits another out by as much: the one
            // place where a clock that is fast is not on the safe side.
            Fault::Jump { .. } | Fault::Crash { .. } | Fault::Freeze { .. } => {}
        }
        Ok(())
    }

    fn tell(&mut self, host: usize, input: Input, fault: Fault) -> Checked {
        if self.is_frozen(host) {
            self.push(self.hosts[host].frozen_until, Event::Fault(fault));
            return Ok(());
        }
        self.feed(host, input)
    }

    /// An operator deletes the object; not while a host is about that has never seen it, for that one may
    /// start at once, and not while a create is under way that such a host will take for the first.
    fn delete(&mut self) {
        let alive: Vec<_> = self.hosts.iter().filter_map(|host| host.process.as_ref()).collect();
        let all_know = alive.iter().all(|process| process.conduct.has_seen_the_election());
        if self.store.object.is_none() || alive.is_empty() || !all_know || self.creates_under_way > 0 {
            return;
        }
        let lowest = alive.iter().map(|process| process.conduct.highest_term()).min().unwrap_or_default();
        // Where hosts have different lease lengths, the one that was not read is not known either.
        if self.plan.shortest_lease() < self.plan.longest_lease() && lowest < self.history.floor() {
            return;
        }
        self.history.deleted(lowest);
        self.coverage.deleted += 1;
        self.store.object = None;
        self.deleted = true;
    }

    /// Somebody clears the outcome of a record whose lease nobody holds.
    fn start_again(&mut self) {
        if let Snapshot::Object { lease, record: Some(record), .. } = self.store.snapshot(self.now)
            && matches!(lease, LeaseState::Free | LeaseState::Expired | LeaseState::Broken)
            && record.outcome.is_some()
        {
            self.store.rewrite(|record| record.outcome = None);
        }
    }

    /// A client that is not Baton. A broken lease it keeps for longer than any instance can last: that is
    /// the one thing that no host could find out.
    fn take_outside(&mut self, length: Option<Duration>) {
        let id = LeaseId::from_random(u128::from(self.queued) << 64 | 1);
        let after_break = matches!(self.store.object.as_ref().map(|one| one.lease), Some(Lease::Broken { .. }));
        let least = if after_break { Duration::from_secs(70) } else { Duration::ZERO };
        if self.store.take_outside(self.now, id, length.map(|length| length.max(least))) {
            self.outside = Some((id, self.now + least));
        }
    }

    fn return_outside(&mut self) {
        if let Some((id, at)) = self.outside
            && self.now >= at
        {
            let _ = self.store.execute(self.now, &Op::Release { id });
        }
    }

    /// Everything is well from now on: machines run, the store answers, nobody interferes.
    fn heal(&mut self) -> Checked {
        self.note(|| "everything heals".to_string());
        self.outages.clear();
        if matches!(self.store.object.as_ref().map(|one| one.lease), Some(Lease::Breaking { .. })) {
            self.store.break_lease(self.now, Duration::ZERO);
        }
        if let Some((id, _)) = self.outside
            && let Some(Lease::Forever { id: holder } | Lease::Held { id: holder, .. }) =
                self.store.object.as_ref().map(|one| one.lease)
            && id == holder
        {
            self.store.break_lease(self.now, Duration::ZERO);
        }
        for count in 0..40 {
            self.push(self.now + Duration::from_secs(5) * count, Event::Fault(Fault::StartAgain));
        }
        Ok(())
    }

    // ---- small things ----

    fn running(&self) -> Vec<Running> {
        let of = |(host, machine): (usize, &Host)| {
            let process = machine.process.as_ref()?;
            let instance = process.instance.as_ref()?;
            let room = self.plan.hosts[host].lease * 15 / 100;
            let frozen = instance.was_frozen_until;
            Some(Running {
                host,
                term: instance.term,
                lease: instance.lease,
                passes: process.passes(self.now),
                blind: !frozen.is_zero() && self.now <= frozen + room,
            })
        };
        self.hosts.iter().enumerate().filter_map(of).collect()
    }

    /// The term of the instance that can act, under a lease that the store does not take for broken.
    fn leading_term(&self) -> Option<u64> {
        let Some(Lease::Held { id: holder, .. }) = self.store.object.as_ref().map(|one| one.lease) else { return None };
        self.running().iter().find(|one| one.passes && one.lease == Some(holder)).map(|one| one.term)
    }

    fn process(&self, (host, incarnation): (usize, u32)) -> Option<&Process> {
        let machine = &self.hosts[host];
        machine.process.as_ref().filter(|_| machine.incarnation == incarnation)
    }

    fn instance(&mut self, host: usize) -> Option<&mut Instance> {
        self.hosts[host].process.as_mut()?.instance.as_mut()
    }

    fn is_frozen(&self, host: usize) -> bool {
        self.now < self.hosts[host].frozen_until
    }

    fn push(&mut self, at: Instant, event: Event) {
        self.queued += 1;
        self.queue.insert((at, self.queued), event);
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:10.3?} {}", self.now, what()));
        }
    }
}
