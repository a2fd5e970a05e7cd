#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::sync::Arc;

use baton_store::MemoryStore;

use super::*;

fn store() -> MemoryStore {
    MemoryStore::new(Arc::new(|| Duration::ZERO))
}

fn job() -> ElectionName {
    ElectionName::new("job").unwrap()
}

fn operator<'a>(store: &'a MemoryStore, election: &'a ElectionName) -> Operator<'a> {
    Operator { store, election, by: "ann@desk".to_owned(), reason: None, patience: Duration::ZERO }
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
    assert!(suspended.contains("web-1 has not said that it knows"), "{suspended}");
    let Err(NoEffect::NotYet(why)) = asked.steer(&Steered::Resume).await else { panic!("it cannot know") };
    assert!(why.contains("web-1 did not say that it knows"), "{why}");
}
