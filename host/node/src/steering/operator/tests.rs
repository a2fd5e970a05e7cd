#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::sync::Arc;

use baton_store::MemoryStore;

use super::*;
use crate::steering::NodeIncarnation;

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
        called: HintTarget::Nobody,
    }
}

/// Announces a node that could lead, and that has confirmed the commands with this mark.
async fn announce(store: &MemoryStore, node: &str, mark: &str) -> Announcement {
    let holds = vec![baton_store::Digest::of(b"")];
    let version = "0.1.0".to_owned();
    let said =
        Announcement { steered: Some(mark.to_owned()), version, ..Announcement::now(node, node, "", holds, None) };
    store.announce(&job(), node, said.encode()).await.unwrap();
    said
}

#[tokio::test]
async fn unknown_election_is_not_steered() {
    let (store, election) = (store(), job());
    let operator = operator(&store, &election);
    for what in [
        SteeringCommand::StepDown(Duration::from_secs(1)),
        SteeringCommand::Suspend,
        SteeringCommand::Resume { skip_missed: false },
        SteeringCommand::Transfer("web-1".to_owned()),
        SteeringCommand::Trigger,
        SteeringCommand::Break,
    ] {
        assert_eq!(operator.steer(&what).await, Err(NoEffect::Unknown(job())), "{what:?}");
    }
    announce(&store, "web-1", "/").await;
    assert!(
        operator.steer(&SteeringCommand::Resume { skip_missed: false }).await.unwrap().contains("was not suspended")
    );
}

#[tokio::test]
async fn resume_reports_a_node_that_exited_before_the_suspension() {
    let (store, election) = (store(), job());
    announce(&store, "web-1", &Steering::default().mark()).await;
    let operator = operator(&store, &election);
    let suspended = operator.steer(&SteeringCommand::Suspend).await.unwrap();
    assert!(suspended.contains("web-1 has not confirmed the suspension"), "{suspended}");
    let Err(NoEffect::NotYet(why)) = operator.steer(&SteeringCommand::Resume { skip_missed: false }).await else {
        panic!("the resume took effect")
    };
    assert!(why.contains("have not confirmed it: web-1"), "{why}");
}

#[tokio::test]
async fn hand_over_is_refused_after_a_new_leader_or_a_later_command() {
    let (store, election) = (store(), job());
    let target = announce(&store, "web-2", "/").await;
    let operator = operator(&store, &election);
    let itself = NodeIncarnation { node: "web-1".to_owned(), incarnation: "1".to_owned() };
    let assert_refused = |result: SteerResult, word: &str| {
        let Err(NoEffect::Refused(why)) = result else { panic!("{result:?}") };
        assert!(why.contains(word), "{why}");
    };
    assert_refused(operator.hand_over(&itself, &target, &Steering::default()).await, "no longer leads");
    lead(&store, &itself).await;
    let before = operator.known().await.unwrap();
    operator.steer(&SteeringCommand::StepDown(Duration::from_secs(9))).await.unwrap_err();
    let stepped_down = operator.known().await.unwrap();
    assert_refused(operator.hand_over(&itself, &target, &before).await, "a later command");
    assert_eq!(operator.known().await.unwrap(), stepped_down);
    // This time, the caller knows the later command.
    let Err(NoEffect::NotYet(why)) = operator.hand_over(&itself, &target, &stepped_down).await else {
        panic!("the hand-over did not wait in vain")
    };
    assert!(why.contains("web-1 still leads"), "{why}");
    let Some(Request { ask: Ask::Transfer { node, .. }, .. }) = operator.known().await.unwrap().request else {
        panic!()
    };
    assert_eq!(node, "web-2");
}

/// Sends the steering command `what`. Once this command is in the store, another operator sends the commands `others`.
async fn steer_while_others_do(store: &MemoryStore, what: SteeringCommand, others: &[SteeringCommand]) -> SteerResult {
    let election = job();
    let patient = Operator { patience: Duration::from_secs(5), ..operator(store, &election) };
    let before = patient.known().await.unwrap();
    let beside = async {
        while patient.known().await.unwrap() == before {
            sleep(Duration::from_millis(10)).await;
        }
        let other = Operator { by: "bob@desk".to_owned(), ..operator(store, &election) };
        for what in others {
            let _ = other.steer(what).await;
        }
    };
    tokio::join!(patient.steer(&what), beside).0
}

fn not_yet(result: SteerResult) -> String {
    let Err(NoEffect::NotYet(why)) = result else { panic!("{result:?}") };
    why
}

#[tokio::test]
async fn superseded_command_reports_the_later_command() {
    let itself = NodeIncarnation { node: "web-1".to_owned(), incarnation: "web-1".to_owned() };
    let step_down = || SteeringCommand::StepDown(Duration::from_secs(9));
    let beside = [
        (
            SteeringCommand::Suspend,
            SteeringCommand::Resume { skip_missed: false },
            "job was suspended, but a later command has resumed it",
        ),
        (step_down(), SteeringCommand::Transfer("web-2".to_owned()), "transfer to web-2, by bob@desk"),
        (SteeringCommand::Transfer("web-2".to_owned()), step_down(), "step-down of web-1, by bob@desk"),
    ];
    let result = beside.map(async |(what, other, text)| {
        let store = store();
        lead(&store, &itself).await;
        announce(&store, "web-1", "/").await;
        announce(&store, "web-2", "/").await;
        (not_yet(steer_while_others_do(&store, what, &[other]).await), text)
    });
    for (why, text) in futures::future::join_all(result).await {
        assert!(why.contains(text), "{why}");
    }
    // In this store, no node leads. A later suspension by another operator supersedes a resume, but not a suspension.
    let store = store();
    announce(&store, "web-1", "/").await;
    operator(&store, &job()).steer(&SteeringCommand::Suspend).await.unwrap();
    let why = not_yet(
        steer_while_others_do(&store, SteeringCommand::Resume { skip_missed: false }, &[SteeringCommand::Suspend])
            .await,
    );
    assert!(why.contains("job was resumed, but has since been suspended again by bob@desk"), "{why}");
    let said = steer_while_others_do(&store, SteeringCommand::Suspend, &[SteeringCommand::Suspend]).await.unwrap();
    assert!(said.contains("job has since been suspended again by bob@desk"), "{said}");
}

async fn lead(store: &MemoryStore, itself: &NodeIncarnation) {
    let NodeIncarnation { node, incarnation } = itself.clone();
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
        paused_until: None,
        progress: None,
    };
    let (id, length) = (baton_election::LeaseId::from_random(1), Duration::from_secs(15));
    let ask = async |op| store.request(&job(), op).await.unwrap();
    ask(Op::Create { record: record.clone() }).await;
    let Reply::Read(Snapshot::Object { version, .. }) = ask(Op::Read).await else { panic!("no record") };
    ask(Op::Acquire { id, length, version: version.clone(), instead_of: None }).await;
    ask(Op::Write { id, version, record }).await;
}
