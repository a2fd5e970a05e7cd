//! Descriptors: as many as this process needs for its coordinators, and as many as each of their processes may use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use baton_runtime::Policy;

/// What the host itself opens: its threads, the module that it reads, the caches, the status, the admin endpoint's
/// connections, pipes to its children.
const HOST: u64 = 450;

/// What it opens for each coordinator: connections to the store, lookups, code, and the ways to its runners: of one that
/// runs and of two that are ready.
const EACH: u64 = 72;

/// More descriptors are needed than the system grants a process.
#[derive(Debug, thiserror::Error)]
#[error(
    "a process of this host needs up to {needed} file descriptors for its coordinators, but the system allows \
     {granted}: raise the limit (LimitNOFILE= in systemd, `ulimit -Hn`), or lower `--max-files` or `--max-requests`"
)]
pub(super) struct TooFew {
    needed: u64,
    granted: u64,
}

/// Has the system grant as many as coordinators with these policies need, and at least as many as before.
///
/// # Errors
/// [`TooFew`] if it does not.
pub(super) fn grant<'a>(policies: impl Iterator<Item = &'a Policy>) -> Result<(), TooFew> {
    // Of this process, and the most of any runner, which has this one's limit.
    let (own, theirs) =
        policies.fold((HOST, 0), |(own, theirs), policy| (own + EACH, policy.descriptors().max(theirs)));
    let needed = own.max(theirs);
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
