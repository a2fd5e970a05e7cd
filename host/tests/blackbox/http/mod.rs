//! Outgoing HTTP: a real guest in a real host sends requests to real servers on loopback.

mod endings;
mod failovers;
mod grants;
mod requests;
pub mod server;
mod tls;

use std::time::Duration;

use crate::fleet::{ELECTION, Fleet};
use crate::guests::asks_over_http;
use crate::node::{Event, Launch, Node};
use crate::store::Store;

fn fleet() -> Fleet {
    Fleet::new(Store::sqlite())
}

/// The node grants no requests. A caller whose guest needs a grant adds `--allow-http`.
pub fn launch(fleet: &Fleet, name: &str, behaviour: &str, url: &str) -> Launch {
    launch_with_lease(fleet.lease(), fleet, name, behaviour, url)
}

pub fn launch_with_lease(lease: Duration, fleet: &Fleet, name: &str, behaviour: &str, url: &str) -> Launch {
    launch_with_times(lease, "300ms", fleet, name, behaviour, url)
}

fn launch_with_times(lease: Duration, grace: &str, fleet: &Fleet, name: &str, behaviour: &str, url: &str) -> Launch {
    Launch::run(name, fleet.home.path(), &fleet.journal)
        .arg(asks_over_http())
        .flag("--election", ELECTION)
        .flag("--store", fleet.store.url())
        .flag("--lease", format!("{}s", lease.as_secs()))
        .flag("--grace", grace)
        .flag("--restart-delay", "0s")
        .flag("--env", format!("BEHAVIOUR={behaviour}"))
        .flag("--env", format!("URL={url}"))
}

fn results(fleet: &Fleet, node: &Node) -> Vec<String> {
    let lines = fleet.journal.wait(&format!("{} to rest", node.name), |events| {
        let own = |event: &&Event| event.from == node.name && event.name == "output";
        let lines: Vec<&str> = events.iter().filter(own).map(|event| event.text("line")).collect();
        let [.., results, "rests"] = lines[..] else { return None };
        Some(results.to_owned())
    });
    lines.split('\t').map(str::to_owned).collect()
}

pub fn events(fleet: &Fleet, name: &str) -> Vec<Event> {
    fleet.journal.events().into_iter().filter(|event| event.name == name).collect()
}
