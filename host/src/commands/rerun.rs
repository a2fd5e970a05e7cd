//! `baton rerun`: lets a finished election run again.

use std::process::ExitCode;

use anyhow::{Context, bail};
use baton_election::{ElectionName, LeaseId, LeaseState, Op, Snapshot, StoreError};

use super::{ask, open_store, read, unheard_of};
use crate::cli;
use baton_store::StoreUrl;

/// Removes the outcome from the record. Acquires the lease to do so, because only the lease holder may write the
/// record.
pub(super) async fn rerun(election: &ElectionName, store: &StoreUrl) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let Snapshot::Object { lease, version, record: Some(mut record) } = read(&*store, election).await? else {
        return Err(unheard_of(election, place, &*store).await);
    };
    if record.outcome.is_none() {
        cli::print(&format!("{election} is not finished: there is nothing to rerun\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    // The flag `released` states that no instance is still running. The value that is chosen here stays correct until
    // the write, because no new instance starts while the record has an outcome.
    record.released = match lease {
        // The last holder set the flag when it released the lease, and the flag is still correct.
        LeaseState::Free => record.released,
        // The holder's host ends the instance before the lease expires. If an operator broke the lease, the instance
        // may still be running.
        LeaseState::Expired => true,
        LeaseState::Broken => false,
        LeaseState::Held | LeaseState::Abandoned { .. } | LeaseState::Reclaimable { .. } => bail!(
            "the lease of {election} is held, and its holder may be about to release it: try again; if this error \
             repeats, check `baton status {election}`"
        ),
        LeaseState::Breaking => bail!("the lease of {election} is being broken: try again in a minute"),
        LeaseState::HeldForever => {
            bail!(
                "a client other than Baton holds the lease of {election} without a time limit: stop that client or run \
                 `baton break-lease {election}`, then try again"
            )
        }
    };
    let mut bits = [0_u8; 16];
    getrandom::fill(&mut bits)?;
    let id = LeaseId::from_random(u128::from_le_bytes(bits));
    let (length, _) = store.lease_range();
    match ask(&*store, election, Op::Acquire { id, length, version: version.clone(), instead_of: None }).await {
        Ok(_) => {}
        Err(StoreError::Held | StoreError::Conflict) => {
            bail!("another host took the lease of {election} first: check `baton status {election}`")
        }
        Err(error) => return Err(error).context("cannot acquire the lease to write the record"),
    }
    record.outcome = None;
    let written = ask(&*store, election, Op::Write { id, version, record }).await;
    // Release the lease even if the write has failed. Otherwise, hosts would have to wait until the lease expires.
    let released = ask(&*store, election, Op::Release { id }).await;
    written.context("cannot write the record")?;
    released.context(
        "the election will run again, but its lease could not be released: hosts wait until the lease expires",
    )?;
    cli::print(&format!("{election} will run again\n"))?;
    Ok(ExitCode::SUCCESS)
}
