//! The templates of a host: for each version at hand a process that has its code mapped and linked, runs none of it, and
//! forks the runners that do. Coordinators that run the same version share one.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use super::engine::Purpose;
use super::module::Module;
use super::process::{Process, Processes};
use super::protocol::{FromTemplate, Messages, ToLink, frame};
use super::runners::{RunnerError, how_it_ended, one_way};

/// A template that has not linked its version after so long is given up: that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(600);

/// What a template says is no longer than this, in bytes.
const LONGEST: usize = 1 << 20;

/// Makes templates. Clones are the same.
#[derive(Clone)]
pub struct Templates(Arc<Inner>);

struct Inner {
    program: PathBuf,
    processes: Processes,
    /// By the digest of the module, and what it was compiled for.
    known: Mutex<HashMap<(String, Purpose), Weak<Template>>>,
}

/// The template of one version, which is made when it is first needed, and anew if it has ended. It ends with the last
/// that has this.
pub(super) struct Template {
    templates: Templates,
    module: Module,
    purpose: Purpose,
    process: AsyncMutex<Option<Linked>>,
}

/// A template that has linked its version.
struct Linked {
    process: Process,
    way: Arc<UnixStream>,
}

impl Templates {
    /// Templates that are that program, which must be this very version of Baton.
    #[must_use]
    pub fn new(program: PathBuf, processes: &Processes) -> Self {
        Self(Arc::new(Inner { program, processes: processes.clone(), known: Mutex::default() }))
    }

    /// The template of a version, whose code was compiled for that.
    pub(super) fn of(&self, module: &Module, purpose: Purpose) -> Arc<Template> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, template| template.strong_count() > 0);
        let slot = known.entry((module.digest().to_owned(), purpose)).or_default();
        slot.upgrade().unwrap_or_else(|| {
            let (templates, module) = (self.clone(), module.clone());
            let template = Arc::new(Template { templates, module, purpose, process: AsyncMutex::default() });
            *slot = Arc::downgrade(&template);
            template
        })
    }
}

impl Template {
    /// Forks a runner that is handed over these descriptors, and is ended at the deadline that its `page` has.
    ///
    /// # Errors
    /// [`RunnerError`] says why there is none.
    pub(super) async fn fork(&self, descriptors: &[OwnedFd], page: &OwnedFd) -> Result<Process, RunnerError> {
        let mut slot = self.process.lock().await;
        let was_there = slot.is_some();
        let forked = self.fork_by(&mut slot, descriptors, page).await;
        match forked {
            // It has ended since it was needed last: the system may have wanted its memory.
            Err(RunnerError::System(_)) if was_there => {
                *slot = None;
                self.fork_by(&mut slot, descriptors, page).await
            }
            forked => forked,
        }
    }

    async fn fork_by(
        &self,
        slot: &mut Option<Linked>,
        descriptors: &[OwnedFd],
        page: &OwnedFd,
    ) -> Result<Process, RunnerError> {
        let Inner { program, processes, .. } = &*self.templates.0;
        let way = match slot.as_ref().filter(|linked| linked.process.is_alive()) {
            Some(Linked { way, .. }) => Arc::clone(way),
            None => Arc::clone(&slot.insert(self.link().await?).way),
        };
        let descriptors = descriptors.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let forked = processes.fork(program, &way, descriptors, page.try_clone()?).await;
        if forked.is_err() {
            // An answer that comes yet would be taken for the next one's.
            *slot = None;
        }
        Ok(forked?)
    }

    async fn link(&self) -> Result<Linked, RunnerError> {
        timeout(PATIENCE, self.begin())
            .await
            .unwrap_or_else(|_| Err(RunnerError::Failed(format!("nothing was heard of it for {PATIENCE:?}"))))
    }

    async fn begin(&self) -> Result<Linked, RunnerError> {
        let Inner { program, processes, .. } = &*self.templates.0;
        let ((theirs_in, to), (from, theirs_out)) = (one_way()?, one_way()?);
        let (mut to, from) = (pipe::Sender::from_owned_fd(to)?, pipe::Receiver::from_owned_fd(from)?);
        let descriptors = vec![theirs_in, theirs_out, self.module.code()?];
        let (mut process, way) = processes.start(program, descriptors).await?;
        let (kind, instances) = (self.module.kind(), self.module.counted());
        // One that ends before it has read all of it says why, or how it ended does.
        let _ = to.write_all(&frame(&ToLink { kind, instances, purpose: self.purpose })?).await;
        match Messages::new(from, LONGEST).next().await? {
            Some(FromTemplate::Linked) => Ok(Linked { process, way }),
            Some(FromTemplate::Unsuitable(problems)) => Err(RunnerError::Unsuitable(problems)),
            Some(FromTemplate::Failed(why)) => Err(RunnerError::Failed(why)),
            None => Err(RunnerError::Failed(how_it_ended(process.ended().await?))),
        }
    }
}
