//! Which calls of the system a process knows: seccomp filters, and what those of all our processes share.
//!
//! A call that is not listed, or not with these arguments, is answered as if the kernel lacked it, so that its
//! caller goes on without. `clone3` is among those: what it is asked for cannot be seen, and libraries fall back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Calls that every process of ours needs, and that can do nothing beyond it. Files are only those that are open.
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

/// What is asked of one argument of a call.
type Condition = Result<SeccompCondition, BackendError>;

/// That the argument is this number.
pub(super) fn is(argument: u8, value: libc::c_int) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unsigned(value))
}

/// That the argument has, of the flags in the mask, these.
pub(super) fn flags(argument: u8, mask: libc::c_int, value: libc::c_int) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(unsigned(mask)), unsigned(value))
}

/// That the argument points nowhere.
pub(super) fn null(argument: u8) -> Condition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

/// That a protection lets nothing be run.
pub(super) fn no_code(argument: u8) -> Condition {
    flags(argument, libc::PROT_EXEC, 0)
}

/// An argument as the kernel has it.
fn unsigned(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}

/// The calls that a process knows, each with the ways in which it can be made: in all of a way's conditions, and without a
/// way in any.
#[must_use]
pub(super) struct Calls(BTreeMap<libc::c_long, Vec<Vec<SeccompCondition>>>);

impl Calls {
    /// What every process of ours needs: its memory can be made in other ways than it is here, which each says itself.
    pub(super) fn needed() -> Result<Self, BackendError> {
        let mut calls = Self(BTreeMap::new());
        calls.all(NEEDED);
        // Signals to itself, as `abort` sends one.
        let own = i32::try_from(std::process::id()).unwrap_or(-1);
        calls.when(libc::SYS_tgkill, [is(0, own)])?;
        // What descriptors are, and a second one for the same.
        calls.any_of(libc::SYS_fcntl, 1, &[libc::F_GETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC])?;
        // Its own limits, to read.
        calls.when(libc::SYS_prlimit64, [is(0, 0), null(2)])?;
        Ok(calls)
    }

    /// Calls whose arguments do not matter, whatever else is said of them.
    pub(super) fn all(&mut self, calls: &[libc::c_long]) {
        self.0.extend(calls.iter().map(|call| (*call, Vec::new())));
    }

    /// A call if all of that is so. Said again of the same call, it is another way to make it.
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
            // The arguments do not matter.
            Entry::Occupied(entry) if entry.get().is_empty() => {}
            Entry::Occupied(mut entry) => entry.get_mut().push(way),
        }
        Ok(())
    }

    /// What is known of those calls, for any descriptor but this one: it is their first argument.
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

    /// A call if its argument is one of those.
    pub(super) fn any_of(
        &mut self,
        call: libc::c_long,
        argument: u8,
        values: &[libc::c_int],
    ) -> Result<(), BackendError> {
        values.iter().try_for_each(|value| self.when(call, [is(argument, *value)]))
    }

    /// Threads of its own, and nothing else that is like a process: no other flag than those that libraries set for one.
    pub(super) fn threads(&mut self) -> Result<(), BackendError> {
        let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        let own = libc::CLONE_SYSVSEM | libc::CLONE_SETTLS | libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
        self.when(libc::SYS_clone, [flags(0, !(own | libc::CLONE_DETACHED), thread)])
    }

    /// Code that is made from memory: it is written first, and made to run then. On some processors it must be awaited
    /// that all threads see it.
    pub(super) fn code(&mut self) -> Result<(), BackendError> {
        self.all(&[libc::SYS_mprotect]);
        let own = [
            libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE,
            libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
        ];
        self.any_of(libc::SYS_membarrier, 0, &own)
    }

    /// Sockets for TCP, of no other protocol.
    pub(super) fn tcp(&mut self) -> Result<(), BackendError> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            // Further protocols have streams too, and Landlock does not know them.
            for protocol in [0, libc::IPPROTO_TCP] {
                let stream = flags(1, !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), libc::SOCK_STREAM);
                self.when(libc::SYS_socket, [is(0, family), stream, is(2, protocol)])?;
            }
        }
        Ok(())
    }

    /// Names for threads and memory.
    pub(super) fn names(&mut self) -> Result<(), BackendError> {
        self.any_of(libc::SYS_prctl, 0, &[libc::PR_SET_NAME, libc::PR_SET_VMA])
    }

    /// The filter, as the kernel takes it.
    pub(super) fn filter(self) -> Result<BpfProgram, BackendError> {
        let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
        let rules = |ways: Vec<Vec<_>>| ways.into_iter().map(SeccompRule::new).collect::<Result<_, _>>();
        let known: BTreeMap<_, Vec<SeccompRule>> =
            self.0.into_iter().map(|(call, ways)| Ok((call, rules(ways)?))).collect::<Result<_, BackendError>>()?;
        SeccompFilter::new(known, unknown, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
    }
}
