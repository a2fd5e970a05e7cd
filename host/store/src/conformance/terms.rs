//! The suite's cases about terms: the released mark of a record, and the recall of the highest term.

use std::collections::BTreeMap;

use crate::state::{self, Document, EditError};
use crate::{Announcement, ModuleStore as _, Reading, Store, VersionedObject};
use baton_election::{ElectionName, HIGHEST_TERM, Op, Progress, Recalled, Record, Reply, StoreError, Term};
use bytes::Bytes;

use super::bench::{Finding, Verdict, ensure, ensure_eq};
use super::suite::{StoreBench, a, accepted, b, ensure_lost, job, record, version_in};

fn released(term: u64) -> Record {
    Record { released: true, ..record(term) }
}

pub(super) async fn mark_stays_until_a_write_without_it(bench: StoreBench) -> Verdict {
    let mut version = version_in!(bench.ask(Op::Create { record: released(0) }).await);
    let is = async |record| {
        ensure_eq!(bench.see().await?.record, Some(record));
        Verdict::Ok(())
    };
    is(released(0)).await?;
    // Requests that affect only the lease do not change the released mark.
    ensure_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    ensure_eq!(bench.renew(a()).await, Ok(Reply::Done));
    is(released(0)).await?;
    version = version_in!(bench.write(a(), &version, 1).await);
    is(record(1)).await?;
    version = version_in!(bench.ask(Op::Write { id: a(), version, record: released(1) }).await);
    is(released(1)).await?;
    ensure_eq!(bench.release(a()).await, Ok(Reply::Done));
    ensure_lost!(bench.write(a(), &version, 2).await);
    is(released(1)).await?;
    ensure_eq!(bench.acquire(b()).await, Ok(Reply::Done));
    is(released(1)).await?;
    // A record of the same term without the mark must replace the record with the mark.
    version_in!(bench.write(b(), &version, 1).await);
    is(record(1)).await?;
    Ok(())
}

pub(super) async fn recreated_record_has_no_mark(bench: StoreBench) -> Verdict {
    version_in!(bench.ask(Op::Create { record: released(3) }).await);
    bench.backend.delete().await;
    bench.create().await?;
    ensure_eq!(bench.see().await?.record, Some(record(0)));
    Ok(())
}

/// Returns the answer to a recall. Also checks that a survey returns the same term and progress, and the current
/// version of the steering object.
async fn recall_all(store: &dyn Store) -> Verdict<Result<Recalled, StoreError>> {
    let recalled = match store.request(&job(), Op::Recall).await {
        Ok(Reply::Recalled(recalled)) => Ok(recalled),
        Ok(other) => return Err(Finding::broken(format!("a recall returned {other:?}"))),
        Err(error) => Err(error),
    };
    let surveyed = match store.request(&job(), Op::Survey).await {
        Ok(Reply::Surveyed { recalled, steering, .. }) => {
            let read = store.read(VersionedObject::Steering, &job(), steering.as_ref()).await;
            ensure_eq!(read, Ok(if steering.is_some() { Reading::Unchanged } else { Reading::Nothing }));
            Ok(recalled)
        }
        Ok(other) => return Err(Finding::broken(format!("a survey returned {other:?}"))),
        Err(error) => Err(error),
    };
    ensure_eq!(surveyed, recalled, "a survey, compared with a recall");
    Ok(recalled)
}

async fn recall(store: &dyn Store) -> Verdict<Result<Term, StoreError>> {
    Ok(recall_all(store).await?.map(|recalled| recalled.term))
}

async fn announce(store: &dyn Store, election: &ElectionName, node: &str, term: Term) -> Verdict {
    let said = Announcement { term, ..Announcement::now(node, "i", "", vec![], None) };
    accepted!(store.announce(election, node, said.encode()).await);
    Ok(())
}

async fn claim(store: &dyn Store, term: Term, size: usize) -> Verdict {
    let entries = BTreeMap::from([("key".to_owned(), Bytes::from(vec![7; size]))]);
    let change = |_| Ok::<_, EditError>(Document { term, entries: entries.clone(), ..Document::default() });
    let edited = state::edit(store, &job(), async || Ok(()), change).await;
    ensure!(edited.is_ok(), "the state cannot be written: {:?}", edited.err());
    Ok(())
}

pub(super) async fn recall_names_the_highest_term_in_the_store(bench: StoreBench) -> Verdict {
    let store = bench.open();
    let store = store.as_ref();
    ensure_eq!(recall(store).await?, Ok(0), "there is nothing");
    // Terms of other elections do not count, even if one election's name is a prefix of the other's.
    for other in ["jo", "job-2", "jobs"] {
        let other = ElectionName::new(other).unwrap();
        announce(store, &other, "web-1-0", 99).await?;
        version_in!(store.request(&other, Op::Create { record: record(99) }).await);
    }
    // Announcements from older nodes, and content that is not an announcement, do not count.
    let older =
        r#"{"at":"2026-11-21T12:00:00Z","holds":[],"incarnation":"i","node":"web-9-0","runs":null,"source":"x"}"#;
    for (node, content) in [("web-9-0", older), ("web-9-1", "not an announcement"), ("web-9-2", "")] {
        accepted!(store.announce(&job(), node, Bytes::copy_from_slice(content.as_bytes())).await);
    }
    announce(store, &job(), "web-8-0", 0).await?;
    ensure_eq!(recall(store).await?, Ok(0), "nobody names a term");
    announce(store, &job(), "a/b~c.", 3).await?;
    ensure_eq!(recall(store).await?, Ok(3));
    let mut steering = None;
    for content in ["suspended", "resumed"] {
        let content = Bytes::from_static(content.as_bytes());
        steering = Some(accepted!(store.write(VersionedObject::Steering, &job(), steering.as_ref(), content).await));
        ensure_eq!(recall(store).await?, Ok(3));
    }
    version_in!(bench.ask(Op::Create { record: record(5) }).await);
    ensure_eq!(recall(store).await?, Ok(5));
    claim(store, 300, 0).await?;
    ensure_eq!(recall(store).await?, Ok(300));
    for n in 0..20 {
        announce(store, &job(), &format!("web-1-{n}"), 301 + n).await?;
    }
    ensure_eq!(recall(store).await?, Ok(320));
    announce(store, &job(), "web-1-19", 310).await?;
    ensure_eq!(recall(store).await?, Ok(319), "each node has said its last word");
    accepted!(store.withdraw(&job(), "web-1-18").await);
    ensure_eq!(recall(store).await?, Ok(318));
    // This state is too large to be read in one request.
    claim(store, HIGHEST_TERM - 1, 5 << 20).await?;
    ensure_eq!(recall(store).await?, Ok(HIGHEST_TERM - 1));
    // The state is read even while the lease is held.
    ensure_eq!(bench.acquire(a()).await, Ok(Reply::Done));
    ensure_eq!(recall(store).await?, Ok(HIGHEST_TERM - 1));
    Ok(())
}

pub(super) async fn recall_merges_progress_of_record_and_announcements(bench: StoreBench) -> Verdict {
    let store = bench.open();
    let store = store.as_ref();
    let progress = |text: &str| text.parse::<Progress>().ok().map(Box::new);
    let announce = async |node: &str, progress: &str| {
        let said = Announcement { progress: progress.to_owned(), ..Announcement::now(node, "i", "", vec![], None) };
        accepted!(store.announce(&job(), node, said.encode()).await);
        Verdict::Ok(())
    };
    announce("web-1-0", "damaged").await?;
    ensure_eq!(recall_all(store).await?, Ok(Recalled::default()));
    announce("web-2-0", "0 1 10 60 0 0 2 * * * UTC").await?;
    ensure_eq!(recall_all(store).await?.map(|all| all.progress), Ok(progress("0 1 10 60 0 0 2 * * * UTC")));
    let recorded = progress("0 1 20 40 40 0 2 * * * UTC");
    version_in!(bench.ask(Op::Create { record: Record { progress: recorded, ..record(5) } }).await);
    ensure_eq!(recall_all(store).await?.map(|all| all.progress), Ok(progress("0 1 20 60 40 0 2 * * * UTC")));
    announce("web-3-0", "0 2 0 7 7 -").await?;
    let all = Recalled { term: 5, progress: progress("0 2 0 60 40 -") };
    ensure_eq!(recall_all(store).await?, Ok(all));
    Ok(())
}

pub(super) async fn recall_fails_when_the_state_is_unreadable(bench: StoreBench) -> Verdict {
    let store = bench.open();
    bench.create().await?;
    let mut version = None;
    for (content, says) in [
        ("baton state 2\x07", "format '2'"),
        ("somebody's diary", "damaged"),
        ("", "damaged"),
        ("baton state 1", "damaged"),
    ] {
        let content = Bytes::copy_from_slice(content.as_bytes());
        version = Some(accepted!(store.write(VersionedObject::State, &job(), version.as_ref(), content).await));
        let answer = recall(store.as_ref()).await?;
        ensure!(matches!(&answer, Err(StoreError::Misconfigured(why)) if why.contains(says)), "{answer:?}");
    }
    Ok(())
}
