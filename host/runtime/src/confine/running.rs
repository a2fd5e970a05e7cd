//! Confines a process that runs one instance of a guest. It has the descriptors that it was given, and reaches the
//! folders and TCP connections that its coordinator was granted. It is confined three times: with its template, before
//! that maps untrusted code; to its grants, once it is forked; and further, once all its threads exist.
//!
//! The kernel cannot enforce all of this, so the runner's own code must take care:
//!
//! - A process with folders can query any path (type, size, times, target of a link): Landlock allows that, and a
//!   filter cannot see paths.
//! - A read-only folder inside a writable one is writable.
//! - Addresses of connections are not checked.
//! - A pipe or a memory file can be reopened through `/proc` with other rights than its descriptor has. Memory that
//!   must stay read-only is sealed, or its descriptor is closed once it is mapped.

use std::io;
use std::os::fd::BorrowedFd;

use seccompiler::{BackendError, BpfProgram};

use super::ConfineError;
use super::filter::{Calls, flags, is, no_code, null};

/// The resources that a runner may reach. The default is nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct RunnerReach<'a> {
    /// Granted folders, opened with `O_PATH`, and true for those that are read-only.
    pub folders: &'a [(BorrowedFd<'a>, bool)],
    /// True if it opens folders when an instance starts, including some that do not exist yet.
    pub files: bool,
    /// True if it makes TCP connections.
    pub network: bool,
    /// A descriptor that the process holds for life, even if it is taken over. It can neither close nor duplicate it,
    /// and neither unlock nor write the file behind it.
    pub holds: Option<BorrowedFd<'a>>,
}

/// Confines this process for good to loading a guest and forking siblings, which [`to_loading`] and [`to_running`] can
/// confine further. The process must have only one thread.
///
/// # Errors
/// [`ConfineError`] if the kernel refuses a mechanism that it has. One that it lacks is no error.
pub fn to_forking() -> Result<(), ConfineError> {
    super::give_up_privileges()?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&forking()?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Confines this process for good, after [`to_forking`], to preparing itself and to its grants. The process must have
/// only one thread: threads made later inherit the confinement. It must already have its descriptors and shared memory.
///
/// # Errors
/// [`ConfineError`] if the kernel refuses a mechanism that it has. One that it lacks is no error.
pub fn to_loading(reach: &RunnerReach<'_>) -> Result<(), ConfineError> {
    super::give_up_files(reach)?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&loading(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Confines all threads of this process for good, after [`to_loading`], to running a linked instance. No thread and no
/// code can be added, so the thread pool must be full and not try to grow. Without files, the process must query
/// descriptors with `fstat`: the standard library calls `statx` with an empty path.
///
/// # Errors
/// [`ConfineError`] if the kernel refuses a mechanism that it has. One that it lacks is no error.
pub fn to_running(reach: &RunnerReach<'_>) -> Result<(), ConfineError> {
    if super::has_seccomp() {
        seccompiler::apply_filter_all_threads(&running(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Calls on open descriptors and their events, which do all the work of a runner.
const OPEN: &[libc::c_long] = &[
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    // Appends, with `RWF_APPEND`.
    libc::SYS_pwritev2,
];

/// Calls with which a runner prepares itself and queries the files of the code that it loads.
const MAKES: &[libc::c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    // For the initial image of a guest's memory.
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_statx,
];

/// Calls on files by path, which Landlock restricts, and on files opened that way. Calls that change owners,
/// permissions or extended attributes are missing, since Landlock does not restrict them.
const FILES: &[libc::c_long] = &[
    libc::SYS_fadvise64,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_linkat,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    RENAMEAT,
    libc::SYS_renameat2,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
];

#[cfg(not(target_arch = "aarch64"))]
const RENAMEAT: libc::c_long = libc::SYS_renameat;
/// This architecture has the call, but `libc` has no name for it.
#[cfg(target_arch = "aarch64")]
const RENAMEAT: libc::c_long = 38;

/// Calls that close, duplicate or lock a descriptor, or change the file behind it.
const GIVES_UP: &[libc::c_long] = &[
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_write,
    libc::SYS_writev,
];

const CONNECTIONS: &[libc::c_long] =
    &[libc::SYS_connect, libc::SYS_getpeername, libc::SYS_getsockname, libc::SYS_shutdown];

/// Builds the filter of a template: all calls that a runner may need, and those that fork it.
fn forking() -> Result<BpfProgram, BackendError> {
    let mut calls = preparing(true, true, None)?;
    calls.all(&[
        libc::SYS_getppid,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_restrict_self,
        libc::SYS_recvmsg,
        libc::SYS_setsid,
        // For `abort`. Each fork has a process id of its own, so its next filter restricts the target.
        libc::SYS_tgkill,
    ]);
    calls.when(libc::SYS_clone, [is(0, libc::CLONE_PARENT | libc::SIGCHLD)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_PDEATHSIG), is(1, libc::SIGKILL)])?;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_SHARED)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, 0)])?;
    calls.filter()
}

/// Builds the filter of a runner that prepares itself.
fn loading(reach: &RunnerReach<'_>) -> Result<BpfProgram, BackendError> {
    preparing(!reach.folders.is_empty(), reach.network, reach.holds)?.filter()
}

fn preparing(files: bool, network: bool, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    let mut calls = working(files, network)?;
    calls.all(MAKES);
    calls.threads()?;
    calls.names()?;
    calls.code()?;
    // Code is mapped from a descriptor that is reopened by its path in `/proc`. Landlock allows that for memory files.
    calls.when(libc::SYS_openat, [flags(2, libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC, libc::O_RDONLY)])?;
    // Images of memory are sealed.
    calls.any_of(libc::SYS_fcntl, 1, &[libc::F_ADD_SEALS, libc::F_GET_SEALS])?;
    // Setting the limits of this process.
    calls.when(libc::SYS_prlimit64, [is(0, 0)])?;
    // tokio's signal handling makes a socket pair. It can carry no descriptor, since `sendmsg` is forbidden.
    let stream = flags(1, !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), libc::SOCK_STREAM);
    calls.when(libc::SYS_socketpair, [is(0, libc::AF_UNIX), stream])?;
    // The next filter: `to_running`.
    let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC as libc::c_int;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, all_threads)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_GET_ACTION_AVAIL as libc::c_int), is(1, 0)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_NO_NEW_PRIVS), is(1, 1)])?;
    keeps(calls, holds)
}

/// Builds the filter of a runner while its guest runs.
fn running(reach: &RunnerReach<'_>) -> Result<BpfProgram, BackendError> {
    let mut calls = working(reach.files, reach.network)?;
    calls.when(libc::SYS_mprotect, [no_code(2)])?;
    keeps(calls, reach.holds)?.filter()
}

/// Forbids all calls that would give up the held descriptor.
fn keeps(mut calls: Calls, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    if let Some(descriptor) = holds {
        calls.but_for(descriptor, GIVES_UP)?;
    }
    Ok(calls)
}

/// Returns the calls that a runner needs for its whole life. None of them acts on another process, takes a lock that
/// others wait for, or passes a descriptor on. (`sendmsg` could, and a filter cannot see its contents.)
fn working(files: bool, network: bool) -> Result<Calls, BackendError> {
    let mut calls = Calls::needed()?;
    calls.all(OPEN);
    // Private memory, not executable unless made so later. It need not be anonymous: images of memory are files.
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_PRIVATE)])?;
    // Changes `O_NONBLOCK` and `O_APPEND`, but not `O_ASYNC`, which sends signals.
    calls.when(libc::SYS_fcntl, [is(1, libc::F_SETFL), flags(2, libc::O_ASYNC, 0)])?;
    calls.when(libc::SYS_ioctl, [is(1, libc::FIONBIO as libc::c_int)])?;
    if files {
        calls.all(FILES);
        // By open descriptor only: Landlock does not restrict setting times by path.
        calls.when(libc::SYS_utimensat, [null(1), is(3, 0)])?;
    }
    if network {
        connections(&mut calls)?;
    }
    Ok(calls)
}

/// Allows outgoing TCP connections: no other protocol, no incoming ones, and no address in calls that send.
fn connections(calls: &mut Calls) -> Result<(), BackendError> {
    calls.all(CONNECTIONS);
    calls.tcp()?;
    calls.when(libc::SYS_sendto, [flags(3, !libc::MSG_NOSIGNAL, 0), null(4)])?;
    calls.when(libc::SYS_recvfrom, [flags(3, !libc::MSG_PEEK, 0), null(4)])?;
    for (level, option) in [(libc::IPPROTO_TCP, libc::TCP_NODELAY), (libc::SOL_SOCKET, libc::SO_LINGER)] {
        calls.when(libc::SYS_setsockopt, [is(1, level), is(2, option)])?;
        calls.when(libc::SYS_getsockopt, [is(1, level), is(2, option)])?;
    }
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        calls.when(libc::SYS_setsockopt, [is(1, libc::SOL_SOCKET), is(2, option)])?;
    }
    calls.when(libc::SYS_getsockopt, [is(1, libc::SOL_SOCKET), is(2, libc::SO_ERROR)])
}
