//! The simulation of the elector: thousands of runs, each determined by a seed, in which several hosts
//! elect a leader over one store while everything goes wrong that may. Every promise of the design is
//! checked after each event; then the faults heal and somebody must lead.
//!
//! - `BATON_SIM_SEED=7 cargo test -p baton-election --test simulation` tells the story of one seed.
//! - Which seeds are run follows from the commit, so that each brings new ones; the first is printed, and
//!   `BATON_SIM_FIRST=3000` begins there. `BATON_SIM_RUNS=100000` makes more runs; `make soak MINUTES=60` makes as many as
//!   there is time for.
//! - A failing run is shrunk and written to `tests/replays/`; every file there is run by a test.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(clippy::disallowed_methods, reason = "how long it runs is a plain clock's")]
#![allow(missing_docs, reason = "nobody links against a test")]

mod coverage;
mod host;
mod host_rules;
mod invariants;
#[allow(dead_code, reason = "some witnesses err only where that is to be noticed")]
mod plan;
mod receiver;
mod replay;
mod rng;
mod store;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use coverage::Coverage;
use invariants::Violation;
use plan::Plan;
use world::World;

/// How many seeds are run, unless `BATON_SIM_RUNS` or `BATON_SIM_MINUTES` says otherwise.
const RUNS: u64 = 30_000;

#[test]
fn every_promise_holds_in_every_run() {
    if let Some(seed) = from_environment("BATON_SIM_SEED") {
        return tell(seed);
    }
    let first = from_environment("BATON_SIM_FIRST").unwrap_or_else(first_of_this_commit);
    let length = from_environment("BATON_SIM_MINUTES").map(|minutes| Duration::from_secs(minutes * 60));
    let most = from_environment("BATON_SIM_RUNS").unwrap_or(if length.is_some() { u64::MAX } else { RUNS });
    say(&format!("seeds from {first}"));
    let (began, runs) = (Instant::now(), AtomicU64::new(0));
    let next = || {
        let is_over = length.is_some_and(|length| began.elapsed() >= length);
        let run = if is_over { most } else { runs.fetch_add(1, Ordering::Relaxed) };
        (run < most).then(|| first.wrapping_add(run))
    };
    let all = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    let mut world = World::new(Plan::from_seed(seed));
                    let violation = world.run().err();
                    all.lock().unwrap().add(seed, &world, violation);
                }
            });
        }
    });
    let Found { runs, failures, coverage } = all.into_inner().unwrap();
    say(&format!("{runs} runs in {:.0} s:\n{}", began.elapsed().as_secs_f64(), coverage.lines()));
    assert!(failures.is_empty(), "\n{}", failures.into_values().collect::<String>());
    assert!(runs < RUNS || coverage.missing().is_empty(), "never met: {:?}", coverage.missing());
}

/// What all runs together have shown.
#[derive(Default)]
struct Found {
    runs: u64,
    failures: BTreeMap<&'static str, String>,
    coverage: Coverage,
}

impl Found {
    fn add(&mut self, seed: u64, world: &World, violation: Option<Violation>) {
        self.runs += 1;
        self.coverage.add(&world.coverage);
        if let Some(violation) = violation {
            say(&format!("seed {seed} breaks {}", violation.rule));
            self.failures.entry(violation.rule).or_insert_with(|| replay::keep(&folder(), seed, world, &violation));
        }
    }
}

/// A seed that follows from the commit that is checked out; the first of all where there is none.
fn first_of_this_commit() -> u64 {
    let head = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let digits = head.ok().and_then(|head| String::from_utf8(head.stdout).ok()).unwrap_or_default();
    digits.get(..12).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default()
}

/// Says it even where a test that passes is to be silent.
fn say(what: &str) {
    let _nobody_listens = writeln!(std::io::stdout(), "{what}");
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
