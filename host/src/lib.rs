//! The host of Baton as a library, for its binary and its tests.
//!
//! - `cli` parses the command line and prints results. `config` resolves settings, records where each came from, and
//!   keeps files that the host relies on out of its coordinators' reach. `commands` carries out the commands.
//! - `admin` serves probes, load balancers and scrapers, and accepts steering commands from programs. `local_socket` is
//!   the admin API for the host's own user on this machine. `watched` is the view of the host that they share.
//! - `service_manager` notifies systemd, `signals` handles requests to end, and `reload` reads files again on SIGHUP.
//!
//! The node itself is the crate [`baton_node`].

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
#[cfg(test)]
mod docs_tests;
pub mod local_socket;
pub mod reload;
pub mod service_manager;
pub mod signals;
pub mod untrusted;
pub mod watched;
