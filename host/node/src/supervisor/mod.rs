//! The supervisor of one coordinator: carries out the decisions of its elector.
//!
//! The supervisor is the only part that knows both the lease and the instance. It decides nothing but the host's quota.
//! It sends requests to the store concurrently, each with a timeout, and starts, stops and kills the instance. Every
//! result goes back to the elector as an input. The supervisor runs on the control runtime, on which no guest ever
//! runs.
//!
//! Waking a thread costs more than the work for which it is woken, especially on a small, busy machine. The supervisor
//! therefore writes the message that starts an instance, and sends the signal that kills it, on its own thread. Other
//! threads, including the log's writer, are woken afterwards.
//!
//! An instance counts as gone only once its lines have been written or dropped. Only then is its lease released or
//! another instance started. Lines that are not read within [`LAST_LINES`], or before the term's deadline, are dropped.

mod quota;
mod ready_modules;
mod reporter;

use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{
    Effect, ElectionName, Elector, Eligibility, Hint, IneligibleCause, Input, ModuleVersion, Now, Op, Plan, Reply,
    Report, RequestId, Settings, StoreError, Term, Time,
};
use futures::FutureExt as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::links::{Candidate, LinkHandle};
use crate::maintenance::Drained;
use crate::random::random;
use crate::steering::{SteeringState, SteeringWatch};
use crate::telemetry::{BEAT_EVERY, ElectionTracker, LAST_LINES, Log, StoreOp};
use baton_modules::{Judgement, Prepared, SupervisorState, Supply, Verdict};
use baton_runtime::{InstanceEvent, InstanceHandle, Launch};
use baton_store::clock::Clock;
use baton_store::gate::{Deadline, end_this_process};
use baton_store::{Digest, LeaseStore};
pub use quota::LeadershipQuota;
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
    pub launcher: Arc<dyn Launch>,
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
    /// The node's priority. Nodes with a higher priority take a free lease earlier.
    pub priority: u8,
    /// The elections that this host may lead at the same time.
    pub quota: LeadershipQuota,
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
        let missed_by_timers = self.launcher.missed_by_timers();
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
            steering: SteeringState::default(),
            is_drained: false,
            eligibility: Eligibility::default(),
            has_finished: false,
        };
        run.update_eligibility();
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
    /// The operators' commands in the last eligibility.
    steering: SteeringState,
    /// True if this node is drained for maintenance.
    is_drained: bool,
    /// The eligibility that the elector knows.
    eligibility: Eligibility,
    has_finished: bool,
}

struct Serving {
    instance: Box<dyn InstanceHandle>,
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
            if self.elector.follows() {
                self.given.quota.give_back(&self.given.election);
            }
            if !self.elector.holds_lease() {
                self.given.launcher.clear_handover();
            }
            if self.elector.follows() && !self.elector.surveys() {
                self.given.launcher.expects_none();
            }
            let input = self.next_input(&mut shutdown, &mut asked).await;
            // Pass on steering commands first: this input may be the response that makes the node acquire the lease.
            self.update_eligibility();
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
        self.given.tracker.is_out(self.is_drained && is_done);
        let runs = self.serving.as_ref().map(|serving| serving.module);
        let steered = self.steering.mark().map(str::to_owned);
        let stays_out = self.elector.ineligible().map(IneligibleCause::word);
        let leads_enough = self.given.quota.is_full(&self.given.election);
        let listens = self.given.tracker.listens_to();
        let is_ready = self.elector.plan().module.is_some() && stays_out.is_none();
        let candidate = Candidate { ready: is_ready, priority: self.given.priority, leads_enough };
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
            Ok(()) = self.given.away.changed() => None,
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
        let next = [self.elector.next_wakeup(), self.stalls_at()].into_iter().flatten().min();
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
            Effect::Request { id, op, timeout, within_quota } => self.request(id, op, timeout, within_quota),
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
                let to = match self.elector.command().map(|command| &command.cause) {
                    Some(IneligibleCause::Transferring { to }) => Some(to.as_str()),
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
                if let Report::Ineligible { ineligibility, wait } = &report {
                    self.given.tracker.stays_out(Some(ineligibility.reason.clone()));
                    if let Some(command) = self.steering.event(ineligibility, *wait) {
                        self.reporter.say(command);
                    }
                }
                if let Report::Eligible { .. } = &report {
                    self.given.tracker.stays_out(None);
                }
                self.reporter.report(report);
            }
            Effect::Finished => self.has_finished = true,
        }
    }

    /// Passes the operators' commands and the maintenance to the elector, if they have changed.
    fn update_eligibility(&mut self) {
        self.steering = self.hears.borrow_and_update().clone();
        let drained = self.given.away.borrow_and_update().clone();
        self.is_drained = drained.is_some();
        let eligibility = self.steering.eligibility(self.given.priority, drained.as_deref());
        if eligibility != self.eligibility {
            self.eligibility = eligibility.clone();
            self.elector.handle(self.given.now(), Input::Eligibility(eligibility));
        }
    }

    /// Updates the elector's plan.
    fn update_plan(&mut self) {
        let supply = self.given.supply.borrow_and_update().clone();
        let [module, fallback] = supply.versions();
        let plan = Plan { module, fallback };
        self.reporter.expects(plan.digest().filter(|_| self.given.one_module).map(str::to_owned));
        self.elector.handle(self.given.now(), Input::Plan(plan));
        let new = [supply.current, supply.fallback].into_iter().flatten();
        self.at_hand.add(new.map(|one| (one.version().digest, one)));
        // The elector processes elapsed time first, so it may have decided to start a module from the previous plan.
        self.carry_out_effects();
        // If the elector refuses a version that was rejected on this node, its previous plan stays in force.
        let Plan { module, fallback: instead } = self.elector.plan();
        let planned: Vec<&str> =
            [module, instead].into_iter().flatten().map(|version| version.digest.as_str()).collect();
        self.at_hand.keep(&planned);
        self.given.tracker.set_module(self.at_hand.all().next().map(|one| one.module.digest()));
        self.given.launcher.keep(&self.at_hand.all().map(|one| &one.module).collect::<Vec<_>>());
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

    fn request(&mut self, id: RequestId, op: Op, limit: Duration, within_quota: bool) {
        let (store, election) = (Arc::clone(&self.given.store), self.given.election.clone());
        if matches!(op, Op::Acquire { .. } | Op::Reclaim { .. })
            && let Err(reason) = self.given.quota.reserve(&election, !within_quota)
        {
            self.requests.spawn(std::future::ready(Input::NotSent { id, reason }));
            return;
        }
        let (tracker, clock) = (Arc::clone(&self.given.tracker), self.given.clock.clone());
        let (steering_watch, is_recall) = (Arc::clone(&self.given.steering_watch), matches!(op, Op::Recall));
        // If the node gets the lease, a term begins, and the term's instance first reads its state.
        let may_lead_to_a_term = matches!(op, Op::Survey | Op::Acquire { .. } | Op::Reclaim { .. });
        let launcher = may_lead_to_a_term.then(|| self.prepare_for_next_term());
        self.requests.spawn(async move {
            let (what, asked, sent) = (op.to_string(), StoreOp::from(&op), clock.now());
            let request = async {
                let answer = timeout(limit, store.request(&election, op)).await;
                (answer, clock.now().since(sent))
            };
            // Read steering commands before the elector requests the lease: during a recall, and after a survey that
            // shows an unknown version of the steering object. The elector ignores a survey if that read fails.
            let request = async {
                if is_recall {
                    return futures::join!(request, steering_watch.read_within(limit / 2)).0;
                }
                let (answer, took) = request.await;
                if let Ok(Ok(Reply::Surveyed { steering, .. })) = &answer
                    && !steering_watch.knows(steering.as_ref())
                {
                    steering_watch.read_within(limit.saturating_sub(took)).await;
                }
                (answer, took)
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
            if let (Some(launcher), Err(_)) = (launcher, &result) {
                launcher.expects_none();
            }
            tracker.record_request(asked, &result, took);
            Input::Answer { id, result }
        });
    }

    /// Lets the launcher prepare for the next term's instance, unless it has already begun.
    fn prepare_for_next_term(&self) -> Arc<dyn Launch> {
        let planned = self.elector.plan().module.as_ref().and_then(|version| self.at_hand.get(&version.digest));
        if let Some(Prepared { module, .. }) = planned {
            self.given.launcher.expects(module);
        }
        Arc::clone(&self.given.launcher)
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
