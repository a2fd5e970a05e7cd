//! Constructors that create events, mostly from the elector's types.

use std::time::Duration;

use baton_election::timing::LONGEST_POLL;
use baton_election::{End, IneligibleCause, Record, Report, StopReason, StoreError, Term, Timing};

use super::{Event, GuestStream, LAST_LINES, Seconds};
use baton_base::clock::rfc3339_seconds;
use baton_runtime::{LogLevel, Usage};
use baton_store::Digest;
use baton_store::StoreUrl;

const STORE: &str = "store";

/// Returns the longest time from a step-down to the next instance, with a healthy store.
#[must_use]
pub fn hand_off(timing: &Timing) -> Duration {
    timing.grace().saturating_add(timing.kill_timeout() + LAST_LINES + LONGEST_POLL)
}

impl Event {
    /// Creates the event that the host logs when it joins an election. `waits` is the time for which this host leaves a
    /// free lease to other nodes.
    #[must_use]
    pub fn starting(
        node: &str,
        store: &StoreUrl,
        source: String,
        module: Option<Digest>,
        timing: &Timing,
        waits: Duration,
    ) -> Self {
        Self::Starting {
            version: env!("CARGO_PKG_VERSION").to_string(),
            node: node.to_string(),
            store: store.to_string(),
            source,
            module: module.map(|digest| digest.to_string()),
            lease_s: timing.lease().into(),
            crash_takeover_s: (timing.takeover_after_crash() + waits).into(),
            hand_off_s: (hand_off(timing).saturating_add(waits)).into(),
            tolerated_outage_s: timing.tolerated_outage().into(),
            tolerated_pause_s: timing.tolerated_pause().into(),
            tolerated_drift_percent: f64::from(timing.tolerated_drift()) / 10.0,
        }
    }

    /// Creates the event for a line that the guest printed.
    #[must_use]
    pub fn printed(stream: GuestStream, line: &str) -> Self {
        Self::Output { level: LogLevel::Info, stream, context: None, line: line.to_string() }
    }

    /// Creates the event for a message that the guest logged. Omits an empty context.
    #[must_use]
    pub fn logged(level: LogLevel, context: &str, message: &str) -> Self {
        let context = Some(context).filter(|context| !context.is_empty()).map(str::to_string);
        Self::Output { level, stream: GuestStream::Log, context, line: message.to_string() }
    }

    /// Creates the event for a node that must not lead for the time `wait`. If `wait` is `None`, the node must not lead
    /// until an operator makes it eligible again. The pair contains the operator who gave the command, if any, and the
    /// reason, if any.
    #[must_use]
    pub(crate) fn ineligible(
        cause: &IneligibleCause,
        (by, reason): (Option<String>, Option<String>),
        wait: Option<Duration>,
    ) -> Self {
        let to = match cause {
            IneligibleCause::Transferring { to } => Some(to.clone()),
            _ => None,
        };
        Self::Ineligible { cause: cause.word(), reason, by, to, wait_s: wait.map(Seconds) }
    }

    /// Creates the event for the host's request to an instance to stop. The host kills the instance after `grace`.
    #[must_use]
    pub fn stopping(reason: StopReason, message: &str, grace: Duration) -> Self {
        let word = match reason {
            StopReason::LeaseAtRisk => "lease-at-risk",
            StopReason::LeaseLost => "lease-lost",
            StopReason::StepDown => "step-down",
            StopReason::Replaced => "replaced",
            StopReason::Shutdown => "shutdown",
        };
        Self::Stopping { reason: word, message: message.to_string(), grace_s: grace.into() }
    }

    /// Creates the event for the end of the instance of term `own`. `took` is the time since the host killed the
    /// instance, or 0 if the host did not kill the instance.
    #[must_use]
    pub fn ended(own: Term, end: &End, took: Duration, usage: Usage) -> Self {
        let message = match end {
            End::Done | End::Killed => None,
            End::Failed(message) | End::Crashed(message) | End::Fatal(message) | End::Unable(message) => {
                Some(message.clone())
            }
            // When an operator changes the state, the state keeps its term. A missing or unreadable state has term 0.
            End::Superseded { term } if *term == own => Some("an operator changed the state".into()),
            End::Superseded { term: 0 } => Some("the state was removed or damaged".into()),
            End::Superseded { term } => Some(format!("the state was claimed by term {term}")),
        };
        Self::Ended { outcome: end.into(), message, took_s: took.into(), usage }
    }

    /// Creates the events for a report by the elector. Each event comes with its term, or with `None` if the event
    /// belongs to this node's current term. `expected` is the digest of the module that every leader should run, if
    /// there is such a module.
    pub(crate) fn reported(report: Report, expected: Option<&str>) -> Vec<(Option<Term>, Self)> {
        let event = match report {
            Report::Standby { reason } | Report::Deferring { reason } => Self::Standby { reason, leader: None },
            // The supervisor logs this event itself, because it knows the operator's command.
            Report::Ineligible { .. } => return Vec::new(),
            Report::Eligible { before } => {
                let reason = match before.cause {
                    IneligibleCause::Suspended => "the suspension is over".to_owned(),
                    IneligibleCause::SteppedDown => "the step-down period is over".to_owned(),
                    IneligibleCause::Transferring { to } => format!("the time for {to} to take the lease is over"),
                    IneligibleCause::Maintenance | IneligibleCause::CoolingOff => return Vec::new(),
                };
                Self::Eligible { reason }
            }
            Report::Following { leader: Record { term, node, module, .. } } => {
                let leader = node.unwrap_or_default();
                let standby =
                    Self::Standby { reason: format!("{leader} leads in term {term}"), leader: Some(leader.clone()) };
                let differs = expected.zip(module).filter(|(expected, theirs)| expected != theirs);
                let differs = differs.map(|(expected, leader_module)| Self::ModuleDiffers {
                    leader,
                    leader_module,
                    module: expected.to_owned(),
                });
                return [Some(standby), differs].into_iter().flatten().map(|event| (Some(term), event)).collect();
            }
            Report::HeldOutside { reason } => Self::HeldByOtherClient { reason },
            Report::ElectionOver { record: Record { term, .. } } => {
                let reason = format!("the coordinator finished in term {term}; `baton rerun` runs it again");
                return vec![(Some(term), Self::Finished { reason })];
            }
            Report::TookOver { from: Record { term, node, incarnation, .. } } => {
                return vec![(Some(term), Self::Reclaimed { from: node.unwrap_or_default(), incarnation })];
            }
            Report::Settling { wait, reason } => Self::WaitingForPreviousLease { reason, wait_s: wait.into() },
            Report::Elected { record } => {
                Self::Elected { module: record.module.unwrap_or_default(), failures: record.failures }
            }
            Report::RenewFailed { error, since_renewal, remaining } => Self::RenewalFailed {
                error: error.to_string(),
                since_renewal_s: since_renewal.into(),
                remaining_s: remaining.into(),
            },
            Report::RenewedAgain { after } => Self::RenewalRecovered { after_s: after.into() },
            Report::Pausing { wait } => Self::NextTerm { reason: None, failures: 0, wait_s: wait.into() },
            Report::Resting { wait, reason, failures } => {
                Self::NextTerm { reason: Some(reason), failures, wait_s: wait.into() }
            }
            Report::AwaitingRun { due } => Self::NextRun { due: due.map(rfc3339_seconds), by: None, reason: None },
            Report::RunSkipped { due } => Self::RunSkipped { due: rfc3339_seconds(due) },
            Report::ProgressAhead { recorded, due } => Self::Error {
                error: format!(
                    "the run that is due at {} does not begin, because the store records runs up to {}: a clock was \
                     wrong; wait, or use `baton schedule --from now`",
                    rfc3339_seconds(due),
                    rfc3339_seconds(recorded)
                ),
            },
            Report::CoolOff { wait, reason } => {
                Self::ineligible(&IneligibleCause::CoolingOff, (None, Some(reason)), Some(wait))
            }
            Report::Lost { reason, since_renewal } => {
                Self::LeadershipLost { reason, since_renewal_s: since_renewal.into() }
            }
            Report::Released => Self::Released {},
            Report::NotReleased { reason } => Self::ReleaseFailed { reason },
            Report::StoreTrouble { error: StoreError::Misconfigured(error), .. } => Self::Misconfigured { error },
            Report::StoreTrouble { error, asked } => {
                Self::Unreachable { what: STORE.to_owned(), error: format!("{asked}: {error}") }
            }
            Report::StoreBack { after } => Self::Reachable { what: STORE.to_owned(), after_s: after.into() },
        };
        vec![(None, event)]
    }
}
