//! A model of the elector that is checked exhaustively with [`stateright`]. The model runs the elector's own code on
//! two and three nodes, over one store with leases like Azure's. The checker tries every order in which requests
//! arrive, answers are lost, processes pause and end, and messages arrive late, repeatedly or never. The checker also
//! tries false hints, and other clients that change the lease and its record.
//!
//! The simulation in `tests/simulation` has long runs, but tries only a few of all possible runs. The model tries every
//! order of events, but has neither inaccurate clocks nor random waits.
//!
//! - A normal test run tries the same states every time. `make model MINUTES=60` continues for an hour.
//! - If a promise is broken, the test prints the shortest sequence of actions that breaks it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may end by a panic")]
#![allow(clippy::disallowed_methods, reason = "how long it tries is a plain clock's")]
#![allow(missing_docs, reason = "nobody links against a test")]

mod actions;
mod checker;
mod starts;
mod state;
#[path = "../simulation/store.rs"]
#[allow(dead_code, reason = "the simulation does more with it")]
mod store;

use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use checker::Bound;
use starts::STARTS;

/// Number of states that a normal test run tries from each start. All starts together take about 15 s of CPU time.
const STATES: usize = 100_000;

#[test]
fn every_interleaving_keeps_every_promise() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bound = match std::env::var("BATON_MODEL_SECONDS") {
        Ok(seconds) => {
            let seconds: u64 = seconds.parse().unwrap();
            Bound::Time(Duration::from_millis(seconds * threads as u64 * 1000 / STARTS.len() as u64))
        }
        Err(_) => Bound::States(STATES),
    };
    let began = Instant::now();
    let next = AtomicUsize::new(0);
    let lines = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(start) = STARTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = checker::check(start, bound);
                    lines.lock().unwrap().push((start.name, found));
                }
            });
        }
    });
    let lines = lines.into_inner().unwrap();
    for (name, found) in &lines {
        let depth =
            found.depth.map_or("of all actions that there are".to_string(), |depth| format!("of {depth} actions"));
        say(&format!("{:>9} states, every interleaving {depth}: {name}", found.states));
    }
    let states: usize = lines.iter().map(|(_, found)| found.states).sum();
    say(&format!("{states:>9} states in {:.0} s", began.elapsed().as_secs_f64()));
    let broken: Vec<_> = lines.iter().filter_map(|(name, found)| Some((name, found.broken.as_ref()?))).collect();
    assert!(broken.is_empty(), "{broken:#?}");
    let far = lines.iter().filter(|(_, found)| found.led_again).count();
    assert!(far > 0, "no start was followed to where a term begins");
}

/// Writes to stdout directly: the test harness captures the output of `println!`.
fn say(what: &str) {
    let _nobody_listens = writeln!(std::io::stdout(), "{what}");
}
