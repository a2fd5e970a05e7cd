//! Confines a process that runs one instance of a guest. The process keeps the descriptors that it was given, and can
//! use the folders and TCP connections that its coordinator was granted. Confinement has three steps. First, the
//! template is confined before it maps untrusted code. Second, each process that the template forks is confined to the
//! coordinator's grants. Third, the forked process is confined further once all its threads exist.
//!
//! The kernel cannot enforce everything, so the runner's own code must take these gaps into account:
//!
//! - A process with granted folders can query the metadata of any path (type, size, times, link target): Landlock
//!   allows such queries, and a filter cannot see paths.
//! - A read-only folder inside a writable folder is writable.
//! - The addresses of connections are not checked.
//! - A pipe or a memory file can be reopened through `/proc` with rights that its descriptor does not have. Memory that
//!   must stay read-only is therefore sealed, or its descriptor is closed after mapping.

use std::io;
use std::os::fd::BorrowedFd;

use seccompiler::{BackendError, BpfProgram};

use super::ConfineError;
use super::filter::{Calls, flags, is, no_code, null};

/// The resources that a runner may reach. The default grants nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct RunnerReach<'a> {
    /// Granted folders, opened with `O_PATH`. The flag is true for a read-only folder.
    pub folders: &'a [(BorrowedFd<'a>, bool)],
    /// True if any folder is granted, even if the folder does not exist yet. The runner's filter then allows the system
    /// calls for files while the guest runs, because the runner opens the folders again when an instance starts.
    pub files: bool,
    /// True if the runner may make TCP connections.
    pub network: bool,
    /// A descriptor that the process must keep open, even after a guest has taken over the process. The process cannot
    /// close or duplicate the descriptor, and cannot unlock the file behind it or write to that file.
    pub holds: Option<BorrowedFd<'a>>,
}

/// Permanently confines this process to loading a guest and forking. [`to_loading`] and [`to_running`] can confine each
/// forked process further. The process must have only one thread.
///
/// # Errors
/// [`ConfineError`] if a mechanism that the kernel supports fails. A mechanism that the kernel lacks is not an error.
pub fn to_forking() -> Result<(), ConfineError> {
    super::give_up_privileges()?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&forking()?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Permanently confines this process to the calls that it needs to prepare itself and to use its grants. Call this
/// after [`to_forking`]. The process must have only one thread; threads created later inherit the confinement. The
/// process must already have its descriptors and shared memory.
///
/// # Errors
/// [`ConfineError`] if a mechanism that the kernel supports fails. A mechanism that the kernel lacks is not an error.
pub fn to_loading(reach: &RunnerReach<'_>) -> Result<(), ConfineError> {
    super::give_up_files(reach)?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&loading(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Permanently confines all threads of this process to running a linked instance. Call this after [`to_loading`]. From
/// then on, the process cannot start threads or load code, so its thread pool must have reached its full size. If no
/// files are granted, `statx` is forbidden. The process must then query descriptors with `fstat`, not through the
/// standard library, which calls `statx` with an empty path.
///
/// # Errors
/// [`ConfineError`] if a mechanism that the kernel supports fails. A mechanism that the kernel lacks is not an error.
pub fn to_running(reach: &RunnerReach<'_>) -> Result<(), ConfineError> {
    if super::has_seccomp() {
        seccompiler::apply_filter_all_threads(&running(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Most of the calls that a running instance needs: they act on open descriptors, or wait for events on them.
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
    // For appending to a file (`RWF_APPEND`).
    libc::SYS_pwritev2,
];

/// Calls that a runner needs to prepare itself and to query the files that contain its code.
const MAKES: &[libc::c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    // For the initial image of a guest's memory.
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_statx,
];

/// Calls that take paths, which Landlock restricts, and calls on files that were opened by path. Calls that change
/// owners, permissions or extended attributes are left out, since Landlock does not restrict them.
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
/// The number of `renameat` on this architecture, for which `libc` has no name.
#[cfg(target_arch = "aarch64")]
const RENAMEAT: libc::c_long = 38;

/// Calls that can close, duplicate or lock a descriptor, or change the file behind it. A runner may not make these
/// calls on [`RunnerReach::holds`].
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

/// Builds a template's filter. A runner inherits this filter from its template, so the filter allows all calls that a
/// runner may need, in addition to the calls that fork a runner.
fn forking() -> Result<BpfProgram, BackendError> {
    let mut calls = preparing(true, true, None)?;
    calls.all(&[
        libc::SYS_getppid,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_restrict_self,
        libc::SYS_recvmsg,
        libc::SYS_setsid,
        // For `abort`. This filter cannot restrict the target to the calling process, since each fork has its own
        // process id. Each fork later installs a filter that restricts the target.
        libc::SYS_tgkill,
    ]);
    calls.when(libc::SYS_clone, [is(0, libc::CLONE_PARENT | libc::SIGCHLD)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_PDEATHSIG), is(1, libc::SIGKILL)])?;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_SHARED)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, 0)])?;
    calls.filter()
}

fn loading(reach: &RunnerReach<'_>) -> Result<BpfProgram, BackendError> {
    preparing(!reach.folders.is_empty(), reach.network, reach.holds)?.filter()
}

fn preparing(files: bool, network: bool, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    let mut calls = working(files, network)?;
    calls.all(MAKES);
    calls.threads()?;
    calls.names()?;
    calls.code()?;
    // Allow opening files read-only. Code is mapped by reopening its descriptor through `/proc`, which Landlock allows
    // for memory files.
    calls.when(libc::SYS_openat, [flags(2, libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC, libc::O_RDONLY)])?;
    // Allow sealing memory images.
    calls.any_of(libc::SYS_fcntl, 1, &[libc::F_ADD_SEALS, libc::F_GET_SEALS])?;
    // Allow setting this process's limits.
    calls.when(libc::SYS_prlimit64, [is(0, 0)])?;
    // tokio's signal handling creates a socket pair. The pair cannot pass descriptors, since `sendmsg` is forbidden.
    let stream = flags(1, !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), libc::SOCK_STREAM);
    calls.when(libc::SYS_socketpair, [is(0, libc::AF_UNIX), stream])?;
    // Allow installing the next filter, in `to_running`.
    let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC as libc::c_int;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, all_threads)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_GET_ACTION_AVAIL as libc::c_int), is(1, 0)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_NO_NEW_PRIVS), is(1, 1)])?;
    keeps(calls, holds)
}

fn running(reach: &RunnerReach<'_>) -> Result<BpfProgram, BackendError> {
    let mut calls = working(reach.files, reach.network)?;
    calls.when(libc::SYS_mprotect, [no_code(2)])?;
    keeps(calls, reach.holds)?.filter()
}

/// Forbids all calls that could close, duplicate or unlock the held descriptor, or change the file behind it.
fn keeps(mut calls: Calls, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    if let Some(descriptor) = holds {
        calls.but_for(descriptor, GIVES_UP)?;
    }
    Ok(calls)
}

/// Returns the calls that a runner needs throughout its life. None of them can affect another process, take a lock that
/// other processes wait for, or pass on a descriptor. `sendmsg` is not among them: it could pass descriptors, and a
/// filter cannot see the message.
fn working(files: bool, network: bool) -> Result<Calls, BackendError> {
    let mut calls = Calls::needed()?;
    calls.all(OPEN);
    // Allow private mappings without execute permission. The mappings may map a file, since memory images are files.
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_PRIVATE)])?;
    // Allow setting `O_NONBLOCK` and `O_APPEND`, but not `O_ASYNC`, which sends signals.
    calls.when(libc::SYS_fcntl, [is(1, libc::F_SETFL), flags(2, libc::O_ASYNC, 0)])?;
    calls.when(libc::SYS_ioctl, [is(1, libc::FIONBIO as libc::c_int)])?;
    if files {
        calls.all(FILES);
        // Allow setting times by open descriptor only, since Landlock does not restrict setting times by path.
        calls.when(libc::SYS_utimensat, [null(1), is(3, 0)])?;
    }
    if network {
        connections(&mut calls)?;
    }
    Ok(calls)
}

/// Allows outgoing TCP connections, but no other protocol, no incoming connections, and no addresses in `sendto` and
/// `recvfrom`.
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
