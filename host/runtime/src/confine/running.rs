//! A process that runs one instance of a guest. It keeps the descriptors that it was given, and what it may reach beyond
//! them is what its coordinator was granted: folders, and TCP connections to elsewhere. It is confined three times: with
//! the process that it is forked by, before that maps a stranger's code; to what was granted, when it has been forked; and,
//! to less, once all its threads are there.
//!
//! What the kernel cannot tell apart is left to the runner's own code. A process with folders can ask of any path what
//! is there (its kind, size and times, and where a link leads), since Landlock lets it and a filter does not see paths;
//! a folder to be read that lies within one to be written can be written; and which addresses are connected to is not
//! looked at. It can open a pipe or a file in memory of its own once more by the path in `/proc`, with other rights than
//! its descriptor has: memory that it may only read has to be sealed, or its descriptor closed once that is mapped.

use std::io;
use std::os::fd::BorrowedFd;

use seccompiler::{BackendError, BpfProgram};

use super::ConfineError;
use super::filter::{Calls, flags, is, no_code, null};

/// What a runner may reach from the beginning. The default is nothing.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reach<'a> {
    /// Folders that are granted: opened with `O_PATH`, and whether they may only be read.
    pub folders: &'a [(BorrowedFd<'a>, bool)],
    /// Whether it opens folders when an instance starts, those that are not there yet among them.
    pub files: bool,
    /// Whether it makes TCP connections.
    pub network: bool,
    /// What it holds as long as it is there, whatever becomes of it: it can neither close it, nor unlock or write what it
    /// is open for, nor have another descriptor for that.
    pub holds: Option<BorrowedFd<'a>>,
}

/// Confines this process for good, to what it needs to load a guest and to fork processes that are siblings of it; these
/// can still be confined in both of the ways below. There must be no other thread yet.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_forking() -> Result<(), ConfineError> {
    super::give_up_privileges()?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&forking()?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Confines this process for good, after [`to_forking`], to what it needs to make itself ready and to reach what the guest
/// was granted. There must be no other thread yet: they are made with what is left. Descriptors and shared memory are
/// those that it has by now.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_loading(reach: &Reach<'_>) -> Result<(), ConfineError> {
    super::give_up_files(reach)?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&loading(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Confines all threads of this process for good, after [`to_loading`], to what an instance needs that is linked: no
/// thread and no code is added from now on. So its pool of threads must be full, and not try to grow. Without files it
/// asks of a descriptor what it is by `fstat` itself: the standard library asks by a path that is empty.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_running(reach: &Reach<'_>) -> Result<(), ConfineError> {
    if super::has_seccomp() {
        seccompiler::apply_filter_all_threads(&running(reach)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Calls on what is open and on events of that, with which a runner does all its work.
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
    // Appends, with a flag.
    libc::SYS_pwritev2,
];

/// Calls that make what a runner works with, and look at the files of the code that it loads.
const MAKES: &[libc::c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    // The first image of a guest's memory.
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_statx,
];

/// Calls on files by their paths, where Landlock sees to it which those are, and on files that such a call opened.
/// There is none that changes owners, permissions or further attributes, since those pass Landlock.
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
/// It is there, but has no name in `libc`.
#[cfg(target_arch = "aarch64")]
const RENAMEAT: libc::c_long = 38;

/// Calls with which a descriptor is closed, doubled or locked, or what it is open for is changed.
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

/// Calls on connections.
const CONNECTIONS: &[libc::c_long] =
    &[libc::SYS_connect, libc::SYS_getpeername, libc::SYS_getsockname, libc::SYS_shutdown];

/// What a template knows of the system: all that a runner may come to need, and what makes one.
fn forking() -> Result<BpfProgram, BackendError> {
    let mut calls = preparing(true, true, None)?;
    calls.all(&[
        libc::SYS_getppid,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_restrict_self,
        libc::SYS_recvmsg,
        libc::SYS_setsid,
        // As `abort` sends it to itself. Each copy has another number, and says so when it is confined further.
        libc::SYS_tgkill,
    ]);
    calls.when(libc::SYS_clone, [is(0, libc::CLONE_PARENT | libc::SIGCHLD)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_PDEATHSIG), is(1, libc::SIGKILL)])?;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_SHARED)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, 0)])?;
    calls.filter()
}

/// What a runner knows of the system while it makes itself ready.
fn loading(reach: &Reach<'_>) -> Result<BpfProgram, BackendError> {
    preparing(!reach.folders.is_empty(), reach.network, reach.holds)?.filter()
}

fn preparing(files: bool, network: bool, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    let mut calls = working(files, network)?;
    calls.all(MAKES);
    calls.threads()?;
    calls.names()?;
    calls.code()?;
    // Code is mapped from a descriptor that is opened once more by the path that it has in `/proc`. Landlock lets that
    // be done with files in memory.
    calls.when(libc::SYS_openat, [flags(2, libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC, libc::O_RDONLY)])?;
    // The images of memory are sealed.
    calls.any_of(libc::SYS_fcntl, 1, &[libc::F_ADD_SEALS, libc::F_GET_SEALS])?;
    // Its own limits, to set.
    calls.when(libc::SYS_prlimit64, [is(0, 0)])?;
    // The runtime for signals makes a pair for itself. No descriptor can pass through it.
    let stream = flags(1, !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC), libc::SOCK_STREAM);
    calls.when(libc::SYS_socketpair, [is(0, libc::AF_UNIX), stream])?;
    // The next filter: `to_running`.
    let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC as libc::c_int;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_SET_MODE_FILTER as libc::c_int), is(1, all_threads)])?;
    calls.when(libc::SYS_seccomp, [is(0, libc::SECCOMP_GET_ACTION_AVAIL as libc::c_int), is(1, 0)])?;
    calls.when(libc::SYS_prctl, [is(0, libc::PR_SET_NO_NEW_PRIVS), is(1, 1)])?;
    keeps(calls, holds)
}

/// What a runner knows of the system while a guest runs.
fn running(reach: &Reach<'_>) -> Result<BpfProgram, BackendError> {
    let mut calls = working(reach.files, reach.network)?;
    calls.when(libc::SYS_mprotect, [no_code(2)])?;
    keeps(calls, reach.holds)?.filter()
}

/// The same calls, but that descriptor is not given up by any.
fn keeps(mut calls: Calls, holds: Option<BorrowedFd<'_>>) -> Result<Calls, BackendError> {
    if let Some(descriptor) = holds {
        calls.but_for(descriptor, GIVES_UP)?;
    }
    Ok(calls)
}

/// What a runner needs from its beginning to its end. No call here acts on another process, takes a lock that others
/// wait for, or passes a descriptor on (`sendmsg` would, and a filter does not see what it carries).
fn working(files: bool, network: bool) -> Result<Calls, BackendError> {
    let mut calls = Calls::needed()?;
    calls.all(OPEN);
    // Memory that is nobody else's, and cannot be run if not made so later. Images of memory are files.
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, libc::MAP_TYPE, libc::MAP_PRIVATE)])?;
    // Whether a descriptor blocks and appends, but not whether it signals.
    calls.when(libc::SYS_fcntl, [is(1, libc::F_SETFL), flags(2, libc::O_ASYNC, 0)])?;
    calls.when(libc::SYS_ioctl, [is(1, libc::FIONBIO as libc::c_int)])?;
    if files {
        calls.all(FILES);
        // Of what is open only: Landlock would let it set the times of any file of the user.
        calls.when(libc::SYS_utimensat, [null(1), is(3, 0)])?;
    }
    if network {
        connections(&mut calls)?;
    }
    Ok(calls)
}

/// TCP connections to others: no other protocol, none from others, and no address with what is sent.
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
