//! Measures the cost of a guest's state: the time that a commit takes, compared with a conditional write of the same
//! size, and the time that a read takes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use baton_election::{ElectionName, Version};
use baton_store::{AzureStore, LeaseStore};
use baton_store::{ObjectStore, VersionedObject};
use bytes::Bytes;
use wasmtime::error::Context as _;

use crate::azurite::Azurite;
use crate::baseline::milliseconds;
use crate::instances::Baton;
use crate::samples::Samples;
use crate::table::{Bar, Row, Unit};

/// Each round makes `commits` conditional writes and as many commits.
pub struct Effort {
    pub rounds: usize,
    pub commits: usize,
}

/// Size of the stored state, in bytes. The guest keeps one value of 100 bytes.
const STORED: usize = 164;

pub async fn measure(keeper: &Path, effort: &Effort) -> wasmtime::Result<Vec<Row>> {
    let azurite = Azurite::start();
    let store = Arc::new(AzureStore::emulator(&azurite.address().to_string(), "bench")?);
    store.create().await?;
    let mut raw = Writes::begin(store.clone(), "raw").await?;
    let mut baton = Baton::new(keeper)?;
    let mut reads = Samples::default();
    reads.extend(times(&baton, "time-reads", 1000).await?.into_iter().map(|read| read * 1000.0));

    baton.launcher.states = store;
    let (mut writes, mut commits) = (Samples::default(), Samples::default());
    for _ in 0..effort.rounds {
        for _ in 0..effort.commits {
            writes.push(raw.write().await?);
        }
        commits.extend(times(&baton, "time-commits", effort.commits).await?);
    }
    Ok(vec![
        Row::new("a commit, on Azurite", Unit::Ms, commits)
            .bar(Bar::Ratio(1.3))
            .beside("one conditional write", writes.median()),
        Row::new("a read from state", Unit::Us, reads).bar(Bar::Median(2.0)),
    ])
}

/// Conditional writes to a store, each based on the previous write and as large as a commit. Each write takes one round
/// trip, so its time is the yardstick for operations on state.
pub struct Writes {
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    version: Version,
}

impl Writes {
    pub async fn begin(store: Arc<dyn ObjectStore>, election: &str) -> wasmtime::Result<Self> {
        let election = ElectionName::new(election)?;
        let version = store.write(VersionedObject::State, &election, None, content()).await?;
        Ok(Self { store, election, version })
    }

    /// Makes the next write. Returns the time that it took, in milliseconds.
    pub async fn write(&mut self) -> wasmtime::Result<f64> {
        let content = content();
        // The server may have closed the idle connection. Read first, so that the measured time does not include
        // opening a new connection.
        let _ = self.store.read(VersionedObject::State, &self.election, None).await;
        let begin = Instant::now();
        self.version = self.store.write(VersionedObject::State, &self.election, Some(&self.version), content).await?;
        Ok(milliseconds(begin.elapsed()))
    }
}

fn content() -> Bytes {
    Bytes::from(vec![7; STORED])
}

/// Runs a guest that measures `times` operations. Returns the time of each operation, in milliseconds.
async fn times(baton: &Baton, behaviour: &str, times: usize) -> wasmtime::Result<Vec<f64>> {
    let times = times.to_string();
    let line = baton.last_line(&[("BEHAVIOUR", behaviour), ("TIMES", &times)]).await?;
    let nanoseconds = line.split(' ').map(str::parse::<f64>).collect::<Result<Vec<_>, _>>();
    Ok(nanoseconds.with_context(|| line.clone())?.into_iter().map(|nanoseconds| nanoseconds / 1e6).collect())
}
