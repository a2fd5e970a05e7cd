//! The template processes of a host. A template maps and links the code of one version, but runs none of the code. The
//! template forks the runners, which run the code. Coordinators that run the same version share a template.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use baton_store::{Digest, LockFile};
use rustix::process::Pid;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use crate::host::process::{Process, Processes, hand_over};
use crate::host::runners::{RunnerError, make_pipe};
use crate::module::Module;
use crate::wire::protocol::{FromTemplate, Messages, ToLink, frame};

/// Timeout for a fork. A fork usually takes 1 ms, so a template that exceeds the timeout is suspended or broken.
const FORKS_WITHIN: Duration = Duration::from_secs(10);

/// Longest message from a template (bytes).
const LONGEST: usize = 1 << 20;

/// Creates templates. Clones share the templates.
#[derive(Clone)]
pub struct Templates(Arc<Inner>);

struct Inner {
    program: PathBuf,
    processes: Processes,
    /// The file that each runner keeps locked. The lock shows other nodes that the runner still exists.
    lock_file: Option<Arc<LockFile>>,
    known: Mutex<HashMap<Digest, Weak<Template>>>,
}

/// The template of one version. The process starts when it is first needed, and again if it has exited. Dropping this
/// ends the process.
pub(crate) struct Template {
    templates: Templates,
    module: Module,
    live: AsyncMutex<Option<Live>>,
}

/// A template process that has linked its version.
struct Live {
    process: Process,
    socket: UnixStream,
    /// Number of fork requests that the template has not answered yet. Includes requests whose caller has given up.
    asked: usize,
    /// The part of the next answer that has arrived so far.
    answer: Vec<u8>,
}

impl Templates {
    /// Creates templates that run `program`, which must be exactly this version of Baton.
    #[must_use]
    pub fn new(program: PathBuf, processes: &Processes) -> Self {
        Self::with_lock_file(program, processes, None)
    }

    /// Like [`Templates::new`], with a lock file. Each runner keeps the file locked. So while a runner exists, a node
    /// that checks the lock does not treat the host as dead.
    #[must_use]
    pub fn with_lock_file(program: PathBuf, processes: &Processes, lock_file: Option<Arc<LockFile>>) -> Self {
        Self(Arc::new(Inner { program, processes: processes.clone(), lock_file, known: Mutex::default() }))
    }

    /// Returns a locked descriptor of the lock file for a new runner, if there is a lock file.
    pub(crate) async fn lock(&self) -> io::Result<Option<OwnedFd>> {
        let Some(file) = self.0.lock_file.clone() else { return Ok(None) };
        // Locking may block on the file system, so it runs on a blocking thread.
        tokio::task::spawn_blocking(move || file.for_runner()).await.map_err(io::Error::other)?.map(Some)
    }

    pub(crate) fn of(&self, module: &Module) -> Arc<Template> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, template| template.strong_count() > 0);
        let slot = known.entry(module.digest()).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let (templates, module) = (self.clone(), module.clone());
            let template = Arc::new(Template { templates, module, live: AsyncMutex::default() });
            *slot = Arc::downgrade(&template);
            template
        })
    }
}

impl Template {
    /// Forks a runner, and passes it these descriptors.
    ///
    /// # Errors
    /// After [`RunnerError::Template`], a runner with these descriptors may still exist. The next attempt must use new
    /// descriptors.
    pub(crate) async fn fork(&self, descriptors: &[OwnedFd]) -> Result<Process, RunnerError> {
        let processes = &self.templates.0.processes;
        let mut live = self.live.lock().await;
        // The template may have exited since its last fork, for example because the kernel killed it to free memory.
        let template = match &mut *live {
            Some(template) if template.process.is_alive() => template,
            none => none.insert(self.link().await?),
        };
        let forked = timeout(FORKS_WITHIN, template.fork(processes, descriptors)).await;
        match forked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(Ok(pid)) => Ok(processes.adopt(pid).await?),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => {
                *live = None;
                Err(RunnerError::Template(error))
            }
        }
    }

    /// Starts a template process, and waits until the process has linked the module. Does not limit the wait, since the
    /// caller sets a timeout.
    async fn link(&self) -> Result<Live, RunnerError> {
        let Inner { program, processes, .. } = &*self.templates.0;
        let ((theirs_in, to), (from, theirs_out)) = (make_pipe()?, make_pipe()?);
        let (mut to, from) = (pipe::Sender::from_owned_fd(to)?, pipe::Receiver::from_owned_fd(from)?);
        let descriptors = vec![theirs_in, theirs_out, self.module.code()?];
        let (mut process, socket) = processes.start(program, descriptors).await?;
        // Ignore a failed write: the template's answer or exit status says why the template failed.
        let _ = to.write_all(&frame(&ToLink { outline: self.module.outline() })?).await;
        match Messages::new(from, LONGEST).next().await? {
            Some(FromTemplate::Linked) => {
                socket.set_nonblocking(true)?;
                Ok(Live { process, socket: UnixStream::from_std(socket)?, asked: 0, answer: Vec::new() })
            }
            Some(FromTemplate::Unsuitable(problems)) => Err(RunnerError::Unsuitable(problems)),
            Some(FromTemplate::Failed(why)) => Err(RunnerError::Failed(why)),
            None => Err(RunnerError::of(process.ended().await?)),
        }
    }
}

impl Live {
    /// Makes the template fork a runner that receives these descriptors. The inner result is the template's answer: the
    /// process id of the runner, or the error of the fork.
    ///
    /// Cancel safe: the next call kills a runner whose caller has given up.
    ///
    /// # Errors
    /// Returns an error if the template failed. The template must not be used again, since the next answer may belong
    /// to another request.
    async fn fork(&mut self, processes: &Processes, descriptors: &[OwnedFd]) -> io::Result<io::Result<Pid>> {
        while self.asked > 0 {
            if let Ok(stray) = self.answer().await? {
                processes.abandon(stray);
            }
        }
        hand_over(&self.socket, descriptors)?;
        self.asked += 1;
        self.answer().await
    }

    /// Reads the next answer: the process id of the forked runner, or a negative error number.
    async fn answer(&mut self) -> io::Result<io::Result<Pid>> {
        loop {
            if let Some((number, rest)) = self.answer.split_first_chunk() {
                let number = i32::from_le_bytes(*number);
                self.answer = rest.to_vec();
                self.asked = self.asked.saturating_sub(1);
                return match number {
                    1.. => Pid::from_raw(number).ok_or_else(|| io::ErrorKind::InvalidData.into()).map(Ok),
                    0 => Err(io::ErrorKind::InvalidData.into()),
                    ..0 => Ok(Err(io::Error::from_raw_os_error(number.saturating_neg()))),
                };
            }
            self.socket.readable().await?;
            match self.socket.try_read_buf(&mut self.answer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}
