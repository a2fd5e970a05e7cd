//! Runs a coordinator in a native test, against a host that is the test's.
//!
//! No test waits for real: while the coordinator sleeps, the clock of the [`Harness`] moves on at once. What
//! is to happen meanwhile is said before, and happens at its moment of the test's time.
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
//! // The next run is the next term. It finds the state as it was left.
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

/// A host for one test: a term, a clock that stands still unless the coordinator waits or the test moves it,
/// and a state that outlives each run.
///
/// It begins at the start of 2026, with an empty state, term 1, and 5 s of grace.
#[derive(Debug)]
pub struct Harness {
    host: Host,
}

impl Default for Harness {
    fn default() -> Self {
        Self::new()
    }
}

/// What the coordinator will find.
impl Harness {
    /// A host as the type says.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Host::new())
    }

    /// The number of the next run's term.
    #[must_use]
    pub fn term(self, number: u64) -> Self {
        self.host.world().next_term = number;
        self
    }

    /// The election's name; `test` by default.
    #[must_use]
    pub fn election(self, name: &str) -> Self {
        self.host.world().election = name.to_owned();
        self
    }

    /// The node's id; `test-0` by default.
    #[must_use]
    pub fn node(self, id: &str) -> Self {
        self.host.world().node = id.to_owned();
        self
    }

    /// The wall clock's time.
    #[must_use]
    pub fn clock(self, now: SystemTime) -> Self {
        {
            let mut world = self.host.world();
            (world.began, world.now) = (now, Duration::ZERO);
        }
        self
    }

    /// How long the coordinator may go on after it was asked to stop.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.host.world().grace = grace;
        self
    }

    /// What [`Term::remaining`] answers; 12 s by default.
    #[must_use]
    pub fn remaining(self, remaining: Duration) -> Self {
        self.host.world().remaining = remaining;
        self
    }
}

/// Running it.
impl Harness {
    /// Runs a coordinator until it returns, as a term of its own: the next run's number is one higher.
    ///
    /// # Errors
    /// The coordinator's failure, which a returned [`Stop`](crate::Stop) is not; or that it was
    /// [killed](crate::Failure::is_kill), if the test did that, if it went on for longer than the grace, or
    /// if nothing ended it for a day of the test's time.
    ///
    /// # Panics
    /// If the coordinator does, or runs a second one on this harness.
    pub fn run(&self, run: impl FnOnce(&Term) -> Result) -> Result {
        obeyed(self.host.serve(|host| run(&Term::new(host))))
    }

    /// Runs a coordinator that is an async function, like [`run`](Self::run). While all that it waits for
    /// is the stop and sleeps, the clock moves on.
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

/// What happens meanwhile. What is scripted and not reached by the end of a run is forgotten.
impl Harness {
    /// Asks the coordinator to stop after a time, counted from now.
    pub fn stop_after(&self, time: Duration, reason: StopReason) {
        self.at(time, move |test| test.stop(reason));
    }

    /// Kills the coordinator after a time, counted from now, as a crash of its node does: it gets no further
    /// than its next sleep, check or commit.
    pub fn kill_after(&self, time: Duration) {
        self.host.world().script(time, Action::Kill("the test wanted it".to_owned()));
    }

    /// Does something after a time, counted from now.
    pub fn at(&self, time: Duration, act: impl FnOnce(&Self) + Send + 'static) {
        self.host.world().script(time, Action::Do(Box::new(act)));
    }

    /// Asks the coordinator that runs to stop. For what is done [at](Self::at) a moment.
    pub fn stop(&self, reason: StopReason) {
        let message = match reason {
            StopReason::LeaseAtRisk => "the lease could not be renewed for a while",
            StopReason::LeaseLost => "the lease is lost",
            StopReason::StepDown => "this node steps down",
            StopReason::Replaced => "a newer module takes over",
            StopReason::Shutdown => "the host is shutting down",
        };
        self.host.stop(reason, message.to_owned());
    }

    /// Has the next commit of a coordinator fail, and not be saved; another call is for the one after it.
    pub fn fail_commit(&self, error: StateError) {
        self.host.world().refusals.push_back(error);
    }

    /// Answers the coordinator's requests from now on, or has them fail.
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

    /// How long requests take from now on until they are answered; no time by default.
    #[cfg(feature = "async")]
    pub fn latency(&self, time: Duration) {
        self.host.world().latency = time;
    }

    /// Moves the clock, and has happen what is scripted until then: between runs, or for work that takes its
    /// time.
    pub fn advance(&self, time: Duration) {
        self.host.pass(time);
    }
}

/// What is there to see.
impl Harness {
    /// The state, to put something there before a run or to see what it left. Commits of the test never fail
    /// on demand.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(self.host.clone())
    }

    /// The wall clock's time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.host.now()
    }

    /// How often the last run told of progress.
    #[must_use]
    pub fn progress_count(&self) -> usize {
        self.host.world().progress
    }

    /// How many commits the last run has saved.
    #[must_use]
    pub fn commit_count(&self) -> usize {
        self.host.world().commits
    }

    /// Why the last run stepped down, if it did.
    #[must_use]
    pub fn step_down_reason(&self) -> Option<String> {
        self.host.world().step_down.clone()
    }

    pub(crate) fn of(host: Host) -> Self {
        Self { host }
    }
}

/// A stop that was returned is no failure.
fn obeyed(result: Result) -> Result {
    result.or_else(|failure| if matches!(failure.kind(), Kind::Stopped(_)) { Ok(()) } else { Err(failure) })
}
