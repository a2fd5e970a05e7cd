//! The commands that steer: from arguments to what is asked.

use std::time::Duration;

use baton_election::ElectionName;
use baton_store::StoreUrl;
use baton_store::steering::LONGEST_STEP_DOWN;

use super::args::{SteerCommand, SteeringOf};
use super::{Command, Stop, election_argument};
use crate::config::{self, ConfigError, Environment};
use crate::steering::operator::{Steered, check_reason};

/// What is asked of an election's nodes.
#[derive(Debug)]
pub struct Steer {
    /// Which election.
    pub election: ElectionName,
    /// Where the store is.
    pub store: StoreUrl,
    /// What is asked.
    pub what: Steered,
    /// Why, for people.
    pub reason: Option<String>,
    /// How long it is waited for.
    pub timeout: Duration,
    /// Who asks, `USER@HOST`.
    pub by: String,
}

/// The command that such arguments make.
///
/// # Errors
/// [`Stop`] where they are wrong.
pub(super) fn command(arguments: SteerCommand, around: &Environment) -> Result<Command, Stop> {
    let (of, reason, what) = match arguments {
        SteerCommand::StepDown { of, stays_out, reason } => {
            let stays_out = duration("--for", &stays_out)?;
            if stays_out < Duration::from_secs(1) || stays_out > LONGEST_STEP_DOWN {
                let problem = "expected 1s to 24h; to stop all nodes for longer, use `baton suspend`".to_owned();
                return Err(ConfigError::of_argument("--for", problem).into());
            }
            (of, reason.reason, Steered::StepDown(stays_out))
        }
        SteerCommand::Suspend { of, reason } => (of, reason.reason, Steered::Suspend),
        SteerCommand::Resume { of } => (of, None, Steered::Resume),
        SteerCommand::Transfer { of, to, reason } => (of, reason.reason, Steered::Transfer(to)),
        SteerCommand::BreakLease { of } => (of, None, Steered::Break),
    };
    if let Some(reason) = &reason {
        check_reason(reason).map_err(|problem| ConfigError::of_argument("--reason", problem))?;
    }
    let SteeringOf { election, store, timeout } = of;
    Ok(Command::Steer(Steer {
        election: election_argument(&election)?,
        store: config::resolve_store(&store.layer(), around)?,
        what,
        reason,
        timeout: duration("--timeout", &timeout)?,
        by: around.user_at_host(),
    }))
}

fn duration(flag: &str, text: &str) -> Result<Duration, ConfigError> {
    config::duration(text).map_err(|problem| ConfigError::of_argument(flag, problem))
}
