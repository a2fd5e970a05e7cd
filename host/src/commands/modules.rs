//! `baton modules` and `baton rollback`: an election's versions in an operator's hands.

use std::process::ExitCode;

use anyhow::Context;
use baton_election::{ElectionName, Snapshot};
use time::OffsetDateTime;

use super::{announced, in_time, open_store, read, unheard_of};
use crate::cli::{self, ModuleRow};
use crate::links;
use crate::steering::rollback;
use baton_modules::read_versions;
use baton_store::StoreUrl;
use baton_store::clock::wall;
use baton_store::{Announcement, DigestPrefix, ObjectStore};

pub(super) async fn modules(election: &ElectionName, store: &StoreUrl, json: bool) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let modules: &dyn ObjectStore = &*store;
    let cannot = || format!("cannot read the modules of {election}");
    let control = in_time(read_versions(modules, election)).await.with_context(cannot)?.with_context(cannot)?;
    let announcements = announcements(modules, election).await?;
    let nothing = control.is_none() && announcements.is_empty();
    // That there is nothing at all may be a misspelt election, and is an error.
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

/// What the nodes of an election say that they have. What no node of Baton wrote is left out.
pub(super) async fn announcements(
    store: &dyn ObjectStore,
    election: &ElectionName,
) -> anyhow::Result<Vec<Announcement>> {
    let said = announced(store, election).await;
    let said = said.with_context(|| format!("cannot read the announcements of the nodes of {election}"))?;
    Ok(said.iter().filter_map(|(_, content)| Announcement::decode(content)).collect())
}

/// The wall clock's time, by which ages are told.
pub(super) fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + wall()
}
