//! The template of a version: this program once more, which maps and links the code of the version and forks the runners
//! that run it.
//!
//! It has one thread, and runs nothing of a stranger's. A runner is a copy of it, so that they share what both only read,
//! and that nothing has to be mapped and linked when a runner is needed. It is its template's sibling and no child: its
//! parent is the host, which kills and reaps it, and it lives on when the template has ended.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::stdio::dup2_stdin;

use super::super::engine::Engine;
use super::super::module::Linked;
use super::super::process::{end_with, receive};
use super::super::protocol::{self, FromTemplate, LONGEST_TO_RUNNER, ToLink};
use crate::{confine, memory};

/// A process that a template has forked.
pub struct Forked {
    pub(super) linked: Linked,
    pub(super) host: u32,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Forked {
    /// The number of the host's process.
    #[must_use]
    pub fn host(&self) -> u32 {
        self.host
    }

    /// What it was handed over.
    #[must_use]
    pub fn into_descriptors(self) -> Vec<OwnedFd> {
        self.descriptors
    }
}

/// The whole life of a template, whose host is the process `host`; `runs` is the life of each process that it forks.
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
    /// By which it is asked for runners.
    way: UnixStream,
}

impl Template {
    /// None where the host is gone already, or was told why there is none.
    fn begin(host: u32) -> anyhow::Result<Option<Self>> {
        if !end_with(host, c"baton-template")? {
            return Ok(None);
        }
        confine::close_others()?;
        let way = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        dup2_stdin(File::open("/dev/null")?)?;
        let Ok([from_host, to_host, code]) = <[OwnedFd; 3]>::try_from(receive(&way)?) else { return Ok(None) };
        memory::keep_one_heap();
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        // Kindness, not safety: a system that lacks it does without.
        let _ = std::fs::write("/proc/self/oom_score_adj", "500");
        // Looked up where it can be. The runners inherit it.
        let _ = rustix::param::page_size();
        let linked = link(File::from(from_host), &code);
        let (linked, answer) = match linked {
            Ok(Ok(linked)) => (Some(linked), FromTemplate::Linked),
            Ok(Err(problems)) => (None, FromTemplate::Unsuitable(problems.join("; "))),
            Err(error) => (None, FromTemplate::Failed(format!("{error:#}"))),
        };
        File::from(to_host).write_all(&protocol::frame(&answer)?)?;
        Ok(linked.map(|linked| Self { linked, host, way }))
    }

    /// Forks as often as it is asked to. It returns in each process that is forked, and then here.
    fn serve(self) -> anyhow::Result<Option<Forked>> {
        let Self { linked, host, mut way } = self;
        loop {
            let descriptors = receive(&way)?;
            if descriptors.is_empty() {
                return Ok(None);
            }
            let answer = match fork_sibling() {
                Ok(None) => return Ok(Some(Forked { linked, host, descriptors })),
                Ok(Some(pid)) => pid,
                Err(error) => error.raw_os_error().unwrap_or(libc::EAGAIN).saturating_neg(),
            };
            // They are the runner's alone from here on, and nobody else keeps its pipes open.
            drop(descriptors);
            way.write_all(&answer.to_le_bytes())?;
        }
    }
}

/// Confines this process, and links the version that the host asks for; or says why that cannot run here.
fn link(mut from_host: File, code: &OwnedFd) -> anyhow::Result<Result<Linked, Vec<String>>> {
    confine::to_forking()?;
    let wanted = protocol::read(&mut from_host, LONGEST_TO_RUNNER)?;
    let ToLink { outline, purpose } = wanted.context("the host has exited")?;
    let engine = Engine::new(purpose).map_err(|error| anyhow::anyhow!("{error:#}"))?;
    // SAFETY: the code is what a compiler of ours has written, whose checksum the host has compared, in a sealed file.
    Ok(unsafe { Linked::map(&engine, outline, code) })
}

/// Makes a copy of this process, which has the same parent. None in the copy, and here its number.
///
/// `clone3` is not used: container runtimes answer that it is not there. A thread of its own has its number twice, in the
/// kernel and in the C library; the second is not renewed here, as `fork` would. The library uses it for locks that know
/// their owner (nobody holds one here, and all threads to come have numbers of their own), and for signals to a thread that
/// is not the caller.
fn fork_sibling() -> io::Result<Option<i32>> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    // SAFETY: without CLONE_VM the copy has memory and a stack of its own, at the same addresses. This process has one
    // thread, so nobody else has left anything in it half done.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => i32::try_from(pid).map(Some).map_err(io::Error::other),
    }
}
