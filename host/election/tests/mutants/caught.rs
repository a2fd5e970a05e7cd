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
use std::time::Duration;

use plan::{Aimed, Ask, Fault, Moment, Outage, Plan, Witness};
use world::World;

include!("table.rs");

/// In so many runs a mutant must have been caught, unless the run is kept that found what it takes out.
const RUNS: u64 = 50_000;

#[test]
#[ignore = "minutes of search: make mutants"]
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

/// The simulation notices what no elector can: a witness that reports the wrong death.
#[test]
#[ignore = "a minute of search: make mutants"]
fn witness_that_errs_is_noticed() {
    let any = |witness| move |seed| Plan { witness, ..Plan::from_seed(seed) };
    for witness in [Witness::ForgetsTheRunner, Witness::LooksElsewhere, Witness::NotesForgetTheRunner] {
        breaks(witness, "one_at_a_time", any(witness));
    }
    breaks(Witness::NotesForgetTheRecord, "gone_in_time", |seed| {
        dies_while_a_broken_lease_may_run(seed, Witness::NotesForgetTheRecord)
    });
    for seed in 0..1_000 {
        let right = dies_while_a_broken_lease_may_run(seed, Witness::Notes);
        assert_eq!(World::new(right).run(), Ok(()), "seed {seed}");
    }
}

/// Checks that one of the runs breaks the rule.
fn breaks(witness: Witness, rule: &str, plan: impl Fn(u64) -> Plan) {
    let mut violations = (0..RUNS).filter_map(|seed| World::new(plan(seed)).run().err());
    let found = violations.find(|violation| violation.rule == rule);
    println!("{witness:?}: {found:?}");
    assert!(found.is_some(), "{witness:?} is not caught by {rule}");
}

/// The store breaks a lease while one host is cut off from it. A second host acquires the lease, must wait until the
/// first one's instance has ended, and dies at once. The record still names the first host, the lease the second.
fn dies_while_a_broken_lease_may_run(seed: u64, witness: Witness) -> Plan {
    let cut = Duration::from_secs(20);
    let mut plan = Plan { witness, ..Plan::from_seed(seed) };
    while plan.hosts.len() < 3 {
        plan.hosts.push(plan.hosts[0].clone());
    }
    let cut_off = usize::try_from(seed % 3).unwrap();
    let dies = (cut_off + 1) % 3;
    let outage = Fault::Outage { host: Some(cut_off), length: 5 * cut, kind: Outage::Hang, of: None };
    plan.faults = vec![(cut, outage), (cut, Fault::Break { period: Duration::ZERO })];
    let crash = Fault::Crash { host: dies, down: 3 * cut };
    let moment = Moment::Asks(Ask::Acquire);
    // The request has arrived, and what the host writes next has not.
    let after = Duration::from_millis(8);
    plan.aimed = vec![Aimed { from: cut, host: dies, moment, after, fault: crash }];
    plan.heal_at = plan.heal_at.max(6 * cut);
    plan
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
