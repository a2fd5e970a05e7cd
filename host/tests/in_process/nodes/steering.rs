//! Tests of steering. In some tests the leader ignores the stop request, is idle, or has crashed; in others, the
//! steering object is damaged or restored from a backup.

use baton_node::steering::operator::NoEffect;
use baton_store::VersionedObject;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

async fn led_by_alpha<const N: usize>(others: [&str; N]) -> (Fleet, TestNode, [TestNode; N], Term) {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start("alpha");
    let term = fleet.leads(&alpha).await;
    let others = others.map(|name| fleet.start(name));
    for node in &others {
        fleet.is_ready(node).await;
    }
    (fleet, alpha, others, term)
}

#[tokio::test(start_paused = true)]
async fn step_down_hands_over_and_reports_its_reason() {
    let (fleet, alpha, [beta], term) = led_by_alpha(["beta"]).await;
    let why = Some("kernel update");
    fleet.steer_because(SteeringCommand::StepDown(HOUR), why).await.unwrap();
    assert!(fleet.leads(&beta).await > term);
    let stepping_down = &alpha.logged("ineligible")[0];
    assert_eq!((&stepping_down["by"], &stepping_down["reason"]), (&"ann@desk".into(), &"kernel update".into()));
    assert!(stepping_down["wait_s"].as_f64() > Some(3590.0), "{stepping_down:?}");
    let stopping = &alpha.logged("stopping")[0];
    assert_eq!(stopping["reason"], "step-down");
    assert!(stopping["message"].as_str().unwrap().contains("kernel update"), "{stopping:?}");
    fleet.announced(&alpha, |announcement| announcement.ineligible.as_deref() == Some("stepped-down")).await;
    // Alpha is still ineligible, so no node can take over when beta steps down. Beta therefore leads again afterwards.
    let term = fleet.leads(&beta).await;
    fleet.steer(SteeringCommand::StepDown(Duration::from_secs(3))).await.unwrap();
    beta.event("eligible", |_| true).await;
    assert!(fleet.leads(&beta).await > term);
    assert_eq!(alpha.logged("elected").len(), 1, "alpha is still ineligible");
}

#[tokio::test(start_paused = true)]
async fn no_node_leads_while_election_is_suspended() {
    let (fleet, alpha, [beta], term) = led_by_alpha(["beta"]).await;
    fleet.steer_because(SteeringCommand::Suspend, Some("the database is moved")).await.unwrap();
    for node in [&alpha, &beta] {
        assert_eq!(
            node.event("ineligible", |event| event["cause"] == "suspended").await["reason"],
            "the database is moved"
        );
        fleet.announced(node, |announcement| announcement.ineligible.as_deref() == Some("suspended")).await;
    }
    // A node that starts now must read the suspension before it acquires the free lease.
    let gamma = fleet.start("gamma");
    gamma.event("ineligible", |event| event["cause"] == "suspended").await;
    for command in [SteeringCommand::StepDown(HOUR), SteeringCommand::Transfer("alpha".to_owned())] {
        assert!(matches!(fleet.steer(command).await, Err(NoEffect::Refused(_))));
    }
    sleep(HOUR).await;
    let elected = || [&alpha, &beta, &gamma].map(|node| node.logged("elected").len());
    assert_eq!(elected(), [1, 0, 0]);
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    for node in [&alpha, &beta, &gamma] {
        node.event("eligible", |_| true).await;
    }
    until("a leader", || (elected().iter().sum::<usize>() == 2).then_some(())).await;
    assert!(fleet.instances.latest() > term);
}

#[tokio::test(start_paused = true)]
async fn lease_is_transferred_to_the_named_node() {
    let (fleet, alpha, others, mut last) = led_by_alpha(["beta", "gamma", "delta"]).await;
    let to = |name: &str| SteeringCommand::Transfer(name.to_owned());
    assert!(matches!(fleet.steer(to("omega")).await, Err(NoEffect::Refused(_))));
    fleet.steer(to("alpha")).await.unwrap();
    for node in [&others[2], &others[0], &others[1]] {
        // The previous transfer may have made this node ineligible for a while, so wait until it is ready.
        fleet.is_ready(node).await;
        fleet.steer_because(to(&node.name), Some("a test")).await.unwrap();
        let term = fleet.leads(node).await;
        assert!(term > last);
        last = term;
    }
    let transfer = &alpha.logged("ineligible")[0];
    assert_eq!((&transfer["to"], &transfer["reason"]), (&"delta".into(), &"a test".into()));
}

#[tokio::test(start_paused = true)]
async fn leader_leads_again_when_target_of_transfer_is_dead() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start_with("alpha", NodeSettings { priority: 0, ..NodeSettings::default() });
    let term = fleet.leads(&alpha).await;
    let beta = fleet.start("beta");
    fleet.is_ready(&beta).await;
    beta.crash();
    let transfer = fleet.steer(SteeringCommand::Transfer("beta".to_owned())).await;
    assert!(matches!(transfer, Err(NoEffect::NotYet(_))), "{transfer:?}");
    alpha.event("eligible", |_| true).await;
    assert!(fleet.leads(&alpha).await > term);
    assert_eq!(alpha.logged("standby").iter().filter(|event| is_deferral(event)).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn commands_wait_for_expiry_when_leader_is_dead() {
    let (fleet, alpha, [beta, gamma, delta], term) = led_by_alpha(["beta", "gamma", "delta"]).await;
    alpha.crash();
    let transfer = fleet.steer(SteeringCommand::Transfer("beta".to_owned())).await;
    // If another node has not read the transfer to beta when the lease expires, that node may acquire the lease before
    // beta does.
    let second = until("a leader", || Some(fleet.instances.latest()).filter(|latest| *latest > term)).await;
    assert_eq!(transfer.is_ok(), fleet.instances.leader() == "beta", "{transfer:?}");
    let mut rest = vec![beta, gamma, delta];
    let crash_leader = |rest: &mut Vec<TestNode>| {
        let place = rest.iter().position(|node| node.name == fleet.instances.leader()).expect("one of them");
        rest.remove(place).crash();
    };
    crash_leader(&mut rest);
    fleet.steer(SteeringCommand::StepDown(HOUR)).await.unwrap();
    let third = fleet.instances.latest();
    assert!(third > second);
    crash_leader(&mut rest);
    fleet.steer(SteeringCommand::Suspend).await.unwrap();
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    assert!(fleet.leads(&rest[0]).await > third);
}

#[tokio::test(start_paused = true)]
async fn leader_that_ignores_stop_is_killed() {
    let (fleet, alpha, [beta], term) = led_by_alpha(["beta"]).await;
    fleet.instances.ignore_stops();
    fleet.steer(SteeringCommand::Transfer("beta".to_owned())).await.unwrap();
    alpha.event("killed", |_| true).await;
    assert!(fleet.leads(&beta).await > term);
    fleet.steer(SteeringCommand::Suspend).await.unwrap();
    beta.event("killed", |_| true).await;
}

#[tokio::test(start_paused = true)]
async fn idle_leader_steps_down_and_keeps_its_pause() {
    let fleet = Fleet::new(&["fleet"]).await;
    let paused = NodeSettings { pause: HOUR, ..NodeSettings::default() };
    let alpha = fleet.start_with("alpha", paused);
    let first = fleet.leads(&alpha).await;
    let began = fleet.clock.now();
    fleet.instances.end(first, End::Done);
    alpha.event("next_term", |_| true).await;
    let beta = fleet.start_with("beta", paused);
    fleet.is_ready(&beta).await;
    fleet.steer(SteeringCommand::StepDown(2 * HOUR)).await.unwrap();
    beta.event("next_term", |_| true).await;
    // If the new leader crashes, its successor also waits for the rest of the pause before it runs the job again.
    let gamma = fleet.start_with("gamma", paused);
    fleet.is_ready(&gamma).await;
    beta.crash();
    gamma.event("next_term", |_| true).await;
    assert_eq!(fleet.instances.latest(), first);
    assert!(fleet.leads(&gamma).await > first);
    let waited = fleet.clock.now().since(began);
    assert!((HOUR..HOUR + Duration::from_secs(60)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn damaged_steering_is_reported_once_and_replaced() {
    let (fleet, alpha, [], term) = led_by_alpha([]).await;
    fleet.steer(SteeringCommand::Suspend).await.unwrap();
    let errors = || {
        let is_error = |event: &Value| event["error"].as_str().is_some_and(|error| error.contains("steering"));
        alpha.logged("error").iter().filter(|event| is_error(event)).count()
    };
    fleet.write_steering(Bytes::from_static(b"{\"format\":1,\"suspended\":")).await;
    until("the error", || (errors() == 1).then_some(())).await;
    assert!(matches!(fleet.steer(SteeringCommand::Suspend).await, Err(NoEffect::Steering(_))));
    sleep(HOUR).await;
    assert_eq!(fleet.instances.latest(), term, "the known suspension stays in force");
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    fleet.leads(&alpha).await;
    // The object looks as if a newer host had written it. This version cannot read it, so no command may overwrite it.
    fleet.write_steering(Bytes::from_static(b"{\"format\":3,\"suspended\":true}")).await;
    until("the second error", || (errors() == 2).then_some(())).await;
    for command in
        [SteeringCommand::Resume { skip_missed: false }, SteeringCommand::Suspend, SteeringCommand::StepDown(HOUR)]
    {
        assert!(matches!(fleet.steer(command).await, Err(NoEffect::Steering(_))));
    }
    sleep(HOUR).await;
    assert_eq!((errors(), alpha.logged("elected").len()), (2, 2));
}

/// The operator lifts a suspension, and later restores a backup of the steering object that contains it. The suspension
/// is then in force again, with its old id.
#[tokio::test(start_paused = true)]
async fn restored_suspension_is_in_force() {
    let (fleet, alpha, [], term) = led_by_alpha([]).await;
    fleet.steer(SteeringCommand::Suspend).await.unwrap();
    let (_, suspended) = fleet.read_steering().await.unwrap();
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    let second = fleet.leads(&alpha).await;
    assert!(second > term);
    fleet.write_steering(suspended).await;
    until("the release", || (alpha.logged("released").len() == 2).then_some(())).await;
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    assert!(fleet.leads(&alpha).await > second);
}

impl Fleet {
    async fn read_steering(&self) -> Option<(baton_election::Version, Bytes)> {
        match self.store.read(VersionedObject::Steering, &self.elections[0], None).await.unwrap() {
            Reading::Found(version, content) => Some((version, content)),
            Reading::Nothing | Reading::Unchanged => None,
        }
    }

    async fn write_steering(&self, content: Bytes) {
        let version = self.read_steering().await.map(|(version, _)| version);
        let election = &self.elections[0];
        self.store.write(VersionedObject::Steering, election, version.as_ref(), content).await.unwrap();
    }
}
