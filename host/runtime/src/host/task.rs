//! The task that supervises one instance. Waits until the instance has ended, and determines how it ended.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_election::{End, ScheduledRun, Term, Time};
use bytes::Bytes;
use futures::FutureExt as _;
use rustix::io::Errno;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::instance::{Gone, InstanceControl, InstanceEvent, RunnerHandle, StopNotice, Successor};
use super::launch::Launcher;
use super::requests::InstanceLoop;
use crate::SecretSource;
use crate::host::process::Status;
use crate::host::runners::{Ready, RunnerError, describe_exit};
use crate::module::Module;
use crate::wire::output::{Notice, Output};
use crate::wire::protocol::{Ended, How, Messages, StartParams, ToRunner, frame};
use baton_store::state::{Claim, ClaimError, Claimant};

/// Delay between the start of an instance and the creation of the next runner, so that the new instance gets the CPUs
/// first.
const REFILL_AFTER: Duration = Duration::from_millis(20);

/// Delay between an accepted SIGKILL and [`InstanceEvent::Dying`]. Most processes exit within a few milliseconds, and
/// the host then does not report them as dying.
const LINGERS: Duration = Duration::from_millis(50);

pub(super) struct InstanceTask {
    pub(super) launcher: Launcher,
    pub(super) module: Module,
    pub(super) term: Term,
    /// The scheduled run that the instance carries out, if the election has a schedule.
    pub(super) run: Option<ScheduledRun>,
    pub(super) control: InstanceControl,
    /// Claims the state before the start, if the module uses state.
    pub(super) states: Option<Claimant>,
    pub(super) succeeded: watch::Receiver<Option<Successor>>,
    pub(super) stop: watch::Sender<Option<StopNotice>>,
    pub(super) stopped: watch::Receiver<Option<StopNotice>>,
    pub(super) tell: mpsc::Sender<InstanceEvent>,
    pub(super) output: Arc<dyn Output>,
    pub(super) started: Time,
    /// Number of dropped lines reported so far.
    pub(super) dropped: AtomicU64,
}

/// A runner that was given an instance, and the part of the start message that has not been written yet.
pub(super) struct Begun {
    pub(super) runner: Runner,
    pub(super) unwritten: Vec<u8>,
}

pub(super) struct Runner {
    pub(super) process: crate::host::process::Process,
    pub(super) to: pipe::Sender,
    pub(super) from: Messages<pipe::Receiver>,
}

pub(super) enum ExitCause {
    Ended(Box<Ended>),
    /// The runner closed its pipe: the runner was killed, or exited without a report.
    Silent,
    /// The instance could not start, or cannot continue.
    Cannot(End),
    /// The runner violated the protocol.
    Broken(String),
}

impl InstanceTask {
    /// Starts the instance at once if a runner is ready, there is no state to claim, and no secret must be read from a
    /// file. Otherwise returns `None`.
    pub(super) fn begin_at_once(&self) -> Option<Begun> {
        let waits = self.states.is_some() || self.launcher.secrets.iter().any(|secret| secret.file().is_some());
        if waits {
            return None;
        }
        let secrets = self.launcher.secrets.iter().map(read_secret).collect::<Result<_, _>>().ok()?;
        let ready = self.launcher.runners.take_ready(&self.module)?;
        self.begin(ready, secrets, None).ok()
    }

    /// Gives the instance to a runner, and writes as much of the start message as fits into the pipe.
    fn begin(
        &self,
        ready: Ready,
        secrets: Vec<(String, String)>,
        entries: Option<BTreeMap<String, Bytes>>,
    ) -> io::Result<Begun> {
        let Ready { process, to, from, page, tally, .. } = ready;
        let Launcher { election, node, arguments, config, running, runners, .. } = &self.launcher;
        let beginning = StartParams {
            term: self.term,
            election: election.to_string(),
            node: node.clone(),
            run: self.run.map(Into::into),
            shard: (election.shard().unwrap_or(0).into(), self.launcher.shards.into()),
            arguments: arguments.clone(),
            environment: self.launcher.environment(&self.module, self.term, self.run, &secrets),
            config: config.iter().cloned().chain(secrets).collect(),
            entries,
        };
        let mut message = frame(&ToRunner::Start(Box::new(beginning)))?;
        running.add(election, self.term, runners.policy(), &tally, process.pid(), &self.control.gate);
        let runner_handle = RunnerHandle { handle: process.handle().clone(), page, tally };
        // Cannot fail: an instance has only one runner.
        let _ = self.control.runner.set(runner_handle);
        self.control.open();
        if self.control.was_killed() {
            self.control.kill();
        }
        // If the pipe is full, the instance's task writes the rest later. If the pipe is closed, the task notices this
        // later.
        let written = rustix::io::write(&to, &message).unwrap_or(0);
        message.drain(..written);
        runners.refill(&self.module, REFILL_AFTER);
        Ok(Begun { runner: Runner { process, to, from }, unwritten: message })
    }

    pub(super) async fn run(self, begun: Option<Begun>) -> Gone {
        let mut until_gone = pin!(self.until_gone(begun));
        tokio::select! {
            biased;
            gone = &mut until_gone => return gone,
            () = self.lingers() => {}
        }
        // The channel has room, so sending fails only if the receiver was dropped.
        let _ = self.tell.try_send(InstanceEvent::Dying);
        until_gone.await
    }

    async fn lingers(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.control.dying.subscribe().wait_for(|dying| *dying).await;
        sleep(LINGERS).await;
    }

    async fn until_gone(&self, begun: Option<Begun>) -> Gone {
        let mut runner = None;
        // Unwind safe: no value that a panic may leave inconsistent is used afterwards.
        let cause = AssertUnwindSafe(self.until_exit(begun, &mut runner)).catch_unwind().await;
        let cause = cause.unwrap_or_else(|panic| {
            let why = panic.downcast_ref::<String>().map(String::as_str);
            let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            ExitCause::Cannot(End::Crashed(format!("the host failed to supervise the instance: {why}")))
        });
        let mut died = None;
        if let Some(Runner { mut process, .. }) = runner {
            // Kill the runner: it may still be running, even if it has closed its pipe or reported its end. All
            // messages from the runner have been handled.
            self.control.end(process.handle());
            // If waiting fails, nothing proves that the process has exited. The instance then does not count as gone,
            // and the watchdog ends the host in time.
            died = match process.ended().await {
                Ok(status) => Some(status),
                Err(_) => pending().await,
            };
        }
        if let Some(RunnerHandle { tally, .. }) = self.control.runner.get() {
            // A killed runner could not report the last lines that it dropped, so report them here.
            self.report_dropped(tally.usage().dropped.saturating_sub(self.dropped.load(Ordering::Relaxed)));
        }
        let gone = self.judge(cause, died);
        self.control.gate.set_gone();
        gone
    }

    pub(super) fn report_dropped(&self, lines: u64) {
        if lines > 0 {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
            self.output.notice(Notice::Dropped { lines, limit: self.launcher.runners.policy().limits.output });
        }
    }

    fn judge(&self, cause: ExitCause, died: Option<Status>) -> Gone {
        let crashed = |why: String| Gone { end: End::Crashed(why), backtrace: None };
        let gone = match cause {
            ExitCause::Ended(ended) => {
                let Ended { how, backtrace } = *ended;
                let end = match how {
                    How::Done => End::Done,
                    How::Failed(why) => End::Failed(why),
                    How::Crashed(why) => End::Crashed(why),
                    How::Fatal(why) => End::Fatal(why),
                    How::Unable(why) => End::Unable(why),
                };
                Gone { end, backtrace }
            }
            ExitCause::Silent => {
                let how = died.map_or_else(|| "the runner exited".to_owned(), describe_exit);
                // A runner exits by itself at its deadline, without a report. So a silent exit after the deadline
                // counts as a kill, not as a crash.
                let killed = Gone { end: End::Killed, backtrace: None };
                if self.control.is_late() { killed } else { crashed(how) }
            }
            ExitCause::Cannot(end) => Gone { end, backtrace: None },
            ExitCause::Broken(why) => crashed(format!("the runner violated the protocol: {why}")),
        };
        // A kill first refuses the instance's effects, so a failure after a refusal is not the guest's fault and counts
        // as killed. `Done` stands even after a refusal, unless the instance carries out a scheduled run: such a run is
        // complete only if no effect was refused.
        let is_its_own = match gone.end {
            End::Superseded { .. } => true,
            End::Done if self.run.is_none() => true,
            _ => !self.control.was_refused(),
        };
        if self.control.was_killed() || !is_its_own { Gone { end: End::Killed, backtrace: None } } else { gone }
    }

    async fn until_exit(&self, begun: Option<Begun>, kept: &mut Option<Runner>) -> ExitCause {
        let mut claim = None;
        let begun = match begun {
            Some(begun) => begun,
            None => {
                // A kill interrupts the preparation, whatever it is waiting for.
                let begun = tokio::select! {
                    begun = self.prepare(&mut claim) => begun,
                    () = self.killed() => return ExitCause::Cannot(End::Killed),
                };
                match begun {
                    Ok(begun) => begun,
                    Err(end) => return ExitCause::Cannot(end),
                }
            }
        };
        let Begun { runner, unwritten } = begun;
        let runner = kept.insert(runner);
        let succession = claim.as_ref().map(Claim::succession);
        let mut instance_loop = InstanceLoop::new(self, claim);
        instance_loop.until_exit(runner, unwritten, succession.as_ref()).await
    }

    async fn killed(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.control.killed.subscribe().wait_for(|killed| *killed).await;
    }

    async fn prepare(&self, claim: &mut Option<Claim>) -> Result<Begun, End> {
        let crashed = |why: String| End::Crashed(why);
        let ended_by = |cause: &io::Error, why: String| match shortage(cause) {
            Some(remedy) => End::Unable(format!("{why}; {remedy}")),
            None => End::Crashed(why),
        };
        let secrets = self.secrets().await.map_err(|why| End::Unable(format!("a secret is missing: {why}")))?;
        if let Some(states) = self.states.clone() {
            let claimed = states.claim(self.term, Arc::clone(&self.control.gate)).await;
            *claim = Some(claimed.map_err(|error| match error {
                ClaimError::Superseded(term) => End::Superseded { term },
                // Do not retry on this node: a retry would read the same bytes.
                ClaimError::Document(_) => End::Fatal(error.to_string()),
                ClaimError::Store(_) => End::Unable(error.to_string()),
                ClaimError::TermOver => crashed(error.to_string()),
            })?);
        }
        let ready = self.launcher.runners.take(&self.module).await.map_err(|error| match error {
            RunnerError::Unsuitable(_) => End::Fatal(error.to_string()),
            RunnerError::System(ref cause) | RunnerError::Template(ref cause) => ended_by(cause, error.to_string()),
            _ => crashed(error.to_string()),
        })?;
        let entries = claim.as_ref().map(|claim| claim.entries().clone());
        self.begin(ready, secrets, entries)
            .map_err(|error| ended_by(&error, format!("cannot send the start message to the runner: {error}")))
    }

    /// Reads the secrets for the instance. Reading a file may block forever, so a separate blocking thread reads files.
    async fn secrets(&self) -> Result<Vec<(String, String)>, String> {
        let sources = self.launcher.secrets.clone();
        if sources.iter().all(|source| source.file().is_none()) {
            return sources.iter().map(read_secret).collect();
        }
        let read = tokio::task::spawn_blocking(move || sources.iter().map(read_secret).collect());
        read.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}

/// Returns a remedy if a system call of the host failed because processes, descriptors, memory or disk space ran out,
/// or because a sandbox forbids the call. The guest is not the cause, since the runner limits the guest's own use of
/// resources. So an error with a remedy does not count against the module's version.
fn shortage(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::AGAIN => {
            Some("raise the number of processes (`ulimit -u`, TasksMax= of a unit, --pids-limit of a container)")
        }
        Errno::MFILE | Errno::NFILE => Some("raise the number of descriptors (`ulimit -n`, LimitNOFILE= of a unit)"),
        Errno::NOMEM => Some("give the machine or its control group more memory"),
        Errno::NOSPC | Errno::DQUOT => Some("free disk space"),
        Errno::PERM => Some("allow the system call, which a sandbox around the host forbids"),
        _ => None,
    }
}

fn read_secret(source: &SecretSource) -> Result<(String, String), String> {
    Ok((source.name().to_owned(), source.read()?.expose().to_owned()))
}
