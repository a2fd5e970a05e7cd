//! The supervisor of one coordinator: carries out the decisions of its elector.
//!
//! The supervisor is the only part that knows both the lease and the instance. The only decision that it makes itself
//! is about the host's quota of elections to lead. The supervisor sends requests to the store concurrently, each with a
//! timeout, and starts, stops and kills the instance. Every result goes back to the elector as an input. The supervisor
//! runs on the control runtime, on which no coordinator ever runs.
//!
//! Waking a thread costs more than the work that it is woken for, especially on a small, busy machine. The supervisor
//! therefore writes the message that starts an instance, and sends the signal that kills it, on its own thread. The
//! supervisor wakes other threads, including the log's writer, only afterwards.
//!
//! An instance counts as exited only once its lines have been written or dropped. Until then, the lease is not
//! released, and no other instance starts. Lines that are not written within 0.5 s, or before the term's deadline, are
//! dropped.

mod instance;
mod output;
mod quota;
mod ready_modules;
mod requests;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{
    Effect, ElectionName, Elector, Eligibility, Hint, IneligibleCause, Input, Now, Plan, Record, Report,
    ScheduleCommands, Settings, Snapshot, Term,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::balance::ShardBalance;
use crate::links::{Candidacy, LinkHandle};
use crate::maintenance::Drained;
use crate::random::random;
use crate::steering::{SteeringState, SteeringWatch};
use crate::telemetry::{BEAT_EVERY, ElectionTracker, Event, Log};
use crate::view::{NodeView, snapshot};
use baton_base::clock::{Clock, rfc3339_seconds};
use baton_base::gate::{Deadline, end_this_process};
use baton_modules::{Judgement, PreparedVersion, Supply, Verdict};
use baton_runtime::{InstanceEvent, Launch};
use baton_store::LeaseStore;
use baton_store::steering::{CommandOrigin, Trigger};
use instance::Serving;
use output::Replaced;
pub use quota::LeadershipQuota;
use ready_modules::ReadyModules;

/// Maximum interval at which to read the clock while the node holds a lease but runs no instance. Timers stop while the
/// machine sleeps, so only the clock reveals that the machine has slept. While an instance runs, these reads are not
/// needed: after a sleep, the watchdog notifies the supervisor.
const LONGEST_WAIT_UNWATCHED: Duration = Duration::from_millis(250);

/// Upper bound on the time that a successor needs to acquire a released lease after it is notified.
const SUCCESSOR_ACQUIRES_WITHIN: Duration = Duration::from_millis(100);

/// Urgency of the request to shut down the host. The urgency never decreases.
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
    /// The modules to run, which change over time.
    pub supply: watch::Receiver<Supply>,
    /// True if all nodes are expected to run the same module. The node then logs any difference.
    pub one_module: bool,
    /// The reason why this node is drained, if it is.
    pub drained: watch::Receiver<Drained>,
    /// The channel for judgements on versions.
    pub judgements: mpsc::UnboundedSender<Judgement>,
    /// The operators' steering commands.
    pub steering_watch: Arc<SteeringWatch>,
    /// The node's priority. Nodes with a higher priority take a free lease earlier.
    pub priority: u8,
    /// The shard's part in the balance of its group.
    pub share: watch::Receiver<ShardBalance>,
    /// The limit on the number of elections that this host leads at the same time.
    pub quota: LeadershipQuota,
    /// Time without progress after which an instance counts as stalled; `None` for no limit.
    pub stall_after: Option<Duration>,
    /// The host's clock.
    pub clock: Clock,
    /// The election's log.
    pub log: Log,
    /// The links for the election.
    pub link: LinkHandle,
    /// Makes this node's views available to observers, such as the metrics.
    pub tracker: Arc<ElectionTracker>,
}

impl Supervisor {
    /// Takes part in the election until the host must shut down. Then ends the instance, and afterwards releases the
    /// lease.
    ///
    /// # Errors
    /// If the system cannot provide random numbers for lease ids.
    pub async fn run(self, shutdown: watch::Receiver<Shutdown>) -> Result<(), getrandom::Error> {
        let random = random(&self.settings.node)?;
        let elector = Elector::new(self.settings.clone(), self.now(), random);
        let missed_by_timers = self.launcher.missed_by_timers();
        let states = self.steering_watch.states();
        let mut run = Run {
            config: self,
            missed_by_timers,
            elector,
            view: NodeView::default(),
            requests: JoinSet::new(),
            ready_modules: ReadyModules::nothing(),
            serving: None,
            lines: None,
            replaced: None,
            term: None,
            states,
            steering: SteeringState::default(),
            is_drained: false,
            eligibility: Eligibility::default(),
            schedule_commands: ScheduleCommands::default(),
            shutdown_level: Shutdown::No,
            has_finished: false,
        };
        run.update_eligibility();
        run.update_plan();
        run.until_finished(shutdown).await;
        run.config.tracker.heartbeat.end();
        Ok(())
    }

    fn now(&self) -> Now {
        let (time, least) = self.clock.both();
        Now { time, least, wall: self.clock.wall() }
    }
}

struct Run {
    config: Supervisor,
    missed_by_timers: watch::Receiver<()>,
    elector: Elector,
    view: NodeView,
    /// Requests to the store, and the wait for an instance's last lines. Each yields an input for the elector.
    requests: JoinSet<Input>,
    ready_modules: ReadyModules<PreparedVersion>,
    serving: Option<Serving>,
    /// The deadline for writing the lines that the instance has printed.
    lines: Option<Deadline>,
    /// The last instance, if another version is about to replace it.
    replaced: Option<Replaced>,
    /// The term to which this node's events belong: the current term or, until the node is a standby again, the last
    /// one.
    term: Option<Term>,
    states: watch::Receiver<SteeringState>,
    /// The operators' commands from which the eligibility was last computed.
    steering: SteeringState,
    is_drained: bool,
    eligibility: Eligibility,
    /// The commands about scheduled runs that were last passed to the elector.
    schedule_commands: ScheduleCommands,
    shutdown_level: Shutdown,
    has_finished: bool,
}

#[expect(clippy::large_enum_variant, reason = "only one value exists at a time")]
enum News {
    Instance(InstanceEvent),
    Supply,
    Input(Input),
    Tick,
    /// Commands or maintenance may have changed: see [`Run::update_eligibility`].
    Eligibility,
}

impl Run {
    async fn until_finished(&mut self, mut shutdown: watch::Receiver<Shutdown>) {
        // Act before logging: start or kill an instance, and publish the view, before the log's thread wakes.
        let mut hold = self.config.log.hold();
        loop {
            self.carry_out_effects();
            self.publish();
            drop(hold);
            if self.has_finished {
                // Cancel pending requests, which no longer matter: no instance is running, and this node holds no
                // lease.
                self.requests.shutdown().await;
                // Let the successor's requests reach the store first. This node's remaining writes can wait.
                if self.config.link.has_heir() {
                    sleep(SUCCESSOR_ACQUIRES_WITHIN).await;
                }
                return;
            }
            if self.elector.follows() {
                self.config.quota.give_back(&self.config.election);
            }
            if !self.elector.holds_lease() {
                self.config.launcher.clear_handover();
            }
            if self.elector.follows() && !self.elector.surveys() {
                self.config.launcher.expects_none();
            }
            let news = self.news(&mut shutdown).await;
            hold = self.config.log.hold();
            let input = self.input(news);
            // Pass steering commands to the elector first: this input may be the response that makes the node acquire
            // the lease.
            self.update_eligibility();
            if let Some(input) = input {
                self.elector.handle(self.config.now(), input);
            }
        }
    }

    fn publish(&mut self) {
        let now = self.config.clock.now();
        let is_done = self.elector.follows() && self.serving.is_none();
        self.view = NodeView {
            term: self.elector.written_term(),
            progress: self.elector.progress().cloned().map(Box::new),
            failures: self.elector.failures(),
            deadline: self.elector.deadline(),
            instance: self.serving.as_ref().map(Serving::view),
            module: self.ready_modules.all().next().map(|one| one.module.digest()),
            command: self.elector.command().map(|command| command.reason.clone()),
            ineligible: self.elector.ineligible().map(IneligibleCause::word),
            steered: self.steering.mark().map(str::to_owned),
            at_leadership_limit: self.config.quota.is_full(&self.config.election),
            link: self.config.tracker.links().link,
            is_drained: self.is_drained && is_done,
            is_leaving: self.shutdown_level > Shutdown::No && self.serving.is_none(),
            ..std::mem::take(&mut self.view)
        };
        self.config.tracker.publish(now, &self.view);
        let candidacy = Candidacy {
            ready: self.elector.plan().module.is_some() && self.view.ineligible.is_none(),
            priority: self.config.priority,
            at_leadership_limit: self.view.at_leadership_limit,
        };
        let leader = self.elector.leader();
        let leader = leader.map(|leader| (leader, self.view.leader.clone().unwrap_or_default()));
        self.config.link.wants(leader, candidacy);
        self.config.tracker.notifier.is_told(self.elector.listens_until().is_some_and(|until| now < until));
    }

    async fn news(&mut self, shutdown: &mut watch::Receiver<Shutdown>) -> News {
        let wait = self.wait();
        let known = self.shutdown_level;
        let event = async {
            match &mut self.serving {
                Some(serving) => serving.handle.next_event().await,
                None => pending().await,
            }
        };
        let (store, election) = (Arc::clone(&self.config.store), self.config.election.clone());
        tokio::select! {
            // Handle a shutdown or the end of an instance before responses from the store.
            biased;
            Ok(level) = shutdown.wait_for(|level| *level > known) => {
                self.shutdown_level = *level;
                News::Input(if *level == Shutdown::Impatient { Input::SkipGrace } else { Input::Shutdown })
            }
            event = event => News::Instance(event),
            Ok(()) = self.config.supply.changed() => News::Supply,
            Ok(()) = self.states.changed() => News::Eligibility,
            Ok(()) = self.config.drained.changed() => News::Eligibility,
            Ok(()) = self.config.share.changed() => News::Eligibility,
            // A request is cancelled only at shutdown, when its response is no longer needed.
            Some(Ok(answer)) = self.requests.join_next() => News::Input(answer),
            () = store.hint(&election) => News::Input(Input::Hint(Hint::Look)),
            hint = self.config.link.hints() => News::Input(Input::Hint(hint)),
            Ok(()) = self.missed_by_timers.changed() => News::Tick,
            () = sleep(wait) => News::Tick,
        }
    }

    fn input(&mut self, news: News) -> Option<Input> {
        match news {
            News::Instance(event) => self.instance_event(event),
            News::Supply => {
                self.update_plan();
                None
            }
            News::Eligibility => None,
            News::Input(input) => {
                if let Input::Answer { result, .. } = &input {
                    self.view.note_answer(result);
                    if let (None, Some(Snapshot::Object { record: Some(record), .. })) =
                        (self.view.leads, snapshot(result))
                    {
                        self.config.tracker.terms.has_read(record);
                    }
                }
                Some(input)
            }
            News::Tick => Some(self.stall().unwrap_or(Input::Tick)),
        }
    }

    fn wait(&self) -> Duration {
        let now = self.config.clock.now();
        let is_watched = self.serving.is_some();
        let longest = if self.elector.holds_lease() && !is_watched { LONGEST_WAIT_UNWATCHED } else { BEAT_EVERY };
        let next = [self.elector.next_wakeup(), self.stalls_at()].into_iter().flatten().min();
        next.map_or(longest, |next| next.since(now).min(longest))
    }

    fn carry_out_effects(&mut self) {
        while let Some(effect) = self.elector.poll_effect() {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Request { id, op, timeout, within_quota } => self.request(id, op, timeout, within_quota),
            Effect::Start { term, version, run, deadline, abort_at } => {
                self.start(term, &version, run, deadline, abort_at);
            }
            Effect::Extend { deadline, abort_at } => {
                if let Some(serving) = &self.serving {
                    serving.handle.extend(deadline, abort_at);
                }
                if let Some(lines) = &self.lines {
                    lines.extend(deadline);
                }
            }
            Effect::Stop { reason, message, grace_ends, next } => self.stop(reason, message, grace_ends, next),
            Effect::Kill { reason } => self.kill(reason),
            Effect::Abort { reason } => self.abort(&reason),
            Effect::Prove { version, term } => {
                self.log(Event::VersionAccepted { module: version.digest.clone() });
                self.judge(Judgement { version, term, verdict: Verdict::Good });
            }
            Effect::Reject { version, term, reason, instead } => {
                let fallback = instead.map(|instead| instead.digest);
                let module = version.digest.clone();
                self.log(Event::VersionRejected { module, reason: reason.clone(), fallback });
                self.judge(Judgement { version, term, verdict: Verdict::Rejected { reason } });
            }
            Effect::Tell(word) => {
                let to = match self.elector.command().map(|command| &command.cause) {
                    Some(IneligibleCause::Transferring { to }) => Some(to.as_str()),
                    _ => None,
                };
                self.config.link.tell(&word, self.config.clock.now(), to);
            }
            Effect::Report(report) => self.report(report),
            Effect::Finished => self.has_finished = true,
        }
    }

    fn report(&mut self, report: Report) {
        let leads_before = self.view.leads;
        self.view.note_report(&report);
        if matches!(report, Report::Lost { .. } | Report::Standby { .. })
            && let Some(lines) = &self.lines
        {
            lines.end();
        }
        match &report {
            Report::Elected { record } => {
                self.term = Some(record.term);
                // A term in which the leader only waits for the next run has no history.
                if !self.waits_for_run(record) {
                    let due = record.run().map(|run| run.due);
                    self.config.tracker.terms.begins(record.term, record.module.as_deref(), due);
                }
            }
            Report::Lost { reason, .. } => self.config.tracker.terms.is_ending(&format!("lost: {reason}")),
            Report::Ineligible { ineligibility, wait } => {
                if let Some(CommandOrigin { by, reason, .. }) = self.steering.origin(ineligibility).cloned() {
                    self.log(Event::ineligible(&ineligibility.cause, (Some(by), reason), *wait));
                }
            }
            _ => {}
        }
        // A single input can both start a leadership and end it. Publish the view after each change, because the
        // tracker counts changes by comparing views.
        if self.view.leads != leads_before {
            self.config.tracker.publish(self.config.clock.now(), &self.view);
        }
        let is_standby = matches!(report, Report::Standby { .. });
        let expected = self.elector.plan().digest().filter(|_| self.config.one_module);
        for (term, event) in Event::reported(report, expected) {
            self.config.log.emit(term.or(self.term), event);
        }
        if is_standby {
            (self.term, self.replaced) = (None, None);
        }
    }

    /// True if the term has no instance, because no scheduled run is due.
    fn waits_for_run(&self, record: &Record) -> bool {
        let is_scheduled = self.config.settings.schedule.is_some();
        is_scheduled && record.progress.as_ref().is_none_or(|progress| progress.unfinished().is_none())
    }

    fn log(&self, event: Event) {
        self.config.log.emit(self.term, event);
    }

    fn update_eligibility(&mut self) {
        self.steering = self.states.borrow_and_update().clone();
        if self.config.settings.schedule.is_some() {
            self.update_schedule();
        }
        let drained = self.config.drained.borrow_and_update().clone();
        self.is_drained = drained.is_some();
        let mut eligibility =
            self.steering.eligibility(self.config.election.shard(), self.config.priority, drained.as_deref());
        self.config.share.borrow_and_update().apply(&mut eligibility);
        if eligibility != self.eligibility {
            self.eligibility = eligibility.clone();
            self.elector.handle(self.config.now(), Input::Eligibility(eligibility));
        }
    }

    /// Passes the operators' commands about scheduled runs to the elector, if they have changed.
    fn update_schedule(&mut self) {
        let commands = self.steering.schedule_commands();
        if commands == self.schedule_commands {
            return;
        }
        let is_triggered = commands.trigger != self.schedule_commands.trigger && self.view.leads.is_some();
        if let Some(Trigger { order, .. }) = self.steering.trigger().filter(|_| is_triggered) {
            let (by, reason) = (Some(order.by.clone()), order.reason.clone());
            self.log(Event::NextRun { due: commands.trigger.map(rfc3339_seconds), by, reason });
        }
        self.schedule_commands = commands.clone();
        self.elector.handle(self.config.now(), Input::Schedule(commands));
    }

    /// Passes the supplied versions to the elector as its plan, and discards modules that are no longer planned.
    fn update_plan(&mut self) {
        let supply = self.config.supply.borrow_and_update().clone();
        let [module, fallback] = supply.versions();
        let plan = Plan { module, fallback };
        self.elector.handle(self.config.now(), Input::Plan(plan));
        let new = [supply.current, supply.fallback].into_iter().flatten();
        self.ready_modules.add(new.map(|one| (one.version().digest, one)));
        // When the elector receives a plan, it first acts on the time that has passed. It may therefore have decided to
        // start a module from the previous plan. Start that module before `keep` discards it.
        self.carry_out_effects();
        // Read the plan back from the elector: if this node has rejected the new module, the elector keeps its previous
        // plan.
        let Plan { module, fallback: instead, .. } = self.elector.plan();
        let planned: Vec<&str> =
            [module, instead].into_iter().flatten().map(|version| version.digest.as_str()).collect();
        self.ready_modules.keep(&planned);
        self.config.launcher.keep(&self.ready_modules.all().map(|one| &one.module).collect::<Vec<_>>());
    }

    fn abort(&self, reason: &str) -> ! {
        let timing = &self.config.settings.timing;
        self.config.log.last_words(reason, timing.last_words());
        end_this_process();
    }

    fn judge(&self, judgement: Judgement) {
        // Ignore the error: if there is no receiver, the host is about to exit.
        let _ = self.config.judgements.send(judgement);
    }
}
