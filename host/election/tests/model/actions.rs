//! The possible next actions, and their effects.

use std::sync::Arc;
use std::time::Duration;

use baton_election::hint::LISTENING_POLL;
use baton_election::{
    Effect, Eligibility, End, HIGHEST_TERM, Hint, Ineligibility, IneligibleCause, Input, LeaseId, LeaseState,
    ModuleVersion, Op, Plan, Recalled, Record, Reply, RequestId, Snapshot, StoreError, Term, Time, Word,
};

use crate::state::{Faults, Flight, Instance, Node, Process, Waiting, World, at, name};
use crate::store::{Instant, Lease};

/// Time before the end of a lease. The model also lets nodes act at this moment: a request that a node sends then may
/// arrive after the lease has ended.
pub const SHORTLY: Duration = Duration::from_secs(1);

/// One step of the model. Numbers are indices of nodes or of requests in transit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Time advances until the next event is due. Requests that have not arrived by then are late, and may never
    /// arrive.
    Wait,
    Wake(usize),
    /// A request reaches the store, and its answer reaches the waiting process.
    Arrive(usize),
    /// A request reaches the store, but its answer is lost.
    ArriveUnheard(usize),
    /// A request reaches the store, and a copy of it stays in transit.
    ArriveTwice(usize),
    /// A host holds back its elector's request for the lease.
    PutOff(usize),
    /// A standby receives a hint, which may be false.
    Lie(usize, Lie),
    /// A standby receives the message with this index in `World::told`. The message may be outdated, or repeated.
    HearTold(usize, usize),
    /// A process reads an answer that arrived while the process was paused.
    Hear(usize, RequestId),
    GiveUp(usize, RequestId),
    Begin(usize),
    Crash(usize),
    /// The kernel reports that a crashed process and its instance have exited.
    Vanish(usize),
    Pause(usize),
    Resume(usize),
    Run(usize),
    EndBy(usize, Ending),
    /// A killed instance hangs: its process does not exit.
    Hang(usize),
    /// The host learns that the kernel is removing the process of a killed instance.
    Die(usize),
    /// The process of an ended or killed instance exits.
    Go(usize),
    /// The announcement of a process is removed after the process has ended cleanly.
    TakeBack(usize),
    Stall(usize),
    Publish(usize),
    Withdraw(usize),
    StepDown(usize),
    ReadSuspended(usize),
    ReadResumed(usize),
    Shutdown(usize),
    SkipGrace(usize),
    /// An outsider breaks the lease, with immediate effect.
    Break,
    /// An outsider breaks the lease. The break takes effect when the lease would have expired.
    BreakLater,
    /// An outsider deletes the record, even if the lease is held.
    Delete,
    /// An outsider restores an earlier record, without holding the lease. 0 stands for the last record, and 1 for the
    /// record before it.
    Rewrite(usize),
    /// An outsider breaks the lease, acquires it and releases it.
    Seize,
}

/// A false hint about the node that the store's record names as the holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// The holder has just renewed the lease, and the holder's term is far above the current term.
    Leads,
    GivesUp,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Done,
    Failed,
    Crashed,
    Fatal,
    Unable,
    /// Another writer has claimed the coordinator's state.
    Superseded,
    /// The host asked the instance to stop.
    Stopped,
}

impl World {
    /// Collects the possible actions. Actions without faults come first, so a run that always takes the first action
    /// has no faults.
    ///
    /// Leaves out actions that would only change the order of independent actions. Suppose that a node has an action
    /// due, and that no answer can reach the node before it acts. The action affects only this node, so other nodes'
    /// actions may come earlier or later without changing the result. If there are such nodes, only the actions of the
    /// first one are collected. They form a persistent set: P. Godefroid, "Partial-Order Methods for the Verification
    /// of Concurrent Systems", 1996. While an action is due or a request can arrive, an idle node that waits for no
    /// answer is not paused, ended or steered.
    pub fn actions(&self, actions: &mut Vec<Action>) {
        if self.broken.is_some() {
            return;
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.due(place, node, actions);
            if !actions.is_empty() && !self.may_be_answered(place) {
                return self.interfere(place, node, actions);
            }
            actions.clear();
        }
        let is_under_way = |flight: &Flight| !flight.is_late;
        for (place, _) in self.flights.iter().enumerate().filter(|(_, flight)| is_under_way(flight)) {
            actions.push(Action::Arrive(place));
        }
        for (place, node) in self.nodes.iter().enumerate() {
            self.due(place, node, actions);
        }
        let is_quiet = actions.is_empty();
        let under_way = self.flights.iter().filter(|flight| is_under_way(flight)).count();
        let is_anything_due = actions.len() > under_way;
        if !is_anything_due && under_way <= usize::from(self.left.network) {
            actions.push(Action::Wait);
        }
        for (place, flight) in self.flights.iter().enumerate() {
            if flight.is_late {
                actions.push(Action::Arrive(place));
            } else if self.left.network > 0 {
                actions.push(Action::ArriveUnheard(place));
                actions.push(Action::ArriveTwice(place));
            }
            if self.left.operator > 0 && flight.within_quota && self.is_awaited(flight) {
                actions.push(Action::PutOff(place));
            }
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if node.has_finished {
                actions.push(Action::TakeBack(place));
            }
            if node.orphan.is_some() {
                actions.push(Action::Vanish(place));
            }
            if is_quiet || self.may_be_answered(place) || self.has_anything_due(place, node) {
                self.interfere(place, node, actions);
            }
        }
        self.outsider(actions);
    }

    fn may_be_answered(&self, place: usize) -> bool {
        let Some(process) = &self.nodes[place].process else { return false };
        let is_awaited = |flight: &Flight| process.waiting.iter().any(|waiting| waiting.id == flight.id);
        let is_its_own = |flight: &Flight| (flight.node, flight.incarnation) == (place, process.incarnation);
        self.flights.iter().any(|flight| is_its_own(flight) && is_awaited(flight))
    }

    fn is_awaited(&self, flight: &Flight) -> bool {
        let process = self.nodes[flight.node].process.as_ref();
        let is_its_own = |one: &&Process| !one.is_paused && one.incarnation == flight.incarnation;
        process.filter(is_its_own).is_some_and(|one| one.waiting.iter().any(|waiting| waiting.id == flight.id))
    }

    fn has_anything_due(&self, place: usize, node: &Node) -> bool {
        let mut due = Vec::new();
        self.due(place, node, &mut due);
        !due.is_empty()
    }

    /// Collects the node's actions that must happen before time advances.
    fn due(&self, place: usize, node: &Node, actions: &mut Vec<Action>) {
        let Some(process) = node.process.as_ref().filter(|process| !process.is_paused) else { return };
        for waiting in &process.waiting {
            if waiting.answer.is_some() {
                actions.push(Action::Hear(place, waiting.id));
            } else if waiting.until <= self.now {
                actions.push(Action::GiveUp(place, waiting.id));
            }
        }
        if process.elector.next_wakeup().is_some_and(|wakeup| wakeup.0 <= self.now) {
            actions.push(Action::Wake(place));
        }
        if process.instance.as_ref().is_some_and(|one| one.end.is_none() && !one.has_begun) {
            actions.push(Action::Run(place));
        }
        if process.instance.as_ref().is_some_and(|one| one.end.is_some() && !one.hangs) {
            actions.push(Action::Go(place));
        }
    }

    /// Collects the actions on this node that the machine, other nodes, an operator or the guest can take.
    fn interfere(&self, place: usize, node: &Node, actions: &mut Vec<Action>) {
        let Some(process) = &node.process else {
            actions.push(Action::Begin(place));
            return;
        };
        if process.is_paused {
            actions.push(Action::Resume(place));
            return;
        }
        if self.left.links > 0 && process.elector.follows() {
            actions.push(Action::Lie(place, Lie::Leads));
            actions.push(Action::Lie(place, Lie::GivesUp));
            let own = name(place, process.incarnation);
            let of_others = self.told.iter().enumerate().filter(|(_, hint)| hint.from() != Some(own.as_str()));
            actions.extend(of_others.map(|(number, _)| Action::HearTold(place, number)));
        }
        if self.left.machine > 0 {
            actions.push(Action::Pause(place));
            if node.orphan.is_none() {
                actions.push(Action::Crash(place));
            }
        }
        if self.left.operator > 0 {
            actions.push(Action::Publish(place));
            actions.push(Action::Withdraw(place));
            actions.push(Action::StepDown(place));
            actions.push(if process.is_suspended { Action::ReadResumed(place) } else { Action::ReadSuspended(place) });
            actions.push(Action::Shutdown(place));
            actions.push(Action::SkipGrace(place));
        }
        match &process.instance {
            Some(Instance { end: None, is_asked_to_stop, .. }) => {
                if *is_asked_to_stop {
                    actions.push(Action::EndBy(place, Ending::Stopped));
                }
                if self.left.guest > 0 {
                    let endings = [
                        Ending::Done,
                        Ending::Failed,
                        Ending::Crashed,
                        Ending::Fatal,
                        Ending::Unable,
                        Ending::Superseded,
                    ];
                    actions.extend(endings.map(|ending| Action::EndBy(place, ending)));
                    actions.push(Action::Stall(place));
                }
            }
            Some(Instance { hangs: false, .. }) if self.left.guest > 0 => actions.push(Action::Hang(place)),
            Some(Instance { hangs: true, dying, .. }) => {
                actions.push(Action::Go(place));
                if !dying {
                    actions.push(Action::Die(place));
                }
            }
            _ => {}
        }
    }

    fn outsider(&self, actions: &mut Vec<Action>) {
        let Some(object) = self.store.object.as_ref().filter(|_| self.left.outsider > 0) else { return };
        if !matches!(object.lease, Lease::Free | Lease::Broken { .. }) {
            actions.push(Action::Break);
            actions.push(Action::BreakLater);
        }
        if self.is_witnessed() {
            actions.push(Action::Delete);
        }
        // After an outsider has restored an older record, the store's record does not contain the latest term. The
        // model allows this only if an announcement contains that term: otherwise, no node could know the term.
        let backs = if self.is_witnessed() { 2 } else { 1 };
        actions.extend((0..backs.min(self.written.len())).map(Action::Rewrite));
        actions.push(Action::Seize);
    }

    pub fn after(&self, action: Action) -> Self {
        let mut world = self.clone();
        world.act(action);
        if world.nodes.iter().map(|node| world.passing(node)).sum::<usize>() > 1 {
            world.broken = Some("two instances can act at once");
        }
        world
    }

    fn act(&mut self, action: Action) {
        let Faults { network, machine, outsider, operator, guest, .. } = &mut self.left;
        match action {
            Action::Wait => self.wait(),
            Action::Wake(place) => self.feed(place, Input::Tick),
            Action::Arrive(place) => {
                let flight = self.flights.remove(place);
                self.arrive(flight, true);
            }
            Action::ArriveUnheard(place) => {
                *network -= 1;
                let flight = self.flights.remove(place);
                self.arrive(flight, false);
            }
            Action::ArriveTwice(place) => {
                *network -= 1;
                self.flights[place].is_late = true;
                let flight = self.flights[place].clone();
                self.arrive(flight, true);
            }
            Action::PutOff(place) => {
                *operator -= 1;
                let Flight { node, id, .. } = self.flights.remove(place);
                let _unanswered = self.stop_waiting(node, id);
                self.feed(node, Input::NotSent { id, reason: String::new() });
            }
            Action::Lie(place, lie) => {
                self.left.links -= 1;
                let from = self.store.record().map(|record| record.incarnation.clone()).unwrap_or_default();
                let hint = match lie {
                    Lie::Leads => Hint::Leads { from, term: HIGHEST_TERM - 1, age: Duration::ZERO, place: Some(0) },
                    Lie::GivesUp => Hint::GivesUp { from, place: Some(0) },
                };
                self.feed(place, Input::Hint(hint));
            }
            Action::HearTold(place, number) => {
                self.left.links -= 1;
                self.feed(place, Input::Hint(self.told[number].clone()));
            }
            Action::Hear(place, id) => {
                if let Some(answer) = self.stop_waiting(place, id).and_then(|waiting| waiting.answer) {
                    self.feed(place, Input::Answer { id, result: answer });
                }
            }
            Action::GiveUp(place, id) => {
                let _unanswered = self.stop_waiting(place, id);
                let result = Err(StoreError::Unknown("timeout".to_string()));
                self.feed(place, Input::Answer { id, result });
            }
            Action::Begin(place) => self.begin(place),
            Action::Crash(place) => {
                *machine -= 1;
                let sees_deaths = self.sees_deaths || self.keeps_notes;
                self.store.notes.give_back(&name(place, self.nodes[place].incarnation));
                let node = self.node(place);
                let process = node.process.take().filter(|_| sees_deaths);
                node.orphan = process.map(|process| (process.incarnation, process.instance, process.leases));
            }
            Action::Vanish(place) => {
                let (incarnation, _, leases) = self.node(place).orphan.take().unwrap_or_default();
                if self.keeps_notes {
                    self.store.notes.gone.insert(name(place, incarnation));
                } else {
                    self.store.gone.extend(leases.iter().map(|id| id.as_u128()));
                }
                for other in 0..self.nodes.len() {
                    let process = self.nodes[other].process.as_ref();
                    if process.is_some_and(|process| !process.is_paused) {
                        self.feed(other, Input::Hint(Hint::Look));
                    }
                }
            }
            Action::Pause(place) => {
                *machine -= 1;
                self.set_paused(place, true);
            }
            Action::Resume(place) => self.set_paused(place, false),
            Action::Run(place) => {
                if let Some(instance) = self.instance(place) {
                    instance.has_begun = true;
                }
                self.feed(place, Input::Begun);
            }
            Action::EndBy(place, ending) => {
                *guest -= u8::from(ending != Ending::Stopped);
                self.end(place, ending.after(self.started));
            }
            Action::Hang(place) => {
                *guest -= 1;
                if let Some(instance) = self.instance(place) {
                    instance.hangs = true;
                }
            }
            Action::Die(place) => {
                if let Some(instance) = self.instance(place) {
                    instance.dying = true;
                }
                self.feed(place, Input::Dying);
            }
            Action::Go(place) => {
                let process = self.node(place).process.as_mut();
                if let Some(end) = process.and_then(|process| process.instance.take()).and_then(|one| one.end) {
                    self.feed(place, Input::Gone { end });
                }
            }
            Action::TakeBack(place) => {
                self.node(place).has_finished = false;
                // Remove the announcement only if the record contains the announced term or a higher term.
                if self.store.snapshot(self.now).covers(&Recalled { term: self.announced[place], progress: None }) {
                    self.announced[place] = 0;
                }
            }
            Action::Stall(place) => {
                *guest -= 1;
                self.feed(place, Input::Stalled { reason: String::new() });
            }
            Action::Publish(place) => {
                *operator -= 1;
                let number = self.nodes[place].plan.module.as_ref().map_or(1, |module| module.serial + 1);
                let module = Some(version(number));
                let fallback = self.nodes[place].plan.module.clone();
                self.plan(place, Plan { module, fallback });
            }
            Action::Withdraw(place) => {
                *operator -= 1;
                self.plan(place, Plan::default());
            }
            Action::StepDown(place) => {
                *operator -= 1;
                self.feed(place, Input::StepDown { reason: String::new() });
            }
            Action::ReadSuspended(place) => {
                *operator -= 1;
                self.suspend(place, true);
            }
            // Do not count this action: an operator who has suspended the election may always resume it.
            Action::ReadResumed(place) => self.suspend(place, false),
            Action::Shutdown(place) => {
                *operator -= 1;
                self.feed(place, Input::Shutdown);
            }
            Action::SkipGrace(place) => {
                *operator -= 1;
                self.feed(place, Input::SkipGrace);
            }
            Action::Break => {
                *outsider -= 1;
                self.store.break_lease(self.now, Duration::ZERO);
            }
            Action::BreakLater => {
                *outsider -= 1;
                self.store.break_lease(self.now, Duration::MAX / 2);
            }
            Action::Delete => {
                *outsider -= 1;
                self.store.object = None;
            }
            Action::Rewrite(back) => {
                *outsider -= 1;
                if let Some(record) = self.written.iter().nth_back(back).cloned() {
                    let _written = self.store.rewrite(self.now, record);
                }
            }
            Action::Seize => {
                *outsider -= 1;
                self.store.break_lease(self.now, Duration::ZERO);
                let id = LeaseId::from_random(0);
                if self.store.take_outside(self.now, id, None) {
                    let _released = self.store.execute(self.now, &Op::Release { id });
                }
            }
        }
    }

    /// Advances time to the earliest of these moments: the next wake-up of a node that holds or requests the lease,
    /// [`SHORTLY`] before the end of the lease, the end of the lease, an instance's deadline, and a request's timeout.
    /// If a standby's poll is due earlier, the standby polls at that moment. If there is no such moment, time advances
    /// to the next poll of a standby.
    fn wait(&mut self) {
        for flight in self.flights.iter_mut().filter(|flight| !flight.is_late) {
            flight.is_late = true;
            self.left.network -= 1;
        }
        for place in 0..self.nodes.len() {
            // As in a real fleet, each node announces the highest term that it has seen.
            if let Some(process) = self.nodes[place].process.as_ref().filter(|process| !process.is_paused) {
                self.announced[place] = self.announced[place].max(process.elector.written_term());
            }
        }
        let mut moments = Vec::new();
        let mut readings = Vec::new();
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            let wakeup = process.elector.next_wakeup().map(|wakeup| wakeup.0);
            let matters = process.elector.holds_lease() || process.is_acquiring;
            if matters {
                moments.extend(wakeup)
            } else {
                readings.extend(wakeup)
            }
            moments.extend(process.waiting.iter().filter(|waiting| waiting.answer.is_none()).map(|one| one.until));
            moments.extend(process.instance.as_ref().map(|instance| instance.deadline.0));
        }
        let lease = self.store.object.as_ref().map(|object| object.lease);
        if let Some(Lease::Held { until, .. } | Lease::Breaking { until, .. }) = lease {
            // Let nodes also act shortly before the lease ends: a request that a node sends at that moment can arrive
            // after the end of the lease.
            moments.extend([until - SHORTLY, until]);
        }
        let now = self.now;
        let later = |moments: Vec<Instant>| moments.into_iter().filter(|moment| *moment > now).min();
        if let Some(moment) = later(moments).or_else(|| later(readings)) {
            self.now = moment;
        }
    }

    // ---- nodes ----

    fn node(&mut self, place: usize) -> &mut Node {
        Arc::make_mut(&mut self.nodes[place])
    }

    fn instance(&mut self, place: usize) -> Option<&mut Instance> {
        self.node(place).process.as_mut()?.instance.as_mut()
    }

    fn passing(&self, node: &Node) -> usize {
        let of_process = node.process.as_ref().and_then(|process| process.instance.as_ref());
        let left = node.orphan.as_ref().and_then(|(_, instance, _)| instance.as_ref());
        [of_process, left].into_iter().flatten().filter(|instance| instance.passes(self.now)).count()
    }

    fn begin(&mut self, place: usize) {
        let now = self.now;
        let node = self.node(place);
        node.incarnation += 1;
        node.has_finished = false;
        node.process = Some(Process::new(place, node.incarnation, now));
        let plan = node.plan.clone();
        self.feed(place, Input::Plan(plan));
    }

    fn set_paused(&mut self, place: usize, is_paused: bool) {
        if let Some(process) = &mut self.node(place).process {
            process.is_paused = is_paused;
        }
    }

    fn suspend(&mut self, place: usize, is_suspended: bool) {
        let one = Ineligibility {
            id: String::new(),
            cause: IneligibleCause::Suspended,
            reason: String::new(),
            until: None,
            after_release: None,
        };
        let commands = if is_suspended { vec![one] } else { Vec::new() };
        if let Some(process) = &mut self.node(place).process {
            process.is_suspended = is_suspended;
        }
        self.feed(place, Input::Eligibility(Eligibility { commands, ..Eligibility::default() }));
    }

    fn plan(&mut self, place: usize, plan: Plan) {
        self.node(place).plan = plan.clone();
        self.feed(place, Input::Plan(plan));
    }

    fn end(&mut self, place: usize, end: End) {
        if let Some(instance) = self.instance(place) {
            instance.end.get_or_insert(end);
        }
    }

    fn stop_waiting(&mut self, place: usize, id: RequestId) -> Option<Waiting> {
        let waiting = &mut self.node(place).process.as_mut()?.waiting;
        let index = waiting.iter().position(|one| one.id == id)?;
        Some(waiting.remove(index))
    }

    /// Passes an input to an elector, and carries out the effects. The `match` lists every kind of input: after an
    /// addition, the compiler reminds the author to extend the model.
    fn feed(&mut self, place: usize, input: Input) {
        match &input {
            Input::Tick
            | Input::Answer { .. }
            | Input::NotSent { .. }
            | Input::Begun
            | Input::Gone { .. }
            | Input::Dying
            | Input::Plan(_)
            | Input::Eligibility(_)
            | Input::Stalled { .. }
            | Input::StepDown { .. }
            | Input::Hint(_)
            | Input::Shutdown
            | Input::SkipGrace => {}
            // A schedule only delays terms. The simulation covers it.
            Input::Schedule(_) => {}
        }
        let now = at(self.now);
        let Some(process) = &mut self.node(place).process else { return };
        let (is_tick, is_hint) = (input == Input::Tick, matches!(input, Input::Hint(_)));
        let (known, follows) = (process.elector.written_term(), process.elector.follows());
        let reads_at = process.elector.next_wakeup().filter(|_| is_hint && follows);
        process.elector.handle(now, input);
        let latest = now.time + LISTENING_POLL + LISTENING_POLL / 4;
        // A hint must not delay a standby's next poll beyond `latest`. If the standby polls immediately, the next
        // wake-up is the timeout of this poll, which is earlier than `latest`.
        let is_late = |at: Time| process.elector.next_wakeup().is_some_and(|later| later > at.max(latest));
        let (raises, delays) = (process.elector.written_term() != known, reads_at.is_some_and(is_late));
        if is_hint && raises {
            self.broken = Some("a hint raises a term");
        }
        if delays {
            self.broken = Some("a hint keeps a standby from reading for too long");
        }
        while let Some(effect) = self.node(place).process.as_mut().and_then(|process| process.elector.poll_effect()) {
            self.carry_out(place, effect);
        }
        let process = self.nodes[place].process.as_ref();
        let wakeup = process.and_then(|process| process.elector.next_wakeup());
        if is_tick && wakeup.is_some_and(|wakeup| wakeup <= now.time) {
            self.broken = Some("an elector that was woken wants to be woken at once");
        }
    }

    fn carry_out(&mut self, place: usize, effect: Effect) {
        let now = self.now;
        let incarnation = self.nodes[place].incarnation;
        match effect {
            Effect::Request { id, op, timeout, within_quota } => {
                // The machine checks its notes first. If the notes do not allow the reclaim, the request does not reach
                // the store.
                let record = self.store.record().cloned();
                let is_refused = matches!(&op, Op::Reclaim { from, id, .. }
                    if !self.store.notes.take(*from, *id, record.as_ref(), &name(place, incarnation)));
                let answer = is_refused.then_some(Err(StoreError::Held));
                let is_acquiring = matches!(op, Op::Acquire { .. } | Op::Reclaim { .. });
                if let (Op::Acquire { id, .. } | Op::Reclaim { id, .. }, true) = (&op, self.keeps_notes) {
                    self.store.notes.ids.insert(name(place, incarnation), vec![*id]);
                }
                if let Op::Release { .. } = &op {
                    self.store.notes.remove(&name(place, incarnation));
                    self.store.notes.ids.remove(&name(place, incarnation));
                }
                if let Some(process) = &mut self.node(place).process {
                    if is_acquiring && !process.is_acquiring && process.is_suspended {
                        self.broken = Some("a suspended node requests the lease");
                        return;
                    }
                    let was_acquiring = std::mem::replace(&mut process.is_acquiring, is_acquiring);
                    if within_quota && (was_acquiring || process.elector.holds_lease()) {
                        self.broken = Some("a request that may have been sent before may be withheld");
                        return;
                    }
                    if let Op::Acquire { id, .. } | Op::Reclaim { id, .. } = &op {
                        process.leases.push(*id);
                    }
                    process.waiting.push(Waiting { id, until: now + timeout, answer: answer.clone() });
                }
                if answer.is_some() {
                    return;
                }
                self.flights.push(Flight { node: place, incarnation, id, op, is_late: false, within_quota });
            }
            Effect::Start { term, deadline, .. } => self.start(place, term, deadline),
            Effect::Extend { deadline, .. } => {
                if let Some(instance) = self.instance(place) {
                    instance.deadline = deadline;
                }
            }
            Effect::Stop { .. } => {
                if let Some(instance) = self.instance(place) {
                    instance.is_asked_to_stop = true;
                }
            }
            Effect::Kill { .. } => self.end(place, End::Killed),
            Effect::Abort { .. } => {
                if self.instance(place).is_some_and(|instance| instance.dying) {
                    self.broken = Some("a host ends for what the system alone can end");
                }
                self.node(place).process = None;
            }
            Effect::Finished => {
                let node = self.node(place);
                node.process = None;
                node.has_finished = true;
            }
            Effect::Reject { instead, .. } => {
                self.node(place).plan = Plan { module: instead, ..Plan::default() };
            }
            Effect::Prove { .. } => self.node(place).plan.fallback = None,
            Effect::Tell(word) => self.tell(place, &word),
            Effect::Report(_) => {}
        }
    }

    /// Keeps a message for other nodes, which may receive the message at any time, repeatedly or never. An older
    /// message may arrive after a newer message. A message contains the age that the last renewal had when the message
    /// was sent. A late message therefore makes the renewal look more recent than it is.
    fn tell(&mut self, place: usize, word: &Word) {
        let Some(process) = &self.nodes[place].process else { return };
        let from = name(place, process.incarnation);
        let hint = match word {
            Word::Leads { term, renewed } => {
                let lease = self.store.object.as_ref().map(|object| object.lease);
                if let Some(Lease::Held { id, length, until, .. }) = lease
                    && process.leases.contains(&id)
                    && renewed.0 + length > until
                {
                    self.broken = Some("a leader tells of a renewal that is younger than the last");
                }
                Hint::Leads { from, term: *term, age: at(self.now).time.since(*renewed), place: Some(0) }
            }
            Word::GivesUp => Hint::GivesUp { from, place: Some(0) },
        };
        // If no more hints can arrive, the message has no effect.
        if self.left.links > 0 && !self.told.contains(&hint) {
            self.told.push(hint);
        }
    }

    fn start(&mut self, place: usize, term: Term, deadline: Time) {
        if self.instance(place).is_some() {
            self.broken = Some("an instance starts beside another of its node");
        }
        if self.nodes[place].process.as_ref().is_some_and(|process| process.is_suspended) {
            self.broken = Some("a suspended node starts an instance");
        }
        if term <= self.started {
            self.broken = Some("a term starts after itself or a later one");
        }
        self.started = self.started.max(term);
        if let Some(process) = &mut self.node(place).process {
            process.instance = Some(Instance {
                deadline,
                end: None,
                has_begun: false,
                is_asked_to_stop: false,
                hangs: false,
                dying: false,
            });
        }
    }

    // ---- the store ----

    fn arrive(&mut self, flight: Flight, is_heard: bool) {
        let by = name(flight.node, flight.incarnation);
        let result = match self.store.execute(self.now, &flight.op) {
            Ok(Reply::Recalled(recalled)) => Ok(Reply::Recalled(self.recalled(&recalled))),
            Ok(Reply::Read(snapshot)) => Ok(Reply::Read(self.judged(snapshot, &by))),
            Ok(Reply::Surveyed { read, recalled, steering }) => {
                let recalled = self.recalled(&recalled);
                Ok(Reply::Surveyed { read: self.judged(read, &by), recalled, steering })
            }
            result => result,
        };
        if result.is_ok() && matches!(&flight.op, Op::Write { record, .. } if record.node.is_some()) {
            self.store.notes.remove(&by);
        }
        if result.is_ok()
            && let Op::Create { record } | Op::Write { record, .. } = &flight.op
        {
            self.note(record);
        }
        let node = self.node(flight.node);
        let Some(process) = node.process.as_mut().filter(|process| process.incarnation == flight.incarnation) else {
            return;
        };
        if !is_heard {
            return;
        }
        let Some(waiting) = process.waiting.iter_mut().find(|one| one.id == flight.id) else { return };
        if process.is_paused {
            waiting.answer = Some(result);
            return;
        }
        let _now_answered = self.stop_waiting(flight.node, flight.id);
        self.feed(flight.node, Input::Answer { id: flight.id, result });
    }

    /// Keeps the last two records, so that an outsider can restore them.
    fn note(&mut self, record: &Record) {
        self.written.push(record.clone());
        if self.written.len() > 2 {
            let _oldest = self.written.remove(0);
        }
    }

    /// Returns the snapshot that the node reads. If the machine keeps notes, the notes show whether the holder of a
    /// held lease is dead.
    fn judged(&self, read: Snapshot, by: &str) -> Snapshot {
        match read {
            Snapshot::Object { lease: LeaseState::Held, version, record } if self.keeps_notes => {
                let lease = self.store.notes.judged(record.as_ref(), by);
                Snapshot::Object { lease, version, record }
            }
            read => read,
        }
    }

    fn recalled(&self, recalled: &Recalled) -> Recalled {
        Recalled { term: recalled.term.max(self.witnessed()), progress: recalled.progress.clone() }
    }

    fn witnessed(&self) -> Term {
        self.announced.iter().copied().max().unwrap_or_default()
    }

    /// True if an announcement contains the latest term that may have an instance. If no announcement contains this
    /// term, no node can know it after an outsider deletes the record or restores an older record.
    fn is_witnessed(&self) -> bool {
        let recorded = self.store.record().map_or(0, |record| record.term);
        self.witnessed() >= recorded.max(self.started)
    }

    pub fn snapshot(&self) -> Snapshot {
        self.store.clone().snapshot(self.now)
    }
}

impl Ending {
    /// Returns the end that is reported to the elector. `last` is the last term that has begun.
    fn after(self, last: Term) -> End {
        match self {
            Ending::Done | Ending::Stopped => End::Done,
            Ending::Failed => End::Failed(String::new()),
            Ending::Crashed => End::Crashed(String::new()),
            Ending::Fatal => End::Fatal(String::new()),
            Ending::Unable => End::Unable(String::new()),
            Ending::Superseded => End::Superseded { term: last + 1 },
        }
    }
}

pub fn version(number: u64) -> ModuleVersion {
    ModuleVersion { digest: format!("sha256:{number}"), serial: number }
}
