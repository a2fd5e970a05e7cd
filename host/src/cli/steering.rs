//! The commands that steer: from arguments to what is asked.

use std::time::Duration;

use baton_election::ElectionName;
use baton_store::StoreUrl;
use baton_store::steering::LONGEST_STEP_DOWN;

use super::args::{self, Subcommand};
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
pub(super) fn command(arguments: Subcommand, around: &Environment) -> Result<Command, Stop> {
    let (of, reason, what) = match arguments {
        Subcommand::StepDown { of, stays_out, reason } => {
            let stays_out = duration("--for", &stays_out)?;
            if stays_out < Duration::from_secs(1) || stays_out > LONGEST_STEP_DOWN {
                let problem = "it is from 1s to 24h: `baton suspend` has nobody lead for longer".to_owned();
                return Err(ConfigError::of_argument("--for", problem).into());
            }
            (of, reason.reason, Steered::StepDown(stays_out))
        }
        Subcommand::Suspend { of, reason } => (of, reason.reason, Steered::Suspend),
        Subcommand::Resume { of } => (of, None, Steered::Resume),
        Subcommand::Transfer { of, to, reason } => (of, reason.reason, Steered::Transfer(to)),
        Subcommand::Break { of } => (of, None, Steered::Break),
        _ => unreachable!("it is one of those that steer"),
    };
    if let Some(reason) = &reason {
        check_reason(reason).map_err(|problem| ConfigError::of_argument("--reason", problem))?;
    }
    let args::SteeringOf { election, store, timeout } = of;
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
