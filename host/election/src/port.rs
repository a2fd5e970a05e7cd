//! The elector's inputs and effects.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use crate::eligibility::{Eligibility, Ineligibility};
use crate::hint::{Hint, Word};
use crate::record::{Record, Term};
use crate::request::{Op, Reply, RequestId, StoreError};
use crate::schedule::{Progress, Schedule, ScheduledRun};
use crate::timing::{Time, Timing};

/// The configuration of an elector.
#[derive(Clone, Debug, Hash)]
pub struct Settings {
    /// This node's id.
    pub node: String,
    /// The unique id of this run of the host.
    pub incarnation: String,
    /// The lease's length, and the times derived from it.
    pub timing: Timing,
    /// The shortest and the longest lease that the store supports.
    pub lease_range: (Duration, Duration),
    /// Wait between the end of an instance that returned ok and the start of the next instance (`--restart-delay`).
    pub pause: Duration,
    /// The action to take after an instance has returned ok.
    pub on_done: OnDone,
    /// The length of a probation. It is counted from the time at which the version's first failed instance began to
    /// run. If no instance has failed yet, it is counted from the time at which the current instance began to run.
    pub probation: Duration,
    /// The schedule of the runs. If there is one, `pause` must be zero, and `on_done` must be [`OnDone::Repeat`].
    pub schedule: Option<Schedule>,
}

/// The source of an elector's random numbers.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Random {
    /// The generator's state, which determines all future numbers.
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
    /// The module's digest, `sha256:` and 64 hexadecimal digits. The elector only compares digests, so a string
    /// suffices.
    pub digest: String,
    /// Distinguishes repeated publications of the same module: republishing a rejected module creates a new version.
    pub serial: u64,
}

/// The versions that a node could run, all ready to start.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Plan {
    /// The version to serve as soon as this node leads. If there is none, the node does not request the lease.
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

/// Decides whether another instance starts after an instance has returned ok.
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
    /// The host's clock: an upper bound on the elapsed time. A holder's deadlines are measured on this clock.
    pub time: Time,
    /// A lower bound on the elapsed time, from the slowest of the host's clocks that nobody can set. The elector uses
    /// this bound to wait until another node's instance has ended. A wall clock could end that wait too early, by
    /// stepping forward. The elector also uses this bound to detect that the host was paused.
    pub least: Duration,
    /// Wall-clock time since the Unix epoch. The elector uses it for scheduled runs and for the pause after an instance
    /// has returned ok. The elector also uses it to choose a term above all terms that this node cannot know. No wait
    /// for another instance depends on the wall clock, because anybody may set it.
    pub wall: Duration,
}

/// An event that the elector handles.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Input {
    /// A wake-up: only the time has changed.
    Tick,
    /// The store's answer to a request, or [`StoreError::Unknown`] if none has arrived by the request's timeout.
    Answer {
        /// The request.
        id: RequestId,
        /// The answer.
        result: Result<Reply, StoreError>,
    },
    /// The host has not sent this acquire or reclaim, because the host has reached its leadership quota. No answer
    /// follows. The host may withhold only requests with [`within_quota`](Effect::Request::within_quota).
    NotSent {
        /// The request.
        id: RequestId,
        /// Human-readable reason.
        reason: String,
    },
    /// The instance's guest is running. The host may learn this late, or never.
    Begun,
    /// The instance is gone: its wasmtime store is dropped, and everything that the instance started has ended.
    Gone {
        /// The way in which the instance ended.
        end: End,
    },
    /// The instance's process was killed or is exiting, but the operating system has not finished removing it. The
    /// process runs no code any more, but the instance is not gone yet.
    Dying,
    /// The versions that this node could run have changed.
    Plan(Plan),
    /// The conditions under which this node may lead have changed. Before the first such input, nothing prevents the
    /// node from leading.
    Eligibility(Eligibility),
    /// The operators' last commands about scheduled runs. Before the first such input, there are none.
    Schedule(ScheduleCommands),
    /// The instance has made no progress for too long.
    Stalled {
        /// Human-readable reason.
        reason: String,
    },
    /// This node must give up leadership.
    StepDown {
        /// Human-readable reason.
        reason: String,
    },
    /// A hint, which is untrusted. It can reschedule a standby's next read, turn that read into a survey, or make a
    /// renewal earlier.
    Hint(Hint),
    /// The host is shutting down.
    Shutdown,
    /// The host is shutting down and no longer waits for the instance's grace period.
    SkipGrace,
}

/// The operators' commands about scheduled runs. Times are wall-clock times since the Unix epoch, in whole seconds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct ScheduleCommands {
    /// The progress to continue from. The elector merges it into the recorded progress: see [`Progress::merge`].
    pub progress: Option<Box<Progress>>,
    /// An additional due time: the time at which an operator triggered a run. It runs once, like any other due time.
    pub trigger: Option<Duration>,
}

/// The way an instance ended.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum End {
    /// The instance returned ok.
    Done,
    /// The instance failed, but a retry on this node may succeed: the error is `retryable`, or the exit status is not
    /// 0.
    Failed(String),
    /// The instance trapped, or could not even be started. A retry on this node may succeed.
    Crashed(String),
    /// This node could not start the instance, for a reason that says nothing about the version: a secret or a granted
    /// folder is missing, the store failed to carry out the claim of the state, or the system lacks processes, file
    /// descriptors, memory or disk space. This end does not affect the version's probation, and does not count as a
    /// failure in the record.
    Unable(String),
    /// The instance failed, and a retry on this node would not help.
    Fatal(String),
    /// The host killed the instance.
    Killed,
    /// Another writer has claimed the coordinator's state, so the instance's term is over.
    Superseded {
        /// The term that the state contains.
        term: Term,
    },
}

/// The reason why an instance is asked to stop. Corresponds to `stop-reason` in `wit/world.wit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum StopReason {
    /// The lease could not be renewed for a while, and may be lost.
    LeaseAtRisk,
    /// The lease is lost.
    LeaseLost,
    /// This node is giving up leadership.
    StepDown,
    /// Another module takes over under the same lease: a newer one, or the previous one after a rollback.
    Replaced,
    /// The host is shutting down.
    Shutdown,
}

/// An action for the host, which carries out effects in the order in which the elector yields them.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Send a request to the store. Requests run concurrently. Pass the answer back as [`Input::Answer`], or
    /// [`StoreError::Unknown`] if none arrives within `timeout`.
    Request {
        /// The id that the answer carries.
        id: RequestId,
        /// The request.
        op: Op,
        /// The timeout for the answer.
        timeout: Duration,
        /// True if the host may withhold this acquire or reclaim because the host has reached its leadership quota. The
        /// host then passes in [`Input::NotSent`]. No earlier request has used the request's new lease id, so this node
        /// cannot already hold the lease under that id.
        within_quota: bool,
    },
    /// Start an instance that serves `term`.
    Start {
        /// The term's number.
        term: Term,
        /// The version that the instance runs.
        version: ModuleVersion,
        /// The scheduled run that the instance carries out, if the election has a schedule.
        run: Option<ScheduledRun>,
        /// The time from which the gate refuses the instance's effects. [`Effect::Extend`] can change it.
        deadline: Time,
        /// The time at which the host ends its own process if the instance is neither gone nor dying.
        abort_at: Time,
    },
    /// Move the instance's deadlines after a renewal. A gate that has closed stays closed.
    Extend {
        /// The time from which the gate refuses the instance's effects.
        deadline: Time,
        /// The time at which the host ends its own process if the instance is neither gone nor dying.
        abort_at: Time,
    },
    /// Ask the instance to stop.
    Stop {
        /// The reason passed to the guest.
        reason: StopReason,
        /// Human-readable reason.
        message: String,
        /// The end of the grace period. The instance is killed at this time, or at its deadline if that is earlier.
        grace_ends: Time,
        /// The term that follows immediately under the same lease, if that term has already been written.
        next: Option<Term>,
    },
    /// Refuse the instance's effects, then kill it. [`Input::Gone`] follows, preceded by [`Input::Dying`] if the
    /// instance is slow to exit.
    Kill {
        /// Human-readable reason.
        reason: String,
    },
    /// End the host's process immediately: an instance is neither gone nor dying, and the lease is about to expire.
    Abort {
        /// Human-readable reason.
        reason: String,
    },
    /// Record for all nodes that a version has passed its probation.
    Prove {
        /// The proven version.
        version: ModuleVersion,
        /// The term in which the version passed.
        term: Term,
    },
    /// Record for all nodes that a version is bad and should not run again. The elector has already chosen the version
    /// to serve instead.
    Reject {
        /// The rejected version.
        version: ModuleVersion,
        /// The term in which the version failed.
        term: Term,
        /// Human-readable reason.
        reason: String,
        /// The version that is served instead.
        instead: Option<ModuleVersion>,
    },
    /// Send a message to the other nodes. Baton's promises do not depend on the message's delivery.
    Tell(Word),
    /// Report an event to the operator.
    Report(Report),
    /// The orderly shutdown is complete: no instance is running, and this node has no lease left to release.
    Finished,
}

/// An event to report to the operator. Each change is reported once, with its reason and the relevant numbers.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Report {
    /// This node has become a standby. Also reported when the host starts.
    Standby {
        /// Human-readable reason why this node is a standby.
        reason: String,
    },
    /// The lease is free, but this node lets other nodes take it first. Reported once each time that the lease becomes
    /// free.
    Deferring {
        /// Human-readable reason.
        reason: String,
    },
    /// Another node has started to lead.
    Following {
        /// The record that the leader wrote when its term began.
        leader: Record,
    },
    /// A client that is not Baton holds the lease.
    HeldOutside {
        /// Human-readable evidence.
        reason: String,
    },
    /// The election is finished: no node will start this module again.
    ElectionOver {
        /// The last record.
        record: Record,
    },
    /// This node has taken an unexpired lease, because all processes of its holder have exited.
    TookOver {
        /// The last record of that holder.
        from: Record,
    },
    /// This node holds the lease, but waits because another node's instance may still be running.
    Settling {
        /// Upper bound on the wait. If the terms in the store could not be read at first, the wait may end earlier, as
        /// soon as they can be read.
        wait: Duration,
        /// Human-readable reason why another instance may still be running.
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
        /// The time until the gate refuses effects.
        remaining: Duration,
    },
    /// Renewals succeed again.
    RenewedAgain {
        /// The time between this renewal and the previous successful renewal.
        after: Duration,
    },
    /// An instance returned ok, perhaps under the previous holder, and the next instance starts after the pause.
    Pausing {
        /// The remaining length of the pause.
        wait: Duration,
    },
    /// This node leads without an instance until the next due time of the schedule.
    AwaitingRun {
        /// The next due time, as wall-clock time since the Unix epoch; `None` if there is none.
        due: Option<Duration>,
    },
    /// A missed due time is not run ([`Missed::Skip`](crate::schedule::Missed::Skip)).
    RunSkipped {
        /// The due time, as wall-clock time since the Unix epoch.
        due: Duration,
    },
    /// The recorded progress is later than the next due time, according to this node's wall clock. No run begins before
    /// the clock has passed the recorded time. The reason is a wrong clock, or an operator's choice of a later start.
    ProgressAhead {
        /// The recorded time, as wall-clock time since the Unix epoch.
        recorded: Duration,
        /// The due time after this node's wall clock.
        due: Duration,
    },
    /// An instance has failed, and the next term begins under the same lease after `wait`.
    Resting {
        /// The time until the next term.
        wait: Duration,
        /// Human-readable description of the failure.
        reason: String,
        /// Number of consecutive failures.
        failures: u32,
    },
    /// A command now prevents this node from leading. Reported again if a different command applies. Maintenance is not
    /// reported here.
    Ineligible {
        /// The command that applies.
        ineligibility: Ineligibility,
        /// The time until the ineligibility ends; `None` if only another input can end it.
        wait: Option<Duration>,
    },
    /// Commands no longer prevent this node from leading.
    Eligible {
        /// The command that applied before.
        before: Ineligibility,
    },
    /// This node has stepped down, and is ineligible for a while.
    CoolOff {
        /// The length of the cool-off.
        wait: Duration,
        /// Human-readable reason why this node stepped down.
        reason: String,
    },
    /// Leadership was lost.
    Lost {
        /// Human-readable evidence of the loss.
        reason: String,
        /// The time since the last renewal known to have succeeded.
        since_renewal: Duration,
    },
    /// The lease was released.
    Released,
    /// The lease was not released, and will expire.
    NotReleased {
        /// Human-readable reason why the lease was not released.
        reason: String,
    },
    /// A request to the store failed. The failure is reported again only if the error changes, or if the store has
    /// answered in between.
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
