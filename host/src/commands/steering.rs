//! `baton step-down`, `suspend`, `resume`, `transfer`, `trigger`, `break-lease` and `nodes`.

use std::process::ExitCode;

use baton_election::{ElectionName, Snapshot};
use baton_store::{ObjectStore, StoreUrl, steering, witness};
use tokio::time::timeout;

use super::modules::{announcements, now};
use super::{ANSWER_WITHIN, open_store, read, unheard_of};
use crate::cli::{self, NodeStatusRow, Steer};
use crate::config::Environment;
use baton_node::steering::operator::{HintTarget, NoEffect, Operator};

pub(super) async fn steer(command: Steer) -> anyhow::Result<ExitCode> {
    let Steer { election, store: place, what, reason, timeout, by } = command;
    let store = open_store(&place)?;
    let called = HintTarget::Hosts(&place);
    let operator = Operator { store: &*store, election: &election, by, reason, patience: timeout, called };
    match operator.steer(&what).await {
        Ok(report) => cli::print(&report)?,
        Err(NoEffect::Unknown(election)) => return Err(unheard_of(&election, &place, &*store).await),
        Err(error) => return Err(error.into()),
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn nodes(election: &ElectionName, place: &StoreUrl, json: bool) -> anyhow::Result<ExitCode> {
    let store = open_store(place)?;
    let objects: &dyn ObjectStore = &*store;
    let snapshot = read(&*store, election).await?;
    let announced = announcements(objects, election).await?;
    if snapshot == Snapshot::Nothing && announced.is_empty() {
        return Err(unheard_of(election, place, &*store).await);
    }
    // Ignore errors, so that the nodes are shown even if the suspension cannot be read.
    let steering = timeout(ANSWER_WITHIN, steering::read(objects, election)).await;
    let suspended = steering.ok().and_then(Result::ok).and_then(|steering| steering.suspended);
    let folder = witness::folder(place, Environment::of_process().state_folder().as_deref());
    let has_ended = |incarnation: &str| folder.as_ref().is_some_and(|folder| witness::has_ended(folder, incarnation));
    cli::print_nodes(&NodeStatusRow::of(&snapshot, &announced, has_ended), suspended.as_ref(), now(), json)?;
    Ok(ExitCode::SUCCESS)
}
