//! The host's end of the connection to a runner. Reads the runner's messages, and does the work that only the host can
//! do.

use std::future::pending;
use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use baton_election::End;
use futures::FutureExt as _;
use futures::future::{BoxFuture, OptionFuture};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::instance::{InstanceEvent, StopNotice, Successor, ask_to_stop};
use super::task::{ExitCause, InstanceTask, Runner};
use crate::wire::output::{LONGEST_LINE, MessageLimit, Notice};
use crate::wire::protocol::{self, Change, FromRunner, How, LOOKUPS, NotCommitted, Resolved, ToRunner, frame};
use baton_base::address::kind_from_here;
use baton_base::clock::milliseconds;
use baton_store::state::{self, Claim, CommitError, HandoverClaim};

/// Maximum number of bytes for the runner that may still be unwritten when the runner sends its next request. Real
/// responses are far shorter, so a runner that exceeds this limit does not read its pipe.
const UNREAD: usize = 1 << 20;

/// Maximum number of notices that the host accepts from a runner about denied attempts, refused requests and nearly
/// reached limits. A correct runner sends each notice only once, so it never reaches this number.
const TOLD: u32 = 64;

/// Maximum length of a line from a runner (bytes). The runner replaces each invalid byte by a character of 3 bytes, so
/// a line can be 3 times as long as the line that the guest wrote.
const LINE: usize = LONGEST_LINE * 3;

/// Maximum time for an instance to start, which usually takes milliseconds. Until the instance runs or fails, the
/// election has no running coordinator, and no other node can take over.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);

pub(super) struct InstanceLoop<'a> {
    task: &'a InstanceTask,
    claim: Arc<tokio::sync::Mutex<Option<Claim>>>,
    /// The commit in progress, if any. There is never more than one, since the guest waits for the result of each
    /// commit.
    committing: Option<BoxFuture<'static, Result<(), CommitError>>>,
    lookups: JoinSet<(u64, Result<Vec<Resolved>, String>)>,
    is_started: bool,
    is_stepping_down: bool,
    /// Number of received notices of the kinds that [`TOLD`] limits.
    told: u32,
    /// Limits the rate of messages that need no response.
    lines: MessageLimit,
}

impl<'a> InstanceLoop<'a> {
    /// `claim` is `None` if the module does not use state.
    pub(super) fn new(task: &'a InstanceTask, claim: Option<Claim>) -> Self {
        Self {
            task,
            claim: Arc::new(tokio::sync::Mutex::new(claim)),
            committing: None,
            lookups: JoinSet::new(),
            is_started: false,
            is_stepping_down: false,
            told: 0,
            lines: MessageLimit::new(task.launcher.runners.policy().limits.output, &task.launcher.clock),
        }
    }

    /// Exchanges messages until the runner has closed its pipe, or the instance cannot continue. `unwritten` is the
    /// rest of the message that starts the instance.
    pub(super) async fn until_exit(
        &mut self,
        Runner { to, from, .. }: &mut Runner,
        mut unwritten: Vec<u8>,
        succession: Option<&HandoverClaim>,
    ) -> ExitCause {
        let task = self.task;
        let mut stopped = task.stopped.clone();
        let mut stop_sent = false;
        let ahead = claim_ahead(task.succeeded.clone(), succession, &task.stop);
        let begins_by = sleep(BEGINS_WITHIN);
        tokio::pin!(ahead, begins_by);
        loop {
            let writing = async {
                if unwritten.is_empty() {
                    return pending().await;
                }
                to.write(&unwritten).await
            };
            let said = tokio::select! {
                biased;
                said = from.next::<FromRunner>() => said,
                Some(committed) = OptionFuture::from(self.committing.as_mut()) => {
                    self.committing = None;
                    match committed {
                        Err(CommitError::Superseded(term)) => return ExitCause::Cannot(End::Superseded { term }),
                        committed => send(&mut unwritten, &ToRunner::Committed(committed.map_err(not_committed))),
                    }
                    continue;
                }
                Some(Ok((number, addresses))) = self.lookups.join_next() => {
                    send(&mut unwritten, &ToRunner::Resolved(number, addresses));
                    continue;
                }
                Ok(notice) = stopped.wait_for(Option::is_some), if !stop_sent => {
                    stop_sent = true;
                    if let Some(StopNotice { reason, message, grace_ends }) = notice.clone() {
                        let grace = grace_ends.since(task.launcher.clock.now());
                        let grace_ms = milliseconds(grace);
                        let notice = protocol::Notice { reason: reason.into(), message, grace_ms };
                        send(&mut unwritten, &ToRunner::Stop(notice));
                    }
                    continue;
                }
                superseded = &mut ahead => {
                    return ExitCause::Cannot(match superseded {
                        CommitError::Superseded(term) => End::Superseded { term },
                        other => End::Crashed(other.to_string()),
                    });
                }
                () = &mut begins_by, if !self.is_started => {
                    return ExitCause::Cannot(End::Crashed(format!(
                        "the instance did not start within {BEGINS_WITHIN:?}: its start function does not return, or \
                         the runner is stopped"
                    )));
                }
                written = writing => {
                    match written {
                        Ok(written) => drop(unwritten.drain(..written)),
                        // The runner has exited or closed its pipe. Ignore the error: the runner's last messages
                        // explain the cause better.
                        Err(_) => unwritten.clear(),
                    }
                    continue;
                }
            };
            match said {
                Ok(Some(message)) => {
                    if let Some(cause) = self.take(message, unwritten.len()) {
                        return cause;
                    }
                }
                Ok(None) => return ExitCause::Silent,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return ExitCause::Broken(error.to_string());
                }
                Err(_) => return ExitCause::Silent,
            }
        }
    }

    /// Checks that a message conforms to the protocol. The error describes the violation. `unwritten` is the number of
    /// bytes that have not been written to the runner yet.
    fn check(&mut self, message: &FromRunner, unwritten: usize) -> Result<(), String> {
        let is_answered = matches!(message, FromRunner::Commit(_) | FromRunner::Resolve { .. });
        if !is_answered && !self.lines.admits() {
            return Err("it sent too many messages".to_owned());
        }
        // A correct runner reads its start message before it sends a request, and reads responses while it waits for
        // them. So if more than [`UNREAD`] bytes are unwritten, the runner does not read its pipe.
        if is_answered && unwritten > UNREAD {
            return Err("it does not read the responses to its requests".to_owned());
        }
        let problem = match message {
            FromRunner::Started if std::mem::replace(&mut self.is_started, true) => "it reported twice that it started",
            FromRunner::Line(_, line) if line.len() > LINE => {
                return Err(format!("it sent a line of {} bytes", line.len()));
            }
            FromRunner::Denied { .. } | FromRunner::NearLimit(_) | FromRunner::RefusedRequest(_) => {
                self.told += 1;
                if self.told <= TOLD {
                    return Ok(());
                }
                "it repeated notices that it may send only once"
            }
            FromRunner::StepDown(_) if std::mem::replace(&mut self.is_stepping_down, true) => {
                "it asked twice to step down"
            }
            FromRunner::Commit(_) if self.committing.is_some() => "it sent a commit during another commit",
            // For an election without state, a correct runner never sends a commit: the runner itself refuses its
            // guest's commits.
            FromRunner::Commit(_) if self.task.states.is_none() => "it sent a commit for an election without state",
            FromRunner::Resolve { .. } if self.lookups.len() >= LOOKUPS => "it has too many DNS lookups in flight",
            FromRunner::Ended(ended) if self.is_started && matches!(ended.how, How::Unable(_)) => {
                "it reported a failed start after the start"
            }
            FromRunner::Ready { .. } | FromRunner::Failed(_) => "it reported twice that it is ready",
            _ => return Ok(()),
        };
        Err(problem.to_owned())
    }

    /// Handles one message from the runner. Returns the cause if the instance has ended or cannot continue.
    fn take(&mut self, message: FromRunner, unwritten: usize) -> Option<ExitCause> {
        if let Err(violation) = self.check(&message, unwritten) {
            return Some(ExitCause::Broken(violation));
        }
        let InstanceTask { launcher, control, output, .. } = self.task;
        let may_leave = || control.gate.pass().is_ok();
        match message {
            FromRunner::Started => {
                output.notice(Notice::Started(launcher.clock.now().since(self.task.started)));
                // Ignore the error: the receiver may have been dropped.
                let _ = self.task.tell.try_send(InstanceEvent::Begun);
            }
            FromRunner::Line(stream, line) => {
                if may_leave() {
                    output.notice(Notice::Line(stream, &line));
                }
            }
            FromRunner::Log { level, context, message } => {
                if may_leave() {
                    output.notice(Notice::Log { level, context: &context, message: &message });
                }
            }
            FromRunner::Dropped(lines) => self.task.report_dropped(lines),
            FromRunner::Denied { what, remedy } => output.notice(Notice::Denied { what: &what, remedy: &remedy }),
            FromRunner::NearLimit(near) => output.notice(Notice::NearLimit(near)),
            FromRunner::RefusedRequest(refused) => output.notice(Notice::RefusedRequest(&refused)),
            FromRunner::StepDown(reason) => {
                // Ignore the error: the receiver may have been dropped.
                let _ = self.task.tell.try_send(InstanceEvent::StepDown(reason));
            }
            FromRunner::Commit(changes) => {
                let changes = match changes.read(launcher.runners.policy().call_bytes(true)) {
                    Ok(changes) => changes,
                    Err(error) => return Some(ExitCause::Broken(error.to_string())),
                };
                self.committing = Some(commit(Arc::clone(&self.claim), changes).boxed());
            }
            FromRunner::Resolve { number, host, port } => {
                if may_leave() && launcher.runners.policy().http.may_ask(&host) {
                    self.lookups.spawn(look_up(number, host, port, launcher.runners.lookups()));
                } else {
                    self.lookups.spawn(async move { (number, Err("the term is over".to_owned())) });
                }
            }
            FromRunner::Panicked(why) => {
                return Some(ExitCause::Cannot(End::Crashed(format!("the runner panicked: {why}"))));
            }
            FromRunner::Ended(ended) => return Some(ExitCause::Ended(ended)),
            // `check` has already rejected these messages.
            FromRunner::Ready { .. } | FromRunner::Failed(_) => {}
        }
        None
    }
}

fn send(unwritten: &mut Vec<u8>, message: &ToRunner) {
    // Encoding fails only if a message does not fit into memory.
    if let Ok(message) = frame(message) {
        unwritten.extend(message);
    }
}

async fn commit(claim: Arc<tokio::sync::Mutex<Option<Claim>>>, changes: Vec<Change>) -> Result<(), CommitError> {
    let changes = changes.into_iter().map(|change| match change {
        Change::Put(key, value) => state::Change::Put(key, value),
        Change::Delete(key) => state::Change::Delete(key),
    });
    match &mut *claim.lock().await {
        Some(claim) => claim.commit(changes.collect()).await,
        None => Err(CommitError::Unavailable("the module does not import the state interface".to_owned())),
    }
}

fn not_committed(error: CommitError) -> NotCommitted {
    let why = error.to_string();
    match error {
        CommitError::InvalidKey(_) => NotCommitted::InvalidKey(why),
        CommitError::TooLarge(_) => NotCommitted::TooLarge(why),
        CommitError::Refused => NotCommitted::Refused(why),
        CommitError::Unavailable(_) => NotCommitted::Unavailable(why),
        CommitError::Unknown | CommitError::Superseded(_) => NotCommitted::Unknown(why),
    }
}

/// Resolves a host name. The system's resolver cannot be interrupted, so the permit from `places` stays taken until the
/// resolver answers, even if the instance has ended by then.
async fn look_up(number: u64, host: String, port: u16, places: Arc<Semaphore>) -> (u64, Result<Vec<Resolved>, String>) {
    let Ok(place) = places.acquire_owned().await else { return (number, Err("the host is shutting down".to_owned())) };
    let found = tokio::task::spawn_blocking(move || {
        let _place = place;
        let addresses = (host.as_str(), port).to_socket_addrs()?;
        Ok(addresses.map(|address| Resolved { address, kind: kind_from_here(address.ip()) }).collect())
    });
    let found = found.await;
    let found: io::Result<_> = found.map_err(io::Error::from).and_then(|found| found);
    (number, found.map_err(|error| error.to_string()))
}

/// Waits until there is a successor, claims the state for the successor, and asks the guest to stop. Returns only if
/// another writer has superseded the claim.
async fn claim_ahead(
    mut succeeded: watch::Receiver<Option<Successor>>,
    succession: Option<&HandoverClaim>,
    stop: &watch::Sender<Option<StopNotice>>,
) -> CommitError {
    let successor = succeeded.wait_for(Option::is_some).await.ok().and_then(|successor| successor.clone());
    if let Some(Successor { term, notice }) = successor {
        if let Some(succession) = succession
            && let Err(superseded @ CommitError::Superseded(_)) = succession.claim(term).await
        {
            return superseded;
        }
        // If this claim failed, the successor claims the state itself, after this instance has ended.
        ask_to_stop(stop, notice);
    }
    pending().await
}
