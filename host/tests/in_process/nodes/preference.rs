//! Tests of which node takes a free lease: priorities, preemption, and the limit on the number of elections that a node
//! leads.

use super::*;

fn with_priority(priority: u8) -> NodeSettings {
    NodeSettings { priority, ..NodeSettings::default() }
}

#[tokio::test(start_paused = true)]
async fn node_with_lower_priority_defers_and_then_takes_lease() {
    let fleet = Fleet::new(&["fleet"]).await;
    let beta = fleet.start_with("beta", with_priority(0));
    fleet.leads(&beta).await;
    assert!(!beta.logged("standby").iter().any(is_deferral), "nobody had led before");
    let alpha = fleet.start("alpha");
    alpha.event("standby", |event| event["leader"] == "beta").await;
    beta.end().await;
    fleet.leads(&alpha).await;
    let beta = fleet.start_with("beta", with_priority(0));
    beta.event("standby", |event| event["leader"] == "alpha").await;
    alpha.crash();
    beta.event("standby", is_deferral).await;
    let waits_from = fleet.clock.now();
    fleet.leads(&beta).await;
    let waited = fleet.clock.now().since(waits_from);
    assert!((Duration::from_millis(1_900)..Duration::from_secs(3)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn host_exceeds_its_leadership_limit_only_when_no_other_leads() {
    let fleet = Fleet::new(&["one", "two"]).await;
    let alpha = fleet.start_with("alpha", NodeSettings { max_leaderships: Some(1), ..NodeSettings::default() });
    let waited = alpha.event("standby", is_deferral).await;
    let waits_from = fleet.clock.now();
    for election in &fleet.elections {
        fleet.leads_in(election, &alpha).await;
    }
    let waits = fleet.clock.now().since(waits_from);
    assert!((Duration::from_secs(9)..Duration::from_secs(13)).contains(&waits), "{waits:?}");
    assert_ne!(waited["election"], alpha.logged("elected")[0]["election"]);
    assert_eq!(alpha.logged("standby").iter().filter(|event| is_deferral(event)).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn leadership_limit_counts_only_current_elections() {
    let fleet = Fleet::new(&["one", "two"]).await;
    let alpha = fleet.start_with("alpha", NodeSettings { max_leaderships: Some(1), ..NodeSettings::default() });
    let waiting = alpha.event("standby", is_deferral).await["election"].clone();
    let is_waiting = |election: &&ElectionName| waiting == election.as_str();
    let [second, first] =
        [true, false].map(|waits| fleet.elections.iter().find(|one| is_waiting(one) == waits).unwrap());
    fleet.leads_in(first, &alpha).await;
    fleet.steer_in(first, SteeringCommand::Suspend, None).await.unwrap();
    fleet.leads_in(second, &alpha).await;
    fleet.steer_in(first, SteeringCommand::Resume { skip_missed: false }, None).await.unwrap();
    alpha.event("standby", |event| is_deferral(event) && event["election"] == first.as_str()).await;
}

#[tokio::test(start_paused = true)]
async fn leader_with_preempt_hands_over_to_preferred_node() {
    let fleet = Fleet::new(&["fleet"]).await;
    let beta = fleet.start_with("beta", NodeSettings { priority: 50, preempt: true, ..NodeSettings::default() });
    let first = fleet.leads(&beta).await;
    let alpha = fleet.start("alpha");
    assert!(fleet.leads(&alpha).await > first);
    let transfer = beta.event("ineligible", |event| event["cause"] == "transferring").await;
    assert_eq!([&transfer["to"], &transfer["by"]], ["alpha", "beta (--preempt)"]);
}

#[tokio::test(start_paused = true)]
async fn leader_without_preempt_ignores_higher_priorities() {
    let fleet = Fleet::new(&["fleet"]).await;
    let beta = fleet.start_with("beta", with_priority(50));
    let term = fleet.leads(&beta).await;
    let alpha = fleet.start_with("alpha", NodeSettings { preempt: true, ..NodeSettings::default() });
    alpha.event("standby", |event| event["leader"] == "beta").await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(fleet.leads(&beta).await, term);
    assert_eq!(beta.logged("ineligible").len() + beta.logged("stopping").len(), 0);
}
