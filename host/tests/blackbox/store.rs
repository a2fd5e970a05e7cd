//! Stores for scenarios, and functions that damage the stores' contents as an outside client could.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use azure_core::request_options::{LeaseDuration, Metadata};
use azure_storage::prelude::SasToken;
use azure_storage::shared_access_signature::service_sas::BlobSasPermissions;
use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::{BlobClient, ClientBuilder, ContainerClient};
use baton_election::{ElectionName, LeaseId, Op, Reply, Snapshot, StoreError};
use baton_store::{LeaseStore, SqliteStore};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::azurite::Azurite;
use crate::fleet::ELECTION;
use crate::node::until;
use crate::patience::Patience;
use crate::proxy::{Mode, Proxy};

const CONTAINER: &str = "fleet";

pub enum Store {
    Sqlite(TempDir),
    /// The Azurite emulator, behind a proxy.
    Azurite {
        proxy: Proxy,
        azurite: Azurite,
    },
}

/// Dropping this value ends the outage.
pub enum Outage<'a> {
    Lock(Connection),
    Network(&'a Proxy),
}

impl Store {
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    /// Starts an emulator with an empty container.
    pub fn azurite() -> Self {
        let store = Self::bare_azurite();
        store.create_container();
        store
    }

    /// Starts an emulator without a container.
    pub fn bare_azurite() -> Self {
        let azurite = Azurite::start();
        Self::Azurite { proxy: Proxy::new(azurite.address().port()), azurite }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().display()),
            Self::Azurite { proxy, .. } => format!("azurite://127.0.0.1:{}/{CONTAINER}", proxy.port),
        }
    }

    pub fn endpoint(&self) -> String {
        let Self::Azurite { proxy, .. } = self else { panic!("a scenario for Azurite only") };
        format!("http://127.0.0.1:{}/devstoreaccount1", proxy.port)
    }

    /// Lease duration: the shortest that Azure supports, and long enough for renewals on a busy machine.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(15)
    }

    pub fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    pub fn folder(&self) -> &Path {
        match self {
            Self::Sqlite(folder) => folder.path(),
            Self::Azurite { .. } => panic!("a scenario for the embedded store only"),
        }
    }

    pub fn lease_file(&self) -> PathBuf {
        self.folder().join("lease.db")
    }

    /// Waits for the next renewal of the lease. Works only on the embedded store.
    pub fn renewed(&self) {
        let file = self.open();
        let changes = || file.query_row(CHANGES, [ELECTION], |row| row.get::<_, i64>(0)).expect("a lease");
        let before = changes();
        until("a renewal", || if changes() > before { Ok(()) } else { Err(before) });
    }

    /// Leaves all requests unanswered until the returned outage is dropped. On the embedded store, locks the file that
    /// contains the leases.
    pub fn hang(&self) -> Outage<'_> {
        self.take_away(Mode::Hang)
    }

    /// Returns a URL that bypasses the proxy on Azurite, so that outages do not affect the clients that use it.
    pub fn url_around_the_proxy(&self) -> String {
        match self {
            Self::Sqlite(_) => self.url(),
            Self::Azurite { azurite, .. } => format!("azurite://127.0.0.1:{}/{CONTAINER}", azurite.address().port()),
        }
    }

    /// Like [`Self::cut`], but also cuts off the coordinators' state.
    pub fn cut_all(&self) -> Vec<Outage<'_>> {
        match self {
            Self::Sqlite(folder) => {
                let lock = |name: &str| {
                    let connection = Self::connection(&folder.path().join(name));
                    connection.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
                    Outage::Lock(connection)
                };
                vec![lock("state.db"), lock("lease.db")]
            }
            Self::Azurite { .. } => vec![self.cut()],
        }
    }

    /// Closes all connections until the returned outage is dropped. On the embedded store, locks the file that contains
    /// the leases.
    pub fn cut(&self) -> Outage<'_> {
        self.take_away(Mode::Cut)
    }

    fn take_away(&self, mode: Mode) -> Outage<'_> {
        match self {
            Self::Sqlite(_) => {
                let connection = self.open();
                connection.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
                Outage::Lock(connection)
            }
            Self::Azurite { proxy, .. } => {
                proxy.set(mode);
                Outage::Network(proxy)
            }
        }
    }

    pub fn break_lease(&self) {
        match self {
            Self::Sqlite(_) => {
                let changed = self.open().execute(BREAK, [ELECTION]).expect("the lease is broken");
                assert_eq!(changed, 1, "there was no lease to break");
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
            }),
        }
    }

    pub fn delete_record(&self) {
        match self {
            Self::Sqlite(_) => {
                let changed = self.open().execute(DELETE, [ELECTION]).expect("the record is deleted");
                assert_eq!(changed, 1, "there was no record to delete");
            }
            // Only the lease's holder may delete a leased blob, so the test breaks the lease first.
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
                blob.delete().await.expect("the blob is deleted");
            }),
        }
    }

    pub fn delete(&self) {
        match self {
            Self::Sqlite(folder) => {
                // A running host may write a journal or an announcement in the meantime. So this loop deletes files
                // until the folder is empty.
                until("the store to be empty", || {
                    for entry in std::fs::read_dir(folder.path())? {
                        let entry = entry?;
                        let deleted = if entry.file_type()?.is_dir() {
                            std::fs::remove_dir_all(entry.path())
                        } else {
                            std::fs::remove_file(entry.path())
                        };
                        match deleted {
                            Err(error) if error.kind() == ErrorKind::NotFound => {}
                            deleted => deleted?,
                        }
                    }
                    std::io::Result::Ok(())
                });
            }
            Self::Azurite { .. } => self.azure(async |container, _| {
                container.delete().await.expect("the container is deleted");
            }),
        }
    }

    pub fn make_anew(&self) {
        match self {
            Self::Sqlite(folder) => {
                block_on(async { SqliteStore::new(folder.path()).create().await.expect("a store is made") });
            }
            Self::Azurite { .. } => self.create_container(),
        }
    }

    pub fn break_lease_after(&self, period: Duration) {
        match self {
            Self::Sqlite(folder) => {
                let store = SqliteStore::new(folder.path());
                block_on(async { insist(async || store.break_lease(&election(), period).await).await });
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.break_lease().lease_break_period(period).await.expect("the lease is broken");
            }),
        }
    }

    /// Acquires the lease for `length` and writes no record, like a host that exits right after it has acquired the
    /// lease.
    pub fn hold(&self, length: Duration) {
        match self {
            Self::Sqlite(folder) => {
                let store = SqliteStore::new(folder.path());
                block_on(acquire(&store, LeaseId::from_random(7), length));
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                let seconds = length.as_secs().try_into().expect("60 at most");
                blob.acquire_lease(LeaseDuration::Seconds(seconds)).await.expect("the lease is taken");
            }),
        }
    }

    /// Breaks the lease, and writes the record without changing it. A write without a lease id frees a broken lease.
    pub fn free_by_a_write(&self) {
        match self {
            Self::Sqlite(_) => {
                let changed = self.open().execute(FREE, [ELECTION]).expect("the lease is freed");
                assert_eq!(changed, 1, "there was no lease to free");
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                let read = blob.get_properties().await.expect("the blob");
                let mut record = Metadata::new();
                for (name, value) in read.blob.metadata.into_iter().flatten() {
                    record.insert(name, value);
                }
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
                blob.set_metadata().metadata(record).await.expect("the metadata is written");
            }),
        }
    }

    pub fn take_and_release(&self) {
        match self {
            Self::Sqlite(folder) => {
                let store = SqliteStore::new(folder.path());
                block_on(async {
                    insist(async || store.break_lease(&election(), Duration::ZERO).await).await;
                    let id = LeaseId::from_random(7);
                    acquire(&store, id, Duration::from_secs(15)).await;
                    let released = insist(async || store.request(&election(), Op::Release { id }).await).await;
                    assert_eq!(released, Reply::Done);
                });
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
                let taken = blob.acquire_lease(LeaseDuration::Seconds(15)).await.expect("the lease is taken");
                blob.blob_lease_client(taken.lease_id).release().await.expect("the lease is released");
            }),
        }
    }

    /// Acquires a lease without a time limit, which Baton never does.
    pub fn hold_for_ever(&self) {
        match self {
            Self::Sqlite(_) => {
                self.hold(Duration::from_secs(60));
                let changed = self.open().execute(ENDLESS, [ELECTION]).expect("the lease is changed");
                assert_eq!(changed, 1, "there was no lease");
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.acquire_lease(LeaseDuration::Infinite).await.expect("the lease is taken");
            }),
        }
    }

    /// The signature is valid for 1 h.
    pub fn signature(&self, rights: BlobSasPermissions) -> String {
        let mut signature = String::new();
        self.azure(async |container, _| {
            let until = time::OffsetDateTime::now_utc() + time::Duration::hours(1);
            let signed = container.shared_access_signature(rights, until).await.expect("the key signs");
            signature = signed.token().expect("a token");
        });
        signature
    }

    pub fn create_container(&self) {
        self.azure(async |container, _| container.create().await.expect("the container is created"));
    }

    /// The connection to the lease database waits while a host locks the file.
    fn open(&self) -> Connection {
        Self::connection(&self.lease_file())
    }

    fn connection(file: &Path) -> Connection {
        let mut connection = Connection::open(file).expect("a file of the store");
        // SQLite's own retries wait longer and longer, so they would miss the short gaps between the hosts' locks.
        let retry = |_| {
            std::thread::sleep(Duration::from_millis(1));
            true
        };
        connection.busy_handler(Some(retry)).expect("a busy handler");
        connection
    }

    /// Bypasses the proxy.
    fn azure(&self, act: impl AsyncFnOnce(ContainerClient, BlobClient)) {
        let Self::Azurite { azurite, .. } = self else { panic!("a scenario for Azurite only") };
        let location = CloudLocation::Emulator { address: "127.0.0.1".to_string(), port: azurite.address().port() };
        let container =
            ClientBuilder::with_location(location, StorageCredentials::emulator()).container_client(CONTAINER);
        let blob = container.blob_client(format!("{ELECTION}/lease"));
        block_on(act(container, blob));
    }
}

impl Drop for Outage<'_> {
    fn drop(&mut self) {
        match self {
            Self::Lock(connection) => connection.execute_batch("ROLLBACK").expect("the lock is released"),
            Self::Network(proxy) => proxy.set(Mode::Through),
        }
    }
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn block_on(act: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(act);
}

/// Repeats a request to the embedded store until the store answers, because other processes may lock the store's file.
async fn insist<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let mut patience = Patience::default();
    loop {
        match ask().await {
            Err(StoreError::Unknown(_)) if patience.lasts() => {}
            answer => return answer.expect("a result"),
        }
    }
}

async fn acquire(store: &SqliteStore, id: LeaseId, length: Duration) {
    let read = insist(async || store.request(&election(), Op::Read).await).await;
    let Reply::Read(Snapshot::Object { version, .. }) = read else { panic!("{read:?}") };
    let op = Op::Acquire { id, length, version, instead_of: None };
    assert_eq!(insist(async || store.request(&election(), op.clone()).await).await, Reply::Done);
}

const CHANGES: &str = "SELECT changes FROM lease WHERE election = ?1";
/// A lease whose `length` is NULL has no time limit.
const ENDLESS: &str = "UPDATE lease SET length = NULL, changes = changes + 1 WHERE election = ?1";
const BREAK: &str = "UPDATE lease SET broken_after = 0, changes = changes + 1 WHERE election = ?1";
const FREE: &str = "UPDATE lease SET holder = NULL, length = NULL, broken_after = NULL, changes = changes + 1,
    version = hex(randomblob(16)) WHERE election = ?1";
const DELETE: &str = "DELETE FROM lease WHERE election = ?1";
