//! The host of Baton as a library, for its binary and its tests.
//!
//! - `cli` parses the command line and prints results. `config` resolves settings, records where each value came from,
//!   and keeps files that the host trusts out of its coordinators' reach. `commands` carries out the commands.
//! - `service_manager` notifies systemd, `signals` handles requests to shut down, and `reload` reads files again on
//!   SIGHUP.
//!
//! The node itself is the crate [`baton_node`], and its admin endpoint is [`baton_admin`].

pub mod cli;
pub mod commands;
pub mod config;
#[cfg(test)]
mod docs_tests;
pub mod reload;
pub mod service_manager;
pub mod signals;
pub mod untrusted;
