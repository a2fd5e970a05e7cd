#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use baton_election::ModuleVersion;
use bytes::Bytes;
use time::OffsetDateTime;
use tokio::task::JoinHandle;

use super::*;
use crate::modules::{Announcement, Publication, StoredModule, edit_control};
use crate::node::NodeId;
use crate::runtime::{Engine, Module};
use crate::store::MemoryStore;
use crate::telemetry::{Format, LogWriter, Style};

/// Guards against a hang; nothing is measured by it.
const GUARD: Duration = Duration::from_secs(60);

const PACE: Pace = Pace {
    poll: (Duration::from_millis(5), Duration::from_millis(15)),
    outage: Duration::from_millis(30),
    refused: (Duration::from_millis(20), Duration::from_millis(40)),
};

#[tokio::test]
async fn what_is_pushed_is_ready_everywhere_and_falls_back_until_it_is_good() {
    let stage = Stage::new();
    let mut node = stage.node("a");
    node.says("baton push MODULE stage").await;
    assert!(node.supply.borrow().current.is_none());

    let first = stage.push(1).await;
    node.supplied(Some((first, 1)), None).await;
    node.judge(first, 1, Verdict::Good);
    let second = stage.push(2).await;
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let mut other = stage.node("b");
    other.supplied(Some((second, 2)), Some((first, 1))).await;

    node.judge(second, 2, Verdict::Good);
    node.supplied(Some((second, 2)), None).await;
    other.supplied(Some((second, 2)), None).await;
    stage.control(|control| control.pushed.iter().all(|entry| entry.verdict == Some(Verdict::Good))).await;
    assert_eq!(node.says("module_ready").await.matches("module_ready").count(), 2);
    // What runs is no news if it is pushed again.
    stage.push(2).await;
    stage.push(1).await;
    node.supplied(Some((first, 3)), None).await;
}

#[tokio::test]
async fn a_rejection_holds_at_once_and_is_written_through_an_outage_for_all() {
    let stage = Stage::new();
    let (first, second) = (stage.push(1).await, stage.push(2).await);
    let mut node = stage.node("a");
    let mut other = stage.node("b");
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    other.supplied(Some((second, 2)), Some((first, 1))).await;

    stage.store.is_down.store(true, Ordering::Relaxed);
    node.says("source_unreachable").await;
    node.judge(second, 2, rejected("it trapped"));
    node.supplied(Some((first, 1)), None).await;
    node.says("is not written yet").await;
    node.judge(first, 1, Verdict::Good);
    stage.store.is_down.store(false, Ordering::Relaxed);
    other.supplied(Some((first, 1)), None).await;
    let said = other.says("it trapped").await;
    assert!(said.contains(&format!(r#""instead":"{first}""#)), "{said}");
    stage.control(|control| control.current().is_some_and(|it| it.verdict == Some(Verdict::Good))).await;
    node.says("source_recovered").await;

    // Pushed once more it is another version, of which nothing is known.
    stage.push(1).await;
    stage.push(2).await;
    for node in [&mut node, &mut other] {
        node.supplied(Some((second, 3)), Some((first, 1))).await;
    }
    // A judgement of the former one is none of this.
    node.judge(second, 2, rejected("late"));
    stage.push(3).await;
    let log = node.end().await;
    assert_eq!(log.matches("source_unreachable").count(), 1, "{log}");
    assert_eq!(log.matches("is not written yet").count(), 1, "{log}");
    assert!(!log.contains(r#""event":"rejected""#), "who judges says so itself: {log}");
    stage.control(|control| control.pushed.iter().all(|entry| entry.rejection().is_none())).await;
}

#[tokio::test]
async fn what_cannot_be_prepared_is_said_once_and_takes_nothing_away() {
    let stage = Stage::new();
    let first = stage.push(1).await;
    let mut node = stage.node("a");
    node.supplied(Some((first, 1)), None).await;

    let not_wasm = stage.push_bytes(Bytes::from_static(b"not wasm")).await;
    let said = node.says("module_refused").await;
    assert!(said.contains(&not_wasm.to_string()) && said.contains("not WebAssembly"), "{said}");
    let missing = Digest::of(&component(7));
    stage.name(missing, 1).await;
    node.says("the store does not have it").await;
    let damaged = Digest::of(&component(8));
    stage.store.inner.put_module(&damaged, component(9)).await.unwrap();
    stage.name(damaged, 1).await;
    node.says("what the store has under its digest is another").await;
    // A node that has nothing ready does not wait for them either.
    let mut fresh = stage.node("b");
    fresh.supplied(Some((first, 1)), None).await;
    assert_eq!(node.supply.borrow().current.as_ref().unwrap().version, version(first, 1));

    // They are tried again.
    stage.store.inner.put_module(&missing, component(7)).await.unwrap();
    for node in [&mut node, &mut fresh] {
        node.supplied(Some((missing, 3)), Some((first, 1))).await;
    }
    let log = node.end().await;
    assert_eq!(log.matches("module_refused").count(), 3, "{log}");
}

#[tokio::test]
async fn a_store_that_has_no_bytes_to_give_is_waited_for() {
    let stage = Stage::new();
    let first = stage.push(1).await;
    stage.store.has_no_modules.store(true, Ordering::Relaxed);
    let mut node = stage.node("a");
    node.says("source_unreachable").await;
    let second = stage.push(2).await;
    stage.store.has_no_modules.store(false, Ordering::Relaxed);
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let log = node.end().await;
    assert_eq!((log.matches("unreachable").count(), log.matches("recovered").count()), (1, 1), "{log}");
    assert!(!log.contains("module_refused"), "{log}");
}

#[tokio::test]
async fn a_newer_push_does_not_wait_for_one_that_is_still_prepared() {
    let stage = Stage::new();
    let first = stage.push(1).await;
    let mut node = stage.node("a");
    node.supplied(Some((first, 1)), None).await;
    let slow = stage.slow(2).await;
    while node.prepares.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let third = stage.push(3).await;
    // The slow one is to be fallen back on, and never ready: the next that is takes its place.
    node.supplied(Some((third, 3)), Some((first, 1))).await;
    assert_ne!(slow, third);
    node.end().await;
}

#[tokio::test]
async fn a_damaged_control_object_changes_nothing_and_is_said_once() {
    let stage = Stage::new();
    let first = stage.push(1).await;
    let mut node = stage.node("a");
    node.supplied(Some((first, 1)), None).await;
    let Reading::Found(version, good) = stage.store.inner.read_control(&stage.election, None).await.unwrap() else {
        panic!("it was pushed");
    };
    let write = |version, content: Bytes| {
        let store = stage.store.inner.clone();
        async move { store.write_control(&name(), Some(&version), content).await.unwrap() }
    };
    let version = write(version, Bytes::from_static(b"{}")).await;
    node.says("damaged").await;
    let version = write(version, Bytes::from_static(br#"{"format":2}"#)).await;
    node.says("format 2").await;
    assert!(node.supply.borrow().current.is_some());
    write(version, good).await;
    let second = stage.push(2).await;
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    let log = node.end().await;
    assert_eq!(log.matches(r#""event":"error""#).count(), 2, "{log}");
}

#[tokio::test]
async fn a_file_falls_back_on_what_it_was_before() {
    let stage = Stage::new();
    let (mut node, file) = stage.node_with_file("a", component(1)).await;
    let first = Digest::of(&component(1));
    node.supplied(Some((first, 1)), None).await;
    node.judge(first, 1, Verdict::Good);
    let second = file.becomes(component(2));
    node.supplied(Some((second, 2)), Some((first, 1))).await;
    node.judge(second, 2, Verdict::Good);
    node.supplied(Some((second, 2)), None).await;

    file.becomes(Bytes::from_static(b"half a fi"));
    node.says("not WebAssembly").await;
    file.fails(SourceError::Unusable("there is no such file".to_owned()));
    node.says("there is no such file").await;
    assert_eq!(node.supply.borrow().current.as_ref().unwrap().version, version(second, 2));

    let third = file.becomes(component(3));
    node.supplied(Some((third, 4)), Some((second, 2))).await;
    node.judge(third, 4, rejected("it was fatal"));
    node.supplied(Some((second, 2)), None).await;
    stage.control(|control| control.unpushed.iter().any(|entry| entry.digest == third && entry.size > 0)).await;

    // On another node that file is not run, and is as soon as anything is pushed.
    let (mut other, _file) = stage.node_with_file("b", component(3)).await;
    let said = other.says("rejected").await;
    assert!(said.contains("it was fatal") && said.contains(r#""instead":null"#), "{said}");
    assert!(other.supply.borrow().current.is_none());
    stage.push(4).await;
    other.supplied(Some((third, 2)), None).await;
    node.supplied(Some((third, 5)), Some((second, 2))).await;
    let log = other.end().await;
    assert_eq!(log.matches(r#""event":"rejected""#).count(), 1, "{log}");
}

#[tokio::test]
async fn a_file_that_cannot_run_is_an_error_to_whoever_starts_with_it() {
    let stage = Stage::new();
    for (bytes, needs) in [(&b"not wasm"[..], "x.wasm: the module"), (b"", "empty")] {
        let file = File::default();
        file.becomes(Bytes::from_static(bytes));
        let (mut follower, ..) = stage.follower("a", Some(Box::new(file)));
        let error = follower.load().await.unwrap_err().to_string();
        assert!(error.contains(needs), "{error}");
    }
}

#[tokio::test]
async fn a_file_needs_no_store_that_answers() {
    let stage = Stage::new();
    stage.store.is_down.store(true, Ordering::Relaxed);
    let (mut node, _file) = stage.node_with_file("a", component(1)).await;
    node.supplied(Some((Digest::of(&component(1)), 1)), None).await;
    node.end().await;
}

#[tokio::test]
async fn a_node_says_what_it_has_and_takes_it_back() {
    let stage = Stage::new();
    let (first, second) = (stage.push(1).await, stage.push(2).await);
    let mut node = stage.node("a");
    let mut held = [first, second];
    held.sort_unstable();
    stage.announced("a", |said| said.holds == held && said.runs.is_none()).await;
    node.runs.send_replace(Some(second.to_string()));
    stage.announced("a", |said| said.runs == Some(second)).await;
    node.judge(second, 2, Verdict::Good);
    stage.announced("a", |said| said.holds == [second]).await;
    node.end().await;
    assert!(stage.store.inner.announcements(&stage.election).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_was_judged_last_is_written_before_the_end_which_waits_for_no_store() {
    let stage = Stage::new();
    stage.push(1).await;
    let second = stage.push(2).await;
    let mut node = stage.node("a");
    node.supplied_current((second, 2)).await;
    node.judge(second, 2, rejected("at the very end"));
    node.end().await;
    stage.control(|control| control.pushed.iter().any(|entry| entry.rejection() == Some("at the very end"))).await;

    let mut hung = stage.node("b");
    hung.supply.changed().await.unwrap();
    stage.store.hangs.store(true, Ordering::Relaxed);
    let current = hung.supply.borrow().current.as_ref().unwrap().version.clone();
    let judgement = Judgement { version: current, term: 1, verdict: Verdict::Good };
    hung.judge.as_ref().unwrap().send(judgement).unwrap();
    hung.end().await;
}

fn name() -> ElectionName {
    ElectionName::new("stage").unwrap()
}

fn version(digest: Digest, serial: u64) -> ModuleVersion {
    ModuleVersion { digest: digest.to_string(), serial }
}

fn rejected(reason: &str) -> Verdict {
    Verdict::Rejected { reason: reason.to_owned(), node: String::new(), at: String::new() }
}

/// A command that does nothing; each number makes another.
fn component(number: u32) -> Bytes {
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

/// A store with followers on it.
struct Stage {
    store: Arc<Faulty>,
    election: ElectionName,
    engine: Engine,
    slow: Arc<Mutex<Option<Digest>>>,
}

impl Stage {
    fn new() -> Self {
        let inner = MemoryStore::new(Arc::new(|| Duration::ZERO));
        let store = Faulty {
            inner,
            is_down: AtomicBool::default(),
            has_no_modules: AtomicBool::default(),
            hangs: AtomicBool::default(),
        };
        let slow = Arc::default();
        Self { store: Arc::new(store), election: name(), engine: Engine::start().unwrap(), slow }
    }

    async fn push(&self, number: u32) -> Digest {
        self.push_bytes(component(number)).await
    }

    async fn push_bytes(&self, bytes: Bytes) -> Digest {
        let (digest, size) = (Digest::of(&bytes), bytes.len() as u64);
        self.store.inner.put_module(&digest, bytes).await.unwrap();
        self.name(digest, size).await;
        digest
    }

    /// A push whose compilation never ends.
    async fn slow(&self, number: u32) -> Digest {
        *self.slow.lock().unwrap() = Some(Digest::of(&component(number)));
        self.push(number).await
    }

    /// Makes it the current version, whether it is there or not.
    async fn name(&self, digest: Digest, size: u64) {
        let publication = Publication { digest, size, by: "me".into(), at: "now".into(), signature: None };
        edit_control(&self.store.inner, &self.election, |control| {
            Ok::<_, super::super::EditError>(control.push(publication.clone())?)
        })
        .await
        .unwrap();
    }

    /// Waits until the control object passes.
    async fn control(&self, test: impl Fn(&Control) -> bool) {
        until("the control object", async || {
            match self.store.inner.read_control(&self.election, None).await.unwrap() {
                Reading::Found(_, content) => test(&Control::decode(&content).unwrap()),
                _ => false,
            }
        })
        .await;
    }

    /// Waits until what a node has announced passes.
    async fn announced(&self, node: &str, test: impl Fn(&Announcement) -> bool) {
        until("the announcement", async || {
            let said: BTreeMap<_, _> =
                self.store.inner.announcements(&self.election).await.unwrap().into_iter().collect();
            said.get(node).is_some_and(|said| test(&Announcement::decode(said).unwrap()))
        })
        .await;
    }

    fn follower(&self, node: &str, source: Option<Box<dyn Source>>) -> (Follower, Node) {
        let (runs, running) = watch::channel(None);
        let kept = Kept::default();
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let (log, writer) = Log::start(style, &NodeId::new(node).unwrap(), Box::new(kept.clone())).unwrap();
        let prepares = Arc::new(AtomicU32::new(0));
        let preparer =
            InProcess { engine: self.engine.clone(), slow: Arc::clone(&self.slow), prepares: Arc::clone(&prepares) };
        let (follower, supply, judge) = Follower::new(Following {
            election: self.election.clone(),
            node: node.to_owned(),
            incarnation: "1".to_owned(),
            name: if source.is_some() { "x.wasm".to_owned() } else { "store://stage".to_owned() },
            source,
            store: Arc::clone(&self.store) as Arc<dyn ModuleStore>,
            preparer: Arc::new(preparer),
            runs: running,
            log,
            pace: PACE,
        });
        (follower, Node { supply, judge: Some(judge), runs, kept, writer: Some(writer), running: None, prepares })
    }

    fn node(&self, name: &str) -> Node {
        let (follower, mut node) = self.follower(name, None);
        node.running = Some(tokio::spawn(follower.run()));
        node
    }

    async fn node_with_file(&self, name: &str, bytes: Bytes) -> (Node, File) {
        let file = File::default();
        let digest = file.becomes(bytes);
        let (mut follower, mut node) = self.follower(name, Some(Box::new(file.clone())));
        assert_eq!(follower.load().await.unwrap(), Some(digest));
        node.running = Some(tokio::spawn(follower.run()));
        (node, file)
    }
}

/// A running follower, seen from its supervisor.
struct Node {
    supply: watch::Receiver<Supply>,
    judge: Option<mpsc::UnboundedSender<Judgement>>,
    runs: watch::Sender<Option<String>>,
    kept: Kept,
    writer: Option<LogWriter>,
    running: Option<JoinHandle<()>>,
    prepares: Arc<AtomicU32>,
}

impl Node {
    async fn supplied(&mut self, current: Option<(Digest, u64)>, fallback: Option<(Digest, u64)>) {
        let wanted = [current, fallback].map(|it| it.map(|(digest, serial)| version(digest, serial)));
        let versions = |supply: &Supply| {
            [&supply.current, &supply.fallback].map(|prepared| prepared.as_ref().map(|it| it.version.clone()))
        };
        let waited = timeout(GUARD, self.supply.wait_for(|supply| versions(supply) == wanted)).await.map(drop);
        if waited.is_err() {
            panic!("{wanted:?} was never supplied, but {:?}; {}", versions(&self.supply.borrow()), self.kept.text());
        }
        // The code is that of the version.
        let supply = self.supply.borrow();
        for prepared in [&supply.current, &supply.fallback].into_iter().flatten() {
            assert_eq!(prepared.module.digest(), prepared.version.digest);
        }
    }

    async fn supplied_current(&mut self, current: (Digest, u64)) {
        let wanted = version(current.0, current.1);
        let is_current = |supply: &Supply| supply.current.as_ref().is_some_and(|it| it.version == wanted);
        timeout(GUARD, self.supply.wait_for(is_current)).await.unwrap().unwrap();
    }

    fn judge(&self, digest: Digest, serial: u64, verdict: Verdict) {
        let judgement = Judgement { version: version(digest, serial), term: 1, verdict };
        self.judge.as_ref().unwrap().send(judgement).unwrap();
    }

    /// Waits until the log has that, and returns it.
    async fn says(&self, text: &str) -> String {
        until(text, async || self.kept.text().contains(text)).await;
        self.kept.text()
    }

    /// Ends in order, and returns the log.
    async fn end(&mut self) -> String {
        drop(self.judge.take());
        timeout(GUARD, self.running.take().unwrap()).await.expect("a follower ends").unwrap();
        let writer = self.writer.take().unwrap();
        assert!(tokio::task::spawn_blocking(move || writer.shutdown(GUARD)).await.unwrap());
        self.kept.text()
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

/// A file that the test replaces.
#[derive(Clone, Default)]
struct File {
    next: Arc<Mutex<std::collections::VecDeque<Result<Offer, SourceError>>>>,
    changed: Arc<tokio::sync::Notify>,
}

impl File {
    fn becomes(&self, bytes: Bytes) -> Digest {
        let digest = Digest::of(&bytes);
        self.next.lock().unwrap().push_back(Ok(Offer { bytes, signature: None }));
        self.changed.notify_one();
        digest
    }

    fn fails(&self, error: SourceError) {
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

/// Compiles in this process: the real compiler is a program, which unit tests do not have.
struct InProcess {
    engine: Engine,
    slow: Arc<Mutex<Option<Digest>>>,
    prepares: Arc<AtomicU32>,
}

#[async_trait]
impl Prepare for InProcess {
    async fn prepare(&self, offer: &Offer) -> Result<Preparation, PrepareError> {
        self.prepares.fetch_add(1, Ordering::Relaxed);
        if *self.slow.lock().unwrap() == Some(Digest::of(&offer.bytes)) {
            std::future::pending::<()>().await;
        }
        Module::glance("it", &offer.bytes)?;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it.wasm");
        std::fs::write(&path, &offer.bytes).unwrap();
        Ok(Preparation { module: Module::load(&self.engine, &path)?, cached: false, took: Duration::ZERO })
    }
}

/// A store with faults.
struct Faulty {
    inner: MemoryStore,
    is_down: AtomicBool,
    has_no_modules: AtomicBool,
    hangs: AtomicBool,
}

impl Faulty {
    async fn meet(&self, faults: &[&AtomicBool]) -> Result<&MemoryStore, Refusal> {
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if faults.iter().chain([&&self.is_down]).any(|fault| fault.load(Ordering::Relaxed)) {
            return Err(Refusal::Unknown("an outage".to_owned()));
        }
        Ok(&self.inner)
    }
}

#[async_trait]
impl ModuleStore for Faulty {
    async fn controlled(&self) -> Result<Vec<ElectionName>, Refusal> {
        self.meet(&[]).await?.controlled().await
    }

    async fn read_control(&self, election: &ElectionName, known: Option<&Version>) -> Result<Reading, Refusal> {
        self.meet(&[]).await?.read_control(election, known).await
    }

    async fn write_control(
        &self,
        election: &ElectionName,
        version: Option<&Version>,
        content: Bytes,
    ) -> Result<Version, Refusal> {
        self.meet(&[]).await?.write_control(election, version, content).await
    }

    async fn put_module(&self, digest: &Digest, content: Bytes) -> Result<(), Refusal> {
        self.meet(&[]).await?.put_module(digest, content).await
    }

    async fn get_module(&self, digest: &Digest, limit: u64) -> Result<Option<Bytes>, Refusal> {
        self.meet(&[&self.has_no_modules]).await?.get_module(digest, limit).await
    }

    async fn modules(&self) -> Result<Vec<StoredModule>, Refusal> {
        self.meet(&[]).await?.modules().await
    }

    async fn remove_module(&self, digest: &Digest, stored_until: Option<OffsetDateTime>) -> Result<bool, Refusal> {
        self.meet(&[]).await?.remove_module(digest, stored_until).await
    }

    async fn announce(&self, election: &ElectionName, node: &str, content: Bytes) -> Result<(), Refusal> {
        self.meet(&[]).await?.announce(election, node, content).await
    }

    async fn announcements(&self, election: &ElectionName) -> Result<Vec<(String, Bytes)>, Refusal> {
        self.meet(&[]).await?.announcements(election).await
    }

    async fn withdraw(&self, election: &ElectionName, node: &str) -> Result<(), Refusal> {
        self.meet(&[]).await?.withdraw(election, node).await
    }
}

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
