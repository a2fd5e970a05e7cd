//! Builds a project, and again after each change of its files.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

use super::tree::Tree;
use crate::supervisor::Shutdown;
use crate::telemetry::{Event, Log};
use baton_modules::watch::{Watch, run_blocking};
use baton_modules::{FileSource, Offer, Source, SourceError};

/// Who saves one file often saves another with it.
const CALM: Duration = Duration::from_millis(150);

/// It looks so often without a hint: folders that are shared with another machine give none.
const POLL: Duration = Duration::from_secs(2);
/// As often where hints cannot be had.
const POLL_UNWATCHED: Duration = Duration::from_millis(500);

/// Where a coordinator is built while it runs.
#[derive(Clone)]
pub(in crate::commands) struct Workshop {
    builder: Option<Builder>,
    /// Whether a build has succeeded.
    built: watch::Sender<bool>,
}

impl Workshop {
    /// Without a builder, somebody else builds.
    pub(super) fn new(builder: Option<Builder>) -> Self {
        let built = watch::Sender::new(builder.is_none());
        Self { builder, built }
    }

    /// What is built there.
    pub fn source(&self, file: FileSource) -> BuiltFile {
        BuiltFile { built: self.built.subscribe(), file }
    }

    /// The folders in which commands are run and programs are made.
    pub fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.builder.iter().flat_map(|builder| [&builder.folder].into_iter().chain(&builder.target))
    }

    /// Builds at once, and after each change, until it is asked to end.
    pub async fn work(self, log: Log, mut asked: watch::Receiver<Shutdown>) {
        let Some(builder) = self.builder else { return };
        // Dropping it ends a build that is under way.
        tokio::select! {
            () = builder.work(&self.built, &log) => {}
            _ = asked.wait_for(|asked| *asked > Shutdown::No) => {}
        }
    }
}

/// What the builds make. Nothing is offered before one has succeeded: what is there is old.
pub(in crate::commands) struct BuiltFile {
    built: watch::Receiver<bool>,
    file: FileSource,
}

#[async_trait]
impl Source for BuiltFile {
    async fn next(&mut self) -> Result<Offer, SourceError> {
        if self.built.wait_for(|built| *built).await.is_err() {
            // It never will: all of it is ending.
            std::future::pending::<()>().await;
        }
        self.file.next().await
    }
}

/// Builds a project.
#[derive(Clone)]
pub(super) struct Builder {
    /// The command line that builds it.
    pub command: String,
    /// The project's folder.
    pub folder: PathBuf,
    /// The folder that builds fill, if it may be any.
    pub target: Option<PathBuf>,
}

impl Builder {
    /// A build that is under way is not disturbed by changes; another follows it.
    async fn work(&self, built: &watch::Sender<bool>, log: &Log) {
        let watch = Watch::new().ok().map(Arc::new);
        let (mut tree, _) = self.look(watch.as_ref(), &Arc::default()).await;
        if tree.is_too_large {
            let folder = self.folder.display();
            let error = format!("{folder} has too many files to watch them all: is it the project's folder?");
            log.emit(None, Event::Error { error });
        }
        loop {
            if self.build(log).await {
                built.send_replace(true);
            }
            // Whatever was changed while it was building is seen, too.
            tree = self.change(watch.as_ref(), tree).await;
        }
    }

    /// Builds, and says whether that succeeded. The compiler speaks for itself.
    async fn build(&self, log: &Log) -> bool {
        log.emit(None, Event::Building { command: self.command.clone() });
        let began = Instant::now();
        let ended = match Build::start(&self.command, &self.folder) {
            Ok(mut build) => build.shell.wait().await,
            Err(error) => Err(error),
        };
        let took_s = began.elapsed().into();
        let error = match ended {
            Ok(status) if status.success() => {
                log.emit(None, Event::Built { took_s });
                return true;
            }
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        log.emit(None, Event::BuildFailed { error, took_s });
        false
    }

    /// Waits until the project's files are others.
    async fn change(&self, watch: Option<&Arc<Watch>>, mut tree: Arc<Tree>) -> Arc<Tree> {
        loop {
            let (now, is_watched) = self.look(watch, &tree).await;
            if now.difference(&tree).is_some() {
                return now;
            }
            tree = now;
            let hint = async {
                match watch {
                    Some(watch) => watch.hint().await,
                    None => std::future::pending().await,
                }
            };
            if tokio::time::timeout(if is_watched { POLL } else { POLL_UNWATCHED }, hint).await.is_ok() {
                tokio::time::sleep(CALM).await;
            }
        }
    }

    /// The files as they are now, and whether each change of them will give a hint.
    async fn look(&self, watch: Option<&Arc<Watch>>, before: &Arc<Tree>) -> (Arc<Tree>, bool) {
        let (folder, target) = (self.folder.clone(), self.target.clone());
        let (watch, before) = (watch.cloned(), Arc::clone(before));
        run_blocking(move || {
            let tree = Tree::look(&folder, target.as_deref(), &before);
            let is_watched = watch.is_some_and(|watch| watch.set(&tree.folders));
            (Arc::new(tree), is_watched)
        })
        .await
    }
}

/// A build under way. Dropping it ends it, with all that it has started.
struct Build {
    shell: Child,
}

impl Build {
    fn start(command: &str, folder: &Path) -> io::Result<Self> {
        // What the compiler says is no result of this program.
        let errors = io::stderr().as_fd().try_clone_to_owned()?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(folder).stdin(Stdio::null()).stdout(errors).process_group(0);
        Ok(Self { shell: shell.spawn()? })
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // None where it has ended: then its number may be another's by now.
        if let Some(group) = self.shell.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // It may end at this very moment, and needs no end then.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
