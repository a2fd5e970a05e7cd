//! Baton's elector: decides, without I/O, which node leads an election.
//!
//! Everything that Baton promises about leadership is decided here, by a state machine: [`Elector`]. It has no clock,
//! no threads, no randomness of its own and no network. The host passes in the time, the lease store's answers and the
//! instance's events. The elector returns a list of [`Effect`]s to carry out, and the time of its next wake-up. So each
//! decision can be printed, replayed and tested in a simulation. `no_std` makes the compiler check that there is no
//! other input or output.
//!
//! The modules, in reading order: [`record`] holds the contents of the store, [`request`] the requests to the store and
//! its answers, [`timing`] the times at which things must happen, [`hint`] the messages between nodes, [`eligibility`]
//! the conditions under which a node may lead, and [`port`] the elector's inputs and effects. [`elector`] decides.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod elector;
pub mod eligibility;
pub mod hint;
pub mod port;
pub mod record;
pub mod request;
pub mod timing;

pub use elector::Elector;
pub use eligibility::{Chosen, Eligibility, Ineligibility, IneligibleCause, SteeringVersion};
pub use hint::{Hint, Word};
pub use port::{Effect, End, Input, ModuleVersion, Now, OnDone, Plan, Random, Report, Settings, StopReason};
pub use record::{ElectionName, HIGHEST_TERM, LeaseId, LeaseState, Outcome, Record, Snapshot, Term, Version};
pub use request::{Op, Reply, RequestId, StoreError};
pub use timing::{Time, Timing, TimingError};
