//! Tests of versions that are published while nodes crash, and of versions that fail.

use super::*;

#[tokio::test(start_paused = true)]
async fn version_that_traps_is_rolled_back_on_all_nodes() {
    let fleet = Fleet::new(&["fleet"]).await;
    let election = fleet.elections[0].clone();
    let alpha = fleet.start("alpha");
    fleet.leads(&alpha).await;
    let good = fleet.instances.running_module().unwrap();
    let beta = fleet.start("beta");
    fleet.is_ready(&beta).await;
    let bad = Digest::of(&component(2));
    fleet.instances.crashing.lock().unwrap().insert(bad);
    fleet.push(&election, 2).await;
    for node in [&alpha, &beta] {
        let rejected = node.event("version_rejected", |_| true).await;
        assert_eq!((&rejected["module"], &rejected["fallback"]), (&bad.to_string().into(), &good.to_string().into()));
    }
    fleet.leads(&alpha).await;
    assert_eq!((fleet.instances.running_module(), alpha.logged("released").len()), (Some(good), 0));
    // Neither the next leader nor a new node runs the bad version.
    let gamma = fleet.start("gamma");
    fleet.is_ready(&gamma).await;
    alpha.end().await;
    beta.end().await;
    fleet.leads(&gamma).await;
    assert_eq!((fleet.instances.running_module(), fleet.instances.starts_of(bad)), (Some(good), 1));
    // The rejection only affects the bad version, so a new version runs as soon as it is pushed. If the bad version is
    // pushed again, the leader tries it again.
    let next = fleet.push(&election, 3).await;
    until("the next version", || fleet.instances.running_module().filter(|running| *running == next)).await;
    fleet.push(&election, 2).await;
    until("another try", || (fleet.instances.starts_of(bad) == 2).then_some(())).await;
    until("the next version again", || fleet.instances.running_module().filter(|running| *running == next)).await;
}

#[tokio::test(start_paused = true)]
async fn all_nodes_agree_after_fifty_pushes_with_crashes() {
    let fleet = Fleet::new(&["fleet"]).await;
    let election = fleet.elections[0].clone();
    let mut random = 0x5eed_ba70_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    let mut nodes: Vec<TestNode> = ["alpha", "beta", "gamma"].map(|name| fleet.start(name)).into();
    let mut last = Digest::of(&component(1));
    for number in 2..=50 {
        last = fleet.push(&election, number).await;
        sleep(Duration::from_millis(below(5_000))).await;
        if below(4) == 0 {
            let at = usize::try_from(below(3)).unwrap();
            nodes.remove(at).crash();
            nodes.push(fleet.start(&format!("node-{number}")));
        }
    }
    until("the last version", || fleet.instances.running_module().filter(|running| *running == last)).await;
    for node in &nodes {
        fleet.announced(node, |announcement| announcement.holds.contains(&last)).await;
        assert_eq!(node.logged("version_rejected").len(), 0, "a crash rejects no version");
    }
}
