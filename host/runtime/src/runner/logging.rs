//! `wasi:logging`: a coordinator's log messages, each with a level.
//!
//! The interface is a draft that was never released, so its version number means nothing. The definition below is
//! copied from the proposal.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::component::{HasSelf, Linker};

use crate::runner::guest::Guest;
use crate::wire::limits::EffectKind;
use crate::wire::output::{Notice, Outlet};
use crate::wire::page::RunnerGate;

mod bindings {
    wasmtime::component::bindgen!({
        inline: "
            package wasi:logging@0.1.0-draft;

            interface logging {
                enum level { trace, debug, info, warn, error, critical }
                log: func(level: level, context: string, message: string);
            }

            world imports { import logging; }
        ",
        world: "wasi:logging/imports",
        imports: { default: trappable },
    });
}

use bindings::wasi::logging::logging;

/// The levels of log messages from guests and the host, in order of increasing severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Single steps of a program. Only guests use this level.
    Trace,
    /// Details for debugging. Only guests use this level.
    Debug,
    /// Normal operation.
    Info,
    /// A problem that the program handles.
    Warn,
    /// A failure that a person should investigate.
    Error,
    /// A failure that stops all work. Only guests use this level.
    Critical,
}

pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    logging::add_to_linker::<Guest, HasSelf<GuestLog>>(linker, |guest| &mut guest.log)
}

#[derive(Clone)]
pub(crate) struct GuestLog {
    gate: Arc<RunnerGate>,
    outlet: Arc<Outlet>,
}

impl GuestLog {
    pub(crate) fn new(gate: &Arc<RunnerGate>, outlet: &Arc<Outlet>) -> Self {
        Self { gate: Arc::clone(gate), outlet: Arc::clone(outlet) }
    }
}

impl logging::Host for GuestLog {
    fn log(&mut self, level: logging::Level, context: String, message: String) -> wasmtime::Result<()> {
        // A log call returns nothing, so it cannot tell the guest that the gate has refused it. The guest learns of the
        // refusal from its next effect that has a result.
        if self.gate.pass(EffectKind::Output).is_ok() {
            let log = Notice::Log { level: level.into(), context: &context, message: &message };
            self.outlet.put(|output| output.notice(log));
        }
        Ok(())
    }
}

impl From<logging::Level> for LogLevel {
    fn from(level: logging::Level) -> Self {
        match level {
            logging::Level::Trace => Self::Trace,
            logging::Level::Debug => Self::Debug,
            logging::Level::Info => Self::Info,
            logging::Level::Warn => Self::Warn,
            logging::Level::Error => Self::Error,
            logging::Level::Critical => Self::Critical,
        }
    }
}
