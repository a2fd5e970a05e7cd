//! Confines a process that only computes: the one that compiles untrusted modules.

use std::io;

use seccompiler::{BackendError, BpfProgram};

use super::filter::{Calls, flags, no_code};
use super::{ConfineError, RunnerReach};

/// The use of compiled code in the process that compiles it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// The process passes the code on. Only its program can be executed.
    HandsOver,
    /// The process loads the code to inspect it. Memory can be made executable.
    Loads,
}

/// Confines this process for good to compiling. It keeps its standard streams; all other descriptors are closed. The
/// process must have only one thread: threads made later inherit the confinement.
///
/// # Errors
/// [`ConfineError`] if the kernel refuses a mechanism that it has. One that it lacks is no error.
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
    // Private anonymous memory, which is not executable unless `mprotect` may make it so.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, private | libc::MAP_SHARED, private)])?;
    match code {
        Code::HandsOver => calls.when(libc::SYS_mprotect, [no_code(2)])?,
        Code::Loads => calls.code()?,
    }
    calls.filter()
}
