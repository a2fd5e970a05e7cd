//! `baton doctor`: whether store and machine keep what Baton's promises rest on.
//!
//! The store is tried on a [`Scratch`] election, and each finding is told as it is made. However that ends, and whatever
//! signal comes, the election is removed before the command ends.

mod expiry;
mod latency;
mod leases;
mod machine;
mod objects;
mod scratch;
#[cfg(test)]
mod tests;
mod trial;
mod verdict;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::FutureExt as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{ANSWER_WITHIN, inspect, open_store};
use crate::cli::{self, Diagnosis, Doctor, Finding, Level, Progress};
use crate::signals::Signals;
use baton_store::{SqliteStore, Store, StoreUrl};
use machine::Clocks;
use scratch::Scratch;
use trial::{Advice, News, Plan};

/// How long a request that is under way is waited for when the command is told to end: its answer could make an object
/// that nobody removes.
const LAST_ANSWER: Duration = Duration::from_secs(6);

pub(super) async fn doctor(command: &Doctor) -> anyhow::Result<ExitCode> {
    let store = open_store(&command.examined.store)?;
    let progress = Progress::on_terminal();
    // From here on no signal ends the process by itself.
    let mut signals = AllSignals::listen()?;
    let mut diagnosis = examine(command, store, &progress, &mut signals).await?;
    if diagnosis.complete {
        tokio::select! {
            findings = machine(command, &progress) => diagnosis.findings.extend(findings?),
            () = signals.next() => diagnosis.complete = false,
        }
    }
    let is_whole = diagnosis.complete;
    diagnosis.passed = is_whole && diagnosis.findings.iter().all(|finding| finding.level < Level::Problem);
    progress.clear();
    cli::print_diagnosis(&diagnosis, command.json)?;
    Ok(if diagnosis.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a store of SQLite is yet to be made. One that lacks a file is not: what was in that would be gone for good.
async fn is_new_folder(place: &StoreUrl) -> bool {
    let StoreUrl::Sqlite(folder) = place.clone() else { return false };
    // What a disk that hangs keeps from being tried, the trial says.
    let looked = tokio::task::spawn_blocking(|| !SqliteStore::is_in(folder));
    timeout(ANSWER_WITHIN, looked).await.is_ok_and(|looked| looked.unwrap_or(false))
}

/// Tries the store, and looks how the clocks go meanwhile.
async fn examine(
    command: &Doctor,
    store: Arc<dyn Store>,
    progress: &Progress,
    signals: &mut AllSignals,
) -> anyhow::Result<Diagnosis> {
    let place = &command.examined.store;
    let scratch = Scratch::new(store).context("cannot get random numbers from the system")?;
    let plan = Plan {
        create: command.examined.create || is_new_folder(place).await,
        advice: Advice::on(place),
        lease: command.examined.lease,
        quick: command.quick,
    };
    let before = Clocks::read();
    let (news, mut heard) = mpsc::unbounded_channel();
    let mut trial = Box::pin(AssertUnwindSafe(trial::try_store(scratch.clone(), plan, news)).catch_unwind());
    let mut heard_of = Heard::new(place);
    let ended = loop {
        tokio::select! {
            // What was found before a signal counts.
            biased;
            Some(news) = heard.recv() => heard_of.note(news, progress),
            ended = &mut trial => break Some(ended),
            () = signals.next() => break None,
        }
    };
    heard_of.diagnosis.complete = ended.is_some();
    let ended = match ended {
        Some(ended) => ended,
        None => {
            scratch.end();
            tokio::select! {
                ended = timeout(LAST_ANSWER, &mut trial) => ended.unwrap_or(Ok(())),
                () = signals.next() => Ok(()),
            }
        }
    };
    // What it asks now is given up.
    drop(trial);
    while let Ok(news) = heard.try_recv() {
        heard_of.note(news, progress);
    }
    let Heard { mut diagnosis, is_made, .. } = heard_of;
    if is_made {
        progress.show(&format!("{place}: removing the test election"));
        diagnosis.findings.push(tokio::select! {
            finding = remove(&scratch) => finding,
            () = signals.next() => left(&scratch, "the removal was interrupted"),
        });
    }
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
    diagnosis.findings.push(Clocks::read().since(before));
    Ok(diagnosis)
}

/// What tells the command to end: also that the terminal is gone.
struct AllSignals {
    signals: Signals,
    hangup: Signal,
}

impl AllSignals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self { signals: Signals::listen()?, hangup: signal(SignalKind::hangup())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.signals.next() => {}
            Some(()) = self.hangup.recv() => {}
        }
    }
}

/// What was heard of the trial so far.
struct Heard {
    diagnosis: Diagnosis,
    /// Whether there may be something to be removed.
    is_made: bool,
    place: String,
}

impl Heard {
    fn new(place: &StoreUrl) -> Self {
        let diagnosis = Diagnosis {
            store: place.to_string(),
            passed: false,
            complete: true,
            latency: None,
            recommended_lease: None,
            free_after_ms: None,
            findings: Vec::new(),
        };
        Self { diagnosis, is_made: false, place: place.to_string() }
    }

    fn note(&mut self, news: News, progress: &Progress) {
        let Self { diagnosis, is_made, place } = self;
        match news {
            News::Trying(what) => progress.show(&format!("{place}: {what}")),
            News::Making(may_be) => *is_made = may_be,
            News::Found(finding) => diagnosis.findings.push(finding),
            News::Renewed(latency, recommended) => {
                diagnosis.latency = Some(latency);
                diagnosis.recommended_lease = recommended.map(|lease| format!("{}s", lease.as_secs()));
            }
            News::FreeAfter(time) => diagnosis.free_after_ms = Some(time.as_millis() as f64),
        }
    }
}

async fn remove(scratch: &Scratch) -> Finding {
    match scratch.remove().await {
        Ok(()) => Finding::ok("removed", format!("removed the test election {}", scratch.election)),
        Err(error) => left(scratch, &error.to_string()),
    }
}

fn left(scratch: &Scratch, why: &str) -> Finding {
    let election = &scratch.election;
    Finding::warning(
        "removed",
        format!("the test election {election} may still exist: {why}"),
        "`baton status` lists the test election, which does no harm",
        format!("once its lease has expired, remove everything under {election}/ from the store"),
    )
}

/// Looks at this machine, and at the module if one was named.
async fn machine(command: &Doctor, progress: &Progress) -> anyhow::Result<Vec<Finding>> {
    let examined = command.examined.clone();
    // A folder on a server that does not answer keeps a thread, and not the command.
    let looked = tokio::task::spawn_blocking(move || {
        let mut findings = vec![
            machine::time_namespace(),
            machine::state_folder(examined.state.as_deref()),
            machine::cache(&examined),
            machine::descriptors(),
            machine::file_events(),
            machine::isolation(),
        ];
        if let StoreUrl::Sqlite(folder) = &examined.store {
            findings.push(machine::store_folder(folder));
        }
        findings
    });
    let mut findings = progress.during("checking this machine", looked).await.context("cannot check this machine")?;
    if let Some(module) = &command.module {
        findings.push(match inspect(module, command.examined.compile_timeout).await {
            Ok((inspection, _)) if inspection.runs => Finding::ok(
                "module",
                format!("{} runs here, and was compiled in {} ms", inspection.module, inspection.compile_ms),
            ),
            Ok((inspection, _)) => no_module(format!("{}: {}", inspection.module, inspection.problems.join("; "))),
            Err(error) => no_module(format!("{error:#}")),
        });
    }
    Ok(findings)
}

fn no_module(found: String) -> Finding {
    Finding::problem("module", found, "a node like this one cannot run it", "for details, use `baton check`")
}
