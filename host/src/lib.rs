//! The host of Baton as a library, for its binary and its tests.

pub mod cli;
pub mod commands;
pub mod config;
pub mod node;
pub mod signals;
pub mod store;
pub mod telemetry;
