//! Instances, as their host sees them: one running copy of a module in a process of its own, from its start until it is
//! gone.
//!
//! A task of the host attends to each: it hears what the runner says, does what the instance needs the host for, and
//! knows when it has ended. The kill itself waits for no task: it closes the page and sends SIGKILL through a pidfd.
//!
//! An instance is gone when its process is reaped, all that the process had sent is read, and no commit that the host
//! began for it is under way. A process that the kernel cannot end, in a write to a disk that hangs, is not gone: it is
//! dying, which the supervisor is told.
//!
//! An instance that fails because its effects are refused counts as killed: the refusal is the kill's first half. One
//! whose process dies otherwise has failed, and the reason says how it died; the host and its other instances go on.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::pending;
use std::io;
use std::net::ToSocketAddrs as _;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_election::{ElectionName, End, StopReason, Term, Time};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, OptionFuture};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Sleep, sleep};

use super::instances::RunningInstances;
use super::judge::ModuleKind;
use super::limits::{Effects, Tally, Usage};
use super::module::Module;
use super::output::{Allowance, LONGEST_LINE, Notice, Output};
use super::page::Page;
use super::postmortem::{Left, Postmortem};
use super::process::{Handle, Status};
use super::protocol::{
    self, Beginning, Change, Ended, FromRunner, How, Messages, NotCommitted, Resolved, ToRunner, frame,
};
use super::runners::{Ready, RunnerError, Runners, how_it_ended};
use super::shared::SharedMemory;
use crate::SecretSource;
use baton_store::ObjectStore;
use baton_store::address::kind_from_here;
use baton_store::clock::Clock;
use baton_store::gate::{Gate, Watchdog};
use baton_store::state::{self, Claim, ClaimError, Claimant, CommitError, HandoverClaim};

/// Events that wait for the supervisor: that its guest runs, a step-down, and that it is dying. None comes twice.
const EVENTS: usize = 3;
/// How long a request to stop usually waits until the state is claimed for the term that follows.
pub const CLAIM_AHEAD: Duration = Duration::from_millis(250);

/// So long after an instance has begun, the runner of the next one is made: this one needs the processors now.
const REFILL_AFTER: Duration = Duration::from_millis(20);

/// So long after the system has taken the order to end an instance's process, that is told, unless it has: most take a
/// few milliseconds.
const LINGERS: Duration = Duration::from_millis(50);

/// A runner may find the deadline passed so much before its host does: it reads the clocks one by one.
const APART: Duration = Duration::from_millis(20);
/// So much of what a runner waits for may be unwritten, in bytes, while it asks for more: answers are far shorter.
const UNREAD: usize = 1 << 20;
/// What a guest was refused, and what it is near to, is told of once each: a runner has no more to tell.
const TOLD: u32 = 64;
/// A line, in bytes, in which each byte that is not text was replaced.
const LINE: usize = LONGEST_LINE * 3;

/// Starts the instances of one coordinator, whichever version of it they run.
#[derive(Clone)]
pub struct Launcher {
    /// The election that they serve.
    pub election: ElectionName,
    /// The node that they run on.
    pub node: String,
    /// What runs them, and what they may do.
    pub runners: Runners,
    /// Where their state is kept.
    pub states: Arc<dyn ObjectStore>,
    /// What one that is replaced leaves to the next one.
    pub handover: state::Handover,
    /// Their state, as it is read while the lease is asked for.
    pub read_ahead: state::ReadAhead,
    /// How long a request to stop waits, at the most and never for more than a quarter of the grace, until the state
    /// is claimed for the next one.
    pub claim_ahead: Duration,
    /// What is kept of those that end.
    pub postmortem: Postmortem,
    /// The arguments that they see, after their election's name.
    pub arguments: Vec<String>,
    /// The environment that they see.
    pub env: Vec<(String, String)>,
    /// Their configuration: variables, too, and what `wasi:config/store` answers them.
    pub config: Vec<(String, String)>,
    /// The secrets in it, read anew for each instance.
    pub secrets: Vec<SecretSource>,
    /// Where they are listed while they run.
    pub running: RunningInstances,
    /// The host's clock.
    pub clock: Clock,
    /// Sees to it that they are gone in time.
    pub watchdog: Arc<Watchdog>,
}

impl Launcher {
    /// Starts an instance of `module` that serves `term`. It exists from here on; whatever goes wrong, the way to know
    /// is [`InstanceEvent::Gone`].
    pub fn start(
        &self,
        module: &Module,
        term: Term,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Instance {
        let started = self.clock.now();
        let gate = Arc::new(Gate::new(self.clock.clone(), deadline, abort_at));
        let (stop, stopped) = watch::channel(None);
        let (succeed, succeeded) = watch::channel(None);
        let (tell, events) = mpsc::channel(EVENTS);
        let killed = Arc::new(watch::Sender::new(false));
        let (lapsed, dying, runner) = (Arc::default(), Arc::new(watch::Sender::new(false)), Arc::default());
        let body = Body { gate: Arc::clone(&gate), killed, lapsed, dying, runner };
        let attended = InstanceTask {
            launcher: self.clone(),
            module: module.clone(),
            term,
            body: body.clone(),
            states: self.states_of(module, &output),
            succeeded,
            stop: stop.clone(),
            stopped,
            tell,
            output,
            started,
            dropped: AtomicU64::new(0),
        };
        // The watchdog watches the instance before it begins.
        self.watchdog.watch(&gate);
        // What can begin without waiting for anything begins here: no other thread is woken for it.
        let begun = attended.begin_at_once();
        let task = self.runners.handle().spawn(attended.run(begun));
        Instance {
            body,
            started,
            stop,
            succeed,
            patience: None,
            claim_ahead: self.claim_ahead,
            clock: self.clock.clone(),
            events,
            task,
        }
    }

    /// Prepares for an instance of `module`, which may be started any moment, since the lease is asked for: its state is read
    /// ahead, if it keeps any.
    pub fn expects(&self, module: &Module) {
        if module.uses_state() {
            self.read_ahead.begin(self.runners.handle(), Arc::clone(&self.states), self.election.clone());
        }
    }

    /// None is to be started now: the lease is another's.
    pub fn expects_none(&self) {
        self.read_ahead.clear();
    }

    /// What was given, and for a command, which knows no other way to learn of them, its fencing token and whom
    /// it serves. Nobody else sets these.
    fn environment(&self, module: &Module, term: Term, secrets: &[(String, String)]) -> Vec<(String, String)> {
        let given = self.env.iter().chain(&self.config).chain(secrets).cloned();
        if module.kind() == ModuleKind::Coordinator {
            return given.collect();
        }
        let own = [
            ("BATON_TERM", term.to_string()),
            ("BATON_ELECTION", self.election.to_string()),
            ("BATON_NODE", self.node.clone()),
        ];
        let given = given.filter(|(name, _)| own.iter().all(|(other, _)| name != other));
        own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).chain(given).collect()
    }

    /// Its claimant, if it keeps state. One that keeps none inherits none.
    fn states_of(&self, module: &Module, output: &Arc<dyn Output>) -> Option<Claimant> {
        if !module.uses_state() {
            self.handover.clear();
            self.read_ahead.clear();
            return None;
        }
        let output = Arc::clone(output);
        Some(Claimant {
            store: Arc::clone(&self.states),
            election: self.election.clone(),
            limits: self.runners.policy().state_limits,
            handover: self.handover.clone(),
            read_ahead: self.read_ahead.clone(),
            tell: Arc::new(move |refusal| output.notice(Notice::StateDelayed(refusal))),
        })
    }
}

/// What of an instance its supervisor can reach at once. Clones are the same.
#[derive(Clone)]
struct Body {
    gate: Arc<Gate>,
    killed: Arc<watch::Sender<bool>>,
    /// Whether its deadline had passed before it was moved.
    lapsed: Arc<AtomicBool>,
    /// Whether the system has taken the order to end its process.
    dying: Arc<watch::Sender<bool>>,
    /// Once there is one.
    runner: Arc<OnceLock<Reached>>,
}

/// How a runner is reached.
struct Reached {
    handle: Handle,
    page: Page,
    tally: SharedMemory<Tally>,
}

impl Body {
    /// Lets its effects leave until the deadline that its gate has.
    fn open(&self) {
        // Either who moves the deadline sees the runner, or who has started it sees the deadline.
        fence(Ordering::SeqCst);
        if let Some(Reached { page, .. }) = self.runner.get() {
            page.open_for(|| self.gate.remaining());
            // The gate may have been closed meanwhile, and that stays.
            if self.gate.remaining().is_zero() {
                page.close();
            }
        }
    }

    /// Refuses its effects from now on and ends it.
    fn kill(&self) {
        self.gate.close();
        if let Some(Reached { handle, page, .. }) = self.runner.get() {
            page.close();
            self.end(handle);
        }
    }

    /// Ends its process.
    fn end(&self, handle: &Handle) {
        if handle.kill() {
            self.gate.set_dying();
            self.dying.send_replace(true);
        }
    }

    fn was_killed(&self) -> bool {
        *self.killed.borrow()
    }

    /// Moves its deadlines.
    fn extend(&self, deadline: Time, abort_at: Time) {
        let before = self.gate.deadline();
        self.gate.extend(deadline, abort_at);
        self.open();
        // Until now its runner had the one before.
        if self.gate.now() + APART >= before {
            self.lapsed.store(true, Ordering::Release);
        }
    }

    /// Whether its deadline has passed, as far as its runner can have seen that.
    fn is_late(&self) -> bool {
        self.lapsed.load(Ordering::Acquire) || self.gate.remaining() <= APART
    }

    /// Whether an effect was refused since its deadline had passed. That its runner says so is not enough: an end for
    /// that reason is no failure, and is followed by the next instance at once.
    fn was_refused(&self) -> bool {
        self.is_late() && self.runner.get().is_some_and(|runner| runner.tally.refused())
    }
}

/// A running instance, in the hands of its supervisor. Dropping it kills it.
pub struct Instance {
    body: Body,
    started: Time,
    stop: watch::Sender<Option<StopNotice>>,
    succeed: watch::Sender<Option<Successor>>,
    /// When it is asked to stop though the state is not claimed for its successor yet.
    patience: Option<(Pin<Box<Sleep>>, StopNotice)>,
    claim_ahead: Duration,
    clock: Clock,
    events: mpsc::Receiver<InstanceEvent>,
    task: JoinHandle<Gone>,
}

/// A request to stop.
#[derive(Clone, Debug)]
struct StopNotice {
    reason: StopReason,
    message: String,
    grace_ends: Time,
}

/// What an instance tells its supervisor.
#[derive(Debug)]
pub enum InstanceEvent {
    /// Its guest runs.
    Begun,
    /// It gives leadership up.
    StepDown(String),
    /// Its process was ended, and the system is not done with it after a moment.
    Dying,
    /// It is gone; nothing comes after this.
    Gone(Gone),
}

/// How an instance ended.
#[derive(Debug)]
pub struct Gone {
    /// The end, for the elector.
    pub end: End,
    /// The guest's backtrace, where it trapped.
    pub backtrace: Option<String>,
}

impl Instance {
    /// Waits for the next event. Cancel safe.
    pub async fn next_event(&mut self) -> InstanceEvent {
        loop {
            let patience = async {
                match &mut self.patience {
                    Some((sleep, _)) => sleep.await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => return event,
                gone = &mut self.task => return InstanceEvent::Gone(gone.unwrap_or_else(|error| {
                    // Its runtime has ended with the host.
                    let why = format!("the host failed to supervise the instance: {error}");
                    Gone { end: End::Crashed(why), backtrace: None }
                })),
                () = patience => {
                    if let Some((_, notice)) = self.patience.take() {
                        ask_to_stop(&self.stop, notice);
                    }
                }
            }
        }
    }

    /// Asks it to stop. Only the first request counts. Where the `next` term follows in this process, the state is
    /// claimed for that first, unless that takes long.
    pub fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>) {
        let notice = StopNotice { reason, message, grace_ends };
        let Some(term) = next else { return ask_to_stop(&self.stop, notice) };
        let patience = self.claim_ahead.min(grace_ends.since(self.clock.now()) / 4);
        self.patience = Some((Box::pin(sleep(patience)), notice.clone()));
        self.succeed.send_replace(Some(Successor { term, notice }));
    }

    /// Refuses its effects from now on and ends it, whatever it is doing.
    pub fn kill(&mut self) {
        self.body.killed.send_replace(true);
        self.body.kill();
    }

    /// Moves its deadlines after a renewal.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.body.extend(deadline, abort_at);
    }

    /// The time until its effects are refused.
    pub fn remaining(&self) -> Duration {
        self.body.gate.remaining()
    }

    /// When it last said that it did useful work; its start, if it never did.
    pub fn last_progress(&self) -> Time {
        let since = self.body.runner.get().and_then(|runner| runner.tally.since_progress());
        since.map_or(self.started, |since| Time(self.clock.now().0.saturating_sub(since)).max(self.started))
    }

    /// What it uses, or has used.
    pub fn usage(&self) -> Usage {
        self.body.runner.get().map(|runner| runner.tally.usage()).unwrap_or_default()
    }

    /// How many of its effects have passed or were refused, so far.
    pub fn effects(&self) -> Effects {
        self.body.runner.get().map(|runner| runner.tally.effects()).unwrap_or_default()
    }

    /// When it was started.
    pub fn started(&self) -> Time {
        self.started
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Who comes next in this process, and the request to stop for that.
#[derive(Clone)]
struct Successor {
    term: Term,
    notice: StopNotice,
}

fn ask_to_stop(stop: &watch::Sender<Option<StopNotice>>, notice: StopNotice) {
    stop.send_if_modified(|asked| {
        let is_first = asked.is_none();
        asked.get_or_insert(notice);
        is_first
    });
}

/// What the task works with that attends to an instance.
struct InstanceTask {
    launcher: Launcher,
    module: Module,
    term: Term,
    body: Body,
    /// Claims the state first, where the module uses it.
    states: Option<Claimant>,
    succeeded: watch::Receiver<Option<Successor>>,
    stop: watch::Sender<Option<StopNotice>>,
    stopped: watch::Receiver<Option<StopNotice>>,
    tell: mpsc::Sender<InstanceEvent>,
    output: Arc<dyn Output>,
    started: Time,
    /// The dropped lines that were told of.
    dropped: AtomicU64,
}

/// A runner that has an instance to run, and what of its first message is still to be written.
struct Begun {
    runner: Runner,
    unwritten: Vec<u8>,
}

/// A runner at work, as the task sees it that attends to it.
struct Runner {
    process: super::process::Process,
    to: pipe::Sender,
    from: Messages<pipe::Receiver>,
    remains: Option<File>,
}

/// Why an instance has come to an end.
enum Over {
    /// It said so.
    Ended(Box<Ended>),
    /// Its runner has closed its pipe: it was killed, or died.
    Silent,
    /// It cannot go on, or could not begin.
    Cannot(End),
    /// What its runner says is none of what it may say.
    Broken(String),
}

impl InstanceTask {
    /// Begins without waiting for anything, if that can be: the runner is ready, there is no state to be claimed and no
    /// file to be read.
    fn begin_at_once(&self) -> Option<Begun> {
        let waits = self.states.is_some() || self.launcher.secrets.iter().any(|secret| secret.file().is_some());
        if waits {
            return None;
        }
        let secrets = self.launcher.secrets.iter().map(read_secret).collect::<Result<_, _>>().ok()?;
        let ready = self.launcher.runners.take_ready(&self.module)?;
        self.begin(ready, secrets, None).ok()
    }

    /// Has a runner that is ready run the instance. As much of the message as the pipe has room for is in it then.
    fn begin(
        &self,
        ready: Ready,
        secrets: Vec<(String, String)>,
        entries: Option<BTreeMap<String, Bytes>>,
    ) -> io::Result<Begun> {
        let Ready { process, to, from, page, tally, remains, .. } = ready;
        let Launcher { election, node, arguments, config, running, runners, .. } = &self.launcher;
        let beginning = Beginning {
            term: self.term,
            election: election.to_string(),
            node: node.clone(),
            arguments: arguments.clone(),
            environment: self.launcher.environment(&self.module, self.term, &secrets),
            config: config.iter().cloned().chain(secrets).collect(),
            entries,
        };
        let mut message = frame(&ToRunner::Start(Box::new(beginning)))?;
        running.add(election, self.term, runners.policy(), &tally, process.pid(), &self.body.gate);
        let reached = Reached { handle: process.handle().clone(), page, tally };
        // It is the only one: an instance has one runner.
        let _ = self.body.runner.set(reached);
        self.body.open();
        if self.body.was_killed() {
            self.body.kill();
        }
        // Where it is full, or nobody reads it any more, that shows soon enough.
        let written = rustix::io::write(&to, &message).unwrap_or(0);
        message.drain(..written);
        // The next one, for when this one has ended.
        runners.refill(&self.module, REFILL_AFTER);
        Ok(Begun { runner: Runner { process, to, from, remains }, unwritten: message })
    }

    async fn run(self, begun: Option<Begun>) -> Gone {
        let mut until_gone = pin!(self.until_gone(begun));
        tokio::select! {
            biased;
            gone = &mut until_gone => return gone,
            () = self.lingers() => {}
        }
        // There is room for it, and nobody may listen any more.
        let _ = self.tell.try_send(InstanceEvent::Dying);
        until_gone.await
    }

    /// Waits for a moment after its process was ended.
    async fn lingers(&self) {
        // The sender lives as long as this.
        let _ = self.body.dying.subscribe().wait_for(|dying| *dying).await;
        sleep(LINGERS).await;
    }

    async fn until_gone(&self, begun: Option<Begun>) -> Gone {
        let mut runner = None;
        // Nothing that a panic leaves half done is looked at again.
        let over = AssertUnwindSafe(self.until_over(begun, &mut runner)).catch_unwind().await;
        let over = over.unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            Over::Cannot(End::Crashed(format!("the host failed to supervise the instance: {why}")))
        });
        let mut died = None;
        let mut remains = None;
        if let Some(Runner { mut process, remains: left, .. }) = runner {
            // It may only have closed its pipe, or said that this was all and stay. What it says last, it has done.
            self.body.end(process.handle());
            // Where the system cannot say that it has ended, it is not gone, and the watchdog ends the host in time.
            died = match process.ended().await {
                Ok(status) => Some(status),
                Err(_) => pending().await,
            };
            remains = left;
        }
        if let Some(Reached { tally, .. }) = self.body.runner.get() {
            // One that was killed has not told of the last ones.
            self.tell_dropped(tally.usage().dropped.saturating_sub(self.dropped.load(Ordering::Relaxed)));
        }
        let (gone, left) = self.judge(over, died);
        self.body.gate.set_gone();
        self.launcher.postmortem.keep((&self.launcher.election, self.term), left, remains, &self.output);
        gone
    }

    fn tell_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
            self.output.notice(Notice::Dropped { lines, limit: self.launcher.runners.policy().limits.output });
        }
    }

    /// How it ended, and what it left.
    fn judge(&self, over: Over, died: Option<Status>) -> (Gone, Left) {
        let crashed = |why: String| Gone { end: End::Crashed(why), backtrace: None };
        let (gone, left) = match over {
            Over::Ended(ended) => {
                let Ended { how, backtrace, left } = *ended;
                let end = match how {
                    How::Done => End::Done,
                    How::Failed(why) => End::Failed(why),
                    How::Crashed(why) => End::Crashed(why),
                    How::Fatal(why) => End::Fatal(why),
                    How::Unable(why) => End::Unable(why),
                    How::Killed if self.body.is_late() || self.stopped.borrow().is_some() => End::Killed,
                    How::Killed => End::Crashed("the runner ended the instance before the deadline".to_owned()),
                };
                (Gone { end, backtrace }, left)
            }
            Over::Silent => {
                let how = died.map_or_else(|| "the runner exited".to_owned(), how_it_ended);
                // Its own thread ends it at the deadline, too.
                let killed = Gone { end: End::Killed, backtrace: None };
                (if self.body.is_late() { killed } else { crashed(how) }, Left::default())
            }
            Over::Cannot(end) => (Gone { end, backtrace: None }, Left::default()),
            Over::Broken(why) => (crashed(format!("the runner violated the protocol: {why}")), Left::default()),
        };
        let is_its_own = matches!(gone.end, End::Done | End::Superseded { .. }) || !self.body.was_refused();
        // The refusal is the kill's first half; whatever it then failed with is no fault of its own.
        let gone =
            if self.body.was_killed() || !is_its_own { Gone { end: End::Killed, backtrace: None } } else { gone };
        (gone, left)
    }

    async fn until_over(&self, begun: Option<Begun>, kept: &mut Option<Runner>) -> Over {
        let mut claim = None;
        let begun = match begun {
            Some(begun) => begun,
            None => {
                // A kill ends the wait for whatever is waited for.
                let begun = tokio::select! {
                    begun = self.prepare(&mut claim) => begun,
                    () = self.killed() => return Over::Cannot(End::Killed),
                };
                match begun {
                    Ok(begun) => begun,
                    Err(end) => return Over::Cannot(end),
                }
            }
        };
        let Begun { runner, unwritten } = begun;
        let runner = kept.insert(runner);
        let succession = claim.as_ref().map(Claim::succession);
        let mut attending = Attending {
            task: self,
            claim: Arc::new(tokio::sync::Mutex::new(claim)),
            committing: None,
            lookups: JoinSet::new(),
            is_started: false,
            is_stepping_down: false,
            told: 0,
            lines: Allowance::new(self.launcher.runners.policy().limits.output, &self.launcher.clock),
        };
        attending.until_over(runner, unwritten, succession.as_ref()).await
    }

    /// Waits until it is killed.
    async fn killed(&self) {
        // The sender lives as long as this.
        let _ = self.body.killed.subscribe().wait_for(|killed| *killed).await;
    }

    async fn prepare(&self, claim: &mut Option<Claim>) -> Result<Begun, End> {
        let crashed = |why: String| End::Crashed(why);
        let ended_by = |cause: &io::Error, why: String| match shortage(cause) {
            Some(remedy) => End::Unable(format!("{why}; {remedy}")),
            None => End::Crashed(why),
        };
        let secrets = self.secrets().await.map_err(|why| End::Unable(format!("a secret is missing: {why}")))?;
        if let Some(states) = self.states.clone() {
            let claimed = states.claim(self.term, Arc::clone(&self.body.gate)).await;
            *claim = Some(claimed.map_err(|error| match error {
                ClaimError::Superseded(term) => End::Superseded { term },
                // Trying again here would find the same bytes.
                ClaimError::Document(_) => End::Fatal(error.to_string()),
                ClaimError::Store(_) => End::Unable(error.to_string()),
                ClaimError::TermOver => crashed(error.to_string()),
            })?);
        }
        let ready = self.launcher.runners.take(&self.module).await.map_err(|error| match error {
            RunnerError::Unsuitable(_) => End::Fatal(error.to_string()),
            RunnerError::System(ref cause) | RunnerError::Template(ref cause) => ended_by(cause, error.to_string()),
            _ => crashed(error.to_string()),
        })?;
        let entries = claim.as_ref().map(|claim| claim.entries().clone());
        self.begin(ready, secrets, entries)
            .map_err(|error| ended_by(&error, format!("cannot send the start message to the runner: {error}")))
    }

    /// The secrets as they are now. Reading a file may block, which nobody can end, and nothing waits for.
    async fn secrets(&self) -> Result<Vec<(String, String)>, String> {
        let sources = self.launcher.secrets.clone();
        if sources.iter().all(|source| source.file().is_none()) {
            return sources.iter().map(read_secret).collect();
        }
        let read = tokio::task::spawn_blocking(move || sources.iter().map(read_secret).collect());
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// The remedy if the system had no process, descriptor, memory or disk space for a call of the host. Such an error says
/// nothing about a version: a guest's own use of these is bounded where the guest runs.
fn shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => {
            Some("raise the number of processes (`ulimit -u`, TasksMax= of a unit, --pids-limit of a container)")
        }
        Errno::MFILE | Errno::NFILE => Some("raise the number of descriptors (`ulimit -n`, LimitNOFILE= of a unit)"),
        Errno::NOMEM => Some("give the machine or its control group more memory"),
        Errno::NOSPC | Errno::DQUOT => Some("free disk space"),
        Errno::PERM => Some("allow the system call, which a sandbox around the host forbids"),
        _ => None,
    }
}

fn read_secret(source: &SecretSource) -> Result<(String, String), String> {
    Ok((source.name().to_owned(), source.read()?.expose().to_owned()))
}

/// So many lookups of names a runner may wait for at a time. Each holds a thread, for as long as the system's resolver
/// likes.
pub(super) const LOOKUPS: usize = 4;

/// After so long an instance has begun, which takes milliseconds. Nobody else could lead while one does not.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);

/// A runner and its instance while both are there.
struct Attending<'a> {
    task: &'a InstanceTask,
    claim: Arc<tokio::sync::Mutex<Option<Claim>>>,
    /// The commit under way. There is one at a time: a guest waits for its end.
    committing: Option<BoxFuture<'static, Result<(), CommitError>>>,
    lookups: JoinSet<(u64, Result<Vec<Resolved>, String>)>,
    is_started: bool,
    is_stepping_down: bool,
    /// What it was told of that people are told of once.
    told: u32,
    /// Of what it says without waiting for an answer.
    lines: Allowance,
}

impl Attending<'_> {
    async fn until_over(
        &mut self,
        Runner { to, from, .. }: &mut Runner,
        mut unwritten: Vec<u8>,
        succession: Option<&HandoverClaim>,
    ) -> Over {
        let task = self.task;
        let mut stopped = task.stopped.clone();
        let mut is_told = false;
        let ahead = claim_ahead(task.succeeded.clone(), succession, &task.stop);
        let begins_by = sleep(BEGINS_WITHIN);
        tokio::pin!(ahead, begins_by);
        loop {
            let writing = async {
                if unwritten.is_empty() {
                    return pending().await;
                }
                to.write(&unwritten).await
            };
            let said = tokio::select! {
                biased;
                said = from.next::<FromRunner>() => said,
                Some(committed) = OptionFuture::from(self.committing.as_mut()) => {
                    self.committing = None;
                    match committed {
                        Err(CommitError::Superseded(term)) => return Over::Cannot(End::Superseded { term }),
                        committed => send(&mut unwritten, &ToRunner::Committed(committed.map_err(not_committed))),
                    }
                    continue;
                }
                Some(Ok((number, addresses))) = self.lookups.join_next() => {
                    send(&mut unwritten, &ToRunner::Resolved(number, addresses));
                    continue;
                }
                Ok(notice) = stopped.wait_for(Option::is_some), if !is_told => {
                    is_told = true;
                    if let Some(StopNotice { reason, message, grace_ends }) = notice.clone() {
                        let grace = grace_ends.since(task.launcher.clock.now());
                        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                        let notice = protocol::Notice { reason: reason.into(), message, grace_ms };
                        send(&mut unwritten, &ToRunner::Stop(notice));
                    }
                    continue;
                }
                superseded = &mut ahead => {
                    return Over::Cannot(match superseded {
                        CommitError::Superseded(term) => End::Superseded { term },
                        other => End::Crashed(other.to_string()),
                    });
                }
                () = &mut begins_by, if !self.is_started => {
                    return Over::Cannot(End::Crashed(format!(
                        "the instance did not start within {BEGINS_WITHIN:?}: its start function does not return, or \
                         the runner is stopped"
                    )));
                }
                written = writing => {
                    match written {
                        Ok(written) => drop(unwritten.drain(..written)),
                        // It has ended, or closed its pipe: what it says last tells more.
                        Err(_) => unwritten.clear(),
                    }
                    continue;
                }
            };
            match said {
                Ok(Some(message)) => {
                    if let Some(over) = self.take(message, unwritten.len()) {
                        return over;
                    }
                }
                Ok(None) => return Over::Silent,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Over::Broken(error.to_string()),
                Err(_) => return Over::Silent,
            }
        }
    }

    /// Takes what the runner says, for which so many bytes are still to be written.
    fn take(&mut self, message: FromRunner, unwritten: usize) -> Option<Over> {
        let InstanceTask { launcher, body, output, .. } = self.task;
        let may_leave = || body.gate.pass().is_ok();
        let is_answered = matches!(message, FromRunner::Commit(_) | FromRunner::Resolve { .. });
        if !is_answered && !self.lines.admits() {
            return Some(Over::Broken("it sent too many messages".to_owned()));
        }
        // It has read its first message by then, and goes on reading while it waits.
        if is_answered && unwritten > UNREAD {
            return Some(Over::Broken("it does not read the responses to its requests".to_owned()));
        }
        if matches!(message, FromRunner::Denied { .. } | FromRunner::NearLimit(_) | FromRunner::RefusedRequest(_)) {
            self.told += 1;
            if self.told > TOLD {
                return Some(Over::Broken("it repeated notices that it may send only once".to_owned()));
            }
        }
        match message {
            FromRunner::Started => {
                if std::mem::replace(&mut self.is_started, true) {
                    return Some(Over::Broken("it reported twice that it started".to_owned()));
                }
                output.notice(Notice::Started(launcher.clock.now().since(self.task.started)));
                // Nobody may listen any more.
                let _ = self.task.tell.try_send(InstanceEvent::Begun);
            }
            FromRunner::Line(_, line) if line.len() > LINE => {
                return Some(Over::Broken(format!("it sent a line of {} bytes", line.len())));
            }
            FromRunner::Line(stream, line) => {
                if may_leave() {
                    output.notice(Notice::Line(stream, &line));
                }
            }
            FromRunner::Log { level, context, message } => {
                if may_leave() {
                    output.notice(Notice::Log { level, context: &context, message: &message });
                }
            }
            FromRunner::Dropped(lines) => self.task.tell_dropped(lines),
            FromRunner::Denied { what, remedy } => output.notice(Notice::Denied { what: &what, remedy: &remedy }),
            FromRunner::NearLimit(near) => output.notice(Notice::NearLimit(near)),
            FromRunner::RefusedRequest(refused) => output.notice(Notice::RefusedRequest(&refused)),
            FromRunner::Requested(requested) => {
                if !launcher.runners.policy().http.is_traced() || !requested.is_plausible() {
                    return Some(Over::Broken("it reported an impossible request".to_owned()));
                }
                output.notice(Notice::Requested(&requested));
            }
            FromRunner::StepDown(reason) => {
                if std::mem::replace(&mut self.is_stepping_down, true) {
                    return Some(Over::Broken("it asked twice to step down".to_owned()));
                }
                // Nobody may listen any more.
                let _ = self.task.tell.try_send(InstanceEvent::StepDown(reason));
            }
            FromRunner::Commit(changes) => {
                if self.committing.is_some() {
                    return Some(Over::Broken("it sent a commit during another commit".to_owned()));
                }
                // Where there is no state to be kept, a runner tells its guest so itself.
                if self.task.states.is_none() {
                    return Some(Over::Broken("it sent a commit for an election without state".to_owned()));
                }
                let changes = match changes.read(launcher.runners.policy().call_bytes(true)) {
                    Ok(changes) => changes,
                    Err(error) => return Some(Over::Broken(error.to_string())),
                };
                self.committing = Some(commit(Arc::clone(&self.claim), changes).boxed());
            }
            FromRunner::Resolve { number, host, port } => {
                if self.lookups.len() >= LOOKUPS {
                    return Some(Over::Broken("it has too many DNS lookups in flight".to_owned()));
                }
                if may_leave() && launcher.runners.policy().http.may_ask(&host) {
                    self.lookups.spawn(look_up(number, host, port, launcher.runners.lookups()));
                } else {
                    self.lookups.spawn(async move { (number, Err("the term is over".to_owned())) });
                }
            }
            FromRunner::Panicked(why) => {
                return Some(Over::Cannot(End::Crashed(format!("the runner panicked: {why}"))));
            }
            FromRunner::Ended(ended) if self.is_started && matches!(ended.how, How::Unable(_)) => {
                return Some(Over::Broken("it reported a failed start after the start".to_owned()));
            }
            FromRunner::Ended(ended) => return Some(Over::Ended(ended)),
            FromRunner::Ready { .. } | FromRunner::Failed(_) => {
                return Some(Over::Broken("it reported twice that it is ready".to_owned()));
            }
        }
        None
    }
}

/// Adds a message to what is to be written.
fn send(unwritten: &mut Vec<u8>, message: &ToRunner) {
    // What cannot be put into bytes would be far larger than memory.
    if let Ok(message) = frame(message) {
        unwritten.extend(message);
    }
}

async fn commit(claim: Arc<tokio::sync::Mutex<Option<Claim>>>, changes: Vec<Change>) -> Result<(), CommitError> {
    let changes = changes.into_iter().map(|change| match change {
        Change::Put(key, value) => state::Change::Put(key, value),
        Change::Delete(key) => state::Change::Delete(key),
    });
    match &mut *claim.lock().await {
        Some(claim) => claim.commit(changes.collect()).await,
        None => Err(CommitError::Unavailable("the module does not import the state interface".to_owned())),
    }
}

fn not_committed(error: CommitError) -> NotCommitted {
    let why = error.to_string();
    match error {
        CommitError::InvalidKey(_) => NotCommitted::InvalidKey(why),
        CommitError::TooLarge(_) => NotCommitted::TooLarge(why),
        CommitError::Refused => NotCommitted::Refused(why),
        CommitError::Unavailable(_) => NotCommitted::Unavailable(why),
        CommitError::Unknown | CommitError::Superseded(_) => NotCommitted::Unknown(why),
    }
}

/// The addresses of a name. Nothing can end the system's own lookup, and when it ends late its answer goes nowhere.
async fn look_up(number: u64, host: String, port: u16, places: Arc<Semaphore>) -> (u64, Result<Vec<Resolved>, String>) {
    let Ok(place) = places.acquire_owned().await else { return (number, Err("the host is shutting down".to_owned())) };
    let found = tokio::task::spawn_blocking(move || {
        let _place = place;
        let addresses = (host.as_str(), port).to_socket_addrs()?;
        Ok(addresses.map(|address| Resolved { address, kind: kind_from_here(address.ip()) }).collect())
    });
    let found = found.await;
    let found: io::Result<_> = found.map_err(io::Error::from).and_then(|found| found);
    (number, found.map_err(|error| error.to_string()))
}

/// Claims the state for the successor, once there is one, and then asks the guest to stop. Returns only if the state
/// turns out to be another's.
async fn claim_ahead(
    mut succeeded: watch::Receiver<Option<Successor>>,
    succession: Option<&HandoverClaim>,
    stop: &watch::Sender<Option<StopNotice>>,
) -> CommitError {
    let successor = succeeded.wait_for(Option::is_some).await.ok().and_then(|successor| successor.clone());
    if let Some(Successor { term, notice }) = successor {
        if let Some(succession) = succession
            && let Err(superseded @ CommitError::Superseded(_)) = succession.claim(term).await
        {
            return superseded;
        }
        // Without a claim its successor claims for itself, while nothing runs.
        ask_to_stop(stop, notice);
    }
    pending().await
}
