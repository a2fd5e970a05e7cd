//! The lease stores that scenarios run on, and the hands of an outside client that harm them.

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

/// The container of every scenario's own Azurite.
const CONTAINER: &str = "fleet";

/// A store of one scenario.
pub enum Store {
    /// A folder.
    Sqlite(TempDir),
    /// An emulator of its own, behind a proxy.
    Azurite {
        /// What the nodes reach.
        proxy: Proxy,
        /// What is behind it.
        azurite: Azurite,
    },
}

/// The time during which a store is away: it ends with this value.
pub enum Outage<'a> {
    /// Another process's lock.
    Lock(Connection),
    /// A proxy that lets nothing pass.
    Network(&'a Proxy),
}

impl Store {
    /// A new folder.
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    /// A new emulator with an empty container.
    pub fn azurite() -> Self {
        let store = Self::bare_azurite();
        store.create_container();
        store
    }

    /// A new emulator without a container.
    pub fn bare_azurite() -> Self {
        let azurite = Azurite::start();
        Self::Azurite { proxy: Proxy::new(azurite.address().port()), azurite }
    }

    /// The `--store` of the nodes.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().display()),
            Self::Azurite { proxy, .. } => format!("azurite://127.0.0.1:{}/{CONTAINER}", proxy.port),
        }
    }

    /// Where the nodes reach the emulator's account.
    pub fn endpoint(&self) -> String {
        let Self::Azurite { proxy, .. } = self else { panic!("a scenario for Azurite only") };
        format!("http://127.0.0.1:{}/devstoreaccount1", proxy.port)
    }

    /// D: the shortest lease that Azure keeps, and long enough that a busy machine costs no renewal.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(15)
    }

    /// Whether it is the embedded store.
    pub fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// The folder of the embedded store.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Sqlite(folder) => folder.path(),
            Self::Azurite { .. } => panic!("a scenario for the embedded store only"),
        }
    }

    /// The embedded store's file with the leases.
    pub fn lease_file(&self) -> PathBuf {
        self.folder().join("lease.db")
    }

    /// Waits until the holder of the embedded store's lease has renewed it.
    pub fn renewed(&self) {
        let file = self.open();
        let changes = || file.query_row(CHANGES, [ELECTION], |row| row.get::<_, i64>(0)).expect("a lease");
        let before = changes();
        until("a renewal", || if changes() > before { Ok(()) } else { Err(before) });
    }

    /// Requests are sent and never answered, until the outage is dropped.
    pub fn hang(&self) -> Outage<'_> {
        self.take_away(Mode::Hang)
    }

    /// The same store for a node that no outage meets, where there is such a way.
    pub fn url_around_the_proxy(&self) -> String {
        match self {
            Self::Sqlite(_) => self.url(),
            Self::Azurite { azurite, .. } => format!("azurite://127.0.0.1:{}/{CONTAINER}", azurite.address().port()),
        }
    }

    /// Like [`Self::cut`], the coordinators' state included.
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

    /// Connections are cut, until the outage is dropped.
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

    /// Breaks the lease at once, as an operator may.
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

    /// Deletes the lease's object.
    pub fn delete_record(&self) {
        match self {
            Self::Sqlite(_) => {
                let changed = self.open().execute(DELETE, [ELECTION]).expect("the record is deleted");
                assert_eq!(changed, 1, "there was no record to delete");
            }
            // While its lease is held, nobody else may delete a blob.
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
                blob.delete().await.expect("the blob is deleted");
            }),
        }
    }

    /// Deletes the whole content of the store: all files of the folder, or the container.
    pub fn delete(&self) {
        match self {
            Self::Sqlite(folder) => {
                // A host that still runs may write a journal or an announcement into a folder that is
                // being emptied, so a folder that is not empty is emptied again.
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

    /// Makes the store again that was deleted, empty.
    pub fn make_anew(&self) {
        match self {
            Self::Sqlite(folder) => {
                block_on(async { SqliteStore::new(folder.path()).create().await.expect("a store is made") });
            }
            Self::Azurite { .. } => self.create_container(),
        }
    }

    /// Breaks the lease in such a time.
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

    /// Takes the lease for so long and writes nothing, as a host that ends at once.
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

    /// Breaks the lease, and writes the record as it is: a write without a lease id frees a broken lease.
    pub fn free_by_a_write(&self) {
        match self {
            Self::Sqlite(_) => {
                let changed = self.open().execute(FREE, [ELECTION]).expect("the lease is freed");
                assert_eq!(changed, 1, "there was no lease to free");
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                let read = blob.get_properties().await.expect("the blob is there");
                let mut record = Metadata::new();
                for (name, value) in read.blob.metadata.into_iter().flatten() {
                    record.insert(name, value);
                }
                blob.break_lease().lease_break_period(Duration::ZERO).await.expect("the lease is broken");
                blob.set_metadata().metadata(record).await.expect("the metadata is written");
            }),
        }
    }

    /// Breaks the lease, takes it and releases it.
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

    /// Takes the lease without an end, as no Baton does.
    pub fn hold_for_ever(&self) {
        match self {
            Self::Sqlite(_) => {
                self.hold(Duration::from_secs(60));
                let changed = self.open().execute(ENDLESS, [ELECTION]).expect("the lease gets no end");
                assert_eq!(changed, 1, "there was no lease");
            }
            Self::Azurite { .. } => self.azure(async |_, blob| {
                blob.acquire_lease(LeaseDuration::Infinite).await.expect("the lease is taken");
            }),
        }
    }

    /// A shared access signature with these rights to the container.
    pub fn signature(&self, rights: BlobSasPermissions) -> String {
        let mut signature = String::new();
        self.azure(async |container, _| {
            let until = time::OffsetDateTime::now_utc() + time::Duration::hours(1);
            let signed = container.shared_access_signature(rights, until).await.expect("the key signs");
            signature = signed.token().expect("a token");
        });
        signature
    }

    /// Creates the container.
    pub fn create_container(&self) {
        self.azure(async |container, _| container.create().await.expect("the container is created"));
    }

    /// The connection of an outside client, which waits for the hosts' short locks.
    fn open(&self) -> Connection {
        Self::connection(&self.lease_file())
    }

    fn connection(file: &Path) -> Connection {
        let mut connection = Connection::open(file).expect("a file of the store");
        // SQLite's own waits grow, and miss the short gaps that hosts leave.
        let looks = |_| {
            std::thread::sleep(Duration::from_millis(1));
            true
        };
        connection.busy_handler(Some(looks)).expect("it waits");
        connection
    }

    /// Acts on the emulator itself, past the proxy.
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
            Self::Lock(connection) => connection.execute_batch("ROLLBACK").expect("the lock is given up"),
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

/// Asks an embedded store until it answers: others may keep its file busy for a while.
async fn insist<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let mut patience = Patience::default();
    loop {
        match ask().await {
            Err(StoreError::Unknown(_)) if patience.lasts() => {}
            answer => return answer.expect("it can be done"),
        }
    }
}

/// Takes the lease as an outside client.
async fn acquire(store: &SqliteStore, id: LeaseId, length: Duration) {
    let read = insist(async || store.request(&election(), Op::Read).await).await;
    let Reply::Read(Snapshot::Object { version, .. }) = read else { panic!("{read:?}") };
    let op = Op::Acquire { id, length, version, instead_of: None };
    assert_eq!(insist(async || store.request(&election(), op.clone()).await).await, Reply::Done);
}

/// How often a lease of the embedded store was changed.
const CHANGES: &str = "SELECT changes FROM lease WHERE election = ?1";
/// How nobody holds a lease of the embedded store.
const ENDLESS: &str = "UPDATE lease SET length = NULL, changes = changes + 1 WHERE election = ?1";
/// How an operator breaks a lease of the embedded store.
const BREAK: &str = "UPDATE lease SET broken_after = 0, changes = changes + 1 WHERE election = ?1";
/// How an operator frees a lease of the embedded store.
const FREE: &str = "UPDATE lease SET holder = NULL, length = NULL, broken_after = NULL, changes = changes + 1,
    version = hex(randomblob(16)) WHERE election = ?1";
/// How an operator deletes a record of the embedded store.
const DELETE: &str = "DELETE FROM lease WHERE election = ?1";
