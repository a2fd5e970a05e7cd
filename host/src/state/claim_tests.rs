//! Claims against a store whose requests and answers get lost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::state::EditError;
use crate::store::memory::{Fault, MemoryStore};

struct Bench {
    store: MemoryStore,
    delays: Arc<AtomicU32>,
}

impl Bench {
    fn new() -> Self {
        Self { store: MemoryStore::new(Arc::new(|| Duration::ZERO)), delays: Arc::default() }
    }

    fn claimant(&self) -> Claimant {
        let delays = Arc::clone(&self.delays);
        Claimant {
            store: Arc::new(self.store.clone()),
            election: job(),
            limits: Limits { total: 100, value: 40 },
            tell: Arc::new(move |_| {
                delays.fetch_add(1, Ordering::SeqCst);
            }),
        }
    }

    async fn claim(&self, term: Term) -> Result<Claim, ClaimError> {
        self.claimant().claim(term, gate(Duration::from_secs(3600))).await
    }

    async fn stored(&self) -> Document {
        let (_, content) = StateStore::read(&self.store, &job()).await.unwrap().unwrap();
        Document::decode(&content).unwrap()
    }

    /// What is saved as "n".
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
async fn a_term_starts_from_what_the_last_one_saved() {
    let bench = Bench::new();
    let mut first = bench.claim(1).await.unwrap();
    assert_eq!(first.get("n"), None);
    first.commit(vec![put("b", b"2"), put("a", b"1"), put("ab", b"3")]).await.unwrap();
    first
        .commit(vec![put("b", b"4"), Change::Delete("ab".to_owned()), Change::Delete("never".to_owned())])
        .await
        .unwrap();
    let second = bench.claim(2).await.unwrap();
    assert_eq!(second.keys("").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(second.keys("a").collect::<Vec<_>>(), ["a"]);
    assert_eq!(second.get("b").unwrap(), "4".as_bytes());
    assert_eq!(bench.stored().await.term, 2);
    assert_eq!(bench.delays.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_claim_fences_off_the_terms_before() {
    let bench = Bench::new();
    let mut first = bench.claim(1).await.unwrap();
    first.commit(n(1)).await.unwrap();
    let mut second = bench.claim(2).await.unwrap();
    assert_eq!(first.commit(n(9)).await, Err(CommitError::Superseded(2)));
    assert!(first.gate.pass().is_err(), "nothing else of it may leave either");
    second.commit(n(2)).await.unwrap();
    assert_eq!(bench.n().await, Some(2));
}

#[tokio::test]
async fn no_term_claims_what_as_high_a_one_has_claimed() {
    let bench = Bench::new();
    bench.claim(5).await.unwrap();
    for term in [4, 5] {
        assert_eq!(bench.claim(term).await.err(), Some(ClaimError::Superseded(5)));
    }
    bench.claim(6).await.unwrap();
}

#[tokio::test]
async fn what_the_network_loses_is_settled_by_the_same_write() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        let bench = Bench::new();
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
async fn a_write_that_arrives_late_changes_nothing() {
    let bench = Bench::new();
    let mut claim = bench.claim(1).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    claim.commit(n(1)).await.unwrap();
    assert_eq!(bench.store.deliver_writes(), [Err(Refusal::Conflict)]);
    claim.commit(n(2)).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    bench.claim(2).await.unwrap().commit(n(3)).await.unwrap();
    assert_eq!(bench.store.deliver_writes(), [Err(Refusal::Conflict)]);
    assert_eq!(bench.n().await, Some(3));
}

#[tokio::test]
async fn a_commit_that_is_refused_is_never_saved() {
    let bench = Bench::new();
    let mut claim = bench.claim(1).await.unwrap();
    claim.gate.close();
    assert_eq!(claim.commit(n(1)).await, Err(CommitError::Refused));
    assert_eq!(bench.n().await, None);
    assert_eq!(bench.claimant().claim(2, Arc::clone(&claim.gate)).await.err(), Some(ClaimError::TermOver));
    assert_eq!(bench.stored().await.term, 1);
}

#[tokio::test]
async fn a_commit_without_an_answer_until_the_deadline_is_unknown() {
    let bench = Bench::new();
    let mut claim = bench.claimant().claim(1, gate(Duration::from_millis(300))).await.unwrap();
    for _ in 0..1000 {
        bench.store.fail_next(Fault::Hold);
    }
    assert_eq!(claim.commit(n(1)).await, Err(CommitError::Unknown));
    assert_eq!(claim.commit(n(2)).await, Err(CommitError::Unknown));
    // Of all its tries one arrives, and nothing of the second commit.
    let saved = bench.store.deliver_writes().iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((saved, bench.n().await), (1, Some(1)));
}

#[tokio::test]
async fn an_operators_change_ends_the_term() {
    let bench = Bench::new();
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
    let next = bench.claim(2).await.unwrap();
    assert_eq!(next.get("n").unwrap()[..], [7]);
}

#[tokio::test]
async fn limits_are_for_what_grows() {
    let bench = Bench::new();
    let mut claim = bench.claim(1).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v", &[0; 41])]).await, Err(CommitError::TooLarge(_))));
    claim.commit(vec![put("v1", &[0; 40]), put("v2", &[0; 40])]).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v3", &[0; 40])]).await, Err(CommitError::TooLarge(_))));
    assert_eq!(claim.keys("").count(), 2, "a commit is saved whole or not at all");
    for key in ["", &"k".repeat(KEY + 1)] {
        assert!(matches!(claim.commit(vec![put(key, b"x")]).await, Err(CommitError::InvalidKey(_))));
    }
    // A host with smaller limits can still clear up.
    let mut small = Claimant { limits: Limits { total: 50, value: 10 }, ..bench.claimant() };
    let mut claim = small.clone().claim(2, gate(Duration::from_secs(3600))).await.unwrap();
    claim.commit(vec![put("v1", b"")]).await.unwrap();
    assert!(matches!(claim.commit(vec![put("v3", &[0; 10])]).await, Err(CommitError::TooLarge(_))));
    small.limits.total = 100;
    assert!(small.claim(3, gate(Duration::from_secs(3600))).await.is_ok());
}

#[tokio::test]
async fn what_others_wrote_is_not_touched() {
    let bench = Bench::new();
    for (content, error) in [
        (&b"hello"[..], DocumentError::Damaged),
        (b"baton state ", DocumentError::Damaged),
        (b"baton state 1\xff\xff\xff", DocumentError::Damaged),
        (b"baton state 2...", DocumentError::Format('2')),
    ] {
        let version = StateStore::read(&bench.store, &job()).await.unwrap().map(|(version, _)| version);
        bench.store.write(&job(), version.as_ref(), Bytes::copy_from_slice(content)).await.unwrap();
        assert_eq!(bench.claim(1).await.err(), Some(ClaimError::Document(error)));
        assert_eq!(StateStore::read(&bench.store, &job()).await.unwrap().unwrap().1, content);
    }
}

#[tokio::test]
async fn a_change_in_doubt_is_not_reported_as_refused() {
    let bench = Bench::new();
    bench.claim(1).await.unwrap();
    bench.store.fail_next(Fault::Hold);
    let asked = AtomicU32::new(0);
    // Somebody begins to lead after the first try was sent.
    let may_change = async || match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Ok(()),
        _ => Err(EditError::Store(Refusal::Held)),
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
async fn many_small_keys_are_too_much_as_well() {
    let bench = Bench::new();
    let claimant = Claimant { limits: Limits::default(), ..bench.claimant() };
    let mut claim = claimant.claim(1, gate(Duration::from_secs(3600))).await.unwrap();
    let keys = |range: std::ops::Range<u32>| range.map(|key| put(&format!("{key:x}"), b"")).collect::<Vec<_>>();
    claim.commit(keys(0..65_536)).await.unwrap();
    let Err(CommitError::TooLarge(why)) = claim.commit(keys(65_536..65_537)).await else { panic!("it was saved") };
    assert!(why.contains("65537 keys") && why.contains("--max-state"), "{why}");
    claim.commit(vec![put("0", b"1"), Change::Delete("1".to_owned()), put("new", b"")]).await.unwrap();
}

#[test]
fn a_term_after_which_none_can_come_is_no_term() {
    let document = Document { term: u64::MAX, ..Document::default() };
    assert_eq!(Document::decode(&document.encode().unwrap()), Err(DocumentError::Damaged));
}
