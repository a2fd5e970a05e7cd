//! `baton push`: publishes a module.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use baton_election::{ElectionName, StoreError};
use bytes::Bytes;
use tokio::time::timeout;

use super::modules::{announcements, now};
use super::{ANSWER_WITHIN, TRIES, in_time, inspect, open_store, patiently};
use crate::cli::{self, Progress, Push};
use baton_base::clock::{rfc3339, wall};
use baton_base::shell::quoted;
use baton_modules::{EditError, ModuleSource, Publication, Pushed};
use baton_modules::{check_election, edit_versions};
use baton_node::links;
use baton_runtime::{FileError, read_file};
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore};
use baton_store::{LeaseStore, StoreUrl};

/// Largest signature file to accept, in bytes. A minisign signature with short comments takes about 350 bytes.
const LARGEST_SIGNATURE: u64 = 4 << 10;
/// Slowest upload to support, in bytes per second. A transfer's timeout is its size divided by this rate, plus
/// [`ANSWER_WITHIN`].
const SLOWEST: u64 = 100_000;
/// Maximum number of attempts per transfer, and of uploads per module.
const SENDINGS: u32 = 3;

/// Publishes a module: first stores it, and then references it in the version list. In this order, the list never
/// references a missing module, even if the push is killed in between.
pub(super) async fn push(push: &Push) -> anyhow::Result<ExitCode> {
    let (inspection, module) = inspect(&push.module, push.compile_timeout).await?;
    if !inspection.runs {
        cli::print_inspection(&inspection, &[], false)?;
        return Ok(ExitCode::FAILURE);
    }
    let signature = signature(push)?;
    publish(push, Digest::of(&module), module, signature).await
}

async fn publish(push: &Push, digest: Digest, module: Bytes, signature: Option<String>) -> anyhow::Result<ExitCode> {
    let store = open_store(&push.store)?;
    if push.create || matches!(push.store, StoreUrl::Sqlite(_)) {
        let leases: &dyn LeaseStore = &*store;
        let created = patiently(TRIES, async || leases.create().await).await;
        created.context("cannot create the store's folder or container")?;
    }
    let modules: &dyn ObjectStore = &*store;
    let what = format!("sending {:.1} MiB to {}", module.len() as f64 / f64::from(1 << 20), push.store);
    Progress::on_terminal().during(&what, store_module(modules, &digest, &module)).await?;

    let (election, size) = (&push.election, module.len() as u64);
    let new = Publication { digest, size, by: push.by.clone(), at: rfc3339(wall()), signature };
    let edit = edit_versions(modules, election, |control| {
        control.push(new.clone()).map_err(|error| anyhow::Error::from(EditError::from(error)))
    });
    let pushed = match in_time(edit).await {
        Ok(pushed) => pushed.with_context(|| format!("cannot make {digest} the current version of {election}"))?,
        Err(late) => bail!(
            "{late}: {digest} may or may not be the current version of {election}; check `baton modules {election}`, \
             or push again"
        ),
    };
    links::call(&push.store, election).await;
    // `baton prune` may have removed the module before the version list referenced it. In that case, store it again.
    if get(modules, &digest, 1).await?.is_none() {
        store_module(modules, &digest, &module).await?;
    }
    // Show the store, so that a user who forgot `--store` notices the mistake.
    let place = format!("{election} on {}", push.store);
    let news = match pushed {
        Pushed::Current => format!("is now the current version of {place}"),
        Pushed::SignedAnew => format!("was already the current version of {place}: only its signature is new"),
        Pushed::Already => format!("was already the current version of {place}: nothing changed"),
    };
    cli::print(&format!(
        "{digest} {news}\n`baton modules {election}` shows which nodes run it, and the outcome of its probation\n"
    ))?;
    if let Some(warning) = nodes_with_another_source(modules, election).await {
        // This is only a warning, because the push has succeeded.
        cli::say(&format!("warning: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a warning that lists the nodes with another module source, if any. These nodes ignore pushed versions.
async fn nodes_with_another_source(store: &dyn ObjectStore, election: &ElectionName) -> Option<String> {
    let here = ModuleSource::Published(election.clone()).to_string();
    let announcements = match announcements(store, election).await {
        Ok(announcements) => announcements,
        Err(error) => return Some(format!("cannot tell whether all nodes follow pushed versions: {error:#}")),
    };
    let is_elsewhere = |node: &&Announcement| !node.source.is_empty() && node.source != here && node.is_fresh(now());
    let others: Vec<String> =
        announcements.iter().filter(is_elsewhere).map(|node| format!("{} ({})", node.node, node.source)).collect();
    (!others.is_empty()).then(|| {
        format!(
            "these nodes of {election} have another module source, and ignore pushed versions until you start them \
             with `baton run {}`: {}",
            quoted(&here),
            others.join(", ")
        )
    })
}

/// Stores the module and reads it back. If the stored copy is damaged, removes it and stores the module again.
async fn store_module(store: &dyn ObjectStore, digest: &Digest, module: &Bytes) -> anyhow::Result<()> {
    let size = module.len() as u64;
    for _ in 0..SENDINGS {
        let put = transfer(size, async || store.put_module(digest, module.clone()).await).await;
        put.with_context(|| format!("cannot store {digest}"))?;
        match get(store, digest, size + 1).await? {
            Some(stored) if stored == module => return Ok(()),
            Some(_) => {
                let removed = patiently(TRIES, async || store.remove_module(digest, None).await).await;
                removed.with_context(|| format!("{digest} is damaged in the store, and cannot be replaced"))?;
            }
            None => {}
        }
    }
    bail!("the store does not keep {digest}: after {SENDINGS} uploads, the module is still missing or damaged")
}

async fn get(store: &dyn ObjectStore, digest: &Digest, limit: u64) -> anyhow::Result<Option<Bytes>> {
    let read = transfer(limit, async || store.get_module(digest, limit).await).await;
    read.with_context(|| format!("cannot read {digest} back from the store"))
}

/// Sends an idempotent request that transfers `size` bytes, and retries it while its outcome is unknown.
async fn transfer<T>(size: u64, request: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let within = ANSWER_WITHIN + Duration::from_secs(size / SLOWEST);
    let late = || Err(StoreError::Unknown(format!("the store did not answer within {within:?}")));
    let mut answer = late();
    for _ in 0..SENDINGS {
        answer = timeout(within, request()).await.unwrap_or_else(|_| late());
        if !matches!(answer, Err(StoreError::Unknown(_))) {
            break;
        }
    }
    answer
}

/// Reads the signature as text. Does not verify it, because only the nodes have the keys.
fn signature(push: &Push) -> anyhow::Result<Option<String>> {
    let beside = || {
        let mut beside = push.module.clone().into_os_string();
        beside.push(".minisig");
        PathBuf::from(beside)
    };
    let path = push.signature.clone().unwrap_or_else(beside);
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if push.signature.is_none() && is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let none = || format!("{} is not a minisign signature: create one with `minisign -Sm MODULE`", path.display());
    let text = String::from_utf8(bytes).with_context(none)?;
    let signature = minisign_verify::Signature::decode(&text).with_context(none)?;
    // Reject a signature for another election, because nodes that require signatures would reject it, too.
    check_election(&signature, Some(&push.election))
        .with_context(|| format!("cannot push the signature {}", path.display()))?;
    Ok(Some(text))
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    match read_file(path, LARGEST_SIGNATURE) {
        Ok(bytes) => Ok(bytes),
        Err(FileError::NotRegular) => bail!("{} is a folder or a device, not a regular file", path.display()),
        Err(FileError::TooLong(_)) => {
            bail!("{} has more than {LARGEST_SIGNATURE} bytes: it is not a signature", path.display())
        }
        Err(FileError::Unreadable(error)) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}
