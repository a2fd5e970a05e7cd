//! The runners of one coordinator: a process for each instance, prepared before the instance's term begins.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_store::Digest;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::host::policy::Policy;
use crate::host::process::{Process, Status};
use crate::host::templates::{Template, Templates};
use crate::module::Module;
use crate::wire::limits::Tally;
use crate::wire::page::Page;
use crate::wire::protocol::LOOKUPS;
use crate::wire::protocol::{FromRunner, Messages, Setup, ToRunner, frame};
use crate::wire::shared::{Others, SharedMemory};

/// Timeout for forking a runner, and for preparing a runner. Both usually take milliseconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// Timeout for preparing a runner with a rehearsal, which is a trial start that makes the real start faster. After this
/// time, the host creates a runner that does not rehearse. A rehearsal runs none of the module's code. The rehearsal
/// can still take long, since the module determines how much memory must be set up.
const REHEARSES_WITHIN: Duration = Duration::from_secs(2);

/// Number of failed rehearsals after which the runners of a version no longer rehearse.
const REHEARSALS: u32 = 2;

/// Maximum number of bytes that a runner's message may add to the data of one guest call.
const ENVELOPE: usize = 64 << 10;

/// The reason why a runner could not be created.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The module cannot run here.
    #[error("{0}")]
    Unsuitable(String),
    /// The runner or its template failed while it was preparing itself.
    #[error("the runner did not become ready: {0}")]
    Failed(String),
    /// The runner was killed before it was ready, or sent nothing in time.
    #[error("the runner did not become ready: {0}")]
    Lost(String),
    /// The template process failed.
    #[error("the template process, which forks runners, failed: {0}")]
    Template(io::Error),
    /// A system call failed.
    #[error("cannot start a runner: {0}")]
    System(io::Error),
}

impl From<io::Error> for RunnerError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// Creates runners for one coordinator, and keeps one ready for each version that may start next. Clones share the
/// runners.
#[derive(Clone)]
pub struct Runners(Arc<Inner>);

struct Inner {
    policy: Policy,
    templates: Templates,
    handle: Handle,
    /// Versions that are kept ready, by the digests of their modules.
    versions: Mutex<HashMap<Digest, Arc<Version>>>,
    /// Tasks that create runners. Dropping the set aborts the tasks.
    making: Mutex<JoinSet<()>>,
    /// Permits for DNS lookups, shared by all instances.
    lookups: Arc<Semaphore>,
}

struct Version {
    template: Arc<Template>,
    ready: AsyncMutex<Option<Ready>>,
    /// Number of runners whose preparation failed or timed out during a rehearsal.
    failed_rehearsals: AtomicU32,
}

/// A runner that is waiting for an instance. Dropping this kills the runner.
pub(crate) struct Ready {
    pub(crate) process: Process,
    pub(crate) to: pipe::Sender,
    pub(crate) from: Messages<pipe::Receiver>,
    pub(crate) page: Page,
    pub(crate) tally: SharedMemory<Tally>,
    /// True if all granted folders existed when the runner was created.
    has_folders: bool,
}

impl Runners {
    /// Creates the runners of a coordinator with this policy. `templates` fork the runners, and the host's side of
    /// their instances runs on `handle`.
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

    /// Returns the coordinator's policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    pub(crate) fn lookups(&self) -> Arc<Semaphore> {
        Arc::clone(&self.0.lookups)
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// Prepares a runner for this version, unless one is ready already.
    ///
    /// # Errors
    /// [`RunnerError`] says why there is no runner.
    pub async fn make_ready(&self, module: &Module) -> Result<(), RunnerError> {
        let version = self.version(module);
        let mut ready = version.ready.lock().await;
        if !ready.as_ref().is_some_and(Ready::is_alive) {
            *ready = Some(self.make_rehearsed(module, &version).await?);
        }
        Ok(())
    }

    /// Starts to prepare a runner for each of these versions. Kills the ready runners of all other versions.
    pub fn keep(&self, modules: &[&Module]) {
        let keeps = |digest: &Digest| modules.iter().any(|module| module.digest() == *digest);
        lock(&self.0.versions).retain(|digest, _| keeps(digest));
        for module in modules {
            // Add the version to the versions that are kept ready.
            self.version(module);
            self.refill(module, Duration::ZERO);
        }
    }

    /// Prepares a runner for this version after a delay, if the version is kept ready.
    pub(crate) fn refill(&self, module: &Module, after: Duration) {
        let Some(version) = lock(&self.0.versions).get(&module.digest()).cloned() else { return };
        let mut making = lock(&self.0.making);
        while making.try_join_next().is_some() {}
        let module = module.clone();
        // Use a weak reference. The runners own this task through `making`, so a strong reference would keep the
        // runners alive until the task ends.
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
                    // Ignore errors: the next start finds no runner, tries again and reports the error.
                    *ready = Self(its).make_rehearsed(&module, &version).await.ok();
                }
            },
            &self.0.handle,
        );
    }

    /// Returns `None` if no runner is ready. Does not wait for a runner that is being prepared.
    pub(crate) fn take_ready(&self, module: &Module) -> Option<Ready> {
        self.version(module).ready.try_lock().ok()?.take().filter(Ready::is_fit)
    }

    /// Takes a runner for this version: the one that is ready or being prepared, or a new one.
    pub(crate) async fn take(&self, module: &Module) -> Result<Ready, RunnerError> {
        let version = self.version(module);
        let mut ready = version.ready.lock().await;
        match ready.take().filter(Ready::is_fit) {
            Some(ready) => Ok(ready),
            // Skip the rehearsal, since an instance is waiting.
            None => self.make(module, &version).await,
        }
    }

    fn version(&self, module: &Module) -> Arc<Version> {
        let mut versions = lock(&self.0.versions);
        let version = versions.entry(module.digest()).or_insert_with(|| {
            let template = self.0.templates.of(module);
            Arc::new(Version { template, ready: AsyncMutex::default(), failed_rehearsals: AtomicU32::new(0) })
        });
        Arc::clone(version)
    }

    /// Creates a runner that has rehearsed. If rehearsals of this version fail, creates a runner without a rehearsal.
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

    async fn fork(&self, module: &Module, template: &Template) -> Result<Ready, RunnerError> {
        // The first fork also waits for the template to start and link.
        let forked = timeout(PATIENCE, async {
            match self.fork_once(module, template).await {
                // The template has failed, so retry once with a new template.
                Err(RunnerError::Template(_)) => self.fork_once(module, template).await,
                forked => forked,
            }
        });
        forked.await.unwrap_or_else(|_| Err(lost(PATIENCE)))
    }

    async fn fork_once(&self, module: &Module, template: &Template) -> Result<Ready, RunnerError> {
        let policy = &self.0.policy;
        let ((theirs_in, to), (from, theirs_out)) = (make_pipe()?, make_pipe()?);
        let (page, page_file) = Page::make()?;
        let (tally, tally_file) = SharedMemory::make("baton-tally", Others::Write)?;
        let mut descriptors = vec![theirs_in, theirs_out, page_file, tally_file];
        // Take the lock before the fork, so that the runner holds the lock from its first moment. After the fork, this
        // process closes its copy of the descriptor, so that the lock is released when the runner exits.
        descriptors.extend(self.0.templates.lock().await?);
        let (to, from) = (pipe::Sender::from_owned_fd(to)?, pipe::Receiver::from_owned_fd(from)?);
        let longest = policy.call_bytes(module.uses_state()).saturating_add(ENVELOPE);
        let process = template.fork(&descriptors).await?;
        // Close the runner's ends of the pipes in this process. Otherwise the host would not notice the runner's exit.
        drop(descriptors);
        Ok(Ready { process, to, from: Messages::new(from, longest), page, tally, has_folders: false })
    }

    async fn prepare(&self, ready: &mut Ready, module: &Module, rehearses: bool) -> Result<(), RunnerError> {
        let within = if rehearses { REHEARSES_WITHIN } else { PATIENCE };
        let setup = Setup { digest: module.digest(), policy: self.0.policy.clone(), rehearses };
        let prepared = timeout(within, async {
            // Ignore a failed write: the runner's message or exit status says why the runner failed.
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
    /// A killed process counts as lost, not as failed, since the kernel may have killed it because memory was short.
    pub(crate) fn of(status: Status) -> Self {
        let why = describe_exit(status);
        match status {
            Status::Signalled(libc::SIGKILL) | Status::OutOfMemory { .. } => Self::Lost(why),
            _ => Self::Failed(why),
        }
    }
}

pub(crate) fn describe_exit(status: Status) -> String {
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
    /// False, for example, after the kernel has killed the runner to free memory.
    fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// True if the runner can run an instance. If a granted folder was missing when the runner was created, the runner
    /// cannot use the folder, even if the folder exists by now. A new runner is then needed.
    fn is_fit(&self) -> bool {
        self.has_folders && self.is_alive()
    }
}

/// Returns the read end and the write end.
pub(crate) fn make_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
