//! Starts host processes, and reads times from their logs.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;
use time::OffsetDateTime;

use crate::node::{Event, Journal, Launch, Node, baton, finish};

/// A folder for the embedded store, a home folder for hosts, and the events that the hosts log.
pub struct Site {
    pub journal: Journal,
    home: TempDir,
    store: TempDir,
}

impl Site {
    pub fn new() -> Self {
        let folder = || tempfile::tempdir().expect("a folder");
        Self { journal: Journal::default(), home: folder(), store: folder() }
    }

    pub fn store(&self) -> &Path {
        self.store.path()
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.store.path().display())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Prepares a host that contends for the election `bench` on this store. The election has its default settings.
    pub fn launch(&self, name: &str, module: &Path, behaviour: &str, store: &str) -> Launch {
        self.launch_at(self.home.path(), name, module, behaviour, store)
    }

    /// Like [`Self::launch`], but as if on a machine of its own: the host has its own home folder, so no other host
    /// sees its files.
    pub fn launch_alone(&self, name: &str, module: &Path, behaviour: &str, store: &str) -> Launch {
        let machine = self.path(name);
        std::fs::create_dir_all(&machine).expect("a folder");
        self.launch_at(&machine, name, module, behaviour, store)
    }

    fn launch_at(&self, machine: &Path, name: &str, module: &Path, behaviour: &str, store: &str) -> Launch {
        Launch::run(name, machine, &self.journal)
            .flag("--cache", self.home.path().join("cache"))
            .arg(module)
            .flag("--election", "bench")
            .flag("--store", store)
            .flag("--env", format!("BEHAVIOUR={behaviour}"))
            .flag("--env", format!("BEAT_MS={SILENCE}"))
    }

    pub fn steer(&self, how: &str) -> anyhow::Result<()> {
        let mut command = baton(self.home.path());
        command.args([how, "bench", "--store", &self.url()]);
        let finished = finish(command);
        anyhow::ensure!(finished.code == Some(0), "baton {how}: {finished:?}");
        Ok(())
    }

    pub fn launch_file(&self, name: &str, file: &Path) -> Launch {
        let cache = self.home.path().join("cache");
        Launch::run(name, self.home.path(), &self.journal).flag("--cache", cache).flag("--config", file)
    }
}

/// Interval between a guest's lines, in milliseconds. It is so long that the guest prints nothing during a measurement.
pub const SILENCE: u64 = 24 * 60 * 60 * 1000;

/// Waits until the host reports that it is a standby, which it does after it has read the store.
pub fn follows(node: &Node) {
    node.event("standby", |event| event.name == "standby");
}

/// Time of an event, in seconds since the Unix epoch.
pub fn at(event: &Event) -> f64 {
    seconds(event.ts)
}

/// The current time, in seconds since the Unix epoch, on the clock of the hosts' logs.
pub fn now() -> f64 {
    seconds(SystemTime::now().into())
}

fn seconds(moment: OffsetDateTime) -> f64 {
    moment.unix_timestamp_nanos() as f64 / 1e9
}
