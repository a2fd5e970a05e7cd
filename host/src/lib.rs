//! The host of Baton as a library, for its binary and its tests.

pub mod cli;
pub mod commands;
pub mod config;
#[cfg(test)]
mod docs_tests;
pub mod foreign;
pub mod node;
pub mod signals;
pub mod status_socket;
pub mod supervisor;
pub mod telemetry;
