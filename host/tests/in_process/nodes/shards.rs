//! Tests of groups of shards: each shard has one leader, and the nodes lead equally many.

use std::collections::BTreeMap;

use super::*;

const SHARDS: u8 = 12;

fn sharded() -> NodeSettings {
    NodeSettings { shards: SHARDS, ..NodeSettings::default() }
}

impl Fleet {
    /// Returns how many instances run on each node.
    fn spread(&self) -> BTreeMap<String, usize> {
        let mut spread = BTreeMap::new();
        for running in self.instances.all.lock().unwrap().iter().filter(|one| !one.is_gone) {
            *spread.entry(running.node.clone()).or_default() += 1;
        }
        spread
    }

    async fn is_spread(&self, nodes: &[(&str, usize)]) {
        let expected = nodes.iter().map(|(node, count)| ((*node).to_owned(), *count)).collect();
        until(&format!("the spread {nodes:?}"), || (self.spread() == expected).then_some(())).await;
    }

    /// Returns how often the shards have changed their node so far.
    fn moves(&self) -> usize {
        let all = self.instances.all.lock().unwrap();
        let mut nodes = BTreeMap::new();
        all.iter()
            .filter(|one| nodes.insert(&one.election, &one.node).is_some_and(|before| *before != one.node))
            .count()
    }
}

#[tokio::test(start_paused = true)]
async fn shards_spread_evenly_when_nodes_join_leave_and_crash() {
    let fleet = Fleet::new(&["crawl"]).await;
    let alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;

    let began = fleet.clock.now();
    let beta = fleet.start_with("beta", sharded());
    fleet.is_spread(&[("alpha", 6), ("beta", 6)]).await;
    let took = fleet.clock.now().since(began);
    assert!(took < Duration::from_secs(30), "{took:?}");
    assert_eq!(fleet.moves(), 6, "no shard moves twice for one change");

    let gamma = fleet.start_with("gamma", sharded());
    fleet.is_spread(&[("alpha", 4), ("beta", 4), ("gamma", 4)]).await;
    // Without links, the other node may find a released shard before the heir does.
    let moves = fleet.moves();
    assert!((10..=12).contains(&moves), "each node gives two shards: {moves}");
    sleep(Duration::from_secs(120)).await;
    assert_eq!(fleet.moves(), moves, "nothing moves without a change");

    gamma.crash();
    fleet.instances.forget_node("gamma");
    fleet.is_spread(&[("alpha", 6), ("beta", 6)]).await;
    beta.end().await;
    fleet.is_spread(&[("alpha", 12)]).await;
    alpha.end().await;
}

#[tokio::test(start_paused = true)]
async fn announcement_of_node_contains_each_shard() {
    let fleet = Fleet::new(&["crawl"]).await;
    let alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;
    let leads_all = |said: &Announcement| {
        said.shards.len() == 12 && said.shards.values().all(|shard| shard.leads && shard.term == 1)
    };
    fleet.announced(&alpha, leads_all).await;
    // The announcement is the only object that contains the terms once the record is deleted.
    let shard = fleet.elections[0].with_shard(3);
    fleet.store.delete(&shard);
    let next = until("the next term", || {
        let all = fleet.instances.all.lock().unwrap();
        all.iter().rfind(|one| one.election == shard && one.term > 1).map(|one| one.term)
    });
    assert_eq!(next.await, 2);
}

#[tokio::test(start_paused = true)]
async fn suspended_group_runs_no_shard_until_it_is_resumed() {
    let fleet = Fleet::new(&["crawl"]).await;
    let _alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;
    fleet.steer(SteeringCommand::Suspend).await.unwrap();
    fleet.is_spread(&[]).await;
    fleet.steer(SteeringCommand::Resume { skip_missed: false }).await.unwrap();
    fleet.is_spread(&[("alpha", 12)]).await;
}

#[tokio::test(start_paused = true)]
async fn node_gets_no_more_shards_than_its_limit() {
    let fleet = Fleet::new(&["crawl"]).await;
    let _alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;
    let _beta = fleet.start_with("beta", NodeSettings { max_leaderships: Some(2), ..sharded() });
    fleet.is_spread(&[("alpha", 10), ("beta", 2)]).await;
    let moves = fleet.moves();
    sleep(Duration::from_secs(120)).await;
    assert_eq!(fleet.moves(), moves, "nothing moves to a node at its limit");
}

#[tokio::test(start_paused = true)]
async fn node_with_another_number_of_shards_gets_none() {
    let fleet = Fleet::new(&["crawl"]).await;
    let _alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;
    let terms = fleet.instances.all.lock().unwrap().len();
    let _beta = fleet.start_with("beta", NodeSettings { shards: 13, ..NodeSettings::default() });
    let _gamma = fleet.start_with("gamma", NodeSettings::default());
    sleep(Duration::from_secs(300)).await;
    assert_eq!(fleet.instances.all.lock().unwrap().len(), terms, "no shard is given to a node that cannot take it");
}

#[tokio::test(start_paused = true)]
async fn shard_that_a_node_has_stepped_down_from_is_not_given_back() {
    let fleet = Fleet::new(&["crawl"]).await;
    let _alpha = fleet.start_with("alpha", sharded());
    fleet.is_spread(&[("alpha", 12)]).await;
    let _beta = fleet.start_with("beta", sharded());
    fleet.is_spread(&[("alpha", 6), ("beta", 6)]).await;
    for index in 0..SHARDS {
        let shard = fleet.elections[0].with_shard(index);
        let long = SteeringCommand::StepDown(Duration::from_secs(600));
        fleet.steer_in(&shard, long, None).await.unwrap();
    }
    fleet.is_spread(&[("alpha", 6), ("beta", 6)]).await;
    let moves = fleet.moves();
    sleep(Duration::from_secs(300)).await;
    assert!(fleet.moves() <= moves + 2, "the shards come to rest: {moves}, then {}", fleet.moves());
}
