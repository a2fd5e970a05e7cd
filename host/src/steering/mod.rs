//! Steering: what operators ask of an election's nodes, through an object in the store ([`baton_store::steering`]).
//!
//! `helm` is a node's side. It decides nothing about leases: a supervisor whose node is to stay out gives its elector
//! nothing to serve for a while, which ends an instance and gives a lease up in the elector's own order. So steering can
//! only ever keep a node from leading. `operator` is the other side, which commands and the admin endpoint share, and
//! `preempt` a leader that asks for a transfer itself.

mod helm;
pub mod operator;
mod preempt;
pub mod rollback;

pub use helm::{Heard, Helm, Itself, StaysOut, TAKEN_WITHIN, Why};
pub use preempt::{HandOvers, Preemption};
