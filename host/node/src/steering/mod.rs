//! Steering: the operators' commands to the nodes of an election, passed through an object in the store
//! ([`baton_store::steering`]).
//!
//! `watch` is the node's side, which decides nothing about leases. The supervisor passes the commands to the elector as
//! the node's eligibility, which can only prevent a term or end one. `operator` is the operator's side, which is shared
//! by the commands and the admin endpoint. `preempt` lets a leader request a transfer by itself.

pub mod operator;
mod preempt;
pub mod rollback;
mod watch;

pub use preempt::{HandOvers, Preemption};
pub use watch::{NodeIncarnation, SteeringState, SteeringWatch};
