//! `wasi:logging`: what a coordinator says with a level.
//!
//! The interface is a draft that was never released, so its version says little. It is written down here as the
//! proposal has it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::component::{HasSelf, Linker};

use super::guest::Guest;
use super::limits::Effect;
use super::output::{Notice, Outlet};
use super::page::Gate;

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

/// How much a line of a log matters, from the least: a guest's, or one of the host's own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Each step. Only a guest has these.
    Trace,
    /// For a search for mistakes. Only a guest has these.
    Debug,
    /// As it should be.
    Info,
    /// Something went wrong, and is dealt with.
    Warn,
    /// Something failed: a person should look.
    Error,
    /// Nothing works any more. Only a guest has these.
    Critical,
}

/// Links it.
pub(super) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    logging::add_to_linker::<Guest, HasSelf<GuestLog>>(linker, |guest| &mut guest.log)
}

/// An instance's log as the guest sees it.
#[derive(Clone)]
pub(super) struct GuestLog {
    gate: Arc<Gate>,
    outlet: Arc<Outlet>,
}

impl GuestLog {
    pub(super) fn new(gate: &Arc<Gate>, outlet: &Arc<Outlet>) -> Self {
        Self { gate: Arc::clone(gate), outlet: Arc::clone(outlet) }
    }
}

impl logging::Host for GuestLog {
    fn log(&mut self, level: logging::Level, context: String, message: String) -> wasmtime::Result<()> {
        // It has no way to say that it was refused. The next effect that has one says so.
        if self.gate.pass(Effect::Output).is_ok() {
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
