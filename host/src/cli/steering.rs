//! Parses the steering commands.

use std::time::Duration;

use baton_base::clock::wall;
use baton_election::ElectionName;
use baton_store::StoreUrl;
use baton_store::steering::LONGEST_STEP_DOWN;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::args::{SteerCommand, SteeringOf};
use super::{Command, Stop, election_argument};
use crate::config::{self, ConfigError, Environment};
use baton_node::steering::operator::{SteeringCommand, check_reason};

/// A steering command for an election's nodes.
#[derive(Debug)]
pub struct Steer {
    /// The election.
    pub election: ElectionName,
    /// The lease store.
    pub store: StoreUrl,
    /// The command.
    pub what: SteeringCommand,
    /// Reason to show in the log, in `baton status` and to the coordinator.
    pub reason: Option<String>,
    /// Maximum time to wait for the command to take effect.
    pub timeout: Duration,
    /// The user who runs the command, as `USER@HOST`.
    pub by: String,
}

pub(super) fn command(arguments: SteerCommand, around: &Environment) -> Result<Command, Stop> {
    let (of, reason, what) = match arguments {
        SteerCommand::StepDown { of, period, reason } => {
            let period = duration("--for", &period)?;
            if period < Duration::from_secs(1) || period > LONGEST_STEP_DOWN {
                let problem = "expected 1s to 24h; to stop all nodes for longer, use `baton suspend`".to_owned();
                return Err(ConfigError::of_argument("--for", problem).into());
            }
            (of, reason.reason, SteeringCommand::StepDown(period))
        }
        SteerCommand::Suspend { of, reason } => (of, reason.reason, SteeringCommand::Suspend),
        SteerCommand::Resume { of, skip_missed } => (of, None, SteeringCommand::Resume { skip_missed }),
        SteerCommand::Schedule { of, from } => (of, None, SteeringCommand::ScheduleFrom(time("--from", &from)?)),
        SteerCommand::Transfer { of, to, reason } => (of, reason.reason, SteeringCommand::Transfer(to)),
        SteerCommand::Trigger { of, reason } => (of, reason.reason, SteeringCommand::Trigger),
        SteerCommand::BreakLease { of } => (of, None, SteeringCommand::Break),
    };
    if let Some(reason) = &reason {
        check_reason(reason).map_err(|problem| ConfigError::of_argument("--reason", problem))?;
    }
    let SteeringOf { election, store, timeout } = of;
    Ok(Command::Steer(Steer {
        election: election_argument(&election)?,
        store: config::resolve_store(&store.layer()?, around)?,
        what,
        reason,
        timeout: duration("--timeout", &timeout)?,
        by: around.user_at_host(),
    }))
}

/// Parses `now` or a time in RFC 3339, as the time since the Unix epoch.
fn time(flag: &str, text: &str) -> Result<Duration, ConfigError> {
    if text == "now" {
        return Ok(wall());
    }
    let parsed = OffsetDateTime::parse(text, &Rfc3339).ok();
    let seconds = parsed.and_then(|time| u64::try_from(time.unix_timestamp()).ok());
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let problem = format!("{text:?} is not a time: write `now`, or a time such as 2026-11-29T02:00:00+01:00");
        ConfigError::of_argument(flag, problem)
    })
}

fn duration(flag: &str, text: &str) -> Result<Duration, ConfigError> {
    config::duration(text).map_err(|problem| ConfigError::of_argument(flag, problem))
}
