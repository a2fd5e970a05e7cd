//! The runtime: compiles coordinators and runs their instances, each in a process of its own.
//!
//! The runtime knows nothing of leases. The host starts an [`Instance`] with a term and a gate, can ask it to stop, and
//! can kill it at any moment. An instance is gone once its process has been reaped and no work that the host did for it
//! is in progress.
//!
//! # Processes
//!
//! - **A template**, one for each version that is kept ready, is a process of this same program. It maps and links the
//!   version's code, runs none of it, and forks runners. Coordinators that run the same version share a template.
//! - **A runner** is the process of one instance. The template forks it before there is a term, as a child of the host.
//!   So a runner shares the template's read-only memory, need not link, and outlives the template. It confines itself
//!   to what its coordinator was granted, starts its threads, drops the rights that only this needed, and rehearses
//!   the start of an instance ([`Runners`]). Then it waits for the one message that begins an instance.
//!
//! Host and runner are connected by pipes, which cannot carry descriptors. So no descriptor can leave a runner.
//!
//! The threads of a runner:
//!
//! - The first thread runs the guest, and the async runtime while the guest waits.
//! - `beside` runs the async runtime while the guest computes.
//! - `guest`: one thread for calls that block, or four if folders are granted.
//! - `host` reads the host's messages. When the pipe is closed, it ends the process.
//! - `deadline` ends the process at its deadline, even while the host is stopped.
//!
//! # Modules
//!
//! - The host's side: `instance` starts, supervises and kills one instance. `templates` and `runners` keep processes
//!   ready under a coordinator's `policy`; `process` starts and reaps them; `control_groups` groups them. `instances`
//!   lists the running instances.
//! - Between both sides: `protocol` has the messages, `shared` the shared memory, `page` the deadline in it and the
//!   runner's gate, and `limits` the limits and usage of an instance.
//! - The runner's side: `runner` is its whole life. `guest` implements the contract, `state` the coordinator's state,
//!   `denied` the interfaces that are linked without being granted. `files`, `folder` and `listing` implement granted
//!   folders, `http` requests to other servers. `holdings` enforces the limits. `output` and `logging` take the lines.
//! - Before and after: `module` reads, compiles and links components with an `engine`. `judge` checks whether they fit,
//!   `componentize` wraps core modules, and `component_size` measures. `backtrace` and `names` make traps readable.
//! - [`confine`] drops every right that one of these processes does not need before it works on untrusted input.
//! - Helpers: `secret`, [`memory`], `bounded`.

mod backtrace;
mod bounded;
mod component_size;
mod componentize;
pub mod confine;
mod control_groups;
mod denied;
mod engine;
mod files;
mod folder;
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
mod polls;
mod process;
mod protocol;
mod runner;
mod runners;
mod secret;
mod shared;
mod state;
mod templates;
mod untrusted;
mod weight;

pub use bounded::{FileError, read_file};
pub use componentize::Wrapped;
pub use control_groups::{ControlGroups, ControlGroupsError};
pub use engine::Engine;
pub use folder::{Folder, FolderGrant};
pub use http::{CaError, Grant, GrantError, Grants, HttpPolicy, RefusedRequest};
pub use instance::{CLAIM_AHEAD, Gone, Instance, InstanceEvent, InstanceHandle, Launch, Launcher};
pub use instances::{InstanceUsage, LimitUsage, ProcessUse, RunningInstances};
pub use judge::is_complete;
pub use judge::{Import, ModuleKind};
pub use limits::{Effect, Effects, LimitKind, Limits, NearLimit, Usage};
pub use logging::LogLevel;
pub use module::read as read_module;
pub use module::{Inspection, LARGEST_MODULE, Module, ModuleError};
pub use module::{OUTLINE, Outline};
pub use output::{LONGEST_LINE, Notice, Output, Stream};
pub use policy::Policy;
pub use process::{MAKE_RUNNERS, Processes, tie_to_parent};
pub use runner::{Forked, make_runners, run_instance};
pub use runners::{RunnerError, Runners};
pub use secret::{Secret, SecretSource};
pub use templates::Templates;
pub use untrusted::READERS;
