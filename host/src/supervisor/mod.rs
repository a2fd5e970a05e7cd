//! The supervisor of one coordinator: carries out what its elector decides.
//!
//! It alone knows both the lease and the instance. It decides nothing: requests go to the store side by
//! side, each with its timeout; the instance is started, asked, killed; and everything that happens goes
//! back to the elector as an input. It runs on the control runtime, which no guest ever runs on.
//!
//! Waking a thread costs more than the work that it is woken for, most of all on a small machine that is busy. So the
//! supervisor itself writes the message that begins an instance, and itself sends the signal that kills it. The other
//! threads, the log's writer too, are woken afterwards.
//!
//! An instance is gone once its lines are written, too, or dropped: its lease is given up and another one of this node is
//! started only then. What nobody reads within [`LAST_LINES`], or by the term's deadline, is dropped.

mod at_hand;
mod preference;
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

use crate::links::{Candidate, Line};
use crate::maintenance::Away;
use crate::random::random;
use crate::steering::{Heard, Helm, StaysOut, TAKEN_WITHIN, Why};
use crate::telemetry::{Asked, BEAT_EVERY, LAST_LINES, Log, Standing};
use at_hand::AtHand;
use baton_modules::{Judgement, Prepared, Presence, Supply, Verdict};
use baton_runtime::{Instance, InstanceEvent, Launcher};
use baton_store::clock::Clock;
use baton_store::gate::{Deadline, end_this_process};
use baton_store::state::ReadAhead;
use baton_store::steering::Order;
use baton_store::{Digest, LeaseStore};
use preference::{Asks, MayWait};
pub use preference::{HIGHEST_PRIORITY, Leads, Preference};
use reporter::Reporter;

/// A node that holds a lease waits no longer than this without reading the clock while it has no instance: timers stop
/// while a machine sleeps, of which the watchdog tells each supervisor.
const LONGEST_WAIT_UNWATCHED: Duration = Duration::from_millis(250);

/// In so much time another takes a lease that it was told of as given up.
const MAKES_WAY: Duration = Duration::from_millis(100);

/// How urgently the host is asked to end. A level: it only rises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shutdown {
    /// Not at all.
    No,
    /// In order.
    Requested,
    /// In order, but without grace.
    Impatient,
}

/// What the supervisor of one coordinator is given.
pub struct Supervisor {
    /// The election that it takes part in.
    pub election: ElectionName,
    /// What its elector is told.
    pub settings: Settings,
    /// Where the lease is.
    pub store: Arc<dyn LeaseStore>,
    /// Starts instances.
    pub launcher: Launcher,
    /// What they may run, now and later.
    pub supply: watch::Receiver<Supply>,
    /// Whether all nodes should have the same module at any time, so that it is told where a leader has another.
    pub one_module: bool,
    /// Why this node is to take no part, for now.
    pub away: watch::Receiver<Away>,
    /// Takes what running a version has shown.
    pub judgements: mpsc::UnboundedSender<Judgement>,
    /// What it is asked by operators.
    pub helm: Arc<Helm>,
    /// Whether it lets other nodes have a free lease first.
    pub preference: Preference,
    /// Takes what other nodes are to know.
    pub presence: watch::Sender<Presence>,
    /// How long a running instance may stay silent.
    pub stall_after: Option<Duration>,
    /// The host's clock.
    pub clock: Clock,
    /// Where it tells of the election.
    pub log: Log,
    /// What it tells the other nodes, and hears of them.
    pub line: Line,
    /// What it tells those that watch the node from outside.
    pub standing: Arc<Standing>,
}

impl Supervisor {
    /// Takes part in the election until the host is asked to end, and ends in order: the instance gone,
    /// then the lease released.
    ///
    /// # Errors
    /// Where the system has no random numbers for lease ids.
    pub async fn run(self, shutdown: watch::Receiver<Shutdown>) -> Result<(), getrandom::Error> {
        let random = random(&self.settings.node)?;
        let elector = Elector::new(self.settings.clone(), self.now(), random);
        let reporter = Reporter::new(self.log.clone());
        let missed_by_timers = self.launcher.watchdog.missed_by_timers();
        let hears = self.helm.hears();
        let mut run = Run {
            given: self,
            missed_by_timers,
            elector,
            reporter,
            requests: JoinSet::new(),
            at_hand: AtHand::nothing(),
            serving: None,
            lines: None,
            stalled: false,
            hears,
            stays_out: None,
            over: None,
            gives_up: None,
            comes_back: false,
            away: None,
            cools_off: None,
            has_finished: false,
        };
        run.supplied();
        run.until_finished(shutdown).await;
        run.given.standing.heartbeat.end();
        Ok(())
    }

    fn now(&self) -> Now {
        let (time, least) = self.clock.both();
        Now { time, least, wall: self.clock.wall() }
    }
}

/// A supervisor at work.
struct Run {
    given: Supervisor,
    missed_by_timers: watch::Receiver<()>,
    elector: Elector,
    reporter: Reporter,
    /// What is asked of the store, and the wait for an instance's last lines; each ends with what the elector hears of it.
    requests: JoinSet<Input>,
    /// What the elector may start.
    at_hand: AtHand<Prepared>,
    serving: Option<Serving>,
    /// Until when the instance's lines may be written.
    lines: Option<Deadline>,
    /// Whether the instance was already reported as stalled.
    stalled: bool,
    hears: watch::Receiver<Heard>,
    /// Why this node is not to lead, for now, as operators ask.
    stays_out: Option<StaysOut>,
    /// What it has stayed out for already.
    over: Option<String>,
    /// What became of the lease that was held when this node began to stay out.
    gives_up: Option<GivesUp>,
    /// Whether it has just given the lease up for another node, and nobody has taken it.
    comes_back: bool,
    /// Why this node takes no part, for now, since its machine is about to be taken away.
    away: Away,
    /// Until when it does not contend by its own decision.
    cools_off: Option<Time>,
    /// Whether its elector has nothing more to do.
    has_finished: bool,
}

/// A lease that is given up since this node stays out.
enum GivesUp {
    /// It is held still.
    Holds,
    /// Since then it is not.
    Since(Time),
}

/// An instance, and what it runs.
struct Serving {
    instance: Instance,
    term: Term,
    module: Digest,
}

impl Run {
    async fn until_finished(&mut self, mut shutdown: watch::Receiver<Shutdown>) {
        let mut asked = Shutdown::No;
        loop {
            self.carry_all_out();
            if self.has_finished {
                // What is still under way can change nothing any more: nothing runs, nothing is held.
                self.requests.shutdown().await;
                // What this node has yet to write can wait: the store is busy with who takes the lease.
                if self.given.line.has_heir() {
                    sleep(MAKES_WAY).await;
                }
                return;
            }
            self.let_others_know(asked);
            if !self.elector.holds_lease() {
                self.given.launcher.handover.clear();
            }
            if self.elector.follows() && !self.elector.surveys() {
                self.given.launcher.expects_none();
            }
            let input = self.next_input(&mut shutdown, &mut asked).await;
            // What was heard by then comes first: an answer may be what the node takes the lease by.
            self.steer();
            if let Some(input) = input {
                self.elector.handle(self.given.now(), input);
            }
        }
    }

    /// Tells what runs here, and which term was seen, where that is news.
    fn let_others_know(&mut self, asked: Shutdown) {
        let term = self.elector.written_term();
        self.given.standing.goes_round(self.given.clock.now(), term, self.elector.deadline());
        let is_done = self.elector.follows() && self.serving.is_none();
        self.given.standing.is_out(self.away.is_some() && is_done);
        let runs = self.serving.as_ref().map(|serving| serving.module);
        let (steered, stays_out) = (self.hears.borrow().mark().map(str::to_owned), self.out());
        let leads_enough = self.given.preference.leads_enough();
        let listens = self.given.standing.listens_to();
        let is_ready = self.elector.plan().module.is_some() && stays_out.is_none();
        let candidate = Candidate { ready: is_ready, priority: self.given.preference.priority(), leads_enough };
        let leader = self.elector.leader();
        let leader = leader.map(|leader| (leader, self.given.standing.known().leader.unwrap_or_default()));
        self.given.line.wants(leader, candidate);
        let now = self.given.clock.now();
        self.given.standing.tidings.is_told(self.elector.listens_until().is_some_and(|until| now < until));
        // That nothing runs here any more is about to be said by taking the whole word back, and the store is busy with who
        // takes the lease.
        let is_leaving = asked > Shutdown::No && self.serving.is_none();
        self.given.presence.send_if_modified(|known| {
            if is_leaving && known.term == term {
                return false;
            }
            let before = std::mem::replace(known, Presence { runs, term, steered, stays_out, leads_enough, listens });
            before != *known
        });
    }

    /// What keeps this node from leading, in the word for it that others know.
    fn out(&self) -> Option<&'static str> {
        let now = self.given.clock.now();
        let cools_off = self.cools_off.filter(|until| now < *until && !self.elector.holds_lease());
        let cools_off = cools_off.map(|_| "cooling-off");
        // It says first what no request of an operator's ends.
        let away = self.away.as_ref().map(|_| "maintenance");
        away.or_else(|| self.stays_out.as_ref().map(|stays_out| stays_out.why.word())).or(cools_off)
    }

    /// Stays out, or not any more, as operators ask.
    fn steer(&mut self) {
        let now = self.given.clock.now();
        let mut stays_out = self.hears.borrow_and_update().stays_out(now);
        if matches!(self.gives_up, Some(GivesUp::Holds)) && !self.elector.holds_lease() {
            self.gives_up = Some(GivesUp::Since(now));
        }
        // A transfer whose lease nobody takes is over for who has given that up.
        if let (Some(StaysOut { why: Why::Transferring(..), until }), Some(GivesUp::Since(since))) =
            (&mut stays_out, &self.gives_up)
        {
            *until = until.map(|until| until.min(*since + TAKEN_WITHIN));
        }
        let is_over = |StaysOut { why, until }: &StaysOut| {
            until.is_some_and(|until| until <= now) || self.over.as_ref() == Some(&why.order().id)
        };
        let stays_out = stays_out.filter(|stays_out| !is_over(stays_out));
        let why = |stays_out: &Option<StaysOut>| stays_out.as_ref().map(|stays_out| stays_out.why.clone());
        let before = std::mem::replace(&mut self.stays_out, stays_out);
        let (before, next) = (why(&before), why(&self.stays_out));
        if before == next {
            return;
        }
        // A suspension lasts for as long as it stands there, also where what had gone is put back.
        if let (Some(Why::SteppedDown(order) | Why::Transferring(order, _)), None) = (&before, &next) {
            self.over = Some(order.id.clone());
        }
        // Whoever made room, and stands there without a successor, lets nobody else be first once more.
        if matches!((&before, &next, &self.gives_up), (Some(Why::Transferring(..)), None, Some(GivesUp::Since(_)))) {
            self.comes_back = self.given.standing.known().leader.is_none();
        }
        self.gives_up = next.is_some().then_some(GivesUp::Holds).filter(|_| self.elector.holds_lease());
        let wait = self.stays_out.as_ref().and_then(|stays_out| stays_out.until).map(|until| until.since(now));
        self.reporter.steered(before.as_ref(), next.as_ref(), wait);
        self.given.standing.stays_out(next.map(|why| why.told()));
        self.supplied();
    }

    /// Waits for whatever comes first.
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
            // A host that must end and an instance that is gone come before the store's answers.
            biased;
            Ok(level) = shutdown.wait_for(|level| *level > known) => {
                *asked = *level;
                Some(if *level == Shutdown::Impatient { Input::SkipGrace } else { Input::Shutdown })
            }
            event = event => self.instance_event(event),
            Ok(()) = self.given.supply.changed() => {
                self.supplied();
                None
            }
            Ok(()) = self.hears.changed() => None,
            Ok(()) = self.given.away.changed() => {
                self.supplied();
                None
            }
            // They are cancelled at the end only, when nobody asks for the next.
            Some(answer) = self.requests.join_next() => answer.ok(),
            () = store.hint(&election) => Some(Input::Hint(Hint::Look)),
            hint = self.given.line.heard() => Some(Input::Hint(hint)),
            Ok(()) = self.missed_by_timers.changed() => Some(self.stall().unwrap_or(Input::Tick)),
            () = sleep(wait) => Some(self.stall().unwrap_or(Input::Tick)),
        }
    }

    fn wait(&self) -> Duration {
        let now = self.given.clock.now();
        let is_watched = self.serving.is_some();
        let longest = if self.elector.holds_lease() && !is_watched { LONGEST_WAIT_UNWATCHED } else { BEAT_EVERY };
        let comes_back = self.stays_out.as_ref().and_then(|stays_out| stays_out.until);
        let next = [self.elector.next_wakeup(), self.stalls_at(), comes_back].into_iter().flatten().min();
        next.map_or(longest, |next| next.since(now).min(longest))
    }

    /// Does what the elector has decided.
    fn carry_all_out(&mut self) {
        // What is to be done comes before the lines about it are written: an instance starts, or is killed, without waking
        // the writing thread first.
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
                    // The kill first: no effect may pass while words are found for it.
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
                    Some(StaysOut { why: Why::Transferring(_, to), .. }) => Some(to.as_str()),
                    _ => None,
                };
                self.given.line.tell(&word, self.given.clock.now(), to);
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
                    self.comes_back = false;
                }
                self.reporter.report(report);
            }
            Effect::Finished => self.has_finished = true,
        }
    }

    /// Tells the elector what there is to be served: nothing while this node stays out. What it holds ready it keeps.
    fn supplied(&mut self) {
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
        // It may have decided to start what it knew before: at this very moment, since time comes first.
        self.carry_all_out();
        // What was rejected here it does not take back, and then goes on with what it knew before.
        let Plan { module, fallback: instead } = if is_out { &plan } else { self.elector.plan() };
        let planned: Vec<&str> =
            [module, instead].into_iter().flatten().map(|version| version.digest.as_str()).collect();
        self.at_hand.keep(&planned);
        self.given.standing.would_run(self.at_hand.all().next().map(|one| one.module.digest()));
        self.given.launcher.runners.keep(&self.at_hand.all().map(|one| &one.module).collect::<Vec<_>>());
    }

    fn start(&mut self, term: Term, version: &ModuleVersion, deadline: Time, abort_at: Time) {
        // The elector knows of nothing else, and a version is what its digest says.
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
        // Where nobody takes it any more, the host is about to end.
        let _ = self.given.judgements.send(judgement);
    }

    fn request(&mut self, id: RequestId, op: Op, limit: Duration) {
        if self.lets_others_ask(&op) {
            self.requests.spawn(std::future::ready(Input::NotSent { id }));
            return;
        }
        let (store, election) = (Arc::clone(&self.given.store), self.given.election.clone());
        let (standing, clock) = (Arc::clone(&self.given.standing), self.given.clock.clone());
        let (helm, is_recall) = (Arc::clone(&self.given.helm), matches!(op, Op::Recall));
        // With the lease comes a term, whose instance begins with its state.
        let may_lead_to_a_term = matches!(op, Op::Survey | Op::Acquire { .. } | Op::Reclaim { .. });
        let read_ahead = may_lead_to_a_term.then(|| self.expects_a_term());
        self.requests.spawn(async move {
            let (what, asked, sent) = (op.to_string(), Asked::from(&op), clock.now());
            let request = async {
                let answer = timeout(limit, store.request(&election, op)).await;
                (answer, clock.now().since(sent))
            };
            // Before the lease is asked for, it is read what operators ask: beside a recall, and after a survey that has
            // shown another version of it than is known.
            let request = async {
                if is_recall {
                    return futures::join!(request, helm.look_before(limit / 2)).0;
                }
                let (answer, took) = request.await;
                match &answer {
                    Ok(Ok(Reply::Surveyed { steering, .. }))
                        if !helm.knows(steering.as_ref()) && !helm.look_before(limit.saturating_sub(took)).await =>
                    {
                        (Ok(Err(StoreError::Unknown("cannot read steering commands".to_owned()))), took)
                    }
                    _ => (answer, took),
                }
            };
            // Whatever becomes of it, the elector waits for an answer. Nothing that the request leaves half done
            // is ours, so going on after its panic breaks nothing here.
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
            standing.was_asked(asked, &result, took);
            Input::Answer { id, result }
        });
    }

    /// Begins what the next term's instance would wait for, if that has not begun: the state that it begins with is read.
    fn expects_a_term(&self) -> ReadAhead {
        let planned = self.elector.plan().module.as_ref().and_then(|version| self.at_hand.get(&version.digest));
        if let Some(Prepared { module, .. }) = planned {
            self.given.launcher.expects(module);
        }
        self.given.launcher.read_ahead.clone()
    }

    /// Whether a request for the lease is to wait until others had their chance.
    fn lets_others_ask(&mut self, op: &Op) -> bool {
        match op {
            Op::Acquire { id, .. } | Op::Reclaim { id, .. } => {
                let now = self.given.clock.now();
                let called = self.hears.borrow().called(now).map(Order::is_preference);
                // Nobody else can go on with the lease of who was this node.
                let is_free = matches!(op, Op::Acquire { .. });
                let may_wait = MayWait {
                    for_priority: is_free && self.given.standing.known().term > 0 && called.is_none(),
                    at_all: called != Some(false) && !self.comes_back,
                };
                match self.given.preference.asks(*id, now, may_wait) {
                    Asks::Now => false,
                    Asks::Later(why) => {
                        why.into_iter().for_each(|why| self.reporter.report(Report::Standby { reason: why }));
                        true
                    }
                }
            }
            // Only who follows reads without a lease.
            Op::Read | Op::Survey if !self.elector.holds_lease() => {
                self.given.preference.follows();
                false
            }
            _ => false,
        }
    }

    /// What the elector hears of an instance that is gone, once nothing of it can come any more: its lines are written, and
    /// those that nobody reads are dropped. The orderly end of a term loses none otherwise.
    fn after_last_lines(&mut self, gone: Input) -> Option<Input> {
        // Whoever learns meanwhile that the lease is lost ends them through the same deadline.
        let Some(lines) = self.lines.clone().filter(|_| self.given.log.has_lines()) else { return Some(gone) };
        let written = self.given.log.written();
        self.requests.spawn(async move {
            // What is late then is dropped, which the writer counts.
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
                    self.given.standing.is_gone(term, instance.effects());
                    instance.usage()
                });
                let usage = usage.unwrap_or_default();
                self.reporter.gone(&gone, usage, self.given.clock.now());
                self.after_last_lines(Input::Gone { end: gone.end })
            }
        }
    }

    /// When the instance counts as stalled, unless it makes progress before.
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
