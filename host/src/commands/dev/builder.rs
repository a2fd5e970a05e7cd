//! Builds a project, and rebuilds it after each change to its files.

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
use baton_modules::watch::{Watch, run_blocking};
use baton_modules::{FileSource, Offer, Source, SourceError};
use baton_node::supervisor::Shutdown;
use baton_node::telemetry::{Event, Log};

/// Pause after a change notification, because an editor often saves several files at once.
const CALM: Duration = Duration::from_millis(150);

/// Intervals between scans of the project's files while no change notification arrives. The shorter interval applies if
/// some changes cause no notification, such as changes in a folder that is shared with another machine.
const POLL: Duration = Duration::from_secs(2);
const POLL_UNWATCHED: Duration = Duration::from_millis(500);

/// Builds the coordinator that `baton dev` runs.
#[derive(Clone)]
pub(in crate::commands) struct Workshop {
    builder: Option<Builder>,
    built: watch::Sender<bool>,
}

impl Workshop {
    /// Creates a workshop. If `builder` is `None`, another program builds the module, so the module file counts as
    /// built from the start.
    pub(super) fn new(builder: Option<Builder>) -> Self {
        let built = watch::Sender::new(builder.is_none());
        Self { builder, built }
    }

    pub fn source(&self, file: FileSource) -> BuiltFile {
        BuiltFile { built: self.built.subscribe(), file }
    }

    pub fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.builder.iter().flat_map(|builder| [&builder.folder].into_iter().chain(&builder.target))
    }

    /// Builds now and after each change, until a shutdown is requested.
    pub async fn run(self, log: Log, mut shutdown: watch::Receiver<Shutdown>) {
        let Some(builder) = self.builder else { return };
        // Dropping the future kills a running build.
        tokio::select! {
            () = builder.run(&self.built, &log) => {}
            _ = shutdown.wait_for(|shutdown| *shutdown > Shutdown::No) => {}
        }
    }
}

/// The build's output file. [`BuiltFile`] offers the file only once a build has succeeded, because until then the file
/// may be stale.
pub(in crate::commands) struct BuiltFile {
    built: watch::Receiver<bool>,
    file: FileSource,
}

#[async_trait]
impl Source for BuiltFile {
    async fn next(&mut self) -> Result<Offer, SourceError> {
        if self.built.wait_for(|built| *built).await.is_err() {
            // The host is shutting down and has dropped the workshop, so there will be no more builds.
            std::future::pending::<()>().await;
        }
        self.file.next().await
    }
}

#[derive(Clone)]
pub(super) struct Builder {
    pub command: String,
    pub folder: PathBuf,
    pub target: Option<PathBuf>,
}

impl Builder {
    /// Builds at once, and again after each change. A change during a build does not interrupt the build, but starts
    /// another build afterwards.
    async fn run(&self, built: &watch::Sender<bool>, log: &Log) {
        let watch = Watch::new().ok().map(Arc::new);
        let (mut tree, _) = self.scan(watch.as_ref(), &Arc::default()).await;
        if tree.is_too_large {
            let folder = self.folder.display();
            let error = format!("{folder} has too many files to watch: is it the project's folder?");
            log.emit(None, Event::Error { error });
        }
        loop {
            if self.build(log).await {
                built.send_replace(true);
            }
            // `tree` was scanned before the build, so the comparison also detects changes made during the build.
            tree = self.wait_for_change(watch.as_ref(), tree).await;
        }
    }

    /// Returns true if the build succeeds. The compiler's own output goes directly to stderr.
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
                log.emit(None, Event::Built { error: None, took_s });
                return true;
            }
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        log.emit(None, Event::Built { error: Some(error), took_s });
        false
    }

    async fn wait_for_change(&self, watch: Option<&Arc<Watch>>, mut tree: Arc<Tree>) -> Arc<Tree> {
        loop {
            let (now, is_watched) = self.scan(watch, &tree).await;
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

    /// Scans the files. The returned flag is true if every later change to the files will cause a notification.
    async fn scan(&self, watch: Option<&Arc<Watch>>, before: &Arc<Tree>) -> (Arc<Tree>, bool) {
        let (folder, target) = (self.folder.clone(), self.target.clone());
        let (watch, before) = (watch.cloned(), Arc::clone(before));
        run_blocking(move || {
            let tree = Tree::scan(&folder, target.as_deref(), &before);
            let is_watched = watch.is_some_and(|watch| watch.set(&tree.folders));
            (Arc::new(tree), is_watched)
        })
        .await
    }
}

/// A running build. Dropping this value kills the build's process group.
struct Build {
    shell: Child,
}

impl Build {
    fn start(command: &str, folder: &Path) -> io::Result<Self> {
        // stdout is reserved for this program's results, so the compiler's output goes to stderr.
        let errors = io::stderr().as_fd().try_clone_to_owned()?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(folder).stdin(Stdio::null()).stdout(errors).process_group(0);
        Ok(Self { shell: shell.spawn()? })
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        // After the shell has been reaped, `id` returns `None`: the same process id may now belong to another process.
        if let Some(group) = self.shell.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            // Ignore an error, which means that the group has just exited.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
