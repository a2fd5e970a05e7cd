//! The WebAssembly engine, which compiles and runs modules.

use std::num::NonZeroUsize;

use wasmtime::{Config, WasmBacktraceDetails};

use crate::module::backtrace::FRAMES;

/// Compiles modules and runs instances. Clones share the engine.
#[derive(Clone)]
pub struct Engine {
    wasmtime: wasmtime::Engine,
}

impl Engine {
    /// Creates an engine for this machine.
    ///
    /// # Errors
    /// Returns an error if wasmtime does not support this CPU.
    pub fn new() -> wasmtime::Result<Self> {
        let mut config = Config::new();
        config.wasm_component_model(true);
        config.wasm_backtrace_max_frames(NonZeroUsize::new(FRAMES));
        // Do not use the default, which depends on an environment variable. The processes that compile and link do not
        // inherit the variable, so the code that they produce might not match this engine.
        config.wasm_backtrace_details(WasmBacktraceDetails::Disable);
        Ok(Self { wasmtime: wasmtime::Engine::new(&config)? })
    }

    /// Returns wasmtime's engine.
    pub fn wasmtime(&self) -> &wasmtime::Engine {
        &self.wasmtime
    }
}
