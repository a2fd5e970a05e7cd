//! The host of Baton as a library, for its binary and its tests.
//!
//! - `cli` parses the command line and prints results. `config` resolves settings, records where each came from, and
//!   keeps files that the host relies on out of its coordinators' reach. `commands` carries out the commands.
//! - `node` is everything that takes part in elections, without the process around it. `commands::run` starts it.
//! - `supervisor` carries out what an elector decides, and owns the instance and everything that it started.
//! - `telemetry` is the log: lines pass a bounded queue to one writer thread, which checks guests' lines again.
//! - `steering` is how operators control nodes: the nodes' side, and the commands' side.
//! - `links` carries hints between the nodes of one store, on a thread of its own.
//! - `historian` writes into the store what became of the terms.
//! - `watched` is the view of the host for observers. `admin` serves probes, load balancers and scrapers, and accepts
//!   steering commands from programs. `service_manager` notifies systemd.
//! - `maintenance` steps the host down before Azure freezes or reboots its machine.
//! - `random` draws numbers that differ even on clones of the machine.
//! - `signals` handles requests to end, `reload` reads files again on SIGHUP, and
//!   `local_socket` is the admin API for the host's own user on this machine.

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
#[cfg(test)]
mod docs_tests;
pub mod historian;
pub mod links;
pub mod local_socket;
pub mod maintenance;
pub mod node;
pub mod node_announcement;
pub mod random;
pub mod reload;
pub mod service_manager;
pub mod signals;
pub mod steering;
pub mod supervisor;
pub mod telemetry;
pub mod untrusted;
pub mod watched;
