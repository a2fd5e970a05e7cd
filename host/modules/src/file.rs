//! A module in a file. The source notices every new version, no matter how the file is replaced.

use std::collections::BTreeSet;

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::source::{Offer, Source, SourceError};
use crate::path_watch::PathLookups;
use crate::watch::{Stamp, Watch, run_blocking};
use baton_runtime::{FileError, ModuleError, is_complete, read_file, read_module};
use baton_store::{Digest, foreign_file_system};

/// Upper bound on the size of a signature, in bytes.
const LONGEST_SIGNATURE: u64 = 64 << 10;

/// Offers the module in a file. The module's minisign signature, if any, is in `FILE.minisig` next to the file.
///
/// The source offers the file's first content at once. Later, the source offers new content only once the file has not
/// changed for a while. If the file looks half-written, the source waits longer. The source checks the files after each
/// hint from inotify, and also at intervals without a hint.
pub struct FileSource {
    path: PathBuf,
    pace: WatchIntervals,
    watch: Option<Arc<Watch>>,
    /// Maximum interval between two checks, which depends on the file system.
    rests: Duration,
    /// Time of the next check, unless a hint comes first.
    looks_at: Option<Instant>,
    /// The stamps of the files at the last successful read.
    known: Option<Sight>,
    /// The stamps of the files after the last change, and the time at which the source first saw these stamps. The
    /// source waits until the stamps have stayed the same for a while.
    settling: Option<(Sight, Instant)>,
    /// The read in progress. A read may take arbitrarily long, so the read survives if the caller drops the future of
    /// `next`.
    reading: Option<BoxFuture<'static, Result<FoundFile, SourceError>>>,
    offered: Option<(Digest, Option<String>)>,
    said: Option<SourceError>,
}

#[derive(Clone, Copy)]
struct WatchIntervals {
    /// Delay between the first hint and the check, because changes often come in bursts.
    calm: Duration,
    /// Time without a change after which a file that looks complete is considered complete.
    settle: Duration,
    /// Time without a change after which a file that looks half-written is considered complete.
    patience: Duration,
    /// Maximum interval between checks if inotify reports every change.
    poll: Duration,
    /// Maximum interval between checks on a network file system, where inotify does not report changes by other
    /// machines.
    shared: Duration,
    unwatched: Duration,
}

const PACE: WatchIntervals = WatchIntervals {
    calm: Duration::from_millis(50),
    settle: Duration::from_millis(200),
    patience: Duration::from_secs(2),
    poll: Duration::from_secs(30),
    shared: Duration::from_secs(2),
    unwatched: Duration::from_millis(500),
};

impl FileSource {
    /// Creates a source for the module at this path. Does no I/O.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            pace: PACE,
            watch: None,
            rests: PACE.unwatched,
            looks_at: None,
            known: None,
            settling: None,
            reading: None,
            offered: None,
            said: None,
        }
    }
}

#[async_trait]
impl Source for FileSource {
    async fn next(&mut self) -> Result<Offer, SourceError> {
        let is_first = self.offered.is_none() && self.said.is_none();
        if is_first && self.watch.is_none() {
            // If the watch cannot be created, the source checks the files more often.
            self.watch = Watch::new().ok().map(Arc::new);
        }
        loop {
            self.rest().await;
            let sight = self.look().await;
            if self.known == Some(sight) {
                self.settling = None;
                self.look_after(self.rests);
                continue;
            }
            let since = match self.settling {
                Some((settling, since)) if settling == sight => since,
                _ => {
                    self.reading = None;
                    self.settling.insert((sight, Instant::now())).1
                }
            };
            let unsettled = self.pace.settle.saturating_sub(since.elapsed());
            if !is_first && !unsettled.is_zero() {
                tokio::time::sleep(unsettled).await;
                continue;
            }
            let path = self.path.clone();
            let read = || run_blocking(move || FoundFile::read(&path)).boxed();
            let found = self.reading.get_or_insert_with(read).await;
            self.reading = None;
            if !is_first && self.look().await != sight {
                continue;
            }
            let unsure = if is_first { Duration::ZERO } else { self.pace.patience.saturating_sub(since.elapsed()) };
            match found {
                Ok(found) if found.is_complete || unsure.is_zero() => {
                    self.known = Some(sight);
                    self.settling = None;
                    let is_news = self.offered.as_ref() != Some(&found.identity);
                    self.offered = Some(found.identity);
                    // After an error, offer the module even if it is unchanged. The follower then learns that the error
                    // is over.
                    if self.said.take().is_some() || is_news {
                        return Ok(found.offer);
                    }
                }
                Err(error) if unsure.is_zero() && self.said.as_ref() != Some(&error) => {
                    // Forget the stamps. If the file comes back with the same stamps, it must be read again.
                    self.known = None;
                    self.said = Some(error.clone());
                    return Err(error);
                }
                _ if unsure.is_zero() => self.look_after(self.rests),
                _ => self.look_after(unsure),
            }
        }
    }
}

impl FileSource {
    /// Watches the folders on which the path currently depends, and then checks the files. In this order, no change is
    /// missed: every change after the check gives a hint.
    async fn look(&mut self) -> Sight {
        let (path, watch) = (self.path.clone(), self.watch.clone());
        let pace = self.pace;
        let (sight, rests) = run_blocking(move || {
            let signature = signature_of(&path);
            let folders = &folders_of(&path) | &folders_of(&signature);
            let is_watched = watch.is_some_and(|watch| watch.set(&folders));
            let is_own = |folder: &PathBuf| matches!(foreign_file_system(folder), Ok(None));
            let rests = match is_watched {
                true if folders.iter().all(is_own) => pace.poll,
                true => pace.shared,
                false => pace.unwatched,
            };
            (Sight { module: Stamp::of(&path), signature: Stamp::of(&signature) }, rests)
        })
        .await;
        self.rests = rests;
        sight
    }

    fn look_after(&mut self, longest: Duration) {
        self.looks_at = Some(Instant::now() + longest.min(self.rests));
    }

    /// Waits until the next check is due or inotify gives a hint. If the caller drops the future and calls `rest`
    /// again, the total wait does not become longer.
    async fn rest(&mut self) {
        let Some(at) = self.looks_at else { return };
        let hint = async {
            match &self.watch {
                Some(watch) => watch.hint().await,
                None => std::future::pending().await,
            }
        };
        if timeout_at(at, hint).await.is_ok() {
            let soon = at.min(Instant::now() + self.pace.calm);
            self.looks_at = Some(soon);
            sleep_until(soon).await;
        }
        self.looks_at = None;
    }
}

/// The metadata of the module's file and of its signature's file. The source compares this metadata to detect a change
/// without reading the files.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sight {
    module: Option<Stamp>,
    signature: Option<Stamp>,
}

struct FoundFile {
    offer: Offer,
    identity: (Digest, Option<String>),
    /// True if the file ends where the module ends according to the WebAssembly format. A half-written file ends
    /// earlier.
    is_complete: bool,
}

impl FoundFile {
    fn read(path: &Path) -> Result<Self, SourceError> {
        let bytes = Bytes::from(read_module(path).map_err(source_error)?);
        let signature = read_signature(&signature_of(path))?;
        let is_complete = is_complete(&bytes);
        Ok(Self { identity: (Digest::of(&bytes), signature.clone()), offer: Offer { bytes, signature }, is_complete })
    }
}

fn source_error(error: ModuleError) -> SourceError {
    let is_lasting = match &error {
        ModuleError::Unreadable { source, .. } => is_lasting(source),
        _ => true,
    };
    let text = format!("{:#}", anyhow::Error::from(error));
    if is_lasting { SourceError::Unusable(text) } else { SourceError::Unreachable(text) }
}

/// Returns true if the error lasts until somebody fixes the cause. Other errors are temporary failures of the file
/// system.
fn is_lasting(error: &io::Error) -> bool {
    let kinds = [ErrorKind::PermissionDenied, ErrorKind::NotADirectory, ErrorKind::IsADirectory];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(libc::ELOOP)
}

fn signature_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".minisig");
    name.into()
}

fn read_signature(path: &Path) -> Result<Option<String>, SourceError> {
    let unreadable = |error: &io::Error| {
        let text =
            format!("cannot read the module's signature {}: {error}; make it readable, or remove it", path.display());
        if is_lasting(error) { SourceError::Unusable(text) } else { SourceError::Unreachable(text) }
    };
    let bytes = match read_file(path, LONGEST_SIGNATURE) {
        Ok(bytes) => bytes,
        Err(FileError::Unreadable(error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(FileError::Unreadable(error)) => return Err(unreadable(&error)),
        Err(FileError::NotRegular | FileError::TooLong(_)) => {
            let path = path.display();
            let text = format!("{path} is not a signature: it must be a file of at most {LONGEST_SIGNATURE} bytes");
            return Err(SourceError::Unusable(text));
        }
    };
    // Bytes that are not text cannot be a valid signature. The verification reports this later.
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns the folders in which a change can make `path` lead to a different file: the folders that contain the file or
/// a link on the path.
fn folders_of(path: &Path) -> BTreeSet<PathBuf> {
    let lookups = PathLookups::to(path).map(|way| way.lookups).unwrap_or_default();
    lookups.into_iter().filter(|lookup| lookup.decides).map(|lookup| lookup.folder).collect()
}

#[cfg(test)]
mod tests;
