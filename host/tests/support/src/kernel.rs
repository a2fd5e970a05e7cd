//! Older kernels, and containers whose profile lets less through: a filter in front of a program answers some of its calls
//! of the system as a kernel does that does not know them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Something that a kernel may lack.
#[derive(Clone, Copy, Debug)]
pub enum Lacks {
    /// What keeps a process to folders and ports.
    Landlock,
    /// What keeps a process from calls of the system.
    Seccomp,
    /// What a process is known by, whatever becomes of its number.
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

/// Has the program, and all that it starts, run on a kernel that lacks this.
pub fn without(command: &mut Command, lacks: Lacks) {
    let filter = filter(lacks);
    let begin = move || seccompiler::apply_filter(&filter).map_err(io::Error::other);
    // SAFETY: the filter was made before; two system calls are all that is made there, and they allocate nothing.
    unsafe { command.pre_exec(begin) };
}

fn filter(lacks: Lacks) -> BpfProgram {
    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let processor = TargetArch::try_from(std::env::consts::ARCH).expect("filters are known for this processor");
    let calls = [(lacks.call(), Vec::new())].into();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, unknown, processor).expect("a filter of one call");
    filter.try_into().expect("a program of one call")
}
