#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::sync::Arc;

use baton_store::MemoryStore;

use super::*;
use crate::steering::Itself;

fn store() -> MemoryStore {
    MemoryStore::new(Arc::new(|| Duration::ZERO))
}

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn operator<'a>(store: &'a MemoryStore, election: &'a ElectionName) -> Operator<'a> {
    Operator {
        store,
        election,
        by: "ann@desk".to_owned(),
        reason: None,
        patience: Duration::ZERO,
        called: Called::Nobody,
    }
}

/// A node that could lead, and has heard of what was asked by then.
async fn announce(store: &MemoryStore, node: &str, mark: &str) -> Announcement {
    let holds = vec![baton_store::Digest::of(b"")];
    let version = "0.1.0".to_owned();
    let said =
        Announcement { steered: Some(mark.to_owned()), version, ..Announcement::now(node, node, "", holds, None) };
    store.announce(&job(), node, said.encode()).await.unwrap();
    said
}

#[tokio::test]
async fn an_election_that_is_not_there_is_not_steered() {
    let (store, election) = (store(), job());
    let asked = operator(&store, &election);
    for what in [
        Steered::StepDown(Duration::from_secs(1)),
        Steered::Suspend,
        Steered::Resume,
        Steered::Transfer("web-1".to_owned()),
        Steered::Break,
    ] {
        assert_eq!(asked.steer(&what).await, Err(NoEffect::Unknown(job())), "{what:?}");
    }
    announce(&store, "web-1", "/").await;
    assert!(asked.steer(&Steered::Resume).await.unwrap().contains("was not suspended"));
}

#[tokio::test]
async fn a_node_that_is_gone_since_before_the_suspension_does_not_know_that_it_is_over() {
    let (store, election) = (store(), job());
    announce(&store, "web-1", &Steering::default().mark()).await;
    let asked = operator(&store, &election);
    let suspended = asked.steer(&Steered::Suspend).await.unwrap();
    assert!(suspended.contains("web-1 has not confirmed the suspension"), "{suspended}");
    let Err(NoEffect::NotYet(why)) = asked.steer(&Steered::Resume).await else { panic!("it cannot know") };
    assert!(why.contains("have not confirmed it: web-1"), "{why}");
}

#[tokio::test]
async fn nothing_is_handed_over_where_another_leads_or_anything_was_asked_meanwhile() {
    let (store, election) = (store(), job());
    let heir = announce(&store, "web-2", "/").await;
    let asked = operator(&store, &election);
    let itself = Itself { node: "web-1".to_owned(), incarnation: "1".to_owned() };
    let is_refused = |told: Told, word: &str| {
        let Err(NoEffect::Refused(why)) = told else { panic!("{told:?}") };
        assert!(why.contains(word), "{why}");
    };
    is_refused(asked.hand_over(&itself, &heir, &Steering::default()).await, "no longer leads");
    lead(&store, &itself).await;
    let before = asked.known().await.unwrap();
    asked.steer(&Steered::StepDown(Duration::from_secs(9))).await.unwrap_err();
    let stepped_down = asked.known().await.unwrap();
    is_refused(asked.hand_over(&itself, &heir, &before).await, "a later command");
    assert_eq!(asked.known().await.unwrap(), stepped_down);
    // Now it knows of that.
    let Err(NoEffect::NotYet(why)) = asked.hand_over(&itself, &heir, &stepped_down).await else {
        panic!("it is asked")
    };
    assert!(why.contains("web-1 still leads"), "{why}");
    let Some(Request { ask: Ask::Transfer { node, .. }, .. }) = asked.known().await.unwrap().request else { panic!() };
    assert_eq!(node, "web-2");
}

/// What that operator is told in the end, where others ask for something else as soon as it has asked.
async fn told_beside(store: &MemoryStore, what: Steered, others: &[Steered]) -> Told {
    let election = job();
    let patient = Operator { patience: Duration::from_secs(5), ..operator(store, &election) };
    let before = patient.known().await.unwrap();
    let beside = async {
        while patient.known().await.unwrap() == before {
            sleep(Duration::from_millis(10)).await;
        }
        let other = Operator { by: "bob@desk".to_owned(), ..operator(store, &election) };
        for what in others {
            // Whether it comes about is not the point.
            let _ = other.steer(what).await;
        }
    };
    tokio::join!(patient.steer(&what), beside).0
}

fn not_yet(told: Told) -> String {
    let Err(NoEffect::NotYet(why)) = told else { panic!("{told:?}") };
    why
}

#[tokio::test]
async fn what_others_ask_meanwhile_is_told_and_not_taken_for_a_node_that_does_not_hear() {
    let itself = Itself { node: "web-1".to_owned(), incarnation: "web-1".to_owned() };
    let step_down = || Steered::StepDown(Duration::from_secs(9));
    let beside = [
        (Steered::Suspend, Steered::Resume, "job was suspended, but a later command has resumed it"),
        (step_down(), Steered::Transfer("web-2".to_owned()), "transfer to web-2, by bob@desk"),
        (Steered::Transfer("web-2".to_owned()), step_down(), "step-down of web-1, by bob@desk"),
    ];
    let told = beside.map(async |(what, other, says)| {
        let store = store();
        lead(&store, &itself).await;
        announce(&store, "web-1", "/").await;
        announce(&store, "web-2", "/").await;
        (not_yet(told_beside(&store, what, &[other]).await), says)
    });
    for (why, says) in futures::future::join_all(told).await {
        assert!(why.contains(says), "{why}");
    }
    // Nobody leads, and who has heard of the last that is asked knows of all.
    let store = store();
    announce(&store, "web-1", "/").await;
    operator(&store, &job()).steer(&Steered::Suspend).await.unwrap();
    let why = not_yet(told_beside(&store, Steered::Resume, &[Steered::Suspend]).await);
    assert!(why.contains("job was resumed, but has since been suspended again by bob@desk"), "{why}");
    let said = told_beside(&store, Steered::Suspend, &[Steered::Suspend]).await.unwrap();
    assert!(said.contains("job has since been suspended again by bob@desk"), "{said}");
}

/// Has that node lead.
async fn lead(store: &MemoryStore, itself: &Itself) {
    let Itself { node, incarnation } = itself.clone();
    let record = Record {
        term: 1,
        node: Some(node),
        incarnation,
        since: Duration::ZERO,
        lease: Duration::from_secs(15),
        module: None,
        outcome: None,
        failures: 0,
        released: false,
        rests_until: None,
    };
    let (id, length) = (baton_election::LeaseId::from_random(1), Duration::from_secs(15));
    let ask = async |op| store.request(&job(), op).await.unwrap();
    ask(Op::Create { record: record.clone() }).await;
    let Reply::Read(Snapshot::Object { version, .. }) = ask(Op::Read).await else { panic!("it is there") };
    ask(Op::Acquire { id, length, version: version.clone(), instead_of: None }).await;
    ask(Op::Write { id, version, record }).await;
}
