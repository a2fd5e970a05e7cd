//! HTTP out: a real guest asks real servers on loopback, from a real host.

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

/// A fleet on the embedded store.
fn fleet() -> Fleet {
    Fleet::new(Store::sqlite())
}

/// A node that is about to start, whose guest asks these URLs in that way. Nothing is granted yet.
pub fn launch(fleet: &Fleet, name: &str, behaviour: &str, url: &str) -> Launch {
    launch_with_lease(fleet.lease(), fleet, name, behaviour, url)
}

/// The same, with a lease of that length.
pub fn launch_with_lease(lease: Duration, fleet: &Fleet, name: &str, behaviour: &str, url: &str) -> Launch {
    launch_with_times(lease, "300ms", fleet, name, behaviour, url)
}

/// The same, and with that grace.
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

/// What the guest of a node has said before it rests.
fn said(fleet: &Fleet, node: &Node) -> Vec<String> {
    let lines = fleet.journal.wait(&format!("{} to rest", node.name), |events| {
        let own = |event: &&Event| event.from == node.name && event.name == "output";
        let lines: Vec<&str> = events.iter().filter(own).map(|event| event.text("line")).collect();
        let [.., said, "rests"] = lines[..] else { return None };
        Some(said.to_owned())
    });
    lines.split('\t').map(str::to_owned).collect()
}

/// The events of that name so far.
pub fn events(fleet: &Fleet, name: &str) -> Vec<Event> {
    fleet.journal.events().into_iter().filter(|event| event.name == name).collect()
}
