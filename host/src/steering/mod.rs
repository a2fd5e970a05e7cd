//! Steering: operators' commands to an election's nodes, through an object in the store ([`baton_store::steering`]).
//!
//! `watch` is the node's side. It decides nothing about leases: if a node must be ineligible, its supervisor gives the
//! elector nothing to serve, so steering can only keep a node from leading. `operator` is the operator's side, which
//! commands and the admin endpoint share. `preempt` lets a leader request a transfer itself.

pub mod operator;
mod preempt;
pub mod rollback;
mod watch;

pub use preempt::{HandOvers, Preemption};
pub use watch::{Ineligibility, IneligibleReason, NodeIncarnation, SteeringState, SteeringWatch, TAKEN_WITHIN};
