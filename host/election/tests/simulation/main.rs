//! The simulation of the elector: thousands of runs, each determined by a seed, in which several hosts
//! elect a leader over one store while everything goes wrong that may. Every promise of the design is
//! checked after each event; then the faults heal and somebody must lead.
//!
//! - `BATON_SIM_SEED=7 cargo test -p baton-election --test simulation` tells the story of one seed.
//! - `BATON_SIM_RUNS=100000` makes more runs, and `BATON_SIM_FIRST=3000` begins at another seed.
//! - A failing run is shrunk and written to `tests/replays/`; every file there is run by a test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(missing_docs, reason = "nobody links against a test")]

mod conduct;
mod coverage;
mod host;
mod invariants;
mod plan;
mod replay;
mod rng;
mod store;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coverage::Coverage;
use plan::Plan;
use world::World;

/// How many seeds are run, unless `BATON_SIM_RUNS` says otherwise.
const RUNS: u64 = 3000;

#[test]
fn every_promise_holds_in_every_run() {
    if let Some(seed) = from_environment("BATON_SIM_SEED") {
        return tell(seed);
    }
    let runs = from_environment("BATON_SIM_RUNS").unwrap_or(RUNS);
    let first = from_environment("BATON_SIM_FIRST").unwrap_or(0);
    let mut coverage = Coverage::default();
    let mut failures = BTreeMap::new();
    for seed in (first..).take(usize::try_from(runs).unwrap()) {
        let mut world = World::new(Plan::from_seed(seed));
        if let Err(violation) = world.run() {
            println!("seed {seed} breaks {}", violation.rule);
            failures.entry(violation.rule).or_insert_with(|| replay::keep(&folder(), seed, &world, &violation));
        }
        coverage.add(&world.coverage);
    }
    assert!(failures.is_empty(), "\n{}", failures.into_values().collect::<String>());
    println!("{runs} runs:\n{}", coverage.lines());
    assert!(runs < RUNS || coverage.missing().is_empty(), "never met: {:?}", coverage.missing());
}

#[test]
fn what_once_failed_does_not_fail_again() {
    let mut failures = Vec::new();
    for path in replays() {
        let plan = replay::read(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let mut world = World::new(plan);
        world.trace = Some(Vec::new());
        if let Err(violation) = world.run() {
            let trace = world.trace.unwrap_or_default();
            let last = &trace[trace.len().saturating_sub(60)..];
            println!("{}, at its end:\n{}", path.display(), last.join("\n"));
            failures.push(format!("{}: {}: {}", path.display(), violation.rule, violation.what));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Runs one seed and says all that happened.
fn tell(seed: u64) {
    let mut world = World::new(Plan::from_seed(seed));
    world.trace = Some(Vec::new());
    let result = world.run();
    println!("{}", world.trace.take().unwrap_or_default().join("\n"));
    if let Err(violation) = result {
        panic!("seed {seed}: {}: {}", violation.rule, violation.what);
    }
}

fn replays() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder()) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    paths.sort();
    paths
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/replays")
}

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{value}`")))
}
