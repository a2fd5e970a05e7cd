//! `cargo bench --bench report`: what Baton promises in numbers, each beside its yardstick, in one table.
//!
//! Everything is measured in this one run, on this one machine: the real binary with real processes where
//! the promise is about hosts, the library where it is about instances. Bars are no tests: a bar that is
//! missed is printed, and the exit status stays 0. `-- --full` takes more samples.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot be made ends its section")]

mod bare;
mod guest;
mod instances;
mod machine;
mod samples;
mod table;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use table::Row;

fn main() {
    let full = std::env::args().any(|arg| arg == "--full");
    let begin = Instant::now();
    let before = machine::describe();
    let module = guest::build().unwrap();
    let mut rows = Vec::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let effort = if full {
        instances::Effort { starts: 10_000, kills: 2_000, large: 50 }
    } else {
        instances::Effort { starts: 1_000, kills: 300, large: 10 }
    };
    rows.extend(section("instances", || {
        runtime.block_on(instances::measure(&module, &effort)).map(|measured| measured.rows)
    }));
    println!("\n{before}{:<12} {:.0} s\n\n{}", "took", begin.elapsed().as_secs_f64(), table::render(&rows));
}

/// Measures one section; if that fails, the table says so.
fn section<E: Display>(name: &str, measure: impl FnOnce() -> Result<Vec<Row>, E>) -> Vec<Row> {
    eprintln!("measuring {name} …");
    let failed = |why: String| vec![Row::failed(name, why)];
    match catch_unwind(AssertUnwindSafe(measure)) {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => failed(format!("{error:#}")),
        Err(_) => failed("it panicked; see above".to_string()),
    }
}
