//! A cron for a whole fleet: prints each due job once, not once per node.
//!
//! `JOBS` names the jobs and their periods in seconds: `report=60,cleanup=3600`. For each due job, the coordinator
//! prints a line of JSON that a worker can act on. The line contains the term. A worker must ignore a line whose term
//! is lower than the highest term that the worker has seen. A line that is delayed until after a takeover then starts
//! no job.
//!
//! Due times are multiples of a job's period on the wall clock. Every leader therefore computes the same due times, and
//! a takeover neither repeats nor shifts the schedule. Due times at which no node leads are skipped.

mod schedule;

use std::time::{Duration, UNIX_EPOCH};

use baton_sdk::{Failure, Term};

use schedule::Schedule;

baton_sdk::coordinator!(run);

fn run(term: &Term) -> baton_sdk::Result {
    let jobs =
        std::env::var("JOBS").map_err(|_| Failure::fatal("JOBS is not set: --env JOBS=report=60,cleanup=3600"))?;
    announce(term, &jobs, |line| println!("{line}"))
}

fn announce(term: &Term, jobs: &str, mut say: impl FnMut(String)) -> baton_sdk::Result {
    // Fatal, because a retry on this node would read the same invalid settings.
    let mut schedule = Schedule::parse(jobs, now(term)?).map_err(Failure::fatal)?;
    loop {
        if let Err(stop) = term.sleep(schedule.next_due().saturating_sub(now(term)?)) {
            say(stop.to_string());
            return Ok(());
        }
        for (job, due) in schedule.take_due(now(term)?) {
            say(format!(r#"{{"job":"{job}","due":{},"term":{}}}"#, due.as_secs(), term.number()));
        }
        term.progress();
    }
}

fn now(term: &Term) -> baton_sdk::Result<Duration> {
    Ok(term.now().duration_since(UNIX_EPOCH)?)
}

#[cfg(test)]
mod tests {
    use baton_sdk::StopReason;
    use baton_sdk::testing::Harness;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_job_is_due_once_across_a_takeover() -> baton_sdk::Result {
        let test = Harness::new().term(7).clock(UNIX_EPOCH + seconds(1_000));
        let mut said = Vec::new();
        test.stop_after(seconds(70), StopReason::Shutdown);
        test.run(|term| announce(term, "report=60,tick=25", |line| said.push(line)))?;
        // For 10 s, no node leads. The job `tick` becomes due during this time.
        test.advance(seconds(10));
        test.stop_after(seconds(25), StopReason::LeaseAtRisk);
        test.run(|term| announce(term, "report=60,tick=25", |line| said.push(line)))?;
        assert_eq!(
            said,
            [
                r#"{"job":"report","due":1020,"term":7}"#,
                r#"{"job":"tick","due":1025,"term":7}"#,
                r#"{"job":"tick","due":1050,"term":7}"#,
                "asked to stop: the host is shutting down",
                r#"{"job":"tick","due":1100,"term":8}"#,
                "asked to stop: the lease could not be renewed for a while",
            ]
        );
        Ok(())
    }

    #[test]
    fn failure_is_fatal_when_jobs_are_invalid() {
        let failure = Harness::new().run(|term| announce(term, "report", drop)).err();
        assert!(failure.is_some_and(|failure| failure.is_fatal()));
    }
}
