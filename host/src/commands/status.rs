//! `baton status`: shows the leaders, once or repeatedly.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use baton_election::{ElectionName, Snapshot, StoreError, Term};
use baton_runtime::InstanceUsage;
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::time::{sleep, timeout};

use super::client::ask_here;
use super::modules::announcements;
use super::{ANSWER_WITHIN, elections, in_time, open_store, read, unheard_of};
use crate::cli::{self, StatusRow};
use crate::signals::Signals;
use baton_base::clock::wall;
use baton_base::untrusted::Reader;
use baton_store::steering::{self, Steering};
use baton_store::{Announcement, ModuleStore as _, Store, StoreUrl};

pub(crate) const NO_LEADER: u8 = 3;

pub(super) async fn status(
    election: Option<ElectionName>,
    store: &StoreUrl,
    json: bool,
    every: Option<Duration>,
) -> anyhow::Result<ExitCode> {
    let (place, store) = (store, open_store(store)?);
    let read_all = async || read_status(election.as_ref(), place, &*store).await;
    match every {
        Some(every) => watch(place, json, every, election.is_none(), read_all).await?,
        None => {
            let StatusReport { rows, unread } = match read_all().await {
                Err(error) if error.is::<NotLedYet>() => {
                    if json {
                        cli::print_status(&[], json, false)?;
                    }
                    cli::print_error(&error.to_string());
                    return Ok(ExitCode::from(NO_LEADER));
                }
                looked => looked?,
            };
            cli::print_status(&rows, json, election.is_none())?;
            for error in &unread {
                cli::print_error(error);
            }
            if !unread.is_empty() {
                return Ok(ExitCode::FAILURE);
            }
            if rows.iter().any(|row| !row.has_leader()) {
                return Ok(ExitCode::from(NO_LEADER));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the status at intervals until a signal arrives or stdout is closed. Keeps running if the store cannot be
/// read.
async fn watch(
    place: &StoreUrl,
    json: bool,
    every: Duration,
    are_grouped: bool,
    read_all: impl AsyncFn() -> anyhow::Result<StatusReport>,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    loop {
        let read = tokio::select! {
            read = read_all() => read.map_err(|error| format!("{error:#}")),
            _ = signals.next() => return Ok(()),
        };
        let read = read.as_ref().map(|StatusReport { rows, unread }| (&**rows, &**unread)).map_err(String::as_str);
        if !cli::print_again(place, wall(), read, json, are_grouped)? {
            return Ok(());
        }
        tokio::select! {
            () = sleep(every) => {}
            _ = signals.next() => return Ok(()),
        }
    }
}

struct StatusReport {
    rows: Vec<StatusRow>,
    /// The errors for elections whose record or suspension could not be read.
    unread: Vec<String>,
}

async fn read_status(
    election: Option<&ElectionName>,
    place: &StoreUrl,
    store: &dyn Store,
) -> anyhow::Result<StatusReport> {
    let names = match election {
        Some(election) if election.shard().is_some() => vec![election.clone()],
        // Listing needs more rights than reading, so list only an election that may be a group.
        Some(election) if read(store, election).await? == Snapshot::Nothing => {
            let all = elections(store).await.context("cannot list the shards")?;
            let shards = all.into_iter().filter(|one| one.shard().is_some() && one.group() == election.as_str());
            [election.clone()].into_iter().chain(shards).collect()
        }
        Some(election) => vec![election.clone()],
        None => elections(store).await.context("cannot list the elections")?,
    };
    let (mut rows, mut unread, mut incarnations) = (Vec::new(), Vec::new(), BTreeSet::new());
    let is_one = election.is_some();
    for election in names {
        let snapshot = match read(store, &election).await {
            Ok(snapshot) => snapshot,
            // A store that does not respond for one election will not respond for the others, either. There may be many
            // elections, so stop here.
            Err(error) if is_one || matches!(error.downcast_ref(), Some(StoreError::Unknown(_))) => return Err(error),
            Err(error) => {
                unread.push(format!("{error:#}"));
                continue;
            }
        };
        if let Snapshot::Object { record: Some(record), .. } = &snapshot {
            incarnations.insert(record.incarnation.clone());
        }
        let Some(row) = StatusRow::of(&election, snapshot) else { continue };
        let steering = in_time(steering::read(store, &election));
        // Ignore errors: if the labels cannot be read, `baton nodes` reports the reason.
        let labels = async {
            let announcement =
                timeout(ANSWER_WITHIN, store.announced(&election, row.node.as_deref()?)).await.ok()?.ok()??;
            Some(Announcement::decode(&announcement)?.labels)
        };
        let (steering, labels) = tokio::join!(steering, labels);
        let steering = steering.map_err(anyhow::Error::new).and_then(|read| read.map_err(anyhow::Error::new));
        let steering = steering.unwrap_or_else(|why| {
            unread.push(format!("cannot read whether {election} is suspended: {why}"));
            Steering::default()
        });
        let suspended = steering.suspended.map(Into::into);
        rows.push(StatusRow { suspended, labels: labels.unwrap_or_default(), ..row });
    }
    if let (Some(election), true) = (election, rows.is_empty()) {
        let waiting = announcements(store, election).await?.len();
        return Err(match waiting {
            0 => unheard_of(election, place, store).await,
            waiting => NotLedYet { election: election.clone(), waiting }.into(),
        });
    }
    for ElectionHere { election, term, usage } in elections_here(incarnations).await {
        if let Some(row) = rows.iter_mut().find(|row| row.election == election && row.term == Some(term)) {
            row.in_use = usage;
        }
    }
    Ok(StatusReport { rows, unread })
}

#[derive(Debug, thiserror::Error)]
#[error(
    "no node has led {election} yet (waiting nodes: {waiting}): `baton nodes {election}` shows whether a module is \
     ready"
)]
struct NotLedYet {
    election: ElectionName,
    waiting: usize,
}

/// An election, as reported by the admin API of a host on this machine. Contains only the fields that cannot be read
/// from the store.
#[derive(Deserialize)]
struct ElectionHere {
    election: String,
    term: Term,
    usage: Option<InstanceUsage>,
}

/// The fuzzing target for the responses of hosts on this machine, listed in [`crate::untrusted`].
pub(crate) const READER: Reader =
    Reader { name: "status", read: |bytes| drop(serde_json::from_slice::<Vec<ElectionHere>>(bytes)) };

/// Maximum number of hosts to query at once. Each query needs a file descriptor.
const HOSTS_AT_ONCE: usize = 64;

/// Queries the hosts with these incarnations. Skips hosts that are on other machines, belong to other users, or respond
/// too late.
async fn elections_here(incarnations: BTreeSet<String>) -> Vec<ElectionHere> {
    let ask = async |incarnation: String| {
        let answer = timeout(HERE_WITHIN, ask_here(&incarnation, "/v1/elections")).await.ok()?.ok()?;
        serde_json::from_slice::<Vec<ElectionHere>>(&answer).ok()
    };
    let answers = futures::stream::iter(incarnations).map(ask).buffer_unordered(HOSTS_AT_ONCE);
    answers.filter_map(async |answer| answer).collect::<Vec<_>>().await.into_iter().flatten().collect()
}

const HERE_WITHIN: Duration = Duration::from_secs(1);
