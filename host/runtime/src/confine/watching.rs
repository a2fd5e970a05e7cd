//! A process that watches others of ours and may end them: it holds their pidfds, and has nothing of anybody else's in it.

use std::io;

use seccompiler::{BackendError, BpfProgram};

use super::ConfineError;
use super::filter::{Calls, flags, is, no_code};

/// Confines this process for good, to reading shared memory that it is handed over, and to ending processes whose pidfds
/// it is handed over. There must be no other thread yet.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_watching() -> Result<(), ConfineError> {
    super::give_up_privileges()?;
    super::give_up_all_files()?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&filter()?).map_err(io::Error::other)?;
    }
    Ok(())
}

fn filter() -> Result<BpfProgram, BackendError> {
    let mut calls = Calls::needed()?;
    calls.all(&[
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_recvmsg,
        libc::SYS_timerfd_settime,
    ]);
    calls.when(libc::SYS_pidfd_send_signal, [is(1, libc::SIGKILL)])?;
    // Memory of its own, and pages of others to read.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, private | libc::MAP_SHARED, private)])?;
    calls.when(
        libc::SYS_mmap,
        [no_code(2), flags(2, libc::PROT_WRITE, 0), flags(3, libc::MAP_SHARED, libc::MAP_SHARED)],
    )?;
    calls.when(libc::SYS_mprotect, [no_code(2)])?;
    calls.filter()
}
