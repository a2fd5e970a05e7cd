//! Constructors that create events from the elector's types, so that each conversion is in one place.

use std::time::Duration;

use baton_election::timing::LONGEST_POLL;
use baton_election::{End, StopReason, Term, Timing};

use super::{Event, GuestStream, LAST_LINES};
use baton_runtime::{LogLevel, Usage};
use baton_store::Digest;
use baton_store::StoreUrl;

/// Returns the longest time from a step-down to the next instance, with a healthy store.
#[must_use]
pub fn hand_off(timing: &Timing) -> Duration {
    timing.grace().saturating_add(timing.kill_timeout() + LAST_LINES + LONGEST_POLL)
}

impl Event {
    /// Creates the event for joining an election. `waits` is how long this host lets other nodes take a free lease
    /// first.
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

    /// Creates the event for a request to stop. The host kills the instance after `grace`.
    #[must_use]
    pub fn stopping(reason: StopReason, message: &str, grace: Duration) -> Self {
        let word = match reason {
            StopReason::LeaseAtRisk => "lease-at-risk",
            StopReason::LeaseLost => "lease-lost",
            StopReason::StepDown => "step-down",
            StopReason::Replaced => "replaced",
            StopReason::Shutdown => "shutdown",
        };
        Self::Stopping { reason: word.to_string(), message: message.to_string(), grace_s: grace.into() }
    }

    /// Creates the event for the end of an instance. `own` is its term, and `took` is the time since its end or its
    /// kill.
    #[must_use]
    pub fn ended(own: Option<Term>, end: &End, took: Duration, usage: Usage) -> Self {
        let (outcome, message) = match end {
            End::Done => ("done", None),
            End::Failed(message) | End::Crashed(message) => ("failed", Some(message.clone())),
            End::Fatal(message) => ("fatal", Some(message.clone())),
            End::Unable(message) => ("unable", Some(message.clone())),
            End::Killed => ("killed", None),
            // An operator's change does not change the term. If the state is unreadable, its term is 0.
            End::Superseded { term } if Some(*term) == own => {
                ("superseded", Some("an operator changed the state".into()))
            }
            End::Superseded { term: 0 } => ("superseded", Some("the state was removed or damaged".into())),
            End::Superseded { term } => ("superseded", Some(format!("the state was claimed by term {term}"))),
        };
        Self::Ended { outcome: outcome.to_string(), message, took_s: took.into(), usage }
    }
}
