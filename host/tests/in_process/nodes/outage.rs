//! Tests of a leader that cannot reach the store, while the other nodes can.

use super::*;

#[tokio::test(start_paused = true)]
async fn leader_keeps_its_term_when_outage_is_short() {
    let fleet = Fleet::new(&["fleet"]).await;
    let alpha = fleet.start("alpha");
    let term = fleet.leads(&alpha).await;
    let beta = fleet.start("beta");
    fleet.is_ready(&beta).await;
    let longest = timing().tolerated_outage();
    // Begin the outages at different times between two renewals.
    for moment in 0..100 {
        sleep(LEASE + LEASE / 600 * moment).await;
        alpha.network.cut(true);
        sleep(longest).await;
        alpha.network.cut(false);
    }
    sleep(LEASE).await;
    assert_eq!(fleet.leads(&alpha).await, term);
    assert!(!alpha.logged("renewal_failed").is_empty() && !alpha.logged("renewal_recovered").is_empty());
}

#[tokio::test(start_paused = true)]
async fn cut_off_leader_ends_before_another_begins() {
    let fleet = Fleet::new(&["fleet"]).await;
    let mut nodes: Vec<TestNode> = ["alpha", "beta", "gamma"].map(|name| fleet.start(name)).into();
    let mut last = 0;
    // Whenever an instance starts, the fleet checks that no other instance can still act.
    for _ in 0..30 {
        until("a leader", || (fleet.instances.latest() > last).then_some(())).await;
        let leader = nodes.iter().position(|node| node.name == fleet.instances.leader()).unwrap();
        nodes[leader].network.cut(true);
        let cut_at = fleet.clock.now();
        until("another leader", || (fleet.instances.leader() != nodes[leader].name).then_some(())).await;
        let took = fleet.clock.now().since(cut_at);
        assert!(took <= LEASE + Duration::from_secs(2), "{took:?}");
        nodes[leader].event("leadership_lost", |_| true).await;
        nodes[leader].network.cut(false);
        last = fleet.instances.latest();
        let leader = nodes.iter().position(|node| node.name == fleet.instances.leader()).unwrap();
        // Restart the new leader's node. The shutdown makes this leader hand off in an orderly way.
        let name = nodes[leader].name.clone();
        nodes.remove(leader).end().await;
        nodes.push(fleet.start(&name));
    }
}
