//! Confines the process that compiles untrusted modules. The process only computes, so it needs neither files nor the
//! network.

use std::io;

use seccompiler::{BackendError, BpfProgram};

use super::filter::{Calls, flags, no_code};
use super::{ConfineError, RunnerReach};

/// The use of the compiled code. It decides whether the compiler process may make memory executable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The process only sends the compiled code to the host, so it may execute only its own program's code.
    HandsOver,
    /// The process loads the compiled code to inspect it, so it may make memory executable.
    Loads,
}

/// Permanently confines this process to compiling. Closes all descriptors except the standard streams. The process must
/// have only one thread; threads created later inherit the confinement.
///
/// # Errors
/// [`ConfineError`] if a mechanism that the kernel supports fails. A mechanism that the kernel lacks is not an error.
pub fn to_computing(code: Code) -> Result<(), ConfineError> {
    super::close_others()?;
    super::give_up_privileges()?;
    super::give_up_files(&RunnerReach::default())?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&filter(code)?).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filter(code: Code) -> Result<BpfProgram, BackendError> {
    let mut calls = Calls::needed()?;
    calls.threads()?;
    calls.names()?;
    // Allow private anonymous memory without execute permission. The rule for `mprotect` below decides whether the
    // permission can be added later.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, private | libc::MAP_SHARED, private)])?;
    match code {
        Code::HandsOver => calls.when(libc::SYS_mprotect, [no_code(2)])?,
        Code::Loads => calls.code()?,
    }
    calls.filter()
}
