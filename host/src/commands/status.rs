//! `baton status`: who leads.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::ElectionName;

use super::{ANSWER_WITHIN, open_store, read};
use crate::cli::{self, StatusRow};

pub(super) async fn status(election: Option<ElectionName>, store: &str, json: bool) -> anyhow::Result<ExitCode> {
    let store = open_store(store)?;
    let elections = match &election {
        Some(election) => vec![election.clone()],
        None => tokio::time::timeout(ANSWER_WITHIN, store.elections())
            .await
            .context("the store did not answer in time")?
            .context("cannot list the elections")?,
    };
    let mut rows = Vec::new();
    for election in elections {
        rows.extend(StatusRow::of(&election, read(&*store, &election).await?));
    }
    if let (Some(election), true) = (election, rows.is_empty()) {
        anyhow::bail!("there is no election {election} in this store: no host has contended for it yet");
    }
    cli::print_status(&rows, json)?;
    Ok(ExitCode::SUCCESS)
}
