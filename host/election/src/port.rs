//! What goes into the elector and what comes out of it.

use alloc::string::String;
use core::time::Duration;

use crate::hint::{Hint, Word};
use crate::record::{Record, Term};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::timing::{Time, Timing};

/// What an elector is told once.
#[derive(Clone, Debug, Hash)]
pub struct Settings {
    /// This node's id.
    pub node: String,
    /// This start of the node's host, unique.
    pub incarnation: String,
    /// The lease's length and what follows from it.
    pub timing: Timing,
    /// The shortest and the longest lease that the store keeps.
    pub lease_range: (Duration, Duration),
    /// From an instance that is done to the next term under the same lease.
    pub pause: Duration,
    /// What follows when an instance is done.
    pub on_done: OnDone,
    /// How long a new version is watched, from when an instance of it has begun: what goes wrong before is its own fault.
    pub probation: Duration,
}

/// Where an elector's random numbers come from.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Random {
    /// What decides all numbers to come.
    pub state: [u8; 32],
    /// Yields the next number and moves the state on.
    pub next: fn(&mut [u8; 32]) -> u64,
}

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        (self.next)(&mut self.state)
    }
}

/// One version of the coordinator: a module, and which publishing of it.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct ModuleVersion {
    /// The module's digest, `sha256:` and 64 hexadecimal digits. A text here, since the elector only tells one from
    /// another and what a record says is shown as it stands.
    pub digest: String,
    /// Tells one publishing from the next: a rejected module that is published again is another version.
    pub serial: u64,
}

/// What a node could run, all of it ready to be started.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Plan {
    /// What it serves as soon as it leads; none, and it does not contend.
    pub module: Option<ModuleVersion>,
    /// What it serves instead if that turns out to be bad. There is one only while that is on probation.
    pub fallback: Option<ModuleVersion>,
}

impl Plan {
    /// The digest of what it serves.
    pub fn digest(&self) -> Option<&str> {
        self.module.as_ref().map(|module| module.digest.as_str())
    }
}

/// What follows when an instance returns ok.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OnDone {
    /// The next term begins after the pause.
    Repeat,
    /// The election is over until there is a new module or it is started again.
    Finish,
}

/// The time of an input.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Now {
    /// The host's clock, which never says less than has passed. What a holder may still do is decided by it.
    pub time: Time,
    /// Elapsed time by the slowest of the clocks that nobody can set, which never says more than has passed. What
    /// another may still do is waited out by it: a wall clock that steps forward would cut the wait short. By the same it
    /// is seen that the host was paused.
    pub least: Duration,
    /// Wall-clock time since the Unix epoch, for the record that people read.
    pub wall: Duration,
}

/// What the elector learns.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Input {
    /// Nothing but the time: it asked to be woken.
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
    /// The guest of the instance runs. It may be long until that is heard, and it may never be.
    Begun,
    /// The instance is gone: its store is dropped and all that it had started has ended.
    Gone {
        /// How it ended.
        end: End,
    },
    /// The system has taken the order to end the instance's process, by a kill or after its own end, and is not done with it:
    /// nothing of it runs any more, nor will, and it is not gone.
    Dying,
    /// What this node could run is another now.
    Plan(Plan),
    /// The instance has made no progress for too long.
    Stalled {
        /// Why, for a person.
        reason: String,
    },
    /// This node is to give leadership up.
    StepDown {
        /// Why, for a person.
        reason: String,
    },
    /// Something was heard. Nothing is believed of it: it moves a standby's next reading, or makes a survey of it, or has a
    /// holder renew earlier, and does nothing else.
    Hint(Hint),
    /// The host is shutting down.
    Shutdown,
    /// The host is shutting down and has no patience: no grace any more.
    SkipGrace,
}

/// How an instance ended.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum End {
    /// It returned ok.
    Done,
    /// It failed and is worth another try here: `retryable`, an exit status other than 0.
    Failed(String),
    /// It trapped, or could not even be started: worth another try here, too.
    Crashed(String),
    /// This node could not start it: the host's own call failed, for a reason that says nothing about the version. A secret
    /// or a granted folder is missing, the store did not answer when the state was claimed, or the system has no process,
    /// descriptor, memory or disk space left. No version is judged by it, and it is not among the failures in the record.
    Unable(String),
    /// It failed and is not worth another try here.
    Fatal(String),
    /// It was killed.
    Killed,
    /// The coordinator's state was claimed by another, in this term or while it served: its term is over.
    Superseded {
        /// The term that the state names.
        term: Term,
    },
}

/// Why an instance is asked to stop. The same as `stop-reason` in `wit/world.wit`.
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

/// What is to be done. Effects are carried out in the order in which they come.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Ask the store. The answer, or [`StoreError::Unknown`] after `timeout`, comes back as
    /// [`Input::Answer`], or [`Input::NotSent`] says that there is none. Requests run side by side; none waits for another.
    Request {
        /// Comes back with the answer.
        id: RequestId,
        /// What to ask.
        op: Op,
        /// How long to wait for the answer.
        timeout: Duration,
    },
    /// Start an instance that serves this term.
    Start {
        /// Its number.
        term: Term,
        /// What it runs.
        version: ModuleVersion,
        /// Its effects are refused from here on, unless [`Effect::Extend`] moves it.
        deadline: Time,
        /// If the instance is neither gone nor dying by then, the host ends its own process.
        abort_at: Time,
    },
    /// The lease was renewed: move the instance's deadlines. Does not reopen a gate that was closed.
    Extend {
        /// Its effects are refused from here on.
        deadline: Time,
        /// If the instance is neither gone nor dying by then, the host ends its own process.
        abort_at: Time,
    },
    /// Ask the instance to stop.
    Stop {
        /// The reason, as the guest is told it.
        reason: StopReason,
        /// The reason for a person.
        message: String,
        /// When its grace ends. It is killed then, or at its deadline if that is earlier.
        grace_ends: Time,
        /// The term that follows at once under this lease, where its number is written already.
        next: Option<Term>,
    },
    /// Refuse the instance's effects, then kill it. [`Input::Gone`] follows, and before it [`Input::Dying`] where that takes
    /// the system longer than a moment.
    Kill {
        /// Why, for a person.
        reason: String,
    },
    /// End the host's process at once: an instance is not gone, nor known to be dying, and the lease is about to end.
    Abort {
        /// Why, for a person.
        reason: String,
    },
    /// A version has done well for as long as its probation is: every node may know that.
    Prove {
        /// Which one.
        version: ModuleVersion,
        /// The term in which that showed.
        term: Term,
    },
    /// A version is bad: no node should run it again. What is served instead is decided already.
    Reject {
        /// Which one.
        version: ModuleVersion,
        /// The term in which that showed.
        term: Term,
        /// Why, for a person.
        reason: String,
        /// The version that is served instead.
        instead: Option<ModuleVersion>,
    },
    /// Tell the other nodes. Nothing depends on whether they hear it.
    Tell(Word),
    /// Tell people.
    Report(Report),
    /// The orderly end is complete: nothing runs and nothing is held.
    Finished,
}

/// What people are told: each change once, with its reason and numbers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Report {
    /// This node has begun to follow, or gone back to following.
    Standby {
        /// Why this node follows, for a person.
        reason: String,
    },
    /// Somebody leads, or another than before does.
    Following {
        /// What the leader wrote when its term began.
        leader: Record,
    },
    /// The lease is held by a client that is not Baton.
    HeldOutside {
        /// How that shows.
        reason: String,
    },
    /// The election is finished: this module will not be started.
    ElectionOver {
        /// The last record.
        record: Record,
    },
    /// This node has taken a lease that had not run out: all that its holder ran is gone.
    TookOver {
        /// What that had written.
        from: Record,
    },
    /// This node holds the lease, but another's instance may still run: it waits that out.
    Settling {
        /// How long: as long as it takes if the store does not say meanwhile what else it names, where it did not.
        wait: Duration,
        /// Why another's instance may still run, for a person.
        reason: String,
    },
    /// This node holds the lease and has written its term.
    Elected {
        /// The record that was written.
        record: Record,
    },
    /// A renewal failed or has an unknown outcome.
    RenewFailed {
        /// What the store said.
        error: StoreError,
        /// Since the last renewal known to have succeeded.
        since_renewal: Duration,
        /// Until effects are refused.
        remaining: Duration,
    },
    /// Renewals succeed again.
    RenewedAgain {
        /// How long there was none.
        after: Duration,
    },
    /// The work is done, and the next term begins under the same lease after the pause.
    Pausing {
        /// How long.
        wait: Duration,
    },
    /// An instance has failed, and the next term begins under the same lease after a while.
    Resting {
        /// How long.
        wait: Duration,
        /// The failure, for a person.
        reason: String,
        /// Failures in a row.
        failures: u32,
    },
    /// This node stays out of the election for a while.
    CoolOff {
        /// How long.
        wait: Duration,
        /// Why this node stepped down, for a person.
        reason: String,
    },
    /// Leadership was lost.
    Lost {
        /// What showed that the lease is lost, for a person.
        reason: String,
        /// Since the last renewal known to have succeeded.
        since_renewal: Duration,
    },
    /// The lease was given up.
    Released,
    /// The lease could not be given up, and will run out by itself.
    NotReleased {
        /// Why the lease could not be released, for a person.
        reason: String,
    },
    /// The store does not answer as it should. Said once, until it does or says something else.
    StoreTrouble {
        /// What it said.
        error: StoreError,
        /// What was asked.
        asked: &'static str,
    },
    /// The store answers again.
    StoreBack {
        /// For how long it did not.
        after: Duration,
    },
}
