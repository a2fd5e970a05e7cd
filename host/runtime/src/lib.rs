//! The runtime: compiles coordinators, and runs their instances, each in a process of its own.
//!
//! It knows nothing of leases. An [`Instance`] is started with a term and a gate; until it is gone it can be asked to
//! stop, and killed at any moment, whatever it is doing. Gone is: its process has ended and was reaped, and nothing that
//! the host did for it is under way.
//!
//! # Processes
//!
//! - **A template**, one for each version at hand, is this program once more. It maps and links the version's code, runs
//!   none of it, and forks runners. Coordinators that run the same version share one.
//! - **A runner**, one for each instance, is made ready before there is a term: forked by its template, as the host's own
//!   child, so that it shares what both only read, needs no time to link, and lives on should the template end. Then it is
//!   confined to what its coordinator was granted, makes its threads, and gives up what only that needed. It rehearses the
//!   start of an instance, so that all the memory which a start touches is there, without running any of the guest's
//!   functions: a module with a start function is not instantiated, and one that takes long to lay out is not rehearsed.
//!   Then it waits. The message that begins an instance is one write. Each instance takes its runner with it, and the next
//!   runner is made shortly after this one has begun.
//!
//! No descriptor can travel out of a runner, since pipes carry none.
//!
//! A runner's threads: the first runs the guest and nothing else; *guest* does what the guest has begun and does not wait
//! for, and up to four more, if there are folders, make its calls on files; *host* hears what the host says, and the end of
//! that is the process' end; *deadline*, from the message that begins an instance on, ends the process at its deadline, also
//! while the host is stopped; a *ticker*, with `--profile` alone, has a busy guest show where it is every 10 ms.
//!
//! # Modules
//!
//! - The host's side: `instance` starts, attends to and kills one; `templates` and `runners` keep these ready under a
//!   coordinator's `policy`; `process` starts and reaps all of them, `control_groups` has one for each runner where that
//!   is ours to have; `instances` lists those that run.
//! - Between the two: `protocol` has the messages, `shared` memory of both, `page` the deadline in it and the runner's gate,
//!   and `limits` what an instance may use and uses.
//! - The runner's side: `runner` is its whole life. `guest` is the host's side of the contract, `state` of the
//!   coordinator's state, `denied` the interfaces that are there without being granted; `files` are those in granted
//!   `folder`s and `listing` reads these a part at a time; `http` is what it may ask of other servers. `holdings` holds
//!   an instance to its limits, and `weight` says what its handles take of memory; `output` takes its lines, `logging`
//!   its log.
//! - Before and after: `module` reads, compiles and links components, by an `engine`; `judge` says before whether they fit,
//!   `componentize` makes them of core modules, `component_size` counts their core instances. `backtrace` makes a trap's
//!   readable, with `names`; `postmortem` writes core dumps and profiles, in the host.
//! - [`confine`] takes from a process of ours, before it works on what others made, all that this does not need.
//! - For all packages above: `secret` says where a secret is, [`shell`] quotes what messages propose to type, [`escape`] makes
//!   text harmless for a terminal, [`memory`] counts what a piece of work takes, `bounded` reads files that somebody has
//!   named.

mod backtrace;
mod bounded;
mod component_size;
mod componentize;
pub mod confine;
mod control_groups;
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
mod polls;
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
mod weight;

pub use bounded::{FileError, read_file};
pub use componentize::Wrapped;
pub use control_groups::{ControlGroups, ControlGroupsError};
pub use engine::{Engine, Purpose};
pub use folder::{Folder, FolderGrant};
pub use foreign::READERS;
pub use http::{CaError, Grant, GrantError, Grants, HttpPolicy, RefusedRequest, Requested};
pub use instance::{CLAIM_AHEAD, Gone, Instance, InstanceEvent, Launcher};
pub use instances::{InUse, ProcessUse, RunningInstances, Share};
pub use judge::is_complete;
pub use judge::{Import, ModuleKind};
pub use limits::{Effect, Effects, Limited, Limits, NearLimit, Usage};
pub use logging::LogLevel;
pub use module::read as read_module;
pub use module::{Inspection, LARGEST_MODULE, Module, ModuleError};
pub use module::{OUTLINE, Outline};
pub use output::{LONGEST_LINE, Notice, Output, Stream};
pub use policy::Policy;
pub use postmortem::{Postmortem, PostmortemError, PostmortemWriter};
pub use process::{MAKE_RUNNERS, Processes, end_with};
pub use runner::{Forked, make_runners, run_instance};
pub use runners::{RunnerError, Runners};
pub use secret::{Secret, SecretSource};
pub use templates::Templates;
