//! `baton state`: reads and changes a coordinator's state.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use baton_election::{ElectionName, HIGHEST_TERM, LeaseState, Snapshot};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{in_time, open_store, read};
use crate::cli::{self, StateAction};
use baton_store::ObjectStore;
use baton_store::state::{self, Document, DocumentError, KEY, LARGEST};
use baton_store::{LeaseStore, Store, StoreUrl};

/// Largest value or export to read, in bytes. In an export, each byte of a value takes at most 6 bytes of JSON.
const LARGEST_INPUT: u64 = 6 * LARGEST + (1 << 20);

pub(super) async fn state(election: &ElectionName, store: &StoreUrl, action: StateAction) -> anyhow::Result<ExitCode> {
    let store = open_store(store)?;
    match action {
        StateAction::List { prefix, json } => list(&saved(&*store, election).await?, &prefix, json)?,
        StateAction::Get { key } => get(election, &saved(&*store, election).await?, &key)?,
        StateAction::Export => export(election, &saved(&*store, election).await?)?,
        StateAction::Put { key, value, force } => {
            check_key(&key)?;
            let value = Bytes::from(value.map_or_else(|| input(None), |value| Ok(value.into_bytes()))?);
            change(&store, election, force, |found| {
                let mut document = found?;
                document.entries.insert(key.clone(), value.clone());
                Ok(document)
            })
            .await?;
        }
        StateAction::Delete { keys, force } => {
            change(&store, election, force, |found| {
                let mut document = found?;
                let missing: Vec<&String> = keys.iter().filter(|key| !document.entries.contains_key(*key)).collect();
                if let Some(key) = missing.first() {
                    bail!("there is no key {key:?}; nothing was deleted");
                }
                keys.iter().for_each(|key| drop(document.entries.remove(key)));
                Ok(document)
            })
            .await?;
        }
        StateAction::Import { from, force } => {
            let import = imported(from.as_deref())?;
            change(&store, election, force, |found| {
                // An import replaces a damaged state.
                let found = match found {
                    Err(DocumentError::Damaged) => Document::default(),
                    found => found?,
                };
                // Keep the higher of the two terms, because a state's term must never decrease. The imported state may
                // come from another store, whose terms are lower.
                Ok(Document { term: found.term.max(import.term), entries: import.entries.clone(), ..found })
            })
            .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the saved state. Fails if there is none, because the user may have misspelled the name of the election.
async fn saved(store: &dyn ObjectStore, election: &ElectionName) -> anyhow::Result<Document> {
    let cannot = || format!("cannot read the state of {election}");
    let read = in_time(state::read(store, election)).await.with_context(cannot)?.with_context(cannot)?;
    read.with_context(|| format!("{election} has no state in this store: no coordinator has saved any yet"))
}

async fn change(
    store: &Arc<dyn Store>,
    election: &ElectionName,
    force: bool,
    change: impl Fn(Result<Document, DocumentError>) -> anyhow::Result<Document>,
) -> anyhow::Result<()> {
    let leases: &dyn LeaseStore = &**store;
    let may_change = async || if force { Ok(()) } else { nobody_leads(leases, election).await };
    let states: &dyn ObjectStore = &**store;
    let change = |found| {
        let changed = change(found)?;
        if changed.size() > LARGEST {
            bail!("the state would have {} bytes, more than the limit of {LARGEST}", changed.size());
        }
        Ok(changed)
    };
    match in_time(state::edit(states, election, may_change, change)).await {
        Ok(changed) => changed.with_context(|| format!("cannot change the state of {election}")),
        Err(late) => {
            bail!(
                "{late}: the state of {election} may or may not have changed; check it with `baton state list \
                 {election}`"
            )
        }
    }
}

async fn nobody_leads(leases: &dyn LeaseStore, election: &ElectionName) -> anyhow::Result<()> {
    let Snapshot::Object { lease, record, .. } = read(leases, election).await? else { return Ok(()) };
    match lease {
        LeaseState::Free
        | LeaseState::Expired
        | LeaseState::Abandoned { .. }
        | LeaseState::Reclaimable { .. }
        | LeaseState::Broken => Ok(()),
        LeaseState::Held | LeaseState::HeldForever | LeaseState::Breaking => {
            let leader = record.and_then(|record| Some(format!(" ({} in term {})", record.node?, record.term)));
            bail!(
                "a coordinator leads {election}{}: stop its hosts first, or use `--force`, which ends its term",
                leader.unwrap_or_default()
            )
        }
    }
}

/// The JSON keys are a public interface.
#[derive(Serialize)]
pub(crate) struct KeyRow<'a> {
    pub key: &'a str,
    pub bytes: usize,
}

fn list(document: &Document, prefix: &str, json: bool) -> anyhow::Result<()> {
    let entries = document.entries.iter().filter(|(key, _)| key.starts_with(prefix));
    let rows: Vec<KeyRow<'_>> = entries.map(|(key, value)| KeyRow { key, bytes: value.len() }).collect();
    if json {
        return Ok(cli::print_json(&rows)?);
    }
    let head = ["KEY".to_owned(), "BYTES".to_owned()];
    let lines = rows.iter().map(|row| [row.key.to_owned(), row.bytes.to_string()]);
    let lines: Vec<_> = std::iter::once(head).chain(lines).collect();
    Ok(cli::print(&cli::columns(&lines))?)
}

fn get(election: &ElectionName, document: &Document, key: &str) -> anyhow::Result<()> {
    let Some(value) = document.entries.get(key) else {
        bail!("the state of {election} has no key {key:?}; `baton state list {election}` lists its keys");
    };
    Ok(cli::print_value(value)?)
}

/// An exported state. This JSON format is a public interface.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a JSON object")]
struct Exported {
    format: String,
    election: String,
    term: u64,
    entries: BTreeMap<String, Value>,
}

const FORMAT: &str = "baton state 1";

/// A value, as text if it is UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Bytes { base64: String },
}

fn export(election: &ElectionName, document: &Document) -> anyhow::Result<()> {
    let value = |bytes: &Bytes| match std::str::from_utf8(bytes) {
        Ok(text) => Value::Text(text.to_owned()),
        Err(_) => Value::Bytes { base64: STANDARD.encode(bytes) },
    };
    let exported = Exported {
        format: FORMAT.to_owned(),
        election: election.to_string(),
        term: document.term,
        entries: document.entries.iter().map(|(key, bytes)| (key.clone(), value(bytes))).collect(),
    };
    Ok(cli::print_json(&exported)?)
}

fn imported(from: Option<&Path>) -> anyhow::Result<Document> {
    let place = from.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string());
    let exported: Exported = serde_json::from_slice(&input(from)?)
        .with_context(|| format!("{place} is not an exported state: create one with `baton state export`"))?;
    if exported.format != FORMAT {
        bail!("{place} has the format {:?}, but this version of baton reads {FORMAT:?}", exported.format);
    }
    if exported.term >= HIGHEST_TERM {
        bail!("{place} has term {}, which is too high for a later term to begin: correct its `term`", exported.term);
    }
    let mut document = Document { term: exported.term, ..Document::default() };
    for (key, value) in exported.entries {
        check_key(&key)?;
        let bytes = match value {
            Value::Text(text) => text.into_bytes(),
            Value::Bytes { base64: text } => {
                STANDARD.decode(&text).with_context(|| format!("{place}: the value of {key:?} is not Base64"))?
            }
        };
        document.entries.insert(key, bytes.into());
    }
    Ok(document)
}

fn check_key(key: &str) -> anyhow::Result<()> {
    if key.is_empty() || key.len() > KEY {
        bail!("a key must have 1 to {KEY} bytes, not {}", key.len());
    }
    Ok(())
}

/// Reads a file or standard input. Fails if the input is larger than any state can be.
fn input(from: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let (mut reader, name): (Box<dyn Read>, String) = match from {
        Some(path) => {
            let file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            (Box::new(file), path.display().to_string())
        }
        None => (Box::new(std::io::stdin().lock()), "standard input".to_owned()),
    };
    let mut bytes = Vec::new();
    reader.by_ref().take(LARGEST_INPUT + 1).read_to_end(&mut bytes).with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > LARGEST_INPUT {
        bail!("{name} has more than {} MiB, but a state has at most {} MiB", LARGEST_INPUT >> 20, LARGEST >> 20);
    }
    Ok(bytes)
}
