//! The parts that the crates of a Baton host share.
//!
//! - [`clock`] is the only place where time is read.
//! - [`gate`] contains the gate, which every effect of an instance must pass. It also contains the watchdog, which ends
//!   the host if an instance does not end in time.
//! - [`jitter`] spreads the requests from different nodes, and combines the wake-ups of tasks.
//! - [`address`] classifies network addresses.
//! - [`escape`](mod@escape) makes text safe to display, and [`shell`] makes it safe to paste into a shell.
//! - [`untrusted`] defines the type of functions that read untrusted bytes. Each crate lists its own readers, and
//!   `make fuzz` tests all readers.

pub mod address;
pub mod clock;
mod doorbell;
pub mod escape;
pub mod gate;
pub mod jitter;
pub mod shell;
pub mod untrusted;
