//! Steering: sends operators' commands to the nodes of an election, through an object in the store
//! ([`baton_store::steering`]).
//!
//! `watch` is the node's side. It decides nothing about leases: if a node must be ineligible, its supervisor gives the
//! elector nothing to serve. So steering can only prevent a node from leading. `operator` is the operator's side, which
//! is shared by the commands and the admin endpoint. `preempt` lets a leader request a transfer by itself.

pub mod operator;
mod preempt;
pub mod rollback;
mod watch;

pub use preempt::{HandOvers, Preemption};
pub use watch::{Ineligibility, IneligibleReason, NodeIncarnation, SteeringState, SteeringWatch, TAKEN_WITHIN};
