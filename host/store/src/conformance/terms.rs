//! The suite's cases about terms: the mark of a record, and the recall.

use std::collections::BTreeMap;

use crate::state::{self, Document, EditError};
use crate::{Announcement, ModuleStore as _, Reading, Store, VersionedObject};
use baton_election::{ElectionName, HIGHEST_TERM, Op, Record, Reply, StoreError, Term};
use bytes::Bytes;

use super::suite::{CaseBench, a, assert_lost, b, job, record, version_of};

fn released(term: u64) -> Record {
    Record { released: true, ..record(term) }
}

pub(super) async fn mark_stays_until_a_write_without_it(bench: CaseBench) {
    let mut version = version_of(bench.ask(Op::Create { record: released(0) }).await);
    let is = async |record| assert_eq!(bench.see().await.record, Some(record));
    is(released(0)).await;
    // Requests that affect only the lease do not change the mark.
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    assert_eq!(bench.renew(a()).await, Ok(Reply::Done));
    is(released(0)).await;
    version = version_of(bench.write(a(), &version, 1).await);
    is(record(1)).await;
    version = version_of(bench.ask(Op::Write { id: a(), version, record: released(1) }).await);
    is(released(1)).await;
    assert_eq!(bench.release(a()).await, Ok(Reply::Done));
    assert_lost(&bench.write(a(), &version, 2).await);
    is(released(1)).await;
    assert_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    is(released(1)).await;
    // A record with the same term but without the mark is a different record.
    version_of(bench.write(b(), &version, 1).await);
    is(record(1)).await;
}

pub(super) async fn recreated_record_has_no_mark(bench: CaseBench) {
    version_of(bench.ask(Op::Create { record: released(3) }).await);
    bench.backend.delete().await;
    bench.create().await;
    assert_eq!(bench.see().await.record, Some(record(0)));
}

/// Returns the answer to a recall. A survey must return the same term, and the version of the steering object.
async fn recall(store: &dyn Store) -> Result<Term, StoreError> {
    let [recalled, surveyed] = [Op::Recall, Op::Survey].map(|op| async {
        match store.request(&job(), op).await {
            Ok(Reply::Term(term)) => Ok(term),
            Ok(Reply::Surveyed { term, steering, .. }) => {
                let asked = store.read(VersionedObject::Steering, &job(), steering.as_ref()).await;
                let as_is = if steering.is_some() { Reading::Unchanged } else { Reading::Nothing };
                assert_eq!(asked, Ok(as_is));
                Ok(term)
            }
            Ok(other) => panic!("a term was expected: {other:?}"),
            Err(error) => Err(error),
        }
    });
    let recalled = recalled.await;
    assert_eq!(surveyed.await, recalled);
    recalled
}

async fn announce(store: &dyn Store, election: &ElectionName, node: &str, term: Term) {
    let said = Announcement { term, ..Announcement::now(node, "i", "", vec![], None) };
    store.announce(election, node, said.encode()).await.unwrap();
}

/// Writes a state of `size` bytes that `term` has claimed.
async fn claim(store: &dyn Store, term: Term, size: usize) {
    let entries = BTreeMap::from([("key".to_owned(), Bytes::from(vec![7; size]))]);
    let change = |_| Ok::<_, EditError>(Document { term, entries: entries.clone(), ..Document::default() });
    state::edit(store, &job(), async || Ok(()), change).await.unwrap();
}

pub(super) async fn recall_names_the_highest_term_in_the_store(bench: CaseBench) {
    let store = bench.backend.open();
    let store = store.as_ref();
    assert_eq!(recall(store).await, Ok(0), "there is nothing");
    // Elections whose names share a prefix with this one do not count.
    for other in ["jo", "job-2", "jobs"] {
        let other = ElectionName::new(other).unwrap();
        announce(store, &other, "web-1-0", 99).await;
        version_of(store.request(&other, Op::Create { record: record(99) }).await);
    }
    // Announcements from older nodes, and content that is not an announcement, do not count.
    let older =
        r#"{"at":"2026-11-21T12:00:00Z","holds":[],"incarnation":"i","node":"web-9-0","runs":null,"source":"x"}"#;
    for (node, content) in [("web-9-0", older), ("web-9-1", "not an announcement"), ("web-9-2", "")] {
        store.announce(&job(), node, Bytes::copy_from_slice(content.as_bytes())).await.unwrap();
    }
    announce(store, &job(), "web-8-0", 0).await;
    assert_eq!(recall(store).await, Ok(0), "nobody names a term");
    announce(store, &job(), "a/b~c.", 3).await;
    assert_eq!(recall(store).await, Ok(3));
    let mut steering = None;
    for content in ["suspended", "resumed"] {
        let content = Bytes::from_static(content.as_bytes());
        steering = Some(store.write(VersionedObject::Steering, &job(), steering.as_ref(), content).await.unwrap());
        assert_eq!(recall(store).await, Ok(3));
    }
    version_of(bench.ask(Op::Create { record: record(5) }).await);
    assert_eq!(recall(store).await, Ok(5));
    claim(store, 300, 0).await;
    assert_eq!(recall(store).await, Ok(300));
    for n in 0..20 {
        announce(store, &job(), &format!("web-1-{n}"), 301 + n).await;
    }
    assert_eq!(recall(store).await, Ok(320));
    announce(store, &job(), "web-1-19", 310).await;
    assert_eq!(recall(store).await, Ok(319), "each node has said its last word");
    store.withdraw(&job(), "web-1-18").await.unwrap();
    assert_eq!(recall(store).await, Ok(318));
    // A state that is too large for one request.
    claim(store, HIGHEST_TERM - 1, 5 << 20).await;
    assert_eq!(recall(store).await, Ok(HIGHEST_TERM - 1));
    // The state is read even while the lease is held.
    assert_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    assert_eq!(recall(store).await, Ok(HIGHEST_TERM - 1));
}

pub(super) async fn recall_fails_when_the_state_is_unreadable(bench: CaseBench) {
    let store = bench.backend.open();
    bench.create().await;
    let mut version = None;
    for (content, says) in [
        ("baton state 2\x07", "format '2'"),
        ("somebody's diary", "damaged"),
        ("", "damaged"),
        ("baton state 1", "damaged"),
    ] {
        let content = Bytes::copy_from_slice(content.as_bytes());
        version = Some(store.write(VersionedObject::State, &job(), version.as_ref(), content).await.unwrap());
        let answer = recall(store.as_ref()).await;
        assert!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains(says)), "{answer:?}");
    }
}
