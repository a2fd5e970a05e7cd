//! The stores, and the faults that the network or another client causes in them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use azure_core::prelude::Metadata;
use azure_core::request_options::LeaseDuration;
use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::{BlobClient, ClientBuilder};
use baton_election::{ElectionName, LeaseId, Op, Reply, Snapshot};
use baton_store::{LeaseStore, SqliteStore};
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::azurite::Azurite;
use crate::plan::{Content, Trouble};
use crate::proxy::{Mode, Proxy};

pub const ELECTION: &str = "faults";
const CONTAINER: &str = "faults";

/// The timeout for a request to the emulator. The emulator may pause for minutes in the middle of a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of one step of the test. The error says what failed.
pub type Done<T = ()> = Result<T, String>;

pub enum Store {
    Sqlite(Box<Sqlite>),
    /// The emulator, behind one proxy for each node.
    Azurite(Box<Azure>),
}

pub struct Sqlite {
    folder: TempDir,
    runtime: Runtime,
    lock: Option<Connection>,
    earlier: Vec<Vec<Value>>,
}

pub struct Azure {
    azurite: Azurite,
    _folder: TempDir,
    proxies: Vec<Proxy>,
    runtime: Runtime,
    earlier: Vec<HashMap<String, String>>,
}

pub enum Taken {
    Sqlite(LeaseId),
    Azurite(azure_core::prelude::LeaseId),
}

impl Store {
    pub fn sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self::Sqlite(Box::new(Sqlite { folder, runtime: runtime(), lock: None, earlier: Vec::new() }))
    }

    /// Starts an emulator with an empty container, and a proxy for each node.
    pub fn azurite(nodes: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let azurite = Azurite::start_in(folder.path());
        let proxies = (0..nodes).map(|_| Proxy::start(azurite.address())).collect();
        let azure = Azure { azurite, _folder: folder, proxies, runtime: runtime(), earlier: Vec::new() };
        let container = azure.blob().container_client().clone();
        azure.runtime.block_on(container.create().into_future()).expect("the container is created");
        Self::Azurite(Box::new(azure))
    }

    /// The value of `--store` for a node.
    pub fn url(&self, node: usize) -> String {
        match self {
            Self::Sqlite(sqlite) => format!("sqlite:{}", sqlite.folder.path().display()),
            Self::Azurite(azure) => format!("azurite://{}/{CONTAINER}", azure.proxies[node].address()),
        }
    }

    /// A value of `--store` that bypasses the proxies, so that connections never fail.
    pub fn safe_url(&self) -> String {
        match self {
            Self::Sqlite(_) => self.url(0),
            Self::Azurite(azure) => format!("azurite://{}/{CONTAINER}", azure.azurite.address()),
        }
    }

    /// The shortest lease that the store supports.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(if matches!(self, Self::Sqlite(_)) { 2 } else { 15 })
    }

    /// Saves the current record, so that [`Self::free`] can write it back later.
    pub fn remember(&mut self) -> Done {
        match self {
            Self::Sqlite(sqlite) => {
                let record = sqlite.record()?;
                sqlite.earlier.push(record);
            }
            Self::Azurite(azure) => {
                let record = azure.record()?;
                azure.earlier.push(record);
            }
        }
        Ok(())
    }

    /// True if the store answers requests on a connection that has no faults.
    pub fn answers(&self) -> bool {
        match self {
            Self::Sqlite(sqlite) => sqlite.lock.is_none(),
            // Any answer shows that the emulator works, even the answer that the blob does not exist.
            Self::Azurite(azure) => azure.ask(async { Ok(azure.blob().exists().await) }).is_ok(),
        }
    }

    pub fn break_lease(&self, period: Duration) -> Done {
        match self {
            Self::Sqlite(sqlite) => sqlite.runtime.block_on(async {
                sqlite.client().break_lease(&election(), period).await.map_err(|error| format!("{error:?}"))
            }),
            Self::Azurite(azure) => azure.ask(azure.blob().break_lease().lease_break_period(period)).map(drop),
        }
    }

    /// Breaks the lease, and writes the record without a lease id.
    pub fn free(&self, content: Content) -> Done {
        match self {
            Self::Sqlite(sqlite) => {
                let mut record = sqlite.record()?;
                match content {
                    Content::Same => {}
                    Content::Older => record = middle(&sqlite.earlier).ok_or("nothing earlier")?,
                    Content::WithoutNode => record[NODE] = Value::Null,
                    Content::AsNew => {
                        (record[TERM], record[NODE], record[OUTCOME]) = (Value::Integer(0), Value::Null, Value::Null);
                    }
                    Content::Nothing => record.fill(Value::Null),
                }
                let set: Vec<String> = RECORD.iter().map(|column| format!("{column} = ?")).collect();
                let free = "holder = NULL, length = NULL, broken_after = NULL, changes = changes + 1";
                let sql = format!(
                    "UPDATE lease SET {}, {free}, version = lower(hex(randomblob(16))) WHERE election = '{ELECTION}'",
                    set.join(", ")
                );
                sqlite.open()?.execute(&sql, rusqlite::params_from_iter(record)).map(drop).map_err(first_line)
            }
            Self::Azurite(azure) => {
                let mut record = azure.record()?;
                match content {
                    Content::Same => {}
                    Content::Older => record = middle(&azure.earlier).ok_or("nothing earlier")?,
                    Content::WithoutNode => drop(record.remove("node")),
                    Content::AsNew => {
                        record.remove("node");
                        record.remove("outcome");
                        record.remove("released");
                        record.insert("term".to_owned(), "0".to_owned());
                    }
                    Content::Nothing => record.clear(),
                }
                let mut metadata = Metadata::new();
                for (name, value) in record {
                    metadata.insert(name, value);
                }
                self.break_lease(Duration::ZERO)?;
                azure.ask(azure.blob().set_metadata().metadata(metadata)).map(drop)
            }
        }
    }

    pub fn take(&self) -> Done<Taken> {
        self.break_lease(Duration::ZERO)?;
        match self {
            Self::Sqlite(sqlite) => sqlite.runtime.block_on(async {
                let client = sqlite.client();
                let read = client.request(&election(), Op::Read).await;
                let Ok(Reply::Read(Snapshot::Object { version, .. })) = read else { return Err(format!("{read:?}")) };
                let id = LeaseId::from_random(7);
                let taken = client
                    .request(&election(), Op::Acquire { id, length: self.lease(), version, instead_of: None })
                    .await;
                taken.map(|_| Taken::Sqlite(id)).map_err(|error| format!("{error:?}"))
            }),
            Self::Azurite(azure) => {
                let seconds = LeaseDuration::Seconds(self.lease().as_secs() as u8);
                azure.ask(azure.blob().acquire_lease(seconds)).map(|taken| Taken::Azurite(taken.lease_id))
            }
        }
    }

    pub fn release(&self, taken: Taken) -> Done {
        match (self, taken) {
            (Self::Sqlite(sqlite), Taken::Sqlite(id)) => sqlite.runtime.block_on(async {
                let released = sqlite.client().request(&election(), Op::Release { id }).await;
                released.map(drop).map_err(|error| format!("{error:?}"))
            }),
            (Self::Azurite(azure), Taken::Azurite(id)) => {
                azure.ask(azure.blob().blob_lease_client(id).release()).map(drop)
            }
            _ => unreachable!("it was taken on this store"),
        }
    }

    pub fn delete(&self) -> Done {
        match self {
            Self::Sqlite(sqlite) => sqlite
                .runtime
                .block_on(async { sqlite.client().delete(&election()).await.map_err(|error| format!("{error:?}")) }),
            Self::Azurite(azure) => {
                // A leased blob cannot be deleted, so break the lease first.
                self.break_lease(Duration::ZERO)?;
                azure.ask(azure.blob().delete()).map(drop)
            }
        }
    }

    /// Makes a node's connections to the store fail until [`Self::heal`]. The embedded store has no connections, so
    /// this locks its database, which affects all nodes.
    pub fn trouble(&mut self, node: usize, trouble: Trouble) -> Done {
        match self {
            Self::Sqlite(sqlite) => {
                if sqlite.lock.is_none() {
                    let lock = sqlite.open()?;
                    lock.execute_batch("BEGIN EXCLUSIVE").map_err(first_line)?;
                    sqlite.lock = Some(lock);
                }
            }
            Self::Azurite(azure) => azure.proxies[node].set(trouble.into()),
        }
        Ok(())
    }

    pub fn heal(&mut self, node: usize) {
        match self {
            Self::Sqlite(sqlite) => sqlite.lock = None,
            Self::Azurite(azure) => azure.proxies[node].set(Mode::Pass),
        }
    }
}

impl From<Trouble> for Mode {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Down => Self::Down,
            Trouble::Hang => Self::Hang,
            Trouble::CutAfterRequest => Self::CutAfterRequest,
            Trouble::HoldRequest => Self::HoldRequest,
            Trouble::HoldAnswer => Self::HoldAnswer,
        }
    }
}

impl Sqlite {
    fn client(&self) -> SqliteStore {
        SqliteStore::new(self.folder.path())
    }

    fn open(&self) -> Done<Connection> {
        let connection = Connection::open(self.folder.path().join("lease.db")).map_err(first_line)?;
        // A stopped host may hold the lock on the database until it continues, so do not wait long for this lock.
        connection.busy_timeout(Duration::from_millis(500)).map_err(first_line)?;
        Ok(connection)
    }

    fn record(&self) -> Done<Vec<Value>> {
        let sql = format!("SELECT {} FROM lease WHERE election = '{ELECTION}'", RECORD.join(", "));
        let read = |row: &rusqlite::Row<'_>| (0..RECORD.len()).map(|at| row.get(at)).collect();
        self.open()?.query_row(&sql, [], read).map_err(first_line)
    }
}

impl Azure {
    /// A client for the lease's blob that bypasses the proxies.
    fn blob(&self) -> BlobClient {
        let SocketAddr::V4(address) = self.azurite.address() else { unreachable!("it listens on 127.0.0.1") };
        let location = CloudLocation::Emulator { address: address.ip().to_string(), port: address.port() };
        let builder = ClientBuilder::with_location(location, StorageCredentials::emulator());
        builder.container_client(CONTAINER).blob_client(format!("{ELECTION}/lease"))
    }

    fn ask<T>(&self, request: impl IntoFuture<Output = azure_core::Result<T>>) -> Done<T> {
        self.runtime.block_on(async {
            match tokio::time::timeout(ANSWER_TIMEOUT, request.into_future()).await {
                Ok(answer) => answer.map_err(first_line),
                Err(_) => Err(format!("the emulator has not answered within {ANSWER_TIMEOUT:?}")),
            }
        })
    }

    fn record(&self) -> Done<HashMap<String, String>> {
        let read = self.ask(self.blob().get_properties())?;
        let metadata = read.blob.metadata.unwrap_or_default();
        Ok(metadata.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect())
    }
}

const RECORD: [&str; 8] = ["term", "node", "incarnation", "since", "lease", "module", "outcome", "failures"];
const TERM: usize = 0;
const NODE: usize = 1;
const OUTCOME: usize = 6;

fn middle<T: Clone>(earlier: &[T]) -> Option<T> {
    earlier.get(earlier.len() / 2).cloned()
}

fn first_line(error: impl std::fmt::Display) -> String {
    // Azure's errors contain the whole response, so keep only the first line.
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn election() -> ElectionName {
    ElectionName::new(ELECTION).expect("a name")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
