//! Steering: operators' commands to an election's nodes, through an object in the store ([`baton_store::steering`]).
//!
//! `helm` is the node's side. It decides nothing about leases: if a node must be ineligible, its supervisor gives the
//! elector nothing to serve, so steering can only keep a node from leading. `operator` is the operator's side, which
//! commands and the admin endpoint share. `preempt` lets a leader request a transfer itself.

mod helm;
pub mod operator;
mod preempt;
pub mod rollback;

pub use helm::{Heard, Helm, Itself, StaysOut, TAKEN_WITHIN, Why};
pub use preempt::{HandOvers, Preemption};
