//! A running host whose module file is replaced in different ways.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::in_a_row::put;
use super::versions::Version;
use super::{LONG_GRACE, LONG_LEASE, is};
use crate::fleet::Fleet;
use crate::node::Node;
use crate::store::Store;

#[test]
fn file_is_followed_when_renamed_overwritten_or_restored() {
    let (fleet, file, leader, mut term) = running("works 1");
    let versions: Vec<Version> = (2..=4).map(|number| fleet.version(&format!("works {number}"))).collect();
    let first = fleet.version("works 1");
    let failed = || versions.iter().chain([&first]).map(|version| fleet.failures(version)).sum::<usize>();
    let mut runs = |version: &Version| {
        let runs = fleet.runs(version, term);
        assert!(fleet.between(term, runs.term) <= failed(), "one swap for each version: {runs:?}");
        term = runs.term;
    };

    // Replaces the file by a rename, as a deployment does.
    put(&file, &versions[0]);
    runs(&versions[0]);
    // Overwrites the file in place, as `cp` does.
    std::fs::copy(&versions[1].path, &file).expect("the file is copied");
    runs(&versions[1]);
    put(&file, &versions[0]);
    runs(&versions[0]);

    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count();
}

#[test]
fn config_map_is_followed() {
    let fleet = Fleet::new(Store::sqlite());
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    // A kubelet mounts a ConfigMap in this layout: `module.wasm` is a link to `..data/module.wasm`, and `..data` is a
    // link to the folder of the current version.
    let mount = fleet.home.path().join("mount");
    let version = |folder: &str, version: &Version| {
        std::fs::create_dir_all(mount.join(folder)).expect("a folder");
        std::fs::copy(&version.path, mount.join(folder).join("module.wasm")).expect("the file is copied");
        symlink(folder, mount.join("..data_tmp")).expect("a link");
        std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).expect("the link is renamed");
    };
    version("..2026_11_21_1", &first);
    symlink("..data/module.wasm", mount.join("module.wasm")).expect("a link");
    let leader = fleet.launch_from("alpha", mount.join("module.wasm"), &[LONG_LEASE, LONG_GRACE]).start();
    let term = fleet.runs(&first, 0).term;
    version("..2026_11_21_2", &next);
    std::fs::remove_dir_all(mount.join("..2026_11_21_1")).expect("the folder was there");
    let runs = fleet.runs(&next, term);
    assert!(fleet.between(term, runs.term) <= fleet.failures(&first) + fleet.failures(&next), "{runs:?}");
    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count();
}

#[test]
fn missing_or_half_written_file_stops_no_instance() {
    let (fleet, file, leader, term) = running("works 1");
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    std::fs::remove_file(&file).expect("the file was there");
    let refused = leader.event("to miss the file", |event| event.name == "module_refused");
    assert!(refused.text("error").contains("there is no module"), "{refused:?}");

    let bytes = next.bytes();
    let mut half = File::create(&file).expect("a file");
    half.write_all(&bytes[..bytes.len() / 2]).expect("written");
    let half_written = |error: &str| !error.contains("there is no module");
    leader.event("to see half of it", |event| event.name == "module_refused" && half_written(event.text("error")));
    let beat = fleet.beat_above(0);
    assert_eq!(beat.term, term, "{beat:?}");
    assert!(fleet.events("stopping").is_empty(), "a missing file stops no instance");

    half.write_all(&bytes[bytes.len() / 2..]).expect("written");
    drop(half);
    let runs = fleet.runs(&next, term);
    assert!(fleet.between(term, runs.term) <= fleet.failures(&first) + fleet.failures(&next), "{runs:?}");
    let refused = fleet.events("module_refused");
    assert_eq!(refused.len(), 2, "one report of each problem: {refused:?}");
    let ready = fleet.journal.events().iter().filter(|event| is(event, "module_ready", &next)).count();
    assert_eq!(ready, 1);
    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count();
}

#[test]
fn bad_version_in_a_file_is_rolled_back_on_all_nodes() {
    let (fleet, file, mut alpha, _) = running("works 1");
    let (good, bad, next) = (fleet.version("works 1"), fleet.version("traps 2"), fleet.version("works 3"));
    put(&file, &bad);
    let rejected = fleet.rejected(&alpha, &bad);
    assert_eq!(rejected.text("fallback"), good.digest, "{rejected:?}");
    let back = fleet.runs(&good, rejected.term);
    fleet.row_until(&bad, "to be rejected in the store", |row| {
        (&row["verdict"], &row["pushed"]) == (&"rejected".into(), &false.into())
    });
    fleet.check_that_it_led_throughout(&alpha);

    // A node that starts now has no earlier version to fall back to. It reports the rejection, and does not run the bad
    // version.
    let beta = fleet.launch_from("beta", &file, &[LONG_LEASE]).start();
    fleet.rejected(&beta, &bad);
    assert_eq!(alpha.terminate().code(), Some(0));
    put(&file, &next);
    let runs = fleet.runs(&next, back.term);
    assert_eq!((&*runs.from, fleet.starts(&bad)), ("beta", 1), "{runs:?}");
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

/// Starts a node that runs the version `name` from a file. The number is the node's term.
fn running(name: &str) -> (Fleet, PathBuf, Node, u64) {
    let fleet = Fleet::new(Store::sqlite());
    let first = fleet.version(name);
    let file = fleet.home.path().join("current.wasm");
    put(&file, &first);
    let node = launch(&fleet, &file);
    let term = fleet.runs(&first, 0).term;
    (fleet, file, node, term)
}

fn launch(fleet: &Fleet, file: &Path) -> Node {
    fleet.launch_from("alpha", file, &[LONG_LEASE, LONG_GRACE]).start()
}
