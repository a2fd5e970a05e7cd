//! The template process of a version. The template maps and links the version's code, and forks the runners that run
//! this code.
//!
//! A template has one thread and runs no untrusted code. A runner is a fork of its template, so both share read-only
//! memory. When a runner is needed, nothing has to be mapped or linked. The runner is a sibling of its template, not a
//! child: its parent is the host, which kills and reaps it. So a runner can outlive its template.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::stdio::dup2_stdin;

use crate::host::process::{receive, tie_to_parent};
use crate::module::Linked;
use crate::module::engine::Engine;
use crate::wire::protocol::{self, FromTemplate, LONGEST_TO_RUNNER, ToLink};
use crate::{confine, memory};

/// A process that a template has forked.
pub struct Forked {
    pub(super) linked: Linked,
    pub(super) host: u32,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Forked {
    /// Returns the host's process id.
    #[must_use]
    pub fn host(&self) -> u32 {
        self.host
    }

    /// Returns the descriptors that the process was given.
    #[must_use]
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.descriptors
    }
}

/// Runs a template from start to end. `host` is the process id of its host. Calls `runs` in each process that the
/// template forks.
#[must_use]
pub fn make_runners(host: u32, runs: impl FnOnce(Forked) -> ExitCode) -> ExitCode {
    let forked = Template::begin(host).and_then(|template| template.map_or(Ok(None), Template::serve));
    match forked {
        Ok(Some(forked)) => runs(forked),
        Ok(None) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

struct Template {
    linked: Linked,
    host: u32,
    /// Socket on which the host asks for runners.
    socket: UnixStream,
}

impl Template {
    /// Links the module. If the module cannot be linked, sends the reason to the host and returns `None`. Also returns
    /// `None` if the host has exited already.
    fn begin(host: u32) -> anyhow::Result<Option<Self>> {
        if !tie_to_parent(host, c"baton-template")? {
            return Ok(None);
        }
        confine::close_others()?;
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        dup2_stdin(File::open("/dev/null")?)?;
        let Ok([from_host, to_host, code]) = <[OwnedFd; 3]>::try_from(receive(&socket)?) else { return Ok(None) };
        memory::keep_one_heap();
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        // If memory runs out, the kernel should kill runners before other processes. Ignore errors, since this is
        // optional.
        let _ = std::fs::write("/proc/self/oom_score_adj", "500");
        // Look up the page size before the confinement forbids it. The runners inherit the cached value.
        let _ = rustix::param::page_size();
        let linked = link(File::from(from_host), &code);
        let (linked, answer) = match linked {
            Ok(Ok(linked)) => (Some(linked), FromTemplate::Linked),
            Ok(Err(problems)) => (None, FromTemplate::Unsuitable(problems.join("; "))),
            Err(error) => (None, FromTemplate::Failed(format!("{error:#}"))),
        };
        File::from(to_host).write_all(&protocol::frame(&answer)?)?;
        Ok(linked.map(|linked| Self { linked, host, socket }))
    }

    /// Forks a runner for each request. Returns `Some` in each forked process, and `None` in the template once the host
    /// has closed the socket.
    fn serve(self) -> anyhow::Result<Option<Forked>> {
        let Self { linked, host, mut socket } = self;
        loop {
            let descriptors = receive(&socket)?;
            if descriptors.is_empty() {
                return Ok(None);
            }
            let answer = match fork_sibling() {
                Ok(None) => return Ok(Some(Forked { linked, host, descriptors })),
                Ok(Some(pid)) => pid,
                Err(error) => error.raw_os_error().unwrap_or(libc::EAGAIN).saturating_neg(),
            };
            // Close this process's copies of the descriptors. Otherwise the runner's pipes would stay open after the
            // runner has exited, and the host would not notice the exit.
            drop(descriptors);
            socket.write_all(&answer.to_le_bytes())?;
        }
    }
}

/// Confines this process, and links the module whose code and outline the host has sent. The inner error lists the
/// reasons why the module cannot run here.
fn link(mut from_host: File, code: &OwnedFd) -> anyhow::Result<Result<Linked, Vec<String>>> {
    confine::to_forking()?;
    let wanted = protocol::read(&mut from_host, LONGEST_TO_RUNNER)?;
    let ToLink { outline } = wanted.context("the host has exited")?;
    let engine = Engine::new().map_err(|error| anyhow::anyhow!("{error:#}"))?;
    // SAFETY: our own compiler process wrote the code, and the host has compared its checksum. The file is sealed, so
    // it never changes.
    Ok(unsafe { Linked::map(&engine, outline, code) })
}

/// Forks this process. The new process is a child of this process's parent. Returns the new process's pid here, and
/// `None` in the new process.
///
/// Makes the system call `clone` directly: the C library's `fork` cannot create a sibling, and container runtimes
/// report `clone3` as not implemented. Unlike `fork`, the call does not update the thread id that the C library has
/// cached. The library uses this id for locks that record their owner, and for signals to other threads. The old id
/// does no harm: this process holds no lock that records its owner, and all threads that are started later get correct
/// ids.
fn fork_sibling() -> io::Result<Option<i32>> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without `CLONE_VM` the copy has its own memory and stack, at the same addresses. This process has one
    // thread, so no other thread can have left a lock or a value in an inconsistent state.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => i32::try_from(pid).map(Some).map_err(io::Error::other),
    }
}
