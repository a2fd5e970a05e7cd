//! Wasmtime without Baton: the yardstick for the host's numbers.
//!
//! Runs the same component in an engine with the same settings and all of WASI, but without the gate, the limits and
//! the supervision.

use std::path::Path;
use std::time::{Duration, Instant};

use wasmtime::component::{
    Component, ComponentExportIndex, InstancePre, Linker, ResourceTable, ResourceType, Type, Val,
};
use wasmtime::error::Context as _;
use wasmtime::{Config, Engine, Store, StoreContextMut, Trap, bail, ensure};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wasi::p2::{DynPollable, Pollable, subscribe};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

pub struct Baseline {
    engine: Engine,
    module: InstancePre<Host>,
    run: ComponentExportIndex,
}

/// The functions of the interface `term`, which every coordinator imports.
const TERM: [&str; 11] = [
    "number",
    "election",
    "node",
    "module",
    "remaining",
    "subscribe-stop",
    "stop-requested",
    "stop-message",
    "grace",
    "progress",
    "step-down",
];

/// The component's other imports. None of the measured behaviors calls these functions.
const UNUSED: &[(&str, &[&str])] =
    &[("wasi:config/store@0.2.0-rc.1", &["get", "get-all"]), ("wasi:logging/logging@0.1.0-draft", &["log"])];

struct Never;

#[wasmtime_wasi::async_trait]
impl Pollable for Never {
    async fn ready(&mut self) {
        std::future::pending().await
    }
}

struct Host {
    wasi: WasiCtx,
    table: ResourceTable,
}

impl WasiView for Host {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl Baseline {
    /// Compiles the component, with or without epoch checks.
    pub fn compile(module: &Path, checks: bool) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.wasm_component_model(true).epoch_interruption(checks);
        let engine = Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        let mut term = linker.instance("baton:host/term@0.1.1")?;
        term.resource("pollable", ResourceType::host::<DynPollable>(), |_, _| Ok(()))?;
        for function in TERM {
            term.func_new(function, |mut store: StoreContextMut<'_, Host>, ty, _, results| {
                for (result, ty) in results.iter_mut().zip(ty.results()) {
                    *result = match ty {
                        Type::U64 => Val::U64(1),
                        Type::String => Val::String("bare".to_string()),
                        _ => {
                            let table = &mut store.data_mut().table;
                            let never = table.push(Never)?;
                            let pollable = subscribe(table, never)?;
                            Val::Resource(pollable.try_into_resource_any(&mut store)?)
                        }
                    };
                }
                Ok(())
            })?;
        }
        let component = Component::from_file(&engine, module)?;
        let task = component.get_export_index(None, "baton:host/task@0.1.1").context("it is no coordinator")?;
        let run = component.get_export_index(Some(&task), "run").context("it has no function to run")?;
        for (interface, functions) in UNUSED {
            let mut interface = linker.instance(interface)?;
            for function in *functions {
                interface.func_new(function, |_, _, _, _| bail!("this is not measured"))?;
            }
        }
        let module = linker.instantiate_pre(&component)?;
        Ok(Self { engine, module, run })
    }

    /// Measures the time to create a wasmtime store with an instance in it, in milliseconds.
    pub async fn instantiate(&self) -> wasmtime::Result<f64> {
        let begin = Instant::now();
        let (mut store, _) = self.store(&[]);
        self.module.instantiate_async(&mut store).await?;
        let took = begin.elapsed();
        Ok(milliseconds(took))
    }

    /// Runs a guest until it prints a line that starts with `line`, then interrupts it by advancing the epoch. Returns
    /// the time from the interruption until the call has returned, in milliseconds.
    pub async fn end(&self, env: &[(&str, &str)], line: &str) -> wasmtime::Result<f64> {
        let (mut store, output) = self.store(env);
        let (module, run) = (self.module.clone(), self.run);
        let running = tokio::spawn(async move {
            let instance = module.instantiate_async(&mut store).await?;
            let run = instance.get_func(&mut store, run).context("it has no function to run")?;
            let result = run.call_async(&mut store, &[], &mut [Val::Bool(false)]).await;
            let ended = Instant::now();
            let error = result.err().context("the guest has ended by itself")?;
            ensure!(error.downcast_ref() == Some(&Trap::Interrupt), "the guest failed: {error:#}");
            Ok(ended)
        });
        while !String::from_utf8_lossy(&output.contents()).lines().any(|printed| printed.starts_with(line)) {
            if running.is_finished() {
                running.await??;
                bail!("the guest was interrupted before it printed `{line}`");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begin = Instant::now();
        self.engine.increment_epoch();
        let ended: Instant = running.await??;
        Ok(milliseconds(ended.saturating_duration_since(begin)))
    }

    /// Runs a guest until it ends by itself. Returns the last line that it printed.
    pub async fn last_line(&self, env: &[(&str, &str)]) -> wasmtime::Result<String> {
        let (mut store, output) = self.store(env);
        let instance = self.module.instantiate_async(&mut store).await?;
        let run = instance.get_func(&mut store, self.run).context("it has no function to run")?;
        run.call_async(&mut store, &[], &mut [Val::Bool(false)]).await?;
        let printed = output.contents();
        Ok(String::from_utf8_lossy(&printed).lines().last().context("the guest printed nothing")?.to_owned())
    }

    fn store(&self, env: &[(&str, &str)]) -> (Store<Host>, MemoryOutputPipe) {
        let output = MemoryOutputPipe::new(4096);
        let wasi = WasiCtx::builder().envs(env).stdout(output.clone()).build();
        let mut store = Store::new(&self.engine, Host { wasi, table: ResourceTable::new() });
        store.set_epoch_deadline(1);
        store.epoch_deadline_trap();
        (store, output)
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
