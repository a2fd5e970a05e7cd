//! Inputs and effects of the elector.

use alloc::string::String;
use core::time::Duration;

use crate::hint::{Hint, Word};
use crate::record::{Record, Term};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::timing::{Time, Timing};

/// The configuration of an elector.
#[derive(Clone, Debug, Hash)]
pub struct Settings {
    /// This node's id.
    pub node: String,
    /// The id of this start of the host, unique.
    pub incarnation: String,
    /// The lease's length, and the moments that follow from it.
    pub timing: Timing,
    /// The shortest and the longest lease that the store supports.
    pub lease_range: (Duration, Duration),
    /// The wait between an instance that returned ok and the next term under the same lease.
    pub pause: Duration,
    /// The action after an instance returned ok.
    pub on_done: OnDone,
    /// The length of a probation, counted from when an instance of the version begins. Earlier failures count, too.
    pub probation: Duration,
}

/// The source of an elector's random numbers.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Random {
    /// The generator's state, which determines all further numbers.
    pub state: [u8; 32],
    /// Yields the next number and advances the state.
    pub next: fn(&mut [u8; 32]) -> u64,
}

impl Random {
    /// Yields the next number.
    pub fn number(&mut self) -> u64 {
        (self.next)(&mut self.state)
    }
}

/// One version of the coordinator: a module and one publication of it.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct ModuleVersion {
    /// The module's digest, `sha256:` and 64 hexadecimal digits. The elector only compares digests, so it stays text.
    pub digest: String,
    /// Distinguishes two publications: a rejected module that is published again is another version.
    pub serial: u64,
}

/// The versions that a node could run, all ready to start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Plan {
    /// The version to serve as soon as this node leads. A node without one does not contend.
    pub module: Option<ModuleVersion>,
    /// The version to serve if `module` turns out to be bad. It is set only while `module` is on probation.
    pub fallback: Option<ModuleVersion>,
}

impl Plan {
    /// The digest of the version to serve.
    pub fn digest(&self) -> Option<&str> {
        self.module.as_ref().map(|module| module.digest.as_str())
    }
}

/// The action after an instance returned ok.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OnDone {
    /// The next term begins after the pause.
    Repeat,
    /// The election is over until there is a new module or an operator starts it again.
    Finish,
}

/// The time of an input.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Now {
    /// The host's clock: an upper bound on the elapsed time. It limits what a holder may still do.
    pub time: Time,
    /// A lower bound on the elapsed time: the slowest of the clocks that nobody can set. Waits for another node's
    /// instance end by it, since a wall clock that steps forward would cut such a wait short. The elector also detects
    /// by it that the host was paused.
    pub least: Duration,
    /// Wall-clock time since the Unix epoch. People read it in the record; no wait for another instance uses it.
    pub wall: Duration,
}

/// An event that the elector handles.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Input {
    /// A wake-up: only the time has changed.
    Tick,
    /// The store's answer to a request, or [`StoreError::Unknown`] once its timeout has passed.
    Answer {
        /// The request.
        id: RequestId,
        /// The answer.
        result: Result<Reply, StoreError>,
    },
    /// Instead of an answer: this acquire was not sent, nor was another under its id. The node lets others ask first.
    NotSent {
        /// The request.
        id: RequestId,
    },
    /// The instance's guest runs. The host may learn this late, or never.
    Begun,
    /// The instance is gone: its wasmtime store is dropped, and everything that it had started has ended.
    Gone {
        /// The way in which it ended.
        end: End,
    },
    /// The instance's process is ending, by a kill or by itself, but the system has not finished with it. None of its
    /// code runs any more, but the instance is not gone.
    Dying,
    /// The versions that this node could run have changed.
    Plan(Plan),
    /// The instance has made no progress for too long.
    Stalled {
        /// The reason, for a person.
        reason: String,
    },
    /// This node must give up leadership.
    StepDown {
        /// The reason, for a person.
        reason: String,
    },
    /// A hint, which is untrusted. It moves a standby's next reading, turns it into a survey, or hastens a renewal.
    Hint(Hint),
    /// The host is shutting down.
    Shutdown,
    /// The host is shutting down and no longer waits for the grace to end.
    SkipGrace,
}

/// The way in which an instance ended.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum End {
    /// The instance returned ok.
    Done,
    /// The instance failed, and another try on this node is worthwhile: `retryable`, or an exit status other than 0.
    Failed(String),
    /// The instance trapped, or could not even be started. Another try on this node is worthwhile.
    Crashed(String),
    /// This node could not start the instance, for a reason that says nothing about the version: a secret or a granted
    /// folder is missing, the store did not answer the claim of the state, or the system lacks processes, descriptors,
    /// memory or disk space. Such an end neither judges the version nor counts as a failure in the record.
    Unable(String),
    /// The instance failed, and another try on this node is not worthwhile.
    Fatal(String),
    /// The host killed the instance.
    Killed,
    /// The coordinator's state was claimed by another writer, so the instance's term is over.
    Superseded {
        /// The term that the state names.
        term: Term,
    },
}

/// The reason for which an instance is asked to stop. It matches `stop-reason` in `wit/world.wit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StopReason {
    /// The lease could not be renewed for a while, and may be lost.
    LeaseAtRisk,
    /// The lease is gone.
    LeaseLost,
    /// This node gives up leadership.
    StepDown,
    /// A newer module takes over under the same lease.
    Replaced,
    /// The host is shutting down.
    Shutdown,
}

/// An action for the host. The host carries effects out in the order in which they come.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Send a request to the store; requests run concurrently. The answer, or [`StoreError::Unknown`] after `timeout`,
    /// comes back as [`Input::Answer`]. If the host does not send the request, [`Input::NotSent`] comes back instead.
    Request {
        /// The id that the answer carries.
        id: RequestId,
        /// The request.
        op: Op,
        /// The longest wait for the answer.
        timeout: Duration,
    },
    /// Start an instance that serves `term`.
    Start {
        /// The term's number.
        term: Term,
        /// The version that the instance runs.
        version: ModuleVersion,
        /// The instance's effects are refused from then on, unless [`Effect::Extend`] moves the deadline.
        deadline: Time,
        /// If the instance is neither gone nor dying by then, the host ends its own process.
        abort_at: Time,
    },
    /// Move the instance's deadlines, after a renewal. This does not reopen a gate that has closed.
    Extend {
        /// The instance's effects are refused from then on.
        deadline: Time,
        /// If the instance is neither gone nor dying by then, the host ends its own process.
        abort_at: Time,
    },
    /// Ask the instance to stop.
    Stop {
        /// The reason that the guest receives.
        reason: StopReason,
        /// The reason, for a person.
        message: String,
        /// The end of the grace. The host kills the instance then, or at its deadline if that is earlier.
        grace_ends: Time,
        /// The term that follows at once under this lease, if its number is already written.
        next: Option<Term>,
    },
    /// Refuse the instance's effects, then kill it. [`Input::Gone`] follows, after [`Input::Dying`] if the end takes
    /// long.
    Kill {
        /// The reason, for a person.
        reason: String,
    },
    /// End the host's process at once: an instance is neither gone nor dying, and the lease is about to end.
    Abort {
        /// The reason, for a person.
        reason: String,
    },
    /// Record that a version has passed its probation, for all nodes.
    Prove {
        /// The proven version.
        version: ModuleVersion,
        /// The term in which the version passed.
        term: Term,
    },
    /// Record that a version is bad: no node should run it again. The version to serve instead is already chosen.
    Reject {
        /// The rejected version.
        version: ModuleVersion,
        /// The term in which the version failed.
        term: Term,
        /// The reason, for a person.
        reason: String,
        /// The version that is served instead.
        instead: Option<ModuleVersion>,
    },
    /// Send a message to the other nodes. Nothing depends on its delivery.
    Tell(Word),
    /// Report an event to people.
    Report(Report),
    /// The orderly end is complete: nothing runs, and this node holds nothing.
    Finished,
}

/// An event for people. Each change is reported once, with its reason and numbers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Report {
    /// This node begins to follow, or follows again.
    Standby {
        /// The reason for which this node follows, for a person.
        reason: String,
    },
    /// A node leads that did not before.
    Following {
        /// The record that the leader wrote when its term began.
        leader: Record,
    },
    /// A client that is not Baton holds the lease.
    HeldOutside {
        /// The evidence, for a person.
        reason: String,
    },
    /// The election is finished: no node will start this module.
    ElectionOver {
        /// The last record.
        record: Record,
    },
    /// This node has taken a lease that had not expired: all processes of its holder have exited.
    TookOver {
        /// The last record of that holder.
        from: Record,
    },
    /// This node holds the lease, but waits because another node's instance may still run.
    Settling {
        /// Upper bound on the wait. If the store's terms could not be read, the wait ends earlier once they can.
        wait: Duration,
        /// The reason for which another instance may still run, for a person.
        reason: String,
    },
    /// This node holds the lease and has written its term.
    Elected {
        /// The record that was written.
        record: Record,
    },
    /// A renewal failed or has an unknown outcome.
    RenewFailed {
        /// The store's error.
        error: StoreError,
        /// The time since the last renewal known to have succeeded.
        since_renewal: Duration,
        /// The time until effects are refused.
        remaining: Duration,
    },
    /// Renewals succeed again.
    RenewedAgain {
        /// The time since the last renewal before that.
        after: Duration,
    },
    /// The instance returned ok, and the next term begins under the same lease after the pause.
    Pausing {
        /// The length of the pause.
        wait: Duration,
    },
    /// An instance has failed, and the next term begins under the same lease after `wait`.
    Resting {
        /// The time until the next term.
        wait: Duration,
        /// The failure, for a person.
        reason: String,
        /// Failures in a row.
        failures: u32,
    },
    /// This node is ineligible for a while.
    CoolOff {
        /// The length of the cool-off.
        wait: Duration,
        /// The reason for which this node stepped down, for a person.
        reason: String,
    },
    /// Leadership was lost.
    Lost {
        /// The evidence for the loss, for a person.
        reason: String,
        /// The time since the last renewal known to have succeeded.
        since_renewal: Duration,
    },
    /// The lease was released.
    Released,
    /// The lease could not be released, and will expire.
    NotReleased {
        /// The reason for which the lease could not be released, for a person.
        reason: String,
    },
    /// A request to the store failed. Reported once, until the store answers or its error changes.
    StoreTrouble {
        /// The store's error.
        error: StoreError,
        /// The name of the request.
        asked: &'static str,
    },
    /// The store answers again.
    StoreBack {
        /// The length of the outage.
        after: Duration,
    },
}
