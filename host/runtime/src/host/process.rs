//! Starts, watches, kills and reaps the processes of this program: templates and runners.
//!
//! One thread starts all templates. The thread must live as long as the host: when the thread exits, the kernel kills
//! all processes that the thread has started (`PR_SET_PDEATHSIG`, prctl(2)). The kernel then also kills the runners,
//! since a forked runner has the same parent as its template. The thread also reaps processes that no caller waits for.

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

use crate::host::control_groups::{ControlGroup, ControlGroups};
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

/// The hidden command that makes this program a template.
pub const MAKE_RUNNERS: &str = "make-runners";

/// Interval for reaping killed processes that no caller waits for.
const REAP_EVERY: Duration = Duration::from_millis(50);

const MOST_DESCRIPTORS: usize = 8;

/// Starts processes. Clones share one thread, which ends with the last clone.
#[derive(Clone)]
pub struct Processes(Arc<Starter>);

struct Starter {
    /// Gives each runner a control group of its own, if the host may create control groups.
    groups: Option<ControlGroups>,
    requests: Option<mpsc::Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

enum Request {
    Start(Box<Start>),
    Adopt(Box<Adopt>),
    /// Kill and reap a forked runner whose caller has given up.
    Abandon(Pid),
    /// Kill and reap a process, then remove its control group.
    Reap(OwnedFd, Option<Arc<ControlGroup>>),
    /// Remove the control group of a reaped process.
    Remove(Arc<ControlGroup>),
}

struct Start {
    program: PathBuf,
    descriptors: Vec<OwnedFd>,
    back: mpsc::Sender<Request>,
    answer: oneshot::Sender<io::Result<(Started, UnixStream)>>,
}

struct Adopt {
    pid: Pid,
    back: mpsc::Sender<Request>,
    answer: oneshot::Sender<io::Result<Started>>,
}

/// A started process that no [`Process`] owns yet. Dropping this kills the process, which is then reaped.
struct Started {
    pid: Pid,
    /// `None` once a [`Process`] owns the process.
    pidfd: Option<OwnedFd>,
    back: mpsc::Sender<Request>,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            let _ = self.back.send(Request::Reap(pidfd, None));
        }
    }
}

impl Processes {
    /// Starts the thread that starts and reaps processes.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn new() -> io::Result<Self> {
        Self::in_groups(None)
    }

    /// Like [`Processes::new`], with a control group for each runner if `groups` is given.
    ///
    /// # Errors
    /// As for [`Processes::new`].
    pub fn in_groups(groups: Option<ControlGroups>) -> io::Result<Self> {
        let (requests, received) = mpsc::channel();
        let thread = std::thread::Builder::new().name("starter".into()).spawn(move || serve(&received))?;
        Ok(Self(Arc::new(Starter { groups, requests: Some(requests), thread: Some(thread) })))
    }

    /// Starts `program` as a template. Returns the template's process and a socket to it. The template gets
    /// `descriptors` by calling [`receive`].
    pub(crate) async fn start(&self, program: &Path, descriptors: Vec<OwnedFd>) -> io::Result<(Process, UnixStream)> {
        let (answer, answered) = oneshot::channel();
        let (program, back) = (program.to_owned(), self.back()?);
        self.request(Request::Start(Box::new(Start { program, descriptors, back, answer })));
        let (started, socket) = answered.await.map_err(io::Error::other)??;
        Ok((self.process(started)?, socket))
    }

    /// Takes ownership of a runner that a template has forked. Once the runner's pidfd is open and checked, any error
    /// also kills the runner.
    pub(crate) async fn adopt(&self, pid: Pid) -> io::Result<Process> {
        let (answer, answered) = oneshot::channel();
        self.request(Request::Adopt(Box::new(Adopt { pid, back: self.back()?, answer })));
        let mut process = self.process(answered.await.map_err(io::Error::other)??)?;
        let Some(groups) = self.0.groups.clone() else { return Ok(process) };
        // The closure owns the process. So the process is not reaped, and its pid is not reused, before the process is
        // in its group.
        let entered = tokio::task::spawn_blocking(move || {
            process.group = groups.enter(pid).map(Arc::new);
            process
        });
        entered.await.map_err(io::Error::other)
    }

    pub(crate) fn abandon(&self, pid: Pid) {
        self.request(Request::Abandon(pid));
    }

    fn back(&self) -> io::Result<mpsc::Sender<Request>> {
        self.0.requests.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    fn process(&self, mut started: Started) -> io::Result<Process> {
        let pidfd = started.pidfd.as_ref().ok_or(Errno::CHILD)?;
        let handle = Handle(Arc::new(pidfd.try_clone()?));
        // SAFETY: an `OwnedFd` refers to the same descriptor until it is dropped. The registration owns the `OwnedFd`,
        // and gives it up only in `into_inner` or when the registration itself is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(pidfd.try_clone()?, Interest::READABLE)? };
        started.pidfd = None;
        let pid = started.pid;
        Ok(Process { pid, pidfd: Some(registered), handle, group: None, processes: self.clone() })
    }

    fn request(&self, request: Request) {
        if let Some(requests) = &self.0.requests {
            // Sending cannot fail: the thread receives requests until the last sender is dropped.
            let _ = requests.send(request);
        }
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the thread: when the thread ended, the kernel killed all processes that the thread had
            // started.
            let _ = thread.join();
        }
    }
}

/// A child process of the host. Dropping this kills the process, which is then reaped.
pub(crate) struct Process {
    pid: Pid,
    /// `None` once the process is reaped.
    pidfd: Option<AsyncFd<OwnedFd>>,
    handle: Handle,
    group: Option<Arc<ControlGroup>>,
    processes: Processes,
}

/// Kills a process, even while another thread waits for it. Clones refer to the same process.
#[derive(Clone)]
pub(crate) struct Handle(Arc<OwnedFd>);

impl Handle {
    /// Kills the process, or does nothing if the process has exited. Returns true if the kernel accepted the signal, or
    /// if the process was reaped already. A process that was sent the signal executes no further instructions, but may
    /// take some time to exit.
    pub(crate) fn kill(&self) -> bool {
        kill(&self.0)
    }
}

fn kill(pidfd: &OwnedFd) -> bool {
    // `SRCH` means that the process was reaped.
    matches!(pidfd_send_signal(pidfd, Signal::KILL), Ok(()) | Err(Errno::SRCH))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    Exited(i32),
    Signalled(i32),
    /// The kernel killed the process because its control group needed more memory than this limit (bytes).
    OutOfMemory {
        had: u64,
    },
}

impl Process {
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| !has_ended(pidfd.get_ref()))
    }

    /// Makes the kernel kill the process once it uses `more` bytes of memory beyond its current usage. Does nothing if
    /// the process has no control group.
    pub(crate) async fn limit_memory(&self, more: u64) {
        if let Some((groups, group)) = self.processes.0.groups.clone().zip(self.group.clone()) {
            // `ControlGroups::limit_memory` reports its own errors.
            let _ = tokio::task::spawn_blocking(move || groups.limit_memory(&group, more)).await;
        }
    }

    /// Waits until the process has exited, and reaps it. Cancel safe.
    pub(crate) async fn ended(&mut self) -> io::Result<Status> {
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
        self.processes.request(Request::Remove(group));
        Ok(had.map_or(status, |had| Status::OutOfMemory { had }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.take() {
            self.handle.kill();
            self.processes.request(Request::Reap(pidfd.into_inner(), self.group.take()));
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

/// A process to kill and reap, with its control group.
type Dying = (OwnedFd, Option<Arc<ControlGroup>>);

fn serve(received: &mpsc::Receiver<Request>) {
    let mut dying: Vec<Dying> = Vec::new();
    loop {
        let wait = if dying.is_empty() { Duration::MAX } else { REAP_EVERY };
        match received.recv_timeout(wait) {
            Ok(Request::Start(request)) => {
                let Start { program, descriptors, back, answer } = *request;
                let started = start(&program, &descriptors);
                // If the caller has given up, the unsent answer is dropped, which kills the process.
                let _ = answer
                    .send(started.map(|(pid, pidfd, socket)| (Started { pid, pidfd: Some(pidfd), back }, socket)));
            }
            Ok(Request::Adopt(request)) => {
                let Adopt { pid, back, answer } = *request;
                let _ = answer.send(adopt(pid).map(|pidfd| Started { pid, pidfd: Some(pidfd), back }));
            }
            Ok(Request::Abandon(pid)) => dying.extend(adopt(pid).map(|pidfd| (pidfd, None))),
            Ok(Request::Reap(pidfd, group)) => dying.push((pidfd, group)),
            Ok(Request::Remove(group)) => group.remove(),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            // The host is exiting. The init process reaps the processes that the host has killed.
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        // Kill all dying processes, including those killed earlier: a second signal is harmless.
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

/// A pidfd becomes readable when its process exits (pidfd_open(2)).
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).map_or(true, |ended| ended > 0)
}

fn start(program: &Path, descriptors: &[impl AsFd]) -> io::Result<(Pid, OwnedFd, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    if !descriptors.is_empty() {
        // The socket keeps the descriptors until the template has started and receives them.
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
    // The process has not been reaped, so the pid still refers to it.
    match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Ok(pidfd) => Ok((pid, pidfd, ours)),
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(error.into())
        }
    }
}

/// Opens the pidfd of a forked runner. Returns an error if the process is not a child of this process. Without this
/// check, the host could later kill an unrelated process.
fn adopt(pid: Pid) -> io::Result<OwnedFd> {
    // The process has not been reaped, so the pid still refers to it.
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
    Ok(pidfd)
}

/// Sends descriptors to the process at the other end of the socket, which takes them with [`receive`].
pub(crate) fn hand_over(socket: impl AsFd, descriptors: &[impl AsFd]) -> io::Result<()> {
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Do not block if the other process does not read its messages.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// Receives the next descriptors. Returns no descriptors if the other end is closed.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Vec<OwnedFd>> {
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

/// Makes the kernel kill this process when the thread that started it exits. That thread exits only together with its
/// process, which must be `parent`. Also moves this process to a session of its own, and sets the process's name. The
/// name shows the role of the process, which the program's path does not show. Returns false if `parent` has exited
/// already.
///
/// # Errors
/// Returns an error if a system call fails.
pub fn tie_to_parent(parent: u32, name: &CStr) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::thread::set_name(name)?;
    let is_there = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok() == Some(parent));
    if is_there {
        setsid()?;
    }
    Ok(is_there)
}
