//! Many versions, one after the other, under a stream of effects.

use std::path::Path;

use super::versions::Version;
use super::{LONG_GRACE, LONG_LEASE, runs_on};
use crate::fleet::Fleet;
use crate::http::server::{Reply, Request, Server};
use crate::node::{Event, Launch, Node};
use crate::scenarios;

scenarios! {
    on_both_stores: [
        what_is_pushed_runs_within_seconds,
    ],
    on_sqlite: [
        a_hundred_versions_take_over_from_one_another,
        of_ten_pushes_in_a_row_the_last_one_runs,
        a_push_during_a_change_over_is_not_lost,
    ],
}

/// How often one version takes over from another.
const SWAPS: usize = 100;
/// How often where each version has to be noticed in the store first.
const PUSHES: usize = 8;

fn a_hundred_versions_take_over_from_one_another(fleet: Fleet) {
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
    assert!(swaps.abs_diff(SWAPS) <= failed, "{swaps} change-overs, and {failed} failed");
}

fn what_is_pushed_runs_within_seconds(fleet: Fleet) {
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
        // The standby is as far.
        scene.fleet.is_ready(&standby, &next);
    }
    let (swaps, failed) = scene.end(leader);
    assert!(swaps.abs_diff(PUSHES) <= failed, "{swaps} change-overs, and {failed} failed");
}

fn of_ten_pushes_in_a_row_the_last_one_runs(fleet: Fleet) {
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
    assert!((1..=10 + failed).contains(&swaps), "some may have come together: {swaps}, and {failed} failed");
}

fn a_push_during_a_change_over_is_not_lost(fleet: Fleet) {
    let scene = Scene::new(fleet);
    // The first one takes so many seconds to stop that what is pushed meanwhile is noticed meanwhile.
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
    assert!((1..=2 + failed).contains(&swaps), "{swaps} change-overs, and {failed} failed");
}

/// A fleet on which all is counted that instances do, by themselves and by a server.
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

    /// Ends the leader, and checks what all of its instances have done. Returns how many change-overs there were, and how many
    /// instances have failed: of each there may have been one more, to the version before, or one less.
    fn end(self, mut leader: Node) -> (usize, usize) {
        let Self { fleet, server } = self;
        fleet.check_that_it_led_throughout(&leader);
        assert_eq!(leader.terminate().code(), Some(0));
        fleet.check_swaps();
        let (starts, swapped) = (fleet.events("started"), fleet.events("swapped"));
        // On a busy machine an instance may fail for once, and then another one of the same version follows.
        let changes = starts.windows(2).filter(|pair| pair[0].text("module") != pair[1].text("module"));
        let changes: Vec<_> = changes.map(|pair| [pair[0].text("module"), pair[1].text("module")]).collect();
        let told: Vec<_> = swapped.iter().map(|swap| [swap.text("previous"), swap.text("module")]).collect();
        // Where an instance had failed or was killed, or was stopped for another reason, the next version followed without a
        // swap.
        let failed = fleet.events("ended").iter().filter(|gone| gone.text("outcome") != "done").count();
        let failed = failed + fleet.events("stopping").iter().filter(|stop| stop.text("reason") != "replaced").count();
        let mut rest = changes.iter();
        assert!(told.iter().all(|swap| rest.any(|change| change == swap)), "{told:?} of {changes:?}");
        assert!(changes.len() - told.len() <= failed, "{failed} failed; {told:?} of {changes:?}");
        for event in &swapped {
            // How long it takes is the bench's to say.
            assert!(event.fields["gap_s"].as_f64().is_some_and(|gap| gap >= 0.0), "{event:?}");
            assert_ne!(event.text("module"), event.text("previous"), "{event:?}");
        }
        fleet.check_the_count();
        // What left each instance has arrived once, in its order, under its term.
        let requests = server.requests();
        let counts: Vec<u64> = requests.iter().map(|request| request.path()[1..].parse().expect("a count")).collect();
        assert!(counts.iter().copied().eq(1..=counts.len() as u64), "each count is reported once: {counts:?}");
        let terms: Vec<u64> = requests.iter().map(Request::term).collect();
        assert!(terms.is_sorted(), "a lower term came after a higher one: {terms:?}");
        let terms: std::collections::BTreeSet<u64> = terms.into_iter().collect();
        assert!(terms.len() > swapped.len(), "each version has asked the server: {terms:?}");
        (swapped.len(), failed)
    }
}

impl Fleet {
    /// A node that runs what a file or the store has, and knows that `leader` leads.
    fn standby_from(&self, name: &str, source: impl AsRef<std::ffi::OsStr>, leader: &Node) -> Node {
        let node = self.launch_from(name, source, &[LONG_LEASE]).start();
        let knows = |event: &Event| event.name == "standby" && event.text("reason").contains(&leader.name);
        node.event(&format!("to follow {}", leader.name), knows);
        node
    }
}

/// Puts a version in the place of a file, as a deployment does.
pub(super) fn put(file: &Path, version: &Version) {
    let new = file.with_extension("new");
    std::fs::copy(&version.path, &new).expect("the file is copied");
    std::fs::rename(new, file).expect("the file is renamed");
}
