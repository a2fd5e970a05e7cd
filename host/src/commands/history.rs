//! `baton history`: lists an election's terms and how each of them ended.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::{ElectionName, Snapshot};

use super::{in_time, open_store, read, unheard_of};
use crate::cli;
use baton_admin::TermRow;
use baton_store::{StoreUrl, read_history};

pub(super) async fn history(
    election: &ElectionName,
    store: &StoreUrl,
    limit: usize,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let cannot = || format!("cannot read the history of {election}");
    let stored = in_time(read_history(&*store, election)).await.with_context(cannot)?.with_context(cannot)?;
    let snapshot = read(&*store, election).await?;
    if stored.is_none() && snapshot == Snapshot::Nothing {
        return Err(unheard_of(election, place, &*store).await);
    }
    let mut history = stored.unwrap_or_default();
    // Nodes add a new term to the history only after a few seconds, so take the newest term from the record.
    if let Snapshot::Object { record: Some(record), .. } = &snapshot {
        history.note(record);
        history.close();
    }
    let rows: Vec<TermRow> = history.terms.into_iter().rev().take(limit).map(TermRow::from).collect();
    cli::print_history(election, &rows, json)?;
    Ok(ExitCode::SUCCESS)
}
