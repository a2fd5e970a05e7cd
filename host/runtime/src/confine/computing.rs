//! A process that only computes: the one that compiles strangers' modules.

use std::io;

use seccompiler::{BackendError, BpfProgram};

use super::filter::{Calls, flags, no_code};
use super::{ConfineError, Reach};

/// What a process does with code that it compiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// It hands it over. No memory of its own can be run but its program.
    HandsOver,
    /// It loads it to look at it: memory can be made to run.
    Loads,
}

/// Confines this process for good, to what somebody needs who treats code so. Of the standard streams it keeps what they
/// are; all other descriptors are closed. There must be no other thread yet: they are made with what is left.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_computing(code: Code) -> Result<(), ConfineError> {
    super::close_others()?;
    super::give_up_privileges()?;
    super::give_up_files(&Reach::default())?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&filter(code)?).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filter(code: Code) -> Result<BpfProgram, BackendError> {
    let mut calls = Calls::needed()?;
    calls.threads()?;
    calls.names()?;
    // Memory of its own. Nothing in it can be run, if not made so later.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, private | libc::MAP_SHARED, private)])?;
    match code {
        Code::HandsOver => calls.when(libc::SYS_mprotect, [no_code(2)])?,
        Code::Loads => calls.code()?,
    }
    calls.filter()
}
