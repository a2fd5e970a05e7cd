//! The election's rules, watched on one elector: what goes in, what comes out and when. Nothing here
//! looks inside; each rule is a function with its name, and time is the host's own clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_election::{
    Effect, End, Input, LeaseId, LeaseState, OnDone, Op, Outcome, Record, Refusal, Reply, Report, RequestId, Settings,
    Snapshot, StopReason, Term, Time, Version,
};

use crate::invariants::{Checked, broken};

const SECOND: Duration = Duration::from_secs(1);

/// What one process has been seen to do.
pub struct Conduct {
    settings: Settings,
    requests: BTreeMap<RequestId, Asked>,
    last_write: Option<RequestId>,
    /// When the last request was sent.
    last_sent: Time,
    /// Counts the changes of its role.
    role: u32,
    seen: Seen,
    /// Failed readings in a row, and when the last one failed.
    failed_reads: (u32, Time),
    used_ids: BTreeSet<u128>,
    acquisition: Option<Acquisition>,
    holding: Option<Holding>,
    instance: Option<Instance>,
    cool_off_until: Time,
    /// Cool-offs since an instance of this process was last healthy.
    cool_offs: u32,
    /// The same, where health that shows only at the instance's end does not count.
    cool_offs_at_most: u32,
    step_down_asked: bool,
    shutdown_asked: bool,
    skip_grace_asked: bool,
    finished: bool,
}

struct Asked {
    op: Op,
    sent: Time,
    answered: bool,
    /// The role in which it was sent; its answer tells nothing to another.
    role: u32,
}

/// What the store's answers have told this process.
#[derive(Default)]
struct Seen {
    last: Option<(Snapshot, Time)>,
    version: Option<Version>,
    /// After a doubtful or refused write.
    must_read: bool,
    highest_term: Term,
    lease: Option<Duration>,
    any_object: bool,
    /// Any sign that somebody has held the lease, or that the object was there before and is not the same.
    history: bool,
    free_since: Option<Time>,
    free_version: Option<Version>,
    outside_since: Option<Time>,
    outside_said: bool,
    /// Whether the last reading was a standby's.
    as_standby: bool,
}

struct Acquisition {
    id: LeaseId,
    length: Duration,
    first_sent: Time,
    in_doubt: bool,
    decided: bool,
    /// How long the holder must wait before it starts anything.
    wait: Duration,
}

struct Holding {
    id: LeaseId,
    length: Duration,
    renewed: Time,
    lost: bool,
    /// A reading showed that there is no object any more.
    is_missing: bool,
    /// The latest moment for the next renewal to be sent.
    renew_by: Time,
    failures: Count,
    done_unrecorded: bool,
    must_step_down: bool,
    cool_off_said: bool,
}

/// Failures in a row: what they should be, and what the record says as far as this process knows.
struct Count {
    expected: u32,
    recorded: u32,
}

struct Instance {
    started: Time,
    deadline: Time,
    abort_at: Time,
    stop: Option<Time>,
    killed: Option<Time>,
    aborted: bool,
    /// 0.7 D had passed when an input came.
    at_risk: bool,
    /// The deadline had passed when an input came.
    overdue: bool,
}

impl Conduct {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            requests: BTreeMap::new(),
            last_write: None,
            last_sent: Time::default(),
            role: 0,
            seen: Seen::default(),
            failed_reads: (0, Time::default()),
            used_ids: BTreeSet::new(),
            acquisition: None,
            holding: None,
            instance: None,
            cool_off_until: Time::default(),
            cool_offs: 0,
            cool_offs_at_most: 0,
            step_down_asked: false,
            shutdown_asked: false,
            skip_grace_asked: false,
            finished: false,
        }
    }

    pub fn highest_term(&self) -> Term {
        self.seen.highest_term
    }

    pub fn has_seen_the_election(&self) -> bool {
        self.seen.any_object
    }

    /// An input is about to go in.
    pub fn input(&mut self, now: Time, input: &Input) {
        self.forget_what_ran_out(now);
        if !matches!(input, Input::Gone { .. }) {
            self.time_comes_first(now);
        }
        match input {
            Input::Answer { id, result } => self.answer(now, *id, result),
            Input::Gone { end } => self.gone(now, end),
            Input::StepDown { .. } => self.step_down_asked = true,
            Input::Shutdown => self.shutdown_asked = true,
            Input::SkipGrace => (self.shutdown_asked, self.skip_grace_asked) = (true, true),
            Input::Tick => {}
        }
        self.forget_what_ran_out(now);
    }

    /// What time alone decides is decided before the input is looked at: a renewal whose answer comes
    /// after 0.7 D does not take the stop back.
    fn time_comes_first(&mut self, now: Time) {
        if let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) {
            instance.at_risk |= now >= holding.renewed + self.settings.timing.at_risk_after();
            instance.overdue |= now >= instance.deadline;
            if instance.killed.is_none() && now.since(instance.started) >= SECOND * 60 {
                self.cool_offs = 0;
            }
        }
    }

    /// A lease that has run out without an instance is over, whatever is still answered.
    fn forget_what_ran_out(&mut self, now: Time) {
        let instance = &self.instance;
        self.holding.take_if(|holding| instance.is_none() && now >= holding.renewed + holding.length);
    }

    /// An effect has come out.
    pub fn effect(&mut self, now: Time, effect: &Effect) -> Checked {
        if self.finished {
            return broken("host_survives", format!("{effect:?} after the end"));
        }
        match effect {
            Effect::Request { id, op, .. } => self.request(now, *id, op),
            Effect::Start { deadline, abort_at, .. } => self.start(now, *deadline, *abort_at),
            Effect::Extend { deadline, abort_at } => self.extend(*deadline, *abort_at),
            Effect::Stop { reason, grace_ends, .. } => self.stop(now, *reason, *grace_ends),
            Effect::Kill { .. } => self.kill(now),
            Effect::Abort { .. } => self.abort(now),
            Effect::Report(report) => self.report(now, report),
            Effect::Finished => {
                self.finished = true;
                if self.instance.is_some() {
                    return broken("release_last", "finished while an instance is not gone".to_string());
                }
                Ok(())
            }
        }
    }

    /// The elector has said all that it had to say, and when it wants to be woken.
    pub fn settled(&mut self, now: Time, wakeup: Option<Time>) -> Checked {
        let awake_by = |rule: &'static str, due: Time| match wakeup {
            Some(wakeup) if wakeup <= due => Ok(()),
            _ => broken(rule, format!("something is due at {due:?}, but it wakes at {wakeup:?}")),
        };
        if self.instance.as_ref().is_some_and(|one| one.killed.is_none() && now.since(one.started) >= SECOND * 60) {
            self.cool_offs_at_most = 0;
        }
        self.takes_what_is_free(now)?;
        self.known_loss_kills_at_once()?;
        self.deadlines_are_kept(now, &awake_by)?;
        self.leader_tries_never_slow(now, &awake_by)?;
        self.outside_holder_is_reported(now)?;
        self.health_resets_the_count(now)
    }

    // ---- what goes in ----

    fn answer(&mut self, now: Time, id: RequestId, result: &Result<Reply, Refusal>) {
        let Some(asked) = self.requests.get_mut(&id) else { return };
        if std::mem::replace(&mut asked.answered, true) {
            return;
        }
        let (op, sent, role) = (asked.op.clone(), asked.sent, asked.role);
        match (&op, result) {
            (Op::Read, _) if role != self.role => {}
            (Op::Read, Ok(Reply::Read(snapshot))) => self.read(now, snapshot),
            (Op::Read, Err(_)) if self.holding.is_none() => self.failed_reads = (self.failed_reads.0 + 1, now),
            (Op::Acquire { id, .. }, result) => self.acquired(*id, sent, result),
            (Op::Renew { id }, result) => self.renewed(now, *id, sent, result),
            (Op::Write { id: lease, record, .. }, result) if role == self.role && self.last_write == Some(id) => {
                self.written(*lease, record, result);
            }
            (Op::Write { .. } | Op::Create { .. } | Op::Release { .. } | Op::Read, _) => {}
        }
    }

    fn read(&mut self, now: Time, snapshot: &Snapshot) {
        self.failed_reads.0 = 0;
        let seen = &mut self.seen;
        seen.must_read = false;
        seen.as_standby = self.holding.is_none();
        seen.last = Some((snapshot.clone(), now));
        let Snapshot::Object { lease, version, record } = snapshot else {
            seen.history |= seen.any_object;
            if let Some(holding) = &mut self.holding {
                holding.is_missing = true;
            }
            seen.free_since.get_or_insert(now);
            seen.outside_since = None;
            seen.outside_said = false;
            return;
        };
        seen.any_object = true;
        seen.version = Some(version.clone());
        let is_own = self.holding.is_some();
        let is_held = matches!(lease, LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking);
        if is_held {
            seen.free_since = None;
        } else {
            seen.free_since.get_or_insert(now);
            if !is_own {
                seen.free_version = Some(version.clone());
            }
        }
        if *lease == LeaseState::Held && !is_own && (record.is_none() || seen.free_version.as_ref() == Some(version)) {
            seen.outside_since.get_or_insert(now);
        } else if *lease != LeaseState::HeldForever {
            (seen.outside_since, seen.outside_said) = (None, false);
        }
        seen.history |= *lease != LeaseState::Free;
        if let Some(record) = record {
            seen.highest_term = seen.highest_term.max(record.term);
            seen.lease = Some(record.lease);
            seen.history |= record.term > 0 || record.node.is_some();
            if record.incarnation == self.settings.incarnation
                && let Some(holding) = &mut self.holding
            {
                holding.failures.recorded = record.failures;
                holding.done_unrecorded &= record.outcome.is_none();
            }
        }
    }

    fn acquired(&mut self, id: LeaseId, sent: Time, result: &Result<Reply, Refusal>) {
        let Some(acquisition) = self.acquisition.as_mut().filter(|acquisition| acquisition.id == id) else { return };
        match result {
            Err(Refusal::Unknown(_)) => acquisition.in_doubt = true,
            Err(Refusal::Misconfigured(_)) => acquisition.decided = !acquisition.in_doubt,
            Err(_) => acquisition.decided = true,
            Ok(_) => {
                acquisition.decided = true;
                self.seen.history = true;
                self.seen.free_since = None;
                self.seen.outside_since = None;
                self.role += 1;
                self.failed_reads.0 = 0;
                let record = match &self.seen.last {
                    Some((Snapshot::Object { record, .. }, _)) => record.as_ref(),
                    _ => None,
                };
                let failures = record.map_or(0, |record| record.failures);
                self.holding = Some(Holding {
                    id,
                    length: acquisition.length,
                    renewed: sent,
                    lost: false,
                    is_missing: false,
                    renew_by: sent + self.settings.timing.renew_after(),
                    failures: Count { expected: failures, recorded: failures },
                    done_unrecorded: false,
                    must_step_down: false,
                    cool_off_said: false,
                });
            }
        }
    }

    fn renewed(&mut self, now: Time, id: LeaseId, sent: Time, result: &Result<Reply, Refusal>) {
        let timing = self.settings.timing;
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else { return };
        match result {
            Ok(_) => {
                holding.renewed = holding.renewed.max(sent);
                holding.renew_by = (sent + timing.renew_after()).max(now);
            }
            Err(Refusal::Lost(_) | Refusal::Held) => holding.lost = true,
            Err(_) => holding.renew_by = now + timing.retry_range().1,
        }
    }

    fn written(&mut self, id: LeaseId, record: &Record, result: &Result<Reply, Refusal>) {
        match result {
            Ok(Reply::Version(version)) => {
                self.seen.version = Some(version.clone());
                self.seen.must_read = false;
                self.seen.highest_term = self.seen.highest_term.max(record.term);
                self.seen.lease = Some(record.lease);
            }
            Ok(_) | Err(Refusal::Unknown(_) | Refusal::Misconfigured(_) | Refusal::Conflict) => {
                self.seen.must_read = true;
            }
            Err(Refusal::Lost(_) | Refusal::Held) => {}
        }
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else { return };
        match result {
            Ok(_) => {
                holding.failures.recorded = record.failures;
                holding.done_unrecorded &= record.outcome.is_none();
            }
            Err(Refusal::Lost(_) | Refusal::Held) => holding.lost = true,
            Err(_) => {}
        }
    }

    fn gone(&mut self, now: Time, end: &End) {
        let (Some(instance), Some(holding)) = (self.instance.take(), &mut self.holding) else { return };
        let count = &mut holding.failures;
        if now.since(instance.started) >= Duration::from_secs(60) {
            count.expected = 0;
        }
        if instance.stop.is_some() || instance.killed.is_some() || instance.at_risk || holding.lost {
            return;
        }
        match end {
            End::Done => {
                count.expected = 0;
                holding.done_unrecorded = self.settings.on_done == OnDone::Finish;
            }
            End::Failed(_) | End::Fatal(_) => {
                count.expected += 1;
                holding.must_step_down = count.expected >= 5 || matches!(end, End::Fatal(_));
            }
            End::Killed => {}
        }
    }

    // ---- requests ----

    fn request(&mut self, now: Time, id: RequestId, op: &Op) -> Checked {
        let asked = Asked { op: op.clone(), sent: now, answered: false, role: self.role };
        let is_new = self.requests.insert(id, asked).is_none();
        if !is_new {
            return broken("host_survives", format!("{id:?} is used twice"));
        }
        self.last_sent = now;
        match op {
            Op::Read => self.standby_backs_off(now),
            Op::Create { record } => self.created_only_if_none(record),
            Op::Acquire { id, length, version } => self.acquire(now, *id, *length, version),
            Op::Renew { id } => {
                if let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == *id) {
                    holding.renew_by = Time(Duration::MAX);
                    return Ok(());
                }
                broken("lease_id_is_fresh", "a renewal of a lease that is not held".to_string())
            }
            Op::Write { id: lease, version, record } => {
                self.last_write = Some(id);
                self.write(now, *lease, version, record)
            }
            Op::Release { id } => self.release(*id),
        }
    }

    fn standby_backs_off(&self, now: Time) -> Checked {
        const RULE: &str = "standby_backs_off";
        if self.holding.is_some() {
            return Ok(());
        }
        let (failures, at) = self.failed_reads;
        let shortest = match failures {
            0 => Duration::ZERO,
            1..5 => SECOND * 3 / 4,
            _ => SECOND * 5,
        };
        if failures > 0 && now.since(at) < shortest {
            return broken(RULE, format!("reads {:?} after {failures} failures in a row", now.since(at)));
        }
        if let Some((Snapshot::Object { lease: LeaseState::Held, .. }, at)) = &self.seen.last
            && failures == 0
            && self.acquisition.as_ref().is_none_or(|acquisition| acquisition.decided)
            && now.since(*at) < SECOND * 3 / 4
        {
            return broken(RULE, format!("polls after {:?}", now.since(*at)));
        }
        Ok(())
    }

    fn created_only_if_none(&self, record: &Record) -> Checked {
        const RULE: &str = "created_only_if_none";
        if !matches!(self.seen.last, Some((Snapshot::Nothing, _))) {
            return broken(RULE, format!("the last reading was {:?}", self.seen.last));
        }
        if record.term != self.seen.highest_term || record.node.is_some() {
            return broken(RULE, format!("{record:?} does not go on from term {}", self.seen.highest_term));
        }
        Ok(())
    }

    fn acquire(&mut self, now: Time, id: LeaseId, length: Duration, version: &Version) -> Checked {
        if self.instance.is_some() {
            return broken("release_last", "an acquire while an instance is not gone".to_string());
        }
        let Some((Snapshot::Object { lease, version: read, record }, _)) = &self.seen.last else {
            return broken("writes_carry_id_and_version", "an acquire without a reading".to_string());
        };
        if read != version {
            return broken(
                "writes_carry_id_and_version",
                format!("an acquire with {version:?}, but read was {read:?}"),
            );
        }
        if matches!(lease, LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking) {
            return broken("acquires_only_what_looks_free", format!("an acquire after reading {lease:?}"));
        }
        if record.as_ref().is_some_and(|record| self.is_over(record)) {
            return broken("finish_stays_finished", "an acquire of a finished election".to_string());
        }
        self.cool_off_is_kept(now)?;
        let wait = self.wait_for(*lease, record.as_ref());
        self.acquire_repeated_only_with_same_id_when_unknown(now, id)?;
        if self.acquisition.as_ref().is_none_or(|acquisition| acquisition.id != id) {
            self.role += 1;
            self.used_ids.insert(id.as_u128());
            self.holding = None;
            self.acquisition = Some(Acquisition { id, length, first_sent: now, in_doubt: false, decided: false, wait });
        }
        Ok(())
    }

    fn acquire_repeated_only_with_same_id_when_unknown(&self, now: Time, id: LeaseId) -> Checked {
        const RULE: &str = "acquire_repeated_only_with_same_id_when_unknown";
        match &self.acquisition {
            Some(last) if last.id == id && last.decided => {
                broken("lease_id_is_fresh", "an acquire with the id of an acquisition that was answered".to_string())
            }
            Some(last) if last.id == id && now.since(last.first_sent) > last.length => {
                broken(RULE, "still repeated after D".to_string())
            }
            Some(last) if last.id == id => Ok(()),
            _ if self.used_ids.contains(&id.as_u128()) => {
                broken("lease_id_is_fresh", "an id that was used before".to_string())
            }
            Some(last) if !last.decided && now.since(last.first_sent) < last.length => {
                broken(RULE, format!("another id {:?} after an unknown outcome", now.since(last.first_sent)))
            }
            _ => Ok(()),
        }
    }

    /// How long a new holder must wait that read this before its acquire.
    fn wait_for(&self, lease: LeaseState, record: Option<&Record>) -> Duration {
        let recorded = record.map(|record| record.lease).or(self.seen.lease).unwrap_or(Duration::from_secs(60));
        match (lease, record) {
            (LeaseState::Expired, _) => Duration::ZERO,
            (LeaseState::Free, Some(record)) if record.node.is_some() => Duration::ZERO,
            (LeaseState::Free, Some(record)) if record.term == 0 && !self.seen.history => Duration::ZERO,
            _ => recorded,
        }
    }

    fn is_over(&self, record: &Record) -> bool {
        record.outcome == Some(Outcome::Done) && record.module.as_deref() == Some(self.settings.module.as_str())
    }

    fn cool_off_is_kept(&self, now: Time) -> Checked {
        let until = self.cool_off_until;
        let free_for = self.seen.free_since.map_or(Duration::ZERO, |since| now.since(since));
        if now < until && free_for < SECOND * 10 {
            return broken("cool_off_is_kept", format!("an acquire before {until:?}, free for {free_for:?}"));
        }
        Ok(())
    }

    fn write(&mut self, now: Time, id: LeaseId, version: &Version, record: &Record) -> Checked {
        const RULE: &str = "writes_carry_id_and_version";
        if self.seen.must_read {
            return broken("doubtful_write_is_read_first", format!("{record:?} is written without a reading"));
        }
        if self.seen.version.as_ref() != Some(version) {
            return broken(RULE, format!("it carries {version:?}, known is {:?}", self.seen.version));
        }
        let Some(holding) = self.holding.as_mut().filter(|holding| holding.id == id) else {
            return broken(RULE, "a write without the lease".to_string());
        };
        let running_for = self.instance.as_ref().map(|instance| now.since(instance.started));
        if running_for.is_none() && record.outcome.is_none() && record.term < self.seen.highest_term {
            return broken("terms_only_rise", format!("term {} after {}", record.term, self.seen.highest_term));
        }
        let count = &mut holding.failures;
        if record.failures == 0 && running_for.is_some_and(|length| length >= SECOND * 60) {
            count.expected = 0;
        }
        if record.failures != count.expected {
            let what = format!("{} failures are written, {} are in a row", record.failures, count.expected);
            return broken("failures_counted_in_record", what);
        }
        Ok(())
    }

    fn release(&mut self, id: LeaseId) -> Checked {
        if self.instance.is_some() {
            return broken("release_last", "a release while an instance is not gone".to_string());
        }
        let Some(holding) = self.holding.take_if(|holding| holding.id == id) else { return Ok(()) };
        if holding.done_unrecorded {
            return broken("finish_stays_finished", "a release before the outcome is recorded".to_string());
        }
        if holding.failures.expected != holding.failures.recorded {
            return broken("failures_counted_in_record", "a release before the count is recorded".to_string());
        }
        if holding.must_step_down && !holding.cool_off_said && !self.shutdown_asked {
            return broken("cool_off_is_kept", "a step-down after failures without a cool-off".to_string());
        }
        Ok(())
    }

    // ---- the instance ----

    fn start(&mut self, now: Time, deadline: Time, abort_at: Time) -> Checked {
        if self.instance.is_some() {
            return broken("one_at_a_time", "a start while an instance is not gone".to_string());
        }
        let Some(holding) = &self.holding else {
            return broken("one_at_a_time", "a start without the lease".to_string());
        };
        if holding.lost {
            return broken("one_at_a_time", "a start under a lost lease".to_string());
        }
        if holding.must_step_down {
            return broken("failures_counted_in_record", "a start instead of a step-down".to_string());
        }
        if holding.done_unrecorded {
            return broken("finish_stays_finished", "a start after the election was done".to_string());
        }
        if now > holding.renewed + self.settings.timing.lease() / 2 {
            return broken("half_d_before_start", format!("renewed {:?} ago", now.since(holding.renewed)));
        }
        if let Some(acquisition) = &self.acquisition
            && now < acquisition.first_sent + acquisition.wait
        {
            let waited = now.since(acquisition.first_sent);
            return broken("waits_out_unclear_lease", format!("waited {waited:?} of {:?}", acquisition.wait));
        }
        self.cool_off_until = Time::default();
        self.instance = Some(Instance {
            started: now,
            deadline,
            abort_at,
            stop: None,
            killed: None,
            aborted: false,
            at_risk: false,
            overdue: false,
        });
        self.doubt_never_extends(deadline, abort_at)
    }

    fn extend(&mut self, deadline: Time, abort_at: Time) -> Checked {
        let Some(instance) = &mut self.instance else { return Ok(()) };
        (instance.deadline, instance.abort_at) = (deadline, abort_at);
        self.doubt_never_extends(deadline, abort_at)
    }

    fn doubt_never_extends(&self, deadline: Time, abort_at: Time) -> Checked {
        let Some(holding) = &self.holding else { return Ok(()) };
        if deadline > holding.renewed + holding.length * 8 / 10
            || abort_at > holding.renewed + holding.length * 93 / 100
        {
            let what = format!("deadline {deadline:?} for a request sent at {:?}", holding.renewed);
            return broken("doubt_never_extends", what);
        }
        Ok(())
    }

    fn stop(&mut self, now: Time, reason: StopReason, grace_ends: Time) -> Checked {
        let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) else { return Ok(()) };
        instance.stop = Some(grace_ends);
        let is_due = match reason {
            StopReason::LeaseAtRisk => instance.at_risk,
            StopReason::LeaseLost => holding.lost || holding.is_missing,
            StopReason::StepDown => self.step_down_asked,
            StopReason::Shutdown => self.shutdown_asked,
            StopReason::Replaced => false,
        };
        if !is_due {
            return broken("doubt_loses_nothing", format!("a stop for {reason:?} without that"));
        }
        if grace_ends > now + self.settings.timing.grace() {
            return broken("grace_is_bounded", format!("a stop at {now:?} with grace until {grace_ends:?}"));
        }
        Ok(())
    }

    fn kill(&mut self, now: Time) -> Checked {
        let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) else { return Ok(()) };
        instance.killed = Some(now);
        let is_due = instance.overdue
            || instance.stop.is_some_and(|grace_ends| now >= grace_ends)
            || holding.lost
            || holding.is_missing
            || self.skip_grace_asked;
        if is_due { Ok(()) } else { broken("doubt_loses_nothing", "a kill without a reason".to_string()) }
    }

    fn abort(&mut self, now: Time) -> Checked {
        let Some(instance) = &mut self.instance else {
            return broken("host_survives", "an abort without an instance".to_string());
        };
        instance.aborted = true;
        if now < instance.abort_at {
            return broken("host_survives", format!("an abort before {:?}", instance.abort_at));
        }
        Ok(())
    }

    fn report(&mut self, now: Time, report: &Report) -> Checked {
        match report {
            Report::HeldOutside { .. } => self.seen.outside_said = true,
            Report::Standby { .. } => {
                self.role += 1;
                if self.instance.is_none() {
                    self.holding = None;
                }
            }
            Report::CoolOff { wait, .. } => {
                let full = |cool_offs: u32| SECOND * (10 << cool_offs.min(6)).min(600);
                let (shortest, longest) = (full(self.cool_offs) * 3 / 4, full(self.cool_offs_at_most) * 5 / 4);
                self.cool_off_until = now + *wait;
                self.cool_offs += 1;
                self.cool_offs_at_most += 1;
                if let Some(holding) = &mut self.holding {
                    holding.cool_off_said = true;
                }
                if *wait < shortest || *wait > longest {
                    return broken("cool_off_is_kept", format!("{wait:?}, not {shortest:?} to {longest:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    // ---- after each step ----

    fn takes_what_is_free(&self, now: Time) -> Checked {
        let Some((snapshot, at)) = &self.seen.last else { return Ok(()) };
        let is_free = match snapshot {
            Snapshot::Nothing => true,
            Snapshot::Object { record: Some(record), .. } if self.is_over(record) => false,
            Snapshot::Object { lease, .. } => {
                matches!(lease, LeaseState::Free | LeaseState::Expired | LeaseState::Broken)
            }
        };
        let free_for = self.seen.free_since.map_or(Duration::ZERO, |since| now.since(since));
        let may_take = now >= self.cool_off_until || free_for >= SECOND * 10;
        let is_news = *at == now && self.seen.as_standby && !self.shutdown_asked;
        if is_free && may_take && is_news && self.last_sent < now {
            return broken("takes_what_is_free", format!("nothing follows from {snapshot:?}, free for {free_for:?}"));
        }
        Ok(())
    }

    fn known_loss_kills_at_once(&self) -> Checked {
        match (&self.instance, &self.holding) {
            (Some(Instance { killed: None, .. }), Some(Holding { lost: true, .. })) => {
                broken("known_loss_kills_at_once", "the lease is known to be lost, and it runs on".to_string())
            }
            _ => Ok(()),
        }
    }

    fn deadlines_are_kept(&self, now: Time, awake_by: &dyn Fn(&'static str, Time) -> Checked) -> Checked {
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let timing = &self.settings.timing;
        if instance.aborted {
            return Ok(());
        }
        if let Some(killed) = instance.killed {
            // A process that did not run at its deadline has from its kill on what there is between the two.
            let room = timing.abort_after() - timing.deadline_after();
            let abort_at = instance.abort_at.max(killed + room);
            if now >= abort_at {
                return broken("gone_in_time", format!("no abort at {now:?}, which was due at {abort_at:?}"));
            }
            return awake_by("gone_in_time", abort_at);
        }
        let at_risk = holding.renewed + timing.at_risk_after();
        if instance.overdue || now >= instance.deadline {
            return broken("gone_in_time", format!("no kill at {now:?}, with the deadline at {:?}", instance.deadline));
        }
        if now >= at_risk && instance.stop.is_none() {
            return broken("stops_at_risk", format!("no stop at {now:?}, which was due at {at_risk:?}"));
        }
        match instance.stop {
            Some(grace_ends) if now >= grace_ends => broken("grace_is_bounded", format!("no kill at {grace_ends:?}")),
            Some(grace_ends) => awake_by("grace_is_bounded", grace_ends.min(instance.deadline)),
            None if self.shutdown_asked => broken("grace_is_bounded", "no stop at a shutdown".to_string()),
            None => awake_by("stops_at_risk", at_risk),
        }
    }

    fn leader_tries_never_slow(&self, now: Time, awake_by: &dyn Fn(&'static str, Time) -> Checked) -> Checked {
        const RULE: &str = "leader_tries_never_slow";
        let Some(holding) = &self.holding else { return Ok(()) };
        let is_held = !holding.lost && !holding.is_missing && now < holding.renewed + holding.length;
        if !is_held || holding.renew_by == Time(Duration::MAX) {
            return Ok(());
        }
        if now > holding.renew_by {
            return broken(RULE, format!("no renewal at {now:?}, which was due at {:?}", holding.renew_by));
        }
        awake_by(RULE, holding.renew_by)
    }

    fn outside_holder_is_reported(&self, now: Time) -> Checked {
        let seen = &self.seen;
        let Some((Snapshot::Object { lease, .. }, at)) = &seen.last else { return Ok(()) };
        let long = seen.outside_since.is_some_and(|since| at.since(since) >= self.settings.timing.lease() * 2);
        let is_outside = *lease == LeaseState::HeldForever || (*lease == LeaseState::Held && long);
        let is_standby = self.holding.is_none() && self.acquisition.as_ref().is_none_or(|last| last.decided);
        if is_outside && is_standby && *at == now && !seen.outside_said && !self.shutdown_asked {
            return broken("outside_holder_is_reported", format!("{:?} is not reported", seen.last));
        }
        Ok(())
    }

    fn health_resets_the_count(&self, now: Time) -> Checked {
        let (Some(instance), Some(holding)) = (&self.instance, &self.holding) else { return Ok(()) };
        let is_healthy = instance.killed.is_none() && now.since(instance.started) >= SECOND * 61;
        if is_healthy && holding.failures.expected > 0 && !self.seen.must_read {
            return broken("failures_counted_in_record", "60 s of health do not reset the count".to_string());
        }
        Ok(())
    }
}
