//! A process that talks with others of its user's, through sockets of its machine, or with other machines over TCP as well,
//! and has nothing else.

use std::io;

use landlock::{ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, Scope};
use seccompiler::{BackendError, BpfProgram};

use super::ConfineError;
use super::filter::{Calls, flags, is, no_code};

/// Confines this process for good: it takes connections at the sockets that it has, makes others to sockets by their paths,
/// and over TCP where there is to be a `network`. It can listen nowhere else, open no file, and reach neither another
/// process nor more memory that runs. There must be no other thread.
///
/// # Errors
/// [`ConfineError`] if the kernel has a part of it and refuses that. What the kernel lacks is no error.
pub fn to_linking(network: bool) -> Result<(), ConfineError> {
    super::give_up_privileges()?;
    give_up_all_but_sockets(network)?;
    if super::has_seccomp() {
        seccompiler::apply_filter(&filter(network)?).map_err(io::Error::other)?;
    }
    Ok(())
}

fn give_up_all_but_sockets(network: bool) -> Result<(), landlock::RulesetError> {
    const KNOWN: ABI = super::LANDLOCK;
    // Where the others listen is known only later.
    let tcp = if network { AccessNet::BindTcp.into() } else { AccessNet::from_all(KNOWN) };
    Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(tcp)?
        .scope(Scope::from_all(KNOWN))?
        .create()?
        .restrict_self()
        .map(drop)
}

fn filter(network: bool) -> Result<BpfProgram, BackendError> {
    let mut calls = Calls::needed()?;
    calls.all(&[
        libc::SYS_accept4,
        libc::SYS_connect,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
        libc::SYS_geteuid,
        libc::SYS_getpeername,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_shutdown,
    ]);
    calls.when(libc::SYS_socket, [is(0, libc::AF_UNIX)])?;
    if network {
        calls.tcp()?;
        // How soon it is noticed that nobody is there any more.
        calls.when(libc::SYS_setsockopt, [is(1, libc::SOL_SOCKET), is(2, libc::SO_KEEPALIVE)])?;
        let options = [libc::TCP_NODELAY, libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL, libc::TCP_USER_TIMEOUT];
        for option in options {
            calls.when(libc::SYS_setsockopt, [is(1, libc::IPPROTO_TCP), is(2, option)])?;
        }
    }
    let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    calls.when(libc::SYS_mmap, [no_code(2), flags(3, private | libc::MAP_SHARED, private)])?;
    calls.when(libc::SYS_mprotect, [no_code(2)])?;
    calls.filter()
}
