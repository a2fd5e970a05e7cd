//! The elector.
use alloc::string::String;
use core::time::Duration;

use crate::record::{Record, Term};
use crate::request::{Op, Refusal, Reply, RequestId};
use crate::timing::{Time, Timing};

/// What an elector is told once.
#[derive(Clone, Debug)]
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
    /// The digest of the module that this node would run.
    pub module: String,
}

/// What follows when an instance returns ok.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnDone {
    /// The next term begins after the pause.
    Repeat,
    /// The election is over until there is a new module or it is started again.
    Finish,
}

/// The time of an input.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The host's clock, by which everything is decided.
    pub time: Time,
    /// Wall-clock time since the Unix epoch, for the record that people read.
    pub wall: Duration,
}

/// What the elector learns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Nothing but the time: it asked to be woken.
    Tick,
    /// The store's answer to a request, or [`Refusal::Unknown`] once its timeout has passed.
    Answer {
        /// The request.
        id: RequestId,
        /// The answer.
        result: Result<Reply, Refusal>,
    },
    /// The instance is gone: its store is dropped and all that it had started has ended.
    Gone {
        /// How it ended.
        end: End,
    },
    /// This node is to give leadership up.
    StepDown {
        /// Why, for a person.
        reason: String,
    },
    /// The host is shutting down.
    Shutdown,
    /// The host is shutting down and has no patience: no grace any more.
    SkipGrace,
}

/// How an instance ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It returned ok.
    Done,
    /// It failed and is worth another try here: `retryable`, a trap, an exit status other than 0.
    Failed(String),
    /// It failed and is not worth another try here.
    Fatal(String),
    /// It was killed.
    Killed,
}

/// Why an instance is asked to stop. The same as `stop-reason` in `wit/world.wit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// The lease could not be renewed for a while.
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

/// What is to be done, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Ask the store. The answer, or `Unknown` after `timeout`, comes back as [`Input::Answer`]; a request
    /// whose timeout has passed is dropped.
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
        /// Effects are refused from here on, unless [`Effect::Extend`] moves it.
        deadline: Time,
        /// If the instance is not gone by then, the host ends its own process.
        abort_at: Time,
    },
    /// The lease was renewed: move the running instance's deadline.
    Extend {
        /// Effects are refused from here on.
        deadline: Time,
        /// If the instance is not gone by then, the host ends its own process.
        abort_at: Time,
    },
    /// Ask the instance to stop.
    Stop {
        /// Why.
        reason: StopReason,
        /// The same for a person.
        message: String,
        /// When it will be killed at the latest.
        kill_at: Time,
    },
    /// Refuse its effects, then kill the instance. [`Input::Gone`] follows.
    Kill {
        /// Why, for a person.
        reason: String,
    },
    /// End the host's process at once: an instance is not gone and the lease is about to end.
    Abort {
        /// Why, for a person.
        reason: String,
    },
    /// Tell people.
    Report(Report),
    /// The orderly end is complete: nothing is held, nothing runs.
    Finished,
}

/// What people are told, once for each change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// This node follows.
    Standby {
        /// Why, or who leads.
        reason: String,
    },
    /// This node holds the lease and has begun a term.
    Elected {
        /// The record that was written.
        record: Record,
    },
}

/// Decides who leads. The calling contract: …
#[derive(Debug)]
pub struct Elector {}
