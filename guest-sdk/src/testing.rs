//! Runs a coordinator in a native test, on a simulated host.
//!
//! Tests do not wait in real time: when the coordinator sleeps, the clock of the [`Harness`] advances instantly. A test
//! schedules events in advance, and each event happens when the clock reaches its time.
//!
//! ```
//! use std::time::Duration;
//!
//! use baton_sdk::testing::Harness;
//! use baton_sdk::{StateError, StopReason, Term};
//!
//! fn run(term: &Term) -> baton_sdk::Result {
//!     let state = term.state();
//!     let mut beats: u64 = state.get("beats")?.unwrap_or(0);
//!     while term.sleep(Duration::from_secs(1)).is_ok() {
//!         beats += 1;
//!         state.put("beats", &beats)?;
//!         term.progress();
//!     }
//!     Ok(())
//! }
//!
//! # fn main() -> baton_sdk::Result {
//! let test = Harness::new().term(7);
//! test.state().put("beats", &100)?;
//! test.stop_after(Duration::from_secs(10 * 60 + 1), StopReason::Shutdown);
//! test.run(run)?;
//! assert_eq!(test.state().get("beats")?, Some(700));
//! assert_eq!(test.progress_count(), 600);
//!
//! // The next run serves the next term, and starts with the state that the last run left.
//! test.at(Duration::from_secs(5), |test| test.fail_commit(StateError::Unavailable("no answer".into())));
//! let failure = test.run(run).unwrap_err();
//! assert_eq!(failure.to_string(), "nothing was saved: no answer");
//! assert_eq!(test.state().get("beats")?, Some(704));
//! # Ok(())
//! # }
//! ```

use std::time::{Duration, SystemTime};

use crate::bindings::baton::host::term::StopReason;
use crate::failure::Kind;
use crate::host::{Action, Host};
use crate::{Result, State, StateError, Term};

/// A host for one test, with a term, a clock and a state that persists across runs. The clock advances only when the
/// coordinator waits or the test advances it.
///
/// A harness starts on 1 January 2026 (UTC), with an empty state, term 1, and a grace period of 5 s.
#[derive(Debug)]
pub struct Harness {
    host: Host,
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

/// Settings that a test makes before a run.
impl Harness {
    /// Creates a harness with the defaults described above.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Host::new())
    }

    /// Sets the term number for the next run.
    #[must_use]
    pub fn term(self, number: u64) -> Self {
        self.host.world().next_term = number;
        self
    }

    /// Sets the election's name. The default is `test`.
    #[must_use]
    pub fn election(self, name: &str) -> Self {
        self.host.world().election = name.to_owned();
        self
    }

    /// Sets the node's id. The default is `test-0`.
    #[must_use]
    pub fn node(self, id: &str) -> Self {
        self.host.world().node = id.to_owned();
        self
    }

    /// Sets the wall-clock time.
    #[must_use]
    pub fn clock(self, now: SystemTime) -> Self {
        {
            let mut world = self.host.world();
            (world.began, world.now) = (now, Duration::ZERO);
        }
        self
    }

    /// Sets the grace period: the time between the stop and the kill.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.host.world().grace = grace;
        self
    }

    /// Sets the result of [`Term::remaining`]. The default is 12 s.
    #[must_use]
    pub fn remaining(self, remaining: Duration) -> Self {
        self.host.world().remaining = remaining;
        self
    }

    /// Sets the result of [`Term::shard`]. The default is the only shard of an election without shards.
    #[must_use]
    pub fn shard(self, index: u32, count: u32) -> Self {
        self.host.world().shard = (index, count);
        self
    }

    /// Sets the results of [`Term::scheduled_for`] and [`Term::last_completed`]. By default, both are `None`, as in an
    /// election without a schedule.
    #[must_use]
    pub fn schedule(self, scheduled_for: SystemTime, last_completed: Option<SystemTime>) -> Self {
        {
            let mut world = self.host.world();
            (world.scheduled_for, world.last_completed) = (Some(scheduled_for), last_completed);
        }
        self
    }
}

/// Methods that run a coordinator.
impl Harness {
    /// Runs a coordinator until it returns. Each run serves a new term, whose number is one higher than that of the
    /// previous run.
    ///
    /// # Errors
    /// Returns the coordinator's failure. A returned [`Stop`](crate::Stop) does not count as a failure, but a
    /// [kill](crate::Failure::is_kill) does. The harness kills the coordinator if the test has scheduled a kill, at the
    /// end of the grace period, or if the coordinator is still running a day after the last scheduled event.
    ///
    /// # Panics
    /// Panics if the coordinator panics, or runs another coordinator on this harness.
    pub fn run(&self, run: impl FnOnce(&Term) -> Result) -> Result {
        obeyed(self.host.serve(|host| run(&Term::new(host))))
    }

    /// Runs an async coordinator, like [`run`](Self::run). The clock advances when all of the coordinator's futures
    /// wait for a time, a response or the stop.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Panics
    /// As for [`run`](Self::run).
    #[cfg(feature = "async")]
    pub fn run_async(&self, run: impl AsyncFnOnce(&crate::AsyncTerm) -> Result) -> Result {
        obeyed(self.host.serve(|host| {
            let term = crate::AsyncTerm::new(Term::new(host.clone()));
            host.block_on(run(&term))
        }))
    }
}

/// Events during a run. When a run ends, the harness drops the events that have not happened yet.
impl Harness {
    /// Asks the coordinator to stop once this time has elapsed.
    pub fn stop_after(&self, time: Duration, reason: StopReason) {
        self.at(time, move |test| test.stop(reason));
    }

    /// Kills the coordinator once this time has elapsed, to simulate a crash of its node. The coordinator ends at its
    /// next sleep, check or commit.
    pub fn kill_after(&self, time: Duration) {
        self.host.world().script(time, Action::Kill("by the test".to_owned()));
    }

    /// Calls a function once this time has elapsed.
    pub fn at(&self, time: Duration, act: impl FnOnce(&Self) + Send + 'static) {
        self.host.world().script(time, Action::Do(Box::new(act)));
    }

    /// Asks the running coordinator to stop. For use in functions passed to [`at`](Self::at).
    pub fn stop(&self, reason: StopReason) {
        let message = match reason {
            StopReason::LeaseAtRisk => "the lease could not be renewed for a while",
            StopReason::LeaseLost => "the lease was lost",
            StopReason::StepDown => "this node steps down",
            StopReason::Replaced => "a newer module takes over",
            StopReason::Shutdown => "the host is shutting down",
        };
        self.host.stop(reason, message.to_owned());
    }

    /// Makes the coordinator's next commit fail without saving anything. If the test calls this method several times,
    /// as many commits fail, one after another.
    pub fn fail_commit(&self, error: StateError) {
        self.host.world().refusals.push_back(error);
    }

    /// Sets a function that answers all later requests from the coordinator. The function may return an error to make a
    /// request fail.
    #[cfg(feature = "async")]
    pub fn answer(
        &self,
        answer: impl FnMut(
            crate::http::Request<Vec<u8>>,
        ) -> std::result::Result<crate::http::Response<Vec<u8>>, crate::http::Error>
        + Send
        + 'static,
    ) {
        self.host.world().answer = Some(Box::new(answer));
    }

    /// Sets how long each later request takes. The default is zero.
    #[cfg(feature = "async")]
    pub fn latency(&self, time: Duration) {
        self.host.world().latency = time;
    }

    /// Advances the clock, and runs the events that become due. Call this method between runs, or to simulate work that
    /// takes time.
    pub fn advance(&self, time: Duration) {
        self.host.pass(time);
    }
}

/// Results of a run.
impl Harness {
    /// Returns the state, which the test can fill before a run or read after it. [`fail_commit`](Self::fail_commit)
    /// does not affect the test's own commits.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(self.host.clone())
    }

    /// Returns the wall-clock time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.host.now()
    }

    /// Returns the number of times that the last run reported progress.
    #[must_use]
    pub fn progress_count(&self) -> usize {
        self.host.world().progress
    }

    /// Returns the number of commits that the last run saved.
    #[must_use]
    pub fn commit_count(&self) -> usize {
        self.host.world().commits
    }

    /// Returns the reason why the last run stepped down, if it did.
    #[must_use]
    pub fn step_down_reason(&self) -> Option<String> {
        self.host.world().step_down.clone()
    }

    pub(crate) fn of(host: Host) -> Self {
        Self { host }
    }
}

fn obeyed(result: Result) -> Result {
    result.or_else(|failure| if matches!(failure.kind(), Kind::Stopped(_)) { Ok(()) } else { Err(failure) })
}
