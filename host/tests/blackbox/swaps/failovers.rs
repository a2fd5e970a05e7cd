//! Pushes while a leader crashes, while no node leads, and while the store is unavailable.

use rustix::process::Signal;

use super::versions::Version;
use super::{LONG_GRACE, LONG_LEASE, runs_on};
use crate::fleet::Fleet;
use crate::node::Node;
use crate::scenarios;

scenarios! {
    on_sqlite: [
        version_pushed_during_hand_off_runs_on_next_leader,
        no_version_is_replaced_while_store_is_away,
        version_pushed_during_lease_loss_runs_on_next_leader,
    ],
    with_crashes: [
        version_pushed_before_crash_runs_on_next_leader,
        version_pushed_while_no_node_leads_runs_first,
    ],
}

fn version_pushed_before_crash_runs_on_next_leader(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    let (alpha, beta, term) = pair(&fleet, &first, &[]);
    fleet.push(&next);
    alpha.signal(Signal::KILL);
    let runs = fleet.runs(&next, term);
    // Alpha may have started the new version just before it was killed. In that case, the test waits until beta starts
    // it.
    if runs.from != beta.name {
        let again = fleet.runs(&next, runs.term);
        assert_eq!(again.from, beta.name);
    }
    fleet.row_until(&next, "to run on beta", |row| runs_on(row, "beta"));
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

fn version_pushed_while_no_node_leads_runs_first(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    fleet.push(&first);
    let mut alpha = fleet.launch_pushed("alpha", &[]).start();
    let term = fleet.runs(&first, 0).term;
    alpha.signal(Signal::KILL);
    alpha.wait();
    fleet.push(&next);
    let beta = fleet.launch_pushed("beta", &[]).start();
    let begun =
        fleet.journal.event("beta's first instance", |event| event.from == beta.name && event.name == "started");
    assert_eq!(begun.text("module"), next.digest, "{begun:?}");
    assert!(begun.term > term, "{begun:?}");
    fleet.runs(&next, term);
    fleet.check_swaps();
}

fn version_pushed_during_hand_off_runs_on_next_leader(fleet: Fleet) {
    let (first, next) = (fleet.version("lingers 2"), fleet.version("works 2"));
    let (mut alpha, beta, term) = pair(&fleet, &first, &[LONG_LEASE, LONG_GRACE]);
    alpha.signal(Signal::TERM);
    alpha.event("the stop", |event| event.name == "stopping");
    fleet.push(&next);
    assert_eq!(alpha.wait().code(), Some(0));
    let runs = fleet.runs(&next, term);
    assert_eq!(runs.from, beta.name, "{runs:?}");
    fleet.check_swaps();
    fleet.check_the_count();
}

fn no_version_is_replaced_while_store_is_away(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    fleet.push(&first);
    let alpha = fleet.launch_pushed("alpha", &[LONG_LEASE]).start();
    let term = fleet.runs(&first, 0).term;
    let outage = fleet.store.hang();
    fleet.push_around(&next);
    // The embedded store keeps modules and leases in different files. So a node can fetch the module even while the
    // outage locks the file that contains the leases.
    if fleet.store.is_sqlite() {
        fleet.is_ready(&alpha, &next);
    }
    alpha.event("a failed renewal", |event| event.name == "renewal_failed");
    let stopped = fleet.events("stopping");
    let replaced = stopped.iter().find(|event| event.text("reason") == "replaced");
    assert!(replaced.is_none(), "replaced while no renewal succeeds: {replaced:?}");
    drop(outage);
    let runs = fleet.runs(&next, term);
    assert_eq!(runs.from, "alpha", "{runs:?}");
    // On a busy machine, the outage may last so long that the leader stops because its lease is at risk.
    if fleet.events("stopping").iter().all(|event| event.text("reason") == "replaced") {
        fleet.check_that_it_led_throughout(&alpha);
        fleet.check_the_count();
    } else {
        fleet.check_the_count_after_crashes();
    }
    fleet.check_swaps();
}

fn version_pushed_during_lease_loss_runs_on_next_leader(fleet: Fleet) {
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    let (alpha, _beta, term) = pair(&fleet, &first, &[]);
    let outage = fleet.store.cut();
    let stopping = alpha.event("a stop", |event| event.name == "stopping");
    assert_eq!(stopping.text("reason"), "lease-at-risk", "{stopping:?}");
    fleet.push_around(&next);
    let ended = alpha.event("the end", |event| event.name == "ended" && event.term == term);
    drop(outage);
    let runs = fleet.runs(&next, term);
    assert!(runs.ts > ended.ts, "{runs:?} before {ended:?}");
    assert!(fleet.events("version_rejected").is_empty(), "an outage rejects no version");
    fleet.check_swaps();
}

/// Starts two nodes: alpha leads with the version `first`, and beta has this version ready. The number is alpha's term.
fn pair(fleet: &Fleet, first: &Version, flags: &[(&str, &str)]) -> (Node, Node, u64) {
    fleet.push(first);
    let alpha = fleet.launch_pushed("alpha", flags).start();
    let term = fleet.runs(first, 0).term;
    let beta = fleet.launch_pushed("beta", flags).start();
    fleet.is_ready(&beta, first);
    (alpha, beta, term)
}
