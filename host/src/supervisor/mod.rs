//! The supervisor of one coordinator: carries out the decisions of its elector.
//!
//! The supervisor is the only part that knows both the lease and the instance. It decides nothing. It sends requests to
//! the store concurrently, each with a timeout, and starts, stops and kills the instance. Every result goes back to the
//! elector as an input. The supervisor runs on the control runtime, on which no guest ever runs.
//!
//! Waking a thread costs more than the work for which it is woken, especially on a small, busy machine. The supervisor
//! therefore writes the message that starts an instance, and sends the signal that kills it, on its own thread. Other
//! threads, including the log's writer, are woken afterwards.
//!
//! An instance counts as gone only once its lines have been written or dropped. Only then is its lease released or
//! another instance started. Lines that are not read within [`LAST_LINES`], or before the term's deadline, are dropped.

mod preference;
mod ready_modules;
mod reporter;

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{
    Effect, ElectionName, Elector, Hint, Input, ModuleVersion, Now, Op, Plan, Reply, Report, RequestId, Settings,
    StopReason, StoreError, Term, Time,
};
use futures::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::links::{Candidate, LinkHandle};
use crate::maintenance::Drained;
use crate::random::random;
use crate::steering::{Ineligibility, IneligibleReason, SteeringState, SteeringWatch, TAKEN_WITHIN};
use crate::telemetry::{BEAT_EVERY, ElectionTracker, LAST_LINES, Log, StoreOp};
use baton_modules::{Judgement, Prepared, SupervisorState, Supply, Verdict};
use baton_runtime::{Instance, InstanceEvent, Launcher};
use baton_store::clock::Clock;
use baton_store::gate::{Deadline, end_this_process};
use baton_store::state::ReadAhead;
use baton_store::steering::CommandOrigin;
use baton_store::{Digest, LeaseStore};
use preference::{AcquireDecision, DeferRules};
pub use preference::{HIGHEST_PRIORITY, LeadershipQuota, Preference};
use ready_modules::ReadyModules;
use reporter::Reporter;

/// Maximum interval between readings of the clock while the node holds a lease without an instance. Timers stop while a
/// machine sleeps. While an instance runs, the watchdog notifies the supervisor after a sleep.
const LONGEST_WAIT_UNWATCHED: Duration = Duration::from_millis(250);

/// Upper bound on the time that a successor needs to acquire a released lease after it is notified.
const SUCCESSOR_ACQUIRES_WITHIN: Duration = Duration::from_millis(100);

/// Urgency of the request to shut down the host. It never decreases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shutdown {
    /// No shutdown requested.
    No,
    /// Shut down in an orderly way.
    Requested,
    /// Shut down in an orderly way, but without the grace period.
    Impatient,
}

/// Settings and dependencies of one coordinator's supervisor.
pub struct Supervisor {
    /// The election.
    pub election: ElectionName,
    /// The elector's settings.
    pub settings: Settings,
    /// The store that holds the lease.
    pub store: Arc<dyn LeaseStore>,
    /// Starts instances.
    pub launcher: Launcher,
    /// The modules to run, now and later.
    pub supply: watch::Receiver<Supply>,
    /// True if all nodes should run the same module, so that any difference is logged.
    pub one_module: bool,
    /// Reason why this node is drained, if it is.
    pub away: watch::Receiver<Drained>,
    /// Sink for the judgements on versions.
    pub judgements: mpsc::UnboundedSender<Judgement>,
    /// The operators' steering commands.
    pub steering_watch: Arc<SteeringWatch>,
    /// Decides whether this node lets other nodes acquire a free lease first.
    pub preference: Preference,
    /// Sink for this node's announcement.
    pub presence: watch::Sender<SupervisorState>,
    /// Time without progress after which an instance counts as stalled; `None` for no limit.
    pub stall_after: Option<Duration>,
    /// The host's clock.
    pub clock: Clock,
    /// The election's log.
    pub log: Log,
    /// The links for the election.
    pub link: LinkHandle,
    /// The state of this node, as shown to outside observers.
    pub tracker: Arc<ElectionTracker>,
}

impl Supervisor {
    /// Takes part in the election until the host must shut down. Then ends the instance first, and the lease after it.
    ///
    /// # Errors
    /// The system cannot provide random numbers for lease ids.
    pub async fn run(self, shutdown: watch::Receiver<Shutdown>) -> Result<(), getrandom::Error> {
        let random = random(&self.settings.node)?;
        let elector = Elector::new(self.settings.clone(), self.now(), random);
        let reporter = Reporter::new(self.log.clone());
        let missed_by_timers = self.launcher.watchdog.missed_by_timers();
        let hears = self.steering_watch.hears();
        let mut run = Run {
            given: self,
            missed_by_timers,
            elector,
            reporter,
            requests: JoinSet::new(),
            at_hand: ReadyModules::nothing(),
            serving: None,
            lines: None,
            stalled: false,
            hears,
            stays_out: None,
            completed_order: None,
            ceded_lease: None,
            transfer_failed: false,
            away: None,
            cools_off: None,
            has_finished: false,
        };
        run.update_plan();
        run.until_finished(shutdown).await;
        run.given.tracker.heartbeat.end();
        Ok(())
    }

    fn now(&self) -> Now {
        let (time, least) = self.clock.both();
        Now { time, least, wall: self.clock.wall() }
    }
}

struct Run {
    given: Supervisor,
    missed_by_timers: watch::Receiver<()>,
    elector: Elector,
    reporter: Reporter,
    /// Requests to the store, and the wait for an instance's last lines. Each yields an input for the elector.
    requests: JoinSet<Input>,
    at_hand: ReadyModules<Prepared>,
    serving: Option<Serving>,
    /// The deadline by which the instance's lines must be written.
    lines: Option<Deadline>,
    stalled: bool,
    hears: watch::Receiver<SteeringState>,
    /// The operators' command that keeps this node from leading, if any.
    stays_out: Option<Ineligibility>,
    /// The id of the last completed step-down or transfer.
    completed_order: Option<String>,
    /// The lease that this node held when a command required it to stop leading.
    ceded_lease: Option<CededLease>,
    /// True if this node released the lease for a transfer and no node has acquired it.
    transfer_failed: bool,
    /// The maintenance for which this node is drained, if any.
    away: Drained,
    /// End of the cool-off period after this node stepped down on its own.
    cools_off: Option<Time>,
    has_finished: bool,
}

/// State of a lease that this node gives up because it must no longer lead.
enum CededLease {
    /// This node still holds it.
    Holds,
    /// This node stopped holding it at this time.
    Since(Time),
}

struct Serving {
    instance: Instance,
    term: Term,
    module: Digest,
}

impl Run {
    async fn until_finished(&mut self, mut shutdown: watch::Receiver<Shutdown>) {
        let mut asked = Shutdown::No;
        loop {
            self.carry_out_effects();
            if self.has_finished {
                // Pending requests no longer matter: no instance is running, and this node holds no lease.
                self.requests.shutdown().await;
                // Let the successor's requests reach the store first. This node's remaining writes can wait.
                if self.given.link.has_heir() {
                    sleep(SUCCESSOR_ACQUIRES_WITHIN).await;
                }
                return;
            }
            self.publish(asked);
            if !self.elector.holds_lease() {
                self.given.launcher.handover.clear();
            }
            if self.elector.follows() && !self.elector.surveys() {
                self.given.launcher.expects_none();
            }
            let input = self.next_input(&mut shutdown, &mut asked).await;
            // Apply steering commands first: this input may be the response that makes the node acquire the lease.
            self.steer();
            if let Some(input) = input {
                self.elector.handle(self.given.now(), input);
            }
        }
    }

    /// Publishes the current term and this node's state if they have changed.
    fn publish(&mut self, asked: Shutdown) {
        let term = self.elector.written_term();
        self.given.tracker.record_round(self.given.clock.now(), term, self.elector.deadline());
        let is_done = self.elector.follows() && self.serving.is_none();
        self.given.tracker.is_out(self.away.is_some() && is_done);
        let runs = self.serving.as_ref().map(|serving| serving.module);
        let (steered, stays_out) = (self.hears.borrow().mark().map(str::to_owned), self.ineligible_reason());
        let leads_enough = self.given.preference.leads_enough();
        let listens = self.given.tracker.listens_to();
        let is_ready = self.elector.plan().module.is_some() && stays_out.is_none();
        let candidate = Candidate { ready: is_ready, priority: self.given.preference.priority(), leads_enough };
        let leader = self.elector.leader();
        let leader = leader.map(|leader| (leader, self.given.tracker.known().leader.unwrap_or_default()));
        self.given.link.wants(leader, candidate);
        let now = self.given.clock.now();
        self.given.tracker.notifier.is_told(self.elector.listens_until().is_some_and(|until| now < until));
        // On shutdown, this node withdraws its whole announcement. An earlier update would only compete with the
        // successor's requests to the store.
        let is_leaving = asked > Shutdown::No && self.serving.is_none();
        self.given.presence.send_if_modified(|known| {
            if is_leaving && known.term == term {
                return false;
            }
            let before =
                std::mem::replace(known, SupervisorState { runs, term, steered, stays_out, leads_enough, listens });
            before != *known
        });
    }

    /// Returns the reason that prevents this node from leading, as the word used in announcements.
    fn ineligible_reason(&self) -> Option<&'static str> {
        let now = self.given.clock.now();
        let cools_off = self.cools_off.filter(|until| now < *until && !self.elector.holds_lease());
        let cools_off = cools_off.map(|_| "cooling-off");
        // Maintenance takes precedence, because no operator's command ends it.
        let away = self.away.as_ref().map(|_| "maintenance");
        away.or_else(|| self.stays_out.as_ref().map(|stays_out| stays_out.why.word())).or(cools_off)
    }

    /// Applies the operators' steering commands.
    fn steer(&mut self) {
        let now = self.given.clock.now();
        let mut stays_out = self.hears.borrow_and_update().stays_out(now);
        if matches!(self.ceded_lease, Some(CededLease::Holds)) && !self.elector.holds_lease() {
            self.ceded_lease = Some(CededLease::Since(now));
        }
        // A node that has released its lease for a transfer waits no longer than [`TAKEN_WITHIN`] for the target to
        // acquire it.
        if let (
            Some(Ineligibility { why: IneligibleReason::Transferring(..), until }),
            Some(CededLease::Since(since)),
        ) = (&mut stays_out, &self.ceded_lease)
        {
            *until = until.map(|until| until.min(*since + TAKEN_WITHIN));
        }
        let is_over = |Ineligibility { why, until }: &Ineligibility| {
            until.is_some_and(|until| until <= now) || self.completed_order.as_ref() == Some(&why.order().id)
        };
        let stays_out = stays_out.filter(|stays_out| !is_over(stays_out));
        let why = |stays_out: &Option<Ineligibility>| stays_out.as_ref().map(|stays_out| stays_out.why.clone());
        let before = std::mem::replace(&mut self.stays_out, stays_out);
        let (before, next) = (why(&before), why(&self.stays_out));
        if before == next {
            return;
        }
        // A suspension is not recorded as completed: it applies whenever the store contains it, even if it was removed
        // and then restored.
        if let (Some(IneligibleReason::SteppedDown(order) | IneligibleReason::Transferring(order, _)), None) =
            (&before, &next)
        {
            self.completed_order = Some(order.id.clone());
        }
        // A transfer without a successor ends. This node then acquires the lease without letting other nodes go first.
        if matches!(
            (&before, &next, &self.ceded_lease),
            (Some(IneligibleReason::Transferring(..)), None, Some(CededLease::Since(_)))
        ) {
            self.transfer_failed = self.given.tracker.known().leader.is_none();
        }
        self.ceded_lease = next.is_some().then_some(CededLease::Holds).filter(|_| self.elector.holds_lease());
        let wait = self.stays_out.as_ref().and_then(|stays_out| stays_out.until).map(|until| until.since(now));
        self.reporter.steered(before.as_ref(), next.as_ref(), wait);
        self.given.tracker.stays_out(next.map(|why| why.told()));
        self.update_plan();
    }

    async fn next_input(&mut self, shutdown: &mut watch::Receiver<Shutdown>, asked: &mut Shutdown) -> Option<Input> {
        let wait = self.wait();
        let known = *asked;
        let event = async {
            match &mut self.serving {
                Some(serving) => serving.instance.next_event().await,
                None => pending().await,
            }
        };
        let (store, election) = (Arc::clone(&self.given.store), self.given.election.clone());
        tokio::select! {
            // A shutdown and the end of an instance take precedence over responses from the store.
            biased;
            Ok(level) = shutdown.wait_for(|level| *level > known) => {
                *asked = *level;
                Some(if *level == Shutdown::Impatient { Input::SkipGrace } else { Input::Shutdown })
            }
            event = event => self.instance_event(event),
            Ok(()) = self.given.supply.changed() => {
                self.update_plan();
                None
            }
            Ok(()) = self.hears.changed() => None,
            Ok(()) = self.given.away.changed() => {
                self.update_plan();
                None
            }
            // Requests are cancelled only at shutdown, when their input is no longer needed.
            Some(answer) = self.requests.join_next() => answer.ok(),
            () = store.hint(&election) => Some(Input::Hint(Hint::Look)),
            hint = self.given.link.heard() => Some(Input::Hint(hint)),
            Ok(()) = self.missed_by_timers.changed() => Some(self.stall().unwrap_or(Input::Tick)),
            () = sleep(wait) => Some(self.stall().unwrap_or(Input::Tick)),
        }
    }

    fn wait(&self) -> Duration {
        let now = self.given.clock.now();
        let is_watched = self.serving.is_some();
        let longest = if self.elector.holds_lease() && !is_watched { LONGEST_WAIT_UNWATCHED } else { BEAT_EVERY };
        let eligible_at = self.stays_out.as_ref().and_then(|stays_out| stays_out.until);
        let next = [self.elector.next_wakeup(), self.stalls_at(), eligible_at].into_iter().flatten().min();
        next.map_or(longest, |next| next.since(now).min(longest))
    }

    fn carry_out_effects(&mut self) {
        // Act before logging: an instance is started or killed before the writer's thread is woken.
        let _hold = self.given.log.hold();
        while let Some(effect) = self.elector.poll_effect() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Request { id, op, timeout } => self.request(id, op, timeout),
            Effect::Start { term, version, deadline, abort_at } => self.start(term, &version, deadline, abort_at),
            Effect::Extend { deadline, abort_at } => {
                if let Some(serving) = &self.serving {
                    serving.instance.extend(deadline, abort_at);
                }
                if let Some(lines) = &self.lines {
                    lines.extend(deadline);
                }
            }
            Effect::Stop { reason, message, grace_ends, next } => {
                let asked = self.away.as_ref().map(ToString::to_string);
                let asked = asked.or_else(|| self.stays_out.as_ref().map(|stays_out| stays_out.why.told()));
                let message = match asked {
                    Some(why) if reason == StopReason::StepDown => why,
                    _ => message,
                };
                if let Some(Serving { instance, module, .. }) = &mut self.serving {
                    let left = grace_ends.since(self.given.clock.now()).min(instance.remaining());
                    self.reporter.stopping(*module, reason, &message, left);
                    instance.stop(reason, message, grace_ends, next);
                }
            }
            Effect::Kill { reason } => {
                if let Some(Serving { instance, .. }) = &mut self.serving {
                    // Kill first: no effect may pass the gate while the log line is being created.
                    instance.kill();
                    self.reporter.killed(reason, self.given.clock.now());
                }
            }
            Effect::Abort { reason } => self.abort(&reason),
            Effect::Prove { version, term } => {
                self.reporter.judged(&version, None);
                self.judge(Judgement { version, term, verdict: Verdict::Good });
            }
            Effect::Reject { version, term, reason, instead } => {
                self.reporter.judged(&version, Some((&reason, instead.as_ref())));
                self.judge(Judgement { version, term, verdict: Verdict::Rejected { reason } });
            }
            Effect::Tell(word) => {
                let to = match &self.stays_out {
                    Some(Ineligibility { why: IneligibleReason::Transferring(_, to), .. }) => Some(to.as_str()),
                    _ => None,
                };
                self.given.link.tell(&word, self.given.clock.now(), to);
            }
            Effect::Report(report) => {
                if matches!(report, Report::Lost { .. } | Report::Standby { .. })
                    && let Some(lines) = &self.lines
                {
                    lines.end();
                }
                if let Report::CoolOff { wait, .. } = &report {
                    self.cools_off = Some(self.given.clock.now() + *wait);
                }
                if matches!(
                    report,
                    Report::Following { .. }
                        | Report::HeldOutside { .. }
                        | Report::Elected { .. }
                        | Report::ElectionOver { .. }
                ) {
                    self.given.preference.is_taken();
                    self.transfer_failed = false;
                }
                self.reporter.report(report);
            }
            Effect::Finished => self.has_finished = true,
        }
    }

    /// Updates the elector's plan. While this node must not lead, the plan is empty, but prepared modules stay
    /// prepared.
    fn update_plan(&mut self) {
        let supply = self.given.supply.borrow_and_update().clone();
        let [module, fallback] = supply.versions();
        let plan = Plan { module, fallback };
        self.reporter.expects(plan.digest().filter(|_| self.given.one_module).map(str::to_owned));
        self.away = self.given.away.borrow_and_update().clone();
        let is_out = self.away.is_some() || self.stays_out.is_some();
        let serves = if is_out { Plan::default() } else { plan.clone() };
        self.elector.handle(self.given.now(), Input::Plan(serves));
        let new = [supply.current, supply.fallback].into_iter().flatten();
        self.at_hand.add(new.map(|one| (one.version().digest, one)));
        // The elector processes elapsed time first, so it may have decided to start a module from the previous plan.
        self.carry_out_effects();
        // If the elector refuses a version that was rejected on this node, its previous plan stays in force.
        let Plan { module, fallback: instead } = if is_out { &plan } else { self.elector.plan() };
        let planned: Vec<&str> =
            [module, instead].into_iter().flatten().map(|version| version.digest.as_str()).collect();
        self.at_hand.keep(&planned);
        self.given.tracker.set_module(self.at_hand.all().next().map(|one| one.module.digest()));
        self.given.launcher.runners.keep(&self.at_hand.all().map(|one| &one.module).collect::<Vec<_>>());
    }

    fn start(&mut self, term: Term, version: &ModuleVersion, deadline: Time, abort_at: Time) {
        // The elector knows only versions in this list, and each version is identified by its digest.
        let Some(Prepared { module, .. }) = self.at_hand.get(&version.digest) else {
            self.abort(&format!("cannot start module {}: it is not loaded, which is a bug in Baton", version.digest))
        };
        let lines = Deadline::new(self.given.clock.clone(), deadline);
        let output = self.reporter.output(term, module.digest(), &self.given.clock, lines.clone());
        self.lines = Some(lines);
        self.stalled = false;
        self.cools_off = None;
        let instance = self.given.launcher.start(module, term, deadline, abort_at, output);
        self.serving = Some(Serving { instance, term, module: module.digest() });
    }

    fn abort(&self, reason: &str) -> ! {
        let timing = &self.given.settings.timing;
        self.given.log.last_words(reason, timing.last_words());
        end_this_process();
    }

    fn judge(&self, judgement: Judgement) {
        // If there is no receiver, the host is about to exit.
        let _ = self.given.judgements.send(judgement);
    }

    fn request(&mut self, id: RequestId, op: Op, limit: Duration) {
        if self.must_defer(&op) {
            self.requests.spawn(std::future::ready(Input::NotSent { id }));
            return;
        }
        let (store, election) = (Arc::clone(&self.given.store), self.given.election.clone());
        let (tracker, clock) = (Arc::clone(&self.given.tracker), self.given.clock.clone());
        let (steering_watch, is_recall) = (Arc::clone(&self.given.steering_watch), matches!(op, Op::Recall));
        // If the node gets the lease, a term begins, and the term's instance first reads its state.
        let may_lead_to_a_term = matches!(op, Op::Survey | Op::Acquire { .. } | Op::Reclaim { .. });
        let read_ahead = may_lead_to_a_term.then(|| self.read_ahead_for_next_term());
        self.requests.spawn(async move {
            let (what, asked, sent) = (op.to_string(), StoreOp::from(&op), clock.now());
            let request = async {
                let answer = timeout(limit, store.request(&election, op)).await;
                (answer, clock.now().since(sent))
            };
            // Read steering commands before requesting the lease: during a recall, and after a survey that shows an
            // unknown version of the steering object.
            let request = async {
                if is_recall {
                    return futures::join!(request, steering_watch.read_within(limit / 2)).0;
                }
                let (answer, took) = request.await;
                match &answer {
                    Ok(Ok(Reply::Surveyed { steering, .. }))
                        if !steering_watch.knows(steering.as_ref())
                            && !steering_watch.read_within(limit.saturating_sub(took)).await =>
                    {
                        (Ok(Err(StoreError::Unknown("cannot read steering commands".to_owned()))), took)
                    }
                    _ => (answer, took),
                }
            };
            // The elector always needs a response. The request shares no state that a panic could leave inconsistent.
            let (result, took) = match AssertUnwindSafe(request).catch_unwind().await {
                Ok((Ok(result), took)) => (result, took),
                Ok((Err(_), took)) => {
                    let step = store.slow_step().map(|step| format!(": {step}")).unwrap_or_default();
                    (Err(StoreError::Unknown(format!("no response to the {what} within {limit:.1?}{step}"))), took)
                }
                Err(_) => {
                    let error = StoreError::Unknown(format!("the {what} panicked: a bug in the store's client"));
                    (Err(error), clock.now().since(sent))
                }
            };
            if let (Some(read_ahead), Err(_)) = (read_ahead, &result) {
                read_ahead.clear();
            }
            tracker.record_request(asked, &result, took);
            Input::Answer { id, result }
        });
    }

    /// Starts to read the state for the next term's instance, unless the read has already been started.
    fn read_ahead_for_next_term(&self) -> ReadAhead {
        let planned = self.elector.plan().module.as_ref().and_then(|version| self.at_hand.get(&version.digest));
        if let Some(Prepared { module, .. }) = planned {
            self.given.launcher.expects(module);
        }
        self.given.launcher.read_ahead.clone()
    }

    /// True if the request for the lease must wait, so that other nodes can go first.
    fn must_defer(&mut self, op: &Op) -> bool {
        match op {
            Op::Acquire { id, .. } | Op::Reclaim { id, .. } => {
                let now = self.given.clock.now();
                let called = self.hears.borrow().called(now).map(CommandOrigin::is_preference);
                // Only this node can reclaim the lease, so there is no other node to wait for.
                let is_free = matches!(op, Op::Acquire { .. });
                let may_wait = DeferRules {
                    for_priority: is_free && self.given.tracker.known().term > 0 && called.is_none(),
                    at_all: called != Some(false) && !self.transfer_failed,
                };
                match self.given.preference.asks(*id, now, may_wait) {
                    AcquireDecision::Now => false,
                    AcquireDecision::Later(why) => {
                        why.into_iter().for_each(|why| self.reporter.report(Report::Standby { reason: why }));
                        true
                    }
                }
            }
            // Only a follower sends these reads without holding the lease.
            Op::Read | Op::Survey if !self.elector.holds_lease() => {
                self.given.preference.follows();
                false
            }
            _ => false,
        }
    }

    /// Returns the input for an instance that has exited, or delays the input until the instance's lines have been
    /// written or dropped. So a term that ends in an orderly way loses no lines, as long as they are read in time.
    fn after_last_lines(&mut self, gone: Input) -> Option<Input> {
        // If the lease is lost in the meantime, the same deadline applies to the lines.
        let Some(lines) = self.lines.clone().filter(|_| self.given.log.has_lines()) else { return Some(gone) };
        let written = self.given.log.written();
        self.requests.spawn(async move {
            // After this, the writer drops and counts any remaining lines.
            let _ = timeout(LAST_LINES.min(lines.remaining()), written).await;
            lines.end();
            gone
        });
        None
    }

    fn instance_event(&mut self, event: InstanceEvent) -> Option<Input> {
        match event {
            InstanceEvent::Begun => Some(Input::Begun),
            InstanceEvent::StepDown(reason) => {
                Some(Input::StepDown { reason: format!("the coordinator requested this: {reason}") })
            }
            InstanceEvent::Dying => Some(Input::Dying),
            InstanceEvent::Gone(gone) => {
                let usage = self.serving.take().map(|Serving { instance, term, .. }| {
                    self.given.tracker.is_gone(term, instance.effects());
                    instance.usage()
                });
                let usage = usage.unwrap_or_default();
                self.reporter.gone(&gone, usage, self.given.clock.now());
                self.after_last_lines(Input::Gone { end: gone.end })
            }
        }
    }

    /// Returns the time at which the instance will count as stalled unless it makes progress before then.
    fn stalls_at(&self) -> Option<Time> {
        let stall_after = self.given.stall_after.filter(|_| !self.stalled)?;
        Some(self.serving.as_ref()?.instance.last_progress() + stall_after)
    }

    fn stall(&mut self) -> Option<Input> {
        let stalls_at = self.stalls_at()?;
        let stall_after = self.given.stall_after?;
        if self.given.clock.now() < stalls_at {
            return None;
        }
        self.stalled = true;
        Some(Input::Stalled { reason: format!("the coordinator made no progress for {stall_after:?}") })
    }
}
