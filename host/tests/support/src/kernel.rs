//! Simulates older kernels, and containers with a restrictive seccomp profile. A filter makes some of a program's
//! system calls fail with `ENOSYS`, as on a kernel that lacks them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// A feature that a kernel may lack.
#[derive(Clone, Copy, Debug)]
pub enum Lacks {
    /// Landlock, which restricts a process to folders and ports.
    Landlock,
    /// Seccomp, which filters the system calls of a process.
    Seccomp,
    /// Pidfds, which identify a process even after its pid is reused.
    Pidfds,
}

impl Lacks {
    fn call(self) -> libc::c_long {
        match self {
            Self::Landlock => libc::SYS_landlock_create_ruleset,
            Self::Seccomp => libc::SYS_seccomp,
            Self::Pidfds => libc::SYS_pidfd_open,
        }
    }
}

/// Makes `command` and all of its descendants run as if the kernel did not support `lacks`.
pub fn without(command: &mut Command, lacks: Lacks) {
    let filter = filter(lacks);
    let begin = move || seccompiler::apply_filter(&filter).map_err(io::Error::other);
    // SAFETY: `begin` runs between fork and exec. It applies a filter that was built before the fork, with two system
    // calls, and allocates only if one of them fails.
    unsafe { command.pre_exec(begin) };
}

fn filter(lacks: Lacks) -> BpfProgram {
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let processor = TargetArch::try_from(std::env::consts::ARCH).expect("filters are known for this processor");
    let calls = [(lacks.call(), Vec::new())].into();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, unknown, processor).expect("a filter of one call");
    filter.try_into().expect("a program of one call")
}
