//! A group of shards on real nodes: the nodes share the shards, and each shard keeps its promises.

use std::collections::BTreeMap;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::until;
use crate::scenarios;

scenarios! {
    on_both_stores: [
        shards_are_spread_and_taken_over_and_steered,
        node_with_another_number_of_shards_leads_none,
    ],
}

const SHARDS: &[(&str, &str)] = &[("--shards", "6")];

impl Fleet {
    fn is_spread(&self, nodes: &[(&str, usize)]) {
        let expected: BTreeMap<String, usize> =
            nodes.iter().map(|(node, count)| ((*node).to_owned(), *count)).collect();
        until(&format!("the spread {nodes:?}"), || {
            let finished = self.command(&["status", ELECTION, "--output=json"]);
            let rows =
                if finished.stdout.is_empty() { Vec::new() } else { finished.json().as_array().cloned().unwrap() };
            let mut spread = BTreeMap::new();
            for row in rows.iter().filter(|row| row["lease"] == "held") {
                *spread.entry(row["node"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
            }
            if spread == expected { Ok(()) } else { Err(finished) }
        });
    }
}

fn shards_are_spread_and_taken_over_and_steered(fleet: Fleet) {
    let fleet = fleet.with(Guest::TellsConfig);
    let alpha = fleet.launch_with("alpha", SHARDS).start();
    fleet.is_spread(&[("alpha", 6)]);
    for index in 0..6 {
        let told = format!("shard {index} of 6");
        fleet.beat("each shard knows its index", |event| event.text("line").contains(&told));
    }
    let beta = fleet.launch_with("beta", SHARDS).start();
    fleet.is_spread(&[("alpha", 3), ("beta", 3)]);
    until("both nodes to announce their shards", || {
        let nodes = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
        let leads =
            |node: &serde_json::Value| node["shards"].as_array().unwrap().len() == 3 && node["role"] == "leader";
        if nodes.as_array().unwrap().iter().all(leads) { Ok(()) } else { Err(nodes) }
    });
    let text = fleet.command(&["status"]).stdout;
    assert!(text.contains("(6 shards)") && text.contains("alpha: 3, beta: 3"), "{text}");

    // Steering works on the group and on one shard.
    let refused = fleet.command(&["step-down", ELECTION]);
    assert!(refused.code == Some(1) && refused.stderr.contains("has shards"), "{refused:?}");
    let shard = format!("{ELECTION}/0");
    let before = fleet.command(&["status", &shard, "--output=json"]).json()[0].clone();
    let moved = fleet.command(&["step-down", &shard]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    let after = fleet.command(&["history", &shard, "--output=json", "--limit=1"]).json()[0].clone();
    assert!(after["term"].as_u64() > before["term"].as_u64(), "{before} {after}");
    assert_ne!(after["node"], before["node"]);
    let suspended = fleet.command(&["suspend", ELECTION]);
    assert_eq!(suspended.code, Some(0), "{suspended:?}");
    fleet.is_spread(&[]);
    let resumed = fleet.command(&["resume", ELECTION]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    fleet.is_spread(&[("alpha", 3), ("beta", 3)]);

    drop(alpha);
    fleet.is_spread(&[("beta", 6)]);
    drop(beta);
    fleet.check_promises();
}

fn node_with_another_number_of_shards_leads_none(fleet: Fleet) {
    let mut alpha = fleet.launch_with("alpha", SHARDS).start();
    fleet.is_spread(&[("alpha", 6)]);
    let beta = fleet.launch_with("beta", &[("--shards", "7")]).start();
    beta.event("its module", |event| event.name == "module_ready");
    assert!(alpha.terminate().success());
    let misconfigured = beta.event("the reason", |event| event.name == "misconfigured");
    assert!(misconfigured.text("error").contains("has 6 shards"), "{misconfigured:?}");
    let mut gamma = fleet.launch_with("gamma", SHARDS).start();
    fleet.is_spread(&[("gamma", 6)]);
    assert!(gamma.terminate().success());
    assert!(!fleet.journal.events().iter().any(|event| event.from == "beta" && event.name == "elected"));
    fleet.check_promises();
}
