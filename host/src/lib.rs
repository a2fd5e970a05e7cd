//! The host of Baton as a library, for its binary and its tests.

pub mod address;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod confine;
pub mod foreign;
pub mod gate;
mod memory;
pub mod modules;
pub mod node;
#[cfg(test)]
mod readme_tests;
pub mod runtime;
pub mod shell;
pub mod signals;
pub mod state;
pub mod status_socket;
pub mod store;
pub mod supervisor;
pub mod telemetry;
mod watch;
mod way;
