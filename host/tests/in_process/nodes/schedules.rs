//! Tests of scheduled runs on several nodes. The clocks start at the Unix epoch, and a run is due every 10
//! minutes.

use baton_store::steering::{self, CommandOrigin, EditError, Steering, SteeringError, Trigger};

use super::*;

const INTERVAL: Duration = Duration::from_secs(600);
const SCHEDULED: NodeSettings = NodeSettings {
    priority: 100,
    preempt: false,
    max_leaderships: None,
    pause: Duration::ZERO,
    schedule: Some("*/10 * * * *"),
    shards: 1,
};

impl Fleet {
    async fn runs(&self) -> (String, Term, Duration) {
        until("a run", || {
            let instances = self.instances.all.lock().unwrap();
            let running = instances.iter().rfind(|one| !one.is_gone)?;
            Some((running.node.clone(), running.term, running.run?.due))
        })
        .await
    }

    /// Reads the record. Returns the due time of the last run that has begun, and the due time of the last run that has
    /// completed.
    async fn recorded(&self) -> (Duration, Duration) {
        let read = self.store.request(&self.elections[0], Op::Read).await;
        let Ok(Reply::Read(snapshot)) = read else { panic!("{read:?}") };
        let progress = snapshot.record().unwrap().progress.clone().unwrap();
        (progress.begun, progress.completed)
    }

    async fn is_completed(&self, due: Duration) {
        let waits = async {
            while self.recorded().await != (due, due) {
                sleep(POLL).await;
            }
        };
        timeout(PATIENCE, waits).await.unwrap_or_else(|_| panic!("the run of {due:?} is not completed"));
    }
}

#[tokio::test(start_paused = true)]
async fn run_of_crashed_leader_is_repeated_and_next_waits() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start_with("alpha", SCHEDULED);
    alpha.event("next_run", |event| event["due"] == "1970-01-01T00:10:00Z").await;
    let beta = fleet.start_with("beta", SCHEDULED);
    fleet.is_ready(&beta).await;
    let (node, term, due) = fleet.runs().await;
    assert_eq!((node.as_str(), due), ("alpha", INTERVAL));
    assert_eq!(fleet.recorded().await, (due, Duration::ZERO), "the run is recorded before it begins");

    alpha.crash();
    fleet.instances.forget(term);
    let (node, repeated, again) = fleet.runs().await;
    assert_eq!((node.as_str(), again), ("beta", due));
    assert!(repeated > term);
    fleet.instances.end(repeated, End::Done);
    fleet.is_completed(due).await;
    for term in [term, repeated] {
        let past = fleet.past_term(term, |past| past.ended.is_some()).await;
        assert_eq!(past.due.as_deref(), Some("1970-01-01T00:10:00Z"), "{past:?}");
    }
    beta.event("next_run", |event| event["due"] == "1970-01-01T00:20:00Z").await;

    // If a leader shuts down while it waits for the next run, its successor begins that run.
    let gamma = fleet.start_with("gamma", SCHEDULED);
    fleet.is_ready(&gamma).await;
    beta.end().await;
    let (node, _, due) = fleet.runs().await;
    assert_eq!((node.as_str(), due), ("gamma", INTERVAL * 2));
    gamma.crash();
}

#[tokio::test(start_paused = true)]
async fn completed_run_survives_deleted_record() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start_with("alpha", SCHEDULED);
    let (_, term, due) = fleet.runs().await;
    fleet.instances.end(term, End::Done);
    fleet.is_completed(due).await;
    fleet
        .announced(&alpha, |said| {
            said.recalled(&fleet.elections[0]).progress.is_some_and(|progress| progress.completed == due)
        })
        .await;
    alpha.crash();
    fleet.store.delete(&fleet.elections[0]);
    let beta = fleet.start_with("beta", SCHEDULED);
    let next = beta.event("next_run", |_| true).await;
    assert_eq!(next["due"], "1970-01-01T00:20:00Z", "the first run is not repeated");
    assert_eq!(fleet.recorded().await, (due, due));
}

#[tokio::test(start_paused = true)]
async fn triggered_run_of_crashed_leader_happens_once() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start_with("alpha", SCHEDULED);
    alpha.event("next_run", |event| event["due"] == "1970-01-01T00:10:00Z").await;
    sleep(INTERVAL / 4).await;
    let due = Duration::from_secs(fleet.clock.wall().as_secs());
    let order = CommandOrigin::now("ann@desk", Some("the data was late")).unwrap();
    let trigger = Trigger { order, due_s: due.as_secs() };
    let change = |found: Result<Steering, SteeringError>| {
        Ok::<_, EditError>((Steering { trigger: Some(trigger.clone()), ..found? }, ()))
    };
    steering::edit(&fleet.store, &fleet.elections[0], change).await.unwrap();
    let (_, term, began) = fleet.runs().await;
    assert_eq!(began, due);
    let logged = alpha.event("next_run", |event| event["by"] == "ann@desk").await;
    assert_eq!(logged["reason"], "the data was late");

    alpha.crash();
    fleet.instances.forget(term);
    let beta = fleet.start_with("beta", SCHEDULED);
    let (_, term, again) = fleet.runs().await;
    assert_eq!(again, due);
    fleet.instances.end(term, End::Done);
    fleet.is_completed(due).await;
    let (_, _, next) = fleet.runs().await;
    assert_eq!(next, INTERVAL, "the trigger is still in the store, and does not run again");
    beta.crash();
}

#[tokio::test(start_paused = true)]
async fn push_during_run_takes_effect_at_next_run() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start_with("alpha", SCHEDULED);
    let (_, term, due) = fleet.runs().await;
    let old = fleet.instances.running_module().unwrap();
    let new = fleet.push(&fleet.elections[0], 2).await;
    fleet.announced(&alpha, |said| said.holds.contains(&new)).await;
    assert_eq!((fleet.instances.latest(), fleet.instances.running_module()), (term, Some(old)));
    fleet.instances.end(term, End::Done);
    fleet.is_completed(due).await;
    let (_, _, due) = fleet.runs().await;
    assert_eq!((due, fleet.instances.running_module()), (INTERVAL * 2, Some(new)));
    alpha.crash();
}
