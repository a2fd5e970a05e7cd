//! A backend of your own, and the suite that shows that Baton can depend on it:
//! `cargo run -p baton-store --example own_backend --features conformance`.
//!
//! This one keeps everything in memory and counts its requests. A real one would speak to a server; the suite tests how
//! it reports what became of a request.
#![allow(clippy::expect_used, reason = "an example ends at the first mistake")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{ElectionName, Op, Record, Reply, StoreError, Version};
use baton_store::conformance::suite::{Backend, job};
use baton_store::conformance::{modules, suite, versioned};
use baton_store::{
    LeaseStore, Listed, Listing, MemoryStore, ObjectStore, OperatorStore, PlainObject, Reading, Store, VersionedObject,
};
use bytes::Bytes;
use time::OffsetDateTime;

/// The store. Clones are handles of the same store.
#[derive(Clone)]
struct Counting {
    inner: MemoryStore,
    asked: Arc<AtomicU64>,
}

#[async_trait]
impl LeaseStore for Counting {
    async fn request(&self, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.inner.request(election, op).await
    }

    async fn break_now(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.inner.break_now(election).await
    }

    async fn elections(&self) -> Result<Vec<ElectionName>, StoreError> {
        self.inner.elections().await
    }

    async fn create(&self) -> Result<(), StoreError> {
        LeaseStore::create(&self.inner).await
    }

    fn lease_range(&self) -> (Duration, Duration) {
        self.inner.lease_range()
    }
}

#[async_trait]
impl ObjectStore for Counting {
    async fn read(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        known: Option<&Version>,
    ) -> Result<Reading, StoreError> {
        self.inner.read(object, election, known).await
    }

    async fn write(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, StoreError> {
        self.inner.write(object, election, version, content).await
    }

    async fn delete(
        &self,
        object: VersionedObject,
        election: &ElectionName,
        version: &Version,
    ) -> Result<(), StoreError> {
        ObjectStore::delete(&self.inner, object, election, version).await
    }

    async fn elections_with(&self, object: VersionedObject) -> Result<Vec<ElectionName>, StoreError> {
        self.inner.elections_with(object).await
    }

    async fn put(&self, object: &PlainObject, content: Bytes) -> Result<(), StoreError> {
        self.inner.put(object, content).await
    }

    async fn get(&self, object: &PlainObject, limit: u64) -> Result<Option<Bytes>, StoreError> {
        self.inner.get(object, limit).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Listed>, StoreError> {
        self.inner.list(listing).await
    }

    async fn remove(&self, object: &PlainObject, put_until: Option<OffsetDateTime>) -> Result<bool, StoreError> {
        self.inner.remove(object, put_until).await
    }
}

#[async_trait]
impl OperatorStore for Counting {
    async fn overwrite(&self, election: &ElectionName, record: Record) -> Result<Version, StoreError> {
        self.inner.overwrite(election, record).await
    }

    async fn remove_election(&self, election: &ElectionName) -> Result<(), StoreError> {
        self.inner.remove_election(election).await
    }
}

/// The suite's access to the store, and to its time.
struct Tested {
    store: Counting,
    milliseconds: Arc<AtomicU64>,
}

impl Tested {
    fn new(asked: &Arc<AtomicU64>) -> Self {
        let milliseconds = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&milliseconds);
        let clock = Arc::new(move || Duration::from_millis(shown.load(Ordering::SeqCst)));
        Self { store: Counting { inner: MemoryStore::new(clock), asked: Arc::clone(asked) }, milliseconds }
    }

    fn let_pass(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).expect("the suite waits for minutes at the most");
        self.milliseconds.fetch_add(milliseconds, Ordering::SeqCst);
    }
}

#[async_trait]
impl Backend for Tested {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), StoreError> {
        self.store.inner.break_lease(&job(), period)
    }

    async fn delete(&self) {
        self.store.inner.delete(&job());
    }

    async fn wait_out(&self, time: Duration) {
        self.let_pass(time);
    }
}

#[tokio::main]
async fn main() {
    let asked = Arc::new(AtomicU64::new(0));
    suite::run(async || Tested::new(&asked)).await;
    let tested = Tested::new(&asked);
    versioned::run(|| Arc::new(tested.store.clone())).await;
    let tested = Tested::new(&asked);
    modules::run(|| Arc::new(tested.store.clone()), async || tested.let_pass(Duration::from_secs(1))).await;
    println!("It passes: {} cases of leases, after {} requests.", suite::CASES.len(), asked.load(Ordering::Relaxed));
}
