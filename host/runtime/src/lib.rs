//! The runtime: compiles coordinators and runs their instances, each in a process of its own.
//!
//! The runtime does not deal with leases. The host starts an [`Instance`] with a term and a gate, can ask it to stop,
//! and can kill it at any moment. An instance is gone once its process has been reaped and the host has finished all
//! work that it was doing for the instance.
//!
//! # Processes
//!
//! - **A template** is a process that runs this same program. Each version that is kept ready has a template. The
//!   template maps and links the version's code, but runs none of it, and forks runners. Coordinators that run the same
//!   version share a template.
//! - **A runner** is the process of one instance. The template forks it as a child of the host, before there is a term.
//!   So a runner shares the template's read-only memory, does not have to link, and outlives the template. The runner
//!   confines itself to the rights that its coordinator was granted, and starts its threads. The runner then drops the
//!   rights that only these steps needed. Usually, the runner also rehearses: a trial start makes the real start
//!   faster. Finally, the runner waits for the single message that starts an instance.
//!
//! The host and a runner are connected by pipes, which cannot carry descriptors. So no descriptor can leave a runner.
//!
//! The threads of a runner:
//!
//! - The first thread runs the guest. While the guest waits, this thread also runs the async runtime.
//! - `beside` runs the async runtime while the guest computes.
//! - `guest` runs calls that block: one thread, or four threads if folders are granted.
//! - `host` reads the host's messages. When the pipe is closed, this thread ends the process.
//! - `deadline` ends the process at its deadline, even while the host is stopped.
//!
//! # Modules
//!
//! - `host`, the host's side: `launch` starts instances, `instance` is the handle to an instance, `task` supervises the
//!   instance, and `requests` handles the runner's messages. `templates` and `runners` keep processes ready under a
//!   coordinator's `policy`. `process` starts and reaps processes, and `control_groups` gives each runner a control
//!   group. `instances` lists the running instances.
//! - `wire`, shared by both sides: `protocol` defines the messages, `shared` the shared memory, `page` the deadline in
//!   shared memory and the runner's gate, `limits` the limits and usage of an instance, and `output` an instance's
//!   lines.
//! - `runner`, the runner's side: `instance` runs an instance from start to end. `guest` implements the contract,
//!   `state` the coordinator's state, and `denied` the interfaces that are linked without being granted. `files`,
//!   `folder` and `listing` implement granted folders, and `http` implements requests to other servers. `holdings`
//!   enforces the limits.
//! - `module` reads, compiles and links components with an `engine`. `judge` checks whether this host can run a
//!   component, `componentize` wraps core modules, and `component_size` measures components. `backtrace` and `names`
//!   make traps readable.
//! - [`confine`] drops every right that a process does not need, before the process handles untrusted input.
//! - Helpers: `secret` holds text that must not be printed, [`memory`] configures the allocator, and `bounded` reads
//!   files up to a maximum size.

mod bounded;
pub mod confine;
mod host;
pub mod memory;
mod module;
mod runner;
mod secret;
mod untrusted;
mod wire;

pub use bounded::{FileError, read_file};
pub use host::control_groups::{ControlGroups, ControlGroupsError};
pub use host::instance::{Gone, Instance, InstanceEvent, InstanceHandle};
pub use host::instances::{InstanceUsage, LimitUsage, ProcessUse, RunningInstances};
pub use host::launch::{CLAIM_AHEAD, Launch, Launcher};
pub use host::policy::Policy;
pub use host::process::{MAKE_RUNNERS, Processes, tie_to_parent};
pub use host::runners::{RunnerError, Runners};
pub use host::templates::Templates;
pub use module::componentize::Wrapped;
pub use module::engine::Engine;
pub use module::judge::is_complete;
pub use module::judge::{Import, ModuleKind};
pub use module::read as read_module;
pub use module::{Inspection, LARGEST_MODULE, Module, ModuleError};
pub use module::{OUTLINE, Outline};
pub use runner::folder::{Folder, FolderGrant};
pub use runner::http::{CaError, Grant, GrantError, Grants, HttpPolicy, RefusedRequest};
pub use runner::logging::LogLevel;
pub use runner::{Forked, make_runners, run_instance};
pub use secret::{Secret, SecretSource};
pub use untrusted::READERS;
pub use wire::limits::{EffectCounts, EffectKind, LimitKind, Limits, NearLimit, Usage};
pub use wire::output::{LONGEST_LINE, Notice, Output, Stream};
