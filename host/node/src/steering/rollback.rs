//! Rolls an election back to an earlier version, for the command and the admin endpoint.

use std::time::Duration;

use anyhow::{Context, bail};
use baton_election::ElectionName;
use baton_modules::{RolledBack, edit_versions};
use baton_store::{DigestPrefix, ObjectStore};
use tokio::time::timeout;

const RESPONSE_WITHIN: Duration = Duration::from_secs(10);

/// Makes the version `to` current. If `to` is `None`, chooses the newest other version that is not rejected.
///
/// # Errors
/// [`RollbackError`](baton_modules::RollbackError) if there is no such version, or the store's error.
pub async fn roll_back(
    store: &dyn ObjectStore,
    election: &ElectionName,
    to: Option<&DigestPrefix>,
) -> anyhow::Result<RolledBack> {
    let edit = edit_versions(store, election, |control| control.rollback(to).map_err(anyhow::Error::from));
    match timeout(RESPONSE_WITHIN, edit).await {
        Ok(rolled_back) => rolled_back.with_context(|| format!("cannot roll back {election}")),
        Err(_) => bail!(
            "the store did not answer within {RESPONSE_WITHIN:?}: {election} may or may not be rolled back; see \
             `baton modules {election}`"
        ),
    }
}

/// Describes the result in human-readable form.
#[must_use]
pub fn told(rolled_back: &RolledBack, election: &ElectionName) -> String {
    match rolled_back {
        RolledBack::To(digest) => format!("{digest} is now the current version of {election}\n"),
        RolledBack::Already(digest) => {
            format!("{digest} was already the current version of {election}: nothing changed\n")
        }
        RolledBack::Forgiven(digest) => {
            format!(
                "{digest} is no longer rejected in {election}: nodes whose module source points to it may run it \
                     again\n"
            )
        }
    }
}
