//! The fleet's one clock: says which job is due, once for the whole fleet.
//!
//! `JOBS` names the jobs and how often each is due, in seconds: `report=60,cleanup=3600`. For each due job
//! it prints a line of JSON that a worker can act on. The line carries the term: a worker that has seen a
//! higher one ignores it, so that a line that was delayed beyond a takeover starts nothing twice.
//!
//! Due times are multiples of a job's period on the wall clock. So every leader computes the same ones, and
//! a takeover neither repeats nor shifts the schedule; what fell due while nobody led is skipped.

mod schedule;

use std::time::{SystemTime, UNIX_EPOCH};

use baton_sdk::{Failure, Term};

use schedule::Schedule;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let jobs =
        std::env::var("JOBS").map_err(|_| Failure::fatal("JOBS is not set: --env JOBS=report=60,cleanup=3600"))?;
    // Another node has the same settings: trying again would not help.
    let mut schedule = Schedule::parse(&jobs, now()?).map_err(Failure::fatal)?;
    loop {
        if let Err(stop) = term.sleep(schedule.next_due().saturating_sub(now()?)) {
            println!("{stop}");
            return Ok(());
        }
        for (job, due) in schedule.take_due(now()?) {
            println!(r#"{{"job":"{job}","due":{},"term":{}}}"#, due.as_secs(), term.number());
        }
        term.progress();
    }
}

/// Wall-clock time since the Unix epoch.
fn now() -> baton_sdk::Result<std::time::Duration> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?)
}
