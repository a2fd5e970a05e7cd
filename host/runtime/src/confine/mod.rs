//! Confines a process to the resources that it needs, before it handles untrusted data. If an attacker then takes over
//! the process through a bug, the attacker can reach nothing else.
//!
//! - [`to_computing`]: the process can use its memory, threads, CPU time and standard streams, but no files, no network
//!   and no other process.
//! - [`to_forking`]: the process can load a guest and fork. Each forked process then goes through the next two steps.
//! - [`to_loading`], then [`to_running`]: the process can also use the descriptors that it was given, and the folders
//!   and network that its coordinator was granted.
//!
//! The kernel enforces the confinement in three ways: Landlock (files, TCP, signals, abstract sockets), a seccomp
//! filter that rejects every unneeded call, and permanently dropped capabilities. If the kernel lacks a mechanism, the
//! others still apply; [`missing`] lists the missing mechanisms.

mod computing;
mod filter;
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
pub use running::{RunnerReach, to_forking, to_loading, to_running};

/// Newest Landlock version that this module uses. On a kernel with an older version, the `landlock` crate leaves out
/// the rights that the kernel does not know.
const LANDLOCK: ABI = ABI::V6;

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});

/// Rights in a folder that is granted for writing. A runner cannot execute files in the folder, and cannot create
/// devices, pipes or sockets in it.
const WRITE: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | MakeSym | RemoveFile | RemoveDir | Refer
});

/// The reason a process could not be confined, although its kernel supports confinement.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// A system call failed that every supported kernel provides.
    #[error("cannot drop privileges: {0}")]
    System(#[from] io::Error),
    /// Landlock is available, but failed.
    #[error("cannot restrict access to files with Landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// The seccomp filter cannot be built for this architecture.
    #[error("cannot build the seccomp filter: {0}")]
    Filter(#[from] BackendError),
}

impl From<rustix::io::Errno> for ConfineError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Returns true if the kernel keeps a runner from closing the descriptor [`RunnerReach::holds`], even if a guest has
/// taken over the runner.
#[must_use]
pub fn keeps_what_it_holds() -> bool {
    has_seccomp()
}

/// Returns human-readable names of the confinement mechanisms that this system lacks.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let landlock = (!has_landlock()).then_some("Landlock (Linux 5.13)");
    let seccomp = (!has_seccomp()).then_some("seccomp filters");
    landlock.into_iter().chain(seccomp).collect()
}

/// Prevents other processes of the same user from reading this process's memory, disables core dumps, and drops all
/// capabilities.
fn give_up_privileges() -> Result<(), ConfineError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// Restricts file access to the granted folders. Allows TCP connections only if the network is granted, and only
/// outgoing ones. Forbids sending signals to processes outside this Landlock domain, and connecting to abstract sockets
/// of processes outside the domain.
fn give_up_files(reach: &RunnerReach<'_>) -> Result<RestrictionStatus, RulesetError> {
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

/// Returns true if the kernel restricts a process to its granted folders, even after a guest has taken over the
/// process.
#[must_use]
pub fn keeps_to_folders() -> bool {
    has_landlock()
}

fn has_landlock() -> bool {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag, the call only returns the Landlock version. The call reads no memory, so a null pointer
    // is valid.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<()>(), 0_usize, VERSION) };
    version > 0
}

fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the call reads four bytes of `action`, which lives until the call returns, and changes nothing.
    let available = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    available == 0
}

/// First descriptor to close. Lower descriptors are the standard streams.
const FIRST: libc::c_uint = 3;

pub(crate) fn close_others() -> io::Result<()> {
    // SAFETY: nothing in this process owns any of these descriptors. The process has just started. Our processes pass
    // only standard streams to the processes that they start, so any other descriptor was inherited by mistake.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, 0) };
    match closed {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Linux before 5.9 lacks this call. Our own descriptors are closed on exec anyway, so only a descriptor
            // that another program left open stays open.
            error if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            error => Err(error),
        },
    }
}
