//! The implementation of the contract in `wit/world.wit` for guests, and the list of interfaces that an instance may
//! use.

use std::sync::Arc;

use baton_election::{Term, Time};
use tokio::sync::watch;
use wasmtime::component::{HasData, HasSelf, Linker, Resource, ResourceTable};
use wasmtime_wasi::cli::{WasiCli, WasiCliView as _};
use wasmtime_wasi::clocks::{WasiClocks, WasiClocksView as _};
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::random::WasiRandom;
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_config::{WasiConfig, WasiConfigVariables};

use crate::runner::denied::{self, Denials};
use crate::runner::files::{self, Folders};
use crate::runner::holdings::Holdings;
use crate::runner::http::{self, Http};
use crate::runner::logging::{self, GuestLog};
use crate::runner::polls;
use crate::runner::{LocalState, PollTracker, Wire};
use crate::wire::limits::Tally;
use crate::wire::page::RunnerGate;
use crate::wire::protocol::{FromRunner, Reason, RunTimes};
use crate::wire::shared::SharedMemory;
use baton_base::clock::{Clock, milliseconds};

mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "baton:host/coordinator",
        imports: { default: trappable, "baton:host/state.commit": async | trappable },
        exports: { default: async },
        with: { "wasi:io": wasmtime_wasi::p2::bindings::io },
    });
}

pub(crate) use bindings::baton::host::state as state_contract;
use bindings::baton::host::{schedule, shard, term as contract};
pub(crate) use bindings::exports::baton::host::task::Failure;
pub(crate) use bindings::{Coordinator, CoordinatorPre};

/// The WIT package that contains the world for coordinators.
pub(crate) const CONTRACT: &str = "baton:host";
pub(crate) const CONTRACT_VERSION: &str = "0.1.1";

/// Interfaces that every coordinator is granted: the contract, and the interfaces that a program needs to start, print,
/// wait and get random numbers. These interfaces give access to neither the network nor files.
pub(crate) const GRANTED: &[&str] = &[
    "baton:host/schedule",
    "baton:host/shard",
    "baton:host/state",
    "baton:host/term",
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:config/store",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:logging/logging",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// The draft interfaces among [`GRANTED`], each with the one version that is granted. Different versions of a draft are
/// incompatible.
pub(crate) const DRAFTS: &[(&str, &str)] =
    &[("wasi:config/store", "0.2.0-rc.1"), ("wasi:logging/logging", "0.1.0-draft")];

/// Links the granted interfaces and the interfaces that can be imported without a grant, but no others.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    use wasmtime_wasi::p2::bindings::{cli, clocks, io, random};

    denied::link(linker)?;
    io::error::add_to_linker::<Guest, Resources>(linker, |guest| guest.held.table())?;
    polls::link(linker)?;
    io::streams::add_to_linker::<Guest, Resources>(linker, |guest| guest.held.table())?;
    clocks::wall_clock::add_to_linker::<Guest, WasiClocks>(linker, Guest::clocks)?;
    clocks::monotonic_clock::add_to_linker::<Guest, WasiClocks>(linker, Guest::clocks)?;
    http::link(linker, |guest| (&guest.http, &mut guest.held))?;
    http::link_types(linker, |guest| http::HttpAccess { http: &mut guest.http, held: &mut guest.held })?;
    random::random::add_to_linker::<Guest, WasiRandom>(linker, |guest| guest.wasi.random())?;
    random::insecure::add_to_linker::<Guest, WasiRandom>(linker, |guest| guest.wasi.random())?;
    random::insecure_seed::add_to_linker::<Guest, WasiRandom>(linker, |guest| guest.wasi.random())?;
    cli::exit::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::environment::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::stdin::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::stdout::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::stderr::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::terminal_input::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::terminal_output::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::terminal_stdin::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::terminal_stdout::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    cli::terminal_stderr::add_to_linker::<Guest, WasiCli>(linker, Guest::cli)?;
    logging::link(linker)?;
    files::link(linker)?;
    wasmtime_wasi_config::add_to_linker(linker, |guest| WasiConfig::from(&guest.config))?;
    contract::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)?;
    schedule::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)?;
    shard::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)?;
    state_contract::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)
}

/// Gives `wasi:io` access to the guest's resource table only.
struct Resources;

impl HasData for Resources {
    type Data<'a> = &'a mut ResourceTable;
}

#[derive(Clone)]
pub(crate) struct TermContext {
    pub(crate) number: Term,
    pub(crate) election: String,
    pub(crate) node: String,
    pub(crate) module: String,
    pub(crate) run: Option<RunTimes>,
    /// The index of the shard, and the number of shards in the group.
    pub(crate) shard: (u32, u32),
    pub(crate) gate: Arc<RunnerGate>,
    pub(crate) clock: Clock,
    pub(crate) stop: watch::Receiver<Option<StopNotice>>,
    pub(crate) tally: SharedMemory<Tally>,
    pub(crate) wire: Wire,
    pub(crate) has_stepped_down: bool,
}

/// A stop request in the form that the guest sees.
#[derive(Clone, Debug)]
pub(crate) struct StopNotice {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    pub(crate) grace_ends: Time,
}

/// The data of an instance's wasmtime store.
pub(crate) struct Guest {
    pub(crate) wasi: WasiCtx,
    pub(crate) config: WasiConfigVariables,
    pub(crate) log: GuestLog,
    pub(crate) folders: Folders,
    pub(crate) held: Holdings,
    pub(crate) looks: PollTracker,
    pub(crate) denials: Denials,
    pub(crate) term: TermContext,
    /// `None` if the module does not use state.
    pub(crate) state: Option<LocalState>,
    pub(crate) http: Http,
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: self.held.table() }
    }
}

/// Becomes ready when the host asks the instance to stop, and then stays ready.
struct StopSignal(watch::Receiver<Option<StopNotice>>);

#[wasmtime_wasi::async_trait]
impl Pollable for StopSignal {
    async fn ready(&mut self) {
        // The sender lives as long as the instance. If the sender was dropped, no stop request will arrive.
        if self.0.wait_for(Option::is_some).await.is_err() {
            std::future::pending().await
        }
    }
}

impl contract::Host for Guest {
    fn number(&mut self) -> wasmtime::Result<u64> {
        Ok(self.term.number)
    }

    fn election(&mut self) -> wasmtime::Result<String> {
        Ok(self.term.election.clone())
    }

    fn node(&mut self) -> wasmtime::Result<String> {
        Ok(self.term.node.clone())
    }

    fn module(&mut self) -> wasmtime::Result<String> {
        Ok(self.term.module.clone())
    }

    fn remaining(&mut self) -> wasmtime::Result<u64> {
        Ok(milliseconds(self.term.gate.remaining()))
    }

    fn subscribe_stop(&mut self) -> wasmtime::Result<Resource<DynPollable>> {
        let signal = self.held.table.push(StopSignal(self.term.stop.clone()))?;
        subscribe(&mut self.held.table, signal)
    }

    fn stop_requested(&mut self) -> wasmtime::Result<Option<contract::StopReason>> {
        Ok(self.term.stop.borrow().as_ref().map(|notice| match notice.reason {
            Reason::LeaseAtRisk => contract::StopReason::LeaseAtRisk,
            Reason::LeaseLost => contract::StopReason::LeaseLost,
            Reason::StepDown => contract::StopReason::StepDown,
            Reason::Replaced => contract::StopReason::Replaced,
            Reason::Shutdown => contract::StopReason::Shutdown,
        }))
    }

    fn stop_message(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(self.term.stop.borrow().as_ref().map(|notice| notice.message.clone()))
    }

    fn grace(&mut self) -> wasmtime::Result<Option<u64>> {
        let now = self.term.clock.now();
        let until_kill = |notice: &StopNotice| notice.grace_ends.since(now).min(self.term.gate.remaining());
        Ok(self.term.stop.borrow().as_ref().map(until_kill).map(milliseconds))
    }

    fn progress(&mut self) -> wasmtime::Result<()> {
        self.term.tally.record_progress();
        Ok(())
    }

    fn step_down(&mut self, reason: String) -> wasmtime::Result<()> {
        // Send only the first reason, so that a guest that repeats the call does not keep the host busy.
        if !std::mem::replace(&mut self.term.has_stepped_down, true) {
            self.term.wire.send(&FromRunner::StepDown(reason));
        }
        Ok(())
    }
}

impl shard::Host for Guest {
    fn index(&mut self) -> wasmtime::Result<u32> {
        Ok(self.term.shard.0)
    }

    fn count(&mut self) -> wasmtime::Result<u32> {
        Ok(self.term.shard.1)
    }
}

impl schedule::Host for Guest {
    fn scheduled_for(&mut self) -> wasmtime::Result<Option<u64>> {
        Ok(self.term.run.map(|run| run.due))
    }

    fn last_completed(&mut self) -> wasmtime::Result<Option<u64>> {
        Ok(self.term.run.and_then(|run| run.last_completed))
    }
}

/// Maximum amount of data that one call may pass in either direction (bytes). While the data is copied, it takes twice
/// the memory, and the call cannot be interrupted. Real lines, messages and lists of handles are far smaller.
pub(crate) const CALL_BYTES: usize = 1 << 20;
