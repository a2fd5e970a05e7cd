//! The events that a host logs. Dashboards and alerts rely on the names and fields of these events.

use std::fmt;
use std::time::Duration;

use baton_runtime::{LogLevel, Usage};
use serde::{Serialize, Serializer};

use super::Ended;
use super::shorten::Shorten;
use LogLevel::{Error, Info, Warn};

/// The stream to which a coordinator wrote a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// `wasi:logging`.
    Log,
}

/// A duration. In JSON, the duration is a number of seconds, in a field whose name ends in `_s`. In text, the duration
/// is a number with a unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seconds(pub Duration);

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl Serialize for Seconds {
    #[expect(clippy::cast_precision_loss, reason = "microseconds are exact for 285 years")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_micros() as f64 / 1e6)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_millis(1) {
            write!(f, "{}us", self.0.as_micros())
        } else if self.0 < Duration::from_secs(1) {
            write!(f, "{}ms", self.0.as_millis())
        } else {
            let text = format!("{:.2}", self.0.as_secs_f64());
            write!(f, "{}s", text.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

/// Defines [`Event`] from its list of kinds. Each kind has a name, a level, its fields, and a human-readable message.
/// The message is a format string, or an expression that yields text.
macro_rules! events {
    ($(
        $(#[$doc:meta])*
        $kind:ident = $name:literal, $level:expr,
        { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } => $sentence:tt;
    )*) => {
        /// A log event. The strings may come from guests and stores, so the formats escape the strings.
        #[derive(Clone, PartialEq, Debug, Serialize)]
        #[serde(untagged)]
        pub enum Event {
            $($(#[$doc])* $kind { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl Event {
            /// The name of each kind of event, with the names of its fields.
            #[cfg(test)]
            pub(super) const KINDS: &[(&str, &[&str])] = &[$(($name, &[$(stringify!($field)),*])),*];

            /// Returns the event's name in the log and its level.
            #[must_use]
            #[allow(unused_variables, reason = "most levels depend on no field")]
            pub fn kind(&self) -> (&'static str, LogLevel) {
                match self {
                    $(Self::$kind { $($field),* } => ($name, $level),)*
                }
            }
        }

        impl fmt::Display for Event {
            #[allow(unused_variables, reason = "a sentence may leave out fields")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind { $($field),* } => sentence!(f, $sentence),)*
                }
            }
        }

        impl Shorten for Event {
            fn shorten(&mut self) {
                match self {
                    $(Self::$kind { $($field),* } => { $($field.shorten();)* })*
                }
            }
        }
    };
}

macro_rules! sentence {
    ($f:ident, $text:literal) => {
        write!($f, $text)
    };
    ($f:ident, $text:expr) => {
        $f.write_str(&$text)
    };
}

events! {
    /// The host joins an election. The times are worst cases, computed from the host's settings.
    Starting = "starting", Info, {
        /// Version of the host.
        version: String,
        /// This node. Omitted from the JSON event, because every JSON line names the node.
        #[serde(skip)]
        node: String,
        /// The store's URL without secrets.
        store: String,
        /// The source of the modules.
        source: String,
        /// Digest of the module, if it is ready.
        #[serde(skip_serializing_if = "Option::is_none")]
        module: Option<String>,
        /// D, the lease duration.
        lease_s: Seconds,
        /// Longest time from a leader's crash to the next instance, with a healthy store.
        crash_takeover_s: Seconds,
        /// Longest time from a step-down to the next instance, with a healthy store.
        hand_off_s: Seconds,
        /// Longest store outage that a leader survives.
        tolerated_outage_s: Seconds,
        /// Longest pause of the whole machine that is safe even if the host does not notice the pause.
        tolerated_pause_s: Seconds,
        /// Amount by which this machine's clock may run slower than the store's, in percent.
        tolerated_drift_percent: f64,
    } => {
        let modules = match module {
            Some(module) => format!("module {module} from {source}"),
            None => format!("modules from {source}"),
        };
        format!(
            "baton {version}, node {node}, store {store}, {modules}, lease {lease_s}; at worst: takeover after a crash \
             {crash_takeover_s}, hand-off {hand_off_s}; tolerates a store outage of {tolerated_outage_s}, an \
             undetected pause of {tolerated_pause_s}, and a clock that is {tolerated_drift_percent}% slow"
        )
    };
    /// The host listens at an address.
    Listening = "listening", Info, {
        /// `admin` for the status page, health checks and metrics; `peers` for hosts on other machines.
        purpose: &'static str,
        /// The address on which the host listens.
        address: String,
        /// The address that the host advertises in the store, for peers.
        #[serde(skip_serializing_if = "Option::is_none")]
        advertised: Option<String>,
    } => { match advertised {
        None => format!("status page, health and metrics: http://{address}"),
        Some(advertised) => format!(
            "listening at {address}, announced as {advertised}; any client that can write to the store can pose as a \
             node here, but that can only make this node poll the store earlier or later"
        ),
    }};
    /// The kernel does not support part of the isolation of runners and compilers.
    WeakerIsolation = "weaker_isolation", Warn, {
        /// The missing part.
        missing: &'static str,
    } => "this kernel lacks {missing}: a module that escapes its sandbox or exploits the compiler could use more of \
          this user's rights";
    /// The host ignores an environment variable whose name resembles the name of a setting.
    UnknownVariable = "unknown_variable", Warn, {
        /// Name of the variable.
        variable: String,
        /// The variable that was probably meant.
        suggestion: String,
    } => "ignoring unknown variable {variable}; did you mean {suggestion}?";
    /// This node is a standby.
    Standby = "standby", Info, {
        /// The reason, or the current leader.
        reason: String,
        /// The leader, if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    } => "{reason}";
    /// The link to the leader has been established or has ended.
    Link = "link", Info, {
        /// The leader's node.
        leader: String,
        /// True if the link has been established, false if it has ended. While the link exists, this node polls the
        /// store less often.
        up: bool,
    } => { if *up {
        format!("linked to the leader {leader}; polls the store less often")
    } else {
        format!("the link to {leader} ended; polls the store every second")
    }};
    /// A client other than Baton holds the lease.
    HeldByOtherClient = "held_by_other_client", Warn, {
        /// The evidence that another client holds the lease.
        reason: String,
    } => "a client other than Baton holds the lease: {reason}";
    /// This node must not lead for now, because of an operator's command, a node with a higher priority (`--preempt`),
    /// or its own failures.
    Ineligible = "ineligible", (if matches!(*cause, "suspended" | "cooling-off") { Warn } else { Info }), {
        /// `suspended`, `stepped-down`, `transferring` or `cooling-off`.
        cause: &'static str,
        /// The reason for the cool-off, or the operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The origin of the command: an operator, as `USER@HOST`, or a node with `--preempt`. Omitted while this node
        /// is cooling off.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The node that should lead instead, if the lease is being transferred.
        #[serde(skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// Maximum time for which this node is ineligible; omitted if only an operator can make it eligible again.
        #[serde(skip_serializing_if = "Option::is_none")]
        wait_s: Option<Seconds>,
    } => { ineligible(cause, reason.as_deref(), by.as_deref(), to.as_deref(), *wait_s) };
    /// This node may lead again, because an obstacle no longer exists.
    Eligible = "eligible", Info, {
        /// The obstacle that is over, such as `the suspension is over`.
        reason: String,
    } => "this node may lead again: {reason}";
    /// An operator used this node's admin endpoint to roll back to an earlier version.
    RolledBack = "rolled_back", Info, {
        /// The operator, as `USER@HOST`.
        by: String,
        /// The operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The result of the rollback, in words.
        result: String,
    } => { format!("{}; requested by {}", result.trim_end(), by_whom(by, reason.as_deref())) };
    /// This node took over a lease before the lease expired, because all processes of the holder were dead. The event
    /// carries the dead holder's term.
    Reclaimed = "reclaimed", Info, {
        /// The dead holder's node.
        from: String,
        /// The dead host's incarnation: the id of one run of that host.
        incarnation: String,
    } => "took the lease before it expired: all processes of {from} ({incarnation}) are dead";
    /// This node holds the lease, but waits until the lease of an earlier holder has certainly expired.
    WaitingForPreviousLease = "waiting_for_previous_lease", Info, {
        /// Reason why the earlier lease may still be valid.
        reason: String,
        /// Time until the earlier lease has certainly expired.
        wait_s: Seconds,
    } => "the term begins in {wait_s}: {reason}";
    /// This node leads, and the store contains the record of this node's term.
    Elected = "elected", Info, {
        /// The module's digest.
        module: String,
        /// Consecutive failures so far, across all nodes.
        failures: u32,
    } => { match failures {
        0 => format!("leading with module {module}"),
        1 => format!("leading with module {module} after 1 failure"),
        failures => format!("leading with module {module} after {failures} failures in a row"),
    }};
    /// The instance is running.
    Started = "started", Info, {
        /// The module's digest.
        module: String,
        /// Time from `elected` to the instance's first instruction.
        took_s: Seconds,
        /// Digest of the version that the module replaces under the same lease, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
        /// Time without an instance, if the module replaces another version.
        #[serde(skip_serializing_if = "Option::is_none")]
        gap_s: Option<Seconds>,
    } => { match replaces.as_ref().zip(*gap_s) {
        None => format!("module {module} is running after {took_s}"),
        Some((replaces, gap)) => {
            format!("module {module} is running after {took_s}, replacing {replaces}; {gap} without an instance")
        }
    }};
    /// The coordinator printed or logged a line.
    Output = "output", (*level), {
        /// The level that the coordinator chose for a logged line; `Info` for a printed line.
        #[serde(skip)]
        level: LogLevel,
        /// The stream to which the coordinator wrote the line.
        stream: GuestStream,
        /// The context, if the coordinator logged the line with a context.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<String>,
        /// The line, without the line terminator.
        line: String,
    } => { match context {
        Some(context) => format!("{context}: {line}"),
        None => line.clone(),
    }};
    /// The host dropped lines of the log.
    OutputDropped = "output_dropped", Warn, {
        /// Number of dropped lines.
        lines: u64,
        /// The reason why the host dropped the lines.
        reason: String,
    } => "{lines} lines dropped: {reason}";
    /// The host refused an HTTP request from the coordinator. Logged once per origin in each term.
    RequestRefused = "request_refused", Warn, {
        /// The request's origin; empty if the host refused the request because too many requests were in flight.
        origin: String,
        /// The reason: the rule that forbids the request, or the grant that it lacks.
        reason: String,
        /// The line in `baton.toml` that would allow the request, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        setting: Option<String>,
        /// The flag that would allow the request, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        flag: Option<String>,
    } => { match setting.as_ref().zip(flag.as_ref()) {
        Some((setting, flag)) => format!("{reason}; to allow it: {setting} in baton.toml, or {flag}"),
        None => reason.clone(),
    }};
    /// The host denied the coordinator a capability that was not granted. Logged once per kind of capability in each
    /// term.
    CapabilityDenied = "capability_denied", Warn, {
        /// The capability.
        what: String,
        /// The flag that grants the capability, or a note that no flag does.
        remedy: String,
    } => "the coordinator asked for {what}, which it has not been granted: {remedy}";
    /// The instance uses at least 80% of a limit. Logged once per limit.
    NearLimit = "near_limit", Warn, {
        /// The limit's name.
        limit: &'static str,
        /// The amount in use; in bytes for memory.
        used: u64,
        /// The limit, in the same unit.
        max: u64,
        /// The flag that raises the limit, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        flag: Option<&'static str>,
    } => {
        let in_mib = ["memory", "memory of the host"].contains(limit);
        let [used, max] = [used, max].map(|amount| if in_mib { amount.div_ceil(1 << 20) } else { *amount });
        let unit = if in_mib { "MiB of " } else { "" };
        let hint = flag.map(|flag| format!("; {flag} raises the limit")).unwrap_or_default();
        format!("the instance uses {used} of {max} {unit}{limit}{hint}")
    };
    /// The store has not yet accepted the term's claim of the coordinator's state, or a commit to that state. The host
    /// retries.
    StateDelayed = "state_delayed", Warn, {
        /// The store's response.
        error: String,
    } => "the store has not accepted the state yet, retrying: {error}";
    /// A renewal failed, or its outcome is unknown. The host retries.
    RenewalFailed = "renewal_failed", Warn, {
        /// The store's response, or a note that there was no response.
        error: String,
        /// Time since the last successful renewal.
        since_renewal_s: Seconds,
        /// Time until the deadline.
        remaining_s: Seconds,
    } => "{error}; last renewed {since_renewal_s} ago, {remaining_s} left until the deadline";
    /// Renewals succeed again.
    RenewalRecovered = "renewal_recovered", Info, {
        /// Time since the last successful renewal.
        after_s: Seconds,
    } => "renewals succeed again; the last one was {after_s} ago";
    /// The host asks the instance to stop.
    Stopping = "stopping", Info, {
        /// `lease-at-risk`, `lease-lost`, `step-down`, `replaced` or `shutdown`.
        reason: &'static str,
        /// The reason in words.
        message: String,
        /// Time after which the host kills the instance, if the instance is still running.
        grace_s: Seconds,
    } => "{reason}: {message}; if the instance still runs after {grace_s}, the host kills it";
    /// The host kills the instance and refuses all further effects of the instance.
    Killed = "killed", Warn, {
        /// The reason for the kill.
        reason: String,
    } => "{reason}";
    /// The instance has ended: no part of it is still running.
    Ended = "ended", (if *outcome == Ended::Done { Info } else { Warn }), {
        /// The outcome.
        outcome: Ended,
        /// The coordinator's error, or the trap.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Time from the kill until the process was reaped; 0 if the host did not kill the instance.
        took_s: Seconds,
        /// The resources that the instance used.
        usage: Usage,
    } => {
        // In the message of a trap, the backtrace follows the first line.
        let message = message.as_deref().unwrap_or_default();
        let (why, rest) = message.split_once('\n').map_or((message, None), |(why, rest)| (why, Some(rest)));
        let Usage { memory, handles, lines, .. } = usage;
        let (memory, outcome) = (memory.div_ceil(1 << 20), outcome.word());
        let colon = if why.is_empty() { "" } else { ": " };
        let rest = rest.filter(|rest| !rest.is_empty()).map(|rest| format!("\n{rest}")).unwrap_or_default();
        let took = Some(took_s).filter(|took| !took.0.is_zero());
        let took = took.map(|took| format!("; took {took} to end")).unwrap_or_default();
        format!("{outcome}{colon}{why}{took}; used {memory} MiB, {handles} handles, {lines} lines{rest}")
    };
    /// The coordinator is done, or the instance failed. After a wait, the next term begins under the same lease.
    NextTerm = "next_term", (if *failures == 0 { Info } else { Warn }), {
        /// The failure, if the instance failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Number of consecutive failures across all nodes. After an instance with the outcome `unable`, the number of
        /// consecutive failed starts on this node.
        failures: u32,
        /// Time until the next term.
        wait_s: Seconds,
    } => { match reason {
        None => format!("the coordinator is done; the next term begins in {wait_s}"),
        Some(reason) => format!("consecutive failures: {failures}; the next term begins in {wait_s}: {reason}"),
    }};
    /// The leader waits for the next due time of the schedule. No instance runs until then.
    NextRun = "next_run", Info, {
        /// The next due time, in RFC 3339 (UTC); omitted if the schedule has no further one.
        #[serde(skip_serializing_if = "Option::is_none")]
        due: Option<String>,
        /// The user who triggered the run, as `USER@HOST`; omitted if the schedule has set the time.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The user's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    } => { match (due, by) {
        (Some(due), None) => format!("the next run is due at {due}"),
        (Some(due), Some(by)) => format!("run triggered, due at {due}; requested by {}", by_whom(by, reason.as_deref())),
        (None, _) => "the schedule has no further run".to_owned(),
    }};
    /// A run is skipped, because it could not begin within 10 minutes (`missed = "skip"`).
    RunSkipped = "run_skipped", Warn, {
        /// The due time, in RFC 3339 (UTC).
        due: String,
    } => "skips the run that was due at {due}: it is too late (missed = \"skip\")";
    /// The coordinator is done for good, unless a new module arrives or an operator runs `baton rerun`.
    Finished = "finished", Info, {
        /// The outcome, and how to run the coordinator again.
        reason: String,
    } => "{reason}";
    /// This node released the lease, so another node may acquire it at once.
    Released = "released", Info, {} => "released the lease";
    /// This node could not release the lease, so other nodes must wait until the lease expires.
    ReleaseFailed = "release_failed", Warn, {
        /// The reason.
        reason: String,
    } => "{reason}";
    /// This node lost its leadership.
    LeadershipLost = "leadership_lost", Warn, {
        /// The evidence that the leadership is lost.
        reason: String,
        /// Time since the last successful renewal.
        since_renewal_s: Seconds,
    } => "{reason}; last renewed {since_renewal_s} ago";
    /// The leader runs a different module than this node would run.
    ModuleDiffers = "module_differs", Warn, {
        /// The leader.
        leader: String,
        /// Digest of the leader's module.
        leader_module: String,
        /// Digest of this node's module.
        module: String,
    } => "{leader} leads with module {leader_module}; this node would run {module}";
    /// Downloading or compiling a module takes more than a second.
    Preparing = "preparing", Info, {
        /// `fetching` or `compiling`.
        step: &'static str,
        /// Digest of the module.
        module: String,
        /// Source of the module.
        source: String,
    } => "{step} module {module} from {source}";
    /// A module has been verified, compiled and linked, so it can start at once.
    ModuleReady = "module_ready", Info, {
        /// Digest of the module.
        module: String,
        /// Source of the module.
        source: String,
        /// True if the compiled code came from the cache.
        cached: bool,
        /// Time taken to verify, compile and link the module.
        took_s: Seconds,
    } => {
        let how = if *cached { ", from the cache" } else { "" };
        format!("module {module} from {source} is ready after {took_s}{how}")
    };
    /// The module from the source cannot run here. The host keeps the previous module, if any.
    ModuleRefused = "module_refused", Error, {
        /// Digest of the module, if the source delivered a module.
        #[serde(skip_serializing_if = "Option::is_none")]
        module: Option<String>,
        /// Source of the module.
        source: String,
        /// The reason, and how to fix it.
        error: String,
        /// Digest of the module that this node can still run, if any.
        fallback: Option<String>,
    } => {
        let module = module.as_ref().map(|module| format!("module {module} from ")).unwrap_or_default();
        let then = if fallback.is_some() { "the previous module is kept" } else { "no other module is ready" };
        format!("{module}{source}: {error}; {then}")
    };
    /// A new version passed its probation.
    VersionAccepted = "version_accepted", Info, {
        /// Digest of the module.
        module: String,
    } => "module {module} passed its probation";
    /// A version failed its probation. No node runs the version until an operator pushes it again or selects it with
    /// `baton rollback`.
    VersionRejected = "version_rejected", Error, {
        /// Digest of the module.
        module: String,
        /// The reason.
        reason: String,
        /// Digest of the module that runs instead, if any.
        fallback: Option<String>,
    } => {
        let instead = fallback.as_ref().map(|fallback| format!("; {fallback} runs instead")).unwrap_or_default();
        format!(
            "module {module} will not run until it is pushed again or selected with `baton rollback`{instead}: {reason}"
        )
    };
    /// The store or the module source does not respond. Logged once per outage. The host keeps retrying.
    Unreachable = "unreachable", Warn, {
        /// `store`, or the module source.
        what: String,
        /// The error.
        error: String,
    } => "{what}: {error}";
    /// The store or the module source responds again.
    Reachable = "reachable", Info, {
        /// `store`, or the module source.
        what: String,
        /// Duration of the outage.
        after_s: Seconds,
    } => "{what}: answers again after {after_s}";
    /// The store rejects this host, and retries alone are unlikely to help. Logged once. The host keeps retrying.
    Misconfigured = "misconfigured", Error, {
        /// The problem, and how to fix it.
        error: String,
    } => "{error}";
    /// The host reloaded the files that its settings name. If a file could not be reloaded, the host reloaded none.
    Reload = "reload", (match (error, next_start.as_slice()) {
        (Some(_), _) => Error,
        (None, []) => Info,
        (None, _) => Warn,
    }), {
        /// The settings whose files were read.
        read: Vec<String>,
        /// The settings that have changed and will take effect at the next start.
        next_start: Vec<String>,
        /// The file that could not be reloaded, what is wrong with it, and how to fix it.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    } => { reloaded(read, next_start, error.as_deref()) };
    /// Maintenance of this machine is scheduled, in progress or over. This node stays drained until the maintenance is
    /// over.
    Maintenance = "maintenance", (if matches!(*status, "Acknowledged" | "Over") { Info } else { Warn }), {
        /// The kind of maintenance, or how the maintenance ended.
        reason: String,
        /// Azure's id for the event; omitted once all maintenance is over.
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// `Scheduled` or `Started`, as Azure writes it. `Acknowledged` once this node has stepped down and has
        /// acknowledged the event; Azure may then start the maintenance. `Over` once this node is eligible again.
        status: &'static str,
        /// Earliest start, as written by Azure.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_before: Option<String>,
        /// Azure's description.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
    } => { maintenance(reason, id.as_deref(), status, not_before.as_deref(), description.as_deref()) };
    /// The host received a signal to shut down.
    ShuttingDown = "shutting_down", Info, {
        /// The signal.
        signal: String,
        /// True if instances get their grace period.
        grace: bool,
    } => { if *grace {
        format!("{signal}: shutting down cleanly; a second signal skips the grace period")
    } else {
        format!("{signal}: stopping without a grace period")
    }};
    /// `baton dev` is building the project.
    Building = "building", Info, {
        /// The command line.
        command: String,
    } => "{command}";
    /// The build ended. If the build failed, the running version is kept, and the compiler has printed the reason.
    Built = "built", (if error.is_some() { Error } else { Info }), {
        /// The command's exit status, if the build failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        /// Duration of the build.
        took_s: Seconds,
    } => { match error {
        None => format!("in {took_s}"),
        Some(error) => format!("{error} after {took_s}; save a file to build again"),
    }};
    /// The host ends its own process, because part of an instance might otherwise still be running when the lease
    /// expires.
    Aborting = "aborting", Error, {
        /// The reason why the host ends its own process.
        reason: String,
    } => "{reason}";
    /// A failure that an operator should investigate.
    Error = "error", Error, {
        /// The failure with all its causes.
        error: String,
    } => "{error}";
}

fn by_whom(by: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| by.to_owned(), |reason| format!("{by}: {reason}"))
}

fn ineligible(cause: &str, reason: Option<&str>, by: Option<&str>, to: Option<&str>, wait: Option<Seconds>) -> String {
    let wait = wait.unwrap_or(Seconds(Duration::ZERO));
    let Some(by) = by else {
        return format!(
            "this node stepped down, and will not contend again for {wait}: {}",
            reason.unwrap_or_default()
        );
    };
    let by = by_whom(by, reason);
    match (cause, to) {
        ("suspended", _) => format!("suspended by {by}; no node leads until `baton resume`"),
        (_, Some(to)) => {
            format!("leadership moves to {to}, and this node is ineligible for up to {wait}; requested by {by}")
        }
        _ => format!("this node stops leading and is ineligible for {wait}; requested by {by}"),
    }
}

fn reloaded(read: &[String], next_start: &[String], error: Option<&str>) -> String {
    if let Some(error) = error {
        return format!("{error}; nothing was reloaded");
    }
    let read = match read {
        [] => "no setting names a file to reload".to_owned(),
        read => format!("reloaded the files of {}", read.join(", ")),
    };
    match next_start {
        [] => read,
        next_start => format!("{read}; these changes take effect after a restart: {}", next_start.join(", ")),
    }
}

fn maintenance(
    reason: &str,
    id: Option<&str>,
    status: &str,
    not_before: Option<&str>,
    description: Option<&str>,
) -> String {
    let id = id.unwrap_or_default();
    match status {
        "Acknowledged" => format!("stepped down; Azure may begin event {id}"),
        "Over" => format!("{reason}; this node is eligible again"),
        _ => {
            let not_before = not_before.map(|time| format!(", not before {time}")).unwrap_or_default();
            let description = description.map(|text| format!(": {text}")).unwrap_or_default();
            format!("{reason}; this node is drained until the maintenance is over: event {id}{not_before}{description}")
        }
    }
}
