//! The runtime: compiles coordinators, and runs their instances, each in a process of its own.
//!
//! It knows nothing of leases. An [`Instance`] is started with a term and a gate; until it is gone it can be asked to
//! stop, and killed at any moment, whatever it is doing. Gone is: its process has ended and was reaped, and nothing that
//! the host did for it is under way.
//!
//! The host's side is `instance`; `templates` are processes that have a version linked and fork its runners, which
//! `runners` has made ready ahead, under a `policy`; `process` starts, kills and reaps all of these, and the `warden` is a
//! process that sees to it that no runner outlives its deadline. The other side is `runner`. Between the two are messages
//! (`protocol`) and memory (`shared`): the `page`, by which the host says until when effects may leave, and what the
//! instance uses (`limits`).
//!
//! `module` and `engine` compile components, and link them in a template, `judge` says before whether they fit, `componentize` makes
//! components of core modules. In the runner, `guest` is the host's side of the contract, `state` that of its state, `denied` what is
//! there without being granted, `files` those in granted folders and `listing` what is in one, `http` what it may ask of
//! other servers, `limits` how much there is of it all; `holdings` holds an instance to that, and `weight` says what its
//! handles take of memory; `output` is where a guest's standard streams go, `logging` its log, `backtrace` makes a trap's
//! readable. `postmortem` writes core dumps and profiles, in the host.

pub mod address;
mod backtrace;
mod bounded;
mod component_size;
mod componentize;
pub mod confine;
mod denied;
mod engine;
pub mod escape;
mod files;
mod folder;
mod foreign;
mod guest;
mod holdings;
mod http;
mod instance;
mod instances;
mod judge;
mod limits;
mod listing;
mod logging;
pub mod memory;
mod module;
mod names;
mod output;
mod page;
mod policy;
mod postmortem;
mod process;
mod protocol;
mod runner;
mod runners;
mod secret;
mod shared;
pub mod shell;
mod state;
mod templates;
mod warden;
mod weight;

pub use bounded::{FileError, read_file};
pub use componentize::Wrapped;
pub use engine::{Engine, Purpose};
pub use folder::{Folder, FolderGrant};
pub use foreign::READERS;
pub use http::{CaError, Grant, GrantError, Grants, HttpPolicy, RefusedRequest};
pub use instance::{CLAIM_AHEAD, Gone, Instance, InstanceEvent, Launcher};
pub use instances::{InUse, ProcessUse, RunningInstances, Share};
pub use judge::is_complete;
pub use judge::{Import, ModuleKind};
pub use limits::{Limited, Limits, NearLimit, Usage};
pub use logging::LogLevel;
pub use module::read as read_module;
pub use module::{Inspection, LARGEST_MODULE, Module, ModuleError};
pub use module::{OUTLINE, Outline};
pub use output::{LONGEST_LINE, Notice, Output, Stream};
pub use policy::Policy;
pub use postmortem::{Postmortem, PostmortemError, PostmortemWriter};
pub use process::{MAKE_RUNNERS, Processes, WATCH_RUNNERS};
pub use runner::{Forked, make_runners, run_instance};
pub use runners::{RunnerError, Runners};
pub use secret::{Secret, SecretSource};
pub use templates::Templates;
pub use warden::watch_runners;
