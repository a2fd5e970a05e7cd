//! Tests that state passes from one term to the next in the same host.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{End, StopReason, Term, Version};
use baton_runtime::{CLAIM_AHEAD, Instance, InstanceHandle as _, Launcher, Module};
use baton_store::MemoryStore;
use baton_store::memory::Fault;
use baton_store::state::{Document, DocumentError, EditError, edit};
use baton_store::{ObjectStore as _, Reading, VersionedObject};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::guests::Guest;
use super::patience::Patience;
use super::{GUARD, Lines, engine, gone, launcher};

struct Keeper {
    module: Module,
    launcher: Launcher,
    store: MemoryStore,
}

impl Keeper {
    fn new() -> Self {
        let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
        // A stop waits at most `claim_ahead` for the claim of the state. This time is so long that the claim succeeds
        // even on a slow machine.
        let launcher = Launcher { states: Arc::new(store.clone()), claim_ahead: GUARD, ..launcher("") };
        let module = Module::load(&engine(), &Guest::KeepsHistory.module()).unwrap();
        Self { module, launcher, store }
    }

    fn start(&self, term: Term, behaviour: &str) -> Started {
        let (sender, lines) = mpsc::unbounded_channel();
        let env = vec![("BEHAVIOUR".to_owned(), behaviour.to_owned())];
        let launcher = Launcher { env, ..self.launcher.clone() };
        let deadline = launcher.clock.now() + GUARD * 10;
        Started {
            instance: launcher.start(&self.module, term, None, deadline, deadline + GUARD, Arc::new(Lines(sender))),
            lines,
        }
    }

    async fn stored(&self) -> (Version, Document) {
        let read = self.store.read(VersionedObject::State, &self.launcher.election, None).await;
        let Ok(Reading::Found(version, content)) = read else { panic!("{read:?}") };
        (version, Document::decode(&content).unwrap())
    }
}

struct Started {
    instance: Instance,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Started {
    async fn wait_for_line(&mut self, line: &str) {
        while Patience::of_future(self.lines.recv()).await.unwrap().unwrap() != line {}
    }

    /// Asks the instance to stop in favor of term `next`, and waits until it is gone.
    async fn stop_for(&mut self, next: Term) -> End {
        let grace_ends = self.instance.started() + GUARD * 10;
        self.instance.stop(StopReason::Replaced, "another follows".to_owned(), grace_ends, Some(next));
        gone(&mut self.instance).await.end
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_term_resumes_without_store_requests() {
    let keeper = Keeper::new();
    let mut first = keeper.start(1, "history");
    first.wait_for_line("saved 10").await;
    assert_eq!(first.stop_for(2).await, End::Done);
    let (version, left) = keeper.stored().await;
    assert_eq!(left.term, 2);

    let mut second = keeper.start(2, "rest");
    second.wait_for_line("resting in term 2").await;
    assert_eq!(keeper.stored().await, (version, left.clone()), "the state was claimed before the term");
    assert_eq!(second.stop_for(3).await, End::Done);

    let mut third = keeper.start(3, "history");
    let count = String::from_utf8(left.entries["count"].to_vec()).unwrap();
    third.wait_for_line(&format!("resumed {count}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_change_is_found_before_the_next_term() {
    let keeper = Keeper::new();
    let mut first = keeper.start(1, "rest");
    first.wait_for_line("resting in term 1").await;
    let change = |found: Result<Document, DocumentError>| {
        let mut document = found?;
        document.entries.insert("count".to_owned(), Bytes::from_static(b"1000"));
        Ok::<_, EditError>(document)
    };
    edit(&keeper.store, &keeper.launcher.election, async || Ok(()), change).await.unwrap();
    assert_eq!(first.stop_for(2).await, End::Superseded { term: 1 });

    let mut second = keeper.start(2, "history");
    second.wait_for_line("resumed 1000").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_is_not_delayed_when_store_does_not_answer() {
    let mut keeper = Keeper::new();
    keeper.launcher.claim_ahead = CLAIM_AHEAD;
    let mut first = keeper.start(1, "rest");
    first.wait_for_line("resting in term 1").await;
    // During a stop, the host claims the state for the next term. The store does not answer the next 9 requests, so the
    // host retries the claim for longer than the stop waits for it.
    (0..9).for_each(|_| keeper.store.fail_next(Fault::Hold));
    assert_eq!(first.stop_for(2).await, End::Done);
    first.wait_for_line("stopped").await;
    assert_eq!(keeper.stored().await.1.term, 1);

    let mut second = keeper.start(2, "rest");
    second.wait_for_line("resting in term 2").await;
    assert_eq!(keeper.stored().await.1.term, 2);
    assert!(keeper.store.deliver_writes().iter().all(Result::is_err), "late writes are refused");
}
