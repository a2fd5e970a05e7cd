#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::MemoryStore;
use crate::memory::Fault;

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn begun(term: Term, node: &str) -> PastTerm {
    let (node, incarnation, begun) = (node.to_owned(), format!("start-of-{node}"), rfc3339(Duration::from_secs(term)));
    let module = Some(format!("sha256:{}", "ab".repeat(32)));
    PastTerm { term, node, incarnation, begun, module, ..PastTerm::default() }
}

fn ended(term: Term, node: &str) -> PastTerm {
    let (ended, outcome) = (Some(rfc3339(Duration::from_secs(term))), Some("done".to_owned()));
    PastTerm { ended, outcome, leaderless_ms: Some(7), ..begun(term, node) }
}

fn record(term: Term, node: &str, released: bool) -> Record {
    Record {
        term,
        node: Some(node.to_owned()),
        incarnation: format!("start-of-{node}"),
        since: Duration::from_secs(term),
        lease: Duration::from_secs(15),
        module: Some(format!("sha256:{}", "ab".repeat(32))),
        outcome: None,
        failures: 0,
        released,
        paused_until: None,
        progress: None,
    }
}

fn reported(all: impl IntoIterator<Item = PastTerm>) -> History {
    let mut history = History::default();
    all.into_iter().for_each(|reported| history.tell(reported));
    history.close();
    assert_eq!(History::decode(&history.encode()), Ok(history.clone()), "it is read as it is written");
    history
}

fn numbers(history: &History) -> Vec<Term> {
    history.terms.iter().map(|term| term.term).collect()
}

#[test]
fn report_of_own_node_wins_in_any_order() {
    let own = [begun(1, "a"), ended(1, "a")];
    let after = begun(2, "b");
    let by_others = PastTerm::before(&record(1, "a", false), "b", &after.begun).unwrap();
    let known = reported([own[1].clone(), after.clone()]);
    let [one, all] = [&own[1..], &own[..]].map(<[PastTerm]>::to_vec);
    let orders = [
        [all.clone(), vec![by_others.clone(), after.clone()]].concat(),
        [vec![by_others.clone(), after.clone()], all.clone()].concat(),
        [vec![own[0].clone(), by_others.clone(), after.clone()], one.clone()].concat(),
        [vec![after.clone(), by_others.clone()], one.clone(), vec![own[0].clone(), by_others.clone()]].concat(),
    ];
    for order in orders {
        assert_eq!(reported(order.clone()), known, "{order:#?}");
    }
}

#[test]
fn successor_closes_the_term_of_a_dead_node() {
    let after = begun(3, "b");
    // The dead node had reported that its first term began. Its second term is known only from the record.
    let first = PastTerm { leaderless_ms: Some(7), ..begun(1, "a") };
    let by_others = PastTerm::before(&record(2, "a", false), "b", &after.begun).unwrap();
    let history = reported([first, by_others, after.clone()]);
    let ends: Vec<_> = history.terms.iter().map(|term| (term.ended.as_deref(), term.closed_by.as_deref())).collect();
    assert_eq!(ends, [(Some(&*after.begun), Some("b")), (Some(&*after.begun), Some("b")), (None, None)]);
    assert_eq!((&history.terms[0].reason, history.terms[0].leaderless_ms), (&Some(UNTOLD.to_owned()), Some(7)));
    assert_eq!((&history.terms[1].reason, &history.terms[1].outcome), (&Some(UNHEARD.to_owned()), &None));
    let given_up = PastTerm::before(&record(2, "a", true), "b", &after.begun).unwrap();
    assert_eq!(reported([given_up, after]).terms[0].reason.as_deref(), Some(GIVEN_UP));
    // Until another node takes over, the node that led these terms may still report how they ended.
    let late = reported([begun(1, "a"), begun(2, "a")]);
    assert!(late.terms.iter().all(|term| term.ended.is_none()), "{late:?}");
    let nobody = Record { node: None, ..record(2, "a", false) };
    assert_eq!((PastTerm::of(&nobody), PastTerm::of(&record(0, "a", false))), (None, None));
}

#[test]
fn term_is_over_when_its_record_is_released() {
    let mut history = reported([ended(1, "a")]);
    history.note(&record(1, "a", true));
    assert_eq!(history.terms, [ended(1, "a")], "its own node has told");
    for (released, reason) in [(false, None), (true, Some(GIVEN_UP))] {
        let mut history = history.clone();
        history.note(&record(2, "a", released));
        assert_eq!(numbers(&history), [1, 2]);
        assert_eq!((history.terms[1].reason.as_deref(), &history.terms[1].ended), (reason, &None));
    }
}

#[test]
fn late_report_is_inserted_by_term_number() {
    let history = reported([1, 2, 5, 6, 4, 3].map(|term| ended(term, "a")));
    assert_eq!(numbers(&history), [1, 2, 3, 4, 5, 6]);
    // The store was reset, so the latest terms have lower numbers than earlier ones.
    let mut history = reported((1000..2000).map(|term| ended(term, "a")));
    history.tell(ended(7, "b"));
    history.tell(ended(8, "b"));
    assert_eq!(numbers(&history)[1000..], [7, 8]);
    history.tell(ended(8, "c"));
    assert_eq!(numbers(&history)[1000..], [7, 8, 8]);
}

#[test]
fn history_keeps_latest_terms_and_truncates_texts() {
    let history = reported((1..=KEPT_TERMS as u64).map(|term| ended(term, "a")));
    let mut more = history.clone();
    more.tell(ended(2000, "a"));
    let again = History::decode(&more.encode()).unwrap();
    assert_eq!(again.terms, more.terms[1..]);
    let long = "\u{1f980}\u{7}".repeat(1000);
    let mut texts = history.clone();
    for term in 1..=KEPT_TERMS as u64 {
        texts.tell(PastTerm { reason: Some(long.clone()), ..ended(term, "a") });
    }
    let reason = texts.terms[0].reason.clone().unwrap();
    assert_eq!(reason.chars().count(), LONGEST_TEXT);
    let content = texts.encode();
    assert!(content.len() <= LARGEST + 64, "{}", content.len());
    let kept = History::decode(&content).unwrap();
    assert!(kept.terms.len() > 200 && texts.terms.ends_with(&kept.terms), "{}", kept.terms.len());
}

#[tokio::test]
async fn reported_terms_are_written_once_and_read_again() {
    let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
    assert_eq!(read_history(&store, &job()).await, Ok(None));
    assert_eq!(report_terms(&store, &job(), &[ended(1, "a"), begun(2, "a")]).await, Ok(None));
    let known = read_history(&store, &job()).await.unwrap().unwrap();
    assert_eq!(known, reported([ended(1, "a"), begun(2, "a")]));
    // If the answer is lost, the node reports the term again. The history still contains the term only once.
    store.fail_next(Fault::LoseAnswer);
    assert_eq!(report_terms(&store, &job(), &[ended(2, "a")]).await, Ok(None));
    let known = read_history(&store, &job()).await.unwrap().unwrap();
    assert_eq!(known, reported([ended(1, "a"), ended(2, "a")]));
    let written = store.read(VersionedObject::History, &job(), None).await;
    assert_eq!(report_terms(&store, &job(), &[ended(2, "a"), begun(1, "a")]).await, Ok(None));
    assert_eq!(store.read(VersionedObject::History, &job(), None).await, written, "nothing was new");
}

#[tokio::test]
async fn concurrent_reports_are_both_recorded() {
    let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
    let tells = |node: &'static str, terms: [Term; 3]| {
        let store = store.clone();
        async move {
            for term in terms {
                assert_eq!(report_terms(&store, &job(), &[ended(term, node)]).await, Ok(None));
            }
        }
    };
    tokio::join!(tells("a", [1, 3, 6]), tells("b", [2, 4, 5]));
    assert_eq!(numbers(&read_history(&store, &job()).await.unwrap().unwrap()), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn damaged_history_is_replaced_and_newer_one_is_kept() {
    let store = MemoryStore::new(Arc::new(|| Duration::ZERO));
    let damaged =
        ["", "null", "[]", "{\"format\":1}", "{\"format\":1,\"terms\":[{}]}", "{\"format\":1,\"terms\":[1]}", "\u{0}"];
    for content in
        damaged.map(str::to_owned).into_iter().chain([format!("{{\"format\":1{}}}", " ".repeat(LARGEST_READ))])
    {
        let version = match store.read(VersionedObject::History, &job(), None).await.unwrap() {
            crate::Reading::Found(version, _) => Some(version),
            _ => None,
        };
        let content = Bytes::from(content);
        store.write(VersionedObject::History, &job(), version.as_ref(), content.clone()).await.unwrap();
        assert!(matches!(read_history(&store, &job()).await, Err(HistoryError::Damaged(_))), "{content:?}");
        let said = report_terms(&store, &job(), &[ended(1, "a")]).await;
        assert!(matches!(said, Ok(Some(HistoryError::Damaged(_)))), "{said:?}");
        assert_eq!(read_history(&store, &job()).await, Ok(Some(reported([ended(1, "a")]))));
        assert_eq!(report_terms(&store, &job(), &[ended(1, "a")]).await, Ok(None), "it is said once");
    }
    let newer = ElectionName::new("newer").unwrap();
    let content = Bytes::from("{\"format\":2,\"pages\":[]}");
    store.write(VersionedObject::History, &newer, None, content.clone()).await.unwrap();
    assert_eq!(report_terms(&store, &newer, &[ended(1, "a")]).await, Err(HistoryError::Format(2)));
    assert!(HistoryError::Format(2).to_string().contains("format 2, but this version of Baton reads 1"));
    let found = store.read(VersionedObject::History, &newer, None).await;
    assert!(matches!(found, Ok(crate::Reading::Found(_, found)) if found == content));
}
