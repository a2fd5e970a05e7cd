//! The process's environment as a value, so that tests can create environments of their own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The environment variables, the home folder and the working folder.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    home: Option<PathBuf>,
    folder: PathBuf,
}

impl Environment {
    /// Reads the environment variables and the home folder of this process. Relative paths stay relative to the
    /// process's working folder.
    #[must_use]
    pub fn of_process() -> Self {
        // Use an empty path as the working folder instead of its absolute path. The working folder may have been
        // deleted, and has no absolute path in that case. Relative paths are also easier to read in messages.
        Self {
            variables: std::env::vars_os().collect(),
            home: std::env::home_dir().filter(|home| home.is_absolute()),
            folder: PathBuf::new(),
        }
    }

    /// Creates an environment with these variables, in which `folder` is both the home and the working folder.
    #[must_use]
    pub fn artificial(variables: &[(&str, &str)], folder: &Path) -> Self {
        Self {
            variables: variables.iter().map(|(k, v)| (k.into(), v.into())).collect(),
            home: Some(folder.to_path_buf()),
            folder: folder.to_path_buf(),
        }
    }

    /// Returns the user and the machine of this process, for display: `USER@HOST`.
    #[must_use]
    pub fn user_at_host(&self) -> String {
        let named = ["USER", "LOGNAME"].into_iter().find_map(|name| self.variable(name)?.to_str());
        // In a container, the user may have no name.
        let user = match named.filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => format!("uid-{}", rustix::process::getuid().as_raw()),
        };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        format!("{user}@{host}").chars().take(128).collect()
    }

    /// Returns a copy of this environment with another working folder.
    #[must_use]
    pub fn within(&self, folder: &Path) -> Self {
        Self { folder: self.folder.join(folder), ..self.clone() }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// Returns the names of all non-empty variables. Skips names that are not UTF-8.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(name, _)| name.to_str())
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Folder for Baton's persistent files: `$XDG_STATE_HOME/baton`, else `~/.local/state/baton`. The default is not
    /// under `/tmp`, where cleanup jobs would delete a running host's files.
    pub(crate) fn state_folder(&self) -> Option<PathBuf> {
        self.own_folder("XDG_STATE_HOME", ".local/state")
    }

    /// Folder for files that Baton can recreate: `$XDG_CACHE_HOME/baton`, else `~/.cache/baton`.
    pub(super) fn cache_folder(&self) -> Option<PathBuf> {
        self.own_folder("XDG_CACHE_HOME", ".cache")
    }

    /// Path of the key that authenticates the modules that this user's hosts have compiled. The key is not in the cache
    /// folder, where a user who can write to the cache could also read or replace the key.
    pub(super) fn cache_key(&self) -> Option<PathBuf> {
        Some(self.state_folder()?.join("cache.key"))
    }

    fn own_folder(&self, variable: &str, in_home: &str) -> Option<PathBuf> {
        let xdg = self.variable(variable).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = xdg.or_else(|| self.home.as_ref().map(|home| home.join(in_home)))?;
        Some(base.join("baton"))
    }
}
