//! `baton step-down`, `suspend`, `resume`, `transfer` and `break`, and `baton nodes`.

use std::process::ExitCode;

use baton_election::{ElectionName, Snapshot};
use baton_store::{ObjectStore, StoreUrl, steering, witness};
use tokio::time::timeout;

use super::modules::{announcements, now};
use super::{ANSWER_WITHIN, open_store, read, unheard_of};
use crate::cli::{self, NodeStatusRow, Steer};
use crate::config::Environment;
use crate::steering::operator::{Called, NoEffect, Operator};

pub(super) async fn steer(asked: Steer) -> anyhow::Result<ExitCode> {
    let Steer { election, store: place, what, reason, timeout, by } = asked;
    let store = open_store(&place)?;
    let called = Called::Hosts(&place);
    let operator = Operator { store: &*store, election: &election, by, reason, patience: timeout, called };
    match operator.steer(&what).await {
        Ok(told) => cli::print(&told)?,
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
    // What cannot be read is no reason not to show the nodes; those say what is wrong with it, as do the commands.
    let asked = timeout(ANSWER_WITHIN, steering::read(objects, election)).await;
    let suspended = asked.ok().and_then(Result::ok).and_then(|asked| asked.suspended);
    let folder = witness::folder(place, Environment::of_process().state_folder().as_deref());
    let has_ended = |incarnation: &str| folder.as_ref().is_some_and(|folder| witness::has_ended(folder, incarnation));
    cli::print_nodes(&NodeStatusRow::of(&snapshot, &announced, has_ended), suspended.as_ref(), now(), json)?;
    Ok(ExitCode::SUCCESS)
}
