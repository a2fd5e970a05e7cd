//! A module in a file, which is replaced in the ways in which files are, under a running host.

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
fn a_file_is_followed_however_it_is_replaced() {
    let (fleet, file, leader, mut term) = running("works 1");
    let versions: Vec<Version> = (2..=4).map(|number| fleet.version(&format!("works {number}"))).collect();
    let first = fleet.version("works 1");
    let failed = || versions.iter().chain([&first]).map(|version| fleet.failures(version)).sum::<usize>();
    let mut runs = |version: &Version| {
        let runs = fleet.runs(version, term);
        assert!(fleet.between(term, runs.term) <= failed(), "one change-over for one version: {runs:?}");
        term = runs.term;
    };

    // By a rename,
    put(&file, &versions[0]);
    runs(&versions[0]);
    // in place, as `cp` does,
    std::fs::copy(&versions[1].path, &file).expect("the file is copied");
    runs(&versions[1]);
    // and back to what it was before.
    put(&file, &versions[0]);
    runs(&versions[0]);

    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count();
}

#[test]
fn a_config_map_is_followed() {
    let fleet = Fleet::new(Store::sqlite());
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    // As the kubelet does it: MODULE is a link to ..data/MODULE, and ..data a link to a folder of the version.
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
fn a_file_that_vanishes_or_is_half_written_stops_nothing() {
    let (fleet, file, leader, term) = running("works 1");
    let (first, next) = (fleet.version("works 1"), fleet.version("works 2"));
    std::fs::remove_file(&file).expect("the file was there");
    let refused = leader.event("to miss the file", |event| event.name == "module_refused");
    assert!(refused.text("error").contains("there is no module"), "{refused:?}");

    // Something comes in its place, and its writer takes a long time, or is killed.
    let bytes = next.bytes();
    let mut half = File::create(&file).expect("a file");
    half.write_all(&bytes[..bytes.len() / 2]).expect("written");
    let half_written = |error: &str| !error.contains("there is no module");
    leader.event("to see half of it", |event| event.name == "module_refused" && half_written(event.text("error")));
    let beat = fleet.beat_above(0);
    assert_eq!(beat.term, term, "{beat:?}");
    assert!(fleet.events("stopping").is_empty(), "a file that is not there stops nothing");

    // It goes on writing after all.
    half.write_all(&bytes[bytes.len() / 2..]).expect("written");
    drop(half);
    let runs = fleet.runs(&next, term);
    assert!(fleet.between(term, runs.term) <= fleet.failures(&first) + fleet.failures(&next), "{runs:?}");
    assert_eq!(fleet.events("module_refused").len(), 2, "each is said once: {:?}", fleet.events("module_refused"));
    let ready = fleet.journal.events().iter().filter(|event| is(event, "module_ready", &next)).count();
    assert_eq!(ready, 1);
    fleet.check_that_it_led_throughout(&leader);
    fleet.check_swaps();
    fleet.check_the_count();
}

#[test]
fn a_bad_file_is_undone_until_it_is_replaced_and_other_nodes_are_told() {
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

    // Who is started anew has nothing else, and says so instead of trying it.
    let beta = fleet.launch_from("beta", &file, &[LONG_LEASE]).start();
    fleet.rejected(&beta, &bad);
    assert_eq!(alpha.terminate().code(), Some(0));
    put(&file, &next);
    let runs = fleet.runs(&next, back.term);
    assert_eq!((&*runs.from, fleet.starts(&bad)), ("beta", 1), "{runs:?}");
    fleet.check_swaps();
    fleet.check_the_count_after_crashes();
}

/// A node that runs a version from a file, and its term.
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
