//! Followers that share one store. The store fails on demand.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use baton_election::ModuleVersion;
use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::super::*;
use crate::{EditError, Publication, edit_versions};
use baton_runtime::{Engine, Module};
use baton_store::MemoryStore;
use baton_store::{Intercept, Interceptor, PlainObject, StoreAnswer, StoreCall};

/// A timeout that keeps a test from hanging. No test depends on its length.
const GUARD: Duration = Duration::from_secs(60);

const PACE: Pace = Pace {
    poll: (Duration::from_millis(5), Duration::from_millis(15)),
    outage: Duration::from_millis(30),
    refused: (Duration::from_millis(20), Duration::from_millis(40)),
};

pub fn name() -> ElectionName {
    ElectionName::new("fleet").unwrap()
}

pub fn version(digest: Digest, serial: u64) -> ModuleVersion {
    ModuleVersion { digest: digest.to_string(), serial }
}

pub fn rejected(reason: &str) -> Verdict {
    Verdict::Rejected { reason: reason.to_owned() }
}

/// Each number results in a different component.
pub fn component(number: u32) -> Bytes {
    let text = format!(
        r#"(component
            (core module $code (func (export "main") (result i32) i32.const {number} drop i32.const 0))
            (core instance $code (instantiate $code))
            (func $main (result (result)) (canon lift (core func $code "main")))
            (instance $main (export "run" (func $main)))
            (export "wasi:cli/run@0.2.0" (instance $main)))"#
    );
    wat::parse_str(text).unwrap().into()
}

pub struct Fleet {
    pub store: Arc<Intercept<MemoryStore, Faults>>,
    pub election: ElectionName,
    pub engine: Engine,
    pub slow: Arc<Mutex<Option<Digest>>>,
    pub is_busy: Arc<AtomicBool>,
}

impl Fleet {
    pub fn new() -> Self {
        let inner = MemoryStore::new(Arc::new(|| Duration::ZERO));
        let store = Intercept { store: Arc::new(inner), interceptor: Faults::default() };
        let (slow, is_busy) = Default::default();
        Self { store: Arc::new(store), election: name(), engine: Engine::new().unwrap(), slow, is_busy }
    }

    pub async fn push(&self, number: u32) -> Digest {
        self.push_bytes(component(number)).await
    }

    pub async fn push_bytes(&self, bytes: Bytes) -> Digest {
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        self.store.store.put_module(&digest, bytes).await.unwrap();
        self.name(digest, size).await;
        digest
    }

    /// Pushes a module whose compilation never finishes.
    pub async fn slow(&self, number: u32) -> Digest {
        *self.slow.lock().unwrap() = Some(Digest::of(&component(number)));
        self.push(number).await
    }

    /// Makes a module the current version, even if the store does not contain the module. The first version gets serial
    /// 1.
    pub async fn name(&self, digest: Digest, size: u64) {
        // If there already is a list, the store refuses this write.
        let _ = self.store.store.write_control(&self.election, None, VersionList::default().encode()).await;
        let publication = Publication { digest, size, by: "me".into(), at: "now".into(), signature: None };
        edit_versions(&*self.store.store, &self.election, |control| {
            Ok::<_, EditError>(control.push(publication.clone())?)
        })
        .await
        .unwrap();
    }

    pub async fn control(&self, test: impl Fn(&VersionList) -> bool) {
        until("the control object", async || {
            match self.store.store.read_control(&self.election, None).await.unwrap() {
                Reading::Found(_, content) => test(&VersionList::decode(&content).unwrap()),
                _ => false,
            }
        })
        .await;
    }

    pub fn follower(&self, node: &str, source: Option<Box<dyn Source>>) -> (Follower, Node) {
        let said = Kept::default();
        let prepares = Arc::new(AtomicU32::new(0));
        let preparer = InProcess {
            engine: self.engine.clone(),
            slow: Arc::clone(&self.slow),
            is_busy: Arc::clone(&self.is_busy),
            prepares: Arc::clone(&prepares),
        };
        let (follower, supply, judge) = Follower::new(FollowerConfig {
            notifier: ChangeNotifier::default(),
            election: self.election.clone(),
            node: node.to_owned(),
            name: if source.is_some() { "x.wasm".to_owned() } else { "store://fleet".to_owned() },
            source,
            store: Arc::clone(&self.store) as Arc<dyn ObjectStore>,
            preparer: Arc::new(preparer),
            reports: Arc::new(said.clone()),
            pace: PACE,
        });
        let holds = follower.holds();
        (follower, Node { supply, holds, judge: Some(judge), said, running: None, prepares })
    }

    pub fn node(&self, name: &str) -> Node {
        let (follower, mut node) = self.follower(name, None);
        node.running = Some(tokio::spawn(follower.run()));
        node
    }

    pub async fn node_with_file(&self, name: &str, bytes: Bytes) -> (Node, File) {
        let file = File::default();
        let digest = file.becomes(bytes);
        let (mut follower, mut node) = self.follower(name, Some(Box::new(file.clone())));
        assert_eq!(follower.load().await.unwrap(), Some(digest));
        node.running = Some(tokio::spawn(follower.run()));
        (node, file)
    }
}

pub struct Node {
    pub supply: watch::Receiver<Supply>,
    pub judge: Option<mpsc::UnboundedSender<Judgement>>,
    holds: watch::Receiver<Vec<Digest>>,
    said: Kept,
    pub running: Option<JoinHandle<()>>,
    pub prepares: Arc<AtomicU32>,
}

impl Node {
    pub async fn supplied(&mut self, current: Option<(Digest, u64)>, fallback: Option<(Digest, u64)>) {
        let wanted = [current, fallback].map(|it| it.map(|(digest, serial)| version(digest, serial)));
        let waited = timeout(GUARD, self.supply.wait_for(|supply| supply.versions() == wanted)).await.map(drop);
        if waited.is_err() {
            panic!("{wanted:?} was never supplied, but {:?}; {}", self.supply.borrow().versions(), self.said.text());
        }
    }

    pub async fn holds(&mut self, wanted: &[Digest]) {
        timeout(GUARD, self.holds.wait_for(|holds| holds == wanted)).await.unwrap().unwrap();
    }

    pub async fn supplied_current(&mut self, current: (Digest, u64)) {
        let wanted = version(current.0, current.1);
        let is_current = |supply: &Supply| supply.current.as_ref().is_some_and(|it| it.version() == wanted);
        timeout(GUARD, self.supply.wait_for(is_current)).await.unwrap().unwrap();
    }

    pub fn judge(&self, digest: Digest, serial: u64, verdict: Verdict) {
        let judgement = Judgement { version: version(digest, serial), term: 1, verdict };
        self.judge.as_ref().unwrap().send(judgement).unwrap();
    }

    pub async fn says(&self, text: &str) -> String {
        until(text, async || self.said.text().contains(text)).await;
        self.said.text()
    }

    pub async fn end(&mut self) -> String {
        drop(self.judge.take());
        timeout(GUARD, self.running.take().unwrap()).await.expect("a follower ends").unwrap();
        self.said.text()
    }
}

async fn until(what: &str, mut test: impl AsyncFnMut() -> bool) {
    let waited = timeout(GUARD, async {
        while !test().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain for {what}");
}

#[derive(Clone, Default)]
pub struct File {
    next: Arc<Mutex<VecDeque<Result<Offer, SourceError>>>>,
    changed: Arc<Notify>,
}

impl File {
    pub fn becomes(&self, bytes: Bytes) -> Digest {
        let digest = Digest::of(&bytes);
        self.next.lock().unwrap().push_back(Ok(Offer { bytes, signature: None }));
        self.changed.notify_one();
        digest
    }

    pub fn fails(&self, error: SourceError) {
        self.next.lock().unwrap().push_back(Err(error));
        self.changed.notify_one();
    }
}

#[async_trait]
impl Source for File {
    async fn next(&mut self) -> Result<Offer, SourceError> {
        loop {
            let changed = self.changed.notified();
            if let Some(next) = self.next.lock().unwrap().pop_front() {
                return next;
            }
            changed.await;
        }
    }
}

/// Compiles in this process: unit tests cannot run the compiler as a separate program.
struct InProcess {
    engine: Engine,
    slow: Arc<Mutex<Option<Digest>>>,
    is_busy: Arc<AtomicBool>,
    prepares: Arc<AtomicU32>,
}

#[async_trait]
impl Prepare for InProcess {
    async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError> {
        self.prepares.fetch_add(1, Ordering::Relaxed);
        if *self.slow.lock().unwrap() == Some(Digest::of(&offer.bytes)) {
            std::future::pending::<()>().await;
        }
        if self.is_busy.load(Ordering::Relaxed) {
            return Err(PrepareError::Starved { within: Duration::from_secs(60), longest: Duration::from_secs(600) });
        }
        Module::precheck("it", &offer.bytes)?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.wasm");
        std::fs::write(&path, &offer.bytes).unwrap();
        Ok(Preparation { module: Module::load(&self.engine, &path)?, cached: false, took: Duration::ZERO })
    }
}

#[derive(Default)]
pub struct Faults {
    pub is_down: AtomicBool,
    pub has_no_modules: AtomicBool,
    pub modules_are_slow: AtomicBool,
    pub hangs: AtomicBool,
    /// Delays the responses to reads. As soon as a response is ready, `has_read` is set.
    pub answers_late: AtomicBool,
    pub has_read: AtomicBool,
}

#[async_trait]
impl Interceptor<MemoryStore> for Faults {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        let is = |fault: &AtomicBool| fault.load(Ordering::Relaxed);
        let pause = || tokio::time::sleep(Duration::from_millis(1));
        let gets_module = matches!(call, StoreCall::Get(PlainObject::Module(_), _));
        let reads = matches!(call, StoreCall::Read { .. });
        while gets_module && is(&self.modules_are_slow) {
            pause().await;
        }
        if is(&self.hangs) {
            std::future::pending::<()>().await;
        }
        if is(&self.is_down) || gets_module && is(&self.has_no_modules) {
            return Err(StoreError::Unknown("an outage".to_owned()));
        }
        let answer = call.send(store).await;
        while reads && is(&self.answers_late) {
            self.has_read.store(true, Ordering::Relaxed);
            pause().await;
        }
        answer
    }
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<String>>);

impl FollowerReportSink for Kept {
    fn report(&self, report: FollowerReport) {
        *self.0.lock().unwrap() += &format!("{report:?}\n");
    }
}

impl Kept {
    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}
