//! Seccomp filters: lists of the system calls that a process may make. Each list starts with the calls that all our
//! processes need.
//!
//! A call that is not listed, or whose arguments do not match, fails with `ENOSYS`, so that its caller can fall back to
//! another call. `clone3` is not listed, since a filter cannot see the flags of `clone3`. Libraries then fall back to
//! `clone`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Calls that each of our processes needs, and that have no effect outside the process. Calls that act on a file need
/// an open descriptor of the file.
const NEEDED: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

type Condition = Result<SeccompCondition, BackendError>;

pub(super) fn is(argument: u8, value: libc::c_int) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unsigned(value))
}

/// Requires the flags within `mask` to be set exactly as in `value`. The argument's other flags may have any value.
pub(super) fn flags(argument: u8, mask: libc::c_int, value: libc::c_int) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(unsigned(mask)), unsigned(value))
}

pub(super) fn null(argument: u8) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// Requires a memory protection argument (`PROT_*` flags) that does not allow execution.
pub(super) fn no_code(argument: u8) -> Condition {
    flags(argument, libc::PROT_EXEC, 0)
}

fn unsigned(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

/// The system calls that a process may make. Each call has a list of alternative sets of conditions. The call is
/// allowed if all conditions of one set hold, or if the list is empty.
#[must_use]
pub(super) struct Calls(BTreeMap<libc::c_long, Vec<Vec<SeccompCondition>>>);

impl Calls {
    /// Returns the calls in [`NEEDED`], and a few calls that are allowed only with certain arguments. `mmap` is not
    /// among them, since each process needs different rules for it.
    pub(super) fn needed() -> Result<Self, BackendError> {
        let mut calls = Self(BTreeMap::new());
        calls.all(NEEDED);
        // Allow this process to signal itself, as `abort` does.
        let own = i32::try_from(std::process::id()).unwrap_or(-1);
        calls.when(libc::SYS_tgkill, [is(0, own)])?;
        // Allow reading a descriptor's flags and duplicating the descriptor.
        calls.any_of(libc::SYS_fcntl, 1, &[libc::F_GETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC])?;
        // Allow reading this process's limits.
        calls.when(libc::SYS_prlimit64, [is(0, 0), null(2)])?;
        Ok(calls)
    }

    /// Allows these calls with any arguments. Replaces all earlier conditions on the calls.
    pub(super) fn all(&mut self, calls: &[libc::c_long]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    /// Allows a system call if all conditions hold. A second use for the same system call adds an alternative set of
    /// conditions.
    pub(super) fn when<const N: usize>(
        &mut self,
        call: libc::c_long,
        conditions: [Condition; N],
    ) -> Result<(), BackendError> {
        let way = conditions.into_iter().collect::<Result<_, _>>()?;
        match self.0.entry(call) {
            Entry::Vacant(entry) => {
                entry.insert(vec![way]);
            }
            // An empty list allows the call with any arguments, so there is nothing to add.
            Entry::Occupied(entry) if entry.get().is_empty() => {}
            Entry::Occupied(mut entry) => entry.get_mut().push(way),
        }
        Ok(())
    }

    /// Forbids these system calls if their first argument is this descriptor.
    pub(super) fn but_for(&mut self, descriptor: BorrowedFd<'_>, calls: &[libc::c_long]) -> Result<(), BackendError> {
        let number = unsigned(descriptor.as_raw_fd());
        let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, number)?;
        for call in calls {
            let Some(ways) = self.0.get_mut(call) else { continue };
            if ways.is_empty() {
                ways.push(Vec::new());
            }
            ways.iter_mut().for_each(|way| way.push(other.clone()));
        }
        Ok(())
    }

    pub(super) fn any_of(
        &mut self,
        call: libc::c_long,
        argument: u8,
        values: &[libc::c_int],
    ) -> Result<(), BackendError> {
        values.iter().try_for_each(|value| self.when(call, [is(argument, *value)]))
    }

    /// Allows creating threads but not processes: `clone` with the flags that libraries set for a thread.
    pub(super) fn threads(&mut self) -> Result<(), BackendError> {
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        let own = libc::CLONE_SYSVSEM | libc::CLONE_SETTLS | libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
        self.when(libc::SYS_clone, [flags(0, !(own | libc::CLONE_DETACHED), thread)])
    }

    /// Allows making memory executable after code has been written to it. Also allows the memory barrier that all
    /// threads must then execute on some architectures.
    pub(super) fn code(&mut self) -> Result<(), BackendError> {
        self.all(&[libc::SYS_mprotect]);
        let own = [
            libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
            libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
        ];
        self.any_of(libc::SYS_membarrier, 0, &own)
    }

    pub(super) fn tcp(&mut self) -> Result<(), BackendError> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            // Check the protocol, since other protocols also have stream sockets, and Landlock restricts only TCP.
            for protocol in [0, libc::IPPROTO_TCP] {
                let stream = flags(1, !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), libc::SOCK_STREAM);
                self.when(libc::SYS_socket, [is(0, family), stream, is(2, protocol)])?;
            }
        }
        Ok(())
    }

    pub(super) fn names(&mut self) -> Result<(), BackendError> {
        self.any_of(libc::SYS_prctl, 0, &[libc::PR_SET_NAME, libc::PR_SET_VMA])
    }

    pub(super) fn filter(self) -> Result<BpfProgram, BackendError> {
        let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let rules = |ways: Vec<Vec<_>>| ways.into_iter().map(SeccompRule::new).collect::<Result<_, _>>();
        let known: BTreeMap<_, Vec<SeccompRule>> =
            self.0.into_iter().map(|(call, ways)| Ok((call, rules(ways)?))).collect::<Result<_, BackendError>>()?;
        SeccompFilter::new(known, unknown, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
    }
}
