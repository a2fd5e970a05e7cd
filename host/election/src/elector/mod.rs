//! The elector: its state, its calling contract and what its parts share.
//!
//! `candidate` is its life without the lease, `listening` what it hears then, `holder` its life with it, `record_writer` the conditional
//! writing of the record under the lease, `releasing` the end of it, `versions` what is served, and `timer` names all
//! that is done because it is time.

mod candidate;
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

use crate::hint::Word;
use crate::port::{Effect, Input, Now, Plan, Random, Report, Settings};
use crate::record::{HIGHEST_TERM, LeaseId, LeaseState, Outcome, Record, Snapshot, Term, Version};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::timing::{POLL, Time};

use candidate::{Acquiring, Standby};
use holder::Holding;
use listening::Listening;
use releasing::Releasing;
use versions::Versions;

/// The length to assume of a lease whose record is missing: the longest that any store keeps.
const UNKNOWN_LEASE: Duration = Duration::from_secs(60);
/// How many terms begin in a second at the most, and how many may have begun that nothing in the store names. See
/// [`Memory::leave_out_unknown_terms`].
const UNKNOWN_TERMS: Term = 1 << 20;
/// A wall clock that says more is wrong, in seconds: it would use up the terms that there are.
const LATEST_WALL: u64 = 1 << 40;
/// After this long without a failure, an instance counts as healthy.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Failures in a row after which a node steps down.
const FAILURES_TO_STEP_DOWN: u32 = 5;
/// Starts in a row of which this node was not able, after which it steps down. Others may be able.
const UNABLE_TO_STEP_DOWN: u32 = 3;
/// The wait from one term that failed to the next doubles with each failure in a row, so often at the most.
const LONGEST_REST: u32 = 3;
/// The first cool-off; each further one is twice as long.
const COOL_OFF: Duration = Duration::from_secs(10);
/// The longest cool-off.
const COOL_OFF_MAX: Duration = Duration::from_secs(600);
/// A node in cool-off takes a lease that it has seen free for this long.
const FREE_LONG_ENOUGH: Duration = Duration::from_secs(10);
/// The longest back-off of a standby whose readings fail.
const BACK_OFF_MAX: Duration = Duration::from_secs(15);
/// The same where the store said that it is misconfigured: roles take minutes to spread.
const MISCONFIGURED_BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// From one reading to the next of a standby that is given hints without end, and from one renewal to the next of a holder.
const HINTED_POLL: Duration = Duration::from_millis(60);
/// So many of these readings may come at once: of one death the end of a link tells, and then the kernel.
const HINTED_AT_ONCE: u32 = 3;
/// How long a standby waits for an answer.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides who leads one election, for one node.
///
/// # Calling contract
/// [`handle`](Elector::handle) takes everything in. After each call, carry out what
/// [`poll_effect`](Elector::poll_effect) yields, in order, until it yields none; then sleep until
/// [`next_wakeup`](Elector::next_wakeup) or the next input, whichever is first, and read the clock anew:
/// a sleep that ended is a hint. The time that is passed in never goes back. Every
/// [`Effect::Request`] is answered exactly once; repeated and outdated answers do no harm. After
/// [`Effect::Start`] there is exactly one [`Input::Gone`], and no second start before it.
/// After [`Effect::Finished`] nothing more comes out.
///
/// It is plain data: a copy that is given the same decides the same.
#[derive(Clone, Hash)]
pub struct Elector {
    context: Context,
    role: Role,
}

/// What this node is in the election. A role's `step` takes an input, or without one the time, and
/// yields the next role where another begins.
#[derive(Debug, Clone, Hash)]
enum Role {
    /// It has no claim to the lease.
    Standby(Standby),
    /// It has asked for the lease.
    Acquiring(Acquiring),
    /// It holds the lease, as far as it knows.
    Holding(Box<Holding>),
    /// It has asked to give the lease up.
    Releasing(Releasing),
    /// It has ended.
    Finished,
}

impl Elector {
    /// Makes the elector of a node that has just started. `random` must be unpredictable enough that no
    /// two acquisitions anywhere ever share an id.
    pub fn new(settings: Settings, now: Now, random: Random) -> Self {
        let mut context = Context {
            settings,
            now,
            random,
            effects: VecDeque::new(),
            last_request: 0,
            memory: Memory::default(),
            listening: Listening::default(),
            versions: Versions::default(),
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

    /// Takes one input and the time at which it arrived.
    pub fn handle(&mut self, now: Now, input: Input) {
        // The contract says that time does not go back; if it does, nothing may be extended by it.
        self.context.now = Now {
            time: now.time.max(self.context.now.time),
            least: now.least.max(self.context.now.least),
            wall: now.wall,
        };
        // What time alone decides comes first: an answer that arrives after the deadline finds the
        // instance already killed. Only one that is already gone, or about to be, need not be.
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

    /// When [`Input::Tick`] is due at the latest; none if nothing but another input matters.
    pub fn next_wakeup(&self) -> Option<Time> {
        match &self.role {
            Role::Standby(standby) => standby.timers(&self.context).next(),
            Role::Acquiring(acquiring) => acquiring.timers().next(),
            Role::Holding(holding) => holding.timers(&self.context).next(),
            Role::Releasing(releasing) => releasing.timers().next(),
            Role::Finished => None,
        }
    }

    /// What this node would serve now: the last plan, without what it has rejected itself.
    pub fn plan(&self) -> &Plan {
        self.context.versions.plan()
    }

    /// The highest term that this host knows to have been written: the one that it tells others of, so that a
    /// record that is deleted, restored or made anew does not pass for the last.
    pub fn written_term(&self) -> Term {
        self.context.memory.written_term
    }

    /// Whether this node holds the lease, as far as it knows. While it does, the host must notice within 500 ms that
    /// the machine has slept or its clock was set, and within 5 s that its timers are slow, and hand the new time in.
    pub fn holds_lease(&self) -> bool {
        matches!(self.role, Role::Holding(_))
    }

    /// Whether it follows: it holds no lease, and neither asks for one nor still has one to release. One that may be held and
    /// cannot be released any more runs out by itself.
    pub fn follows(&self) -> bool {
        matches!(self.role, Role::Standby(_) | Role::Finished)
    }

    /// Whether it follows and surveys, since it has heard that the lease is given up: it may ask for that next.
    pub fn surveys(&self) -> bool {
        matches!(&self.role, Role::Standby(standby) if standby.surveys())
    }

    /// The incarnation that leads, as the last reading named it, while this node follows: the one to listen to.
    pub fn leader(&self) -> Option<&str> {
        if self.follows() { self.context.listening.leader() } else { None }
    }

    /// Until when this node hardly reads, since it hears its leader; none while it reads each second.
    pub fn listens_until(&self) -> Option<Time> {
        self.context.listening.fresh_until().filter(|_| self.follows())
    }

    /// From when on the effects of this node's instances are refused, unless the lease is renewed before; none while it
    /// does not hold the lease.
    pub fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Holding(holding) => Some(holding.deadline(&self.context)),
            _ => None,
        }
    }

    /// Lets the role take the input, or without one the time, until it settles.
    fn apply(&mut self, mut input: Option<Input>) {
        match &input {
            Some(Input::Shutdown | Input::SkipGrace) => self.context.shutting_down = true,
            Some(Input::Plan(plan)) => self.context.take_plan(plan),
            _ => {}
        }
        loop {
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

/// What all roles share and what outlives each.
#[derive(Clone, Hash)]
struct Context {
    settings: Settings,
    now: Now,
    random: Random,
    effects: VecDeque<Effect>,
    last_request: u64,
    memory: Memory,
    /// What was heard of the leader.
    listening: Listening,
    /// What this node could run.
    versions: Versions,
    /// Until when this node stays out.
    cool_off: Option<Time>,
    /// Cool-offs since this node was last healthy.
    cool_offs: u32,
    trouble: Option<Trouble>,
    /// Creates and acquires in a row that the store refused or did not answer.
    refused: u32,
    shutting_down: bool,
}

/// What this host has seen of the election since it started.
#[derive(Debug, Default, Clone, Hash)]
struct Memory {
    /// The highest term, tried ones included: the next one is higher.
    highest_term: Term,
    /// The highest term that is known to have been written. Where a record names a lower one, it is not the last.
    written_term: Term,
    /// Whether there was an object.
    seen: bool,
    /// Whether a node has held the lease, or the object has gone missing after it was seen. An object that looks new then
    /// was made anew, and the instance of the last holder may still run.
    was_held: bool,
    /// The longest lease in any record, or the longest that there is where one was not recorded.
    longest_lease: Option<Duration>,
    /// Since when every reading has shown the lease free.
    free_since: Option<Time>,
    /// The version at the last reading that showed the lease free: while it stays, no holder has written.
    free_version: Option<Version>,
    /// Since when no recall was answered.
    unrecalled_since: Option<Time>,
    /// Since when the lease has been held without any writing of its holder.
    silent_since: Option<Time>,
    /// The last holder that was read to be gone.
    death: Option<Death>,
    /// The last holder whose lease this node could not go on with.
    refused_reclaim: Option<LeaseId>,
    /// The last version of a marked record under which this node asks for no lease before it has read that this is free.
    awaits_release: Option<Version>,
}

/// A holder that is gone with its host, before its lease has run out.
#[derive(Debug, Clone, Copy, Hash)]
struct Death {
    holder: LeaseId,
    /// This node does not take its place before.
    until: Time,
}

impl Memory {
    fn note(&mut self, snapshot: &Snapshot, now: Time) {
        let Snapshot::Object { lease, version, record } = snapshot else {
            self.was_held |= self.seen;
            self.free_since.get_or_insert(now);
            // Its holder had written nothing when it was last read: no record says how long that lease is.
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
        // A record that says more was not written by a holder, and no node waits for ever for it.
        self.longest_lease = self.longest_lease.max(Some(record.lease.min(UNKNOWN_LEASE)));
        self.was_held |= record.node.is_some() || record.term > 0;
    }

    /// Something in the store beside the record names that term, and does not say how long the term's lease is.
    fn note_recalled(&mut self, term: Term) {
        self.unrecalled_since = None;
        if term > self.written_term {
            self.longest_lease = Some(UNKNOWN_LEASE);
        }
        self.note_term(term);
    }

    /// Where the record was deleted or set back, and the store cannot be asked for anything else that names a term, terms
    /// may have begun that this node cannot know of. The next term is higher than those. The wall clock counts too: a node
    /// that leaves terms out now may not know of another's term that was left out for the same reason.
    fn leave_out_unknown_terms(&mut self, wall: Duration) {
        let by_now = wall.as_secs().min(LATEST_WALL) * UNKNOWN_TERMS;
        self.highest_term = by_now.max(self.highest_term + UNKNOWN_TERMS);
    }

    /// That term was written.
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

    /// Whether the election ended for good with what this node would serve.
    fn is_over(&self, record: &Record) -> bool {
        record.outcome == Some(Outcome::Done) && self.versions.is_in(record)
    }

    fn take_plan(&mut self, plan: &Plan) {
        if self.versions.take(plan.clone()) {
            // What another module has done is none of its fault.
            self.cool_off = None;
            self.cool_offs = 0;
        }
    }

    /// Tells others, who may hear it or not.
    fn tell(&mut self, word: Word) {
        self.effects.push_back(Effect::Tell(word));
    }

    fn report(&mut self, report: Report) {
        self.effects.push_back(Effect::Report(report));
    }

    fn request(&mut self, op: Op, timeout: Duration) -> Pending {
        self.last_request += 1;
        let id = RequestId(self.last_request);
        let pending = Pending { id, sent: self.time() };
        self.effects.push_back(Effect::Request { id, op, timeout });
        pending
    }

    /// A request on the lease's path, with its short timeout.
    fn urgent(&mut self, op: Op) -> Pending {
        self.request(op, self.settings.timing.try_timeout())
    }

    fn fresh_lease_id(&mut self) -> LeaseId {
        let (high, low) = (self.random.number(), self.random.number());
        LeaseId::from_random((u128::from(high) << 64) | u128::from(low))
    }

    /// A random length up to `limit`.
    fn up_to(&mut self, limit: Duration) -> Duration {
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.number() % nanos.saturating_add(1))
    }

    /// `length`, a quarter more or less.
    fn jittered(&mut self, length: Duration) -> Duration {
        length * 3 / 4 + self.up_to(length / 2)
    }

    /// When to renew after a success that was sent then.
    fn renew_at(&self, sent: Time) -> Time {
        // FNV-1a of what this start of the host is called: the same in all of its elections, and not in other hosts.
        let phase = self
            .settings
            .incarnation
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        self.settings.timing.renew_at(sent, phase)
    }

    /// When to repeat a failed try on the lease's path.
    fn retry_at(&mut self) -> Time {
        let (shortest, longest) = self.settings.timing.retry_range();
        let wait = shortest + self.up_to(longest - shortest);
        self.time() + wait
    }

    /// The record of this node's next term, on top of what `basis` says.
    fn next_record(&self, basis: Option<&Record>, lease: Duration) -> Record {
        // Failures are a module's own, and where it is not known whose they are, nobody's.
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
            rests_until: None,
        }
    }

    /// The rest of the pause that a record names, if its module is to be served: `--restart-delay` at most.
    fn pause_left(&self, record: Option<&Record>) -> Duration {
        let until = record.filter(|record| self.versions.is_in(record)).and_then(|record| record.rests_until);
        until.map_or(Duration::ZERO, |until| until.saturating_sub(self.now.wall).min(self.settings.pause))
    }

    /// A record without a holder: it goes on from the highest term seen, and leaves what `basis` says of its module.
    /// Nobody may take it for one that was released.
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
            rests_until: basis.and_then(|record| record.rests_until),
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
        // Since a reading has succeeded in between, a failed reading is news.
        let known = self.trouble.take().filter(|known| !(known.has_read_since && asked == READ));
        // What people must correct is the same trouble, whatever it was that met it.
        let is_told = known.as_ref().is_some_and(|known| {
            &known.error == error && (known.asked == asked || matches!(error, StoreError::Misconfigured(_)))
        });
        let since = known.map_or_else(|| self.time(), |known| known.since);
        self.trouble = Some(Trouble { since, asked, error: error.clone(), has_read_since: false });
        if !is_told {
            self.report(Report::StoreTrouble { error: error.clone(), asked });
        }
    }

    /// The store has carried out this operation. That ends an outage that other operations met, too, except that reading
    /// says nothing about the lease, and the lease nothing about the announcements that a recall reads.
    ///
    /// A refusal by the store (`Misconfigured`) ends only if that operation succeeds, or an acquire, after which the node
    /// asks for all others again but the recall.
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

    /// Ends an outage after a reading that needs no further request. Nobody needs to create the object any more. A refused
    /// acquire stays refused.
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

    /// A holder is gone with its host, whatever it was that ended it. The first time its place is taken at once. What has
    /// failed just before may be what ends hosts, and is not to end them all one right after the other.
    fn note_death(&mut self, snapshot: &Snapshot) {
        let Snapshot::Object { lease: LeaseState::Abandoned { holder }, record, .. } = snapshot else { return };
        if self.memory.death.is_some_and(|death| death.holder == *holder) {
            return;
        }
        let failures = record.as_ref().filter(|record| self.versions.is_in(record)).map_or(0, |record| record.failures);
        let wait = if failures == 0 { Duration::ZERO } else { self.rest_after(failures) };
        self.memory.death = Some(Death { holder: *holder, until: self.time() + wait });
    }

    /// How long to wait from an end that is a failure to the next term, after so many failures in a row before.
    fn rest_after(&mut self, failures: u32) -> Duration {
        self.jittered(Duration::from_secs(1 << failures.min(LONGEST_REST))).max(Duration::from_secs(1))
    }

    /// How long to wait after so many failures in a row, the last of which was this.
    fn back_off(&mut self, failures: u32, last: &StoreError) -> Duration {
        let longest = match last {
            StoreError::Misconfigured(_) => MISCONFIGURED_BACK_OFF_MAX,
            _ => BACK_OFF_MAX,
        };
        let doubled = POLL.saturating_mul(1 << failures.min(5));
        self.jittered(doubled.min(longest)).clamp(POLL, longest)
    }
}

/// Refuses a term after which there is none: no holder has written it.
fn plausible(reply: Reply) -> Result<Reply, StoreError> {
    let (recorded, named) = match &reply {
        Reply::Read(read) => (read.term(), 0),
        Reply::Term(term) => (0, *term),
        Reply::Surveyed { read, term, .. } => (read.term(), *term),
        Reply::Version(_) | Reply::Done => (0, 0),
    };
    let terms = [("record", recorded), ("state or a node's announcement", named)];
    let Some((what, term)) = terms.into_iter().find(|(_, term)| *term >= HIGHEST_TERM) else { return Ok(reply) };
    Err(StoreError::Misconfigured(format!(
        "the {what} contains term {term}, and no higher term is possible: correct the term"
    )))
}

/// What the store is asked for, in the words of [`Report::StoreTrouble`].
const READ: &str = "read";
/// See [`READ`].
const RECALL: &str = "recall";
/// See [`READ`].
const CREATE: &str = "create";
/// See [`READ`].
const ACQUIRE: &str = "acquire";
/// See [`READ`].
const RELEASE: &str = "release";

/// The store is not as it should be.
#[derive(Debug, Clone, Hash)]
struct Trouble {
    since: Time,
    asked: &'static str,
    error: StoreError,
    /// True if a reading has succeeded since.
    has_read_since: bool,
}

/// A request without an answer so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
struct Pending {
    id: RequestId,
    /// The time just before it was sent.
    sent: Time,
}

/// Takes the request out of `slot` if it is the one that `id` answers.
fn answered(slot: &mut Option<Pending>, id: RequestId) -> Option<Pending> {
    slot.take_if(|pending| pending.id == id)
}
