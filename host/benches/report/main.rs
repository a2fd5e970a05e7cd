//! `cargo bench --bench report`: measures how well Baton keeps its promises, and prints each number next to its
//! yardstick, in one table.
//!
//! Everything is measured in one run, on one machine. Promises about hosts are measured with processes of the real
//! binary, and promises about instances with the library. If a number exceeds its limit, the report lists this number
//! and exits with status 1. `-- --full` takes more samples. `-- WORD` measures only the sections that have this word in
//! their names.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what cannot be measured ends its section, with a reason")]
#![allow(clippy::disallowed_methods, reason = "measures by plain clocks, and starts what it measures itself")]

mod admin;
mod baseline;
#[path = "../../tests/guests/src/compute.rs"]
mod compute;
mod counter;
mod failover;
mod guest;
mod hosts;
mod idle;
mod instances;
mod languages;
mod listeners;
mod machine;
mod requests;
mod samples;
mod state;
mod swaps;
mod table;
#[path = "../../tests/guests/src/turning.rs"]
mod turning;
mod usage;
mod warm;

use baton_test_support::{azurite, endpoint, node, patience};

use std::fmt::Display;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use guest::Guests;
use samples::Samples;
use table::{Bar, Row, Unit};

struct Effort {
    instances: instances::Effort,
    state: state::Effort,
    failover: failover::Effort,
    requests: requests::Effort,
    swaps: swaps::Effort,
    warm: warm::Effort,
    languages: languages::Effort,
    admin: u32,
    window: Duration,
}

/// A run of about 15 minutes. Swaps take most of this time, because each swap waits until the host notices the push.
const QUICK: Effort = Effort {
    instances: instances::Effort { starts: 1_000, kills: 300, large: 30 },
    state: state::Effort { rounds: 10, commits: 50 },
    failover: failover::Effort { terms: 300, pairs: 5, rounds: 6 },
    requests: requests::Effort { rounds: 10 },
    swaps: swaps::Effort { hosts: 1, rounds: 60 },
    warm: warm::Effort { rounds: 3 },
    languages: languages::Effort { starts: 5 },
    admin: 4,
    window: Duration::from_secs(30),
};

/// A run of about 90 minutes.
const FULL: Effort = Effort {
    instances: instances::Effort { starts: 10_000, kills: 3_000, large: 200 },
    state: state::Effort { rounds: 40, commits: 100 },
    failover: failover::Effort { terms: 3_000, pairs: 5, rounds: 40 },
    requests: requests::Effort { rounds: 40 },
    swaps: swaps::Effort { hosts: 1, rounds: 300 },
    warm: warm::Effort { rounds: 10 },
    languages: languages::Effort { starts: 20 },
    admin: 20,
    window: Duration::from_secs(300),
};

fn main() -> ExitCode {
    if let Some(word) = std::env::args().nth(1) {
        instances::native_process(&word);
    }
    let effort = if std::env::args().any(|arg| arg == "--full") { FULL } else { QUICK };
    let begin = Instant::now();
    let machine = machine::describe();
    let guests = match guest::build() {
        Ok(guests) => guests,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    let rows = measure(&guests, &effort);
    println!("\n{machine}took         {:.0} s\n\n{}", begin.elapsed().as_secs_f64(), table::render(&rows));
    if rows.iter().all(|row| row.holds() != Some(false)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(guests: &Guests, effort: &Effort) -> Vec<Row> {
    let module = &*guests.fixtures;
    let sections = [
        section("instances", || {
            tokio::runtime::Runtime::new()?.block_on(instances::measure(guests, &effort.instances))
        }),
        section("state", || tokio::runtime::Runtime::new()?.block_on(state::measure(&guests.keeper, &effort.state))),
        section("requests over HTTP", || {
            tokio::runtime::Runtime::new()?.block_on(requests::measure(&guests.asks, &effort.requests))
        }),
        section("elections", || failover::elections(module, &effort.failover)),
        section("crashes and hand-offs", || failover::crashes_and_hand_offs(guests, &effort.failover)),
        section("swaps", || swaps::measure(guests, &effort.swaps)),
        section("a large module held warm", || warm::measure(module, &effort.warm)),
        section("languages", || languages::measure(&effort.languages)),
        section("hosts at rest", || idle::at_rest(module, effort.window)),
        section("the admin endpoint", || admin::measure(module, effort.admin)),
        section("a hundred standbys", || listeners::measure(module, effort.window)),
        section("requests to the store", || idle::requests(module, effort.window)),
        section("the binary", || binary(Path::new(env!("CARGO_BIN_EXE_baton")))),
    ];
    sections.into_iter().flatten().collect()
}

/// Measures a section, unless the command line selects only other sections. If the measurement fails, the table
/// contains the error.
fn section<E: Display>(name: &str, measure: impl FnOnce() -> Result<Vec<Row>, E>) -> Vec<Row> {
    let mut words = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).peekable();
    if words.peek().is_some() && !words.any(|word| name.contains(&word)) {
        return Vec::new();
    }
    eprintln!("measuring {name} …");
    let failed = |why: String| vec![Row::failed(name, why)];
    match catch_unwind(AssertUnwindSafe(measure)) {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => failed(format!("{error:#}")),
        Err(_) => failed("it panicked; see above".to_string()),
    }
}

fn binary(path: &Path) -> std::io::Result<Vec<Row>> {
    let mebibytes = fs::metadata(path)?.len() as f64 / f64::from(1 << 20);
    let row = Row::new("the release binary, stripped", Unit::MiB, Samples::from_iter([mebibytes]));
    Ok(vec![row.bar(Bar::P99(30.0))])
}
