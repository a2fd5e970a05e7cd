//! The election's rules, watched on one elector: what goes in, what comes out and when. Nothing here
//! looks inside; each rule is a function with its name, and time is the host's own clock.

mod answers;
mod hints;
mod instances;
mod requests;
mod table;
mod versions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use baton_election::{
    Effect, End, Input, LeaseId, LeaseState, ModuleVersion, OnDone, Op, Outcome, Plan, Record, Reply, Report,
    RequestId, Settings, Snapshot, StopReason, StoreError, Term, Time, Version, Word,
};

use crate::invariants::{Checked, broken};
use table::Table;

const SECOND: Duration = Duration::from_secs(1);

/// What one process has been seen to do.
pub struct HostRules {
    settings: Settings,
    versions: versions::Versions,
    /// The terms that it has written.
    terms: BTreeMap<Term, Written>,
    requests: BTreeMap<RequestId, Asked>,
    last_write: Option<RequestId>,
    last_read: Option<RequestId>,
    /// When it read last since there was a hint, and another held the lease.
    hinted_reads: VecDeque<Time>,
    /// The highest term that was served, or that the state turned out to be claimed by.
    spent: Term,
    /// How long its last polls waited, the last since when: one alone may be as long as the one before.
    polls: ([Duration; 2], Time),
    /// When the last request was sent.
    last_sent: Time,
    /// Counts the changes of its role.
    role: u32,
    /// What the slowest of its clocks says.
    least: Duration,
    /// The time that its wall clock showed at the last input.
    wall: Duration,
    seen: Seen,
    /// Failed readings in a row, and when the last one failed.
    failed_reads: (u32, Time),
    /// When there was a hint since it read last, or as it did.
    hinted: Option<Time>,
    heard: hints::Heard,
    used_ids: BTreeSet<u128>,
    acquisition: Option<Acquisition>,
    holding: Option<Holding>,
    instance: Option<Instance>,
    cool_off_until: Time,
    /// Another module, which ends a cool-off, came with the same input as that began: which was first does not show.
    cool_off_is_unclear: bool,
    /// When another module came.
    other_heard: Option<Time>,
    /// Cool-offs since an instance of this process was last healthy.
    cool_offs: u32,
    /// The same, where health that shows only at the instance's end does not count.
    cool_offs_at_most: u32,
    step_down_asked: bool,
    shutdown_asked: bool,
    skip_grace_asked: bool,
    finished: bool,
}

/// A term that was written, or may have been.
struct Written {
    module: String,
    first_asked: Time,
    last_asked: Time,
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
    /// True if that reading, and no more than that was asked for, took longer than a renewal may.
    was_slow: bool,
    version: Option<Version>,
    /// The one that it has written over last.
    version_before: Option<Version>,
    /// After a doubtful or refused write.
    must_read: bool,
    highest_term: Term,
    /// The highest that is known to have been written: tried ones are not.
    written_term: Term,
    /// That of the record.
    recorded_term: Term,
    /// Whether the record says that nothing can still run.
    is_marked: bool,
    /// Whether what else the store names was asked for since the last reading, and could be told.
    recalled: Option<bool>,
    /// Since when no recall was answered.
    unrecalled_since: Option<Time>,
    /// When the slowest of the clocks said so, that was last told, or could not be.
    recalled_at: Option<Duration>,
    longest_lease: Option<Duration>,
    any_object: bool,
    /// Any sign that somebody has held the lease, or that the object was there before and is not the same.
    history: bool,
    free_since: Option<Time>,
    free_version: Option<Version>,
    outside_since: Option<Time>,
    outside_said: bool,
    /// Whether the last reading was a standby's.
    as_standby: bool,
    /// The last lease that it could not go on with.
    refused_reclaim: Option<LeaseId>,
    /// The last version of a marked record with which it asked, or would have asked, for a lease that was not released
    /// yet.
    asked_early: Option<Version>,
    /// The last such version at which it asked what else the store names.
    recalled_early: Option<Version>,
    /// It has just been told so, or that another was faster, and looks once more.
    looks_again: bool,
    /// Who was read to be gone, since when, and whether what it ran had failed just before.
    death: Option<(LeaseId, Time, bool)>,
}

struct Acquisition {
    id: LeaseId,
    length: Duration,
    first_sent: Time,
    /// The same by the slowest of its clocks.
    first_sent_least: Duration,
    in_doubt: bool,
    decided: bool,
    /// The holder starts nothing before the slowest of its clocks says that.
    waits_until: Duration,
    /// Nothing of another can still run: there is nothing to wait for.
    is_clear: bool,
    /// It takes the place of one who is gone.
    is_of_the_dead: bool,
    /// It goes on with the lease of one who is gone.
    reclaims: Option<LeaseId>,
    /// It is to give that up, since what it would run has failed just before, too.
    gives_way: bool,
    /// What else the store names was told, before it was asked for or after it was waited out.
    is_recalled: bool,
}

struct Holding {
    id: LeaseId,
    length: Duration,
    renewed: Time,
    /// The value of `renewed` before its last change, and the time of that change.
    renewed_before: Option<(Time, Time)>,
    /// When a renewal was answered before which the lease may have run out.
    in_doubt_until: Option<Time>,
    /// It has marked the record as released.
    has_marked: bool,
    /// There was a moment with nothing to serve.
    had_nothing: bool,
    /// A version does not begin again before: it was done, or has failed.
    rests: Option<(String, Time)>,
    /// True if that is the pause of a module that was done.
    pauses: bool,
    /// Since when what it writes without an instance is not known to be written.
    unwritten_since: Option<Time>,
    lost: bool,
    /// A reading showed that there is no object any more, that it has no lease, or what others have written.
    reads_of_loss: bool,
    /// The latest moment for the next renewal to be sent.
    renew_by: Time,
    /// The earliest, after one that failed.
    renew_from: Time,
    failures: Count,
    done_unrecorded: bool,
    /// A term was asked for.
    has_begun: bool,
    must_step_down: bool,
    /// The starts in a row of which the node was not able.
    unable: u32,
    /// It was asked to step down.
    is_leaving: bool,
    cool_off_said: bool,
}

/// Failures in a row: what they should be, and what the record says as far as this process knows.
struct Count {
    expected: u32,
    recorded: u32,
    /// Whose they are.
    module: Option<String>,
    /// Those of the modules before.
    others: BTreeMap<String, u32>,
    /// The module that was served last under this lease.
    served: Option<String>,
}

impl Count {
    /// Failures are a module's own: from here on those of the module in the record count.
    fn belongs_to(&mut self, record: &Record) {
        let module = record.module.as_deref();
        if self.module.is_some() && self.module.as_deref() != module {
            let known = self.leave_for(module);
            // A change-over that did not come about leaves those of the version that was served, and may forget
            // those of others.
            let goes_on = self.served.as_deref() == module;
            self.expected = if goes_on { known } else { record.failures.min(known) };
            self.recorded = self.expected;
        }
        self.module.clone_from(&record.module);
    }

    /// An instance has ended, and it was no change-over: from here on its module's failures count, whatever the record
    /// names.
    fn stays_with(&mut self, module: &str) {
        if self.module.as_deref() != Some(module) {
            self.expected = self.leave_for(Some(module));
            self.module = Some(module.to_string());
        }
    }

    /// Those of that module count no more.
    fn forgives(&mut self, module: &str) {
        let own = self.module.as_deref() == Some(module);
        let count = if own { Some(&mut self.expected) } else { self.others.get_mut(module) };
        count.into_iter().for_each(|count| *count = 0);
    }

    /// Keeps those of the module so far, and finds what is known of this one's.
    fn leave_for(&mut self, module: Option<&str>) -> u32 {
        self.others.insert(self.module.take().unwrap_or_default(), self.expected);
        module.and_then(|module| self.others.get(module)).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Killed {
    /// From when on it has the time that a kill may take.
    counted_from: Time,
    /// When the elector last had an input, by the host's clock and by its slowest.
    seen: (Time, Duration),
    /// That is a waking past the deadline already.
    after_a_pause: bool,
    /// It had its time, and was not gone: nothing gives it more.
    hangs: bool,
}

struct Instance {
    term: Term,
    version: ModuleVersion,
    started: Time,
    /// When it was told that the guest runs.
    begun: Option<Time>,
    deadline: Time,
    abort_at: Time,
    stop: Option<Time>,
    killed: Option<Killed>,
    aborted: bool,
    /// The system ends it, and is not done.
    dying: bool,
    /// 0.7 D had passed when an input came.
    at_risk: bool,
    /// The deadline had passed when an input came.
    overdue: bool,
}

impl HostRules {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            least: Duration::ZERO,
            wall: Duration::ZERO,
            versions: versions::Versions::default(),
            terms: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_write: None,
            last_read: None,
            hinted_reads: VecDeque::new(),
            spent: 0,
            polls: ([Duration::ZERO; 2], Time::default()),
            last_sent: Time::default(),
            role: 0,
            seen: Seen::default(),
            failed_reads: (0, Time::default()),
            hinted: None,
            heard: hints::Heard::default(),
            used_ids: BTreeSet::new(),
            acquisition: None,
            holding: None,
            instance: None,
            cool_off_until: Time::default(),
            cool_off_is_unclear: false,
            other_heard: None,
            cool_offs: 0,
            cool_offs_at_most: 0,
            step_down_asked: false,
            shutdown_asked: false,
            skip_grace_asked: false,
            finished: false,
        }
    }

    /// The times that follow from this process's own D.
    fn table(&self) -> Table {
        Table(self.settings.timing.lease())
    }

    pub fn highest_term(&self) -> Term {
        self.seen.highest_term
    }

    pub fn has_seen_the_election(&self) -> bool {
        self.seen.any_object
    }

    /// Whether it knows the length of the lease under which that term was written: it has read it or written it
    /// itself.
    pub fn knows_the_lease_of(&self, term: Term) -> bool {
        self.seen.highest_term >= term || self.terms.contains_key(&term)
    }

    /// An input is about to go in.
    pub fn input(&mut self, now: Time, least: Duration, wall: Duration, input: &Input) {
        (self.least, self.wall) = (least, wall);
        self.heard.forget();
        self.forget_what_ran_out(now);
        self.wakes(now);
        if !matches!(input, Input::Gone { .. } | Input::Dying) {
            self.time_comes_first(now);
        }
        match input {
            Input::Answer { id, result } => self.answer(now, *id, result),
            Input::NotSent { id } => self.not_sent(*id),
            Input::Begun => {
                if let Some(instance) = &mut self.instance {
                    instance.begun.get_or_insert(now);
                }
            }
            Input::Gone { end } => self.gone(now, end),
            Input::Dying => self.dying(now),
            Input::StepDown { .. } => self.step_down(),
            Input::Stalled { .. } => self.stalled(),
            Input::Plan(plan) => {
                self.planned(now, plan);
                let digest = self.versions.digest();
                if let Some(holding) = self.holding.as_mut() {
                    holding.rests.take_if(|(module, _)| digest != Some(module));
                }
                // It leaves for that even if another plan follows at once.
                let is_over = self.instance.is_none() && self.has_read_that_it_is_over();
                if let Some(holding) = self.holding.as_mut().filter(|_| is_over) {
                    holding.is_leaving = true;
                }
                if let Some(holding) = self.holding.as_mut().filter(|_| self.versions.digest().is_none()) {
                    holding.had_nothing = true;
                }
            }
            Input::Shutdown => self.shutdown_asked = true,
            Input::SkipGrace => (self.shutdown_asked, self.skip_grace_asked) = (true, true),
            Input::Hint(hint) => self.hint(now, hint),
            Input::Tick => {}
        }
        self.forget_what_ran_out(now);
    }

    fn step_down(&mut self) {
        self.step_down_asked = true;
        if let Some(holding) = &mut self.holding {
            holding.is_leaving = true;
        }
    }

    /// What time alone decides is decided before the input is looked at: a renewal whose answer comes
    /// after 0.7 D does not take the stop back.
    fn time_comes_first(&mut self, now: Time) {
        let table = self.table();
        if let (Some(instance), Some(holding)) = (&mut self.instance, &self.holding) {
            let is_living = instance.killed.is_none();
            instance.at_risk |= is_living && now >= holding.renewed + table.at_risk_after();
            instance.overdue |= is_living && now >= instance.deadline;
            if is_living && now.since(instance.started) >= SECOND * 60 {
                self.cool_offs = 0;
            }
            if instance.stop.is_none() && is_living && !instance.at_risk && !instance.overdue {
                self.versions.time_proves(now, instance, self.settings.probation);
            }
        }
    }

    /// A lease that has run out without an instance is over, and what its holder asked tells nothing any more, even if
    /// the answer comes at the same moment.
    fn forget_what_ran_out(&mut self, now: Time) {
        let instance = &self.instance;
        let ran_out = self.holding.take_if(|holding| instance.is_none() && now >= holding.renewed + holding.length);
        self.role += u32::from(ran_out.is_some());
    }

    /// An effect has come out.
    pub fn effect(&mut self, now: Time, effect: &Effect) -> Checked {
        if self.finished {
            return broken("host_survives", format!("{effect:?} after the end"));
        }
        match effect {
            Effect::Request { id, op, timeout } => {
                // While one try waits for its answer there is no other, and a lease has time for several.
                let is_urgent = matches!(
                    op,
                    Op::Acquire { .. } | Op::Reclaim { .. } | Op::Renew { .. } | Op::Write { .. } | Op::Release { .. }
                );
                if is_urgent && *timeout > self.table().try_timeout() {
                    return broken("a_try_is_short", format!("{op} may take {timeout:?}"));
                }
                self.request(now, *id, op)
            }
            Effect::Start { term, version, deadline, abort_at } => {
                self.serves_what_is_planned(*term, version)?;
                self.start(now, (*term, version), *deadline, *abort_at)
            }
            Effect::Extend { deadline, abort_at } => self.extend(*deadline, *abort_at),
            Effect::Stop { reason, grace_ends, next, .. } => self.stop(now, *reason, *grace_ends, *next),
            Effect::Kill { .. } => self.kill(now),
            Effect::Abort { .. } => self.abort(now),
            Effect::Prove { version, .. } => self.proves(now, version),
            Effect::Reject { version, instead, .. } => self.rejects(version, instead.as_ref()),
            Effect::Tell(word) => self.tells_what_is_so(now, word),
            Effect::Report(report) => self.report(now, report),
            Effect::Finished => {
                self.finished = true;
                // The system alone can end that, and the lease is lost.
                if self.is_left_dying(now) {
                    self.instance = None;
                }
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
        self.versions_are_settled(now, wakeup)?;
        self.over_is_not_held()?;
        self.takes_what_is_free(now)?;
        self.looks_again_at_once()?;
        self.gives_up_what_it_cannot_write(now)?;
        self.polls_every_second(now, wakeup)?;
        self.hints_delay_little(now, wakeup)?;
        self.starts_at_once(now)?;
        self.known_loss_kills_at_once()?;
        self.known_renewal_extends()?;
        self.deadlines_are_kept(now, &awake_by)?;
        self.leader_tries_never_slow(now, &awake_by)?;
        self.outside_holder_is_reported(now)?;
        self.health_resets_the_count(now)
    }
}
