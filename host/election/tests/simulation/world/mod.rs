//! The world: one queue of events, in real time, for the hosts, the network and the store. The world carries out the
//! electors' effects as a supervisor does, applies the plan's faults, and checks every promise after each event. At the
//! end of the plan, all faults end, and a node must lead within [`World::bound`].

mod faults;
mod links;
mod steering;
mod supervisor;
mod watchdog;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use baton_election::{
    Effect, End, Hint, Input, LeaseId, LeaseState, Now, Op, Recalled, Record, Reply, Report, RequestId, ScheduledRun,
    Snapshot, StopReason, StoreError, Term, Time,
};

use crate::coverage::Coverage;
use crate::host::{Host, Instance, Process, name, version};
use crate::invariants::{Checked, History, Running, Violation, broken};
use crate::plan::{
    Aimed, Ask, CALM, Ending, Fate, Fault, HEALTHY, Key, LATEST_ARRIVAL, Life, Moment, Outage, Plan, Witness,
};
use crate::receiver::Sent;
use crate::rng::Rng;
use crate::store::{Instant, Lease, Store};
use steering::Steering;

pub use steering::Heard;

/// A host repeats a lost announcement after this time.
const ANNOUNCED_AGAIN: Duration = Duration::from_secs(10);
/// Number of the first recall in a [`Key`]. Each kind of request has its own range of numbers: announcements and claims
/// start at the next two constants, and all other requests start at 0.
const RECALLS: u64 = 1 << 32;
const ANNOUNCEMENTS: u64 = 2 << 32;
const CLAIMS: u64 = 3 << 32;
/// An instance repeats a failed claim of the state after this time.
const CLAIMED_AGAIN: Duration = Duration::from_secs(1);

pub struct World {
    plan: Plan,
    now: Instant,
    queue: BTreeMap<(Instant, u64), Event>,
    queued: u64,
    hosts: Vec<Host>,
    store: Store,
    history: History,
    /// The term that last claimed the coordinator's state.
    state_term: Term,
    announced: Vec<Recalled>,
    /// All records that were written. One of the faults writes an old record back.
    records: Vec<Record>,
    outages: Vec<Failing>,
    /// Faults that no action of a host has triggered yet.
    aimed: Vec<Aimed>,
    /// The number of creates that may still reach the store.
    creates_under_way: u32,
    /// True if the object was deleted, and no record has been written since.
    deleted: bool,
    steering: Steering,
    outside: Option<LeaseId>,
    pub coverage: Coverage,
    /// The fates of requests, and below them the lives of instances, that differ from those of a run without faults.
    pub fates: BTreeMap<Key, Fate>,
    pub lives: BTreeMap<Key, Life>,
    /// A readable text for each event, recorded only on request.
    pub trace: Option<Vec<String>>,
}

#[derive(Debug)]
struct Failing {
    until: Instant,
    host: Option<usize>,
    kind: Outage,
    of: Option<Ask>,
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
        result: Result<Reply, StoreError>,
        is_stale: bool,
    },
    NotSent {
        key: Key,
    },
    Timeout {
        key: Key,
    },
    /// The supervisor learns that an instance's guest is running.
    Begins {
        key: Key,
    },
    Ends {
        key: Key,
    },
    Gone {
        key: Key,
        killed: bool,
    },
    /// The supervisor learns that the kernel is removing an instance's process.
    Dying {
        key: Key,
    },
    /// The supervisor learns that an instance's process has exited.
    GoneIsTold {
        key: Key,
        killed: bool,
    },
    /// An instance's claim of the state reaches the store.
    Claim {
        key: Key,
    },
    ReadsItsDeadline {
        key: Key,
    },
    /// The watchdog makes the check that was scheduled for the time `planned`.
    Watch {
        key: Key,
        look: u64,
        planned: Time,
    },
    /// A process ends, after it has sent its last report.
    EndsItself {
        host: usize,
        incarnation: u32,
    },
    /// An effect reaches the receiver.
    Lands(Sent),
    SlewEnds {
        host: usize,
    },
    Announce {
        host: usize,
        incarnation: u32,
        news: Recalled,
    },
    Fault(Fault),
    ReadsCommands {
        host: usize,
        incarnation: u32,
    },
    MaintenanceEnds {
        host: usize,
        incarnation: u32,
    },
    /// A host receives an outdated plan, whose module has been rejected in the meantime.
    Outdated {
        host: usize,
        incarnation: u32,
        plan: baton_election::Plan,
    },
    /// The runner that a process left behind has exited.
    IsGone {
        host: usize,
    },
    /// The witness reports that the process that held these leases is dead.
    IsSeenGone {
        host: usize,
        incarnation: u32,
        ids: Vec<LeaseId>,
    },
    /// A host receives a hint. There may have been no reason to send the hint.
    Hint {
        host: usize,
        incarnation: u32,
        hint: Hint,
    },
    Lie {
        host: usize,
        lie: u64,
    },
    /// A process that was told to shut down must have exited by now.
    EndsBy {
        host: usize,
        incarnation: u32,
    },
    /// Nothing happens, but the promises are checked.
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
            state_term: 0,
            announced: vec![Recalled::default(); plan.hosts.len()],
            records: Vec::new(),
            outages: Vec::new(),
            aimed: plan.aimed.clone(),
            creates_under_way: 0,
            deleted: false,
            steering: Steering::default(),
            outside: None,
            coverage: Coverage::default(),
            fates: BTreeMap::new(),
            lives: BTreeMap::new(),
            trace: None,
            plan,
        };
        for (host, plan) in world.hosts.iter_mut().zip(&world.plan.hosts) {
            host.serves.module = Some(version(plan.module, 0));
        }
        for host in 0..world.hosts.len() {
            let at = Rng::about(&[world.plan.seed, 5, host as u64]).millis(0, 3000);
            world.push(at, Event::Start { host });
        }
        for (at, fault) in world.plan.faults.clone() {
            world.push(at, Event::Fault(fault));
        }
        if world.plan.witness != Witness::None {
            let mut rng = Rng::about(&[world.plan.seed, 8]);
            for _ in 0..10 {
                let host = rng.below(world.hosts.len() as u64) as usize;
                world.push(
                    rng.between(Duration::ZERO, world.plan.heal_at),
                    Event::Hint { host, incarnation: 1, hint: Hint::Look },
                );
            }
        }
        world.begin_lies();
        world
    }

    /// Runs the plan to its end. Then continues until a node leads, and keeps leading.
    pub fn run(&mut self) -> Checked {
        self.run_until(self.plan.heal_at, |_| false)?;
        self.heal()?;
        let bound = self.bound();
        if self.plan.schedule.is_some() {
            return self.runs_again(bound);
        }
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

    /// Checks that a run that became due after the last fault is completed.
    fn runs_again(&mut self, bound: Duration) -> Checked {
        let Some(schedule) = &self.plan.schedule else { return Ok(()) };
        // A host whose wall clock was ahead may have recorded later due times. A run takes a few seconds.
        let bound = bound + schedule.period * 4 + schedule.skew * self.hosts.len() as u32 + Duration::from_secs(30);
        let healed = self.plan.heal_at;
        let is_completed = |world: &Self| {
            let progress = world.store.record().and_then(|record| record.progress.as_ref());
            progress.is_some_and(|progress| progress.completed > healed)
        };
        if !self.run_until(healed + bound, is_completed)? {
            return broken("host_survives", format!("no run is completed {bound:?} after everything has healed"));
        }
        Ok(())
    }

    /// The time within which a node must lead after the last fault. The bound is the sum of these times:
    ///
    /// - Pending requests arrive (3 D), and a lease that one of these requests acquires or extends expires (60 s at
    ///   most).
    /// - The holder may have to wait for another instance (60 s).
    /// - The longest back-off passes (30 s plus jitter).
    /// - A node in cool-off must see that the lease is free for 10 s.
    /// - A rest period or a pause passes while the node holds the lease (75 s).
    /// - Three polls, one poll of a standby that listens to its leader, and a deferral (10 s and a poll).
    pub fn bound(&self) -> Duration {
        self.plan.longest_lease() * LATEST_ARRIVAL + Duration::from_secs(60 + 60 + 38 + 10 + 75 + 4 + 13 + 13)
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
            Event::Announce { host, incarnation, news } => {
                self.announce(host, incarnation, news);
                Ok(())
            }
            Event::Fault(fault) => self.fault(fault),
            Event::ReadsItsDeadline { key } => {
                self.reads_its_deadline(key);
                Ok(())
            }
            Event::Watch { key, look, planned } => {
                self.watch(key, look, planned);
                Ok(())
            }
            Event::EndsItself { host, incarnation } => {
                if self.process((host, incarnation)).is_some() {
                    self.end_process(host);
                }
                Ok(())
            }
            Event::Lands(sent) => {
                self.coverage.refused_late += u64::from(self.history.receiver.takes(sent)?);
                Ok(())
            }
            Event::SlewEnds { host } => {
                if self.hosts[host].slewed.1 <= self.now {
                    self.slew(host, 0);
                }
                Ok(())
            }
            Event::Claim { key } => {
                self.claim(key);
                Ok(())
            }
            Event::Outdated { host, incarnation, plan } => {
                if self.process((host, incarnation)).is_none() || self.resumes_at(host) > self.now {
                    return Ok(());
                }
                self.feed(host, Input::Plan(plan))
            }
            Event::Look => Ok(()),
            Event::IsGone { host } => {
                self.hosts[host].orphan = None;
                Ok(())
            }
            Event::IsSeenGone { host, incarnation, ids } => {
                self.note(|| format!("host {host} is seen to be gone"));
                if self.plan.witness.has_notes() {
                    self.store.notes.gone.insert(name(host, incarnation));
                } else {
                    self.store.gone.extend(ids.iter().map(|id| id.as_u128()));
                }
                for other in 0..self.hosts.len() {
                    let mut rng = Rng::about(&[self.plan.seed, 9, other as u64, self.queued]);
                    let (incarnation, late) = (self.hosts[other].incarnation, rng.millis(0, 20));
                    if !rng.per_mille(200) {
                        self.push(self.now + late, Event::Hint { host: other, incarnation, hint: Hint::Look });
                    }
                }
                Ok(())
            }
            Event::Hint { host, incarnation, hint } => {
                self.happen_once(self.resumes_at(host), (host, incarnation), Event::Hint { host, incarnation, hint })
            }
            Event::Lie { host, lie } => {
                self.lie(host, lie);
                Ok(())
            }
            Event::EndsBy { host, incarnation } => self.shutdown_is_bounded(host, incarnation),
            Event::Wake { host, incarnation, number } => {
                if self.process((host, incarnation)).is_none_or(|process| process.wakes != number) {
                    return Ok(());
                }
                let resumes_at = self.resumes_at(host);
                if self.now < resumes_at {
                    let late = Rng::about(&[self.plan.seed, 6, number]).between(Duration::ZERO, self.lateness());
                    self.push(resumes_at + late, event);
                    return Ok(());
                }
                self.feed(host, Input::Tick)
            }
            Event::ReadsCommands { host, incarnation } | Event::MaintenanceEnds { host, incarnation } => {
                self.happen_once(self.resumes_at(host), (host, incarnation), event)
            }
            Event::Answer { key: (host, incarnation, _), .. }
            | Event::NotSent { key: (host, incarnation, _) }
            | Event::Timeout { key: (host, incarnation, _) }
            | Event::Dying { key: (host, incarnation, _) }
            | Event::Begins { key: (host, incarnation, _) }
            | Event::GoneIsTold { key: (host, incarnation, _), .. } => {
                self.happen_once(self.resumes_at(host), (host, incarnation), event)
            }
            Event::Ends { key: (host, incarnation, _) } | Event::Gone { key: (host, incarnation, _), .. } => {
                self.happen_once(self.hosts[host].frozen_until, (host, incarnation), event)
            }
        }
    }

    /// Handles a process's event. If `at` is in the future, schedules the event for that time instead.
    fn happen_once(&mut self, at: Instant, (host, incarnation): (usize, u32), event: Event) -> Checked {
        if self.process((host, incarnation)).is_none() {
            return Ok(());
        }
        if self.now < at {
            self.push(at, event);
            return Ok(());
        }
        self.happen(host, event)
    }

    /// Checks that a process exits in time after a shutdown. A process may take its grace period, the time to kill an
    /// instance, and the rest of a lease that the process cannot release (60 s at most). Pauses may double this time.
    fn shutdown_is_bounded(&mut self, host: usize, incarnation: u32) -> Checked {
        if self.process((host, incarnation)).is_none() {
            return Ok(());
        }
        if self.now < self.resumes_at(host) {
            self.push(self.resumes_at(host) + Duration::from_secs(60), Event::EndsBy { host, incarnation });
            return Ok(());
        }
        broken("shutdown_is_bounded", format!("host {host} was told to end long ago"))
    }

    // ---- processes ----

    fn start_process(&mut self, host: usize) -> Checked {
        // After the object was deleted, a new process knows only the terms in the state and in announcements. If the
        // term of a running instance is not among them, the process would not wait for that instance. This is by
        // design: an operator who deletes the object must not start a host in this situation. So start the process
        // later.
        let witnessed = self.witnessed();
        if self.deleted && self.running().iter().any(|one| one.term > witnessed) {
            self.push(self.now + Duration::from_secs(1), Event::Start { host });
            return Ok(());
        }
        if self.deleted {
            // The new process continues from the highest term in the state and in announcements, or from 0 if there is
            // none.
            self.history.deleted(witnessed);
        }
        let machine = &mut self.hosts[host];
        if machine.process.is_some() {
            return Ok(());
        }
        machine.incarnation += 1;
        machine.process = Some(Process::new(self.now, host, machine.incarnation, &self.plan, machine.slewed.0));
        self.note(|| format!("host {host} starts"));
        let plan = self.hosts[host].serves.clone();
        self.feed(host, Input::Plan(plan))?;
        let eligibility = Heard::default().eligibility(self.plan.hosts[host].priority);
        self.feed(host, Input::Eligibility(eligibility))?;
        self.reads_commands_within(host, Duration::from_secs(1));
        let first_poll = self.hosts[host].process.as_ref().and_then(|process| process.elector.next_wakeup());
        self.history.first_polls_are_spread(first_poll.unwrap_or_default())
    }

    fn end_process(&mut self, host: usize) {
        self.note(|| format!("host {host} ends"));
        self.leaves(host);
        self.falls_silent(host, self.hosts[host].incarnation);
        let machine = &mut self.hosts[host];
        machine.process = None;
        (machine.stopped_until, machine.unwatched_until) = (Duration::ZERO, Duration::ZERO);
        let soon = self.now + Duration::from_millis(100);
        let at = (self.now.max(machine.frozen_until) + machine.down).min(self.plan.heal_at).max(soon);
        self.push(at, Event::Start { host });
    }

    /// If there is a witness, keeps a process as an orphan after its exit, because its runner may still exist. The
    /// runner exits no later than the instance's deadline.
    fn leaves(&mut self, host: usize) {
        let witness = self.plan.witness;
        let incarnation = self.hosts[host].incarnation;
        if witness == Witness::None {
            return;
        }
        let Some(process) = self.hosts[host].process.take() else { return };
        let mut rng = Rng::about(&[self.plan.seed, 10, host as u64, u64::from(incarnation)]);
        let lease = self.plan.hosts[host].lease;
        let stays = rng.pick(&[Duration::from_millis(8), lease / 20, lease / 2]);
        let until = match process.instance.as_ref().filter(|instance| !instance.is_gone) {
            Some(instance) => (self.now + stays).min(process.instant(instance.deadline)).max(self.now),
            None => self.now,
        };
        let late = if rng.per_mille(800) { rng.millis(0, 5) } else { rng.between(Duration::ZERO, lease) };
        let ids = process.leases.clone();
        self.store.notes.give_back(&name(host, incarnation));
        let is_seen = Event::IsSeenGone { host, incarnation, ids };
        match witness {
            Witness::None | Witness::LooksElsewhere => {}
            Witness::Sees | Witness::Notes | Witness::NotesForgetTheRecord => self.push(until + late, is_seen),
            Witness::ForgetsTheRunner | Witness::NotesForgetTheRunner => self.push(self.now, is_seen),
        }
        self.hosts[host].orphan = Some((process, until));
        self.push(until, Event::IsGone { host });
    }

    fn feed(&mut self, host: usize, input: Input) -> Checked {
        let incarnation = self.hosts[host].incarnation;
        self.take(host, incarnation, input)?;
        // If `begins_at_once` is set, the guest runs as soon as the instance has started.
        if self.instance(host).is_some_and(|instance| std::mem::take(&mut instance.begins_at_once)) {
            self.take(host, incarnation, Input::Begun)?;
        }
        self.announce_news(host, incarnation);
        self.schedule_wake(host, incarnation)
    }

    fn take(&mut self, host: usize, incarnation: u32, input: Input) -> Checked {
        let (now, wall) = (self.now, self.wall(host));
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        let least = process.least(now);
        if let Input::Answer { result: Ok(reply), .. } = &input {
            process.heard.answered(reply);
        }
        let (is_hint, known) = (matches!(input, Input::Hint(_)), process.elector.written_term());
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:10.3?} host {host} at {local:?} <- {input:?}"));
        }
        let elector = &mut process.elector;
        let handled = catch_unwind(AssertUnwindSafe(|| {
            elector.handle(Now { time: local, least, wall }, input);
            std::iter::from_fn(|| elector.poll_effect()).collect::<Vec<_>>()
        }));
        let Ok(effects) = handled else { return broken("host_survives", format!("host {host} panics")) };
        if let Some(process) = self.hosts[host].process.as_ref().filter(|_| is_hint)
            && process.elector.written_term() != known
        {
            return broken(
                "a_hint_raises_no_term",
                format!("{known} was known, and is {}", process.elector.written_term()),
            );
        }
        for effect in effects {
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{now:10.3?} host {host} at {local:?} -> {effect:?}"));
            }
            let is_refused = matches!(&effect, Effect::Request { op: Op::Reclaim { from, id, .. }, .. }
                if !self.takes_the_note(*from, *id, (host, incarnation)));
            if let Effect::Request { op, .. } = &effect
                && !is_refused
            {
                self.history.sent(op)?;
            }
            let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
            if let (Effect::Request { id, .. }, true) = (&effect, is_refused) {
                process.unanswered.insert(*id);
                let key = (host, incarnation, id.0);
                self.push(now, Event::Answer { key, result: Err(StoreError::Held), is_stale: false });
                continue;
            }
            self.commands_are_obeyed(host, &effect)?;
            self.execute(host, incarnation, effect)?;
        }
        Ok(())
    }

    /// Announces the highest term and the progress that the host has seen, if they have not been announced yet. If the
    /// announcement is lost, repeats it later.
    fn announce_news(&mut self, host: usize, incarnation: u32) {
        let healed = self.now >= self.plan.heal_at;
        let Some(process) = &mut self.hosts[host].process else { return };
        let news = Recalled {
            term: process.elector.written_term(),
            progress: process.elector.progress().cloned().map(Box::new),
        };
        if news == process.announced.last {
            return;
        }
        process.announced.last = news.clone();
        process.announced.number += 1;
        let key = (host, incarnation, ANNOUNCEMENTS + process.announced.number);
        let fate = self.plan.fate(key, Ask::Announce, healed);
        if fate != CALM {
            self.fates.insert(key, fate);
        }
        let arrives = fate.arrives.unwrap_or(ANNOUNCED_AGAIN);
        self.push(self.now + arrives, Event::Announce { host, incarnation, news });
        self.comes_with(host, Moment::Asks(Ask::Announce));
    }

    fn announce(&mut self, host: usize, incarnation: u32, news: Recalled) {
        if self.process((host, incarnation)).is_none() {
            return;
        }
        if self.outage(host, Ask::Announce).is_some_and(|kind| kind != Outage::Doubt) {
            self.push(self.now + ANNOUNCED_AGAIN, Event::Announce { host, incarnation, news });
        } else {
            self.announced[host].merge(&news);
        }
    }

    /// The highest term in all announcements and, if there is a state, in the state.
    fn witnessed(&self) -> Term {
        let announced = self.announced.iter().map(|one| one.term).max().unwrap_or_default();
        if self.plan.has_state { announced.max(self.state_term) } else { announced }
    }

    fn recalled(&self, mut recalled: Recalled) -> Recalled {
        recalled.term = recalled.term.max(self.witnessed());
        self.announced.iter().for_each(|one| recalled.merge(one));
        recalled
    }

    /// A host's wall clock. Hosts with a higher number have a faster clock.
    fn wall(&self, host: usize) -> Duration {
        self.now + self.plan.schedule.as_ref().map_or(Duration::ZERO, |schedule| schedule.skew) * host as u32
    }

    fn outage(&mut self, host: usize, ask: Ask) -> Option<Outage> {
        self.outages.retain(|failing| failing.until > self.now);
        let concerns =
            |one: &&Failing| one.host.is_none_or(|scope| scope == host) && one.of.is_none_or(|kind| kind == ask);
        self.outages.iter().find(concerns).map(|failing| failing.kind)
    }

    fn comes_with(&mut self, host: usize, moment: Moment) {
        let now = self.now;
        let is_met = |one: &mut Aimed| one.host == host && one.moment == moment && one.from <= now;
        let met: Vec<_> = self.aimed.extract_if(.., is_met).collect();
        for Aimed { after, fault, .. } in met {
            if now + after < self.plan.heal_at {
                self.coverage.aimed += 1;
                self.push(now + after, Event::Fault(fault));
            }
        }
    }

    fn schedule_wake(&mut self, host: usize, incarnation: u32) -> Checked {
        let now = self.now;
        let lateness = self.lateness();
        let Some(process) = &mut self.hosts[host].process else { return Ok(()) };
        let local = process.local(now);
        let wakeup = process.elector.next_wakeup();
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

    /// Maximum time by which a wake-up may be late.
    fn lateness(&self) -> Duration {
        self.plan.shortest_lease() / 100
    }

    // ---- the network and the store ----

    fn arrive(&mut self, key: Key, op: &Op, fate: Fate) -> Checked {
        let (host, incarnation, _) = key;
        self.creates_under_way -= u32::from(matches!(op, Op::Create { .. }));
        let mut result = match self.outage(host, Ask::of(op)) {
            Some(Outage::Hang) => return Ok(()),
            Some(Outage::Refuse) => Err(StoreError::Unknown("503".to_string())),
            Some(Outage::Misconfigured) => Err(StoreError::Misconfigured("no such account".to_string())),
            Some(Outage::Doubt) => {
                let _unknown = self.carry_out(host, incarnation, op)?;
                Err(StoreError::Unknown("503".to_string()))
            }
            Some(Outage::Unwritable) if matches!(op, Op::Create { .. } | Op::Write { .. }) => {
                Err(StoreError::Unknown("403".to_string()))
            }
            Some(Outage::Unwritable) | None => self.carry_out(host, incarnation, op)?,
        };
        if fate.doubt {
            result = Err(StoreError::Unknown("500".to_string()));
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

    fn carry_out(&mut self, host: usize, incarnation: u32, op: &Op) -> Result<Result<Reply, StoreError>, Violation> {
        let before = self.store.record().cloned();
        let was_expired = self.store.lease_end().is_some_and(|end| end <= self.now);
        let result = match self.store.execute(self.now, op) {
            Ok(Reply::Recalled(recalled)) => Ok(Reply::Recalled(self.recalled(recalled))),
            Ok(Reply::Read(snapshot)) => Ok(Reply::Read(self.judged(snapshot, &name(host, incarnation)))),
            Ok(Reply::Surveyed { read, recalled, .. }) => {
                let read = self.judged(read, &name(host, incarnation));
                Ok(Reply::Surveyed { read, recalled: self.recalled(recalled), steering: self.steering.version() })
            }
            result => result,
        };
        self.note(|| format!("store: {op:?} of host {host} -> {result:?}"));
        let end = self.store.lease_end();
        let running = self.running();
        self.history.executed((host, incarnation), op, &result, before.as_ref(), end, &running)?;
        if result.is_ok() {
            let is_early = matches!(op, Op::Acquire { instead_of: Some(_), .. }) && !was_expired;
            self.coverage.taken_from_the_dead += u64::from(is_early);
            self.coverage.surveyed += u64::from(*op == Op::Survey);
            self.coverage.reclaimed += u64::from(matches!(op, Op::Reclaim { .. }));
            if matches!(op, Op::Write { record, .. } if record.node.is_some()) {
                self.store.notes.remove(&name(host, incarnation));
            }
            if let Op::Create { record } | Op::Write { record, .. } = op {
                self.records.push(record.clone());
            }
            if let (Op::Acquire { .. } | Op::Reclaim { .. } | Op::Renew { .. }, Some(end)) = (op, end) {
                self.push(end, Event::Look);
            }
            if matches!(op, Op::Reclaim { .. } | Op::Renew { .. }) && was_expired {
                self.coverage.renewed_late += 1;
            }
            if matches!(op, Op::Create { .. } | Op::Write { .. }) {
                self.deleted = false;
            }
        }
        Ok(result)
    }

    /// The snapshot that a host reads. If its machine keeps notes, the notes show whether the holder of a held lease is
    /// dead.
    fn judged(&self, snapshot: Snapshot, reader: &str) -> Snapshot {
        match snapshot {
            Snapshot::Object { lease: LeaseState::Held, version, record } if self.plan.witness.has_notes() => {
                let lease = match self.plan.witness {
                    Witness::NotesForgetTheRecord => self.noted_by_anyone(reader),
                    _ => self.store.notes.judged(record.as_ref(), reader),
                };
                Snapshot::Object { lease, version, record }
            }
            snapshot => snapshot,
        }
    }

    /// The lease state that a host reads if its machine forgets to check that the dead holder of the lease wrote the
    /// record.
    fn noted_by_anyone(&self, reader: &str) -> LeaseState {
        let notes = &self.store.notes;
        let Some(Lease::Held { id, .. }) = self.store.object.as_ref().map(|one| one.lease) else {
            return LeaseState::Held;
        };
        let is_its =
            |(of, noted): (&String, &Vec<LeaseId>)| of != reader && noted.contains(&id) && notes.gone.contains(of);
        if notes.ids.iter().any(is_its) { LeaseState::Reclaimable { holder: id } } else { LeaseState::Held }
    }

    /// True if the process may request the lease that its machine's notes show as reclaimable.
    fn takes_the_note(&mut self, from: LeaseId, id: LeaseId, (host, incarnation): (usize, u32)) -> bool {
        // A third of the processes cannot write to the folder with the notes, and so cannot take a note.
        let is_writable = !(host + incarnation as usize).is_multiple_of(3);
        let record = self.store.record().cloned();
        let by = name(host, incarnation);
        self.plan.witness == Witness::NotesForgetTheRecord
            || is_writable && self.store.notes.take(from, id, record.as_ref(), &by)
    }

    // ---- small things ----

    fn running(&self) -> Vec<Running> {
        let of = |(host, machine): (usize, &Host)| {
            let process = machine.process.as_ref()?;
            // A dying instance does not count: no part of it runs any more.
            let instance = process.instance.as_ref().filter(|instance| !instance.is_gone && !instance.is_dying())?;
            let room = instance.ends_within(self.plan.hosts[host].lease);
            let frozen = instance.was_frozen_until;
            Some(Running {
                host,
                term: instance.term,
                lease: instance.lease,
                passes: process.passes(self.now),
                blind: !frozen.is_zero() && self.now <= frozen + room,
            })
        };
        let orphaned = |(host, machine): (usize, &Host)| {
            let (process, until) = machine.orphan.as_ref().filter(|(_, until)| self.now < *until)?;
            let Instance { term, lease, .. } = process.instance.as_ref()?;
            let passes = process.passes(self.now) && self.now < *until;
            Some(Running { host, term: *term, lease: *lease, passes, blind: self.now < machine.frozen_until })
        };
        let machines = || self.hosts.iter().enumerate();
        machines().filter_map(of).chain(machines().filter_map(orphaned)).collect()
    }

    /// The term of the instance that can act now under a valid lease, if the instance runs the planned version.
    fn leading_term(&self) -> Option<u64> {
        let Some(Lease::Held { id: holder, .. }) = self.store.object.as_ref().map(|one| one.lease) else { return None };
        self.running()
            .iter()
            .find(|one| one.passes && one.lease == Some(holder) && self.serves_its_plan(one.host))
            .map(|one| one.term)
    }

    fn serves_its_plan(&self, host: usize) -> bool {
        let machine = &self.hosts[host];
        let instance = machine.process.as_ref().and_then(|process| process.instance.as_ref());
        instance.is_some_and(|one| machine.serves.digest() == Some(&one.version.digest))
    }

    fn process(&self, (host, incarnation): (usize, u32)) -> Option<&Process> {
        let machine = &self.hosts[host];
        machine.process.as_ref().filter(|_| machine.incarnation == incarnation)
    }

    fn instance(&mut self, host: usize) -> Option<&mut Instance> {
        self.hosts[host].process.as_mut()?.instance.as_mut()
    }

    fn resumes_at(&self, host: usize) -> Instant {
        self.hosts[host].frozen_until.max(self.hosts[host].stopped_until)
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
