//! The runtime: compiles coordinators and runs their instances, each in a store of its own.
//!
//! It knows nothing of leases. An [`Instance`] is started with a term and a gate, and is gone when its
//! store is dropped and everything that it had started has ended; until then it can be asked to stop, and
//! killed at any moment, whatever it is doing. `engine` holds what instances share and drives the
//! epochs by which a busy guest is ended; `module` compiles components and links them, `judge` says before whether they fit, `wrap` makes components of
//! core modules; `guest` is the host's side of the contract, `state` that of its state, `empty` what is there
//! without being granted, `files` those in granted folders and `listing` what is in one, `http` what it may ask of
//! other servers, `limits` how much there is of it all; `holdings` holds an instance to that, and `weight` says what its
//! handles take of the host's memory; `output` is where a guest's standard streams go, `logging`
//! its log, `backtrace` makes a trap's readable, `postmortem` writes core dumps and profiles; `own` has the calls of
//! the system that may block, which nothing but their own end can end.

mod backtrace;
mod census;
mod empty;
mod engine;
mod files;
mod guest;
mod holdings;
mod http;
mod instance;
mod judge;
mod limits;
mod listing;
mod logging;
mod module;
mod names;
mod output;
mod own;
mod postmortem;
mod running;
mod state;
mod weight;
mod wrap;

pub use engine::Engine;
pub use http::{CaError, Grant, GrantError, Grants, HttpPolicy, RefusedRequest};
pub use instance::{CLAIM_AHEAD, Gone, Instance, InstanceEvent, Launcher};
pub(crate) use judge::is_complete;
pub use judge::{Import, Kind};
pub use limits::{Limits, NearLimit, Usage};
pub use logging::LogLevel;
pub(crate) use module::read as read_module;
pub use module::{Inspection, LARGEST_MODULE, Module, ModuleError};
pub use output::{LONGEST_LINE, Notice, Output, Stream};
pub use postmortem::{Postmortem, PostmortemError, PostmortemWriter};
pub use running::{InUse, Running, Share};
pub use wrap::Wrapped;
