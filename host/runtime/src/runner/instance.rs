//! Runs one instance in its runner, from start to end.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wasmtime::{Store, WasmBacktrace};
use wasmtime_wasi::p2::bindings::Command;
use wasmtime_wasi::{I32Exit, WasiCtx};

use super::{LocalState, Lookups, PreparedRunner, Wire, end};
use crate::module::backtrace::shortened;
use crate::module::judge::ModuleKind;
use crate::module::{EntryPoint, Linked};
use crate::runner::denied::Denials;
use crate::runner::files::{Folders, NoFolder};
use crate::runner::guest::{CALL_BYTES, Coordinator, Failure, Guest, StopNotice, TermContext};
use crate::runner::holdings::Holdings;
use crate::runner::http::Http;
use crate::runner::logging::GuestLog;
use crate::wire::limits::{Limits, Tally};
use crate::wire::output::{GuestStream, Notice, NullOutput, Outlet, Output, Stream, guest_streams};
use crate::wire::page::{Page, RunnerGate};
use crate::wire::protocol::{
    self, Ended, FromRunner, How, LONGEST_TO_RUNNER, NotCommitted, StartParams, ToRunner, frame,
};
use crate::wire::shared::{Others, SharedMemory};
use baton_base::clock::Clock;

pub(super) struct Instance {
    prepared: PreparedRunner,
    beginning: StartParams,
    from_host: File,
}

pub(super) struct HostReader {
    from_host: File,
    stop: watch::Sender<Option<StopNotice>>,
    committed: mpsc::UnboundedSender<Result<(), NotCommitted>>,
    lookups: Lookups,
    clock: Clock,
}

impl HostReader {
    /// Reads messages until the pipe is closed, which means that the host has exited. Then ends this process.
    pub(super) fn serve(self) -> ! {
        let Self { mut from_host, stop, committed, lookups, clock } = self;
        let mut next = || protocol::read(&mut from_host, LONGEST_TO_RUNNER).ok().flatten();
        while let Some(message) = next() {
            match message {
                ToRunner::Stop(protocol::Notice { reason, message, grace_ms }) => {
                    let grace_ends = clock.now() + Duration::from_millis(grace_ms);
                    stop.send_replace(Some(StopNotice { reason, message, grace_ends }));
                }
                // Ignore an error: the guest may no longer wait for the answer.
                ToRunner::Committed(answer) => drop(committed.send(answer)),
                ToRunner::Resolved(number, addresses) => lookups.resolved(number, addresses),
                ToRunner::Prepare(_) | ToRunner::Start(_) => {}
            }
        }
        end(1)
    }
}

type Returned = wasmtime::Result<Result<(), Failure>>;

impl Instance {
    pub(super) fn new(prepared: PreparedRunner, beginning: StartParams, from_host: File) -> Self {
        Self { prepared, beginning, from_host }
    }

    /// Runs the instance, and reports to the host how it ended. Before the guest's first instruction, passes to `hear`
    /// the [`HostReader`], which another thread must serve.
    pub(super) fn run(self, hear: impl FnOnce(HostReader)) {
        let Self { prepared, beginning, from_host } = self;
        let clock = Clock::default();
        let (stop, stopped) = watch::channel(None);
        let (committed, answers) = mpsc::unbounded_channel();
        let (gate, wire) = (Arc::clone(&prepared.gate), prepared.wire.clone());
        let output: Arc<dyn Output> = Arc::new(wire.clone());
        let policy = &prepared.setup.policy;
        let around = GuestEnvironment::of(&prepared, gate, prepared.tally.clone(), output, clock.clone());
        let mut store = None;
        let returned = {
            let begin = || -> wasmtime::Result<&mut Store<Guest>> {
                let folders = Folders::open(&around.gate, &policy.folders)?;
                let state = beginning.entries.clone().map(|entries| LocalState::new(entries, wire.clone(), answers));
                Ok(store.insert(around.store(&prepared, &beginning, folders, state, stopped)))
            };
            begin().and_then(|store| {
                hear(HostReader { from_host, stop, committed, lookups: prepared.lookups.clone(), clock });
                prepared.runtime.run(call(&prepared.linked, store, &wire))
            })
        };
        around.finish();
        if let Some(guest) = store.as_mut().map(Store::data_mut) {
            guest.held.finish();
            guest.http.finish();
        }
        let (how, backtrace) = judge(returned, policy.limits);
        wire.send(&FromRunner::Ended(Box::new(Ended { how, backtrace })));
        // Exit without dropping anything: the kernel frees all memory faster than the destructors would.
        end(0)
    }
}

struct GuestEnvironment {
    gate: Arc<RunnerGate>,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
    clock: Clock,
    outlet: Arc<Outlet>,
    streams: [GuestStream; 2],
}

impl GuestEnvironment {
    fn of(
        prepared: &PreparedRunner,
        gate: Arc<RunnerGate>,
        tally: SharedMemory<Tally>,
        output: Arc<dyn Output>,
        clock: Clock,
    ) -> Self {
        let PreparedRunner { setup, linked, .. } = prepared;
        let outlet = Outlet::new(setup.policy.limits.output, &clock, &tally, &output);
        let mut streams = guest_streams(&gate, &outlet);
        if linked.outline.kind == ModuleKind::Command {
            streams = streams.map(|stream| stream.counting(&tally));
        }
        Self { gate, tally, output, clock, outlet, streams }
    }

    fn store(
        &self,
        prepared: &PreparedRunner,
        beginning: &StartParams,
        folders: Folders,
        state: Option<LocalState>,
        stopped: watch::Receiver<Option<StopNotice>>,
    ) -> Store<Guest> {
        let Self { gate, tally, output, clock, outlet, streams } = self;
        let PreparedRunner { setup, linked, client, wire, .. } = prepared;
        let term = TermContext {
            number: beginning.term,
            election: beginning.election.clone(),
            node: beginning.node.clone(),
            module: setup.digest.to_string(),
            run: beginning.run,
            shard: beginning.shard,
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
        let mut store = new_store(linked, guest);
        store.set_hostcall_fuel(setup.policy.call_bytes(linked.outline.uses_state));
        store.set_max_component_handles(setup.policy.limits.handles());
        store
    }

    /// Writes out the lines that are still buffered, and reports the lines that were dropped.
    fn finish(&self) {
        for stream in &self.streams {
            stream.finish();
        }
        self.outlet.finish();
    }
}

/// A trial start of an instance before there is a term. The trial loads memory pages that a real start touches, which
/// makes the real start faster. The trial calls none of the guest's functions. If the module has no start function, the
/// trial also sets up the guest's memories and tables, and then discards the instance.
pub(super) struct Rehearsal {
    gate: Arc<RunnerGate>,
    tally: SharedMemory<Tally>,
}

impl Rehearsal {
    /// Creates the gate and the tally of a rehearsal. The gate stays closed, so that the rehearsal has no effects. The
    /// host never reads this tally.
    pub(super) fn new() -> std::io::Result<Self> {
        let (_, page) = Page::make()?;
        let (tally, _) = SharedMemory::make("baton-rehearsal", Others::Read)?;
        Ok(Self { gate: Arc::new(RunnerGate::map(page, &tally)?), tally })
    }

    /// Rehearses a start. Ignores errors, since the real start would report them.
    pub(super) fn hold(self, prepared: &PreparedRunner) {
        let Self { gate, tally } = self;
        let variable = || vec![("REHEARSAL".to_owned(), String::new())];
        let beginning = StartParams {
            term: 0,
            election: String::new(),
            node: String::new(),
            run: None,
            shard: (0, 1),
            arguments: vec!["rehearsal".to_owned()],
            environment: variable(),
            config: variable(),
            entries: None,
        };
        let Ok(message) = frame(&ToRunner::Start(Box::new(beginning))) else { return };
        let Ok(Some(ToRunner::Start(beginning))) = protocol::read(&mut &message[..], LONGEST_TO_RUNNER) else { return };
        let around = GuestEnvironment::of(prepared, gate, tally, Arc::new(NullOutput), Clock::default());
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

fn wasi(beginning: &StartParams, [stdout, stderr]: &[GuestStream; 2]) -> WasiCtx {
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

fn new_store(linked: &Linked, guest: Guest) -> Store<Guest> {
    let mut store = Store::new(linked.engine.wasmtime(), guest);
    store.limiter(|guest| &mut guest.held);
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

/// Error message for a guest that failed and gave no reason.
const ERROR_STATUS: &str = "the coordinator exited with an error status";

fn judge(returned: Returned, limits: Limits) -> (How, Option<String>) {
    let how = match returned {
        Ok(Ok(())) => How::Done,
        Ok(Err(Failure::Retryable(why))) => How::Failed(why),
        Ok(Err(Failure::Fatal(why))) => How::Fatal(why),
        Err(error) => match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(0)) => How::Done,
            // Most guests can report only success or failure, and status 1 stands for a failure.
            Some(I32Exit(1)) => How::Failed(ERROR_STATUS.to_owned()),
            Some(I32Exit(status)) => How::Failed(format!("the coordinator exited with status {status}")),
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
