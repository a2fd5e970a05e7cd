//! Tests of claims, in a store that loses requests and answers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use super::*;
use crate::memory::{Fault, MemoryStore};
use crate::state::EditError;
use crate::{Intercept, Interceptor, StoreAnswer, StoreCall};
use baton_base::clock::Clock;

#[derive(Clone, Default)]
struct Counter {
    requests: Arc<AtomicU32>,
    is_unreadable: Arc<AtomicBool>,
}

#[async_trait]
impl Interceptor<MemoryStore> for Counter {
    async fn intercept(&self, call: StoreCall, store: &MemoryStore) -> Result<StoreAnswer, StoreError> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        match call {
            StoreCall::Read { .. } if self.is_unreadable.load(Ordering::SeqCst) => {
                Err(StoreError::Unknown("no answer".to_owned()))
            }
            call => call.send(store).await,
        }
    }
}

async fn stored(store: &MemoryStore) -> Option<(Version, Bytes)> {
    match store.read(VersionedObject::State, &job(), None).await.unwrap() {
        Reading::Found(version, content) => Some((version, content)),
        Reading::Nothing | Reading::Unchanged => None,
    }
}

struct ClaimBench {
    store: MemoryStore,
    counter: Counter,
    delays: Arc<AtomicU32>,
    handover: Handover,
    read_ahead: ReadAhead,
}

impl ClaimBench {
    fn new() -> Self {
        Self {
            store: MemoryStore::new(Arc::new(|| Duration::ZERO)),
            counter: Counter::default(),
            delays: Arc::default(),
            handover: Handover::default(),
            read_ahead: ReadAhead::default(),
        }
    }

    fn claimant(&self) -> Claimant {
        let delays = Arc::clone(&self.delays);
        Claimant {
            store: Arc::new(Intercept { store: Arc::new(self.store.clone()), interceptor: self.counter.clone() }),
            election: job(),
            limits: Limits { total: 100 },
            handover: self.handover.clone(),
            read_ahead: self.read_ahead.clone(),
            tell: Arc::new(move |_| {
                delays.fetch_add(1, Ordering::SeqCst);
            }),
        }
    }

    /// Returns a claimant that shares only the store with the others, as if it were in another process.
    fn elsewhere(&self) -> Claimant {
        Claimant { handover: Handover::default(), read_ahead: ReadAhead::default(), ..self.claimant() }
    }

    fn begin_to_read(&self) {
        self.read_ahead.begin(&Handle::current(), self.claimant().store, job());
    }

    /// Starts to read ahead, and waits until the store has received the request, which it answers immediately.
    async fn read(&self) {
        self.requests();
        self.begin_to_read();
        while self.counter.requests.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }

    fn requests(&self) -> u32 {
        self.counter.requests.swap(0, Ordering::SeqCst)
    }

    /// Ends the gate's term once the store has received this number of requests.
    async fn ends(&self, gate: &Gate, requests: u32) {
        while self.counter.requests.load(Ordering::SeqCst) < requests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        gate.extend(gate.now(), gate.now() + Duration::from_secs(3600));
    }

    async fn claim(&self, term: Term) -> Result<Claim, ClaimError> {
        self.claimant().claim(term, gate(Duration::from_secs(3600))).await
    }

    async fn stored(&self) -> Document {
        let (_, content) = stored(&self.store).await.unwrap();
        Document::decode(&content).unwrap()
    }

    async fn n(&self) -> Option<u8> {
        self.stored().await.entries.get("n").map(|value| value[0])
    }
}

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn gate(length: Duration) -> Arc<Gate> {
    let clock = Clock::default();
    let deadline = clock.now() + length;
    Arc::new(Gate::new(clock, deadline, deadline + Duration::from_secs(3600)))
}

fn n(value: u8) -> Vec<Change> {
    vec![put("n", &[value])]
}

fn put(key: &str, value: &[u8]) -> Change {
    Change::Put(key.to_owned(), Bytes::copy_from_slice(value))
}

#[tokio::test]
async fn term_starts_from_what_the_previous_one_saved() {
    let bench = ClaimBench::new();
    let mut first = bench.claim(1).await.unwrap();
    assert_eq!(first.entries().get("n"), None);
    first.commit(vec![put("b", b"2"), put("a", b"1"), put("ab", b"3")]).await.unwrap();
    first
        .commit(vec![put("b", b"4"), Change::Delete("ab".to_owned()), Change::Delete("never".to_owned())])
        .await
        .unwrap();
    let second = bench.claim(2).await.unwrap();
    assert_eq!(second.entries().keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(second.entries().get("b").unwrap(), "4".as_bytes());
    assert_eq!(bench.stored().await.term, 2);
    assert_eq!(bench.delays.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn claim_fences_off_earlier_terms() {
    let bench = ClaimBench::new();
    let mut first = bench.claim(1).await.unwrap();
    first.commit(n(1)).await.unwrap();
    let mut second = bench.claim(2).await.unwrap();
    assert_eq!(first.commit(n(9)).await, Err(CommitError::Superseded(2)));
    assert!(first.history.try_lock().unwrap().gate.pass().is_err(), "nothing else of it may leave either");
    second.commit(n(2)).await.unwrap();
    assert_eq!(bench.n().await, Some(2));
}

#[tokio::test]
async fn claim_is_refused_when_the_term_is_not_higher() {
    let bench = ClaimBench::new();
    bench.claim(5).await.unwrap();
    for term in [4, 5] {
        assert_eq!(bench.claim(term).await.err(), Some(ClaimError::Superseded(5)));
    }
    bench.claim(6).await.unwrap();
}

#[tokio::test]
async fn lost_write_is_settled_by_repeating_it() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        let bench = ClaimBench::new();
        bench.store.fail_next(fault);
        let mut claim = bench.claim(1).await.unwrap();
        assert_eq!(bench.delays.load(Ordering::SeqCst), 1, "{fault:?}");
        bench.store.fail_next(fault);
        bench.store.fail_next(fault);
        claim.commit(n(1)).await.unwrap();
        assert_eq!((bench.n().await, bench.delays.load(Ordering::SeqCst)), (Some(1), 2), "{fault:?}");
        claim.commit(n(2)).await.unwrap();
        assert_eq!(bench.n().await, Some(2), "{fault:?}");
    }
}

#[tokio::test]
async fn late_write_changes_nothing() {
    let bench = ClaimBench::new();
    let mut claim = bench.claim(1).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    claim.commit(n(1)).await.unwrap();
    assert_eq!(bench.store.deliver_writes(), [Err(StoreError::Conflict)]);
    claim.commit(n(2)).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    bench.claim(2).await.unwrap().commit(n(3)).await.unwrap();
    assert_eq!(bench.store.deliver_writes(), [Err(StoreError::Conflict)]);
    assert_eq!(bench.n().await, Some(3));
}

#[tokio::test]
async fn refused_commit_is_never_saved() {
    let bench = ClaimBench::new();
    let mut claim = bench.claim(1).await.unwrap();
    claim.history.try_lock().unwrap().gate.close();
    assert_eq!(claim.commit(n(1)).await, Err(CommitError::Refused));
    assert_eq!(bench.n().await, None);
    assert_eq!(
        bench.claimant().claim(2, Arc::clone(&claim.history.try_lock().unwrap().gate)).await.err(),
        Some(ClaimError::TermOver)
    );
    assert_eq!(bench.stored().await.term, 1);
}

#[tokio::test]
async fn commit_is_unknown_when_unanswered_until_the_deadline() {
    let bench = ClaimBench::new();
    let term = gate(Duration::from_secs(3600));
    let mut claim = bench.claimant().claim(1, Arc::clone(&term)).await.unwrap();
    for _ in 0..1000 {
        bench.store.fail_next(Fault::Hold);
    }
    bench.requests();
    let (committed, ()) = futures::join!(claim.commit(n(1)), bench.ends(&term, 3));
    assert_eq!(committed, Err(CommitError::Unknown));
    assert_eq!(claim.commit(n(2)).await, Err(CommitError::Unknown));
    // The store carries out only one attempt at the first commit, and no attempt at the second.
    let saved = bench.store.deliver_writes().iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((saved, bench.n().await), (1, Some(1)));
}

#[tokio::test]
async fn change_by_an_operator_ends_the_term() {
    let bench = ClaimBench::new();
    let mut claim = bench.claim(1).await.unwrap();
    claim.commit(n(1)).await.unwrap();
    let change = |found: Result<Document, DocumentError>| {
        let mut document = found?;
        document.entries.insert("n".to_owned(), Bytes::from_static(&[7]));
        Ok::<_, super::super::EditError>(document)
    };
    bench.store.fail_next(Fault::LoseAnswer);
    super::super::edit(&bench.store, &job(), async || Ok(()), change).await.unwrap();
    assert_eq!(claim.commit(n(2)).await, Err(CommitError::Superseded(1)));
    let mut next = bench.claim(2).await.unwrap();
    assert_eq!(next.entries().get("n").unwrap()[..], [7]);
    // The commit also fails if the next term has already been claimed.
    next.succession().claim(3).await.unwrap();
    super::super::edit(&bench.store, &job(), async || Ok(()), change).await.unwrap();
    assert_eq!(next.commit(n(2)).await, Err(CommitError::Superseded(2)));
}

#[tokio::test]
async fn claim_made_ahead_sends_no_request() {
    let bench = ClaimBench::new();
    let mut first = bench.claim(1).await.unwrap();
    first.commit(n(1)).await.unwrap();
    first.succession().claim(2).await.unwrap();
    assert_eq!(bench.stored().await.term, 2);
    // The old instance is still running. The next instance must see what the old instance saves now.
    first.commit(n(2)).await.unwrap();
    let requests = bench.counter.requests.load(Ordering::SeqCst);
    drop(first);
    let mut second = bench.claim(2).await.unwrap();
    assert_eq!(second.entries().get("n").unwrap()[..], [2]);
    assert_eq!(bench.counter.requests.load(Ordering::SeqCst), requests);
    second.commit(n(3)).await.unwrap();
    assert_eq!(bench.n().await, Some(3));
    // The old instance left its document to the next claim for term 2, and the second instance has already used this
    // document. A second claim for term 2 must fail.
    assert_eq!(bench.claim(2).await.err(), Some(ClaimError::Superseded(2)));
    bench.claim(3).await.unwrap();
}

#[tokio::test]
async fn handover_is_void_when_its_term_never_begins() {
    let bench = ClaimBench::new();
    let first = bench.claim(1).await.unwrap();
    first.succession().claim(2).await.unwrap();
    drop(first);
    let elsewhere = bench.elsewhere();
    let forever = || gate(Duration::from_secs(3600));
    assert_eq!(elsewhere.clone().claim(2, forever()).await.err(), Some(ClaimError::Superseded(2)));
    elsewhere.claim(3, forever()).await.unwrap().commit(n(7)).await.unwrap();
    let mut fourth = bench.claim(4).await.unwrap();
    assert_eq!(fourth.entries().get("n").unwrap()[..], [7]);
    fourth.commit(n(8)).await.unwrap();
}

#[tokio::test]
async fn foreign_claim_is_found_by_claim_ahead_and_by_first_commit() {
    for is_before in [true, false] {
        let bench = ClaimBench::new();
        let mut first = bench.claim(1).await.unwrap();
        let another = async || {
            let elsewhere = bench.elsewhere();
            elsewhere.claim(5, gate(Duration::from_secs(3600))).await.unwrap()
        };
        if is_before {
            another().await;
            assert_eq!(first.succession().claim(2).await, Err(CommitError::Superseded(5)));
            assert!(first.commit(n(1)).await.is_err());
            drop(first);
            assert_eq!(bench.claim(2).await.err(), Some(ClaimError::Superseded(5)));
        } else {
            first.succession().claim(2).await.unwrap();
            another().await;
            drop(first);
            let mut second = bench.claim(2).await.unwrap();
            assert_eq!(second.commit(n(1)).await, Err(CommitError::Superseded(5)));
        }
        assert_eq!(bench.n().await, None);
    }
}

#[tokio::test]
async fn handover_is_void_when_the_document_has_changed() {
    let bench = ClaimBench::new();
    let term = gate(Duration::from_secs(3600));
    let mut first = bench.claimant().claim(1, Arc::clone(&term)).await.unwrap();
    first.succession().claim(2).await.unwrap();
    let elsewhere = bench.elsewhere();
    elsewhere.claim(5, gate(Duration::from_secs(3600))).await.unwrap();
    // The commit finds that the document has changed. The term ends before the commit can find out who changed it.
    bench.counter.is_unreadable.store(true, Ordering::SeqCst);
    bench.requests();
    let (committed, ()) = futures::join!(first.commit(n(1)), bench.ends(&term, 3));
    assert_eq!(committed, Err(CommitError::Refused));
    drop(first);
    bench.counter.is_unreadable.store(false, Ordering::SeqCst);
    assert_eq!(bench.claim(2).await.err(), Some(ClaimError::Superseded(5)));
}

#[tokio::test]
async fn claim_is_made_later_when_refused_ahead() {
    let bench = ClaimBench::new();
    let first = bench.claim(1).await.unwrap();
    first.history.try_lock().unwrap().gate.close();
    assert_eq!(first.succession().claim(2).await, Err(CommitError::Refused));
    drop(first);
    bench.claim(2).await.unwrap();
    assert_eq!(bench.stored().await.term, 2);
}

#[tokio::test]
async fn pending_write_is_saved_before_the_next_claim_or_never() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Hold] {
        let saved = (fault == Fault::LoseAnswer).then_some(8);
        for is_commit in [true, false] {
            let bench = ClaimBench::new();
            let mut first = bench.claim(1).await.unwrap();
            let succession = first.succession();
            if is_commit {
                succession.claim(2).await.unwrap();
                bench.store.fail_next(fault);
                assert!(futures::poll!(pin!(first.commit(n(8)))).is_pending());
            } else {
                bench.store.fail_next(fault);
                assert!(futures::poll!(pin!(succession.claim(2))).is_pending());
            }
            drop(first);
            let second = bench.claim(2).await.unwrap();
            let begins_with = second.entries().get("n").map(|value| value[0]);
            assert_eq!(begins_with, saved.filter(|_| is_commit), "{fault:?}");
            assert!(bench.store.deliver_writes().iter().all(Result::is_err), "{fault:?}");
            assert_eq!((bench.n().await, bench.stored().await.term), (begins_with, 2), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn limits_apply_only_to_growth() {
    let bench = ClaimBench::new();
    let mut claim = bench.claim(1).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v", &[0; 101])]).await, Err(CommitError::TooLarge(_))));
    claim.commit(vec![put("v1", &[0; 40]), put("v2", &[0; 40])]).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v3", &[0; 40])]).await, Err(CommitError::TooLarge(_))));
    assert_eq!(claim.entries().len(), 2, "a commit is saved whole or not at all");
    for key in ["", &"k".repeat(KEY + 1)] {
        assert!(matches!(claim.commit(vec![put(key, b"x")]).await, Err(CommitError::InvalidKey(_))));
    }
    // The state is too large for this host's limits, but the host can still shrink the state.
    let mut small = Claimant { limits: Limits { total: 50 }, ..bench.claimant() };
    let mut claim = small.clone().claim(2, gate(Duration::from_secs(3600))).await.unwrap();
    claim.commit(vec![put("v1", b"")]).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v3", &[0; 10])]).await, Err(CommitError::TooLarge(_))));
    small.limits.total = 100;
    assert!(small.claim(3, gate(Duration::from_secs(3600))).await.is_ok());
}

#[tokio::test]
async fn claim_leaves_foreign_content_untouched() {
    let bench = ClaimBench::new();
    for (content, error) in [
        (&b"hello"[..], DocumentError::Damaged),
        (b"baton state ", DocumentError::Damaged),
        (b"baton state 1\xff\xff\xff", DocumentError::Damaged),
        (b"baton state 2...", DocumentError::Format('2')),
    ] {
        let version = stored(&bench.store).await.map(|(version, _)| version);
        bench
            .store
            .write(VersionedObject::State, &job(), version.as_ref(), Bytes::copy_from_slice(content))
            .await
            .unwrap();
        assert_eq!(bench.claim(1).await.err(), Some(ClaimError::Document(error)));
        assert_eq!(stored(&bench.store).await.unwrap().1, content);
    }
}

#[tokio::test]
async fn edit_in_doubt_is_not_reported_as_refused() {
    let bench = ClaimBench::new();
    bench.claim(1).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    let asked = AtomicU32::new(0);
    // A leader appears after the first attempt was sent, so a second attempt is not allowed.
    let may_change = async || match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(()),
        _ => Err(EditError::Store(StoreError::Held)),
    };
    let change = |found: Result<Document, DocumentError>| {
        let mut document = found?;
        document.entries.insert("n".to_owned(), Bytes::from_static(&[7]));
        Ok::<_, EditError>(document)
    };
    let changed = super::super::edit(&bench.store, &job(), may_change, change).await;
    assert!(bench.store.deliver_writes()[0].is_ok(), "it arrives late, and changes the state");
    assert!(matches!(changed, Err(EditError::Unknown(_))), "{changed:?}");
}

#[tokio::test]
async fn number_of_keys_is_limited() {
    let bench = ClaimBench::new();
    let claimant = Claimant { limits: Limits::default(), ..bench.claimant() };
    let mut claim = claimant.claim(1, gate(Duration::from_secs(3600))).await.unwrap();
    let keys = |range: std::ops::Range<u32>| range.map(|key| put(&format!("{key:x}"), b"")).collect::<Vec<_>>();
    claim.commit(keys(0..65_536)).await.unwrap();
    let Err(CommitError::TooLarge(why)) = claim.commit(keys(65_536..65_537)).await else { panic!("it was saved") };
    assert!(why.contains("65537 keys") && why.contains("--max-state"), "{why}");
    claim.commit(vec![put("0", b"1"), Change::Delete("1".to_owned()), put("new", b"")]).await.unwrap();
}

#[test]
fn highest_possible_term_is_damaged() {
    let document = Document { term: u64::MAX, ..Document::default() };
    assert_eq!(Document::decode(&document.encode().unwrap()), Err(DocumentError::Damaged));
}

#[tokio::test]
async fn claim_reuses_what_was_read_ahead() {
    let bench = ClaimBench::new();
    bench.begin_to_read();
    bench.claim(1).await.unwrap().commit(n(1)).await.unwrap();
    assert_eq!(bench.requests(), 3, "a reading, a claim, a commit");
    bench.begin_to_read();
    let second = bench.claim(2).await.unwrap();
    assert_eq!((second.entries().get("n").unwrap()[..].to_vec(), bench.requests()), (vec![1], 2));
    // A document that was read ahead is used only once, so this claim has to read the document again.
    bench.claim(3).await.unwrap();
    assert_eq!(bench.requests(), 2);
    bench.begin_to_read();
    bench.read_ahead.clear();
    bench.claim(4).await.unwrap();
    assert_eq!(bench.requests(), 2, "the first was not begun");
}

#[tokio::test]
async fn claim_reads_again_when_the_state_changed_since_read_ahead() {
    let bench = ClaimBench::new();
    for term in [1, 3, 6] {
        bench.read().await;
        let mut other = bench.elsewhere().claim(term, gate(Duration::from_secs(3600))).await.unwrap();
        other.commit(n(u8::try_from(term).unwrap())).await.unwrap();
        if term == 6 {
            assert_eq!(bench.claim(5).await.err(), Some(ClaimError::Superseded(6)), "whatever was read");
        } else {
            let next = bench.claim(term + 1).await.unwrap();
            assert_eq!(next.entries().get("n").unwrap()[..], [u8::try_from(term).unwrap()]);
            assert!(other.commit(n(9)).await.is_err());
        }
    }
}

#[tokio::test]
async fn failed_read_ahead_counts_as_a_first_try() {
    let bench = ClaimBench::new();
    bench.counter.is_unreadable.store(true, Ordering::SeqCst);
    bench.read().await;
    bench.counter.is_unreadable.store(false, Ordering::SeqCst);
    bench.claim(1).await.unwrap();
    assert_eq!((bench.requests(), bench.delays.load(Ordering::SeqCst)), (3, 1));
}

#[tokio::test]
async fn claim_succeeds_when_the_state_was_repaired_since_read_ahead() {
    let spoilt = |term| Document { term, ..Document::default() }.encode().unwrap();
    for bad in [Bytes::from_static(b"somebody's diary"), Bytes::from_static(b"baton state 2"), spoilt(9)] {
        let bench = ClaimBench::new();
        let good = spoilt(1);
        let version = bench.store.write(VersionedObject::State, &job(), None, bad).await.unwrap();
        bench.read().await;
        bench.store.write(VersionedObject::State, &job(), Some(&version), good).await.unwrap();
        bench.claim(2).await.unwrap();
        assert_eq!(bench.stored().await.term, 2);
    }
}
