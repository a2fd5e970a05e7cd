//! Descriptors: as many as the coordinators may use, so that none of them takes those of another, or of a renewal.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Coordinator;

/// What the host itself opens: its threads, the module that it reads, the caches, the status, pipes to its children.
const HOST: u64 = 200;

/// What it opens for each coordinator: connections to the store, those that wait for its next request, lookups.
const EACH: u64 = 48;

/// The coordinators may use more descriptors than the system grants this process.
#[derive(Debug, thiserror::Error)]
#[error(
    "the coordinators may have so many files and requests open that this process needs up to {needed} descriptors, and \
     the system grants it {granted}: grant more (LimitNOFILE= in systemd, `ulimit -Hn`), or lower --max-files or \
     --max-requests"
)]
pub(super) struct TooFew {
    needed: u64,
    granted: u64,
}

/// Has the system grant as many as the coordinators may use, and at least as many as before.
///
/// # Errors
/// [`TooFew`] if it does not.
pub(super) fn grant(coordinators: &[Coordinator]) -> Result<(), TooFew> {
    let needed = coordinators.iter().map(of).fold(HOST, u64::saturating_add);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let granted = maximum.unwrap_or(u64::MAX);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = Rlimit { current: Some(needed), maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) if needed <= granted => Ok(()),
        _ => Err(TooFew { needed, granted }),
    }
}

fn of(Coordinator { limits, max_requests, folders, .. }: &Coordinator) -> u64 {
    [limits.files, *max_requests as u64, folders.len() as u64, EACH].into_iter().fold(0, u64::saturating_add)
}
