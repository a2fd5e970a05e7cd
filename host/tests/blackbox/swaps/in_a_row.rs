//! Many swaps in a row, while the instances cause a steady stream of effects.

use std::path::Path;

use super::versions::Version;
use super::{LONG_GRACE, LONG_LEASE, runs_on};
use crate::fleet::Fleet;
use crate::http::server::{Reply, Request, Server};
use crate::node::{Event, Launch, Node};
use crate::scenarios;

scenarios! {
    on_both_stores: [
        pushed_versions_are_swapped_in_turn,
    ],
    on_sqlite: [
        hundred_versions_are_swapped_from_a_file,
        last_of_ten_pushes_in_a_row_runs,
        push_during_a_swap_is_not_lost,
    ],
}

/// Number of swaps in the test that writes each version to a file.
const SWAPS: usize = 100;
/// Number of swaps in the test that pushes each version to the store. A push takes longer to reach the nodes, because
/// they poll the store.
const PUSHES: usize = 8;

fn hundred_versions_are_swapped_from_a_file(fleet: Fleet) {
    let scene = Scene::new(fleet);
    let file = scene.fleet.home.path().join("current.wasm");
    let first = scene.fleet.version("works 0");
    put(&file, &first);
    let leader = scene.launch("alpha", &file).start();
    let mut last = scene.fleet.runs(&first, 0);
    let _standby = scene.fleet.standby_from("beta", &first.path, &leader);
    for number in 1..=SWAPS {
        let next = scene.fleet.version(&format!("works {number}"));
        put(&file, &next);
        last = scene.fleet.runs(&next, last.term);
        std::fs::remove_file(next.path).expect("the file was there");
    }
    let (swaps, failed) = scene.end(leader);
    assert!(swaps.abs_diff(SWAPS) <= failed, "{swaps} swaps, and {failed} failed");
}

fn pushed_versions_are_swapped_in_turn(fleet: Fleet) {
    let scene = Scene::new(fleet);
    let first = scene.fleet.version("works 0");
    scene.fleet.push(&first);
    let leader = scene.launch("alpha", "store://fleet").start();
    let mut last = scene.fleet.runs(&first, 0);
    let standby = scene.fleet.standby_from("beta", "store://fleet", &leader);
    for number in 1..=PUSHES {
        let next = scene.fleet.version(&format!("works {number}"));
        scene.fleet.push(&next);
        last = scene.fleet.runs(&next, last.term);
        scene.fleet.is_ready(&standby, &next);
    }
    let (swaps, failed) = scene.end(leader);
    assert!(swaps.abs_diff(PUSHES) <= failed, "{swaps} swaps, and {failed} failed");
}

fn last_of_ten_pushes_in_a_row_runs(fleet: Fleet) {
    let scene = Scene::new(fleet);
    let versions: Vec<Version> = (0..=10).map(|number| scene.fleet.version(&format!("works {number}"))).collect();
    scene.fleet.push(&versions[0]);
    let leader = scene.launch("alpha", "store://fleet").start();
    scene.fleet.runs(&versions[0], 0);
    versions[1..].iter().for_each(|version| scene.fleet.push(version));
    scene.fleet.runs(&versions[10], 0);
    scene
        .fleet
        .row_until(&versions[10], "to run and to be current", |row| row["current"] == true && runs_on(row, "alpha"));
    let (swaps, failed) = scene.end(leader);
    assert!((1..=10 + failed).contains(&swaps), "the leader may skip versions: {swaps} swaps, and {failed} failed");
}

fn push_during_a_swap_is_not_lost(fleet: Fleet) {
    let scene = Scene::new(fleet);
    // The first version takes 7 s to stop, so the leader notices the push of the third version during the stop.
    let versions = ["lingers 7", "lingers 0", "works 2"].map(|name| scene.fleet.version(name));
    let [slow, next, last] = &versions;
    scene.fleet.push(slow);
    let leader = scene.launch("alpha", "store://fleet").start();
    let term = scene.fleet.runs(slow, 0).term;
    scene.fleet.push(next);
    leader.event("the stop", |event| event.name == "stopping" && event.term == term);
    scene.fleet.push(last);
    scene.fleet.runs(last, term);
    let (swaps, failed) = scene.end(leader);
    assert!((1..=2 + failed).contains(&swaps), "{swaps} swaps, and {failed} failed");
}

/// A fleet whose instances number their effects, and the server that records their requests.
struct Scene {
    fleet: Fleet,
    server: Server,
}

impl Scene {
    fn new(fleet: Fleet) -> Self {
        Self { fleet, server: Server::start(|_| Reply::ok("")) }
    }

    fn launch(&self, name: &str, source: impl AsRef<std::ffi::OsStr>) -> Launch {
        let url = self.server.url();
        let launch = self.fleet.launch_from(name, source, &[LONG_LEASE, LONG_GRACE, ("--allow-http", &url)]);
        launch.flag("--env", format!("URL={url}"))
    }

    /// Terminates the leader, and checks the effects of all its instances. Returns the number of swaps and the number
    /// of failed instances. A failure may cause an additional swap back to the previous version, or prevent a swap.
    fn end(self, mut leader: Node) -> (usize, usize) {
        let Self { fleet, server } = self;
        fleet.check_that_it_led_throughout(&leader);
        assert_eq!(leader.terminate().code(), Some(0));
        fleet.check_swaps();
        let starts = fleet.events("started");
        let swapped: Vec<_> = starts.iter().filter(|event| event.is_swap()).collect();
        // On a busy machine, an instance may fail. The host then starts another instance of the same version, which is
        // not a swap.
        let changes = starts.windows(2).filter(|pair| pair[0].text("module") != pair[1].text("module"));
        let changes: Vec<_> = changes.map(|pair| [pair[0].text("module"), pair[1].text("module")]).collect();
        let reported: Vec<_> = swapped.iter().map(|swap| [swap.text("replaces"), swap.text("module")]).collect();
        // After an instance has failed, has been killed, or has been stopped for a reason other than a swap, the next
        // version may start without a swap.
        let failed = fleet.events("ended").iter().filter(|ended| ended.text("outcome") != "done").count();
        let failed = failed + fleet.events("stopping").iter().filter(|stop| stop.text("reason") != "replaced").count();
        let mut rest = changes.iter();
        assert!(reported.iter().all(|swap| rest.any(|change| change == swap)), "{reported:?} of {changes:?}");
        assert!(changes.len() - reported.len() <= failed, "{failed} failed; {reported:?} of {changes:?}");
        for event in &swapped {
            // Checks only that the event reports the gap between the two instances. A benchmark measures the gap.
            assert!(event.fields["gap_s"].as_f64().is_some_and(|gap| gap >= 0.0), "{event:?}");
            assert_ne!(event.text("module"), event.text("replaces"), "{event:?}");
        }
        fleet.check_the_count();
        // The server must have received each request exactly once, in order, and with the term in which it was sent.
        let requests = server.requests();
        let counts: Vec<u64> = requests.iter().map(|request| request.path()[1..].parse().expect("a count")).collect();
        assert!(counts.iter().copied().eq(1..=counts.len() as u64), "each count is reported once: {counts:?}");
        let terms: Vec<u64> = requests.iter().map(Request::term).collect();
        assert!(terms.is_sorted(), "a lower term came after a higher one: {terms:?}");
        let terms: std::collections::BTreeSet<u64> = terms.into_iter().collect();
        assert!(terms.len() > swapped.len(), "each version has sent a request: {terms:?}");
        (swapped.len(), failed)
    }
}

impl Fleet {
    fn standby_from(&self, name: &str, source: impl AsRef<std::ffi::OsStr>, leader: &Node) -> Node {
        let node = self.launch_from(name, source, &[LONG_LEASE]).start();
        let knows = |event: &Event| event.name == "standby" && event.text("reason").contains(&leader.name);
        node.event(&format!("to follow {}", leader.name), knows);
        node
    }
}

/// Renames a new file over `file`, as a deployment does.
pub(super) fn put(file: &Path, version: &Version) {
    let new = file.with_extension("new");
    std::fs::copy(&version.path, &new).expect("the file is copied");
    std::fs::rename(new, file).expect("the file is renamed");
}
