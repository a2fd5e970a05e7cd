//! `baton status`: who leads.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::ElectionName;

use super::{elections, open_store, read, unheard_of};
use crate::cli::{self, StatusRow};
use crate::status_socket;
use baton_store::StoreUrl;

pub(super) async fn status(election: Option<ElectionName>, store: &StoreUrl, json: bool) -> anyhow::Result<ExitCode> {
    let url = store;
    let store = open_store(url)?;
    let names = match &election {
        Some(election) => vec![election.clone()],
        None => elections(&*store).await.context("cannot list the elections")?,
    };
    let mut rows = Vec::new();
    for election in names {
        rows.extend(StatusRow::of(&election, read(&*store, &election).await?));
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
