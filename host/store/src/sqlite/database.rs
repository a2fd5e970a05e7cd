//! A database of the store, and transactions on the file that is currently at its path.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::StoreError;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::watch;

use super::file::{self, File};
use crate::file_events::Watches;

pub(super) const FILES: [&str; 5] = ["lease.db", "state.db", "control.db", "history.db", "modules.db"];

pub(super) fn files_in(dir: &Path) -> impl Iterator<Item = PathBuf> {
    FILES.map(|name| dir.join(name)).into_iter().filter(|file| file.exists())
}

/// A path, and the file that was last found at it.
pub(super) struct Database {
    path: PathBuf,
    /// Description of the database's content, for error messages.
    keeps: &'static str,
    schema: &'static str,
    /// Timeout for a request that waits for another client's transaction.
    busy: Duration,
    /// The file that was last found at the path. If this file is moved away, the field still refers to it until another
    /// file is found, so that a renewal notices the move.
    file: Mutex<Option<Arc<File>>>,
    /// The number of different files found at the path so far.
    files: watch::Sender<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Read,
    Write,
    /// A write on behalf of a lease holder. If the file was moved or replaced, the write fails with
    /// [`StoreError::Lost`], because the lease is valid only in the file in which the holder acquired it.
    Holder,
}

/// The result of a step in a transaction: a database error, or the answer to the request.
pub(super) type Step<T> = rusqlite::Result<Result<T, StoreError>>;

impl Database {
    /// `path` must be absolute. Does not access the disk.
    pub fn new(path: PathBuf, keeps: &'static str, schema: &'static str, busy: Duration) -> Self {
        Self { path, keeps, schema, busy, file: Mutex::default(), files: watch::Sender::default() }
    }

    pub fn create(&self) -> Result<(), StoreError> {
        file::create(&self.path, self.schema)
    }

    /// Runs `step` in a transaction on the file that is currently at the path.
    pub fn transact<T>(&self, access: Intent, step: impl FnOnce(&Connection) -> Step<T>) -> Result<T, StoreError> {
        let file = self.file(access)?;
        let Some(mut db) = file.connection()? else { return Err(self.moved(access)) };
        match attempt(&file, &mut db, access, step) {
            Ok(Some(answer)) => {
                file.put_back(db);
                answer
            }
            Ok(None) => Err(self.moved(access)),
            // Do not reuse the connection: after an error, its state is unknown.
            Err(error) => Err(file::unless_moved(&self.path, &error).unwrap_or_else(|| self.moved(access))),
        }
    }

    /// Turns an error that affects only one row into the answer to the request. Returns any other error, which affects
    /// the whole database.
    pub fn unreadable(&self, error: rusqlite::Error) -> rusqlite::Result<StoreError> {
        match error.sqlite_error_code() {
            None => Ok(file::store_error(&self.path, &error)),
            Some(_) => Err(error),
        }
    }

    fn file(&self, access: Intent) -> Result<Arc<File>, StoreError> {
        let mut current = self.last_found();
        match &*current {
            Some(file) if file.in_place()? => return Ok(Arc::clone(file)),
            Some(_) if access == Intent::Holder => return Err(self.moved(access)),
            Some(_) | None => {}
        }
        let Some(file) = File::open(&self.path, self.busy)? else {
            return Err(missing(&self.path, self.keeps, current.is_some()));
        };
        let file = Arc::new(file);
        *current = Some(Arc::clone(&file));
        self.files.send_modify(|files| *files += 1);
        Ok(file)
    }

    pub fn files(&self) -> watch::Receiver<u64> {
        self.files.subscribe()
    }

    /// Like [`File::watch_moves`]. Returns false if no file has been found yet.
    pub fn watch_moves(&self, watches: &Watches) -> bool {
        let file = self.last_found().clone();
        file.is_some_and(|file| file.watch_moves(watches))
    }

    /// Like [`File::watch_changes`]. Returns false if no file has been found yet.
    pub fn watch_changes(&self, watches: &Watches) -> bool {
        let file = self.last_found().clone();
        file.is_some_and(|file| file.watch_changes(watches))
    }

    fn last_found(&self) -> MutexGuard<'_, Option<Arc<File>>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self, access: Intent) -> StoreError {
        let why = format!("the file {} was moved or replaced", self.path.display());
        match access {
            Intent::Holder => StoreError::Lost(why),
            Intent::Read | Intent::Write => StoreError::Unknown(why),
        }
    }
}

/// Returns the error for a missing part of the store. `keeps` describes the content of the part.
///
/// A running host does not create the part again, because the loss of its content, such as the suspension of an
/// election, would go unnoticed. Only a starting host or a push creates the part again.
pub(super) fn missing(path: &Path, keeps: &str, was_there: bool) -> StoreError {
    const MAKES: &str = "start a host or run `baton push` to create";
    let is_part = path.parent().is_some_and(|dir| files_in(dir).any(|other| other != *path));
    file::misconfigured(
        path,
        if is_part {
            format!("is missing, unlike the store's other files: put it back, or {MAKES} an empty one without {keeps}")
        } else if was_there {
            format!("the store was removed: put it back, or {MAKES} an empty one")
        } else {
            format!("there is no store yet: correct `--store`, or {MAKES} it")
        },
    )
}

/// Returns `None` if the file is no longer at its path.
fn attempt<T>(
    file: &File,
    db: &mut Connection,
    access: Intent,
    step: impl FnOnce(&Connection) -> Step<T>,
) -> rusqlite::Result<Option<Result<T, StoreError>>> {
    let behavior = match access {
        Intent::Read => TransactionBehavior::Deferred,
        Intent::Write | Intent::Holder => TransactionBehavior::Immediate,
    };
    let transaction = db.transaction_with_behavior(behavior)?;
    match file.in_place() {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => return Ok(Some(Err(error))),
    }
    let answer = step(&transaction)?;
    transaction.commit()?;
    Ok(Some(answer))
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.path.display(), f)
    }
}
