//! The events that a host logs. Dashboards and alerts rely on the names and fields of these events.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::Ended;
use baton_runtime::{LogLevel, Usage};

/// The stream to which a coordinator printed a line.
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

/// A duration. In JSON, a number of seconds (in fields whose names end in `_s`); in text, a number with a unit.
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

/// A log event. Its strings may come from guests and stores, so the formats escape them.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// The host joins an election. The times are worst cases derived from its settings.
    Starting {
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
        /// Longest undetected pause of the whole machine that is still safe.
        tolerated_pause_s: Seconds,
        /// Tolerated lag of this machine's clock behind the store's, in percent.
        tolerated_drift_percent: f64,
    },
    /// The admin endpoint is listening.
    Endpoint {
        /// Address of the endpoint.
        address: String,
    },
    /// The kernel does not support part of the isolation of runners and compilers.
    WeakerIsolation {
        /// The missing part.
        missing: &'static str,
    },
    /// The host listens for hosts on other machines.
    ListeningForPeers {
        /// The address on which the host listens.
        address: String,
        /// The address that the host advertises in the store.
        advertised: String,
    },
    /// The host ignores an environment variable whose name resembles that of a setting.
    UnknownVariable {
        /// Name of the variable.
        variable: String,
        /// The variable that was probably meant.
        suggestion: String,
    },
    /// This node is a standby.
    Standby {
        /// The reason, or the current leader.
        reason: String,
        /// The leader, if known.
        #[serde(skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    },
    /// This node is linked to the leader, so it polls the store less often.
    Linked {
        /// The leader's node.
        leader: String,
    },
    /// The link to the leader has ended, so this node polls the store every second.
    LinkEnded {
        /// The leader at the other end.
        leader: String,
    },
    /// A client other than Baton holds the lease.
    HeldByOtherClient {
        /// The evidence for this.
        reason: String,
    },
    /// An operator suspended the election: no node leads until it is resumed.
    Suspended {
        /// The operator, `USER@HOST`.
        by: String,
        /// The operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An operator told this node to step down for some time.
    SteppingDown {
        /// The operator, `USER@HOST`.
        by: String,
        /// The operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Time for which this node is ineligible.
        wait_s: Seconds,
    },
    /// This node lets another node lead, at the request of an operator or of `--preempt`.
    Transferring {
        /// The node that should lead.
        to: String,
        /// The operator, `USER@HOST`.
        by: String,
        /// The operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Longest time that this node waits for the other node.
        wait_s: Seconds,
    },
    /// An earlier version was made current again through this node's admin endpoint.
    RolledBack {
        /// The operator, `USER@HOST`.
        by: String,
        /// The operator's reason.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// The change.
        result: String,
    },
    /// This node may lead again.
    Resumed {
        /// The obstacle that no longer exists.
        reason: String,
    },
    /// This node took over a lease before it expired, because all processes of its holder are dead. The event's term is
    /// that of the dead holder.
    Reclaimed {
        /// The dead holder's node.
        from: String,
        /// The dead host's incarnation.
        incarnation: String,
    },
    /// This node holds the lease, and waits until an earlier holder's lease has certainly expired.
    WaitingForPreviousLease {
        /// Reason why the earlier lease may still be valid.
        reason: String,
        /// Time until the earlier lease has certainly expired.
        wait_s: Seconds,
    },
    /// This node leads: its term is in the store.
    Elected {
        /// The module's digest.
        module: String,
        /// Consecutive failures so far, across all nodes.
        failures: u32,
    },
    /// The instance is running.
    Started {
        /// The module's digest.
        module: String,
        /// Time from `elected` to the instance's first instruction.
        took_s: Seconds,
    },
    /// The coordinator printed or logged a line.
    Output {
        /// The level, if the coordinator logged the line.
        #[serde(skip)]
        level: LogLevel,
        /// The stream.
        stream: GuestStream,
        /// The context, if the coordinator logged the line with a context.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<String>,
        /// The line, without its line terminator.
        line: String,
    },
    /// The host refused an HTTP request. Logged once per term for each origin.
    RequestRefused {
        /// The request's origin; empty if the rule does not involve an origin.
        origin: String,
        /// The rule that forbids the request, or the missing grant.
        reason: String,
        /// The line in `baton.toml` that would allow the request, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        setting: Option<String>,
        /// The flag that would allow the request, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        flag: Option<String>,
    },
    /// A renewal failed, or its outcome is unknown. The host retries.
    RenewalFailed {
        /// The store's response, or a note that there was none.
        error: String,
        /// Time since the last successful renewal.
        since_renewal_s: Seconds,
        /// Time until the deadline.
        remaining_s: Seconds,
    },
    /// Renewals succeed again.
    RenewalRecovered {
        /// Time since the last successful renewal.
        after_s: Seconds,
    },
    /// The host asks the instance to stop.
    Stopping {
        /// `lease-at-risk`, `lease-lost`, `step-down`, `replaced` or `shutdown`.
        reason: &'static str,
        /// The reason in words.
        message: String,
        /// Time until the host kills the instance.
        grace_s: Seconds,
    },
    /// The host refuses the instance's effects from now on and kills it.
    Killed {
        /// The reason for the kill.
        reason: String,
    },
    /// The instance has ended: no part of it is still running.
    Ended {
        /// The outcome.
        outcome: Ended,
        /// The coordinator's error, or the trap.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// Time between the end of the instance, or the kill, and the reaping of its process.
        took_s: Seconds,
        /// The resources that the instance used.
        usage: Usage,
    },
    /// This node released the lease, so another node may acquire it at once.
    Released {},
    /// The lease could not be released, so other nodes must wait until it expires.
    ReleaseFailed {
        /// The reason.
        reason: String,
    },
    /// This node lost its leadership.
    LeadershipLost {
        /// The evidence for this.
        reason: String,
        /// Time since the last successful renewal.
        since_renewal_s: Seconds,
    },
    /// The coordinator is done. The next term begins under the same lease, after `--restart-delay`.
    Idle {
        /// Time until the next term.
        wait_s: Seconds,
    },
    /// The instance failed. The next term begins under the same lease, after a backoff.
    Retrying {
        /// The failure.
        reason: String,
        /// Consecutive failures across all nodes; after `unable`, consecutive failed starts on this node.
        failures: u32,
        /// Time until the next term.
        wait_s: Seconds,
    },
    /// This node steps down and does not contend for some time.
    CoolOff {
        /// The failure, the stall, or the coordinator's request.
        reason: String,
        /// Time until this node contends again.
        wait_s: Seconds,
    },
    /// The coordinator is done for good, unless a new module arrives or an operator runs `baton rerun`.
    Finished {
        /// The outcome, and how to run the coordinator again.
        reason: String,
    },
    /// The leader runs a different module than this node would run.
    ModuleDiffers {
        /// The leader.
        leader: String,
        /// Digest of the leader's module.
        leader_module: String,
        /// Digest of this node's module.
        module: String,
    },
    /// Downloading a module takes more than a second.
    Pulling {
        /// Digest of the module.
        module: String,
        /// Source of the module.
        source: String,
    },
    /// Compiling a module takes more than a second.
    Compiling {
        /// Digest of the module.
        module: String,
        /// Source of the module.
        source: String,
    },
    /// A module has been verified, compiled and linked, so it can start at once.
    ModuleReady {
        /// Digest of the module.
        module: String,
        /// Source of the module.
        source: String,
        /// True if the code came from the cache.
        cached: bool,
        /// Time taken to verify, compile and link it.
        took_s: Seconds,
    },
    /// The module from the source cannot run here. The previous module, if any, is kept.
    ModuleRefused {
        /// Digest of the module, if the source delivered a module.
        #[serde(skip_serializing_if = "Option::is_none")]
        module: Option<String>,
        /// Source of the module.
        source: String,
        /// The reason, and how to fix it.
        error: String,
        /// Digest of the module that this node can still run, if any.
        fallback: Option<String>,
    },
    /// An instance of a new version replaced the previous version's, under the same lease.
    Swapped {
        /// Digest of the new module.
        module: String,
        /// Digest of the previous module.
        previous: String,
        /// Time without an instance.
        gap_s: Seconds,
    },
    /// A new version passed its probation.
    VersionAccepted {
        /// Digest of the module.
        module: String,
    },
    /// A version failed its probation. No node will run it until it is pushed again or named in `baton rollback`.
    VersionRejected {
        /// Digest of the module.
        module: String,
        /// The reason.
        reason: String,
        /// Digest of the module that runs instead, if any.
        fallback: Option<String>,
    },
    /// The module source does not respond. Logged once; the host keeps retrying.
    SourceUnreachable {
        /// The source.
        source: String,
        /// The error.
        error: String,
    },
    /// The module source responds again.
    SourceRecovered {
        /// The source.
        source: String,
        /// Duration of the outage.
        after_s: Seconds,
    },
    /// The store does not respond. Logged once; the host keeps retrying.
    StoreUnreachable {
        /// The error.
        error: String,
    },
    /// The store responds again.
    StoreRecovered {
        /// Duration of the outage.
        after_s: Seconds,
    },
    /// The store rejects this host, and retries alone are unlikely to help. Logged once; the host keeps retrying.
    Misconfigured {
        /// The problem, and how to fix it.
        error: String,
    },
    /// The host reloaded the files that are named in its settings.
    Reloaded {
        /// The settings whose files were read.
        read: Vec<String>,
        /// The settings that have changed and will take effect at the next start.
        next_start: Vec<String>,
    },
    /// A file could not be reloaded, so nothing changes.
    ReloadFailed {
        /// The file, the problem, and how to fix it.
        error: String,
    },
    /// Maintenance of this machine is scheduled or in progress. This node is drained until the maintenance is over.
    Maintenance {
        /// The kind of maintenance.
        reason: String,
        /// Azure's id of the event.
        id: String,
        /// `Scheduled` or `Started`.
        status: String,
        /// Earliest start, as written by Azure.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_before: Option<String>,
        /// Azure's description.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
    },
    /// This node has stepped down and has told Azure that the maintenance may start.
    MaintenanceAcknowledged {
        /// Azure's id of the event.
        id: String,
    },
    /// This node is eligible again.
    MaintenanceOver {
        /// End of the maintenance.
        reason: String,
    },
    /// The host received a signal to shut down.
    ShuttingDown {
        /// The signal.
        signal: String,
        /// True if instances get their grace period.
        grace: bool,
    },
    /// The host denied the coordinator a capability that was not granted. Logged once per term for each kind.
    CapabilityDenied {
        /// The capability.
        what: String,
        /// The flag that grants the capability, or a note that there is none.
        remedy: String,
    },
    /// The instance uses 80% of a limit. Logged once per limit.
    NearLimit {
        /// The limit's name.
        limit: &'static str,
        /// The amount in use.
        used: u64,
        /// The limit's value.
        max: u64,
        /// The flag that raises the limit, if any.
        #[serde(skip_serializing_if = "Option::is_none")]
        flag: Option<&'static str>,
    },
    /// Lines from the coordinator were dropped.
    OutputDropped {
        /// Number of dropped lines.
        lines: u64,
        /// The reason, and how to avoid this.
        reason: String,
    },
    /// The store has not yet accepted a claim or a commit of state. The host retries.
    StateDelayed {
        /// The store's response.
        error: String,
    },
    /// `baton dev` is building the project.
    Building {
        /// The command line.
        command: String,
    },
    /// The build succeeded.
    Built {
        /// Duration of the build.
        took_s: Seconds,
    },
    /// The build failed, so the running version is kept. The compiler has printed the reason.
    BuildFailed {
        /// The command's exit status.
        error: String,
        /// Duration of the build.
        took_s: Seconds,
    },
    /// The host ends its own process, because part of an instance may still be running when the lease expires.
    Aborting {
        /// The part that may still be running.
        reason: String,
    },
    /// A failure that an operator should investigate.
    Error {
        /// The failure with all its causes.
        error: String,
    },
}

impl Event {
    /// Returns the event's name in the log and its level.
    #[must_use]
    pub fn kind(&self) -> (&'static str, LogLevel) {
        use LogLevel::{Error, Info, Warn};
        match self {
            Self::Starting { .. } => ("starting", Info),
            Self::Endpoint { .. } => ("endpoint", Info),
            Self::WeakerIsolation { .. } => ("weaker_isolation", Warn),
            Self::ListeningForPeers { .. } => ("listening_for_peers", Info),
            Self::UnknownVariable { .. } => ("unknown_variable", Warn),
            Self::Standby { .. } => ("standby", Info),
            Self::Linked { .. } => ("linked", Info),
            Self::LinkEnded { .. } => ("link_ended", Info),
            Self::HeldByOtherClient { .. } => ("held_by_other_client", Warn),
            Self::Reclaimed { .. } => ("reclaimed", Info),
            Self::WaitingForPreviousLease { .. } => ("waiting_for_previous_lease", Info),
            Self::Elected { .. } => ("elected", Info),
            Self::Started { .. } => ("started", Info),
            Self::Output { level, .. } => ("output", *level),
            Self::RequestRefused { .. } => ("request_refused", Warn),
            Self::RenewalFailed { .. } => ("renewal_failed", Warn),
            Self::RenewalRecovered { .. } => ("renewal_recovered", Info),
            Self::Stopping { .. } => ("stopping", Info),
            Self::Killed { .. } => ("killed", Warn),
            Self::Ended { outcome, .. } => ("ended", if *outcome == Ended::Done { Info } else { Warn }),
            Self::Suspended { .. } => ("suspended", Warn),
            Self::SteppingDown { .. } => ("stepping_down", Info),
            Self::Transferring { .. } => ("transferring", Info),
            Self::RolledBack { .. } => ("rolled_back", Info),
            Self::Resumed { .. } => ("resumed", Info),
            Self::Released {} => ("released", Info),
            Self::ReleaseFailed { .. } => ("release_failed", Warn),
            Self::LeadershipLost { .. } => ("leadership_lost", Warn),
            Self::Idle { .. } => ("idle", Info),
            Self::Retrying { .. } => ("retrying", Warn),
            Self::CoolOff { .. } => ("cool_off", Warn),
            Self::Finished { .. } => ("finished", Info),
            Self::ModuleDiffers { .. } => ("module_differs", Warn),
            Self::Pulling { .. } => ("pulling", Info),
            Self::Compiling { .. } => ("compiling", Info),
            Self::ModuleReady { .. } => ("module_ready", Info),
            Self::ModuleRefused { .. } => ("module_refused", Error),
            Self::Swapped { .. } => ("swapped", Info),
            Self::VersionAccepted { .. } => ("version_accepted", Info),
            Self::VersionRejected { .. } => ("version_rejected", Error),
            Self::SourceUnreachable { .. } => ("source_unreachable", Warn),
            Self::SourceRecovered { .. } => ("source_recovered", Info),
            Self::StoreUnreachable { .. } => ("store_unreachable", Warn),
            Self::StoreRecovered { .. } => ("store_recovered", Info),
            Self::Misconfigured { .. } => ("misconfigured", Error),
            Self::Reloaded { next_start, .. } => ("reloaded", if next_start.is_empty() { Info } else { Warn }),
            Self::ReloadFailed { .. } => ("reload_failed", Error),
            Self::Maintenance { .. } => ("maintenance", Warn),
            Self::MaintenanceAcknowledged { .. } => ("maintenance_acknowledged", Info),
            Self::MaintenanceOver { .. } => ("maintenance_over", Info),
            Self::ShuttingDown { .. } => ("shutting_down", Info),
            Self::CapabilityDenied { .. } => ("capability_denied", Warn),
            Self::NearLimit { .. } => ("near_limit", Warn),
            Self::OutputDropped { .. } => ("output_dropped", Warn),
            Self::StateDelayed { .. } => ("state_delayed", Warn),
            Self::Building { .. } => ("building", Info),
            Self::Built { .. } => ("built", Info),
            Self::BuildFailed { .. } => ("build_failed", Error),
            Self::Aborting { .. } => ("aborting", Error),
            Self::Error { .. } => ("error", Error),
        }
    }
}

fn by_whom(by: &str, reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(|| by.to_owned(), |reason| format!("{by}: {reason}"))
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting {
                version,
                node,
                store,
                source,
                module,
                lease_s,
                crash_takeover_s,
                hand_off_s,
                tolerated_outage_s,
                tolerated_pause_s,
                tolerated_drift_percent,
            } => write!(
                f,
                "baton {version}, node {node}, store {store}, {}, lease {lease_s}; at worst: takeover after a crash \
                 {crash_takeover_s}, hand-off {hand_off_s}; tolerates a store outage of {tolerated_outage_s}, a hidden \
                 pause of {tolerated_pause_s}, a clock that is {tolerated_drift_percent}% slow",
                match module {
                    Some(module) => format!("module {module} from {source}"),
                    None => format!("modules from {source}"),
                }
            ),
            Self::Endpoint { address } => write!(f, "page, health and metrics: http://{address}"),
            Self::WeakerIsolation { missing } => write!(
                f,
                "this kernel lacks {missing}: a module that escapes its sandbox or exploits the compiler has more of \
                 this user's rights"
            ),
            Self::ListeningForPeers { address, advertised } => write!(
                f,
                "listening at {address}, announced as {advertised}; a client that can write to the store can pose as a \
                 node here, but can only make this node poll the store earlier or later"
            ),
            Self::UnknownVariable { variable, suggestion } => {
                write!(f, "ignoring unknown variable {variable}; did you mean {suggestion}?")
            }
            Self::Standby { reason, .. } => f.write_str(reason),
            Self::Linked { leader } => write!(f, "linked to the leader {leader}; polls the store less often"),
            Self::LinkEnded { leader } => write!(f, "the link to {leader} ended; polls the store every second"),
            Self::HeldByOtherClient { reason } => write!(f, "a client other than Baton holds the lease: {reason}"),
            Self::Reclaimed { from, incarnation } => {
                write!(f, "took the lease before it expired: all processes of {from} ({incarnation}) are dead")
            }
            Self::WaitingForPreviousLease { reason, wait_s } => write!(f, "the term begins in {wait_s}: {reason}"),
            Self::Elected { module, failures: 0 } => write!(f, "leading with module {module}"),
            Self::Elected { module, failures: 1 } => write!(f, "leading with module {module} after 1 failure"),
            Self::Elected { module, failures } => {
                write!(f, "leading with module {module} after {failures} failures in a row")
            }
            Self::Started { module, took_s } => write!(f, "module {module} runs after {took_s}"),
            Self::Output { context: Some(context), line, .. } => write!(f, "{context}: {line}"),
            Self::Output { context: None, line, .. } => f.write_str(line),
            Self::RequestRefused { reason, setting: Some(setting), flag: Some(flag), .. } => {
                write!(f, "{reason}; to allow it: {setting} in baton.toml, or {flag}")
            }
            Self::RequestRefused { reason, .. } => f.write_str(reason),
            Self::RenewalFailed { error, since_renewal_s, remaining_s } => {
                write!(f, "{error}; last renewed {since_renewal_s} ago, {remaining_s} left")
            }
            Self::RenewalRecovered { after_s } => write!(f, "renewals succeed again; the last one was {after_s} ago"),
            Self::Stopping { reason, message, grace_s } => {
                write!(f, "{reason}: {message}; the host kills the instance in {grace_s}")
            }
            Self::Killed { reason } => f.write_str(reason),
            Self::Ended { outcome, message, took_s, usage } => {
                // A trap's message has its backtrace after the first line.
                let (why, rest) =
                    message.as_deref().map_or(("", ""), |message| message.split_once('\n').unwrap_or((message, "")));
                let Usage { memory, handles, lines, .. } = usage;
                let memory = memory.div_ceil(1 << 20);
                let colon = if why.is_empty() { "" } else { ": " };
                write!(
                    f,
                    "{}{colon}{why}; took {took_s} to end; used {memory} MiB, {handles} handles, {lines} lines",
                    outcome.word()
                )?;
                if rest.is_empty() { Ok(()) } else { write!(f, "\n{rest}") }
            }
            Self::Suspended { by, reason } => {
                write!(f, "suspended by {}; no node leads until `baton resume`", by_whom(by, reason))
            }
            Self::SteppingDown { by, reason, wait_s } => {
                write!(
                    f,
                    "this node stops leading and is ineligible for {wait_s}, requested by {}",
                    by_whom(by, reason)
                )
            }
            Self::Transferring { to, by, reason, wait_s } => {
                write!(
                    f,
                    "leadership goes to {to}; this node is ineligible for up to {wait_s}, requested by {}",
                    by_whom(by, reason)
                )
            }
            Self::RolledBack { by, reason, result } => {
                write!(f, "{}, requested by {}", result.trim_end(), by_whom(by, reason))
            }
            Self::Resumed { reason } => write!(f, "this node may lead again: {reason}"),
            Self::ReleaseFailed { reason } => f.write_str(reason),
            Self::Released {} => f.write_str("released the lease"),
            Self::LeadershipLost { reason, since_renewal_s } => {
                write!(f, "{reason}; last renewed {since_renewal_s} ago")
            }
            Self::Idle { wait_s } => write!(f, "the coordinator is done; the next term begins in {wait_s}"),
            Self::Retrying { reason, failures, wait_s } => {
                write!(f, "failure {failures} in a row, the next term begins in {wait_s}: {reason}")
            }
            Self::CoolOff { reason, wait_s } => {
                write!(f, "stepped down, and does not contend again for {wait_s}: {reason}")
            }
            Self::Finished { reason } => f.write_str(reason),
            Self::ModuleDiffers { leader, leader_module, module } => {
                write!(f, "{leader} leads with module {leader_module}; this node would run {module}")
            }
            Self::Pulling { module, source } => {
                write!(f, "module {module} from {source}")
            }
            Self::Compiling { module, source } => {
                write!(f, "module {module} from {source}")
            }
            Self::ModuleReady { module, source, cached, took_s } => {
                let how = if *cached { " from the cache" } else { "" };
                write!(f, "module {module} from {source} is ready{how} after {took_s}")
            }
            Self::ModuleRefused { module, source, error, fallback } => {
                if let Some(module) = module {
                    write!(f, "module {module} from ")?;
                }
                let then = match fallback {
                    Some(_) => "the previous module stays",
                    None => "no other module is ready",
                };
                write!(f, "{source}: {error}; {then}")
            }
            Self::SourceUnreachable { source, error } => write!(f, "{source}: {error}"),
            Self::SourceRecovered { source, after_s } => write!(f, "{source} answers again after {after_s}"),
            Self::Swapped { module, previous, gap_s } => {
                write!(f, "module {module} replaced {previous}; {gap_s} without an instance")
            }
            Self::VersionAccepted { module } => write!(f, "module {module} passed its probation"),
            Self::VersionRejected { module, reason, fallback: Some(fallback) } => {
                write!(
                    f,
                    "module {module} will not run until it is pushed again or selected with `baton rollback`; \
                     {fallback} runs instead: {reason}"
                )
            }
            Self::VersionRejected { module, reason, fallback: None } => {
                write!(
                    f,
                    "module {module} will not run until it is pushed again or selected with `baton rollback`: {reason}"
                )
            }
            Self::StoreUnreachable { error } | Self::Misconfigured { error } | Self::Error { error } => {
                f.write_str(error)
            }
            Self::StoreRecovered { after_s } => write!(f, "the store answers again after {after_s}"),
            Self::Reloaded { read, next_start } => {
                match read.as_slice() {
                    [] => f.write_str("no setting refers to a file")?,
                    read => write!(f, "reloaded the files of {}", read.join(", "))?,
                }
                if next_start.is_empty() {
                    return Ok(());
                }
                write!(f, "; these changes take effect after a restart: {}", next_start.join(", "))
            }
            Self::Maintenance { reason, id, not_before, description, .. } => {
                write!(f, "{reason}; this node is drained until the maintenance is over: event {id}")?;
                if let Some(not_before) = not_before {
                    write!(f, ", not before {not_before}")?;
                }
                description.as_ref().map_or(Ok(()), |description| write!(f, ": {description}"))
            }
            Self::MaintenanceAcknowledged { id } => write!(f, "stepped down; Azure may begin event {id}"),
            Self::MaintenanceOver { reason } => write!(f, "{reason}; this node is eligible again"),
            Self::ReloadFailed { error } => write!(f, "{error}; nothing was reloaded"),
            Self::ShuttingDown { signal, grace: true } => {
                write!(f, "{signal}: shutting down cleanly; a second signal skips the grace")
            }
            Self::ShuttingDown { signal, grace: false } => write!(f, "{signal}: stopping without grace"),
            Self::CapabilityDenied { what, remedy } => {
                write!(f, "the coordinator asked for {what}, which it is not granted: {remedy}")
            }
            Self::NearLimit { limit: limit @ ("memory" | "memory of the host"), used, max, flag } => {
                let (used, max) = (used.div_ceil(1 << 20), max.div_ceil(1 << 20));
                write!(f, "the instance uses {used} of {max} MiB of {limit}")?;
                flag.map_or(Ok(()), |flag| write!(f, "; {flag} raises the limit"))
            }
            Self::NearLimit { limit, used, max, .. } => write!(f, "the instance uses {used} of {max} {limit}"),
            Self::OutputDropped { lines, reason } => write!(f, "{lines} lines dropped: {reason}"),
            Self::StateDelayed { error } => write!(f, "the store has not accepted the state yet, retrying: {error}"),
            Self::Building { command } => f.write_str(command),
            Self::Built { took_s } => write!(f, "in {took_s}"),
            Self::BuildFailed { error, took_s } => {
                write!(f, "{error} after {took_s}; save a file to build again")
            }
            Self::Aborting { reason } => f.write_str(reason),
        }
    }
}
