//! Tests of the store in memory: the conformance suite, and the faults that tests can inject.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::{LeaseState, Op, Reply, StoreError, Version};
use baton_store::Store;
use baton_store::memory::{Fault, MemoryStore};
use baton_store::{ModuleStore as _, Reading};

use super::suite::{self, Backend, StoreBench, a, b, job, record, text};

struct Memory {
    store: MemoryStore,
    milliseconds: Arc<AtomicU64>,
}

fn memory() -> Memory {
    let milliseconds = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&milliseconds);
    Memory {
        store: MemoryStore::new(Arc::new(move || Duration::from_millis(clock.load(Ordering::SeqCst)))),
        milliseconds,
    }
}

#[async_trait]
impl Backend for Memory {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), StoreError> {
        self.store.break_lease(&job(), period)
    }

    async fn delete(&self) {
        self.store.delete(&job());
    }

    async fn wait_out(&self, time: Duration) {
        self.milliseconds.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    fn set_time(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.milliseconds.load(Ordering::SeqCst)))
    }
}

#[tokio::test]
async fn passes_the_suite() {
    suite::run(async || memory()).await;
}

#[tokio::test]
async fn faults_apply_to_writes_of_control_objects() {
    let store = memory().store;
    let job = job();
    let unknown =
        |answer: Result<Version, StoreError>| assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");

    store.fail_next(Fault::LoseRequest);
    unknown(store.write_control(&job, None, text("a")).await);
    assert_eq!(store.read_control(&job, None).await, Ok(Reading::Nothing));

    store.fail_next(Fault::LoseAnswer);
    unknown(store.write_control(&job, None, text("a")).await);
    let Ok(Reading::Found(version, _)) = store.read_control(&job, None).await else { panic!("it was carried out") };

    store.fail_next(Fault::Hold);
    unknown(store.write_control(&job, Some(&version), text("late")).await);
    let next = store.write_control(&job, Some(&version), text("b")).await.unwrap();
    assert_eq!(store.deliver_writes(), [Err(StoreError::Conflict)]);
    assert_eq!(store.read_control(&job, Some(&next)).await, Ok(Reading::Unchanged));
}

#[tokio::test]
async fn faults_apply_to_lease_requests() {
    let memory = memory();
    let store = memory.store.clone();
    let bench = StoreBench::new(memory);
    let version = bench.create().await.unwrap();
    let acquire = || Op::Acquire { id: a(), length: bench.length, version: version.clone(), instead_of: None };
    let unknown =
        |answer: Result<Reply, StoreError>| assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");

    store.fail_next(Fault::LoseRequest);
    unknown(bench.ask(acquire()).await);
    assert_eq!(bench.see().await.unwrap().lease, LeaseState::Free);

    store.fail_next(Fault::LoseAnswer);
    unknown(bench.ask(acquire()).await);
    assert_eq!(bench.acquire(b()).await, Err(StoreError::Held));

    store.fail_next(Fault::Hold);
    unknown(bench.write(a(), &version, 1).await);
    assert_eq!(bench.see().await.unwrap().record, Some(record(0)));
    let told = store.deliver();
    assert!(matches!(told[..], [Ok(Reply::Version(_))]), "{told:?}");
    assert_eq!(bench.see().await.unwrap().record, Some(record(1)));
    assert_eq!(store.deliver(), []);
}
