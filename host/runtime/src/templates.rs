//! The templates of a host: for each version at hand a process that has its code mapped and linked, runs none of it, and
//! forks the runners that do. Coordinators that run the same version share one.

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

use super::engine::Purpose;
use super::module::Module;
use super::process::{Process, Processes, hand_over};
use super::protocol::{FromTemplate, Messages, ToLink, frame};
use super::runners::{RunnerError, one_way};

/// A template that has not answered for so long is stopped, or worse: it forks within a millisecond.
const FORKS_WITHIN: Duration = Duration::from_secs(10);

/// What a template says is no longer than this, in bytes.
const LONGEST: usize = 1 << 20;

/// Makes templates. Clones are the same.
#[derive(Clone)]
pub struct Templates(Arc<Inner>);

struct Inner {
    program: PathBuf,
    processes: Processes,
    /// By which others know that the runners are there.
    lock_file: Option<Arc<LockFile>>,
    /// By the digest of the module, and what it was compiled for.
    known: Mutex<HashMap<(Digest, Purpose), Weak<Template>>>,
}

/// The template of one version, which is made when it is first needed, and anew if it has ended. It ends with the last
/// that has this.
pub(super) struct Template {
    templates: Templates,
    module: Module,
    purpose: Purpose,
    live: AsyncMutex<Option<Live>>,
}

/// A template's process, which has linked its version.
struct Live {
    process: Process,
    way: UnixStream,
    /// How many answers are to come. The caller that waited for one may have gone.
    asked: usize,
    /// What has come of the next one.
    answer: Vec<u8>,
}

impl Templates {
    /// Templates that are that program, which must be this very version of Baton.
    #[must_use]
    pub fn new(program: PathBuf, processes: &Processes) -> Self {
        Self::with_lock_file(program, processes, None)
    }

    /// The same, and while one of their runners is there this host is not taken for gone by who looks at that file.
    #[must_use]
    pub fn with_lock_file(program: PathBuf, processes: &Processes, lock_file: Option<Arc<LockFile>>) -> Self {
        Self(Arc::new(Inner { program, processes: processes.clone(), lock_file, known: Mutex::default() }))
    }

    /// By which others know that a runner is there, which is handed it.
    ///
    /// # Errors
    /// Those of the system.
    pub(super) async fn lock(&self) -> io::Result<Option<OwnedFd>> {
        let Some(file) = self.0.lock_file.clone() else { return Ok(None) };
        // A file system may take its time, and whoever attends to instances has none.
        tokio::task::spawn_blocking(move || file.for_runner()).await.map_err(io::Error::other)?.map(Some)
    }

    /// Whether its runners are handed one.
    pub(super) fn is_witnessed(&self) -> bool {
        self.0.lock_file.is_some()
    }

    /// The template of a version, whose code was compiled for that.
    pub(super) fn of(&self, module: &Module, purpose: Purpose) -> Arc<Template> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, template| template.strong_count() > 0);
        let slot = known.entry((module.digest(), purpose)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let (templates, module) = (self.clone(), module.clone());
            let template = Arc::new(Template { templates, module, purpose, live: AsyncMutex::default() });
            *slot = Arc::downgrade(&template);
            template
        })
    }
}

impl Template {
    /// Forks a runner that is handed over these descriptors.
    ///
    /// # Errors
    /// [`RunnerError`] says why there is none. After [`RunnerError::Template`] there may be one all the same, which has
    /// these very descriptors: the next one must have others.
    pub(super) async fn fork(&self, descriptors: &[OwnedFd]) -> Result<Process, RunnerError> {
        let processes = &self.templates.0.processes;
        let mut live = self.live.lock().await;
        // It may have ended since it was needed last: the system may have wanted its memory.
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

    /// Starts its process. The caller that waits for a runner says how long that may take.
    async fn link(&self) -> Result<Live, RunnerError> {
        let Inner { program, processes, .. } = &*self.templates.0;
        let ((theirs_in, to), (from, theirs_out)) = (one_way()?, one_way()?);
        let (mut to, from) = (pipe::Sender::from_owned_fd(to)?, pipe::Receiver::from_owned_fd(from)?);
        let descriptors = vec![theirs_in, theirs_out, self.module.code()?];
        let (mut process, way) = processes.start(program, descriptors).await?;
        // One that ends before it has read all of it says why, or how it ended does.
        let _ = to.write_all(&frame(&ToLink { outline: self.module.outline(), purpose: self.purpose })?).await;
        match Messages::new(from, LONGEST).next().await? {
            Some(FromTemplate::Linked) => {
                way.set_nonblocking(true)?;
                Ok(Live { process, way: UnixStream::from_std(way)?, asked: 0, answer: Vec::new() })
            }
            Some(FromTemplate::Unsuitable(problems)) => Err(RunnerError::Unsuitable(problems)),
            Some(FromTemplate::Failed(why)) => Err(RunnerError::Failed(why)),
            None => Err(RunnerError::of(process.ended().await?)),
        }
    }
}

impl Live {
    /// Has it fork a runner that takes these descriptors; or says why it could not. Cancel safe: a runner that nobody waits
    /// for ends when the next one is asked for.
    ///
    /// # Errors
    /// Where it is not well: what it will answer yet is not known.
    async fn fork(&mut self, processes: &Processes, descriptors: &[OwnedFd]) -> io::Result<io::Result<Pid>> {
        while self.asked > 0 {
            if let Ok(stray) = self.answer().await? {
                processes.abandon(stray);
            }
        }
        hand_over(&self.way, descriptors)?;
        self.asked += 1;
        self.answer().await
    }

    /// Its next answer: the process id of the runner that it has forked, or an error's number, below zero.
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
            self.way.readable().await?;
            match self.way.try_read_buf(&mut self.answer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
}
