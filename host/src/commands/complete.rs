//! Candidates for completions in a shell that only the store knows.

use std::collections::BTreeSet;
use std::time::Duration;

use baton_election::ElectionName;
use tokio::time::timeout;

use super::open_store;
use crate::config::{self, Environment, Layer};
use baton_store::{ModuleStore as _, Store};

/// Longest time that the store may take: the user waits for the shell.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The elections of the store that variables and baton.toml name; none if it cannot be read in time.
#[must_use]
pub fn elections() -> Vec<String> {
    ask(async |store| names(store).await.into_iter().map(|election| election.to_string()).collect())
}

/// The nodes of all these elections; none if they cannot be read in time.
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
    // A request to a store that hangs must not keep the shell.
    runtime.shutdown_background();
    answer
}
