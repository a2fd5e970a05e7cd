//! The host of Baton as a library, for its binary and its tests.
//!
//! - `cli` reads the command line and prints results; `config` finds settings, says where each came from, and keeps what
//!   the host finds by a path out of its coordinators' reach; `commands` carries the commands out.
//! - `supervisor` carries out what an elector decides, and owns the instance and all that it started.
//! - `telemetry` is the log: lines pass a bounded queue to one writer thread, which judges those of guests once more.
//! - `steering` is what operators ask of nodes: how these hear of it, and how commands ask for it.
//! - `links` is what the nodes of one store tell each other beside it, and the process that carries that.
//! - `historian` writes into the store what has become of the terms.
//! - `watched` is what is told of the host to those that watch it from outside: `admin` answers probes, load balancers and
//!   scrapers, and takes what programs ask of nodes; `service_manager` tells the manager of the machine's services; `otel`
//!   sends traces and metrics to a collector of OpenTelemetry, if the environment names one.
//! - `maintenance` has the host step down before its machine is frozen or rebooted, where somebody tells of that.
//! - `random` draws numbers that a clone of the machine does not draw, too.
//! - `node` is who this host is, `signals` how it is told to end, `reload` what it reads anew when it is asked to, and
//!   `local_socket` is the admin API for the host's own user on this machine.

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
#[cfg(test)]
mod docs_tests;
pub mod foreign;
pub mod historian;
pub mod links;
pub mod local_socket;
pub mod maintenance;
pub mod node;
#[cfg_attr(not(feature = "otel"), path = "otel/nothing.rs")]
mod otel;
pub mod random;
pub mod reload;
pub mod said;
pub mod service_manager;
pub mod signals;
pub mod steering;
pub mod supervisor;
pub mod telemetry;
pub mod watched;
