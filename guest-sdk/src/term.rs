//! The term that an instance serves, and the request to stop.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

pub use crate::bindings::baton::host::term::StopReason;
use crate::host::Host;
use crate::{Result, State};

/// The term that this instance serves.
#[derive(Debug)]
pub struct Term {
    host: Host,
}

impl Term {
    pub(crate) fn new(host: Host) -> Self {
        Self { host }
    }

    #[cfg(feature = "async")]
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the term's number, which is the fencing token: it increases with every term of this election. Send the
    /// number with each write. The receiver should refuse any number below the highest that it has seen.
    pub fn number(&self) -> u64 {
        self.host.number()
    }

    /// Returns the election's name.
    pub fn election(&self) -> String {
        self.host.election()
    }

    /// Returns the id of this instance's node.
    pub fn node(&self) -> String {
        self.host.node()
    }

    /// Returns the component's digest: `sha256:` and 64 hexadecimal digits.
    pub fn module(&self) -> String {
        self.host.module()
    }

    /// Returns the time until this term's deadline, from which the host refuses this instance's effects. Each renewal
    /// of the lease extends this time.
    pub fn remaining(&self) -> Duration {
        self.host.remaining()
    }

    /// Returns the wall-clock time. In tests, this is the time of [the test's clock](crate#testing).
    pub fn now(&self) -> SystemTime {
        self.host.now()
    }

    /// Returns the shard that this instance serves.
    ///
    /// ```
    /// fn run(term: &baton_sdk::Term) -> baton_sdk::Result {
    ///     let shard = term.shard();
    ///     for site in (0..100).filter(|site| site % shard.count == shard.index) {
    ///         println!("crawl site {site}");
    ///     }
    ///     Ok(())
    /// }
    ///
    /// baton_sdk::testing::Harness::new().shard(3, 16).run(run).unwrap();
    /// ```
    pub fn shard(&self) -> Shard {
        let (index, count) = self.host.shard();
        Shard { index, count }
    }

    /// Returns the due time of this run, if the election has a schedule. Due times are whole seconds.
    ///
    /// A run that is cut short is repeated with the same due time. Send the due time with each write, and let the
    /// receiver ignore a due time that it has already processed.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// fn run(term: &baton_sdk::Term) -> baton_sdk::Result {
    ///     let due = term.scheduled_for().ok_or("this coordinator needs a schedule")?;
    ///     let day = due.duration_since(SystemTime::UNIX_EPOCH)?.as_secs() / 86_400;
    ///     term.state().put(&format!("report/{day}"), &"done")?;
    ///     Ok(())
    /// }
    ///
    /// let due = SystemTime::UNIX_EPOCH + Duration::from_secs(20_000 * 86_400);
    /// let test = baton_sdk::testing::Harness::new().schedule(due, None);
    /// test.run(run).unwrap();
    /// assert_eq!(test.state().keys("report/"), ["report/20000"]);
    /// ```
    pub fn scheduled_for(&self) -> Option<SystemTime> {
        self.host.scheduled_for()
    }

    /// Returns the due time of the last completed run, if the election has a schedule and a run has completed. More
    /// than one due time can lie between it and [`scheduled_for`](Self::scheduled_for) if runs were missed.
    pub fn last_completed(&self) -> Option<SystemTime> {
        self.host.last_completed()
    }

    /// Returns the state, with the values that earlier terms have saved.
    pub fn state(&self) -> State {
        State::new(self.host.clone())
    }

    /// Sleeps for this time, or until the host asks this instance to stop.
    ///
    /// # Errors
    /// [`Stop`] if the host has asked this instance to stop, now or earlier.
    pub fn sleep(&self, length: Duration) -> Result<(), Stop> {
        self.host.sleep(length);
        self.unless_stopped()
    }

    /// Checks whether the host has asked this instance to stop. Call this method in a loop that never sleeps.
    ///
    /// # Errors
    /// [`Stop`] if the host has asked this instance to stop.
    pub fn check(&self) -> Result<(), Stop> {
        self.host.check();
        self.unless_stopped()
    }

    pub(crate) fn unless_stopped(&self) -> Result<(), Stop> {
        match self.host.stop_requested() {
            None => Ok(()),
            Some((reason, message)) => Err(Stop { reason, message, host: self.host.clone() }),
        }
    }

    /// Reports progress. If an instance reports no progress for the time set with `--stall-after`, the instance counts
    /// as stalled, and its node steps down.
    pub fn progress(&self) {
        self.host.progress();
    }

    /// Gives up leadership. The host then asks this instance to stop. For at least 10 s, this node does not try to lead
    /// again.
    pub fn step_down(&self, reason: &str) {
        self.host.step_down(reason);
    }
}

/// One of the parts into which a group divides its work. An election without shards has one, with index 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// The index of the shard, from 0 to `count` - 1.
    pub index: u32,
    /// The number of shards in the group.
    pub count: u32,
}

/// The host's request to this instance to stop.
#[derive(Debug, Clone)]
pub struct Stop {
    reason: StopReason,
    message: String,
    host: Host,
}

impl Stop {
    /// Returns the reason for the stop.
    pub fn reason(&self) -> StopReason {
        self.reason
    }

    /// Returns a human-readable reason, with details.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the time until the host kills this instance.
    pub fn grace(&self) -> Duration {
        self.host.grace()
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "asked to stop: {}", self.message)
    }
}

impl Error for Stop {}
