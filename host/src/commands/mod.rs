//! Carries out commands. This module connects the parts of the host.

mod client;
mod complete;
mod descriptors;
mod dev;
mod doctor;
mod follow;
mod history;
mod listener;
mod modules;
mod new;
mod prune;
mod push;
mod rerun;
mod run;
mod state;
mod status;
mod steering;
mod token;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use baton_election::{ElectionName, Op, Reply, Snapshot, StoreError};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};

use crate::cli::{self, Command, Progress, WRONG_CONFIGURATION};
use crate::config::CheckSettings;
use baton_base::clock::wall;
use baton_base::escape::escape;
use baton_modules::{Compiler, PrepareError, compile_for_parent};
use baton_node::schedule::{due_times, local_time};
use baton_runtime::{Inspection, make_runners, read_module, run_instance};
use baton_store::{ANNOUNCEMENTS_AT_ONCE, LeaseStore, ModuleStore as _, ObjectStore, Store, StoreUrl};
pub use complete::{elections as complete_elections, nodes as complete_nodes};
pub(crate) use follow::READER as SENT_EVENTS;
#[cfg(test)]
pub(crate) use state::KeyRow;
pub(crate) use status::READER as STATUS;

const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of attempts at a request whose outcome stays unknown, and the pause between attempts.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// Carries out a command.
#[must_use]
pub fn run(command: Command) -> ExitCode {
    let result = match command {
        Command::PrintConfig(table) => printed(cli::print(&table)),
        Command::Run(config) => run::run(&config),
        Command::Dev(development) => dev::dev(*development),
        Command::Status { election, store, json, watch } => block_on(status::status(election, &store, json, watch)),
        Command::History { election, store, limit, json } => block_on(history::history(&election, &store, limit, json)),
        Command::Stream(args) => block_on(follow::follow(&args)),
        Command::Check { module, settings, json } => block_on(check(&module, &settings, json)),
        Command::Doctor(command) => block_on(doctor::doctor(&command)),
        Command::Push(command) => block_on(push::push(&command)),
        Command::Modules { election, store, json } => block_on(modules::modules(&election, &store, json)),
        Command::Rollback { election, digest, store } => {
            block_on(modules::rollback(&election, &store, digest.as_ref()))
        }
        Command::Prune { elections, keep, dry_run, store } => block_on(prune::prune(&elections, &store, keep, dry_run)),
        Command::State { election, store, action } => block_on(state::state(&election, &store, action)),
        Command::Steer(asked) => block_on(steering::steer(asked)),
        Command::Nodes { election, store, json } => block_on(steering::nodes(&election, &store, json)),
        Command::Schema => printed(cli::print_json(&cli::schema())),
        Command::Completions(shell) => printed(cli::completions(shell).and_then(|script| cli::print_bytes(&script))),
        Command::Manual(None) => printed(cli::manual().and_then(|page| cli::print_bytes(&page))),
        Command::Manual(Some(folder)) => manuals(&folder),
        Command::CompileModule(assignment) => Ok(compile_for_parent(assignment)),
        Command::MakeRunners { parent } => Ok(make_runners(parent, run_instance)),
        Command::New { name, lang } => new::new(&name, lang),
        Command::Token { file } => token::token(file.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Rerun { election, store } => block_on(rerun::rerun(&election, &store)),
    };
    result.unwrap_or_else(|error| {
        let status = if error.is::<WrongConfiguration>() { WRONG_CONFIGURATION } else { 1 };
        // Escape each line, because the error may quote untrusted text.
        let lines: Vec<_> = format!("{error:#}").lines().map(|line| escape(line).into_owned()).collect();
        // If stderr is closed, the exit status still reports the failure.
        let _ = writeln!(std::io::stderr(), "error: {}", lines.join("\n"));
        ExitCode::from(status)
    })
}

/// A configuration error that is found after the settings have been parsed. The process exits with the status for
/// configuration errors.
#[derive(Debug, thiserror::Error)]
#[error("wrong configuration: {0:#}")]
struct WrongConfiguration(anyhow::Error);

impl WrongConfiguration {
    fn new(error: impl Into<anyhow::Error>) -> Self {
        Self(error.into())
    }
}

fn printed(result: std::io::Result<()>) -> anyhow::Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::from)
}

fn manuals(folder: &Path) -> anyhow::Result<ExitCode> {
    let written = cli::write_manuals(folder);
    written.with_context(|| format!("cannot write the manual pages into {}", folder.display()))?;
    printed(cli::print(&format!("the manual pages are in {}\n", folder.display())))
}

async fn check(module: &Path, settings: &CheckSettings, json: bool) -> anyhow::Result<ExitCode> {
    let inspection = match inspect(module, settings.compile_timeout).await {
        Ok((inspection, _)) => inspection,
        // Print the error to stdout, because callers that request JSON read stdout.
        Err(error) if json => {
            let module = module.display().to_string();
            let report = serde_json::json!({ "module": module, "runs": false, "problems": [format!("{error:#}")] });
            cli::print_json(&report)?;
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error),
    };
    let next_runs = settings.schedule.iter().flat_map(|schedule| {
        let due = due_times(schedule, wall()).take(5);
        due.map(|due| local_time(schedule, due)).collect::<Vec<_>>()
    });
    cli::print_inspection(&inspection, &next_runs.collect::<Vec<_>>(), json)?;
    Ok(if inspection.runs { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn inspect(module: &Path, compile_timeout: Duration) -> anyhow::Result<(Inspection, Bytes)> {
    let bytes = Bytes::from(read_module(module)?);
    let name = module.display().to_string();
    let compiler = Compiler::default();
    let inspection = baton_modules::inspect(&compiler, &name, &bytes, compile_timeout);
    match Progress::on_terminal().during(&format!("compiling {name}"), inspection).await {
        Ok(inspection) => Ok((inspection, bytes)),
        // The reason already contains the module's name.
        Err(PrepareError::Refused(why)) => Err(anyhow::Error::msg(why)),
        Err(error) => Err(anyhow::Error::new(error).context(format!("cannot check the module {name}"))),
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(command);
    // Do not wait for a request that hangs, because the wait would delay the exit.
    runtime.shutdown_background();
    result
}

fn open_store(url: &StoreUrl) -> anyhow::Result<Arc<dyn Store>> {
    Ok(baton_store::open(url).map_err(WrongConfiguration::new)?)
}

/// Sends a request. Retries a request whose outcome is unknown, except a write, which may already have taken effect.
async fn ask(store: &dyn LeaseStore, election: &ElectionName, op: Op) -> Result<Reply, StoreError> {
    let tries = if matches!(op, Op::Write { .. } | Op::Create { .. }) { 1 } else { TRIES };
    patiently(tries, async || store.request(election, op.clone()).await).await
}

async fn elections(store: &dyn LeaseStore) -> Result<Vec<ElectionName>, StoreError> {
    let mut elections = patiently(TRIES, async || store.elections().await).await?;
    // A store sorts by text. Sort the shards of a group by number.
    elections.sort();
    Ok(elections)
}

async fn patiently<T>(tries: u32, request: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    // Keep the store's last error: if the request times out, this error says more than the timeout itself.
    let mut last_error = None;
    let answer = async {
        for _ in 1..tries {
            match request().await {
                Err(error @ StoreError::Unknown(_)) => last_error = Some(error),
                answer => return answer,
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        request().await
    };
    let answer = in_time(answer).await;
    answer.unwrap_or_else(|late| Err(last_error.unwrap_or_else(|| StoreError::Unknown(late.to_string()))))
}

/// Reads the announcements of an election's nodes. Each request has its own timeout, because there may be thousands of
/// nodes.
async fn announced(store: &dyn ObjectStore, election: &ElectionName) -> Result<Vec<(String, Bytes)>, StoreError> {
    let nodes = patiently(TRIES, async || store.announced_nodes(election).await).await?;
    let contents = futures::stream::iter(nodes).map(|node| async move {
        let content = patiently(TRIES, async || store.announced(election, &node).await).await?;
        // `None` means that the node has withdrawn its announcement since the listing.
        Ok(content.map(|content| (node, content)))
    });
    contents.buffered(ANNOUNCEMENTS_AT_ONCE).try_filter_map(async |content| Ok(content)).try_collect().await
}

#[derive(Debug, thiserror::Error)]
#[error("the store did not answer within {ANSWER_WITHIN:?}")]
struct Late;

async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, Late> {
    tokio::time::timeout(ANSWER_WITHIN, answer).await.map_err(|_| Late)
}

const NAMED: usize = 10;

/// Creates the error for an election that is not in the store: its name may be misspelled, or `--store` may be wrong.
async fn unheard_of(election: &ElectionName, place: &StoreUrl, store: &dyn LeaseStore) -> anyhow::Error {
    // If the elections cannot be listed, the error message omits them.
    let there = elections(store).await.unwrap_or_default();
    if let Some(shard) = there.iter().find(|one| *one != election && one.group() == election.as_str()) {
        return anyhow::anyhow!("{election} on {place} has shards: name one of them, such as {shard}");
    }
    let there = there_is(&there.iter().map(ElectionName::as_str).collect::<Vec<_>>());
    anyhow::anyhow!(
        "there is no election {election} on {place}: no host has contended for it yet{there}; check `--store`"
    )
}

fn there_is(names: &[&str]) -> String {
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    if names.is_empty() { named } else { format!("; the store has {named}{more}") }
}

async fn read(store: &dyn LeaseStore, election: &ElectionName) -> anyhow::Result<Snapshot> {
    match ask(store, election, Op::Read).await.with_context(|| format!("cannot read the election {election}"))? {
        Reply::Read(snapshot) => Ok(snapshot),
        other => anyhow::bail!("the store answered a read with {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_election_error_lists_a_bounded_number_of_names() {
        assert_eq!(there_is(&[]), "");
        assert_eq!(there_is(&["billing", "fleet"]), "; the store has billing, fleet");
        assert_eq!(there_is(&["a"; NAMED + 2]), format!("; the store has {}a and 2 more", "a, ".repeat(NAMED - 1)));
    }
}
