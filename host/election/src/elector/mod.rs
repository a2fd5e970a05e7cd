//! The elector: its state, the contract for its caller, and the code that its parts share.
//!
//! `candidate` is a node without the lease, and `listening` handles the hints that this node receives. `holder` is a
//! node with the lease. `record_writer` writes the record while the node holds the lease, and `releasing` gives the
//! lease up. `eligibility` decides whether the node may lead and whether it lets other nodes go first. `versions`
//! decides which version is served, and `timer` lists all timers.

mod candidate;
mod eligibility;
mod holder;
mod listening;
mod record_writer;
mod releasing;
mod timer;
mod versions;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::time::Duration;

use crate::eligibility::{Ineligibility, IneligibleCause};
use crate::hint::Word;
use crate::port::{Effect, Input, Now, Plan, Random, Report, Settings};
use crate::record::{HIGHEST_TERM, LeaseId, LeaseState, Outcome, Record, Snapshot, Term, Version};
use crate::request::{Op, Recalled, Reply, RequestId, StoreError};
use crate::schedule::Progress;
use crate::timing::{POLL, Time};

use candidate::{Acquiring, Standby};
use eligibility::EligibilityState;
use holder::Holding;
use listening::LeaderHints;
use releasing::Releasing;
use versions::Versions;

/// Assumed length of a lease that no record describes: the longest length that any store supports.
const UNKNOWN_LEASE: Duration = Duration::from_secs(60);
/// Number of terms that [`Memory::skip_unknown_terms`] skips. It is an upper bound on two numbers: the terms that can
/// begin in one second, and the terms that can have begun without being in any object in the store.
const UNKNOWN_TERMS: Term = 1 << 20;
/// Latest plausible wall-clock time, in seconds since the Unix epoch. Later times are reduced to this time, because
/// they would use up the available term numbers.
const LATEST_WALL: u64 = 1 << 40;
/// Time for which an instance must run before it counts as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Number of consecutive failures of instances after which a node steps down.
const FAILURES_TO_STEP_DOWN: u32 = 5;
/// Number of consecutive failed starts after which a node steps down, if each start failed because of this node.
/// Another node may be able to start the instance.
const UNABLE_TO_STEP_DOWN: u32 = 3;
/// Maximum number of times that the wait after a failed term is doubled. Each consecutive failure doubles the wait.
const LONGEST_REST: u32 = 3;
/// Length of the first cool-off (±25%), the time after a step-down in which the node leaves the lease to other nodes.
/// Each further cool-off is twice as long as the previous one.
const COOL_OFF: Duration = Duration::from_secs(10);
const COOL_OFF_MAX: Duration = Duration::from_secs(600);
/// A node in cool-off acquires a lease only after it has seen the lease free for this long.
const FREE_LONG_ENOUGH: Duration = Duration::from_secs(10);
/// The longest back-off of a standby whose reads fail.
const BACK_OFF_MAX: Duration = Duration::from_secs(15);
/// The longest back-off if the store is misconfigured. On Azure, a new role assignment takes minutes to take effect.
const MISCONFIGURED_BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// The shortest average interval between reads triggered by hints, and the shortest interval between renewals triggered
/// by hints.
const HINTED_POLL: Duration = Duration::from_millis(60);
/// Number of reads triggered by hints that may follow each other immediately. One read is not enough, because a closed
/// link and the kernel may both report the same death.
const HINTED_AT_ONCE: u32 = 3;
/// Timeout for a standby's requests and for a recall.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides for one node whether it leads one election.
///
/// # Calling contract
/// Pass all inputs to [`handle`](Elector::handle). After each call, carry out the effects that
/// [`poll_effect`](Elector::poll_effect) yields, in order, until it yields none. Then sleep until
/// [`next_wakeup`](Elector::next_wakeup) or the next input, whichever comes first. Read the clock again after each
/// sleep, because the sleep may have ended early or late. The time that you pass in must never go backwards. Answer
/// every [`Effect::Request`] exactly once; duplicate and outdated answers do no harm. Pass exactly one [`Input::Gone`]
/// for each [`Effect::Start`]. Until `Gone` arrives, the elector does not start another instance. [`Effect::Finished`]
/// is the last effect.
///
/// An elector is plain data: if a copy receives the same inputs, it makes the same decisions.
#[derive(Clone, Hash)]
pub struct Elector {
    context: Context,
    role: Role,
}

/// The role of this node. Each role has a method `step`, which takes an input, or `None` if only the time has changed.
/// The method returns the next role if the role changes.
#[derive(Debug, Clone, Hash)]
enum Role {
    /// The node neither holds nor requests the lease.
    Standby(Standby),
    Acquiring(Acquiring),
    /// The node holds the lease, as far as it knows.
    Holding(Box<Holding>),
    Releasing(Releasing),
    Finished,
}

impl Elector {
    /// Creates the elector of a node that has just started. `random` must make every lease id unique across all nodes.
    pub fn new(settings: Settings, now: Now, random: Random) -> Self {
        let mut context = Context {
            settings,
            now,
            random,
            effects: VecDeque::new(),
            last_request: 0,
            memory: Memory::default(),
            listening: LeaderHints::default(),
            versions: Versions::default(),
            eligibility: EligibilityState::default(),
            trigger: None,
            cool_off: None,
            cool_offs: 0,
            trouble: None,
            refused: 0,
            shutting_down: false,
        };
        let first_poll = now.time + context.up_to(POLL);
        let role = Role::Standby(Standby::new(first_poll));
        context.report(Report::Standby { reason: "the host has started".to_string() });
        Self { context, role }
    }

    /// Takes one input and the time of its arrival.
    pub fn handle(&mut self, now: Now, input: Input) {
        // By contract, time does not go backwards. If it does anyway, it must not extend any deadline.
        self.context.now = Now {
            time: now.time.max(self.context.now.time),
            least: now.least.max(self.context.now.least),
            wall: now.wall,
        };
        // First make the decisions that depend only on the time. If an answer arrives after the deadline, the elector
        // thus kills the instance before it handles the answer. Skip this step if the instance is gone or dying,
        // because such an instance need not be killed.
        if !matches!(input, Input::Gone { .. } | Input::Dying) {
            self.apply(None);
        }
        let input = match input {
            Input::Answer { id, result } => Input::Answer { id, result: result.and_then(plausible) },
            input => input,
        };
        self.apply(Some(input));
        self.apply(None);
    }

    /// The next effect to carry out, if there is one.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.context.effects.pop_front()
    }

    /// The time at which [`Input::Tick`] is due; `None` if no timer is running.
    pub fn next_wakeup(&self) -> Option<Time> {
        let of_role = match &self.role {
            Role::Standby(standby) => standby.timers(&self.context).next(),
            Role::Acquiring(acquiring) => acquiring.timers().next(),
            Role::Holding(holding) => holding.timers(&self.context).next(),
            Role::Releasing(releasing) => releasing.timers().next(),
            Role::Finished => return None,
        };
        [of_role, self.context.eligible_at()].into_iter().flatten().min()
    }

    /// The last plan, without the versions that this node itself has rejected.
    pub fn plan(&self) -> &Plan {
        self.context.versions.plan()
    }

    /// The operators' command that prevents this node from leading, if any.
    pub fn command(&self) -> Option<&Ineligibility> {
        self.context.command()
    }

    /// The reason why this node must not lead, if there is one. A cool-off is a reason only while the node does not
    /// hold the lease.
    pub fn ineligible(&self) -> Option<&IneligibleCause> {
        let is_cooling_off = self.context.is_in_cool_off() && !self.holds_lease();
        let cool_off = is_cooling_off.then_some(&IneligibleCause::CoolingOff);
        self.context.ineligible().map(|(cause, _)| cause).or(cool_off)
    }

    /// The highest term that this host knows to have been written. The host tells other nodes this term, so that they
    /// do not mistake a restored or recreated record for the latest one.
    pub fn written_term(&self) -> Term {
        self.context.memory.written_term
    }

    /// The progress of the election's scheduled runs, as far as this host knows. The host tells other nodes this
    /// progress together with the written term, so that a deleted record does not lose it.
    pub fn progress(&self) -> Option<&Progress> {
        self.context.memory.progress.as_deref()
    }

    /// The number of consecutive failures of the module that ran last. It includes failures on earlier leaders. 0 if
    /// this node does not hold the lease.
    pub fn failures(&self) -> u32 {
        match &self.role {
            Role::Holding(holding) => holding.failures(),
            _ => 0,
        }
    }

    /// True if this node holds the lease, as far as it knows. While this is true, the host must notice within 500 ms if
    /// the machine has slept or the clock was set, and within 5 s if timers run slow. The host must then pass in the
    /// new time.
    pub fn holds_lease(&self) -> bool {
        matches!(self.role, Role::Holding(_))
    }

    /// True if this node neither holds nor requests the lease, and has no lease to release. A lease that this node may
    /// still hold but can no longer release does not count, because the lease expires by itself.
    pub fn follows(&self) -> bool {
        matches!(self.role, Role::Standby(_) | Role::Finished)
    }

    /// True while this standby waits for the answer to a survey ([`Op::Survey`]). The node surveys the store because
    /// the leader is giving up the lease, and may request the lease next.
    pub fn surveys(&self) -> bool {
        matches!(&self.role, Role::Standby(standby) if standby.surveys())
    }

    /// The leader's incarnation, according to the last read. This node should listen to that leader. `None` if no
    /// leader is known, or if [`follows`](Self::follows) is false.
    pub fn leader(&self) -> Option<&str> {
        if self.follows() { self.context.listening.leader() } else { None }
    }

    /// The time until which this node reads the lease only rarely, because it receives the leader's announcements;
    /// `None` while it reads every second.
    pub fn listens_until(&self) -> Option<Time> {
        self.context.listening.fresh_until().filter(|_| self.follows())
    }

    /// The time at which the gate closes, unless the lease is renewed before then; `None` if this node does not hold
    /// the lease.
    pub fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Holding(holding) => Some(holding.deadline(&self.context)),
            _ => None,
        }
    }

    /// Passes the input and the time to the role. After each role change, passes the time to the new role.
    fn apply(&mut self, mut input: Option<Input>) {
        match &input {
            Some(Input::Shutdown | Input::SkipGrace) => self.context.shutting_down = true,
            Some(Input::Plan(plan)) => self.context.take_plan(plan),
            Some(Input::Eligibility(eligibility)) => self.context.take_eligibility(eligibility),
            Some(Input::Schedule(commands)) => {
                Progress::merge_into(&mut self.context.memory.progress, commands.progress.as_deref());
                self.context.trigger = commands.trigger;
            }
            _ => {}
        }
        loop {
            if !matches!(self.role, Role::Finished) {
                self.context.update_eligibility(self.holds_lease());
            }
            let context = &mut self.context;
            let next = match &mut self.role {
                Role::Standby(standby) => standby.step(context, input.take()),
                Role::Acquiring(acquiring) => acquiring.step(context, input.take()),
                Role::Holding(holding) => holding.step(context, input.take()),
                Role::Releasing(releasing) => releasing.step(context, input.take()),
                Role::Finished => None,
            };
            let Some(role) = next else { return };
            if matches!(role, Role::Finished) {
                context.effects.push_back(Effect::Finished);
            }
            self.role = role;
        }
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("role", &self.role)
            .field("memory", &self.context.memory)
            .finish_non_exhaustive()
    }
}

/// State that all roles share and that outlives each role.
#[derive(Clone, Hash)]
struct Context {
    settings: Settings,
    now: Now,
    random: Random,
    effects: VecDeque<Effect>,
    last_request: u64,
    memory: Memory,
    listening: LeaderHints,
    versions: Versions,
    eligibility: EligibilityState,
    /// The time at which an operator last triggered a run.
    trigger: Option<Duration>,
    cool_off: Option<Time>,
    /// Number of cool-offs since this node was last healthy.
    cool_offs: u32,
    trouble: Option<Trouble>,
    /// Number of consecutive failed requests to create the object or to acquire the lease. Acquires with an unknown
    /// outcome do not count.
    refused: u32,
    shutting_down: bool,
}

#[derive(Debug, Default, Clone, Hash)]
struct Memory {
    /// The highest known term, including terms that this node has only attempted to write. This node's next term must
    /// be higher.
    highest_term: Term,
    /// The progress of the scheduled runs. A holder may not have written all of it yet.
    progress: Option<Box<Progress>>,
    /// The highest term that is known to have been written. A record with a lower term is not the latest.
    written_term: Term,
    seen: bool,
    /// True if a node has held the lease, or if a read found the object and a later read did not. If the object later
    /// looks new, it was recreated, and the last holder's instance may still be running.
    was_held: bool,
    /// The length of the longest lease in the records read so far, or [`UNKNOWN_LEASE`] if the length of a lease is
    /// unknown.
    longest_lease: Option<Duration>,
    /// The time since which every read has shown that the lease is free.
    free_since: Option<Time>,
    /// The object's version when a read last showed that the lease is free. While the version stays the same, no holder
    /// has written the record.
    free_version: Option<Version>,
    /// The time of the first failed [`Op::Recall`]. Cleared by a successful recall, and by a read after which this node
    /// requests nothing.
    unrecalled_since: Option<Time>,
    /// The time since which a holder has held the lease without writing a record.
    silent_since: Option<Time>,
    /// The last holder that was found dead by a read.
    death: Option<Death>,
    /// The last dead holder whose lease this node failed to reclaim.
    refused_reclaim: Option<LeaseId>,
    /// The version of a record that is marked as released. While the record has this version, this node does not
    /// request the lease until it reads that the lease is free.
    awaits_release: Option<Version>,
}

/// A holder that died with its host before its lease expired.
#[derive(Debug, Clone, Copy, Hash)]
struct Death {
    holder: LeaseId,
    /// The earliest time at which this node replaces the holder.
    until: Time,
}

impl Memory {
    fn note(&mut self, snapshot: &Snapshot, now: Time) {
        let Snapshot::Object { lease, version, record } = snapshot else {
            self.was_held |= self.seen;
            self.free_since.get_or_insert(now);
            // The holder had not written a record by the last read, so no record says how long its lease was.
            if self.silent_since.take().is_some() {
                self.longest_lease = Some(UNKNOWN_LEASE);
            }
            return;
        };
        self.seen = true;
        if let Some(record) = record {
            self.note_record(record);
        }
        let is_held = lease.is_held();
        if is_held {
            self.free_since = None;
        } else {
            self.free_since.get_or_insert(now);
            self.free_version = Some(version.clone());
        }
        if is_held && (record.is_none() || self.free_version.as_ref() == Some(version)) {
            self.silent_since.get_or_insert(now);
        } else {
            self.silent_since = None;
        }
        self.was_held |= *lease != LeaseState::Free;
    }

    fn note_record(&mut self, record: &Record) {
        self.note_term(record.term);
        Progress::merge_into(&mut self.progress, record.progress.as_deref());
        // No holder writes a record with a lease longer than `UNKNOWN_LEASE`. A record that contains a longer lease
        // must not prolong this node's wait.
        self.longest_lease = self.longest_lease.max(Some(record.lease.min(UNKNOWN_LEASE)));
        self.was_held |= record.node.is_some() || record.term > 0;
    }

    /// Notes the result of a recall. If this node did not know the term, the length of the term's lease is unknown.
    fn note_recalled(&mut self, recalled: &Recalled) {
        self.unrecalled_since = None;
        if recalled.term > self.written_term {
            self.longest_lease = Some(UNKNOWN_LEASE);
        }
        self.note_term(recalled.term);
        Progress::merge_into(&mut self.progress, recalled.progress.as_deref());
    }

    /// Skips the terms that may have begun without this node's knowledge. Such terms may exist if the record was
    /// deleted or restored, and the terms in other objects cannot be read. Another node may already have skipped terms,
    /// up to a term that this node does not know. Therefore, the next term also rises with the wall clock.
    fn skip_unknown_terms(&mut self, wall: Duration) {
        let by_now = wall.as_secs().min(LATEST_WALL) * UNKNOWN_TERMS;
        self.highest_term = by_now.max(self.highest_term + UNKNOWN_TERMS);
    }

    fn note_term(&mut self, term: Term) {
        self.highest_term = self.highest_term.max(term);
        self.written_term = self.written_term.max(term);
        self.was_held |= term > 0;
    }
}

impl Context {
    fn time(&self) -> Time {
        self.now.time
    }

    /// True if the record says that the election has ended, and the record's module is the module that this node would
    /// serve. An election with a schedule never ends.
    fn is_over(&self, record: &Record) -> bool {
        record.outcome == Some(Outcome::Done) && self.versions.is_in(record) && self.settings.schedule.is_none()
    }

    fn is_in_cool_off(&self) -> bool {
        self.cool_off.is_some_and(|until| self.time() < until)
    }

    fn take_plan(&mut self, plan: &Plan) {
        if self.versions.take(plan.clone()) {
            // The failures of the previous module do not count for the new module.
            self.cool_off = None;
            self.cool_offs = 0;
        }
    }

    fn tell(&mut self, word: Word) {
        self.effects.push_back(Effect::Tell(word));
    }

    fn report(&mut self, report: Report) {
        self.effects.push_back(Effect::Report(report));
    }

    fn request(&mut self, op: Op, timeout: Duration) -> Pending {
        self.request_within_quota(op, timeout, false)
    }

    /// Sends a request. The host may withhold it if `within_quota` is true: see [`Effect::Request`].
    fn request_within_quota(&mut self, op: Op, timeout: Duration, within_quota: bool) -> Pending {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let pending = Pending { id, sent: self.time() };
        self.effects.push_back(Effect::Request { id, op, timeout, within_quota });
        pending
    }

    /// Sends a request on which the lease depends, with the short timeout of such requests.
    fn urgent(&mut self, op: Op) -> Pending {
        self.request(op, self.settings.timing.try_timeout())
    }

    fn fresh_lease_id(&mut self) -> LeaseId {
        let (high, low) = (self.random.number(), self.random.number());
        LeaseId::from_random((u128::from(high) << 64) | u128::from(low))
    }

    fn up_to(&mut self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.number() % nanos.saturating_add(1))
    }

    /// Returns `length` with a random deviation of up to ±25%.
    fn jittered(&mut self, length: Duration) -> Duration {
        length * 3 / 4 + self.up_to(length / 2)
    }

    fn renew_at(&self, sent: Time) -> Time {
        // FNV-1a hash of the incarnation: the same for all elections on this host, and different on other hosts.
        let phase = self
            .settings
            .incarnation
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        self.settings.timing.renew_at(sent, phase)
    }

    fn retry_at(&mut self) -> Time {
        let (shortest, longest) = self.settings.timing.retry_range();
        let wait = shortest + self.up_to(longest - shortest);
        self.time() + wait
    }

    /// Builds the record of this node's next term. `basis` is the stored record, if any.
    fn next_record(&self, basis: Option<&Record>, lease: Duration) -> Record {
        // Failures belong to a module. Keep the failure count only if `basis` is about the planned module.
        let same = basis.filter(|record| self.versions.is_in(record));
        Record {
            term: self.memory.highest_term.max(basis.map_or(0, |record| record.term)) + 1,
            node: Some(self.settings.node.clone()),
            incarnation: self.settings.incarnation.clone(),
            since: self.now.wall,
            lease,
            module: self.versions.digest().map(ToString::to_string),
            outcome: None,
            failures: same.map_or(0, |record| record.failures),
            released: false,
            paused_until: None,
            progress: self.memory.progress.clone(),
        }
    }

    /// The remaining time of the pause that the record sets, but at most `--restart-delay`. Zero if the record is not
    /// about the planned module.
    fn pause_left(&self, record: Option<&Record>) -> Duration {
        let until = record.filter(|record| self.versions.is_in(record)).and_then(|record| record.paused_until);
        until.map_or(Duration::ZERO, |until| until.saturating_sub(self.now.wall).min(self.settings.pause))
    }

    /// Builds a record that has no holder and is not marked as released. The record has the highest known term, and the
    /// module's fields from `basis`.
    fn record_without_holder(&self, basis: Option<&Record>, lease: Duration) -> Record {
        Record {
            term: self.memory.highest_term,
            node: None,
            incarnation: self.settings.incarnation.clone(),
            since: self.now.wall,
            lease,
            module: basis.and_then(|record| record.module.clone()),
            outcome: basis.and_then(|record| record.outcome),
            failures: basis.map_or(0, |record| record.failures),
            released: false,
            paused_until: basis.and_then(|record| record.paused_until),
            progress: self.memory.progress.clone(),
        }
    }

    fn begin_cool_off(&mut self, reason: String) {
        let doubled = COOL_OFF.saturating_mul(1 << self.cool_offs.min(10)).min(COOL_OFF_MAX);
        let wait = self.jittered(doubled).min(COOL_OFF_MAX);
        self.cool_offs += 1;
        self.cool_off = Some(self.time() + wait);
        self.report(Report::CoolOff { wait, reason });
    }

    fn store_trouble(&mut self, asked: &'static str, error: &StoreError) {
        // Report a failed read again if a read has succeeded in between.
        let known = self.trouble.take().filter(|known| !(known.has_read_since && asked == READ));
        // A misconfiguration counts as one problem, no matter which request reveals it.
        let is_told = known.as_ref().is_some_and(|known| {
            &known.error == error && (known.asked == asked || matches!(error, StoreError::Misconfigured(_)))
        });
        let since = known.map_or_else(|| self.time(), |known| known.since);
        self.trouble = Some(Trouble { since, asked, error: error.clone(), has_read_since: false });
        if !is_told {
            self.report(Report::StoreTrouble { error: error.clone(), asked });
        }
    }

    /// Notes that the store carried out the request `asked`. A success ends the reported outage as follows:
    ///
    /// - A read ends an outage of reads.
    /// - A recall ends an outage of reads or recalls.
    /// - Any other request ends an outage of all requests except recalls, which also read other objects.
    ///
    /// If the store refused a request (`Misconfigured`), the trouble ends when the same request or an acquire succeeds.
    /// After an acquire, the node sends all other requests again, except a recall. So an acquire does not end the
    /// trouble of a recall.
    fn store_answers(&mut self, asked: &'static str) {
        self.trouble_ends(|trouble| match (&trouble.error, asked) {
            (StoreError::Misconfigured(_), _) => {
                asked == trouble.asked || (asked == ACQUIRE && trouble.asked != RECALL)
            }
            (_, READ) => trouble.asked == READ,
            (_, RECALL) => trouble.asked == READ || trouble.asked == RECALL,
            _ => trouble.asked != RECALL,
        });
        if let (READ, Some(trouble)) = (asked, &mut self.trouble) {
            trouble.has_read_since = true;
        }
    }

    /// Ends the reported trouble after a read that shows that this node has nothing to request. If the store refused a
    /// request (`Misconfigured`), the trouble stays, because this node has not repeated the request. The exceptions are
    /// a refused create and a refused recall: this node no longer needs them, so their trouble ends.
    fn store_is_back(&mut self) {
        self.trouble_ends(|trouble| {
            [CREATE, RECALL].contains(&trouble.asked) || !matches!(trouble.error, StoreError::Misconfigured(_))
        });
    }

    fn trouble_ends(&mut self, is_over: impl FnOnce(&Trouble) -> bool) {
        if let Some(trouble) = self.trouble.take_if(|trouble| is_over(trouble)) {
            self.report(Report::StoreBack { after: self.time().since(trouble.since) });
        }
    }

    /// Notes that a holder is dead. This node replaces the holder immediately, unless the record already counts
    /// failures of the planned module. In that case, the module itself may be killing the hosts, and must not kill all
    /// of them in quick succession.
    fn note_death(&mut self, snapshot: &Snapshot) {
        let Snapshot::Object { lease: LeaseState::Abandoned { holder }, record, .. } = snapshot else { return };
        if self.memory.death.is_some_and(|death| death.holder == *holder) {
            return;
        }
        let served = |record: &&Record| self.versions.is_in(record) && self.may_have_served(record);
        let failures = record.as_ref().filter(served).map_or(0, |record| record.failures);
        let wait = if failures == 0 { Duration::ZERO } else { self.rest_after(failures) };
        self.memory.death = Some(Death { holder: *holder, until: self.time() + wait });
    }

    /// The wait between a failed term and the next term. `failures` is the number of consecutive failures before the
    /// failed term.
    fn rest_after(&mut self, failures: u32) -> Duration {
        self.jittered(Duration::from_secs(1 << failures.min(LONGEST_REST))).max(Duration::from_secs(1))
    }

    /// The wait before the next attempt. `last` is the error of the last attempt, and `failures` is the number of
    /// consecutive failures before that attempt.
    fn back_off(&mut self, failures: u32, last: &StoreError) -> Duration {
        let longest = match last {
            StoreError::Misconfigured(_) => MISCONFIGURED_BACK_OFF_MAX,
            _ => BACK_OFF_MAX,
        };
        let doubled = POLL.saturating_mul(1 << failures.min(5));
        self.jittered(doubled.min(longest)).clamp(POLL, longest)
    }
}

/// Refuses an answer with a term of at least [`HIGHEST_TERM`]: no holder has written such a term.
fn plausible(reply: Reply) -> Result<Reply, StoreError> {
    let (recorded, named) = match &reply {
        Reply::Read(read) => (read.term(), 0),
        Reply::Recalled(recalled) => (0, recalled.term),
        Reply::Surveyed { read, recalled, .. } => (read.term(), recalled.term),
        Reply::Version(_) | Reply::Done => (0, 0),
    };
    let terms = [("record", recorded), ("state or a node's announcement", named)];
    let Some((what, term)) = terms.into_iter().find(|(_, term)| *term >= HIGHEST_TERM) else { return Ok(reply) };
    Err(StoreError::Misconfigured(format!(
        "the {what} contains term {term}, and no higher term is possible: correct the term"
    )))
}

/// Names of the requests, for [`Report::StoreTrouble`].
const READ: &str = "read";
const RECALL: &str = "recall";
const CREATE: &str = "create";
const ACQUIRE: &str = "acquire";
const RELEASE: &str = "release";

#[derive(Debug, Clone, Hash)]
struct Trouble {
    since: Time,
    asked: &'static str,
    error: StoreError,
    /// True if a read has succeeded since the last failure.
    has_read_since: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct Pending {
    id: RequestId,
    sent: Time,
}

fn answered(slot: &mut Option<Pending>, id: RequestId) -> Option<Pending> {
    slot.take_if(|pending| pending.id == id)
}
