//! Everything that the host tells people. This is the one place that lists the events: their names and
//! fields are an interface, which dashboards and alerts rely on.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use baton_runtime::{LogLevel, Usage};

/// Where a guest printed a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GuestStream {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
    /// Its log, `wasi:logging`.
    Log,
}

/// A length of time: seconds as a number in JSON (fields that end in `_s`), readable in text.
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

/// Something that a person may want to know. Texts come from anywhere: the formats escape them.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// The host begins to contend for an election; what its timing promises.
    Starting {
        /// The host's version.
        version: String,
        /// This node, which JSON has in each line.
        #[serde(skip)]
        node: String,
        /// The store, without its secrets.
        store: String,
        /// Where its modules come from.
        source: String,
        /// The digest of the module that is ready; none if it is not known yet.
        #[serde(skip_serializing_if = "Option::is_none")]
        module: Option<String>,
        /// Where the admin endpoint is; none if there is none.
        #[serde(skip_serializing_if = "Option::is_none")]
        admin: Option<String>,
        /// D: the lease's length.
        lease_s: Seconds,
        /// From a leader's crash until the next instance runs, at worst and with a healthy store.
        crash_takeover_s: Seconds,
        /// From a step-down until the next instance runs, at worst and with a healthy store.
        hand_off_s: Seconds,
        /// The store outage that a leader survives.
        tolerated_outage_s: Seconds,
        /// The pause of the whole machine that no clock shows and that is still safe.
        tolerated_pause_s: Seconds,
        /// By how many percent this machine's clock may be slow against the store's.
        tolerated_drift_percent: f64,
    },
    /// The kernel lacks a part of what runners and compilers are confined with.
    WeakerIsolation {
        /// The part of the confinement that is missing.
        missing: &'static str,
    },
    /// This host listens for those of other machines.
    Peers {
        /// Its address.
        address: String,
        /// Where others are told to find it.
        advertised: String,
    },
    /// A variable of the host's environment looks like a setting's, with a mistake in its name.
    MisspeltVariable {
        /// The variable's name.
        variable: String,
        /// Which one was most likely meant.
        meant: String,
    },
    /// This node follows in the election.
    Standby {
        /// Why, or who leads.
        reason: String,
        /// The node that leads, where one is known to.
        #[serde(skip_serializing_if = "Option::is_none")]
        leader: Option<String>,
    },
    /// This node hears from the one that leads, and asks the store seldom.
    Linked {
        /// The node that leads.
        leader: String,
    },
    /// It does not any more.
    LinkEnded {
        /// The node that led when it did.
        leader: String,
    },
    /// The lease is held by a client that is no host of Baton.
    Outside {
        /// How that shows.
        reason: String,
    },
    /// Nobody leads the election until it is resumed.
    Suspended {
        /// Who has said so.
        by: String,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// This node was told to lead no more for a while.
    SteppingDown {
        /// Who has said so.
        by: String,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For how long.
        wait_s: Seconds,
    },
    /// Another node is to lead, and this one lets it.
    Transferring {
        /// The other node.
        to: String,
        /// Who has said so.
        by: String,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// For how long at the most.
        wait_s: Seconds,
    },
    /// Somebody has made an earlier version the current one, through this node's endpoint.
    RolledBack {
        /// Who.
        by: String,
        /// Why.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What has changed.
        told: String,
    },
    /// What kept this node from leading is over.
    Resumed {
        /// What that was.
        reason: String,
    },
    /// This node has taken a lease that had not run out, since its holder is gone. The event's term is that one's.
    TookOver {
        /// The node that held it.
        from: String,
        /// The start of that node's host.
        incarnation: String,
    },
    /// This node holds the lease and waits out the time of an earlier holder before it begins a term.
    Settling {
        /// Why it must.
        reason: String,
        /// For how long.
        wait_s: Seconds,
    },
    /// This node leads: its term is written.
    Elected {
        /// The module's digest.
        module: String,
        /// Failures in a row so far, over all nodes.
        failures: u32,
    },
    /// An instance runs.
    Started {
        /// The module's digest.
        module: String,
        /// From the election until the instance's first instruction.
        took_s: Seconds,
    },
    /// The guest printed or logged a line.
    Output {
        /// How much it says that it matters, if it logged it.
        #[serde(skip)]
        level: LogLevel,
        /// Where it printed it.
        stream: GuestStream,
        /// What it says that this is about, if it logged it.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<String>,
        /// The line, without its end.
        line: String,
    },
    /// A request over HTTP was refused. Said once for each origin in a term.
    RequestRefused {
        /// Where it was going to; empty where that does not matter.
        origin: String,
        /// Which rule or grant refuses the request.
        reason: String,
        /// The line of the file that would allow it; none if nothing would.
        #[serde(skip_serializing_if = "Option::is_none")]
        setting: Option<String>,
        /// The same as flags.
        #[serde(skip_serializing_if = "Option::is_none")]
        flag: Option<String>,
    },
    /// A renewal did not succeed; it is tried again.
    RenewFailed {
        /// What the store answered, or that it did not.
        error: String,
        /// Since the last renewal that did.
        since_renewal_s: Seconds,
        /// Until effects are refused.
        remaining_s: Seconds,
    },
    /// Renewals succeed again.
    RenewRecovered {
        /// How long they had not.
        after_s: Seconds,
    },
    /// The instance is asked to stop.
    Stopping {
        /// `lease-at-risk`, `lease-lost`, `step-down`, `replaced` or `shutdown`.
        reason: String,
        /// The same for a person.
        message: String,
        /// Until it is killed.
        grace_s: Seconds,
    },
    /// The instance is being killed: its effects are refused from now on.
    Killed {
        /// What made the host end the instance by force.
        reason: String,
    },
    /// The instance is gone.
    Gone {
        /// `done`, `failed`, `fatal`, `unable`, `killed` or `superseded`.
        outcome: String,
        /// What it said or trapped with.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// From its end, or the kill, until it was gone.
        took_s: Seconds,
        /// What it used.
        usage: Usage,
    },
    /// The lease is given up: others may take it at once.
    Released {},
    /// The lease could not be given up: it runs out by itself.
    NotReleased {
        /// What kept the node from releasing the lease.
        reason: String,
    },
    /// This node leads no more, and did not choose to.
    Lost {
        /// How the node knows that the lease is lost.
        reason: String,
        /// Since the last renewal that succeeded.
        since_renewal_s: Seconds,
    },
    /// The work is done; the next term begins under the same lease after the pause.
    Pausing {
        /// Until then.
        wait_s: Seconds,
    },
    /// The next term begins under the same lease, after a while: the instance failed.
    Retrying {
        /// The failure.
        reason: String,
        /// Failures in a row, over all nodes; after `unable`, starts in a row that failed on this node.
        failures: u32,
        /// Until then.
        wait_s: Seconds,
    },
    /// This node steps down and does not contend for a while: instances fail.
    CoolOff {
        /// The failure, the stall or the request that led to it.
        reason: String,
        /// For how long.
        wait_s: Seconds,
    },
    /// The election is over until there is a new module or it is started again.
    Finished {
        /// How the election came to its end.
        reason: String,
    },
    /// The leader runs another module than this node would.
    OtherModule {
        /// The leading node.
        leader: String,
        /// The digest of what it runs.
        leader_module: String,
        /// The digest of what this node would run.
        module: String,
    },
    /// A version of the coordinator takes long to come.
    Pulling {
        /// Its digest.
        module: String,
        /// Where it is from.
        source: String,
    },
    /// A version of the coordinator takes long to compile.
    Compiling {
        /// Its digest.
        module: String,
        /// Where it is from.
        source: String,
    },
    /// A version of the coordinator can be started: it is verified, compiled and linked.
    ModuleReady {
        /// Its digest.
        module: String,
        /// Where it is from.
        source: String,
        /// Whether its code was in the cache.
        cached: bool,
        /// How long making it ready took.
        took_s: Seconds,
    },
    /// What the source names cannot run here. What was there before stays, if there was anything.
    ModuleRefused {
        /// Its digest; none if there is nothing that has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        module: Option<String>,
        /// Where it is from.
        source: String,
        /// Why, and what to do.
        error: String,
        /// The digest of what this node can run all the same; none if there is nothing.
        instead: Option<String>,
    },
    /// The instance of a new version has started in the place of one before.
    Swapped {
        /// The digest of what runs now.
        module: String,
        /// The digest of what ran before.
        previous: String,
        /// How long there was no instance.
        gap_s: Seconds,
    },
    /// A new version has done well for as long as its probation is.
    Proven {
        /// Its digest.
        module: String,
    },
    /// A new version is bad, and no node runs it again until it is pushed again or named to `baton rollback`.
    Rejected {
        /// Its digest.
        module: String,
        /// What running the version has shown.
        reason: String,
        /// The digest of what runs instead; none if there is nothing.
        instead: Option<String>,
    },
    /// The source of modules does not answer. Said once; it is tried again without an end.
    SourceUnreachable {
        /// Where the modules are from.
        source: String,
        /// What the source, or the way to it, has answered.
        error: String,
    },
    /// The source of modules answers again.
    SourceRecovered {
        /// Where the modules are from.
        source: String,
        /// How long it had not.
        after_s: Seconds,
    },
    /// The store does not answer. Said once; it is tried again without an end.
    StoreUnreachable {
        /// What the store, or the way to it, has answered.
        error: String,
    },
    /// The store answers again.
    StoreRecovered {
        /// How long it had not.
        after_s: Seconds,
    },
    /// The store refuses this host for a reason that time will hardly mend. Said once; tried again.
    Misconfigured {
        /// What is wrong and what to do.
        error: String,
    },
    /// Files were read anew, as somebody has asked for.
    Reloaded {
        /// The settings that name them.
        read: Vec<String>,
        /// The settings that have changed since the start, and count from the next one on.
        next_start: Vec<String>,
    },
    /// Somebody has asked to read files anew, and something is wrong with one of them: all stays as it was.
    NotReloaded {
        /// What, and what to do.
        error: String,
    },
    /// Something is planned for this machine that interrupts what runs there: this node takes no part until it is over.
    Maintenance {
        /// What is about to be done, or is being done.
        reason: String,
        /// The event's id.
        id: String,
        /// `Scheduled` or `Started`.
        status: String,
        /// When it begins at the earliest, as Azure writes it.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_before: Option<String>,
        /// What Azure says of it.
        #[serde(skip_serializing_if = "Option::is_none")]
        description: Option<String>,
    },
    /// This node has stepped down, and what is planned for the machine may begin.
    MaintenanceAcknowledged {
        /// The event's id.
        id: String,
    },
    /// This node takes part again.
    MaintenanceOver {
        /// What has ended.
        reason: String,
    },
    /// A collector of OpenTelemetry does not take what it is sent. Said once; it is tried again without an end.
    CollectorUnreachable {
        /// `traces` or `metrics`.
        what: &'static str,
        /// Where the collector is.
        collector: String,
        /// What it, or the way to it, has answered.
        error: String,
    },
    /// The collector takes it again.
    CollectorRecovered {
        /// `traces` or `metrics`.
        what: &'static str,
        /// How long it had not.
        after_s: Seconds,
    },
    /// Spans were lost, since the collector did not take them.
    SpansLost {
        /// How many.
        spans: u64,
    },
    /// The host is told to end.
    ShuttingDown {
        /// By which signal.
        signal: String,
        /// Whether instances still get their grace.
        grace: bool,
    },
    /// Something of an instance was written to a file.
    Saved {
        /// `core dump` or `profile`.
        what: String,
        /// The file.
        path: String,
    },
    /// Something of an instance could not be written to a file.
    NotSaved {
        /// `core dump` or `profile`.
        what: String,
        /// The file.
        path: String,
        /// What the system says, or why the file was left out.
        error: String,
    },
    /// The guest asked for something that it was not granted, and was refused.
    Denied {
        /// What it asked for.
        what: String,
        /// What would grant it, or that nothing does.
        remedy: String,
    },
    /// The instance uses much of what it may use. Said once of each limit.
    Usage {
        /// Of what.
        limit: &'static str,
        /// How much it uses.
        used: u64,
        /// How much it may use.
        of: u64,
        /// What grants more.
        flag: &'static str,
    },
    /// Lines were lost.
    Dropped {
        /// How many.
        lines: u64,
        /// Why, and what may help.
        reason: String,
    },
    /// The coordinator's state cannot be claimed or saved yet, and is tried again.
    StateDelayed {
        /// What the store said.
        error: String,
    },
    /// `baton dev` builds the project.
    Building {
        /// The command line.
        command: String,
    },
    /// The build succeeded.
    Built {
        /// How long it took.
        took_s: Seconds,
    },
    /// The build failed: what runs goes on. The compiler has said why.
    BuildFailed {
        /// How it ended.
        error: String,
        /// How long it took.
        took_s: Seconds,
    },
    /// The host ends its own process: something of an instance might still run, and the lease is about to end.
    Aborting {
        /// What is not in order.
        reason: String,
    },
    /// Something failed that a person should look at.
    Error {
        /// What, with all its causes.
        error: String,
    },
}

impl Event {
    /// Its name in the log and how much it matters.
    #[must_use]
    pub fn kind(&self) -> (&'static str, LogLevel) {
        use LogLevel::{Error, Info, Warn};
        match self {
            Self::Starting { .. } => ("starting", Info),
            Self::WeakerIsolation { .. } => ("weaker_isolation", Warn),
            Self::Peers { .. } => ("peers", Info),
            Self::MisspeltVariable { .. } => ("misspelt_variable", Warn),
            Self::Standby { .. } => ("standby", Info),
            Self::Linked { .. } => ("linked", Info),
            Self::LinkEnded { .. } => ("link_ended", Info),
            Self::Outside { .. } => ("outside", Warn),
            Self::TookOver { .. } => ("took_over", Info),
            Self::Settling { .. } => ("settling", Info),
            Self::Elected { .. } => ("elected", Info),
            Self::Started { .. } => ("started", Info),
            Self::Output { level, .. } => ("output", *level),
            Self::RequestRefused { .. } => ("request_refused", Warn),
            Self::RenewFailed { .. } => ("renew_failed", Warn),
            Self::RenewRecovered { .. } => ("renew_recovered", Info),
            Self::Stopping { .. } => ("stopping", Info),
            Self::Killed { .. } => ("killed", Warn),
            Self::Gone { outcome, .. } => ("gone", if outcome == "done" { Info } else { Warn }),
            Self::Suspended { .. } => ("suspended", Warn),
            Self::SteppingDown { .. } => ("stepping_down", Info),
            Self::Transferring { .. } => ("transferring", Info),
            Self::RolledBack { .. } => ("rolled_back", Info),
            Self::Resumed { .. } => ("resumed", Info),
            Self::Released {} => ("released", Info),
            Self::NotReleased { .. } => ("not_released", Warn),
            Self::Lost { .. } => ("lost", Warn),
            Self::Pausing { .. } => ("pausing", Info),
            Self::Retrying { .. } => ("retrying", Warn),
            Self::CoolOff { .. } => ("cool_off", Warn),
            Self::Finished { .. } => ("finished", Info),
            Self::OtherModule { .. } => ("other_module", Warn),
            Self::Pulling { .. } => ("pulling", Info),
            Self::Compiling { .. } => ("compiling", Info),
            Self::ModuleReady { .. } => ("module_ready", Info),
            Self::ModuleRefused { .. } => ("module_refused", Error),
            Self::Swapped { .. } => ("swapped", Info),
            Self::Proven { .. } => ("proven", Info),
            Self::Rejected { .. } => ("rejected", Error),
            Self::SourceUnreachable { .. } => ("source_unreachable", Warn),
            Self::SourceRecovered { .. } => ("source_recovered", Info),
            Self::StoreUnreachable { .. } => ("store_unreachable", Warn),
            Self::StoreRecovered { .. } => ("store_recovered", Info),
            Self::Misconfigured { .. } => ("misconfigured", Error),
            Self::Reloaded { next_start, .. } => ("reloaded", if next_start.is_empty() { Info } else { Warn }),
            Self::NotReloaded { .. } => ("not_reloaded", Error),
            Self::Maintenance { .. } => ("maintenance", Warn),
            Self::MaintenanceAcknowledged { .. } => ("maintenance_acknowledged", Info),
            Self::MaintenanceOver { .. } => ("maintenance_over", Info),
            Self::CollectorUnreachable { .. } => ("collector_unreachable", Warn),
            Self::CollectorRecovered { .. } => ("collector_recovered", Info),
            Self::SpansLost { .. } => ("spans_lost", Warn),
            Self::ShuttingDown { .. } => ("shutting_down", Info),
            Self::Saved { .. } => ("saved", Info),
            Self::NotSaved { .. } => ("not_saved", Warn),
            Self::Denied { .. } => ("denied", Warn),
            Self::Usage { .. } => ("usage", Warn),
            Self::Dropped { .. } => ("dropped", Warn),
            Self::StateDelayed { .. } => ("state_delayed", Warn),
            Self::Building { .. } => ("building", Info),
            Self::Built { .. } => ("built", Info),
            Self::BuildFailed { .. } => ("build_failed", Error),
            Self::Aborting { .. } => ("aborting", Error),
            Self::Error { .. } => ("error", Error),
        }
    }
}

fn told(by: &str, reason: &Option<String>) -> String {
    reason.as_ref().map_or_else(|| by.to_owned(), |reason| format!("{by}: {reason}"))
}

/// What a person reads after the event's name.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting {
                version,
                node,
                store,
                source,
                module,
                admin,
                lease_s,
                crash_takeover_s,
                hand_off_s,
                tolerated_outage_s,
                tolerated_pause_s,
                tolerated_drift_percent,
            } => write!(
                f,
                "baton {version}, node {node}, on {store}, {}, lease {lease_s}; at worst a crash is taken over in \
                 {crash_takeover_s} and a hand-off takes {hand_off_s}; a leader survives a store outage of \
                 {tolerated_outage_s}; tolerated are a hidden pause of {tolerated_pause_s} and a clock that is \
                 {tolerated_drift_percent}% slow{}",
                match module {
                    Some(module) => format!("module {module} of {source}"),
                    None => format!("modules of {source}"),
                },
                admin.as_ref().map(|admin| format!("; health and metrics at http://{admin}")).unwrap_or_default()
            ),
            Self::WeakerIsolation { missing } => write!(
                f,
                "this kernel lacks {missing}: a module that breaks out of its sandbox, or breaks its compiler, reaches more of \
                 what this user may"
            ),
            Self::Peers { address, advertised } => write!(
                f,
                "listens to the network at {address}, where other nodes find it as {advertised}: who can write to the store \
                 can pose as one of them there, and have this one ask the store earlier or later, and nothing else"
            ),
            Self::MisspeltVariable { variable, meant } => {
                write!(f, "there is no setting {variable}, and what it says does not count: did you mean {meant}?")
            }
            Self::Standby { reason, .. } => f.write_str(reason),
            Self::Linked { leader } => write!(f, "hears from {leader}, and asks the store seldom"),
            Self::LinkEnded { leader } => write!(f, "hears from {leader} no more, and asks the store each second"),
            Self::Outside { reason } => write!(f, "an outside client holds the lease: {reason}"),
            Self::TookOver { from, incarnation } => {
                write!(f, "takes the lease before it runs out: {from} ({incarnation}) is gone, with all that it ran")
            }
            Self::Settling { reason, wait_s } => write!(f, "the term begins in {wait_s}: {reason}"),
            Self::Elected { module, failures: 0 } => write!(f, "leading with module {module}"),
            Self::Elected { module, failures: 1 } => write!(f, "leading with module {module}, after a failure"),
            Self::Elected { module, failures } => {
                write!(f, "leading with module {module}, after {failures} failures in a row")
            }
            Self::Started { module, took_s } => write!(f, "module {module} runs, after {took_s}"),
            Self::Output { context: Some(context), line, .. } => write!(f, "{context}: {line}"),
            Self::Output { context: None, line, .. } => f.write_str(line),
            Self::RequestRefused { reason, setting: Some(setting), flag: Some(flag), .. } => {
                write!(f, "{reason}; to allow it: {setting} in baton.toml, or {flag}")
            }
            Self::RequestRefused { reason, .. } => f.write_str(reason),
            Self::RenewFailed { error, since_renewal_s, remaining_s } => {
                write!(f, "{error}; last renewed {since_renewal_s} ago, {remaining_s} left")
            }
            Self::RenewRecovered { after_s } => write!(f, "the lease is safe again; it was last renewed {after_s} ago"),
            Self::Stopping { reason, message, grace_s } => {
                write!(f, "{reason}: {message}; to be killed in {grace_s}")
            }
            Self::Killed { reason } => f.write_str(reason),
            Self::Gone { outcome, message, took_s, usage } => {
                let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
                let Usage { memory, handles, lines, .. } = usage;
                let memory = memory.div_ceil(1 << 20);
                write!(
                    f,
                    "{outcome}{message}; gone in {took_s}; it used {memory} MiB, {handles} handles and {lines} lines"
                )
            }
            Self::Suspended { by, reason } => write!(f, "nobody leads until it is resumed, says {}", told(by, reason)),
            Self::SteppingDown { by, reason, wait_s } => {
                write!(f, "this node leads no more and stays out for {wait_s}, says {}", told(by, reason))
            }
            Self::Transferring { to, by, reason, wait_s } => {
                write!(f, "{to} is to lead, and this node stays out for up to {wait_s}, says {}", told(by, reason))
            }
            Self::RolledBack { by, reason, told: what } => write!(f, "{}, says {}", what.trim_end(), told(by, reason)),
            Self::Resumed { reason } => write!(f, "this node may lead again: {reason}"),
            Self::NotReleased { reason } => f.write_str(reason),
            Self::Released {} => f.write_str("the lease is free"),
            Self::Lost { reason, since_renewal_s } => write!(f, "{reason}; last renewed {since_renewal_s} ago"),
            Self::Pausing { wait_s } => write!(f, "done; the next term begins in {wait_s}"),
            Self::Retrying { reason, failures, wait_s } => {
                write!(f, "the next term begins in {wait_s}, failure {failures} in a row: {reason}")
            }
            Self::CoolOff { reason, wait_s } => write!(f, "stepped down, and does not contend for {wait_s}: {reason}"),
            Self::Finished { reason } => f.write_str(reason),
            Self::OtherModule { leader, leader_module, module } => {
                write!(f, "{leader} leads with module {leader_module}, this node would run {module}")
            }
            Self::Pulling { module, source } => {
                write!(f, "module {module} of {source}; over a slow network it takes a while")
            }
            Self::Compiling { module, source } => {
                write!(f, "module {module} of {source}; a large one takes a while")
            }
            Self::ModuleReady { module, source, cached, took_s } => {
                let how = if *cached { " from the cache" } else { "" };
                write!(f, "module {module} of {source} is ready{how}, after {took_s}")
            }
            Self::ModuleRefused { module, source, error, instead } => {
                if let Some(module) = module {
                    write!(f, "module {module} of ")?;
                }
                let then = match instead {
                    Some(_) => "what was there before stays",
                    None => "nothing else is ready to run here",
                };
                write!(f, "{source}: {error}; {then}")
            }
            Self::SourceUnreachable { source, error } => write!(f, "{source}: {error}"),
            Self::SourceRecovered { source, after_s } => write!(f, "{source} answers again after {after_s}"),
            Self::Swapped { module, previous, gap_s } => {
                write!(f, "module {module} in the place of {previous}, {gap_s} without an instance")
            }
            Self::Proven { module } => write!(f, "module {module} has done well and stays"),
            Self::Rejected { module, reason, instead: Some(instead) } => {
                write!(
                    f,
                    "module {module} is not run again until it is pushed again or named to `baton rollback`, and \
                     {instead} runs instead: {reason}"
                )
            }
            Self::Rejected { module, reason, instead: None } => {
                write!(f, "module {module} is not run until it is pushed again or named to `baton rollback`: {reason}")
            }
            Self::StoreUnreachable { error } | Self::Misconfigured { error } | Self::Error { error } => {
                f.write_str(error)
            }
            Self::StoreRecovered { after_s } => write!(f, "answers again after {after_s}"),
            Self::Reloaded { read, next_start } => {
                match read.as_slice() {
                    [] => f.write_str("there are no files to read anew")?,
                    read => write!(f, "the files of {} are read anew", read.join(", "))?,
                }
                if next_start.is_empty() {
                    return Ok(());
                }
                write!(f, "; these have changed, and count when the host starts again: {}", next_start.join(", "))
            }
            Self::Maintenance { reason, id, not_before, description, .. } => {
                write!(f, "{reason}, and this node takes no part until that is over: event {id}")?;
                if let Some(not_before) = not_before {
                    write!(f, ", not before {not_before}")?;
                }
                description.as_ref().map_or(Ok(()), |description| write!(f, ": {description}"))
            }
            Self::MaintenanceAcknowledged { id } => write!(f, "this node has stepped down: event {id} may begin"),
            Self::MaintenanceOver { reason } => write!(f, "{reason}, and this node takes part again"),
            Self::NotReloaded { error } => write!(f, "{error}; all stays as it was"),
            Self::CollectorUnreachable { what, collector, error } => {
                write!(f, "{collector} does not take the {what}: {error}")
            }
            Self::CollectorRecovered { what, after_s } => write!(f, "the {what} are taken again after {after_s}"),
            Self::SpansLost { spans } => write!(f, "{spans} spans were not taken by the collector in time"),
            Self::ShuttingDown { signal, grace: true } => {
                write!(f, "{signal}: orderly end; a second signal skips the grace")
            }
            Self::ShuttingDown { signal, grace: false } => write!(f, "{signal}: without grace"),
            Self::Saved { what, path } => write!(f, "a {what} is in {path}"),
            Self::NotSaved { what, path, error } => write!(f, "no {what} in {path}: {error}"),
            Self::Denied { what, remedy } => write!(f, "it asked for {what}, which it is not granted: {remedy}"),
            Self::Usage { limit: limit @ ("memory" | "memory of the host"), used, of, flag } => {
                let (used, of) = (used.div_ceil(1 << 20), of.div_ceil(1 << 20));
                write!(f, "it uses {used} of the {of} MiB of {limit} that it may; {flag} grants more")
            }
            Self::Usage { limit, used, of, flag } => {
                write!(f, "it uses {used} of the {of} {limit} that it may; {flag} grants more")
            }
            Self::Dropped { lines, reason } => write!(f, "{lines} lines: {reason}"),
            Self::StateDelayed { error } => write!(f, "the state is not claimed or saved yet, trying again: {error}"),
            Self::Building { command } => f.write_str(command),
            Self::Built { took_s } => write!(f, "in {took_s}"),
            Self::BuildFailed { error, took_s } => {
                write!(f, "{error}, after {took_s}; it is built again once a file is changed")
            }
            Self::Aborting { reason } => f.write_str(reason),
        }
    }
}
