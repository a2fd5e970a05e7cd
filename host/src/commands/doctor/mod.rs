//! `baton doctor`: checks that the store and this machine have the properties on which Baton's promises depend. The
//! store's checks are test cases from [`baton_store::conformance`]. The test cases run in [`Scratch`] elections, which
//! the command removes before it ends, even after an error or a signal.

mod latency;
mod machine;
mod scratch;
#[cfg(test)]
mod tests;
mod trial;

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

/// Timeout for a request that is in flight when a signal arrives. The command waits, because the request may create an
/// object that must be removed.
const LAST_RESPONSE_WITHIN: Duration = Duration::from_secs(6);

pub(super) async fn doctor(command: &Doctor) -> anyhow::Result<ExitCode> {
    let store = open_store(&command.examined.store)?;
    let progress = Progress::on_terminal();
    // From here on, signals no longer end the process, so this function must handle them.
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

/// True if a SQLite store does not exist at all. Only then may the command create the store. If only one of the store's
/// files is missing, a new file would hide the loss of data.
async fn is_new_folder(place: &StoreUrl) -> bool {
    let StoreUrl::Sqlite(folder) = place.clone() else { return false };
    // Ignore a timeout: if the disk hangs, the trial reports the problem.
    let is_absent = tokio::task::spawn_blocking(|| !SqliteStore::is_in(folder));
    timeout(ANSWER_WITHIN, is_absent).await.is_ok_and(|is_absent| is_absent.unwrap_or(false))
}

async fn examine(
    command: &Doctor,
    store: Arc<dyn Store>,
    progress: &Progress,
    signals: &mut AllSignals,
) -> anyhow::Result<Diagnosis> {
    let place = &command.examined.store;
    let scratch = Scratch::new(store, trial::elections()).context("cannot get random numbers from the system")?;
    let plan = Plan {
        create: command.examined.create || is_new_folder(place).await,
        advice: Advice::on(place),
        lease: command.examined.lease,
        quick: command.quick,
    };
    let before = Clocks::read();
    let (news, mut news_receiver) = mpsc::unbounded_channel();
    let mut trial = Box::pin(AssertUnwindSafe(trial::try_store(scratch.clone(), plan, news)).catch_unwind());
    let mut state = TrialState::new(place);
    let ended = loop {
        tokio::select! {
            // Handle findings first, so that findings that arrive before a signal still count.
            biased;
            Some(news) = news_receiver.recv() => state.note(news, progress),
            ended = &mut trial => break Some(ended),
            () = signals.next() => break None,
        }
    };
    state.diagnosis.complete = ended.is_some();
    let ended = match ended {
        Some(ended) => ended,
        None => {
            scratch.end();
            tokio::select! {
                ended = timeout(LAST_RESPONSE_WITHIN, &mut trial) => ended.unwrap_or(Ok(())),
                () = signals.next() => Ok(()),
            }
        }
    };
    drop(trial);
    while let Ok(news) = news_receiver.try_recv() {
        state.note(news, progress);
    }
    let TrialState { mut diagnosis, may_exist, .. } = state;
    if may_exist {
        progress.show(&format!("{place}: removing the test elections"));
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

/// All signals that end the command, including SIGHUP, which is sent when a terminal is closed.
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

struct TrialState {
    diagnosis: Diagnosis,
    /// True if a test election may exist and must therefore be removed.
    may_exist: bool,
    place: String,
}

impl TrialState {
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
        Self { diagnosis, may_exist: false, place: place.to_string() }
    }

    fn note(&mut self, news: News, progress: &Progress) {
        let Self { diagnosis, may_exist, place } = self;
        match news {
            News::Trying(what) => progress.show(&format!("{place}: {what}")),
            News::Making(may_be) => *may_exist = may_be,
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
        Ok(()) => Finding::ok("removed", format!("removed the test elections ({}…)", scratch.elections[0])),
        Err(error) => left(scratch, &error.to_string()),
    }
}

fn left(scratch: &Scratch, why: &str) -> Finding {
    let election = &scratch.elections[0];
    Finding::warning(
        "removed",
        format!("the test elections ({election}…) may still exist: {why}"),
        "the test elections do no harm, but `baton status` lists them",
        format!("once their leases have expired, remove everything whose name begins with {election} from the store"),
    )
}

async fn machine(command: &Doctor, progress: &Progress) -> anyhow::Result<Vec<Finding>> {
    let examined = command.examined.clone();
    // If a folder's file server does not respond, this blocks only a thread of the blocking pool.
    let checks = tokio::task::spawn_blocking(move || {
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
    let mut findings = progress.during("checking this machine", checks).await.context("cannot check this machine")?;
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
