//! Baton's elector: decides, without I/O, which node leads an election.
//!
//! The state machine [`Elector`] makes all decisions about leadership. It has no clock, threads, randomness or network
//! of its own. The host passes in the time, the lease store's answers and the instance's events. The elector returns a
//! list of [`Effect`]s to carry out, and the time of its next wake-up. So each decision can be printed, replayed and
//! tested in a simulation. Because the crate is `no_std`, the compiler checks that there is no other input or output.
//!
//! The modules, in the order in which to read them:
//!
//! - [`record`]: an election's data in the store
//! - [`request`]: the requests to the store, and the store's answers
//! - [`timing`]: the times by which a holder must act
//! - [`hint`]: the messages between nodes
//! - [`eligibility`]: the conditions, other than the lease, under which a node may lead
//! - [`balance`]: the balance of a group's shards between nodes
//! - [`schedule`]: the schedule of the runs, and its progress
//! - [`port`]: the elector's inputs and effects
//! - [`elector`]: the decisions
//!
//! # Example
//! An elector in virtual time, up to its first request:
//! ```
//! use core::time::Duration;
//!
//! use baton_election::{
//!     Effect, Elector, Input, ModuleVersion, Now, OnDone, Op, Plan, Random, Settings, Time, Timing, TimingError,
//! };
//!
//! let lease_range = (Duration::from_secs(15), Duration::from_secs(60));
//! let settings = Settings {
//!     node: "alpha".to_string(),
//!     incarnation: "alpha-1".to_string(),
//!     timing: Timing::new(Duration::from_secs(15), lease_range, Duration::from_secs(5), 64 << 20)?,
//!     lease_range,
//!     pause: Duration::from_secs(1),
//!     on_done: OnDone::Repeat,
//!     probation: Duration::from_secs(300),
//!     schedule: None,
//! };
//! // A real host passes its clocks and the system's random numbers instead.
//! let at = |time: Time| Now { time, least: time.0, wall: time.0 };
//! let random = Random { state: [7; 32], next: |state| { state[0] += 1; u64::from(state[0]) } };
//!
//! let mut elector = Elector::new(settings, at(Time::default()), random);
//! let version = ModuleVersion { digest: "sha256:00".to_string(), serial: 1 };
//! elector.handle(at(Time::default()), Input::Plan(Plan { module: Some(version), ..Plan::default() }));
//! // The node is a standby, and waits a random time before it reads the lease for the first time.
//! let first_poll = elector.next_wakeup().unwrap();
//! elector.handle(at(first_poll), Input::Tick);
//! let mut effects = core::iter::from_fn(|| elector.poll_effect());
//! assert!(effects.any(|effect| matches!(effect, Effect::Request { op: Op::Read, .. })));
//! # Ok::<(), TimingError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod balance;
pub mod elector;
pub mod eligibility;
pub mod hint;
pub mod port;
pub mod record;
pub mod request;
pub mod schedule;
pub mod timing;

pub use elector::Elector;
pub use eligibility::{Chosen, Eligibility, Ineligibility, IneligibleCause, SteeringVersion};
pub use hint::{Hint, Word};
pub use port::{
    Effect, End, Input, ModuleVersion, Now, OnDone, Plan, Random, Report, ScheduleCommands, Settings, StopReason,
};
pub use record::{
    ElectionName, HIGHEST_TERM, InvalidElectionName, LeaseId, LeaseState, MAX_SHARDS, Outcome, Record, Snapshot, Term,
    Version,
};
pub use request::{Op, Recalled, Reply, RequestId, StoreError};
pub use schedule::{Missed, Progress, Schedule, ScheduledRun};
pub use timing::{Time, Timing, TimingError};
