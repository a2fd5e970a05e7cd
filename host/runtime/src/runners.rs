//! The runners of one coordinator: processes that run one instance each, made ready before there is a term.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_store::Digest;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::instance::LOOKUPS;
use super::limits::Tally;
use super::module::Module;
use super::page::Page;
use super::policy::Policy;
use super::process::{Process, Status};
use super::protocol::{FromRunner, Messages, Setup, ToRunner, frame};
use super::shared::{Others, SharedMemory};
use super::templates::{Template, Templates};

/// A runner that is not forked or not ready after so long is given up: either takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// One that rehearses is given up sooner, and another made that does not. Nothing of the module's runs in a rehearsal, but
/// how much there is to be laid out in memory is its maker's to say.
const REHEARSES_WITHIN: Duration = Duration::from_secs(2);

/// After so many that were given up, a version is not rehearsed any more.
const REHEARSALS: u32 = 2;

/// What a runner says takes this much more than the largest call of its guest, in bytes.
const ENVELOPE: usize = 64 << 10;

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The module cannot run here.
    #[error("{0}")]
    Unsuitable(String),
    /// It cannot become ready.
    #[error("the runner did not become ready: {0}")]
    Failed(String),
    /// It was killed before it was ready, or nothing was heard of it.
    #[error("the runner did not become ready: {0}")]
    Lost(String),
    /// The process that forks runners is not well.
    #[error("the template process, which forks runners, failed: {0}")]
    Template(io::Error),
    /// The system let none run.
    #[error("cannot start a runner: {0}")]
    System(io::Error),
}

impl From<io::Error> for RunnerError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Makes runners for one coordinator, and keeps one ready for each version at hand. Clones are the same.
#[derive(Clone)]
pub struct Runners(Arc<Inner>);

struct Inner {
    policy: Policy,
    templates: Templates,
    handle: Handle,
    /// By the digests of their modules.
    versions: Mutex<HashMap<Digest, Arc<Version>>>,
    /// Those that make runners. They end with this.
    making: Mutex<JoinSet<()>>,
    /// For lookups of names, of all instances together.
    lookups: Arc<Semaphore>,
}

/// A version at hand.
struct Version {
    template: Arc<Template>,
    ready: AsyncMutex<Option<Ready>>,
    /// How many runners did not become ready with a rehearsal.
    failed_rehearsals: AtomicU32,
}

/// A runner that waits for an instance to run. Dropping it ends it.
pub(super) struct Ready {
    pub(super) process: Process,
    pub(super) to: pipe::Sender,
    pub(super) from: Messages<pipe::Receiver>,
    pub(super) page: Page,
    pub(super) tally: SharedMemory<Tally>,
    /// Where it leaves what is kept of its instance.
    pub(super) remains: Option<File>,
    /// Whether it reaches all that it was granted.
    has_folders: bool,
}

impl Runners {
    /// Runners of this policy, which those templates fork, and whose host's side runs on `handle`.
    #[must_use]
    pub fn new(policy: Policy, templates: &Templates, handle: &Handle) -> Self {
        Self(Arc::new(Inner {
            policy,
            templates: templates.clone(),
            handle: handle.clone(),
            versions: Mutex::default(),
            making: Mutex::default(),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }))
    }

    /// What they may do and use.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(super) fn lookups(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.lookups)
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// Makes a runner ready for this version, unless there is one.
    ///
    /// # Errors
    /// [`RunnerError`] says why there is none.
    pub async fn make_ready(&self, module: &Module) -> Result<(), RunnerError> {
        let version = self.version(module);
        let mut ready = version.ready.lock().await;
        if !ready.as_ref().is_some_and(Ready::is_alive) {
            *ready = Some(self.make_rehearsed(module, &version).await?);
        }
        Ok(())
    }

    /// Has a runner made ready for each of these, and ends those for all others.
    pub fn keep(&self, modules: &[&Module]) {
        let keeps = |digest: &Digest| modules.iter().any(|module| module.digest() == *digest);
        lock(&self.0.versions).retain(|digest, _| keeps(digest));
        for module in modules {
            // It is at hand from here on.
            self.version(module);
            self.refill(module, Duration::ZERO);
        }
    }

    /// Has a runner made ready for this version, so long `after` now, if it is at hand.
    pub(super) fn refill(&self, module: &Module, after: Duration) {
        let Some(version) = lock(&self.0.versions).get(&module.digest()).cloned() else { return };
        let mut making = lock(&self.0.making);
        while making.try_join_next().is_some() {}
        let module = module.clone();
        // Not what it belongs to, which would then never end.
        let its = Arc::downgrade(&self.0);
        making.spawn_on(
            async move {
                if !after.is_zero() {
                    sleep(after).await;
                }
                let mut ready = version.ready.lock().await;
                if let Some(its) = its.upgrade()
                    && !ready.as_ref().is_some_and(Ready::is_alive)
                {
                    // The start that needs it tries again, and says why there is none.
                    *ready = Self(its).make_rehearsed(&module, &version).await.ok();
                }
            },
            &self.0.handle,
        );
    }

    /// The runner that is ready for this version, if there is one.
    pub(super) fn take_ready(&self, module: &Module) -> Option<Ready> {
        self.version(module).ready.try_lock().ok()?.take().filter(Ready::is_fit)
    }

    /// A runner for this version: the one that is ready or being made, or a new one.
    ///
    /// # Errors
    /// [`RunnerError`] says why there is none.
    pub(super) async fn take(&self, module: &Module) -> Result<Ready, RunnerError> {
        let version = self.version(module);
        let mut ready = version.ready.lock().await;
        match ready.take().filter(Ready::is_fit) {
            Some(ready) => Ok(ready),
            // Somebody waits for it.
            None => self.make(module, &version).await,
        }
    }

    fn version(&self, module: &Module) -> Arc<Version> {
        let mut versions = lock(&self.0.versions);
        let version = versions.entry(module.digest()).or_insert_with(|| {
            let template = self.0.templates.of(module, self.0.policy.purpose());
            Arc::new(Version { template, ready: AsyncMutex::default(), failed_rehearsals: AtomicU32::new(0) })
        });
        Arc::clone(version)
    }

    /// A runner that has rehearsed, unless that cannot be.
    async fn make_rehearsed(&self, module: &Module, version: &Version) -> Result<Ready, RunnerError> {
        if version.failed_rehearsals.load(Ordering::Relaxed) < REHEARSALS {
            let mut ready = self.fork(module, &version.template).await?;
            if self.prepare(&mut ready, module, true).await.is_ok() {
                return Ok(ready);
            }
            version.failed_rehearsals.fetch_add(1, Ordering::Relaxed);
        }
        self.make(module, version).await
    }

    async fn make(&self, module: &Module, version: &Version) -> Result<Ready, RunnerError> {
        let mut ready = self.fork(module, &version.template).await?;
        self.prepare(&mut ready, module, false).await?;
        Ok(ready)
    }

    /// One that knows nothing yet of what it is for.
    async fn fork(&self, module: &Module, template: &Template) -> Result<Ready, RunnerError> {
        // The first one waits for its template, too.
        let forked = timeout(PATIENCE, async {
            match self.fork_once(module, template).await {
                // It is made anew, once.
                Err(RunnerError::Template(_)) => self.fork_once(module, template).await,
                forked => forked,
            }
        });
        forked.await.unwrap_or_else(|_| Err(lost(PATIENCE)))
    }

    async fn fork_once(&self, module: &Module, template: &Template) -> Result<Ready, RunnerError> {
        let policy = &self.0.policy;
        let ((theirs_in, to), (from, theirs_out)) = (one_way()?, one_way()?);
        let (page, page_file) = Page::make()?;
        let (tally, tally_file) = SharedMemory::make("baton-tally", Others::Write)?;
        let remains = policy.remains().map(room_for_remains).transpose()?;
        let mut descriptors = vec![theirs_in, theirs_out, page_file, tally_file];
        // Held before there is anybody to hold it, and by nobody but the runner once it is forked.
        descriptors.extend(self.0.templates.lock().await?);
        if let Some(remains) = &remains {
            descriptors.push(remains.try_clone()?.into());
        }
        let (to, from) = (pipe::Sender::from_owned_fd(to)?, pipe::Receiver::from_owned_fd(from)?);
        let longest = policy.call_bytes(module.uses_state()).saturating_add(ENVELOPE);
        let process = template.fork(&descriptors).await?;
        // The runner alone has its ends from here on, or nobody would hear when it has ended.
        drop(descriptors);
        Ok(Ready { process, to, from: Messages::new(from, longest), page, tally, remains, has_folders: false })
    }

    /// Has it make itself ready.
    async fn prepare(&self, ready: &mut Ready, module: &Module, rehearses: bool) -> Result<(), RunnerError> {
        let within = if rehearses { REHEARSES_WITHIN } else { PATIENCE };
        let is_witnessed = self.0.templates.is_witnessed();
        let setup = Setup { digest: module.digest(), policy: self.0.policy.clone(), rehearses, is_witnessed };
        let prepared = timeout(within, async {
            // One that ends before it has read all of it says why, or how it ended does.
            let _ = ready.to.write_all(&frame(&ToRunner::Prepare(Box::new(setup)))?).await;
            match ready.from.next().await {
                Ok(Some(FromRunner::Ready { has_folders })) => {
                    ready.has_folders = has_folders;
                    ready.process.limit_memory(self.0.policy.memory_in_all()).await;
                    Ok(())
                }
                Ok(Some(FromRunner::Failed(why) | FromRunner::Panicked(why))) => Err(RunnerError::Failed(why)),
                Ok(Some(_)) => Err(RunnerError::Failed("it violated the protocol".to_owned())),
                Ok(None) => Err(RunnerError::of(ready.process.ended().await?)),
                Err(error) => Err(error.into()),
            }
        });
        prepared.await.unwrap_or_else(|_| Err(lost(within)))
    }
}

fn lost(after: Duration) -> RunnerError {
    RunnerError::Lost(format!("it sent nothing for {after:?}"))
}

impl RunnerError {
    /// Why there is none where a process has ended so: the system kills what it has no memory for.
    pub(super) fn of(status: Status) -> Self {
        let why = how_it_ended(status);
        match status {
            Status::Signalled(libc::SIGKILL) | Status::OutOfMemory { .. } => Self::Lost(why),
            _ => Self::Failed(why),
        }
    }
}

/// How a process ended, in words.
pub(super) fn how_it_ended(status: Status) -> String {
    match status {
        Status::Exited(status) => format!("the runner exited with status {status}"),
        Status::OutOfMemory { had } => format!(
            "the runner needed more than the {} MiB of memory that its control group allows, and the kernel killed it; \
             raise `--max-memory`",
            had >> 20
        ),
        Status::Signalled(signal) => {
            let name = match signal {
                libc::SIGABRT => " (SIGABRT: the runner aborted, perhaps out of memory)",
                libc::SIGBUS => " (SIGBUS)",
                libc::SIGILL => " (SIGILL)",
                libc::SIGKILL => " (SIGKILL: the system ran out of memory, or a user killed the runner)",
                libc::SIGSEGV => " (SIGSEGV)",
                libc::SIGTERM => " (SIGTERM)",
                _ => "",
            };
            format!("the runner was killed by signal {signal}{name}")
        }
    }
}

impl Ready {
    /// Whether it has not ended meanwhile: the system may have needed its memory.
    fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// Whether it can run an instance. A folder that was not there when it was made may be there by now.
    fn is_fit(&self) -> bool {
        self.has_folders && self.is_alive()
    }
}

/// A file for what is kept of an instance. It is as long as that may be, and has only as much memory as is written: who
/// has it can make neither it longer nor the copy that the host makes of it.
fn room_for_remains(length: u64) -> io::Result<File> {
    let file = File::from(memfd_create("baton-remains", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(length)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file)
}

/// A pipe: its end for reading, and its end for writing.
pub(super) fn one_way() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
