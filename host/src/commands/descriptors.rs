//! Raises the limit on open file descriptors to the number that this process and its runners need.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use baton_runtime::Policy;

/// Descriptors that the host needs for threads, for reading modules, for caches, status, admin connections, and pipes
/// to children.
const HOST: u64 = 450;

/// Descriptors that the host needs for each coordinator: for store connections, host name lookups, code, and the
/// channels to 1 running and 2 prepared runners.
const EACH: u64 = 72;

#[derive(Debug, thiserror::Error)]
#[error(
    "a process of this host needs up to {needed} file descriptors for its coordinators, but the system allows \
     {granted}: raise the limit (LimitNOFILE= in systemd, `ulimit -Hn`), or lower `--max-requests`"
)]
pub(super) struct TooFew {
    needed: u64,
    granted: u64,
}

/// Raises the soft limit on descriptors to the number that the host and each of its runners need. If the hard limit
/// allows, the soft limit also covers `links` links. Each policy comes with its number of shards. Never lowers the
/// limit. Returns the number of links for which there are enough descriptors.
///
/// # Errors
/// [`TooFew`] if the hard limit is too low even without links.
pub(super) fn grant<'a>(policies: impl Iterator<Item = (&'a Policy, u16)>, links: usize) -> Result<usize, TooFew> {
    // `own` is the number that this process needs. `theirs` is the largest number that a runner needs, because runners
    // inherit the limit from this process.
    let (own, theirs) = policies.fold((HOST, 0), |(own, theirs), (policy, shards)| {
        (own + EACH * u64::from(shards), policy.descriptors().max(theirs))
    });
    let needed = own.max(theirs);
    let wanted = needed.max(own.saturating_add(links as u64));
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let granted = maximum.unwrap_or(u64::MAX);
    if current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted.min(granted)), maximum };
        if needed > granted || setrlimit(Resource::Nofile, raised).is_err() {
            return Err(TooFew { needed, granted });
        }
    }
    let room = current.map_or(u64::MAX, |current| current.max(wanted.min(granted))).saturating_sub(own);
    Ok(links.min(usize::try_from(room).unwrap_or(usize::MAX)))
}
