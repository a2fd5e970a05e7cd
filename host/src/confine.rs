//! Confines a process of ours to what it computes with, before it works on what others made: its memory, its threads,
//! its processor time, and the descriptors that it was given. Whatever a fault in what works there lets a stranger's
//! bytes do, no file, no network and no other process is within their reach.
//!
//! The kernel does all of it: Landlock (files, TCP, signals, abstract sockets), a seccomp filter (every call that is not
//! needed is unknown), no capabilities and no way to new ones. A kernel that lacks some of it leaves the rest;
//! [`missing`] says what.

use std::collections::BTreeMap;
use std::io;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr as _, RulesetError, Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The newest Landlock whose rights are known here. What the kernel lacks of it is left out.
const LANDLOCK: ABI = ABI::V6;

/// Descriptors from here on are closed: before are those of the standard streams.
const FIRST: libc::c_uint = 3;

/// What a process does with code that it compiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// It hands it over. No memory of its own can be run but its program.
    HandsOver,
    /// It loads it to look at it: memory can be made to run.
    Loads,
}

/// Why a process is not confined though its kernel could.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The kernel refused something that every kernel has.
    #[error("cannot give up what it may do: {0}")]
    System(#[from] io::Error),
    /// Landlock failed other than by not being there.
    #[error("cannot give up files: {0}")]
    Landlock(#[from] RulesetError),
    /// The filter cannot be built for this processor.
    #[error("cannot filter calls of the system: {0}")]
    Filter(#[from] BackendError),
}

impl From<rustix::io::Errno> for ConfineError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}

/// Confines this process for good, to what somebody needs who treats code so. Of the standard streams it keeps what they are; all other descriptors are closed.
/// There must be no other thread yet: they are made with what is left.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_computing(code: Code) -> Result<(), ConfineError> {
    close_others()?;
    // Nobody with the same user reads its memory, or makes it a core dump.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    no_files()?;
    if has_seccomp() {
        let filter = filter(code)?;
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    Ok(())
}

/// What this system lacks of all that [`to_computing`] does, in words for people.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    let landlock = (!has_landlock()).then_some("Landlock (Linux 5.13)");
    let seccomp = (!has_seccomp()).then_some("seccomp filters");
    landlock.into_iter().chain(seccomp).collect()
}

fn close_others() -> io::Result<()> {
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

/// No file by its path, no TCP, no signal and no abstract socket of a process outside.
fn no_files() -> Result<RestrictionStatus, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .restrict_self()
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

/// Calls that a process needs that only computes, and that can do nothing beyond it. Files are only those that are open.
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

/// A filter that knows the calls that are needed. All others are answered as if the kernel lacked them, so that whoever
/// makes one goes on without it. `clone3` is among those: what it is asked for cannot be seen, and libraries fall back.
fn filter(code: Code) -> Result<BpfProgram, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq};

    let when = |argument, length, operator, value| SeccompCondition::new(argument, length, operator, value);
    let flags = |argument, mask: libc::c_int, value: libc::c_int| {
        when(argument, Dword, MaskedEq(unsigned(mask)), unsigned(value))
    };
    let is = |argument, value: libc::c_int| when(argument, Dword, Eq, unsigned(value));
    let rule = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let own = i32::try_from(std::process::id()).unwrap_or(-1);
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;

    let mut rules: BTreeMap<libc::c_long, Vec<SeccompRule>> = NEEDED.iter().map(|call| (*call, Vec::new())).collect();
    // Threads of its own.
    rules.insert(libc::SYS_clone, vec![rule(vec![flags(0, thread, thread)?])?]);
    // Signals to itself, as `abort` sends one.
    rules.insert(libc::SYS_tgkill, vec![rule(vec![is(0, own)?])?]);
    // Memory of its own. Nothing in it can be run, if not made so later.
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let no_code = |argument| flags(argument, libc::PROT_EXEC, 0);
    rules.insert(libc::SYS_mmap, vec![rule(vec![no_code(2)?, flags(3, private | libc::MAP_SHARED, private)?])?]);
    rules.insert(
        libc::SYS_mprotect,
        match code {
            Code::HandsOver => vec![rule(vec![no_code(2)?])?],
            Code::Loads => Vec::new(),
        },
    );
    // Names for threads and memory.
    let names = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| rule(vec![is(0, option)?]));
    rules.insert(libc::SYS_prctl, names.into_iter().collect::<Result<_, _>>()?);
    // What descriptors are, and a second one for the same.
    let asks = [libc::F_GETFD, libc::F_GETFL, libc::F_DUPFD_CLOEXEC].map(|command| rule(vec![is(1, command)?]));
    rules.insert(libc::SYS_fcntl, asks.into_iter().collect::<Result<_, _>>()?);
    // Its own limits, to read.
    rules.insert(libc::SYS_prlimit64, vec![rule(vec![is(0, 0)?, when(2, Qword, Eq, 0)?])?]);

    let unknown = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let filter = SeccompFilter::new(rules, unknown, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

/// Flags as a call's argument has them.
fn unsigned(value: libc::c_int) -> u64 {
    value.cast_unsigned().into()
}
