//! Crashes of leaders and of `baton push` at random moments.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::runs_on;
use super::versions::Version;
use crate::fleet::{ELECTION, Fleet};
use crate::node::{Node, until};
use crate::scenarios;

scenarios! {
    on_sqlite: [
        all_nodes_agree_after_fifty_pushes_with_crashes,
    ],
}

const PUSHES: usize = 50;
const NODES: [&str; 3] = ["alpha", "beta", "gamma"];
/// Seed of the pseudorandom generator that chooses the crashes and the pauses between pushes.
const SEED: u64 = 0x5eed_ba70;

fn all_nodes_agree_after_fifty_pushes_with_crashes(fleet: Fleet) {
    let mut random = Random(SEED);
    let first = fleet.version("works 0");
    fleet.push(&first);
    let mut versions = vec![first];
    let mut nodes: Vec<Node> = NODES.map(|name| fleet.launch_pushed(name, &[]).start()).into();
    fleet.runs(&versions[0], 0);
    // The number of the last version whose push is known to have succeeded.
    let mut pushed = 0;
    for number in 1..=PUSHES {
        let version = fleet.version(&format!("works {number}"));
        let mut pusher = fleet.push_command(&version);
        let mut pusher = pusher.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        if random.one_in(3) {
            random.sleep(200);
            pusher.kill().expect("a child");
        }
        if pusher.wait().expect("a child").success() {
            pushed = number;
        }
        versions.push(version);
        if random.one_in(6) {
            random.sleep(1000);
            let leader = fleet.events("elected").last().map(|event| event.from.clone());
            if let Some(at) = nodes.iter().position(|node| Some(&node.name) == leader.as_ref()) {
                nodes[at].signal(Signal::KILL);
                nodes[at].wait();
                nodes[at] = fleet.launch_pushed(&format!("node-{number}"), &[]).start();
            }
        }
        // The pause between pushes lets the nodes notice many of the versions instead of only the last version.
        random.sleep(2000);
    }
    assert!(nodes.iter_mut().all(Node::is_running), "no host has ended by itself");
    let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
    all_agree(&fleet, &names, &versions, pushed);
    let ends: Vec<_> = nodes.iter_mut().map(|node| node.terminate().code()).collect();
    assert_eq!(ends, [Some(0); 3]);
    assert!(fleet.events("version_rejected").is_empty(), "a crash rejects no version");
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

/// Waits until all nodes have fetched the current version, and only the leader runs it. Checks that this version is not
/// older than number `pushed`.
fn all_agree(fleet: &Fleet, nodes: &[String], versions: &[Version], pushed: usize) {
    let current = until("one current version, and all nodes to have it", || {
        let finished = fleet.command(&["modules", ELECTION, "--output=json"]);
        if finished.code != Some(0) {
            return Err(finished);
        }
        let rows = finished.json();
        let rows = rows.as_array().expect("a list");
        let current: Vec<_> = rows.iter().filter(|row| row["current"] == true).collect();
        let [current] = current[..] else { panic!("not one current version: {finished:?}") };
        let runs = |row: &Value| nodes.iter().filter(|node| runs_on(row, node)).count();
        let holders = current["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let holds = |node: &&String| holders.iter().any(|of| of["node"] == **node);
        let is_held = nodes.iter().filter(holds).count() == nodes.len();
        let is_settled = is_held && runs(current) == 1 && rows.iter().map(runs).sum::<usize>() == 1;
        if is_settled { Ok(current["digest"].clone()) } else { Err(finished) }
    });
    let at = versions.iter().position(|version| current == *version.digest).expect("a pushed version");
    assert!(at >= pushed, "{} is current, and {} was pushed after it", versions[at].name, versions[pushed].name);
    let status = fleet.status_until("the leader to run it", |status| status["module"] == current);
    let last = fleet.events("started").into_iter().max_by_key(|event| event.term).expect("a leader");
    assert_eq!((&status["node"], &current), (&(&*last.from).into(), &last.text("module").into()), "{status}");
}

/// A pseudorandom generator with a fixed seed: xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.next().is_multiple_of(many)
    }

    /// Sleeps for less than `limit` milliseconds.
    fn sleep(&mut self, limit: u64) {
        std::thread::sleep(Duration::from_millis(self.next() % limit));
    }
}
