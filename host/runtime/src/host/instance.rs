//! The host's side of an instance, which is one running copy of a module in its own process.
//!
//! One task of the host supervises each instance. The task reads the runner's messages, does the work that only the
//! host can do, and notices when the instance has ended. A kill does not wait for the task: it closes the page and
//! sends SIGKILL through a pidfd.
//!
//! An instance is gone once its process has been reaped, all messages from the process have been read, and no commit
//! for it is in progress. If the kernel cannot end the process yet, for example during a write to a disk that hangs,
//! the instance is dying, and the supervisor is notified.
//!
//! An instance that fails because its effects are refused counts as killed, since the refusal is the first half of a
//! kill. If the process dies for any other reason, the instance has failed, and the reported reason says how the
//! process died. The host and its other instances continue.

use std::collections::BTreeMap;
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

use crate::SecretSource;
use crate::host::instances::RunningInstances;
use crate::host::process::{Handle, Status};
use crate::host::runners::{Ready, RunnerError, Runners, describe_exit};
use crate::module::Module;
use crate::module::judge::ModuleKind;
use crate::wire::limits::{Effects, Tally, Usage};
use crate::wire::output::{LONGEST_LINE, MessageLimit, Notice, Output};
use crate::wire::page::Page;
use crate::wire::protocol::{
    self, Change, Ended, FromRunner, How, Messages, NotCommitted, Resolved, StartParams, ToRunner, frame,
};
use crate::wire::shared::SharedMemory;
use baton_base::address::kind_from_here;
use baton_base::clock::Clock;
use baton_base::gate::{Gate, Watchdog};
use baton_store::ObjectStore;
use baton_store::state::{self, Claim, ClaimError, Claimant, CommitError, HandoverClaim};

/// Capacity of the event channel: begun, step-down and dying are each sent at most once.
const EVENTS: usize = 3;
/// Usual value of [`Launcher::claim_ahead`].
pub const CLAIM_AHEAD: Duration = Duration::from_millis(250);

/// Delay before the next runner is made after a start, so that the new instance gets the CPUs first.
const REFILL_AFTER: Duration = Duration::from_millis(20);

/// Delay between an accepted SIGKILL and [`InstanceEvent::Dying`]. Most processes exit within a few milliseconds.
const LINGERS: Duration = Duration::from_millis(50);

/// The runner may see the deadline pass up to this much earlier than its host, since the clocks are read one after the
/// other.
const APART: Duration = Duration::from_millis(20);
/// Maximum number of response bytes not yet written to a runner when the runner sends another request. Real responses
/// are far shorter.
const UNREAD: usize = 1 << 20;
/// Maximum number of notices about refusals and nearly reached limits. A runner sends each of them once, so it has
/// fewer to send.
const TOLD: u32 = 64;
/// Maximum length of a line from a runner (bytes): each invalid byte was replaced by a character of 3 bytes.
const LINE: usize = LONGEST_LINE * 3;

/// Starts the instances of one coordinator, for all versions of its module.
#[derive(Clone)]
pub struct Launcher {
    /// The election that the instances serve.
    pub election: ElectionName,
    /// The node that the instances run on.
    pub node: String,
    /// The runners of the coordinator, with its policy.
    pub runners: Runners,
    /// The store of the coordinator's state.
    pub states: Arc<dyn ObjectStore>,
    /// The state that a replaced instance leaves to its successor.
    pub handover: state::Handover,
    /// The state that is read while the lease is being acquired.
    pub read_ahead: state::ReadAhead,
    /// Maximum delay of a stop request while the state is claimed for the next term. The delay is also at most a
    /// quarter of the grace.
    pub claim_ahead: Duration,
    /// Arguments of the guest, after the election's name.
    pub arguments: Vec<String>,
    /// Environment variables of the guest.
    pub env: Vec<(String, String)>,
    /// Configuration of the guest, as variables and as the content of `wasi:config/store`.
    pub config: Vec<(String, String)>,
    /// Secrets in the configuration, read again for each instance.
    pub secrets: Vec<SecretSource>,
    /// The list of running instances.
    pub running: RunningInstances,
    /// The host's clock.
    pub clock: Clock,
    /// Ends the host if an instance is not gone in time.
    pub watchdog: Arc<Watchdog>,
}

/// Starts instances for a supervisor. [`Launcher`] starts real ones.
pub trait Launch: Send + Sync {
    /// Starts an instance of `module` that serves `term`. Any failure is reported by [`InstanceEvent::Gone`].
    fn start(
        &self,
        module: &Module,
        term: Term,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Box<dyn InstanceHandle>;

    /// Keeps these versions ready to start, and no others.
    fn keep(&self, modules: &[&Module]);

    /// Prepares for a term of `module`, while the lease is being acquired.
    fn expects(&self, module: &Module);

    /// Discards the preparations, since another node holds the lease.
    fn expects_none(&self);

    /// Discards what the last instance has left to its successor: this node no longer holds the lease.
    fn clear_handover(&self);

    /// Returns a watch that changes when timers have missed time while an instance runs.
    fn missed_by_timers(&self) -> watch::Receiver<()>;
}

/// A running instance, held by its supervisor. Dropping this kills the instance.
pub trait InstanceHandle: Send {
    /// Waits for the next event. Cancel safe.
    fn next_event(&mut self) -> BoxFuture<'_, InstanceEvent>;

    /// Asks the instance to stop. Later requests are ignored. If this process also runs the `next` term, the host
    /// claims the state for that term before it asks, unless the claim takes too long.
    fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>);

    /// Refuses all effects from now on, and kills the instance, whatever it is doing.
    fn kill(&mut self);

    /// Extends the deadlines after a renewal.
    fn extend(&self, deadline: Time, abort_at: Time);

    /// Returns the time until effects are refused.
    fn remaining(&self) -> Duration;

    /// Returns the time of the last progress report, or of the start if there was none.
    fn last_progress(&self) -> Time;

    /// Returns the resources that the instance has used.
    fn usage(&self) -> Usage;

    /// Returns the numbers of effects that have passed or have been refused so far.
    fn effects(&self) -> Effects;
}

impl Launch for Launcher {
    fn start(
        &self,
        module: &Module,
        term: Term,
        deadline: Time,
        abort_at: Time,
        output: Arc<dyn Output>,
    ) -> Box<dyn InstanceHandle> {
        Box::new(self.start(module, term, deadline, abort_at, output))
    }

    fn keep(&self, modules: &[&Module]) {
        self.runners.keep(modules);
    }

    /// Starts to read the state, if `module` uses state.
    fn expects(&self, module: &Module) {
        if module.uses_state() {
            self.read_ahead.begin(self.runners.handle(), Arc::clone(&self.states), self.election.clone());
        }
    }

    fn expects_none(&self) {
        self.read_ahead.clear();
    }

    fn clear_handover(&self) {
        self.handover.clear();
    }

    fn missed_by_timers(&self) -> watch::Receiver<()> {
        self.watchdog.missed_by_timers()
    }
}

impl Launcher {
    /// Starts an instance: see [`Launch::start`].
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
        let control = InstanceControl { gate: Arc::clone(&gate), killed, lapsed, dying, runner };
        let instance_task = InstanceTask {
            launcher: self.clone(),
            module: module.clone(),
            term,
            control: control.clone(),
            states: self.states_of(module, &output),
            succeeded,
            stop: stop.clone(),
            stopped,
            tell,
            output,
            started,
            dropped: AtomicU64::new(0),
        };
        // Watch the instance before it begins.
        self.watchdog.watch(&gate);
        // If there is nothing to wait for, the instance begins here, without waking another thread.
        let begun = instance_task.begin_at_once();
        let task = self.runners.handle().spawn(instance_task.run(begun));
        Instance {
            control,
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

    /// Returns the guest's environment variables. A command has no interface for its fencing token, election and node,
    /// so it gets them in variables, which override configured ones.
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

    /// Returns a claimant if the module uses state. Otherwise discards state that was handed over or read ahead.
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

/// The parts of an instance that its supervisor can use without waiting for the instance's task. Clones share them.
#[derive(Clone)]
struct InstanceControl {
    gate: Arc<Gate>,
    killed: Arc<watch::Sender<bool>>,
    /// True once a deadline has passed before it was extended.
    lapsed: Arc<AtomicBool>,
    /// True once the kernel has accepted a SIGKILL for the process.
    dying: Arc<watch::Sender<bool>>,
    /// Set once the instance has been given to a runner.
    runner: Arc<OnceLock<RunnerHandle>>,
}

/// Handles to a runner: its process and the memory shared with it.
struct RunnerHandle {
    handle: Handle,
    page: Page,
    tally: SharedMemory<Tally>,
}

impl InstanceControl {
    /// Copies the gate's deadline to the runner's page.
    fn open(&self) {
        // The fence ensures that the thread that extends the deadline sees the runner, or the thread that sets the
        // runner sees the new deadline.
        fence(Ordering::SeqCst);
        if let Some(RunnerHandle { page, .. }) = self.runner.get() {
            page.open_for(|| self.gate.remaining());
            // If the gate was closed meanwhile, the page must stay closed.
            if self.gate.remaining().is_zero() {
                page.close();
            }
        }
    }

    /// Refuses all effects from now on, and kills the process.
    fn kill(&self) {
        self.gate.close();
        if let Some(RunnerHandle { handle, page, .. }) = self.runner.get() {
            page.close();
            self.end(handle);
        }
    }

    fn end(&self, handle: &Handle) {
        if handle.kill() {
            self.gate.set_dying();
            self.dying.send_replace(true);
        }
    }

    fn was_killed(&self) -> bool {
        *self.killed.borrow()
    }

    fn extend(&self, deadline: Time, abort_at: Time) {
        let before = self.gate.deadline();
        self.gate.extend(deadline, abort_at);
        self.open();
        // Until now, the runner had the previous deadline.
        if self.gate.now() + APART >= before {
            self.lapsed.store(true, Ordering::Release);
        }
    }

    /// True if the deadline has passed, or if the runner may already have seen it pass.
    fn is_late(&self) -> bool {
        self.lapsed.load(Ordering::Acquire) || self.gate.remaining() <= APART
    }

    /// True if an effect was refused because the deadline had passed. The runner's own claim is not sufficient, since
    /// such an end does not count as a failure, and the next instance starts at once.
    fn was_refused(&self) -> bool {
        self.is_late() && self.runner.get().is_some_and(|runner| runner.tally.refused())
    }
}

/// An instance in a runner.
pub struct Instance {
    control: InstanceControl,
    started: Time,
    stop: watch::Sender<Option<StopNotice>>,
    succeed: watch::Sender<Option<Successor>>,
    /// The deferred stop request and its timer. When the timer fires, the request is sent even if the state has not
    /// been claimed for the successor.
    patience: Option<(Pin<Box<Sleep>>, StopNotice)>,
    claim_ahead: Duration,
    clock: Clock,
    events: mpsc::Receiver<InstanceEvent>,
    task: JoinHandle<Gone>,
}

#[derive(Clone, Debug)]
struct StopNotice {
    reason: StopReason,
    message: String,
    grace_ends: Time,
}

/// An event of an instance, for its supervisor.
#[derive(Debug)]
pub enum InstanceEvent {
    /// The guest is running.
    Begun,
    /// The guest gives up leadership.
    StepDown(String),
    /// The process was killed, but has not exited shortly afterwards.
    Dying,
    /// The instance is gone. This is the last event.
    Gone(Gone),
}

/// The end of an instance.
#[derive(Debug)]
pub struct Gone {
    /// The cause, for the elector.
    pub end: End,
    /// The guest's backtrace if it trapped.
    pub backtrace: Option<String>,
}

impl InstanceHandle for Instance {
    fn next_event(&mut self) -> BoxFuture<'_, InstanceEvent> {
        Box::pin(async move {
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
                        // The async runtime is shutting down with the host.
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
        })
    }

    fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>) {
        let notice = StopNotice { reason, message, grace_ends };
        let Some(term) = next else { return ask_to_stop(&self.stop, notice) };
        let patience = self.claim_ahead.min(grace_ends.since(self.clock.now()) / 4);
        self.patience = Some((Box::pin(sleep(patience)), notice.clone()));
        self.succeed.send_replace(Some(Successor { term, notice }));
    }

    fn kill(&mut self) {
        self.control.killed.send_replace(true);
        self.control.kill();
    }

    fn extend(&self, deadline: Time, abort_at: Time) {
        self.control.extend(deadline, abort_at);
    }

    fn remaining(&self) -> Duration {
        self.control.gate.remaining()
    }

    fn last_progress(&self) -> Time {
        let since = self.control.runner.get().and_then(|runner| runner.tally.since_progress());
        since.map_or(self.started, |since| Time(self.clock.now().0.saturating_sub(since)).max(self.started))
    }

    fn usage(&self) -> Usage {
        self.control.runner.get().map(|runner| runner.tally.usage()).unwrap_or_default()
    }

    fn effects(&self) -> Effects {
        self.control.runner.get().map(|runner| runner.tally.effects()).unwrap_or_default()
    }
}

impl Instance {
    /// Returns the time of the start.
    pub fn started(&self) -> Time {
        self.started
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The next term in this process, and the stop request that makes way for it.
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

struct InstanceTask {
    launcher: Launcher,
    module: Module,
    term: Term,
    control: InstanceControl,
    /// Claims the state before the start, if the module uses state.
    states: Option<Claimant>,
    succeeded: watch::Receiver<Option<Successor>>,
    stop: watch::Sender<Option<StopNotice>>,
    stopped: watch::Receiver<Option<StopNotice>>,
    tell: mpsc::Sender<InstanceEvent>,
    output: Arc<dyn Output>,
    started: Time,
    /// Number of dropped lines reported so far.
    dropped: AtomicU64,
}

/// A runner that has been given an instance, and the part of the start message that has not been written yet.
struct Begun {
    runner: Runner,
    unwritten: Vec<u8>,
}

struct Runner {
    process: crate::host::process::Process,
    to: pipe::Sender,
    from: Messages<pipe::Receiver>,
}

enum ExitCause {
    /// The runner reported the end.
    Ended(Box<Ended>),
    /// The runner closed its pipe: it was killed, or died.
    Silent,
    /// The instance could not start, or cannot continue.
    Cannot(End),
    /// The runner violated the protocol.
    Broken(String),
}

impl InstanceTask {
    /// Begins at once if a runner is ready and there is no state to claim and no file to read.
    fn begin_at_once(&self) -> Option<Begun> {
        let waits = self.states.is_some() || self.launcher.secrets.iter().any(|secret| secret.file().is_some());
        if waits {
            return None;
        }
        let secrets = self.launcher.secrets.iter().map(read_secret).collect::<Result<_, _>>().ok()?;
        let ready = self.launcher.runners.take_ready(&self.module)?;
        self.begin(ready, secrets, None).ok()
    }

    /// Gives the instance to a runner, and writes as much of the start message as fits into the pipe.
    fn begin(
        &self,
        ready: Ready,
        secrets: Vec<(String, String)>,
        entries: Option<BTreeMap<String, Bytes>>,
    ) -> io::Result<Begun> {
        let Ready { process, to, from, page, tally, .. } = ready;
        let Launcher { election, node, arguments, config, running, runners, .. } = &self.launcher;
        let beginning = StartParams {
            term: self.term,
            election: election.to_string(),
            node: node.clone(),
            arguments: arguments.clone(),
            environment: self.launcher.environment(&self.module, self.term, &secrets),
            config: config.iter().cloned().chain(secrets).collect(),
            entries,
        };
        let mut message = frame(&ToRunner::Start(Box::new(beginning)))?;
        running.add(election, self.term, runners.policy(), &tally, process.pid(), &self.control.gate);
        let runner_handle = RunnerHandle { handle: process.handle().clone(), page, tally };
        // Cannot fail: an instance has only one runner.
        let _ = self.control.runner.set(runner_handle);
        self.control.open();
        if self.control.was_killed() {
            self.control.kill();
        }
        // If the pipe is full or closed, the task notices that later.
        let written = rustix::io::write(&to, &message).unwrap_or(0);
        message.drain(..written);
        runners.refill(&self.module, REFILL_AFTER);
        Ok(Begun { runner: Runner { process, to, from }, unwritten: message })
    }

    async fn run(self, begun: Option<Begun>) -> Gone {
        let mut until_gone = pin!(self.until_gone(begun));
        tokio::select! {
            biased;
            gone = &mut until_gone => return gone,
            () = self.lingers() => {}
        }
        // The channel has room; the receiver may be gone.
        let _ = self.tell.try_send(InstanceEvent::Dying);
        until_gone.await
    }

    /// Waits until [`LINGERS`] after the process was killed.
    async fn lingers(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.control.dying.subscribe().wait_for(|dying| *dying).await;
        sleep(LINGERS).await;
    }

    async fn until_gone(&self, begun: Option<Begun>) -> Gone {
        let mut runner = None;
        // Unwind safe: nothing that a panic leaves inconsistent is used again.
        let cause = AssertUnwindSafe(self.until_exit(begun, &mut runner)).catch_unwind().await;
        let cause = cause.unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            ExitCause::Cannot(End::Crashed(format!("the host failed to supervise the instance: {why}")))
        });
        let mut died = None;
        if let Some(Runner { mut process, .. }) = runner {
            // The runner may have closed its pipe or reported its end, but still be running. All its messages have been
            // handled.
            self.control.end(process.handle());
            // Without proof of its exit, the process does not count as gone, and the watchdog ends the host in time.
            died = match process.ended().await {
                Ok(status) => Some(status),
                Err(_) => pending().await,
            };
        }
        if let Some(RunnerHandle { tally, .. }) = self.control.runner.get() {
            // A killed runner has not reported the lines that it dropped last.
            self.report_dropped(tally.usage().dropped.saturating_sub(self.dropped.load(Ordering::Relaxed)));
        }
        let gone = self.judge(cause, died);
        self.control.gate.set_gone();
        gone
    }

    fn report_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
            self.output.notice(Notice::Dropped { lines, limit: self.launcher.runners.policy().limits.output });
        }
    }

    fn judge(&self, cause: ExitCause, died: Option<Status>) -> Gone {
        let crashed = |why: String| Gone { end: End::Crashed(why), backtrace: None };
        let gone = match cause {
            ExitCause::Ended(ended) => {
                let Ended { how, backtrace } = *ended;
                let end = match how {
                    How::Done => End::Done,
                    How::Failed(why) => End::Failed(why),
                    How::Crashed(why) => End::Crashed(why),
                    How::Fatal(why) => End::Fatal(why),
                    How::Unable(why) => End::Unable(why),
                };
                Gone { end, backtrace }
            }
            ExitCause::Silent => {
                let how = died.map_or_else(|| "the runner exited".to_owned(), describe_exit);
                // At the deadline, the runner ends itself.
                let killed = Gone { end: End::Killed, backtrace: None };
                if self.control.is_late() { killed } else { crashed(how) }
            }
            ExitCause::Cannot(end) => Gone { end, backtrace: None },
            ExitCause::Broken(why) => crashed(format!("the runner violated the protocol: {why}")),
        };
        let is_its_own = matches!(gone.end, End::Done | End::Superseded { .. }) || !self.control.was_refused();
        // The refusal is the first half of a kill. Any failure after it is not the guest's fault.
        if self.control.was_killed() || !is_its_own { Gone { end: End::Killed, backtrace: None } } else { gone }
    }

    async fn until_exit(&self, begun: Option<Begun>, kept: &mut Option<Runner>) -> ExitCause {
        let mut claim = None;
        let begun = match begun {
            Some(begun) => begun,
            None => {
                // A kill ends the preparation, whatever the preparation is waiting for.
                let begun = tokio::select! {
                    begun = self.prepare(&mut claim) => begun,
                    () = self.killed() => return ExitCause::Cannot(End::Killed),
                };
                match begun {
                    Ok(begun) => begun,
                    Err(end) => return ExitCause::Cannot(end),
                }
            }
        };
        let Begun { runner, unwritten } = begun;
        let runner = kept.insert(runner);
        let succession = claim.as_ref().map(Claim::succession);
        let mut instance_loop = InstanceLoop {
            task: self,
            claim: Arc::new(tokio::sync::Mutex::new(claim)),
            committing: None,
            lookups: JoinSet::new(),
            is_started: false,
            is_stepping_down: false,
            told: 0,
            lines: MessageLimit::new(self.launcher.runners.policy().limits.output, &self.launcher.clock),
        };
        instance_loop.until_exit(runner, unwritten, succession.as_ref()).await
    }

    async fn killed(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.control.killed.subscribe().wait_for(|killed| *killed).await;
    }

    async fn prepare(&self, claim: &mut Option<Claim>) -> Result<Begun, End> {
        let crashed = |why: String| End::Crashed(why);
        let ended_by = |cause: &io::Error, why: String| match shortage(cause) {
            Some(remedy) => End::Unable(format!("{why}; {remedy}")),
            None => End::Crashed(why),
        };
        let secrets = self.secrets().await.map_err(|why| End::Unable(format!("a secret is missing: {why}")))?;
        if let Some(states) = self.states.clone() {
            let claimed = states.claim(self.term, Arc::clone(&self.control.gate)).await;
            *claim = Some(claimed.map_err(|error| match error {
                ClaimError::Superseded(term) => End::Superseded { term },
                // A retry on this node would read the same bytes.
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

    /// Reads the current secrets. Reading a file may block forever, so it runs on a blocking thread.
    async fn secrets(&self) -> Result<Vec<(String, String)>, String> {
        let sources = self.launcher.secrets.clone();
        if sources.iter().all(|source| source.file().is_none()) {
            return sources.iter().map(read_secret).collect();
        }
        let read = tokio::task::spawn_blocking(move || sources.iter().map(read_secret).collect());
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Returns the remedy if a system call of the host failed for lack of processes, descriptors, memory or disk space.
/// Such an error says nothing about the version, since the runner limits the guest's own use of these resources.
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

/// Maximum number of DNS lookups in flight for a runner. Each occupies a thread until the system's resolver answers.
pub(crate) const LOOKUPS: usize = 4;

/// Timeout for an instance to begin, which usually takes milliseconds. Until then, no other node can lead.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);

struct InstanceLoop<'a> {
    task: &'a InstanceTask,
    claim: Arc<tokio::sync::Mutex<Option<Claim>>>,
    /// The commit in progress, if any. There is at most one, since the guest waits until each commit has ended.
    committing: Option<BoxFuture<'static, Result<(), CommitError>>>,
    lookups: JoinSet<(u64, Result<Vec<Resolved>, String>)>,
    is_started: bool,
    is_stepping_down: bool,
    /// Number of notices received of the kinds that a runner sends only once.
    told: u32,
    /// Limits the rate of messages that need no response.
    lines: MessageLimit,
}

impl InstanceLoop<'_> {
    async fn until_exit(
        &mut self,
        Runner { to, from, .. }: &mut Runner,
        mut unwritten: Vec<u8>,
        succession: Option<&HandoverClaim>,
    ) -> ExitCause {
        let task = self.task;
        let mut stopped = task.stopped.clone();
        let mut stop_sent = false;
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
                        Err(CommitError::Superseded(term)) => return ExitCause::Cannot(End::Superseded { term }),
                        committed => send(&mut unwritten, &ToRunner::Committed(committed.map_err(not_committed))),
                    }
                    continue;
                }
                Some(Ok((number, addresses))) = self.lookups.join_next() => {
                    send(&mut unwritten, &ToRunner::Resolved(number, addresses));
                    continue;
                }
                Ok(notice) = stopped.wait_for(Option::is_some), if !stop_sent => {
                    stop_sent = true;
                    if let Some(StopNotice { reason, message, grace_ends }) = notice.clone() {
                        let grace = grace_ends.since(task.launcher.clock.now());
                        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                        let notice = protocol::Notice { reason: reason.into(), message, grace_ms };
                        send(&mut unwritten, &ToRunner::Stop(notice));
                    }
                    continue;
                }
                superseded = &mut ahead => {
                    return ExitCause::Cannot(match superseded {
                        CommitError::Superseded(term) => End::Superseded { term },
                        other => End::Crashed(other.to_string()),
                    });
                }
                () = &mut begins_by, if !self.is_started => {
                    return ExitCause::Cannot(End::Crashed(format!(
                        "the instance did not start within {BEGINS_WITHIN:?}: its start function does not return, or \
                         the runner is stopped"
                    )));
                }
                written = writing => {
                    match written {
                        Ok(written) => drop(unwritten.drain(..written)),
                        // The runner has exited or closed its pipe. Its last messages say more than this error.
                        Err(_) => unwritten.clear(),
                    }
                    continue;
                }
            };
            match said {
                Ok(Some(message)) => {
                    if let Some(cause) = self.take(message, unwritten.len()) {
                        return cause;
                    }
                }
                Ok(None) => return ExitCause::Silent,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return ExitCause::Broken(error.to_string());
                }
                Err(_) => return ExitCause::Silent,
            }
        }
    }

    /// Handles a message from the runner. `unwritten` is the number of bytes that have not been written to the runner
    /// yet.
    fn take(&mut self, message: FromRunner, unwritten: usize) -> Option<ExitCause> {
        let InstanceTask { launcher, control, output, .. } = self.task;
        let may_leave = || control.gate.pass().is_ok();
        let is_answered = matches!(message, FromRunner::Commit(_) | FromRunner::Resolve { .. });
        if !is_answered && !self.lines.admits() {
            return Some(ExitCause::Broken("it sent too many messages".to_owned()));
        }
        // By now the runner has read its start message, and it keeps reading while it waits.
        if is_answered && unwritten > UNREAD {
            return Some(ExitCause::Broken("it does not read the responses to its requests".to_owned()));
        }
        if matches!(message, FromRunner::Denied { .. } | FromRunner::NearLimit(_) | FromRunner::RefusedRequest(_)) {
            self.told += 1;
            if self.told > TOLD {
                return Some(ExitCause::Broken("it repeated notices that it may send only once".to_owned()));
            }
        }
        match message {
            FromRunner::Started => {
                if std::mem::replace(&mut self.is_started, true) {
                    return Some(ExitCause::Broken("it reported twice that it started".to_owned()));
                }
                output.notice(Notice::Started(launcher.clock.now().since(self.task.started)));
                // The receiver may be gone.
                let _ = self.task.tell.try_send(InstanceEvent::Begun);
            }
            FromRunner::Line(_, line) if line.len() > LINE => {
                return Some(ExitCause::Broken(format!("it sent a line of {} bytes", line.len())));
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
            FromRunner::Dropped(lines) => self.task.report_dropped(lines),
            FromRunner::Denied { what, remedy } => output.notice(Notice::Denied { what: &what, remedy: &remedy }),
            FromRunner::NearLimit(near) => output.notice(Notice::NearLimit(near)),
            FromRunner::RefusedRequest(refused) => output.notice(Notice::RefusedRequest(&refused)),
            FromRunner::StepDown(reason) => {
                if std::mem::replace(&mut self.is_stepping_down, true) {
                    return Some(ExitCause::Broken("it asked twice to step down".to_owned()));
                }
                // The receiver may be gone.
                let _ = self.task.tell.try_send(InstanceEvent::StepDown(reason));
            }
            FromRunner::Commit(changes) => {
                if self.committing.is_some() {
                    return Some(ExitCause::Broken("it sent a commit during another commit".to_owned()));
                }
                // For an election without state, the runner itself refuses its guest's commits.
                if self.task.states.is_none() {
                    return Some(ExitCause::Broken("it sent a commit for an election without state".to_owned()));
                }
                let changes = match changes.read(launcher.runners.policy().call_bytes(true)) {
                    Ok(changes) => changes,
                    Err(error) => return Some(ExitCause::Broken(error.to_string())),
                };
                self.committing = Some(commit(Arc::clone(&self.claim), changes).boxed());
            }
            FromRunner::Resolve { number, host, port } => {
                if self.lookups.len() >= LOOKUPS {
                    return Some(ExitCause::Broken("it has too many DNS lookups in flight".to_owned()));
                }
                if may_leave() && launcher.runners.policy().http.may_ask(&host) {
                    self.lookups.spawn(look_up(number, host, port, launcher.runners.lookups()));
                } else {
                    self.lookups.spawn(async move { (number, Err("the term is over".to_owned())) });
                }
            }
            FromRunner::Panicked(why) => {
                return Some(ExitCause::Cannot(End::Crashed(format!("the runner panicked: {why}"))));
            }
            FromRunner::Ended(ended) if self.is_started && matches!(ended.how, How::Unable(_)) => {
                return Some(ExitCause::Broken("it reported a failed start after the start".to_owned()));
            }
            FromRunner::Ended(ended) => return Some(ExitCause::Ended(ended)),
            FromRunner::Ready { .. } | FromRunner::Failed(_) => {
                return Some(ExitCause::Broken("it reported twice that it is ready".to_owned()));
            }
        }
        None
    }
}

fn send(unwritten: &mut Vec<u8>, message: &ToRunner) {
    // Encoding fails only for a message far larger than memory.
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

/// Looks up a host name. The system's lookup cannot be interrupted; if it ends too late, its answer is dropped.
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

/// Waits for a successor, claims the state for it and asks the guest to stop. Returns only if the claim is superseded.
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
        // If this claim failed, the successor claims the state itself, while no instance runs.
        ask_to_stop(stop, notice);
    }
    pending().await
}
