//! The engine: how code is compiled, and how it runs.

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};
use wasmtime::{Config, WasmBacktraceDetails};

use super::backtrace::FRAMES;

/// Compiles modules and runs instances. Clones share it.
#[derive(Clone)]
pub struct Engine {
    wasmtime: wasmtime::Engine,
    purpose: Purpose,
}

/// What an engine can do beside running instances.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Purpose {
    /// Traps can be dumped. Code that was compiled for one serves the other.
    pub core_dump: bool,
    /// What an instance is doing can be looked at while it computes, which costs time in its loops. Its code is compiled
    /// for that, and serves no other engine.
    pub profile: bool,
}

impl Engine {
    /// An engine for that.
    ///
    /// # Errors
    /// Where the processor is not supported.
    pub fn new(purpose: Purpose) -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.coredump_on_trap(purpose.core_dump);
        config.wasm_component_model(true).epoch_interruption(purpose.profile);
        config.wasm_backtrace_max_frames(NonZeroUsize::new(FRAMES));
        // By default a variable of the environment says so, which the processes that compile and link do not have: their
        // code would be none of this engine's.
        config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
        Ok(Self { wasmtime: wasmtime::Engine::new(&config)?, purpose })
    }

    /// The engine underneath.
    pub fn wasmtime(&self) -> &wasmtime::Engine {
        &self.wasmtime
    }

    /// What it was made for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }
}
