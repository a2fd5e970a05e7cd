//! Shell completion candidates that come from the store.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::ElectionName;
use tokio::time::timeout;

use super::open_store;
use crate::config::{self, Environment, Layer};
use baton_store::{ModuleStore as _, Store};

/// Timeout for the store, short because the user is waiting at the shell prompt.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// Returns the elections in the store that is set in the environment or in `baton.toml`. Returns an empty list if the
/// store cannot be read in time.
#[must_use]
pub fn elections() -> Vec<String> {
    ask(async |store| names(store).await.into_iter().map(|election| election.to_string()).collect())
}

/// Returns the nodes of all elections in the store that [`elections`] reads. Returns an empty list if the store cannot
/// be read in time.
#[must_use]
pub fn nodes() -> Vec<String> {
    ask(async |store| {
        let mut nodes = BTreeSet::new();
        for election in names(store).await {
            nodes.extend(store.announced_nodes(&election).await.unwrap_or_default());
        }
        nodes.into_iter().collect()
    })
}

async fn names(store: &dyn Store) -> Vec<ElectionName> {
    store.elections().await.unwrap_or_default()
}

fn ask(question: impl AsyncFnOnce(&dyn Store) -> Vec<String>) -> Vec<String> {
    let Ok(place) = config::resolve_store(&Layer::new(), &Environment::of_process()) else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let answer = runtime.block_on(async {
        let Ok(store) = open_store(&place) else { return Vec::new() };
        timeout(ANSWERED_WITHIN, question(&*store)).await.unwrap_or_default()
    });
    // Do not wait for a request that hangs, because the wait would block the shell.
    runtime.shutdown_background();
    answer
}
