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

    /// The term's number: the fencing token. It rises with every term of this election; hand it to whatever
    /// you write to, and have that refuse a number lower than the highest it has seen.
    pub fn number(&self) -> u64 {
        self.host.number()
    }

    /// The election's name.
    pub fn election(&self) -> String {
        self.host.election()
    }

    /// The id of the node that this instance runs on.
    pub fn node(&self) -> String {
        self.host.node()
    }

    /// The component's digest, as `sha256:` and 64 hexadecimal digits.
    pub fn module(&self) -> String {
        self.host.module()
    }

    /// The time until this instance's effects are refused, unless the lease is renewed before.
    pub fn remaining(&self) -> Duration {
        self.host.remaining()
    }

    /// The wall clock's time; in a test, [the test's](crate#testing).
    pub fn now(&self) -> SystemTime {
        self.host.now()
    }

    /// What the terms before this one saved, and what this one saves for those after it.
    pub fn state(&self) -> State {
        State::new(self.host.clone())
    }

    /// Sleeps, but not past a request to stop.
    ///
    /// # Errors
    /// [`Stop`] once this instance is asked to stop, also when it was before.
    pub fn sleep(&self, length: Duration) -> Result<(), Stop> {
        self.host.sleep(length);
        self.unless_stopped()
    }

    /// Goes on unless this instance is asked to stop: for loops that have no reason to sleep.
    ///
    /// # Errors
    /// [`Stop`] once this instance is asked to stop.
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

    /// Tells the host that useful work was done. Where the host runs with `--stall-after`, an instance that
    /// stays silent for longer counts as stalled.
    pub fn progress(&self) {
        self.host.progress();
    }

    /// Gives up leadership. The stop arrives as for any other step-down, and this node does not contend again
    /// for ten seconds or more.
    pub fn step_down(&self, reason: &str) {
        self.host.step_down(reason);
    }
}

/// This instance is asked to stop.
#[derive(Debug, Clone)]
pub struct Stop {
    reason: StopReason,
    message: String,
    host: Host,
}

impl Stop {
    /// Why the instance is to stop.
    pub fn reason(&self) -> StopReason {
        self.reason
    }

    /// The same for a person to read, with what the reason leaves out.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The time until this instance is killed.
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
