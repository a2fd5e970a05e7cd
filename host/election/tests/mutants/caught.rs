//! The simulation must be able to fail: for each rule of the design there is a mutant of the elector that
//! breaks it, and the simulation must name the rule. It runs the very code of `../simulation`, against a
//! copy of the elector's sources with the mutants of `table.rs` in it. `BATON_MUTANT=renewed` hunts those alone whose
//! names have that in them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(missing_docs, dead_code, reason = "nobody links against a test, and not all of the simulation is used here")]

extern crate baton_election_mutants as baton_election;

#[path = "../simulation/coverage.rs"]
mod coverage;
#[path = "../simulation/host.rs"]
mod host;
#[path = "../simulation/host_rules/mod.rs"]
mod host_rules;
#[path = "../simulation/invariants.rs"]
mod invariants;
#[path = "../simulation/plan/mod.rs"]
mod plan;
#[path = "../simulation/receiver.rs"]
mod receiver;
#[path = "../simulation/replay.rs"]
mod replay;
#[path = "../simulation/rng.rs"]
mod rng;
#[path = "../simulation/store.rs"]
mod store;
#[path = "../simulation/world/mod.rs"]
mod world;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plan::{Plan, Witness};
use world::World;

include!("table.rs");

/// In so many runs a mutant must have been caught, unless the run is kept that found what it takes out.
const RUNS: u64 = 50_000;

#[test]
fn every_mutant_is_caught() {
    std::panic::set_hook(Box::new(|_| {}));
    let wanted = std::env::var("BATON_MUTANT").unwrap_or_default();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutant) = MUTANTS.get(number) else { return };
                    if !mutant.name.contains(&wanted) {
                        continue;
                    }
                    let result = hunt(number, mutant);
                    lines.lock().unwrap().push((number, result));
                }
            });
        }
    });
    let _default = std::panic::take_hook();
    let mut lines = lines.into_inner().unwrap();
    lines.sort();
    for (number, result) in &lines {
        let (Ok(how) | Err(how)) = result;
        println!("{:<50} {how}", MUTANTS[*number].name);
    }
    let missed: Vec<_> = lines.iter().filter(|(_, result)| result.is_err()).map(|(number, _)| *number).collect();
    assert!(missed.is_empty(), "not caught: {:#?}", missed.iter().map(|one| MUTANTS[*one].name).collect::<Vec<_>>());
}

#[test]
fn without_a_mutant_nothing_is_caught() {
    for seed in 0..200 {
        assert_eq!(World::new(Plan::from_seed(seed)).run(), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_run_that_fails_is_kept_and_what_is_kept_fails_again() {
    let number = MUTANTS.iter().position(|mutant| mutant.breaks == "doubt_never_extends").unwrap();
    baton_election::choose(Some(number));
    let fails = |seed| {
        let mut world = World::new(Plan::from_seed(seed));
        world.run().err().map(|violation| (seed, world, violation))
    };
    let (seed, world, violation) = (0..RUNS).find_map(fails).unwrap();
    let folder = empty_folder();
    let said = replay::keep(&folder, seed, &world, &violation);
    let path = folder.join(format!("{}-{seed}.txt", violation.rule));
    for part in [violation.rule, &violation.what, &format!("BATON_SIM_SEED={seed} "), path.to_str().unwrap()] {
        assert!(said.contains(part), "`{part}` is not said: {said}");
    }
    let plan = replay::read(&std::fs::read_to_string(path).unwrap()).unwrap();
    let again = World::new(plan.clone()).run().unwrap_err();
    assert_eq!(again.rule, violation.rule);
    // It is the elector that fails, not the replay.
    baton_election::choose(None);
    assert_eq!(World::new(plan).run(), Ok(()));
}

/// Runs that once failed, and the mutant that takes their mend out.
const FOUND: [(&str, &str); 7] = [
    ("known_loss_kills_at_once-20000435337", "a known loss counts for nothing where the write is not wanted any more"),
    (
        "failures_counted_in_record-30000022065",
        "health that nobody saw before the instance was gone does not reset the count of failures",
    ),
    ("gone_in_time-stale_opening", "a term that was written before the lease was in doubt is served"),
    ("waits_out_unclear_lease-40016", "a length that is read in doubt is forgotten"),
    ("gone_in_time-50626752", "a record that is made anew looks as if nobody had ever led"),
    ("terms_only_rise-35000279307", "terms that nobody could tell of are not left out"),
    ("terms_only_rise-166239636570580", "as many terms are left out whenever it is"),
];

#[test]
fn what_was_once_found_is_found_again_without_its_mend() {
    for (found, name) in FOUND {
        let number = MUTANTS.iter().position(|mutant| mutant.name == name).unwrap();
        baton_election::choose(Some(number));
        let violation = World::new(kept(found)).run();
        baton_election::choose(None);
        assert!(violation.is_err(), "{found} passes with the mutant `{name}`");
        println!("{found}: {violation:?}");
    }
}

/// What no elector can find out must show in the promises: a witness is trusted, so it must not err.
#[test]
fn a_witness_that_errs_is_noticed() {
    for (witness, breaks) in [
        (Witness::ForgetsTheRunner, "one_at_a_time"),
        (Witness::LooksElsewhere, "one_at_a_time"),
        (Witness::NotesForgetTheRunner, "one_at_a_time"),
        (Witness::NotesForgetTheRecord, "one_at_a_time"),
    ] {
        let runs = || (0..RUNS).map(|seed| World::new(Plan { witness, ..Plan::from_seed(seed) }).run());
        let found = runs().filter_map(Result::err).find(|violation| violation.rule == breaks);
        println!("{witness:?}: {found:?}");
        assert!(found.is_some(), "{witness:?} is not caught by {breaks}");
    }
}

fn kept(found: &str) -> Plan {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../replays/{found}.txt"));
    replay::read(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// An empty folder for this run of the test.
fn empty_folder() -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("replays");
    let _absent = std::fs::remove_dir_all(&folder);
    folder
}

/// Runs what is kept of the mutant, and then seeds, until one breaks the rule that the mutant is about.
fn hunt(number: usize, mutant: &Mutant) -> Result<String, String> {
    baton_election::choose(Some(number));
    for (found, _) in FOUND.iter().filter(|(_, name)| *name == mutant.name) {
        if World::new(kept(found)).run().is_err_and(|violation| violation.rule == mutant.breaks) {
            return Ok(format!("{found} fails again"));
        }
    }
    let mut others = BTreeSet::new();
    for seed in 0..RUNS {
        match World::new(Plan::from_seed(seed)).run() {
            Err(found) if found.rule == mutant.breaks => {
                return Ok(format!("seed {seed:>4} breaks {}: {:.60}", found.rule, found.what));
            }
            Err(found) => {
                others.insert(found.rule);
            }
            Ok(()) => {}
        }
    }
    Err(format!("NOT CAUGHT by {}, though by {others:?}", mutant.breaks))
}
