//! Reads control and steering objects. A host reads these objects every few seconds, and almost always finds no change.
//!
//! Reads that are requested at the same time share a transaction. If the kernel (inotify(7)) has reported no write to
//! the file since the last read, no transaction is needed. The kernel reports the writes of all processes. The report
//! arrives before the writer releases the lock for which readers wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_election::{ElectionName, StoreError, Version};
use tokio::time::Instant;

use super::batch::{Batches, PendingRequest};
use super::database::{Database, Intent};
use super::objects::{CONTROL, key, read};
use super::{Databases, SqliteStore};
use crate::file_events::Watches;
use crate::{Reading, VersionedObject};

/// Maximum time for which a result is reused, even if the kernel reports no write. There is a limit because some
/// changes are not reported: a folder further up may be moved or mounted over, or a symbolic link in the path may be
/// changed.
const STANDS_FOR: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct ReadCache {
    pub batches: Batches<ReadRequest, Reading>,
    last: Mutex<Last>,
}

pub(super) struct ReadRequest {
    key: String,
    known: Option<Version>,
}

/// The results of the reads since the last write to the file.
#[derive(Default)]
struct Last {
    /// `None` before the first transaction, or if the system has no more inotify queues.
    watches: Option<Arc<Watches>>,
    /// The number of the file that was last found at the path.
    file: u64,
    /// Number of times that the kernel has reported an event, or that another file was found at the path.
    told: u64,
    /// The time of each key's last read, and the object's version if the object existed.
    found: HashMap<String, (Instant, Option<Version>)>,
}

impl Last {
    /// Forgets all results if the kernel has reported an event, or if another file was found.
    fn hear(&mut self, control: &Database) {
        let file = *control.files().borrow();
        let is_another = std::mem::replace(&mut self.file, file) != file;
        if self.watches.as_ref().is_some_and(|watches| watches.have_told()) || is_another {
            self.told += 1;
            self.found.clear();
        }
    }

    /// Returns the result of a read without a transaction, if an earlier read has already shown it.
    fn still(&self, ReadRequest { key, known }: &ReadRequest) -> Option<Reading> {
        match self.found.get(key).filter(|(at, _)| at.elapsed() < STANDS_FOR)? {
            (_, None) => Some(Reading::Nothing),
            (_, version) => (version == known).then_some(Reading::Unchanged),
        }
    }
}

impl ReadRequest {
    fn version(&self, reading: &Reading) -> Option<Version> {
        match reading {
            Reading::Nothing => None,
            Reading::Unchanged => self.known.clone(),
            Reading::Found(version, _) => Some(version.clone()),
        }
    }
}

impl ReadCache {
    fn last(&self, control: &Database) -> MutexGuard<'_, Last> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.hear(control);
        last
    }

    /// Asks the kernel to report writes from now on. Returns [`Last::told`] if the kernel can do this. May block on the
    /// disk.
    fn watch(&self, control: &Database) -> Option<u64> {
        let watches = {
            let mut last = self.last(control);
            if last.watches.is_none() {
                last.watches = Watches::new().ok().map(Arc::new);
            }
            last.watches.clone()?
        };
        control.watch_changes(&watches).then(|| self.last(control).told)
    }

    /// Keeps the result of a read. `told` is [`Last::told`] from before the read. If [`Last::told`] has changed since,
    /// the file may have changed during the read, so the result is not kept.
    fn note(&self, control: &Database, told: u64, sought: &ReadRequest, reading: &Reading) {
        let mut last = self.last(control);
        if last.told == told {
            last.found.insert(sought.key.clone(), (Instant::now(), sought.version(reading)));
        }
    }
}

impl SqliteStore {
    pub(super) async fn read_shared(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        let readings = &self.shared.readings;
        let sought = ReadRequest { key: key(object, election), known: known.cloned() };
        if let Some(reading) = readings.last(&self.shared.control).still(&sought) {
            return Ok(reading);
        }
        self.together(readings.batches.of(&self.shared.control), sought, Databases::read_all).await
    }
}

impl Databases {
    fn read_all(&self, sought: Vec<PendingRequest<ReadRequest, Reading>>) {
        let told = self.readings.watch(&self.control);
        self.control.transact_all(Intent::Read, sought, &|db, PendingRequest { request, .. }| {
            let reading = read(db, CONTROL, &request.key, request.known.as_ref())?;
            if let Some(told) = told {
                self.readings.note(&self.control, told, request, &reading);
            }
            Ok(Ok(reading))
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::pin::pin;

    use bytes::Bytes;
    use futures::poll;

    use super::*;
    use crate::VersionedObject::{Control, Steering};
    use crate::{LeaseStore as _, ObjectStore as _};

    fn job() -> ElectionName {
        ElectionName::new("job").unwrap()
    }

    fn found(version: &Version, content: &'static [u8]) -> Result<Reading, StoreError> {
        Ok(Reading::Found(version.clone(), Bytes::from_static(content)))
    }

    /// True if a read needs a transaction. `known` is the version that the reader already has, if any.
    async fn asks(store: &SqliteStore, object: VersionedObject, known: Option<&Version>) -> bool {
        let queue = store.shared.readings.batches.of(&store.shared.control);
        let _turn = Arc::clone(&queue.turn).acquire_owned().await.unwrap();
        poll!(pin!(store.read(object, &job(), known))).is_pending()
    }

    #[tokio::test]
    async fn result_is_reused_until_the_file_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let [file, copy] = ["control.db", "copy"].map(|name| folder.path().join(name));
        let [store, other] = [(); 2].map(|()| SqliteStore::new(folder.path()));
        store.create().await.unwrap();
        let first = other.write(Control, &job(), None, Bytes::from_static(b"1")).await.unwrap();
        assert_eq!(store.read(Control, &job(), None).await, found(&first, b"1"));
        fs::copy(&file, &copy).unwrap();
        let second = other.write(Control, &job(), Some(&first), Bytes::from_static(b"2")).await.unwrap();
        let newer = fs::read(&file).unwrap();
        let mut version = first.clone();
        for what in ["", "replaced", "overwritten", "given other rights", "left alone for long"] {
            match what {
                "replaced" => fs::rename(&copy, &file).unwrap(),
                "overwritten" => fs::write(&file, &newer).unwrap(),
                "given other rights" => fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap(),
                "left alone for long" => {
                    let mut last = store.shared.readings.last(&store.shared.control);
                    last.found.values_mut().for_each(|(at, _)| *at -= STANDS_FOR);
                }
                _ => {}
            }
            assert!(asks(&store, Control, Some(&version)).await, "{what}");
            let (next, content): (_, &[u8]) = if what == "replaced" { (&first, b"1") } else { (&second, b"2") };
            let expected = if *next == version { Ok(Reading::Unchanged) } else { found(next, content) };
            assert_eq!(store.read(Control, &job(), Some(&version)).await, expected, "{what}");
            version = next.clone();
            // If the file was replaced, the read above found another file, so the store has not kept the result of that
            // read. The read below finds the same file again, so the store keeps its result.
            assert_eq!(store.read(Control, &job(), Some(&version)).await, Ok(Reading::Unchanged));
            assert_eq!(store.read(Steering, &job(), None).await, Ok(Reading::Nothing));
            for (object, known) in [(Control, Some(&version)), (Steering, None), (Steering, Some(&version))] {
                assert!(!asks(&store, object, known).await, "{what}: {object:?}");
            }
            assert!(asks(&store, Control, None).await, "its content is nowhere else");
            assert_eq!(store.read(Control, &job(), Some(&version)).await, Ok(Reading::Unchanged));
            assert_eq!(store.read(Steering, &job(), Some(&version)).await, Ok(Reading::Nothing));
        }
        fs::remove_file(&file).unwrap();
        assert!(store.read(Control, &job(), Some(&version)).await.is_err());
    }

    /// This test replaces a symbolic link in the path. The kernel does not report such a change.
    #[tokio::test]
    async fn result_is_forgotten_when_another_file_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two, link] = ["one", "two", "link"].map(|name| folder.path().join(name));
        for folder in [&one, &two] {
            SqliteStore::new(folder).create().await.unwrap();
        }
        std::os::unix::fs::symlink(&one, &link).unwrap();
        let store = SqliteStore::new(&link);
        let version = store.write(Control, &job(), None, Bytes::from_static(b"1")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(store.read(Control, &job(), Some(&version)).await, Ok(Reading::Unchanged));
        }
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&two, &link).unwrap();
        assert!(!asks(&store, Control, Some(&version)).await, "as long as nobody looks");
        assert_eq!(store.shared.version(Control, &job()), Ok(None));
        assert_eq!(store.read(Control, &job(), Some(&version)).await, Ok(Reading::Nothing));
    }
}
