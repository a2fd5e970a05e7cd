//! `baton status`: who leads, once or again and again.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use baton_election::ElectionName;
use tokio::time::{sleep, timeout};

use super::{ANSWER_WITHIN, elections, open_store, read, unheard_of};
use crate::cli::{self, StatusRow};
use crate::signals::Signals;
use crate::status_socket;
use baton_store::clock::wall;
use baton_store::{Announcement, ModuleStore as _, Store, StoreUrl, steering};

pub(super) async fn status(
    election: Option<ElectionName>,
    store: &StoreUrl,
    json: bool,
    every: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let look = async || look(election.as_ref(), place, &*store).await;
    match every {
        Some(every) => watch(place, json, every, look).await?,
        None => cli::print_status(&look().await?, json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks again and again, through every outage, until a signal comes or nobody reads it any more.
async fn watch(
    place: &StoreUrl,
    json: bool,
    every: Duration,
    look: impl AsyncFn() -> anyhow::Result<Vec<StatusRow>>,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    loop {
        let read = tokio::select! {
            read = look() => read.map_err(|error| format!("{error:#}")),
            _ = signals.next() => return Ok(()),
        };
        if !cli::print_again(place, wall(), read.as_deref().map_err(String::as_str), json)? {
            return Ok(());
        }
        tokio::select! {
            () = sleep(every) => {}
            _ = signals.next() => return Ok(()),
        }
    }
}

async fn look(election: Option<&ElectionName>, place: &StoreUrl, store: &dyn Store) -> anyhow::Result<Vec<StatusRow>> {
    let names = match election {
        Some(election) => vec![election.clone()],
        None => elections(store).await.context("cannot list the elections")?,
    };
    let mut rows = Vec::new();
    for election in names {
        let Some(row) = StatusRow::of(&election, read(store, &election).await?) else { continue };
        // Where these cannot be read, `baton nodes` and those that steer say why.
        let suspended = async {
            let asked = timeout(ANSWER_WITHIN, steering::read(store, &election)).await.ok()?.ok()?;
            asked.suspended.map(Into::into)
        };
        let labels = async {
            let said = timeout(ANSWER_WITHIN, store.announced(&election, row.node.as_deref()?)).await.ok()?.ok()??;
            Some(Announcement::decode(&said)?.labels)
        };
        let (suspended, labels) = tokio::join!(suspended, labels);
        rows.push(StatusRow { suspended, labels: labels.unwrap_or_default(), ..row });
    }
    if let (Some(election), true) = (election, rows.is_empty()) {
        return Err(unheard_of(election, place, store).await);
    }
    for local in status_socket::ask(place).await {
        let row = rows.iter_mut().find(|row| row.election == local.election && row.term == Some(local.term));
        if let Some(row) = row {
            row.in_use = Some(local.in_use);
        }
    }
    Ok(rows)
}
