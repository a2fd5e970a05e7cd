//! Candidates for shell completions that need the store.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::ElectionName;
use tokio::time::timeout;

use super::open_store;
use crate::config::{self, Environment, Layer};
use baton_store::{ModuleStore as _, Store};

/// Longest wait for the store. The user waits at the shell's prompt.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The elections of the store that the environment and baton.toml name. Empty if the store cannot be read in time.
#[must_use]
pub fn elections() -> Vec<String> {
    ask(async |store| names(store).await.into_iter().map(|election| election.to_string()).collect())
}

/// The nodes of all elections of that store. Empty if the store cannot be read in time.
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
    // A request that hangs must not block the shell.
    runtime.shutdown_background();
    answer
}
