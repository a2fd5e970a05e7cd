//! The store in memory: the suite, and its faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use baton::store::LeaseStore;
use baton::store::memory::{Fault, MemoryStore};
use baton_election::{LeaseState, Op, Refusal, Reply};

use super::states;
use super::suite::{self, Backend, Bench, a, b, job, record};

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
    fn open(&self) -> Arc<dyn LeaseStore> {
        Arc::new(self.store.clone())
    }

    async fn break_lease(&self, period: Duration) -> Result<(), Refusal> {
        self.store.break_lease(&job(), period)
    }

    async fn delete(&self) {
        self.store.delete(&job());
    }

    async fn wait_out(&self, time: Duration) {
        self.milliseconds.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn passes_the_suite() {
    suite::run(async || memory()).await;
}

#[tokio::test]
async fn keeps_state() {
    let memory = memory();
    states::run(|| Arc::new(memory.store.clone())).await;
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let memory = memory();
    let store = memory.store.clone();
    let bench = Bench { store: memory.open(), backend: Arc::new(memory) };
    let version = bench.create().await;
    let acquire = || Op::Acquire { id: a(), length: bench.brief(), version: version.clone() };
    let unknown = |answer: Result<Reply, Refusal>| assert!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");

    store.fail_next(Fault::LoseRequest);
    unknown(bench.ask(acquire()).await);
    assert_eq!(bench.see().await.lease, LeaseState::Free);

    store.fail_next(Fault::LoseAnswer);
    unknown(bench.ask(acquire()).await);
    assert_eq!(bench.acquire(b()).await, Err(Refusal::Held));

    store.fail_next(Fault::Hold);
    unknown(bench.write(a(), &version, 1).await);
    assert_eq!(bench.see().await.record, Some(record(0)));
    let told = store.deliver();
    assert!(matches!(told[..], [Ok(Reply::Version(_))]), "{told:?}");
    assert_eq!(bench.see().await.record, Some(record(1)));
    assert_eq!(store.deliver(), []);
}
