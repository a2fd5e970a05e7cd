//! Priorities, preemption, and the limit on the number of elections that a host leads.

use serde_json::Value;

use crate::coordinators::table;
use crate::endpoint::{Endpoint, sample};
use crate::fleet::{ELECTION, Fleet};
use crate::guests::Guest;
use crate::node::{Event, Launch, Node, until};
use crate::scenarios;
use crate::store::Store;

scenarios! {
    on_sqlite: [
        leader_with_preempt_hands_over_to_preferred_node,
        labels_and_priorities_are_shown_everywhere,
    ],
}

fn is_deferral(event: &Event) -> bool {
    event.name == "standby" && event.text("reason").contains("lets other nodes take it first")
}

fn leads_one_of_two(fleet: &Fleet) -> Node {
    let tables = ["one", "two"].map(|name| table(name, Guest::Beats)).concat();
    let store = fleet.store.url();
    let file = format!("max-leaderships = 1\nstore = {store:?}\nlease = \"15s\"\nmax-memory = \"64MiB\"\n{tables}");
    std::fs::write(fleet.home.path().join("baton.toml"), file).expect("a file");
    Launch::run("alpha", fleet.home.path(), &fleet.journal).start()
}

fn election(event: &Event) -> String {
    event.fields["election"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn leadership_limit_counts_only_current_elections() {
    let fleet = Fleet::new(Store::sqlite());
    let alpha = leads_one_of_two(&fleet);
    let first = election(&alpha.event("to lead", |event| event.name == "elected"));
    let second = election(&alpha.event("to wait", is_deferral));
    let steer = |command: &str| {
        let finished = fleet.command(&[command, &first]);
        assert_eq!(finished.code, Some(0), "{finished:?}");
    };
    steer("suspend");
    alpha.event("to lead the other", |event| event.name == "elected" && election(event) == second);
    steer("resume");
    alpha.event("to leave the first to others", |event| is_deferral(event) && election(event) == first);
}

fn leader_with_preempt_hands_over_to_preferred_node(fleet: Fleet) {
    let beta = fleet.launch_with("beta", &[("--priority", "50")]).arg("--preempt").start();
    let first = fleet.beat_above(0).term;
    // Beta hands over because beta has `--preempt`. While beta leads, alpha's `--preempt` has no effect.
    let alpha = fleet.launch("alpha").arg("--preempt").start();
    alpha.event("to lead", |event| event.name == "elected");
    let second = fleet.beat_above(first);
    assert_eq!(second.from, "alpha");
    let transfer = beta.event("the transfer", |event| event.is_ineligible("transferring"));
    let why = "alpha has priority 100, and beta 50";
    assert_eq!([transfer.text("to"), transfer.text("by"), transfer.text("reason")], ["alpha", "beta (--preempt)", why]);
    until("the history", || {
        let terms = fleet.command(&["history", ELECTION, "--output=json"]);
        let row = terms.stdout.contains(why) && terms.stdout.contains("asked to transfer to alpha");
        if row { Ok(()) } else { Err(terms) }
    });
    fleet.check_promises();
}

fn labels_and_priorities_are_shown_everywhere(fleet: Fleet) {
    let alpha = fleet.launch_with("alpha", &[("--priority", "70")]);
    let alpha = alpha.flag("--label", "zone=west").flag("--label", "rack=7").start();
    fleet.beat_above(0);
    let at = Endpoint::of(&alpha);
    assert_eq!(sample(&at.ask("/metrics").body, "baton_node_label_info{label=\"zone\",value=\"west\"}"), 1.0);
    let nodes: Vec<Value> = until("the nodes", || {
        let answer = at.ask_as("localhost", "/v1/nodes");
        let nodes: Vec<Value> = serde_json::from_str(&answer.body).unwrap_or_default();
        if nodes.is_empty() { Err(answer) } else { Ok(nodes) }
    });
    let labels = serde_json::json!({ "rack": "7", "zone": "west" });
    let listed = fleet.command(&["nodes", ELECTION, "--output=json"]).json();
    for row in [&nodes[0], &listed[0]] {
        assert_eq!(
            (&row["labels"], &row["priority"], &row["at_leadership_limit"]),
            (&labels, &70.into(), &false.into())
        );
    }
    let of_itself = at.ask_as("localhost", &format!("/v1/elections/{ELECTION}"));
    assert_eq!(serde_json::from_str::<Value>(&of_itself.body).expect("JSON")["labels"], labels, "{of_itself:?}");
    assert_eq!(fleet.status()["labels"], labels);
    for command in ["nodes", "status"] {
        let table = fleet.command(&[command, ELECTION]);
        assert!(table.stdout.contains("rack=7,zone=west"), "{table:?}");
    }
    fleet.check_promises();
}
