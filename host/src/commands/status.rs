//! `baton status`: who leads.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::ElectionName;

use super::{ANSWER_WITHIN, elections, open_store, read, unheard_of};
use crate::cli::{self, StatusRow};
use crate::status_socket;
use baton_store::{StoreUrl, steering};
use tokio::time::timeout;

pub(super) async fn status(election: Option<ElectionName>, store: &StoreUrl, json: bool) -> anyhow::Result<ExitCode> {
    let url = store;
    let store = open_store(url)?;
    let names = match &election {
        Some(election) => vec![election.clone()],
        None => elections(&*store).await.context("cannot list the elections")?,
    };
    let mut rows = Vec::new();
    for election in names {
        let row = StatusRow::of(&election, read(&*store, &election).await?);
        // Where it cannot be read, `baton nodes` and those that steer say why.
        let asked = timeout(ANSWER_WITHIN, steering::read(&*store, &election)).await;
        let suspended = asked.ok().and_then(Result::ok).and_then(|asked| asked.suspended);
        rows.extend(row.map(|row| StatusRow { suspended: suspended.map(Into::into), ..row }));
    }
    if let (Some(election), true) = (election, rows.is_empty()) {
        return Err(unheard_of(&election, url));
    }
    for local in status_socket::ask(url).await {
        let row = rows.iter_mut().find(|row| row.election == local.election && row.term == Some(local.term));
        if let Some(row) = row {
            row.in_use = Some(local.in_use);
        }
    }
    cli::print_status(&rows, json)?;
    Ok(ExitCode::SUCCESS)
}
