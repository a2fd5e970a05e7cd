//! Processes of this program: how templates and runners are started, watched, killed and reaped.
//!
//! One thread starts templates and lives as long as the host: a process dies with the thread that is its parent
//! (`PR_SET_PDEATHSIG`, prctl(2)), and a runner that a template forks has the template's. That thread also reaps processes
//! that nobody waits for any more.

use std::ffi::CStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::control_groups::{ControlGroup, ControlGroups};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage};
use rustix::net::{SendFlags, recvmsg, sendmsg};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getppid, pidfd_open, pidfd_send_signal, setsid, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// The hidden command of a template.
pub const MAKE_RUNNERS: &str = "make-runners";

/// How often those are looked after that were killed and that nobody waits for.
const REAP_EVERY: Duration = Duration::from_millis(50);

/// No more descriptors are handed over than this.
const MOST_DESCRIPTORS: usize = 8;

/// Starts processes. Clones use the same thread, which ends with the last of them.
#[derive(Clone)]
pub struct Processes(Arc<Starter>);

struct Starter {
    /// Where each runner has one of its own.
    groups: Option<ControlGroups>,
    asks: Option<mpsc::Sender<Ask>>,
    thread: Option<JoinHandle<()>>,
}

enum Ask {
    Start(Box<Start>),
    Adopt(Box<Adopt>),
    /// Nobody wants it any more.
    Abandon(Pid),
    /// A process, and the group of its own.
    Reap(OwnedFd, Option<Arc<ControlGroup>>),
    /// Its process was reaped.
    Remove(Arc<ControlGroup>),
}

/// A template that is to be started.
struct Start {
    program: PathBuf,
    descriptors: Vec<OwnedFd>,
    back: mpsc::Sender<Ask>,
    answer: oneshot::Sender<io::Result<(Started, UnixStream)>>,
}

/// A runner that a template has forked.
struct Adopt {
    pid: Pid,
    back: mpsc::Sender<Ask>,
    answer: oneshot::Sender<io::Result<Started>>,
}

/// A process that nobody holds yet. Dropping it ends it, and has it reaped.
struct Started {
    pid: Pid,
    /// None once somebody holds it.
    pidfd: Option<OwnedFd>,
    back: mpsc::Sender<Ask>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            let _ = self.back.send(Ask::Reap(pidfd, None));
        }
    }
}

impl Processes {
    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system has none left, or no descriptors.
    pub fn new() -> io::Result<Self> {
        Self::in_groups(None)
    }

    /// The same, with a control group for each runner, if there are any.
    ///
    /// # Errors
    /// Those of [`Processes::new`].
    pub fn in_groups(groups: Option<ControlGroups>) -> io::Result<Self> {
        let (asks, asked) = mpsc::channel();
        let thread = std::thread::Builder::new().name("starter".into()).spawn(move || serve(&asked))?;
        Ok(Self(Arc::new(Starter { groups, asks: Some(asks), thread: Some(thread) })))
    }

    /// Starts `program` as a template, and hands these descriptors over to it, which it takes with [`receive`]. With it
    /// comes the way to it.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) async fn start(&self, program: &Path, descriptors: Vec<OwnedFd>) -> io::Result<(Process, UnixStream)> {
        let (answer, answered) = oneshot::channel();
        let (program, back) = (program.to_owned(), self.back()?);
        self.ask(Ask::Start(Box::new(Start { program, descriptors, back, answer })));
        let (started, way) = answered.await.map_err(io::Error::other)??;
        Ok((self.process(started)?, way))
    }

    /// Takes over a runner that a template has forked.
    ///
    /// # Errors
    /// Those of the system. The runner ends then.
    pub(super) async fn adopt(&self, pid: Pid) -> io::Result<Process> {
        let (answer, answered) = oneshot::channel();
        self.ask(Ask::Adopt(Box::new(Adopt { pid, back: self.back()?, answer })));
        let mut process = self.process(answered.await.map_err(io::Error::other)??)?;
        let Some(groups) = self.0.groups.clone() else { return Ok(process) };
        // With the process, so that the number is its own until it is there.
        let entered = tokio::task::spawn_blocking(move || {
            process.group = groups.enter(pid).map(Arc::new);
            process
        });
        entered.await.map_err(io::Error::other)
    }

    /// Ends a runner that a template has forked and that nobody wants any more.
    pub(super) fn abandon(&self, pid: Pid) {
        self.ask(Ask::Abandon(pid));
    }

    fn back(&self) -> io::Result<mpsc::Sender<Ask>> {
        self.0.asks.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    fn process(&self, mut started: Started) -> io::Result<Process> {
        let pidfd = started.pidfd.as_ref().ok_or(Errno::CHILD)?;
        let handle = Handle(Arc::new(pidfd.try_clone()?));
        // SAFETY: an `OwnedFd` is one and the same open descriptor until it is dropped, and only `into_inner` and the drop
        // of the registration give it out of our hands.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd.try_clone()?, Interest::READABLE)? };
        started.pidfd = None;
        let pid = started.pid;
        Ok(Process { pid, pidfd: Some(registered), handle, group: None, processes: self.clone() })
    }

    fn ask(&self, ask: Ask) {
        if let Some(asks) = &self.0.asks {
            // It listens until nobody can ask any more.
            let _ = asks.send(ask);
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has taken its processes with it.
            let _ = thread.join();
        }
    }
}

/// A process of ours. Dropping it kills it, and has it reaped.
pub(super) struct Process {
    pid: Pid,
    /// None once it is reaped.
    pidfd: Option<AsyncFd<OwnedFd>>,
    handle: Handle,
    /// None where it has none of its own.
    group: Option<Arc<ControlGroup>>,
    processes: Processes,
}

/// What ends a process, also while another thread waits for it. Clones are the same.
#[derive(Clone)]
pub(super) struct Handle(Arc<OwnedFd>);

impl Handle {
    /// Ends it at once, whatever it is doing. Harmless for one that has ended. Whether the system has taken that: then no
    /// instruction of it runs any more, however long the system itself is not done with it.
    pub(super) fn kill(&self) -> bool {
        kill(&self.0)
    }
}

/// See [`Handle::kill`].
fn kill(pidfd: &OwnedFd) -> bool {
    // There is nothing to end any more where it was reaped.
    matches!(pidfd_send_signal(pidfd, Signal::KILL), Ok(()) | Err(Errno::SRCH))
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Exited(i32),
    Signalled(i32),
    /// The kernel has ended it, since it needed more memory than its control group may have, in bytes.
    OutOfMemory {
        had: u64,
    },
}

impl Process {
    /// What ends it.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Its number.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has not ended yet.
    pub(super) fn is_alive(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| !has_ended(pidfd.get_ref()))
    }

    /// Has the kernel end it once it takes so much memory more than now, in bytes, in any way; where it can.
    pub(super) async fn limit_memory(&self, more: u64) {
        if let Some((groups, group)) = self.processes.0.groups.clone().zip(self.group.clone()) {
            // What goes wrong with it is told.
            let _ = tokio::task::spawn_blocking(move || groups.limit_memory(&group, more)).await;
        }
    }

    /// Waits until it has ended, and reaps it: nothing of it is left then. Cancel safe.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) async fn ended(&mut self) -> io::Result<Status> {
        let Some(pidfd) = &self.pidfd else { return Err(Errno::CHILD.into()) };
        let status = loop {
            let mut readable = pidfd.readable().await?;
            if let Some(status) = reap(pidfd.get_ref().as_fd())? {
                break status;
            }
            readable.clear_ready();
        };
        self.pidfd = None;
        let Some(group) = self.group.take() else { return Ok(status) };
        let had = if status == Status::Signalled(libc::SIGKILL) { group.ran_out_of_memory() } else { None };
        self.processes.ask(Ask::Remove(group));
        Ok(had.map_or(status, |had| Status::OutOfMemory { had }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            self.handle.kill();
            self.processes.ask(Ask::Reap(pidfd.into_inner(), self.group.take()));
        }
    }
}

fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Status>> {
    let ended = waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)?;
    Ok(ended.map(|ended| match (ended.exit_status(), ended.terminating_signal()) {
        (_, Some(signal)) => Status::Signalled(signal),
        (status, None) => Status::Exited(status.unwrap_or(-1)),
    }))
}

/// One that is to end, and the group of its own.
type Dying = (OwnedFd, Option<Arc<ControlGroup>>);

fn serve(asked: &mpsc::Receiver<Ask>) {
    let mut dying: Vec<Dying> = Vec::new();
    loop {
        let wait = if dying.is_empty() { Duration::MAX } else { REAP_EVERY };
        match asked.recv_timeout(wait) {
            Ok(Ask::Start(ask)) => {
                let Start { program, descriptors, back, answer } = *ask;
                let started = start(&program, &descriptors);
                // The caller may have gone, and the process ends with the answer that nobody takes.
                let _ = answer.send(started.map(|(pid, pidfd, way)| (Started { pid, pidfd: Some(pidfd), back }, way)));
            }
            Ok(Ask::Adopt(ask)) => {
                let Adopt { pid, back, answer } = *ask;
                let _ = answer.send(adopt(pid).map(|pidfd| Started { pid, pidfd: Some(pidfd), back }));
            }
            Ok(Ask::Abandon(pid)) => dying.extend(adopt(pid).map(|pidfd| (pidfd, None))),
            Ok(Ask::Reap(pidfd, group)) => dying.push((pidfd, group)),
            Ok(Ask::Remove(group)) => group.remove(),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // The host ends, and what it has killed is its own parent's then.
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        // They are all to end, or have.
        for (pidfd, _) in &dying {
            kill(pidfd);
        }
        dying.retain(|(pidfd, group)| {
            let lives = matches!(reap(pidfd.as_fd()), Ok(None));
            if let (false, Some(group)) = (lives, group) {
                group.remove();
            }
            lives
        });
    }
}

/// Whether a process has ended: its descriptor becomes readable then (pidfd_open(2)).
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).map_or(true, |ended| ended > 0)
}

/// Starts `program` as a template that takes those descriptors. With it comes the way to it.
fn start(program: &Path, descriptors: &[impl AsFd]) -> io::Result<(Pid, OwnedFd, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    if !descriptors.is_empty() {
        // They wait in the socket until they are taken.
        hand_over(&ours, descriptors)?;
    }
    let mut child = Command::new(program)
        .arg0("baton")
        .args([MAKE_RUNNERS, "--parent", &std::process::id().to_string()])
        .env_clear()
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = Pid::from_child(&child);
    // Nobody has reaped it, so the number is still its own.
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(pidfd) => Ok((pid, pidfd, ours)),
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// The pidfd of a process that a template has forked. It must be a child of this process, which is its template's
/// sibling, and no other, which would be killed in its place.
fn adopt(pid: Pid) -> io::Result<OwnedFd> {
    // Nobody has reaped it, so the number is still its own.
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
    Ok(pidfd)
}

/// Hands descriptors over to the process that takes them with [`receive`] at the other end.
///
/// # Errors
/// Those of the system.
pub(super) fn hand_over(socket: impl AsFd, descriptors: &[impl AsFd]) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // A process that does not take them must not hold this up.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The descriptors that a process is handed over next; none where nobody will hand it any more.
///
/// # Errors
/// Those of the system.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [io::IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            received.extend(descriptors);
        }
    }
    Ok(received)
}

/// Has this process end with the thread that started it, which lives as long as the process `parent`, in a session of its
/// own, and gives it a name: it is started by a path that says nothing. False if its parent has ended already.
///
/// # Errors
/// Those of the system.
pub fn end_with(parent: u32, name: &CStr) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_name(name)?;
    let is_there = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok() == Some(parent));
    if is_there {
        setsid()?;
    }
    Ok(is_there)
}
