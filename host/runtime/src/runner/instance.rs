//! One instance's life in its runner.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use baton_election::Time;
use tokio::sync::{mpsc, watch};
use wasmtime::{Store, UpdateDeadline, WasmBacktrace, WasmCoreDump};
use wasmtime_wasi::p2::bindings::Command;
use wasmtime_wasi::{I32Exit, WasiCtx};

use super::super::backtrace::shortened;
use super::super::denied::Denials;
use super::super::engine::Engine;
use super::super::files::{Folders, NoFolder};
use super::super::guest::{CALL_BYTES, Coordinator, Failure, Guest, StopNotice, TermContext};
use super::super::holdings::Holdings;
use super::super::http::Http;
use super::super::judge::ModuleKind;
use super::super::limits::{Limits, Tally};
use super::super::logging::GuestLog;
use super::super::module::{EntryPoint, Linked};
use super::super::output::{GuestStream, Notice, Outlet, Output, Silence, Stream, guest_streams};
use super::super::page::{Gate, Page};
use super::super::postmortem::{Profiler, SAMPLE_EVERY, leave, time_to_dump};
use super::super::protocol::{
    self, Beginning, Ended, FromRunner, How, LONGEST_TO_RUNNER, NotCommitted, ToRunner, frame,
};
use super::super::shared::{Others, SharedMemory};
use super::{KeptState, Lookups, Prepared, Wire, end};
use baton_store::clock::Clock;

/// An instance that is about to begin.
pub(super) struct Instance {
    prepared: Prepared,
    beginning: Beginning,
    from_host: File,
    ticker: Option<Ticker>,
}

/// What hears what the host says while the instance runs.
pub(super) struct Hears {
    from_host: File,
    stop: watch::Sender<Option<StopNotice>>,
    committed: mpsc::UnboundedSender<Result<(), NotCommitted>>,
    lookups: Lookups,
    clock: Clock,
}

impl Hears {
    /// Hears all of it. The end is the host's, and then this process ends.
    pub(super) fn until_the_end(self) -> ! {
        let Self { mut from_host, stop, committed, lookups, clock } = self;
        let mut next = || protocol::read(&mut from_host, LONGEST_TO_RUNNER).ok().flatten();
        while let Some(message) = next() {
            match message {
                ToRunner::Stop(protocol::Notice { reason, message, grace_ms }) => {
                    let grace_ends = clock.now() + Duration::from_millis(grace_ms);
                    stop.send_replace(Some(StopNotice { reason, message, grace_ends }));
                }
                // Who asked may have ended.
                ToRunner::Committed(answer) => drop(committed.send(answer)),
                ToRunner::Resolved(number, addresses) => lookups.resolved(number, addresses),
                ToRunner::Prepare(_) | ToRunner::Start(_) => {}
            }
        }
        end(1)
    }
}

/// Makes a busy guest show where it is, for as long as it runs.
pub(super) struct Ticker(std::sync::mpsc::Sender<()>);

impl Ticker {
    /// Ready to begin.
    pub(super) fn start(engine: &Engine) -> std::io::Result<Self> {
        let (begin, begins) = std::sync::mpsc::channel();
        let engine = engine.wasmtime().clone();
        // It ends with the process.
        std::thread::Builder::new().name("ticker".into()).spawn(move || {
            if begins.recv().is_ok() {
                loop {
                    std::thread::sleep(SAMPLE_EVERY);
                    engine.increment_epoch();
                }
            }
        })?;
        Ok(Self(begin))
    }
}

type Returned = wasmtime::Result<Result<(), Failure>>;

impl Instance {
    pub(super) fn new(prepared: Prepared, beginning: Beginning, from_host: File, ticker: Option<Ticker>) -> Self {
        Self { prepared, beginning, from_host, ticker }
    }

    /// Runs it, and says how it ended. What hears the host goes to `hear` before the guest's first instruction.
    pub(super) fn run(self, hear: impl FnOnce(Hears)) {
        let Self { prepared, beginning, from_host, ticker } = self;
        let clock = Clock::default();
        let (stop, stopped) = watch::channel(None);
        let (committed, answers) = mpsc::unbounded_channel();
        let (gate, wire) = (Arc::clone(&prepared.gate), prepared.wire.clone());
        let output: Arc<dyn Output> = Arc::new(wire.clone());
        let policy = &prepared.setup.policy;
        let profiler = Profiler::of(policy.profile, &beginning.election, beginning.term, prepared.linked.component());
        let around = Surroundings::of(&prepared, gate, prepared.tally.clone(), output, profiler, clock.clone());
        let mut store = None;
        let returned = {
            let begin = || -> wasmtime::Result<&mut Store<Guest>> {
                let folders = Folders::open(&around.gate, &policy.folders)?;
                let state = beginning.entries.clone().map(|entries| KeptState::new(entries, wire.clone(), answers));
                Ok(store.insert(around.store(&prepared, &beginning, folders, state, stopped)))
            };
            begin().and_then(|store| {
                if let Some(Ticker(begin)) = &ticker {
                    let _ = begin.send(());
                }
                hear(Hears { from_host, stop, committed, lookups: prepared.lookups.clone(), clock });
                prepared.runtime.run(call(&prepared.linked, store, &wire))
            })
        };
        around.finish();
        let core_dump = match &returned {
            Err(error) if policy.core_dump && around.gate.check().is_ok() => {
                store.as_mut().and_then(|store| core_dump(error, store, &beginning.election, &around.gate))
            }
            _ => None,
        };
        if let Some(guest) = store.as_mut().map(Store::data_mut) {
            guest.held.finish();
            guest.http.finish();
        }
        let (how, backtrace) = judge(returned, policy.limits);
        let left = leave(prepared.remains, core_dump, &around.profiler);
        wire.send(&FromRunner::Ended(Box::new(Ended { how, backtrace, left })));
        // All of it ends with the process, which takes no longer the more it has.
        end(0)
    }
}

/// What surrounds a guest: where its effects go, and what they are held to.
struct Surroundings {
    gate: Arc<Gate>,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
    clock: Clock,
    outlet: Arc<Outlet>,
    streams: [GuestStream; 2],
    profiler: Profiler,
}

impl Surroundings {
    fn of(
        prepared: &Prepared,
        gate: Arc<Gate>,
        tally: SharedMemory<Tally>,
        output: Arc<dyn Output>,
        profiler: Profiler,
        clock: Clock,
    ) -> Self {
        let Prepared { setup, linked, .. } = prepared;
        let outlet = Outlet::new(setup.policy.limits.output, &clock, &tally, &output);
        let mut streams = guest_streams(&gate, &outlet);
        if linked.outline.kind == ModuleKind::Command {
            streams = streams.map(|stream| stream.counting(&tally));
        }
        Self { gate, tally, output, clock, outlet, streams, profiler }
    }

    /// The store of the guest.
    fn store(
        &self,
        prepared: &Prepared,
        beginning: &Beginning,
        folders: Folders,
        state: Option<KeptState>,
        stopped: watch::Receiver<Option<StopNotice>>,
    ) -> Store<Guest> {
        let Self { gate, tally, output, clock, outlet, streams, profiler } = self;
        let Prepared { setup, linked, client, wire, .. } = prepared;
        let term = TermContext {
            number: beginning.term,
            election: beginning.election.clone(),
            node: beginning.node.clone(),
            module: setup.digest.to_string(),
            gate: Arc::clone(gate),
            clock: clock.clone(),
            stop: stopped.clone(),
            tally: tally.clone(),
            wire: wire.clone(),
            has_stepped_down: false,
        };
        let guest = Guest {
            wasi: wasi(beginning, streams),
            config: beginning.config.iter().cloned().collect(),
            log: GuestLog::new(gate, outlet),
            folders,
            held: Holdings::new(setup.policy.limits, tally, output, clock),
            looks: prepared.runtime.looks(clock),
            denials: Denials::new(Arc::clone(output), linked.outline.asks_for_folders),
            http: Http::new(client, &term, Arc::clone(output), tally),
            term,
            state,
        };
        let mut store = new_store(linked, guest, profiler, stopped);
        store.set_hostcall_fuel(setup.policy.call_bytes(linked.outline.uses_state));
        store.set_max_component_handles(setup.policy.limits.handles());
        store
    }

    /// Writes out what is left of its lines.
    fn finish(&self) {
        for stream in &self.streams {
            stream.finish();
        }
        self.outlet.finish();
    }
}

/// The start of an instance, done once before there is a term and thrown away: what it needs is in memory afterwards,
/// where a start would have to wait for each page of it. No function of the guest's runs in it; its memories and tables are
/// laid out.
pub(super) struct Rehearsal {
    gate: Arc<Gate>,
    tally: SharedMemory<Tally>,
}

impl Rehearsal {
    /// One in which nothing could leave, and nothing is counted.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) fn new() -> std::io::Result<Self> {
        let (_, page) = Page::make()?;
        let (tally, _) = SharedMemory::make("baton-rehearsal", Others::Read)?;
        Ok(Self { gate: Arc::new(Gate::map(page, &tally)?), tally })
    }

    /// Goes as far as it can. What stands in its way will be said when an instance is to start.
    pub(super) fn hold(self, prepared: &Prepared) {
        let Self { gate, tally } = self;
        let variable = || vec![("REHEARSAL".to_owned(), String::new())];
        let beginning = Beginning {
            term: 0,
            election: String::new(),
            node: String::new(),
            arguments: vec!["rehearsal".to_owned()],
            environment: variable(),
            config: variable(),
            entries: None,
        };
        let Ok(message) = frame(&ToRunner::Start(Box::new(beginning))) else { return };
        let Ok(Some(ToRunner::Start(beginning))) = protocol::read(&mut &message[..], LONGEST_TO_RUNNER) else { return };
        let profiler = Profiler::of(false, &beginning.election, beginning.term, prepared.linked.component());
        let around = Surroundings::of(prepared, gate, tally, Arc::new(Silence), profiler, Clock::default());
        let Ok(folders) = Folders::open(&around.gate, &[]) else { return };
        let mut store = around.store(prepared, &beginning, folders, None, watch::channel(None).1);
        if prepared.linked.outline.is_inert {
            let _ = prepared.runtime.run(instantiate(&prepared.linked, &mut store));
        }
        around.outlet.put(|output| output.notice(Notice::Line(Stream::Stdout, "")));
        around.finish();
        let _ = (prepared.gate.remaining(), prepared.tally.usage());
    }
}

fn wasi(beginning: &Beginning, [stdout, stderr]: &[GuestStream; 2]) -> WasiCtx {
    WasiCtx::builder()
        .envs(&beginning.environment)
        .arg(&beginning.election)
        .args(&beginning.arguments)
        .stdout(stdout.clone())
        .stderr(stderr.clone())
        .max_random_size(CALL_BYTES as u64)
        .allow_tcp(false)
        .allow_udp(false)
        .build()
}

/// A guest that is profiled ends itself so long before its grace does: who kills it gets no profile of it.
const BEFORE_GRACE_ENDS: Duration = Duration::from_secs(1);

fn new_store(
    linked: &Linked,
    guest: Guest,
    profiler: &Profiler,
    stopped: watch::Receiver<Option<StopNotice>>,
) -> Store<Guest> {
    let mut store = Store::new(linked.engine.wasmtime(), guest);
    store.limiter(|guest| &mut guest.held);
    if linked.engine.purpose().profile {
        let (sampler, clock) = (profiler.clone(), store.data().term.clock.clone());
        let mut ends: Option<Time> = None;
        store.epoch_deadline_callback(move |store| {
            sampler.sample(&store);
            let now = clock.now();
            let ends = ends.or_else(|| {
                let grace_ends = stopped.borrow().as_ref()?.grace_ends;
                let left = grace_ends.since(now);
                ends = Some(now + left.saturating_sub(BEFORE_GRACE_ENDS.min(left / 2)));
                ends
            });
            Ok(match ends {
                Some(ends) if now >= ends => UpdateDeadline::Interrupt,
                _ => UpdateDeadline::Continue(1),
            })
        });
        store.set_epoch_deadline(1);
    }
    store
}

async fn call(linked: &Linked, store: &mut Store<Guest>, wire: &Wire) -> Returned {
    let instance = instantiate(linked, store).await?;
    wire.send(&FromRunner::Started);
    match instance {
        Instantiated::Coordinator(coordinator) => coordinator.baton_host_task().call_run(store).await,
        Instantiated::Command(command) => {
            let ended = command.wasi_cli_run().call_run(store).await?;
            Ok(ended.map_err(|()| Failure::Retryable(ERROR_STATUS.to_owned())))
        }
    }
}

/// What can be called.
enum Instantiated {
    Coordinator(Coordinator),
    Command(Command),
}

async fn instantiate(linked: &Linked, store: &mut Store<Guest>) -> wasmtime::Result<Instantiated> {
    store.data().held.has_instances(linked.instances);
    Ok(match &linked.entry {
        EntryPoint::Coordinator(pre) => Instantiated::Coordinator(pre.instantiate_async(store).await?),
        EntryPoint::Command(pre) => Instantiated::Command(pre.instantiate_async(store).await?),
    })
}

/// What is known where a guest can only say that it failed.
const ERROR_STATUS: &str = "the coordinator exited with an error status";

/// The core dump of an instance that trapped, or why there is none. There must be time enough for it until the deadline.
fn core_dump(
    error: &wasmtime::Error,
    store: &mut Store<Guest>,
    election: &str,
    gate: &Gate,
) -> Option<Result<Vec<u8>, String>> {
    let dump = error.downcast_ref::<WasmCoreDump>().filter(|_| !error.is::<I32Exit>())?;
    let takes = time_to_dump(store.data().held.memory());
    let left = gate.remaining();
    if left < takes {
        return Some(Err(format!("a core dump may take {takes:?}, and only {left:?} remain until the deadline")));
    }
    Some(Ok(dump.serialize(store, election)))
}

fn judge(returned: Returned, limits: Limits) -> (How, Option<String>) {
    let how = match returned {
        Ok(Ok(())) => How::Done,
        Ok(Err(Failure::Retryable(why))) => How::Failed(why),
        Ok(Err(Failure::Fatal(why))) => How::Fatal(why),
        Err(error) => match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(0)) => How::Done,
            // Most guests can only say that it is not 0, and then this is all that arrives.
            Some(I32Exit(1)) => How::Failed(ERROR_STATUS.to_owned()),
            Some(I32Exit(status)) => How::Failed(format!("the coordinator exited with status {status}")),
            None if error.downcast_ref() == Some(&wasmtime::Trap::Interrupt) => How::Killed,
            None if error.is::<NoFolder>() => How::Unable(error.to_string()),
            None => {
                let backtrace =
                    error.downcast_ref::<WasmBacktrace>().map(|backtrace| shortened(&backtrace.to_string()));
                let why = limits.explain(&error).unwrap_or_else(|| error.root_cause().to_string());
                return (How::Crashed(why), backtrace);
            }
        },
    };
    (how, None)
}
