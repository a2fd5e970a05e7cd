//! The elector of Baton: who leads an election, decided without I/O.
//!
//! Everything that Baton promises about leadership is decided here, by a state machine that has no
//! clock, no threads, no randomness of its own and no network: [`Elector`]. The host feeds it the time,
//! the lease store's answers and what became of the instance; it says what to do next as a list of
//! [`Effect`]s and when it wants to be woken. That makes each decision printable, replayable and
//! testable by simulation, and `no_std` lets the compiler prove that nothing else goes in or out.
//!
//! The modules, in reading order: [`record`] is what the store holds, [`request`] is what is asked of
//! it and how it may answer, [`timing`] is when things must happen, [`hint`] is what nodes tell each other, [`port`] is
//! what goes in and out,
//! [`elector`] decides.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod elector;
pub mod hint;
pub mod port;
pub mod record;
pub mod request;
pub mod timing;

pub use elector::Elector;
pub use hint::{Hint, Word};
pub use port::{Effect, End, Input, ModuleVersion, Now, OnDone, Plan, Random, Report, Settings, StopReason};
pub use record::{ElectionName, HIGHEST_TERM, LeaseId, LeaseState, Outcome, Record, Snapshot, Term, Version};
pub use request::{Op, Reply, RequestId, StoreError};
pub use timing::{Time, Timing, TimingError};
