//! Instances: one running copy of a module, from its start until it is gone.

use std::future::pending;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use baton_election::{ElectionName, End, StopReason, Term, Time};
use futures::FutureExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, unconstrained};
use tokio::time::{Sleep, sleep};
use wasmtime::{Store, UpdateDeadline, WasmBacktrace, WasmCoreDump};
use wasmtime_wasi::{I32Exit, WasiCtx};

use super::backtrace::shortened;
use super::empty::Denials;
use super::engine::{Engine, Ticking};
use super::files::Folders;
use super::guest::{CALL_BYTES, Failure, Guest, Progress, StopNotice, TermContext};
use super::holdings::Holdings;
use super::http::{Http, HttpPolicy, Lifeline};
use super::judge::Kind;
use super::limits::{Limits, Tally, Usage};
use super::logging::GuestLog;
use super::module::{Entry, Module};
use super::output::{GuestStream, Notice, Outlet, Output, guest_streams};
use super::own::Own;
use super::postmortem::{Postmortem, Profiler, time_to_dump};
use super::running::Running;
use crate::clock::Clock;
use crate::config::{Folder, SecretSource};
use crate::gate::{Gate, Watchdog};
use crate::memory;
use crate::state::{self, ClaimError, Claimant, CommitError, StateStore, Succession};

/// Events that wait for the supervisor: a step-down, and a guest cannot make it more.
const EVENTS: usize = 1;
/// Where the host has kept more for an instance, in bytes, it gives that back to the system at once.
const HOARD: u64 = 4 << 20;
/// How long a request to stop usually waits until the state is claimed for the term that follows.
pub const CLAIM_AHEAD: Duration = Duration::from_millis(250);

/// Starts the instances of one coordinator, whichever version of it they run.
#[derive(Clone)]
pub struct Launcher {
    /// The election that they serve.
    pub election: ElectionName,
    /// The node that they run on.
    pub node: String,
    /// What each may use of the host.
    pub limits: Limits,
    /// Where their state is kept.
    pub states: Arc<dyn StateStore>,
    /// How much state they may keep.
    pub state_limits: state::Limits,
    /// What one that is replaced leaves to the next one.
    pub inheritance: state::Inheritance,
    /// How long a request to stop waits, at the most and never for more than a quarter of the grace, until the state
    /// is claimed for the next one.
    pub claim_ahead: Duration,
    /// What is kept of those that end.
    pub postmortem: Postmortem,
    /// The environment that they see.
    pub env: Vec<(String, String)>,
    /// Their configuration: variables, too, and what `wasi:config/store` answers them.
    pub config: Vec<(String, String)>,
    /// The secrets in it, read anew for each instance.
    pub secrets: Vec<SecretSource>,
    /// The folders that they may use, opened anew for each instance.
    pub folders: Vec<Folder>,
    /// What they may do over HTTP.
    pub http: Arc<HttpPolicy>,
    /// Where they are listed while they run.
    pub running: Running,
    /// The runtime that guests run on, and nothing else. It must have several threads.
    pub guests: Handle,
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
        let (kill, killed) = watch::channel(false);
        let (tell, events) = mpsc::channel(EVENTS);
        let progress = Arc::new(Progress::new(started));
        let context = TermContext {
            number: term,
            election: self.election.to_string(),
            node: self.node.clone(),
            module: module.digest().to_owned(),
            gate: Arc::clone(&gate),
            clock: self.clock.clone(),
            stop: stopped,
            progress: Arc::clone(&progress),
            tell,
        };
        let tally = Arc::new(Tally::default());
        let outlet = Outlet::new(self.limits.output, &self.clock, &tally, &output);
        let mut streams = guest_streams(&gate, &outlet);
        let log = GuestLog::new(&gate, &outlet);
        if module.kind() == Kind::Command {
            streams = streams.map(|stream| stream.counting(&progress, &self.clock));
        }
        let (http, lifeline) = Http::new(Arc::clone(&self.http), &context, Arc::clone(&output), &tally);
        let kill_flag = Arc::new(AtomicBool::new(false));
        let engine = module.engine.clone();
        let life = Life {
            launcher: self.clone(),
            module: module.clone(),
            context,
            ticking: engine.ticking(),
            states: self.states_of(module, &output),
            http,
            lifeline,
            streams,
            log,
            held: Holdings::new(self.limits, &tally, &output, &self.clock),
            outlet,
            succeeded,
            stop: stop.clone(),
            killed,
            kill_flag: Arc::clone(&kill_flag),
            gate: Arc::clone(&gate),
            output,
            tally: Arc::clone(&tally),
            started,
        };
        self.running.add(&self.election, term, self.limits, self.http.max_requests(), &tally);
        // The guest's thread is woken first. Whoever watches it is in no hurry, and on a small machine would
        // only be in its way.
        let task = self.guests.spawn(life.run_through_panics());
        self.watchdog.watch(&gate);
        engine.wake_ticker();
        Instance {
            gate,
            started,
            stop,
            succeed,
            patience: None,
            claim_ahead: self.claim_ahead,
            clock: self.clock.clone(),
            kill,
            kill_flag,
            progress,
            tally,
            events,
            task,
            engine,
            killing: None,
        }
    }

    fn guest(
        &self,
        module: &Module,
        term: TermContext,
        Provided { secrets, folders, log, held, http }: Provided,
        [stdout, stderr]: &[GuestStream; 2],
        output: &Arc<dyn Output>,
    ) -> Guest {
        let wasi = WasiCtx::builder()
            .envs(&self.environment(module, term.number, &secrets))
            .args(&[self.election.as_str()])
            .stdout(stdout.clone())
            .stderr(stderr.clone())
            .max_random_size(CALL_BYTES as u64)
            .allow_tcp(false)
            .allow_udp(false)
            .build();
        let denials = Denials::new(Arc::clone(output), module.asks_for_folders);
        let config = self.config.iter().cloned().chain(secrets).collect();
        Guest { wasi, config, log, folders, held, denials, term, state: None, http }
    }

    /// What was given, and for a command, which knows no other way to learn of them, its fencing token and whom
    /// it serves. Nobody else sets these.
    fn environment(&self, module: &Module, term: Term, secrets: &[(String, String)]) -> Vec<(String, String)> {
        let given = self.env.iter().chain(&self.config).chain(secrets).cloned();
        if module.kind() == Kind::Coordinator {
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
            self.inheritance.clear();
            return None;
        }
        let output = Arc::clone(output);
        Some(Claimant {
            store: Arc::clone(&self.states),
            election: self.election.clone(),
            limits: self.state_limits,
            inheritance: self.inheritance.clone(),
            tell: Arc::new(move |refusal| output.notice(Notice::StateDelayed(refusal))),
        })
    }

    /// What one call may hand over, in bytes: a commit that is too large must arrive to be told so.
    fn call_bytes(&self, module: &Module) -> usize {
        let state = usize::try_from(self.state_limits.total).unwrap_or(usize::MAX);
        if module.uses_state() { CALL_BYTES.saturating_add(state.saturating_mul(2)) } else { CALL_BYTES }
    }
}

/// A running instance, in the hands of its supervisor. Dropping it kills it.
pub struct Instance {
    gate: Arc<Gate>,
    started: Time,
    stop: watch::Sender<Option<StopNotice>>,
    succeed: watch::Sender<Option<Successor>>,
    /// When it is asked to stop though the state is not claimed for its successor yet.
    patience: Option<(Pin<Box<Sleep>>, StopNotice)>,
    claim_ahead: Duration,
    clock: Clock,
    kill: watch::Sender<bool>,
    kill_flag: Arc<AtomicBool>,
    progress: Arc<Progress>,
    tally: Arc<Tally>,
    events: mpsc::Receiver<InstanceEvent>,
    task: JoinHandle<Gone>,
    engine: Engine,
    /// Interrupts it until it is gone, once it is being killed.
    killing: Option<Ticking>,
}

/// What an instance tells its supervisor.
#[derive(Debug)]
pub enum InstanceEvent {
    /// It gives leadership up.
    StepDown(String),
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
                    // A panic of the host's own code dropped its store; its task has waited for the rest.
                    self.gate.set_gone();
                    Gone { end: End::Crashed(format!("the host failed to run it: {error}")), backtrace: None }
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
        self.gate.close();
        self.kill_flag.store(true, Ordering::Release);
        self.kill.send_replace(true);
        self.killing.get_or_insert_with(|| self.engine.killing());
    }

    /// Moves its deadlines after a renewal.
    pub fn extend(&self, deadline: Time, abort_at: Time) {
        self.gate.extend(deadline, abort_at);
    }

    /// The time until its effects are refused.
    pub fn remaining(&self) -> Duration {
        self.gate.remaining()
    }

    /// When it last said that it did useful work; its start, if it never did.
    pub fn last_progress(&self) -> Time {
        self.progress.last()
    }

    /// What it uses, or has used.
    pub fn usage(&self) -> Usage {
        self.tally.usage()
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

/// What is made for each instance anew.
struct Provided {
    secrets: Vec<(String, String)>,
    folders: Folders,
    log: GuestLog,
    held: Holdings,
    http: Http,
}

/// An instance's life as its own task sees it.
struct Life {
    launcher: Launcher,
    module: Module,
    context: TermContext,
    /// Makes it yield, for as long as it lives.
    ticking: Ticking,
    /// Claims the state first, where the module uses it.
    states: Option<Claimant>,
    http: Http,
    /// Ends when its last request has.
    lifeline: Lifeline,
    streams: [GuestStream; 2],
    log: GuestLog,
    held: Holdings,
    outlet: Arc<Outlet>,
    succeeded: watch::Receiver<Option<Successor>>,
    stop: watch::Sender<Option<StopNotice>>,
    killed: watch::Receiver<bool>,
    kill_flag: Arc<AtomicBool>,
    gate: Arc<Gate>,
    output: Arc<dyn Output>,
    tally: Arc<Tally>,
    started: Time,
}

type Returned = wasmtime::Result<Result<(), Failure>>;

impl Life {
    /// A panic of the host's own code drops the store, which ends what the instance had started, and waits for none of
    /// it. So that is done here, before anyone hears of the panic.
    async fn run_through_panics(self) -> Gone {
        let lifeline = self.lifeline.clone();
        // Nothing that the panic leaves half done is looked at again.
        match AssertUnwindSafe(self.run()).catch_unwind().await {
            Ok(gone) => gone,
            Err(panic) => {
                lifeline.ended().await;
                resume_unwind(panic)
            }
        }
    }

    async fn run(self) -> Gone {
        let Self {
            launcher,
            module,
            context,
            ticking: _ticking,
            states,
            streams,
            log,
            held,
            outlet,
            http,
            lifeline,
            succeeded,
            stop,
            mut killed,
            ..
        } = self;
        let Self { kill_flag, gate, output, tally, started, .. } = self;
        let own = Own::default();
        let mut store = None;
        let succession = OnceLock::new();
        let Launcher { postmortem, election, .. } = &launcher;
        let term = context.number;
        let profiler = postmortem.profiler(election, term, module.component());

        // A busy guest is ended by the epoch callback; a waiting one by dropping its call. Which of the two
        // it is cannot be known, so from the kill until the call has ended both are at work.
        let returned = {
            let call = async {
                let secrets = own.secrets(&launcher.secrets).await?;
                let folders = match &launcher.folders[..] {
                    [] => Folders::none(&gate),
                    folders => Folders::open(&gate, own.handle()?, folders).await?,
                };
                let provided = Provided { secrets, folders, log, held, http };
                let guest = launcher.guest(&module, context, provided, &streams, &output);
                let store = store.insert(new_store(&launcher, &module, guest, &kill_flag, &profiler));
                call(&module, store, states, &succession, &*output, started).await
            };
            let interrupt = async {
                // The sender lives as long as whoever could still kill this.
                let _ = killed.wait_for(|killed| *killed).await;
            };
            tokio::select! {
                biased;
                () = interrupt => None,
                returned = call => Some(returned),
                // A guest that asks for much must not use up what this may do in one go.
                superseded = unconstrained(claim_ahead(succeeded, &succession, &stop)) => {
                    Some(Err(wasmtime::Error::new(superseded)))
                }
            }
        };
        let was_killed = kill_flag.load(Ordering::Acquire);
        for stream in &streams {
            stream.finish();
        }
        outlet.finish();
        let core_dump = match &returned {
            Some(Err(error)) if postmortem.wants_core_dump() && !was_killed && !gate.has_refused() => {
                store.as_mut().and_then(|store| core_dump(error, store, election, &gate))
            }
            _ => None,
        };
        let gone = match returned.filter(|_| !was_killed).map(|returned| judge(returned, launcher.limits)) {
            // The refusal is the kill's first half; whatever it then failed with is no fault of its own.
            Some(gone) if matches!(gone.end, End::Done | End::Superseded { .. }) || !gate.has_refused() => gone,
            _ => Gone { end: End::Killed, backtrace: None },
        };
        if let Some(guest) = store.as_mut().map(Store::data_mut) {
            guest.held.finish();
        }
        let has_hoarded = tally.usage().kept > HOARD;
        // Freeing much memory takes long: another thread takes over the other guests, and this one, which has
        // the memory at hand, drops it without waiting for anyone but the calls that it had started.
        tokio::task::block_in_place(move || {
            drop(store);
            drop(own);
            if has_hoarded {
                memory::give_back();
            }
        });
        lifeline.ended().await;
        gate.set_gone();
        postmortem.keep((election, term), core_dump, &profiler, &output);
        gone
    }
}

fn new_store(
    launcher: &Launcher,
    module: &Module,
    guest: Guest,
    kill_flag: &Arc<AtomicBool>,
    profiler: &Profiler,
) -> Store<Guest> {
    let mut store = Store::new(module.engine.wasmtime(), guest);
    store.limiter(|guest| &mut guest.held);
    store.set_hostcall_fuel(launcher.call_bytes(module));
    store.set_max_component_handles(launcher.limits.handles());
    let (flag, sampler) = (Arc::clone(kill_flag), profiler.clone());
    store.epoch_deadline_callback(move |mut store| {
        if flag.load(Ordering::Acquire) {
            return Ok(UpdateDeadline::Interrupt);
        }
        store.data_mut().held.look();
        sampler.sample(store);
        Ok(UpdateDeadline::Yield(1))
    });
    store.set_epoch_deadline(1);
    store
}

/// Claims the state for the successor, once there is one, and then asks the guest to stop. Returns only if the state
/// turns out to be another's.
async fn claim_ahead(
    mut succeeded: watch::Receiver<Option<Successor>>,
    succession: &OnceLock<Succession>,
    stop: &watch::Sender<Option<StopNotice>>,
) -> CommitError {
    let successor = succeeded.wait_for(Option::is_some).await.ok().and_then(|successor| successor.clone());
    if let Some(Successor { term, notice }) = successor {
        if let Some(succession) = succession.get()
            && let Err(superseded @ CommitError::Superseded(_)) = succession.claim(term).await
        {
            return superseded;
        }
        // Without a claim its successor claims for itself, while nothing runs.
        ask_to_stop(stop, notice);
    }
    pending().await
}

async fn call(
    module: &Module,
    store: &mut Store<Guest>,
    states: Option<Claimant>,
    succession: &OnceLock<Succession>,
    output: &dyn Output,
    started: Time,
) -> Returned {
    if let Some(states) = states {
        let (term, gate) = (store.data().term.number, Arc::clone(&store.data().term.gate));
        let claim = states.claim(term, gate).await.map_err(wasmtime::Error::new)?;
        succession.get_or_init(|| claim.succession());
        store.data_mut().state = Some(claim);
    }
    store.data().held.has_instances(module.instances());
    let is_started =
        |store: &Store<Guest>| output.notice(Notice::Started(store.data().term.clock.now().since(started)));
    match &module.entry {
        Entry::Coordinator(pre) => {
            let coordinator = pre.instantiate_async(&mut *store).await?;
            is_started(store);
            coordinator.baton_host_task().call_run(store).await
        }
        Entry::Command(pre) => {
            let command = pre.instantiate_async(&mut *store).await?;
            is_started(store);
            let ended = command.wasi_cli_run().call_run(store).await?;
            Ok(ended.map_err(|()| Failure::Retryable(ERROR_STATUS.to_owned())))
        }
    }
}

/// What is known where a guest can only say that it failed.
const ERROR_STATUS: &str = "it exited with an error status";

/// The core dump of an instance that trapped, or why there is none. While it is made nothing can end the
/// instance: there must be time enough for that.
fn core_dump(
    error: &wasmtime::Error,
    store: &mut Store<Guest>,
    election: &ElectionName,
    gate: &Gate,
) -> Option<Result<Vec<u8>, String>> {
    let dump = error.downcast_ref::<WasmCoreDump>().filter(|_| !error.is::<I32Exit>())?;
    let takes = time_to_dump(store.data().held.memory());
    let left = gate.remaining();
    if left < takes {
        return Some(Err(format!("making it may take {takes:?}, and there are {left:?} until the deadline")));
    }
    Some(Ok(tokio::task::block_in_place(|| dump.serialize(store, election.as_str()))))
}

fn judge(returned: Returned, limits: Limits) -> Gone {
    let end = match returned {
        Ok(Ok(())) => End::Done,
        Ok(Err(Failure::Retryable(why))) => End::Failed(why),
        Ok(Err(Failure::Fatal(why))) => End::Fatal(why),
        Err(error) if let Some(end) = end_of_state(&error) => end,
        Err(error) => match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(0)) => End::Done,
            // Most guests can only say that it is not 0, and then this is all that arrives.
            Some(I32Exit(1)) => End::Failed(ERROR_STATUS.to_owned()),
            Some(I32Exit(status)) => End::Failed(format!("it exited with status {status}")),
            None => {
                let backtrace =
                    error.downcast_ref::<WasmBacktrace>().map(|backtrace| shortened(&backtrace.to_string()));
                return Gone {
                    end: End::Crashed(limits.explain(&error).unwrap_or_else(|| error.root_cause().to_string())),
                    backtrace,
                };
            }
        },
    };
    Gone { end, backtrace: None }
}

/// The end that the state's claim led to, if it did.
fn end_of_state(error: &wasmtime::Error) -> Option<End> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ClaimError::Superseded(term)), _) | (_, Some(CommitError::Superseded(term))) => {
            Some(End::Superseded { term: *term })
        }
        // Trying again here would find the same bytes.
        (Some(ClaimError::Document(_)), _) => Some(End::Fatal(error.to_string())),
        _ => None,
    }
}
