//! A node without the lease. It reads the lease and the record, and requests the lease if it may take it.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use core::time::Duration;

use super::eligibility::AcquireDecision;
use super::holder::Holding;
use super::listening::{HintEffect, LeaderHints};
use super::record_writer::RecordWriter;
use super::releasing::Releasing;
use super::timer::{Timer, Timers};
use super::{
    ACQUIRE, CREATE, Context, FREE_LONG_ENOUGH, HINTED_AT_ONCE, HINTED_POLL, POLL, Pending, READ, RECALL, Role,
    STANDBY_TIMEOUT, UNKNOWN_LEASE, answered,
};
use crate::hint::{Hint, LISTENING_POLL};
use crate::port::{Input, Report, Settings};
use crate::record::{LeaseId, LeaseState, Record, Snapshot, Term, Version};
use crate::request::{Op, Recalled, Reply, StoreError};
use crate::timing::{Time, Timing};

/// A standby. It polls every second, or about every 10 s while it receives the leader's announcements. It requests the
/// lease only if the lease looks free, if the holder is giving it up, or if the holder is dead.
#[derive(Debug, Clone, Hash)]
pub(super) struct Standby {
    next_poll: Time,
    last_poll: Option<Time>,
    /// True if a hint has arrived since the last read.
    is_hinted: bool,
    /// The time of the next read after a hint, at one read per [`HINTED_POLL`]. If several hints arrive at once, a read
    /// may come up to [`HINTED_AT_ONCE`] - 1 intervals earlier.
    next_hinted: Time,
    /// True if, at the last read, the holder was dead and this node could not lead. Once the node may lead, it reads
    /// again soon.
    was_unable: bool,
    /// Set while the leader announces its renewals. The next read may then come later.
    slack: Option<PollDelay>,
    pending: Option<Pending>,
    asked: StandbyRequest,
    failures: u32,
    /// The last report about the holder. This node does not send the same report again.
    said: Option<LastReport>,
}

#[derive(Debug, Clone, Copy, Hash)]
struct PollDelay {
    /// The latest time for the next read.
    until: Time,
    /// A random delay of the read that follows a missed renewal. The delay keeps the standbys from all reading at the
    /// same time.
    spread: Duration,
}

#[derive(Debug, Default, Clone, Hash)]
enum StandbyRequest {
    #[default]
    Reading,
    /// Reads the highest term in the store. The node then acts on this snapshot, which it has already read.
    Recall(Box<Snapshot>),
    /// Reads the lease, the record and the highest term in a single request, because the holder is giving up the lease.
    Survey,
    Create,
}

#[derive(Debug, PartialEq, Eq, Clone, Hash)]
enum LastReport {
    Leader(Term),
    Outside,
    Over,
}

/// The result of a read that lets this node request the lease: the lease is free or about to be free, or its holder is
/// dead.
#[derive(Clone, Debug, Hash)]
pub(super) struct AcquireBasis {
    version: Version,
    pub(super) record: Option<Record>,
    /// Set if another instance may still be running when this node gets the lease.
    pub(super) unclear: Option<UncertainHolder>,
    pub(super) way: AcquireMode,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) enum AcquireMode {
    Acquire,
    /// The holder has marked the record as released, and has released the lease or is about to.
    OnceReleased,
    /// The holder is dead, and this node replaces it under a new lease.
    InsteadOf(LeaseId),
    /// The holder is dead, and this node resumes the holder's lease.
    Reclaim(LeaseId),
}

impl AcquireMode {
    fn of(lease: LeaseState) -> Self {
        match lease {
            LeaseState::Abandoned { holder } => Self::InsteadOf(holder),
            LeaseState::Reclaimable { holder } => Self::Reclaim(holder),
            LeaseState::Held => Self::OnceReleased,
            _ => Self::Acquire,
        }
    }
}

/// Another instance may still be running. If this node gets the lease, it first waits for that instance to end.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct UncertainHolder {
    /// The length of the wait. As far as this node knows, the other instance has ended after this time.
    pub(super) wait: Duration,
    pub(super) reason: &'static str,
    /// True once this node has read the highest term in the store. Until then, there may be a term that this node does
    /// not know, under a lease of any length.
    pub(super) is_recalled: bool,
}

impl Standby {
    pub(super) fn new(next_poll: Time) -> Self {
        Self {
            next_poll,
            last_poll: None,
            is_hinted: false,
            next_hinted: Time::default(),
            was_unable: false,
            slack: None,
            pending: None,
            asked: StandbyRequest::Reading,
            failures: 0,
            said: None,
        }
    }

    pub(super) fn surveys(&self) -> bool {
        self.pending.is_some() && matches!(self.asked, StandbyRequest::Survey)
    }

    pub(super) fn timers(&self, context: &Context) -> Timers<1> {
        Timers([(Timer::Poll, self.pending.is_none().then(|| self.poll_at(context)))])
    }

    /// The time of the next read. While the store is in trouble, hints do not bring the next read forward.
    fn poll_at(&self, context: &Context) -> Time {
        if self.failures > 0 {
            return self.next_poll;
        }
        let hinted = self.is_hinted.then(|| self.next_hinted - HINTED_POLL * (HINTED_AT_ONCE - 1));
        let eager = self.last_poll.and_then(|last| context.listening.eager(last, context.time()));
        let at = match (self.slack, context.listening.fresh_until()) {
            (Some(PollDelay { until, spread }), Some(fresh)) => self.next_poll.max(until.min(fresh + spread)),
            _ => self.next_poll,
        };
        [hinted, eager].into_iter().flatten().fold(at, Time::min)
    }

    /// Handles a hint. A hint can only reschedule the next read, or turn it into a survey.
    fn hear(&mut self, context: &mut Context, hint: &Hint) {
        let last = self.last_poll.unwrap_or_default();
        match context.hear(hint, last) {
            HintEffect::Soon => self.is_hinted = true,
            HintEffect::At(at) if self.failures == 0 => self.next_poll = at,
            HintEffect::At(_) | HintEffect::Nothing => {}
        }
        self.permit_delay(context);
    }

    fn permit_delay(&mut self, context: &mut Context) {
        if context.listening.fresh_until().is_some() && self.slack.is_none() {
            let until = self.last_poll.unwrap_or_default() + context.jittered(LISTENING_POLL);
            self.slack = Some(PollDelay { until, spread: context.up_to(POLL) });
        }
    }

    pub(super) fn step(&mut self, context: &mut Context, input: Option<Input>) -> Option<Role> {
        if context.shutting_down {
            return Some(Role::Finished);
        }
        if let Some(Input::Hint(hint)) = &input {
            self.hear(context, hint);
        }
        self.is_hinted |= self.was_unable && context.may_lead();
        if let Some(Input::Answer { id, result }) = input
            && let Some(pending) = answered(&mut self.pending, id)
        {
            return self.answer(context, pending, result);
        }
        if self.timers(context).is_due(Timer::Poll, context.time()) {
            if self.is_hinted {
                self.next_hinted = self.next_hinted.max(context.time()) + HINTED_POLL;
            }
            let expects_an_opening = self.failures == 0
                && context.may_lead()
                && !context.is_in_cool_off()
                && self.last_poll.is_some_and(|last| context.listening.expects_an_opening(last));
            (self.is_hinted, self.was_unable) = (false, false);
            (self.last_poll, self.slack) = (Some(context.time()), None);
            let op = if expects_an_opening {
                self.asked = StandbyRequest::Survey;
                Op::Survey
            } else {
                Op::Read
            };
            self.pending = Some(context.request(op, STANDBY_TIMEOUT));
        }
        None
    }

    fn answer(&mut self, context: &mut Context, pending: Pending, result: Result<Reply, StoreError>) -> Option<Role> {
        match (core::mem::take(&mut self.asked), result) {
            (StandbyRequest::Reading, Ok(Reply::Read(snapshot))) => {
                let took = context.time().since(pending.sent);
                if let Some(snapshot) = self.has_read(context, snapshot, took) {
                    self.asked = StandbyRequest::Recall(Box::new(snapshot));
                    self.pending = Some(context.request(Op::Recall, STANDBY_TIMEOUT));
                }
            }
            // The survey found the same version of the steering object that the host has already read, so this node's
            // eligibility is up to date.
            (StandbyRequest::Survey, Ok(Reply::Surveyed { read, recalled, steering }))
                if context.knows_steering(steering.as_ref()) =>
            {
                // Pass zero instead of the survey's duration: a survey reads several objects, so a slow survey does not
                // show that renewals would be too slow.
                if let Some(opening) = self.has_read(context, read, Duration::ZERO) {
                    return self.recalled(context, opening, &recalled);
                }
                // Remember the result of the recall even if this node does not act on the survey.
                context.memory.note_recalled(&recalled);
            }
            // The survey failed, or this node's eligibility is out of date. Send a read and a recall instead, so that
            // each reports its own error. During the recall, the host also reads the operators' commands.
            (StandbyRequest::Survey, _) => self.next_poll = context.time(),
            (StandbyRequest::Recall(snapshot), Ok(Reply::Recalled(recalled))) => {
                return self.recalled(context, *snapshot, &recalled);
            }
            (StandbyRequest::Recall(snapshot), Err(error)) => {
                context.store_trouble(RECALL, &error);
                let since = *context.memory.unrecalled_since.get_or_insert(context.now.time);
                let patience = context.settings.timing.lease();
                // A node that cannot recall the highest term can still lead, but only after a wait for other instances
                // to end.
                if matches!(error, StoreError::Misconfigured(_)) || context.time().since(since) >= patience {
                    return self.contend(context, *snapshot, false);
                }
                self.backs_off(context, &error);
            }
            // Read the new object before acquiring its lease, so that every acquire follows the same rules.
            (StandbyRequest::Create, Ok(_) | Err(StoreError::Conflict)) => {
                context.refused = 0;
                context.store_answers(CREATE);
                self.next_poll = context.time();
            }
            (StandbyRequest::Create, Err(error)) => {
                context.store_trouble(CREATE, &error);
                self.next_poll = context.time() + context.back_off(context.refused, &error);
                context.refused += 1;
            }
            (StandbyRequest::Reading | StandbyRequest::Recall(_), result) => {
                let error =
                    result.err().unwrap_or_else(|| StoreError::Unknown("unexpected response to a read".to_string()));
                context.store_trouble(READ, &error);
                self.backs_off(context, &error);
            }
        }
        None
    }

    /// Handles a snapshot that took `took` to read. Returns the snapshot if this node should request the lease or
    /// create the object.
    fn has_read(&mut self, context: &mut Context, snapshot: Snapshot, took: Duration) -> Option<Snapshot> {
        let snapshot = held_unless_all_is_clear(context, snapshot);
        self.failures = 0;
        let is_in_time = took <= context.settings.timing.try_timeout();
        if is_in_time {
            context.store_answers(READ);
        }
        context.memory.note(&snapshot, context.now.time);
        context.note_death(&snapshot);
        context.listening.note(&snapshot, context.memory.silent_since.is_some());
        self.say(context, &snapshot);
        self.was_unable = !context.may_lead() && is_dead(&snapshot);
        if may_contend(context, &snapshot) {
            if is_in_time {
                return Some(snapshot);
            }
            // With a store this slow, this node could not renew the lease in time.
            context.store_trouble(READ, &too_slow(context, took));
            self.next_poll = context.time() + context.jittered(POLL);
            return None;
        }
        // This node does not request the lease now, so forget earlier refusals and failures to read the highest term.
        context.refused = 0;
        context.memory.unrecalled_since = None;
        context.store_is_back();
        self.next_poll = context.time() + context.jittered(POLL);
        self.permit_delay(context);
        None
    }

    fn recalled(&mut self, context: &mut Context, snapshot: Snapshot, recalled: &Recalled) -> Option<Role> {
        context.store_answers(RECALL);
        context.memory.note_recalled(recalled);
        self.contend(context, snapshot, true)
    }

    fn backs_off(&mut self, context: &mut Context, error: &StoreError) {
        self.next_poll = context.time() + context.back_off(self.failures, error);
        self.failures += 1;
    }

    /// Requests the lease or creates the object. By now, this node has read the highest term in the store, or has given
    /// up trying to read it.
    fn contend(&mut self, context: &mut Context, snapshot: Snapshot, is_recalled: bool) -> Option<Role> {
        // This node's versions or eligibility may have changed while it was reading the highest term.
        if !may_contend(context, &snapshot) {
            self.next_poll = context.time() + context.jittered(POLL);
            return None;
        }
        let unclear = unclear(context, &snapshot, is_recalled);
        // If this node must first wait for another instance, it needs a lease that lasts at least as long as the wait.
        // A reclaimed lease keeps its length, which may be shorter. A held lease may never become free. So do not
        // request the lease in these two states.
        let must_be_clear = |lease| matches!(lease, LeaseState::Reclaimable { .. } | LeaseState::Held);
        if unclear.is_some()
            && let Snapshot::Object { lease, version, .. } = &snapshot
            && must_be_clear(*lease)
        {
            context.memory.awaits_release = Some(version.clone());
            self.next_poll = context.time() + context.jittered(POLL);
            return None;
        }
        // The record may have been recreated with a shorter lease, so use the longest lease that this node has seen. If
        // this node has attempted a term that it has not seen in the store, another node may have begun a term with
        // that number. The length of that node's lease is unknown.
        let is_known = context.memory.highest_term <= context.memory.written_term;
        let longest = context.memory.longest_lease.filter(|_| is_known);
        let Snapshot::Object { lease, version, record } = snapshot else {
            // If this node has not read the store's highest term, the longest lease is unknown.
            let longest = longest.filter(|_| is_recalled).unwrap_or(UNKNOWN_LEASE);
            let lease = if unclear.is_some() { longest } else { context.settings.timing.lease() };
            let record = Record { released: unclear.is_none(), ..context.record_without_holder(None, lease) };
            self.asked = StandbyRequest::Create;
            self.pending = Some(context.request(Op::Create { record }, STANDBY_TIMEOUT));
            return None;
        };
        let wait = longest.unwrap_or(UNKNOWN_LEASE);
        let way = AcquireMode::of(lease);
        let is_released = record.as_ref().is_some_and(|record| record.released);
        match context.decide_on_acquire(matches!(way, AcquireMode::Reclaim(_)), is_released) {
            AcquireDecision::Now { within_quota } => {
                let unclear = unclear.map(|reason| UncertainHolder { wait, reason, is_recalled });
                let opening = AcquireBasis { version, record, unclear, way };
                Some(Role::Acquiring(Acquiring::new(context, opening, within_quota)))
            }
            AcquireDecision::Defer(until) => {
                if way == AcquireMode::OnceReleased {
                    context.memory.awaits_release = Some(version);
                }
                self.next_poll = (context.time() + context.jittered(POLL)).min(until);
                None
            }
        }
    }

    /// Reports who holds the lease, unless the last report said the same.
    fn say(&mut self, context: &mut Context, snapshot: &Snapshot) {
        let Snapshot::Object { lease, record, .. } = snapshot else {
            self.said = None;
            return;
        };
        let patience = context.settings.timing.lease() * 2;
        let silent = context.memory.silent_since.is_some_and(|since| context.time().since(since) >= patience);
        let (said, report) = match (lease, record) {
            (LeaseState::HeldForever, _) => (
                LastReport::Outside,
                Report::HeldOutside {
                    reason: "the lease never expires, and Baton never requests such a lease".to_string(),
                },
            ),
            (LeaseState::Held, _) if silent => (
                LastReport::Outside,
                Report::HeldOutside { reason: format!("the holder has written no record for {patience:?}") },
            ),
            (LeaseState::Held, Some(leader))
                if leader.node.is_some() && !leader.released && context.memory.silent_since.is_none() =>
            {
                (LastReport::Leader(leader.term), Report::Following { leader: leader.clone() })
            }
            (
                LeaseState::Free | LeaseState::Expired | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. },
                Some(record),
            ) if context.is_over(record) => (LastReport::Over, Report::ElectionOver { record: record.clone() }),
            // Report nothing while the holder is unknown, or while the holder's lease is about to end.
            (LeaseState::Held, _) if context.memory.silent_since.is_some() => return,
            (LeaseState::Held, Some(record)) if record.released => return,
            (LeaseState::Breaking, _) => return,
            _ => {
                // No node leads now, or the holder is waiting for another instance. Forget the last report, so that the
                // next leader is reported even if it is the same node.
                self.said = None;
                return;
            }
        };
        if self.said.as_ref() != Some(&said) {
            self.said = Some(said);
            context.lease_is_taken();
            context.report(report);
        }
    }
}

/// Changes the state of a dead holder's lease in the snapshot to `Held` if this node must not take the lease:
///
/// - The holder's term had not begun: the holder was waiting for another instance, which may still be running.
/// - The lease is `Reclaimable`, but the holder's release may still be under way, or a reclaim has already failed.
/// - The lease is `Reclaimable`, but its length differs from this node's `--lease`. A late request from the holder
///   could still change the length.
fn held_unless_all_is_clear(context: &Context, snapshot: Snapshot) -> Snapshot {
    let Snapshot::Object { lease, version, record } = snapshot else { return snapshot };
    let begun = record.as_ref().filter(|record| record.node.is_some());
    let is_clear = match lease {
        LeaseState::Abandoned { .. } => begun.is_some(),
        LeaseState::Reclaimable { holder } => {
            let is_refused = context.memory.refused_reclaim == Some(holder);
            begun.is_some_and(|record| !record.released && is_as_long(record, context)) && !is_refused
        }
        _ => true,
    };
    let lease = if is_clear { lease } else { LeaseState::Held };
    Snapshot::Object { lease, version, record }
}

/// Error for a read that took longer than a renewal may take. The message proposes a longer lease. That length is
/// rounded up, so that the message stays the same when the store's response time varies a little.
fn too_slow(context: &Context, took: Duration) -> StoreError {
    const STEP: u64 = 15;
    let Settings { timing, lease_range, .. } = &context.settings;
    let (lease, longest) = (timing.lease(), timing.try_timeout());
    let remedy = match Timing::lease_for(took, *lease_range) {
        Some(enough) => {
            let enough = Duration::from_secs(enough.as_secs().next_multiple_of(STEP)).min(lease_range.1);
            format!("use `--lease {}s` on all nodes", enough.as_secs())
        }
        None => "no lease is long enough; move the node nearer to the store".to_string(),
    };
    StoreError::Unknown(format!(
        "the store answers more slowly than a lease of {lease:?} allows ({longest:.1?} for each renewal), so this node does \
         not acquire the lease: {remedy}"
    ))
}

/// True if the recorded lease has the length that this node would request. A store may round the length up to whole
/// seconds.
fn is_as_long(record: &Record, context: &Context) -> bool {
    let lease = context.settings.timing.lease();
    (lease..lease + Duration::from_secs(1)).contains(&record.lease)
}

fn is_dead(snapshot: &Snapshot) -> bool {
    matches!(snapshot, Snapshot::Object { lease: LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. }, .. })
}

fn may_contend(context: &Context, snapshot: &Snapshot) -> bool {
    if !context.may_lead() {
        return false;
    }
    let free_for = context.memory.free_since.map_or(Duration::ZERO, |since| context.time().since(since));
    if context.is_in_cool_off() && free_for < FREE_LONG_ENOUGH {
        return false;
    }
    let waits = |lease: &LeaseState| match (lease, context.memory.death) {
        (LeaseState::Abandoned { holder }, Some(death)) => death.holder == *holder && context.time() < death.until,
        _ => false,
    };
    match snapshot {
        Snapshot::Nothing => true,
        Snapshot::Object { lease, record, .. } => {
            let looks_free = !lease.is_held() || is_given_up(context, snapshot);
            looks_free && !waits(lease) && !record.as_ref().is_some_and(|record| context.is_over(record))
        }
    }
}

/// True if the holder is giving up the lease, so that the lease may be free by the time this node's request arrives.
/// This node requests the lease only once while the lease is held. If the request fails or cannot be sent, the node
/// waits until it reads that the lease is free.
fn is_given_up(context: &Context, snapshot: &Snapshot) -> bool {
    match snapshot {
        Snapshot::Object { lease: LeaseState::Held, version, record: Some(record) } => {
            record.released && context.memory.awaits_release.as_ref() != Some(version)
        }
        _ => false,
    }
}

/// The reason why an instance may still be running although the lease looks free; `None` if no instance can be running.
fn unclear(context: &Context, snapshot: &Snapshot, is_recalled: bool) -> Option<&'static str> {
    let was_held = context.memory.was_held;
    let (lease, record) = match snapshot {
        Snapshot::Nothing if was_held => return Some("the election's record was deleted"),
        Snapshot::Nothing => (LeaseState::Free, None),
        Snapshot::Object { lease, record, .. } => (*lease, record.as_ref()),
    };
    let term = record.map_or(0, |record| record.term);
    match (lease, record) {
        _ if !is_recalled => Some("the terms in the election's state and announcements cannot be read"),
        _ if term < context.memory.written_term => Some("the record has a lower term than this node has seen"),
        (LeaseState::Expired | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. }, _) => None,
        (LeaseState::Free, None) if *snapshot == Snapshot::Nothing => None,
        (LeaseState::Free, None) => Some("the election has no record"),
        (LeaseState::Free, Some(record)) if !record.released => Some("the last holder did not release the lease"),
        (LeaseState::Free | LeaseState::Held, Some(_)) if term == 0 && was_held => {
            Some("the election's record was deleted and created again")
        }
        (LeaseState::Free | LeaseState::Held, Some(_)) => None,
        _ => Some("the lease was broken"),
    }
}

/// A node that has requested the lease and does not know the outcome yet.
#[derive(Debug, Clone, Hash)]
pub(super) struct Acquiring {
    id: LeaseId,
    opening: AcquireBasis,
    length: Duration,
    started: Time,
    next_try: Time,
    pending: Option<Pending>,
    /// True if the outcome of an attempt is unknown, so this node may already hold the lease under `id`.
    in_doubt: bool,
    /// True if the host may withhold the next attempt because of its leadership quota. False once an attempt has been
    /// sent.
    within_quota: bool,
}

impl Acquiring {
    fn new(context: &mut Context, opening: AcquireBasis, within_quota: bool) -> Self {
        let (shortest, longest) = context.settings.lease_range;
        let own = context.settings.timing.lease();
        // If this node dies while it waits for another instance, its lease must not expire before the end of that wait.
        let length = opening.unclear.map_or(own, |unclear| own.max(unclear.wait.clamp(shortest, longest)));
        let (id, now) = (context.fresh_lease_id(), context.time());
        Self { id, opening, length, started: now, next_try: now, pending: None, in_doubt: false, within_quota }
    }

    pub(super) fn timers(&self) -> Timers<1> {
        Timers([(Timer::Acquire, self.pending.is_none().then_some(self.next_try))])
    }

    pub(super) fn step(&mut self, context: &mut Context, input: Option<Input>) -> Option<Role> {
        match input {
            Some(Input::Answer { id, result }) => {
                if let Some(pending) = answered(&mut self.pending, id) {
                    return self.answer(context, pending, result);
                }
            }
            // The host did not send the request, so the node has learned nothing about the store or other nodes. Read
            // again.
            Some(Input::NotSent { id, reason }) if answered(&mut self.pending, id).is_some() => {
                context.report_deferral(&reason);
                if self.opening.way == AcquireMode::OnceReleased {
                    context.memory.awaits_release = Some(self.opening.version.clone());
                }
                let next_poll = context.time() + context.jittered(POLL);
                return Some(Role::Standby(Standby::new(next_poll)));
            }
            _ => {}
        }
        if self.pending.is_some() {
            return None;
        }
        // A release tells the next holder that no instance can still be running. If this node does not know that, it
        // lets the lease that it may hold expire. After a reclaim with an unknown outcome, it does not release the
        // lease either. The next host on this machine can then still reclaim the lease with the dead holder's note.
        let can_release = self.opening.unclear.is_none() && !matches!(self.opening.way, AcquireMode::Reclaim(_));
        if context.shutting_down && self.in_doubt && can_release {
            let AcquireBasis { version, record, .. } = self.opening.clone();
            let until = self.started + self.length;
            let writer = RecordWriter::new(version, record.clone());
            return Some(Role::Releasing(Releasing::new(context, self.id, writer, record, until)));
        }
        if context.shutting_down {
            return Some(Role::Finished);
        }
        if context.time().since(self.started) >= self.length {
            return back_to_standby(context, "the lease could not be acquired".to_string());
        }
        if self.timers().is_due(Timer::Acquire, context.time()) {
            let (id, length, version) = (self.id, self.length, self.opening.version.clone());
            let op = match self.opening.way {
                AcquireMode::Acquire | AcquireMode::OnceReleased => {
                    Op::Acquire { id, length, version, instead_of: None }
                }
                AcquireMode::InsteadOf(holder) => Op::Acquire { id, length, version, instead_of: Some(holder) },
                AcquireMode::Reclaim(from) => Op::Reclaim { from, id, version },
            };
            let within_quota = core::mem::take(&mut self.within_quota);
            self.pending = Some(context.request_within_quota(op, context.settings.timing.try_timeout(), within_quota));
        }
        None
    }

    fn answer(&mut self, context: &mut Context, pending: Pending, result: Result<Reply, StoreError>) -> Option<Role> {
        match result {
            Ok(_) => {
                context.refused = 0;
                context.store_answers(ACQUIRE);
                context.memory.was_held = true;
                context.memory.free_since = None;
                context.listening = LeaderHints::default();
                if let (AcquireMode::InsteadOf(_) | AcquireMode::Reclaim(_), Some(from)) =
                    (self.opening.way, &self.opening.record)
                {
                    context.report(Report::TookOver { from: from.clone() });
                }
                let holding = Holding::new(
                    context,
                    self.id,
                    self.length,
                    pending.sent,
                    self.opening.version.clone(),
                    &self.opening,
                );
                Some(Role::Holding(Box::new(holding)))
            }
            // The outcome of this attempt or of an earlier one is unknown, so this node may already hold the lease.
            Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_)))
                if self.in_doubt || matches!(error, StoreError::Unknown(_)) =>
            {
                self.in_doubt = true;
                context.store_trouble(ACQUIRE, &error);
                self.next_try = context.retry_at();
                None
            }
            Err(StoreError::Held | StoreError::Lost(_)) if let AcquireMode::Reclaim(holder) = self.opening.way => {
                context.refused = 0;
                // The lease has ended or changed hands. From now on, this node does not try to reclaim it from this
                // holder.
                context.memory.refused_reclaim = Some(holder);
                Some(Role::Standby(Standby::new(context.time())))
            }
            // An earlier attempt may still succeed once the holder has released the lease.
            Err(StoreError::Held) if self.in_doubt && self.opening.way == AcquireMode::OnceReleased => {
                self.next_try = context.retry_at();
                None
            }
            Err(StoreError::Held) => {
                context.refused = 0;
                context.memory.was_held = true;
                let next_poll = if self.opening.way == AcquireMode::OnceReleased {
                    // Read again immediately: a hint that arrived after the request was sent may have announced the
                    // release.
                    context.memory.awaits_release = Some(self.opening.version.clone());
                    context.time()
                } else {
                    context.time() + context.jittered(POLL)
                };
                Some(Role::Standby(Standby::new(next_poll)))
            }
            // Since this node read that the lease was free, another holder has written the record, or the object was
            // replaced.
            Err(StoreError::Conflict | StoreError::Lost(_)) => {
                context.memory.was_held = true;
                Some(Role::Standby(Standby::new(context.time())))
            }
            // `store_trouble` reports the error, so do not report the change of roles as well. The node retries at
            // growing intervals.
            Err(error) => {
                context.store_trouble(ACQUIRE, &error);
                let next_poll = context.time() + context.back_off(context.refused, &error);
                context.refused += 1;
                Some(Role::Standby(Standby::new(next_poll)))
            }
        }
    }
}

pub(super) fn back_to_standby(context: &mut Context, reason: String) -> Option<Role> {
    if context.shutting_down {
        return Some(Role::Finished);
    }
    context.report(Report::Standby { reason });
    let next_poll = context.time() + context.jittered(POLL);
    Some(Role::Standby(Standby::new(next_poll)))
}
