//! `baton modules` and `baton rollback`: list an election's versions, and return to an earlier version.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::{ElectionName, Snapshot};
use time::OffsetDateTime;

use super::{announced, in_time, open_store, read, unheard_of};
use crate::cli;
use baton_admin::ModuleRow;
use baton_base::clock::wall;
use baton_modules::read_versions;
use baton_node::links;
use baton_node::steering::rollback;
use baton_store::StoreUrl;
use baton_store::{Announcement, DigestPrefix, ObjectStore};

pub(super) async fn modules(election: &ElectionName, store: &StoreUrl, json: bool) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let modules: &dyn ObjectStore = &*store;
    let cannot = || format!("cannot read the modules of {election}");
    let control = in_time(read_versions(modules, election)).await.with_context(cannot)?.with_context(cannot)?;
    let announcements = announcements(modules, election).await?;
    let nothing = control.is_none() && announcements.is_empty();
    // If the election has no record, its name may be misspelled, so report an error.
    if nothing && read(&*store, election).await? == Snapshot::Nothing {
        return Err(unheard_of(election, place, &*store).await);
    }
    let rows = ModuleRow::of(&control.unwrap_or_default(), &announcements);
    if rows.is_empty() && !json {
        cli::print(&format!("Nothing has been pushed to {election} yet: run `baton push MODULE {election}`.\n"))?;
    } else {
        cli::print_modules(&rows, now(), json)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rollback(
    election: &ElectionName,
    store: &StoreUrl,
    to: Option<&DigestPrefix>,
) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let rolled_back = rollback::roll_back(&*store, election, to).await?;
    links::call(place, election).await;
    cli::print(&rollback::told(&rolled_back, election))?;
    Ok(ExitCode::SUCCESS)
}

/// Skips objects that are not valid announcements.
pub(super) async fn announcements(
    store: &dyn ObjectStore,
    election: &ElectionName,
) -> anyhow::Result<Vec<Announcement>> {
    let announced = announced(store, election).await;
    let announced = announced.with_context(|| format!("cannot read the announcements of the nodes of {election}"))?;
    Ok(announced.iter().filter_map(|(_, content)| Announcement::decode(content)).collect())
}

pub(super) fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + wall()
}
