//! Confines a process of ours to what it needs, before it works on what others made. Whatever a fault in what works there
//! lets a stranger's bytes do, nothing else is within their reach.
//!
//! - [`to_computing`]: its memory, its threads, its processor time and its standard streams. No file, no network and no
//!   other process.
//! - [`to_forking`]: to what it needs to load a guest, and to fork processes that take the next two steps.
//! - [`to_loading`], then [`to_running`]: beyond those the descriptors that it was given, and the folders and the network
//!   that its coordinator was granted.
//! - [`to_linking`]: to take connections at the sockets that it has, and to make others on its machine, or over TCP.
//!
//! The kernel does all of it: Landlock (files, TCP, signals, abstract sockets), a seccomp filter (every call that is not
//! needed is unknown), no capabilities and no way to new ones. A kernel that lacks some of it leaves the rest;
//! [`missing`] says what.

mod computing;
mod filter;
mod linking;
mod running;

use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, RestrictionStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, make_bitflags,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs};
use seccompiler::BackendError;

pub use computing::{Code, to_computing};
pub use linking::to_linking;
pub use running::{Reach, to_forking, to_loading, to_running};

/// The newest Landlock whose rights are known here. What the kernel lacks of it is left out.
const LANDLOCK: ABI = ABI::V6;

/// What can be done in a folder that may only be read.
const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// What can be done in any other that is granted. Nothing there is run, and there are no devices, pipes or sockets.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile | RemoveDir | Refer
});

/// Why a process is not confined though its kernel could.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused something that every kernel has.
    #[error("cannot drop privileges: {0}")]
    System(#[from] io::Error),
    /// Landlock failed other than by not being there.
    #[error("cannot restrict access to files with Landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// The filter cannot be built for this processor.
    #[error("cannot build the seccomp filter: {0}")]
    Filter(#[from] BackendError),
}

impl From<rustix::io::Errno> for ConfineError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Whether a process holds what it is to hold as long as it is there, whatever it has become.
#[must_use]
pub fn keeps_what_it_holds() -> bool {
    has_seccomp()
}

/// What this system lacks of all that confines a process, in words for people.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let landlock = (!has_landlock()).then_some("Landlock (Linux 5.13)");
    let seccomp = (!has_seccomp()).then_some("seccomp filters");
    landlock.into_iter().chain(seccomp).collect()
}

/// Nobody with the same user reads its memory or makes it a core dump, and it has no rights that others lack.
fn give_up_privileges() -> Result<(), ConfineError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// No file by its path but in those folders, no TCP but to others where that is granted, no signal and no abstract
/// socket of a process outside.
fn give_up_files(reach: &Reach<'_>) -> Result<RestrictionStatus, RulesetError> {
    let tcp = if reach.network { AccessNet::BindTcp.into() } else { AccessNet::from_all(LANDLOCK) };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(tcp)?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    for (folder, read_only) in reach.folders {
        rules = rules.add_rule(PathBeneath::new(folder, if *read_only { READ } else { WRITE }))?;
    }
    rules.restrict_self()
}

/// Whether a process is kept to the folders that it was granted, whatever it has become.
#[must_use]
pub fn keeps_to_folders() -> bool {
    has_landlock()
}

fn has_landlock() -> bool {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call only says its version, and reads nothing.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<()>(), 0_usize, VERSION) };
    version > 0
}

fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads four bytes of `action`, which lives until it returns, and changes nothing.
    let available = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    available == 0
}

/// Descriptors from here on are closed: before are those of the standard streams.
const FIRST: libc::c_uint = 3;

/// Closes all descriptors but those of the standard streams.
///
/// # Errors
/// Those of the system.
pub fn close_others() -> io::Result<()> {
    // SAFETY: nothing in this process owns one of them: it was just started, and a process that is started by another
    // of ours has the standard streams only. What is left there was inherited by mistake.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    match closed {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux before 5.9. Descriptors of ours are closed when a program starts; those of others stay.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}
