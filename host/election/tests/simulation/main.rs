//! The simulation of the elector: thousands of runs, each determined by a seed. In each run, several hosts elect a
//! leader over one store, under all kinds of faults. The simulation checks every promise after each event. At the end,
//! all faults end, and a node must lead.
//!
//! - `BATON_SIM_SEED=7 cargo test -p baton-election --test simulation` prints the events of one seed.
//! - A normal test run uses the same seeds every time. `make soak MINUTES=60` runs new seeds and prints the first seed;
//!   `make soak FIRST=3000` begins with seed 3000.
//! - A failing run is shrunk and written to `tests/replays/`. A test repeats every file there.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may end by a panic")]
#![allow(clippy::disallowed_methods, reason = "how long it runs is a plain clock's")]
#![allow(missing_docs, reason = "nobody links against a test")]

mod coverage;
mod host;
mod invariants;
mod plan;
mod receiver;
mod replay;
mod rng;
mod store;
mod witnesses;
mod world;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coverage::Coverage;
use invariants::Violation;
use plan::Plan;
use world::World;

/// The seeds of a normal test run. Even the rarest case of [`coverage`] occurs 20 times with these seeds.
const FIXED: Range<u64> = 0..2_000;

#[test]
fn every_promise_holds_in_every_run() {
    if let Some(seed) = from_environment("BATON_SIM_SEED") {
        return tell(seed);
    }
    let search = from_environment("BATON_SIM_MINUTES").map(|minutes| Duration::from_secs(minutes * 60));
    let seeds = match search {
        Some(_) => from_environment("BATON_SIM_FIRST").unwrap_or_else(fresh_seed)..u64::MAX,
        None => FIXED.start..from_environment("BATON_SIM_SEEDS").unwrap_or(FIXED.end),
    };
    say(&format!("seeds from {}", seeds.start));
    let (began, seeds) = (Instant::now(), Mutex::new(seeds));
    let next = || {
        let is_over = search.is_some_and(|length| began.elapsed() >= length);
        if is_over { None } else { seeds.lock().unwrap().next() }
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
    // With fewer seeds than in a normal test run, some cases may be missing.
    assert!(runs < FIXED.end || coverage.missing().is_empty(), "never met: {:?}", coverage.missing());
}

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

/// A seed that no earlier run has used: the current time in nanoseconds.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Writes to stdout directly: the test harness captures the output of `println!`.
fn say(what: &str) {
    let _nobody_listens = writeln!(std::io::stdout(), "{what}");
}

#[test]
fn kept_replays_pass() {
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
