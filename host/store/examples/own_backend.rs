//! An example of a custom store backend. The conformance suite tests it. Run it with `cargo run -p baton-store
//! --example own_backend --features conformance`.
//!
//! This backend keeps everything in memory and counts the calls. A real backend would talk to a server. The suite also
//! tests whether a backend reports the outcome of each request correctly.
#![allow(clippy::expect_used, reason = "an example ends at the first mistake")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use baton_election::StoreError;
use baton_store::conformance::suite::{self, Backend, job};
use baton_store::{Intercept, Interceptor, MemoryStore, Store, StoreAnswer, StoreCall};

#[derive(Clone, Default)]
struct Count(Arc<AtomicU64>);

#[async_trait]
impl Interceptor<MemoryStore> for Count {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        call.send(store).await
    }
}

struct Tested {
    inner: Arc<MemoryStore>,
    count: Count,
    milliseconds: Arc<AtomicU64>,
}

impl Tested {
    fn new(count: &Count) -> Self {
        let milliseconds = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&milliseconds);
        let clock = Arc::new(move || Duration::from_millis(shown.load(Ordering::SeqCst)));
        Self { inner: Arc::new(MemoryStore::new(clock)), count: count.clone(), milliseconds }
    }
}

#[async_trait]
impl Backend for Tested {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Intercept { store: Arc::clone(&self.inner), interceptor: self.count.clone() })
    }

    async fn break_lease(&self, period: Duration) -> Result<(), StoreError> {
        self.inner.break_lease(&job(), period)
    }

    async fn delete(&self) {
        self.inner.delete(&job());
    }

    async fn wait_out(&self, time: Duration) {
        let milliseconds = u64::try_from(time.as_millis()).expect("the suite waits for minutes at the most");
        self.milliseconds.fetch_add(milliseconds, Ordering::SeqCst);
    }

    fn set_time(&self) -> Option<Duration> {
        Some(Duration::from_millis(self.milliseconds.load(Ordering::SeqCst)))
    }
}

#[tokio::main]
async fn main() {
    let count = Count::default();
    suite::run(async || Tested::new(&count)).await;
    println!("The store passes the suite, after {} calls.", count.0.load(Ordering::Relaxed));
}
