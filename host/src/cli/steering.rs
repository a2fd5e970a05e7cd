//! Parses the steering commands.

use std::time::Duration;

use baton_election::ElectionName;
use baton_store::StoreUrl;
use baton_store::steering::LONGEST_STEP_DOWN;

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
        SteerCommand::Resume { of } => (of, None, SteeringCommand::Resume),
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

fn duration(flag: &str, text: &str) -> Result<Duration, ConfigError> {
    config::duration(text).map_err(|problem| ConfigError::of_argument(flag, problem))
}
