//! One instance's life in its runner.

use std::fs::File;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use baton_election::Time;
use tokio::sync::{mpsc, watch};
use wasmtime::{Store, UpdateDeadline, WasmBacktrace, WasmCoreDump};
use wasmtime_wasi::{I32Exit, WasiCtx};

use super::super::backtrace::shortened;
use super::super::empty::Denials;
use super::super::engine::Engine;
use super::super::files::Folders;
use super::super::guest::{CALL_BYTES, Failure, Guest, StopNotice, TermContext};
use super::super::holdings::Holdings;
use super::super::http::Http;
use super::super::judge::Kind;
use super::super::limits::Limits;
use super::super::logging::GuestLog;
use super::super::module::{Entry, Linked};
use super::super::output::{GuestStream, Outlet, Output, guest_streams};
use super::super::page::Gate;
use super::super::postmortem::{Profiler, SAMPLE_EVERY, leave, time_to_dump};
use super::super::protocol::{self, Beginning, Ended, FromRunner, How, LONGEST_TO_RUNNER, NotCommitted, ToRunner};
use super::{Lookups, Prepared, State, Wire, end};
use crate::clock::Clock;

/// An instance that is about to begin.
pub(super) struct Instance {
    prepared: Prepared,
    beginning: Beginning,
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
    pub(super) fn new(prepared: Prepared, beginning: Beginning, ticker: Option<Ticker>) -> Self {
        Self { prepared, beginning, ticker }
    }

    /// Runs it, and says how it ended. What hears the host goes to `hear` before the guest's first instruction.
    pub(super) fn run(self, hear: impl FnOnce(Hears)) {
        let Self { prepared, beginning, ticker } = self;
        let Prepared { setup, linked, runtime, gate, tally, client, lookups, from_host, wire, remains } = prepared;
        let policy = &setup.policy;
        let clock = Clock::default();
        let (stop, stopped) = watch::channel(None);
        let (committed, answers) = mpsc::unbounded_channel();
        let term = TermContext {
            number: beginning.term,
            election: beginning.election.clone(),
            node: beginning.node.clone(),
            module: setup.digest.clone(),
            gate: Arc::clone(&gate),
            clock: clock.clone(),
            stop: stopped.clone(),
            tally: tally.clone(),
            wire: wire.clone(),
            has_stepped_down: false,
        };
        let output: Arc<dyn Output> = Arc::new(wire.clone());
        let outlet = Outlet::new(policy.limits.output, &clock, &tally, &output);
        let mut streams = guest_streams(&gate, &outlet);
        if setup.kind == Kind::Command {
            streams = streams.map(|stream| stream.counting(&tally));
        }
        let profiler = Profiler::of(policy.profile, &beginning.election, beginning.term, linked.component());
        let mut store = None;
        let returned = {
            let begin = || -> wasmtime::Result<&mut Store<Guest>> {
                let http = Http::new(&client, &term, Arc::clone(&output), &tally);
                let guest = Guest {
                    wasi: wasi(&beginning, &streams),
                    config: beginning.config.iter().cloned().collect(),
                    log: GuestLog::new(&gate, &outlet),
                    folders: Folders::open(&gate, &policy.folders)?,
                    held: Holdings::new(policy.limits, &tally, &output, &clock),
                    denials: Denials::new(Arc::clone(&output), setup.asks_for_folders),
                    term,
                    state: beginning.entries.clone().map(|entries| State::new(entries, wire.clone(), answers)),
                    http,
                };
                let store = store.insert(new_store(&linked, guest, &profiler, stopped));
                store.set_hostcall_fuel(policy.call_bytes(setup.uses_state));
                store.set_max_component_handles(policy.limits.handles());
                Ok(store)
            };
            begin().and_then(|store| {
                if let Some(Ticker(begin)) = &ticker {
                    let _ = begin.send(());
                }
                runtime.block_on(async {
                    hear(Hears { from_host, stop, committed, lookups, clock: clock.clone() });
                    let waits = store.data().http.guest_waits();
                    let mut call = pin!(call(&linked, store, &wire));
                    poll_fn(|context| {
                        let polled = call.as_mut().poll(context);
                        if polled.is_pending() {
                            waits.send_replace(());
                        }
                        polled
                    })
                    .await
                })
            })
        };
        for stream in &streams {
            stream.finish();
        }
        outlet.finish();
        let core_dump = match &returned {
            Err(error) if policy.core_dump && gate.pass().is_ok() => {
                store.as_mut().and_then(|store| core_dump(error, store, &beginning.election, &gate))
            }
            _ => None,
        };
        if let Some(guest) = store.as_mut().map(Store::data_mut) {
            guest.held.finish();
            guest.http.finish();
        }
        let (how, backtrace) = judge(returned, policy.limits);
        let left = leave(remains, core_dump, &profiler);
        wire.send(&FromRunner::Ended(Box::new(Ended { how, backtrace, left })));
        // All of it ends with the process, which takes no longer the more it has.
        end(0)
    }
}

fn wasi(beginning: &Beginning, [stdout, stderr]: &[GuestStream; 2]) -> WasiCtx {
    WasiCtx::builder()
        .envs(&beginning.environment)
        .args(&[&beginning.election])
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
    store.data().held.has_instances(linked.instances);
    match &linked.entry {
        Entry::Coordinator(pre) => {
            let coordinator = pre.instantiate_async(&mut *store).await?;
            wire.send(&FromRunner::Started);
            coordinator.baton_host_task().call_run(store).await
        }
        Entry::Command(pre) => {
            let command = pre.instantiate_async(&mut *store).await?;
            wire.send(&FromRunner::Started);
            let ended = command.wasi_cli_run().call_run(store).await?;
            Ok(ended.map_err(|()| Failure::Retryable(ERROR_STATUS.to_owned())))
        }
    }
}

/// What is known where a guest can only say that it failed.
const ERROR_STATUS: &str = "it exited with an error status";

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
        return Some(Err(format!("making it may take {takes:?}, and there are {left:?} until the deadline")));
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
            Some(I32Exit(status)) => How::Failed(format!("it exited with status {status}")),
            None if error.downcast_ref() == Some(&wasmtime::Trap::Interrupt) => How::Killed,
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
