//! Logs the events of an election.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{End, IneligibleCause, ModuleVersion, Report, StopReason, StoreError, Term, Time};

use crate::telemetry::{Event, GuestStream, Log};
use baton_runtime::{Gone, NearLimit, Notice, Output, RefusedRequest, Stream, Usage};
use baton_store::Digest;
use baton_store::clock::Clock;
use baton_store::gate::Deadline;

pub(super) struct Reporter {
    log: Log,
    /// The digest that every node should run. `None` if this node has no module, or if nodes may run different modules.
    module: Option<String>,
    /// The current term of this node, kept until the node becomes a follower again.
    term: Option<Term>,
    killed: Option<Time>,
    /// The instance that another version will replace, and when the instance ended.
    replaced: Option<(Digest, Option<Time>)>,
}

impl Reporter {
    pub(super) fn new(log: Log) -> Self {
        Self { log, module: None, term: None, killed: None, replaced: None }
    }

    /// Sets the digest that every node should run. If a leader runs another module, that is logged.
    pub(super) fn expects(&mut self, module: Option<String>) {
        self.module = module;
    }

    /// Returns the sink for an instance's output. Lines not written by the deadline are dropped.
    pub(super) fn output(&mut self, term: Term, module: Digest, clock: &Clock, lines: Deadline) -> Arc<dyn Output> {
        let replaces = self.replaced.take().and_then(|(previous, gone)| Some(Replaced { previous, gone: gone? }));
        let replaces = replaces.filter(|replaced| replaced.previous != module);
        let (log, clock) = (self.log.clone(), clock.clone());
        Arc::new(TermOutput { log, term, module, replaces, clock, lines })
    }

    /// Logs a judgement on a version. The judgement applies to all nodes.
    pub(super) fn judged(&self, module: &ModuleVersion, rejected: Option<(&str, Option<&ModuleVersion>)>) {
        let module = module.digest.clone();
        self.say(match rejected {
            None => Event::VersionAccepted { module },
            Some((reason, fallback)) => {
                let fallback = fallback.map(|fallback| fallback.digest.clone());
                Event::VersionRejected { module, reason: reason.to_owned(), fallback }
            }
        });
    }

    pub(super) fn stopping(&mut self, module: Digest, reason: StopReason, message: &str, grace: Duration) {
        if reason == StopReason::Replaced {
            self.replaced = Some((module, None));
        }
        self.say(Event::stopping(reason, message, grace));
    }

    pub(super) fn killed(&mut self, reason: String, now: Time) {
        self.killed = Some(now);
        self.say(Event::Killed { reason });
    }

    pub(super) fn gone(&mut self, gone: &Gone, usage: Usage, now: Time) {
        if let Some((_, at)) = &mut self.replaced {
            at.get_or_insert(now);
        }
        if gone.end == End::Killed && self.killed.is_none() {
            self.killed("the deadline passed: the gate refused an effect, and the instance exited".to_owned(), now);
        }
        let took = self.killed.take().map_or(Duration::ZERO, |killed| now.since(killed));
        let end = match (&gone.end, &gone.backtrace) {
            (End::Crashed(why), Some(backtrace)) => &End::Crashed(format!("{why}\n{}", backtrace.trim_end())),
            (end, _) => end,
        };
        self.say(Event::ended(self.term, end, took, usage));
    }

    pub(super) fn report(&mut self, report: Report) {
        match report {
            Report::Standby { reason } => {
                self.say(Event::Standby { reason, leader: None });
                self.term = None;
                self.replaced = None;
            }
            Report::Deferring { reason } => self.say(Event::Standby { reason, leader: None }),
            // The supervisor knows the command, and logs it.
            Report::Ineligible { .. } => {}
            Report::Eligible { before } => {
                let reason = match before.cause {
                    IneligibleCause::Suspended => "the suspension is over".to_owned(),
                    IneligibleCause::SteppedDown => "the step-down period is over".to_owned(),
                    IneligibleCause::Transferring { to } => format!("the time for {to} to take the lease is over"),
                    IneligibleCause::Maintenance | IneligibleCause::CoolingOff => return,
                };
                self.say(Event::Resumed { reason });
            }
            Report::Following { leader } => {
                let node = leader.node.unwrap_or_default();
                let reason = format!("{node} leads in term {}", leader.term);
                self.log.emit(Some(leader.term), Event::Standby { reason, leader: Some(node.clone()) });
                if let Some((module, leader_module)) =
                    self.module.clone().zip(leader.module).filter(|(module, leader_module)| module != leader_module)
                {
                    self.log.emit(Some(leader.term), Event::ModuleDiffers { leader: node, leader_module, module });
                }
            }
            Report::HeldOutside { reason } => self.say(Event::HeldByOtherClient { reason }),
            Report::ElectionOver { record } => {
                let reason = format!("the coordinator finished in term {}; `baton rerun` runs it again", record.term);
                self.log.emit(Some(record.term), Event::Finished { reason });
            }
            Report::TookOver { from } => {
                let (node, incarnation) = (from.node.unwrap_or_default(), from.incarnation);
                self.log.emit(Some(from.term), Event::Reclaimed { from: node, incarnation });
            }
            Report::Settling { wait, reason } => {
                self.say(Event::WaitingForPreviousLease { reason, wait_s: wait.into() })
            }
            Report::Elected { record } => {
                self.term = Some(record.term);
                self.say(Event::Elected { module: record.module.unwrap_or_default(), failures: record.failures });
            }
            Report::RenewFailed { error, since_renewal, remaining } => self.say(Event::RenewalFailed {
                error: error.to_string(),
                since_renewal_s: since_renewal.into(),
                remaining_s: remaining.into(),
            }),
            Report::RenewedAgain { after } => self.say(Event::RenewalRecovered { after_s: after.into() }),
            Report::Pausing { wait } => self.say(Event::Idle { wait_s: wait.into() }),
            Report::Resting { wait, reason, failures } => {
                self.say(Event::Retrying { reason, failures, wait_s: wait.into() });
            }
            Report::CoolOff { wait, reason } => self.say(Event::CoolOff { reason, wait_s: wait.into() }),
            Report::Lost { reason, since_renewal } => {
                self.say(Event::LeadershipLost { reason, since_renewal_s: since_renewal.into() });
            }
            Report::Released => self.say(Event::Released {}),
            Report::NotReleased { reason } => self.say(Event::ReleaseFailed { reason }),
            Report::StoreTrouble { error: StoreError::Misconfigured(error), .. } => {
                self.say(Event::Misconfigured { error });
            }
            Report::StoreTrouble { error, asked } => {
                self.say(Event::StoreUnreachable { error: format!("{asked}: {error}") });
            }
            Report::StoreBack { after } => self.say(Event::StoreRecovered { after_s: after.into() }),
        }
    }

    pub(super) fn say(&self, event: Event) {
        self.log.emit(self.term, event);
    }
}

/// Sink for the output of one instance.
struct TermOutput {
    log: Log,
    term: Term,
    module: Digest,
    replaces: Option<Replaced>,
    clock: Clock,
    lines: Deadline,
}

/// The instance that this one replaces.
struct Replaced {
    previous: Digest,
    gone: Time,
}

impl Output for TermOutput {
    fn notice(&self, notice: Notice<'_>) {
        let event = match notice {
            Notice::Started(took) => return self.started(took),
            Notice::Line(stream, line) => return self.put_out(Event::printed(stream.into(), line)),
            Notice::Log { level, context, message } => {
                return self.put_out(Event::logged(level, context, message));
            }
            Notice::Denied { what, remedy } => {
                Event::CapabilityDenied { what: what.to_owned(), remedy: remedy.to_owned() }
            }
            Notice::Dropped { lines, limit } => {
                let reason = format!("the coordinator printed more than {limit} lines a second; raise --max-output");
                Event::OutputDropped { lines, reason }
            }
            Notice::NearLimit(NearLimit { what, used, limit }) => {
                Event::NearLimit { limit: what.name(), used, max: limit, flag: what.flag() }
            }
            Notice::StateDelayed(refusal) => Event::StateDelayed { error: refusal.to_string() },
            Notice::RefusedRequest(refused) => {
                let RefusedRequest { origin, reason, allow } = refused.clone();
                let [setting, flag] = allow.map_or([None, None], |lines| lines.map(Some));
                Event::RequestRefused { origin, reason, setting, flag }
            }
        };
        self.say(event);
    }
}

impl TermOutput {
    fn started(&self, took: Duration) {
        self.say(Event::Started { module: self.module.to_string(), took_s: took.into() });
        if let Some(Replaced { previous, gone }) = &self.replaces {
            let gap_s = self.clock.now().since(*gone).into();
            let (module, previous) = (self.module.to_string(), previous.to_string());
            self.say(Event::Swapped { module, previous, gap_s });
        }
    }

    /// Logs a line as an effect of the instance.
    fn put_out(&self, line: Event) {
        self.log.emit_output(self.term, line, &self.lines);
    }

    fn say(&self, event: Event) {
        self.log.emit(Some(self.term), event);
    }
}

impl From<Stream> for GuestStream {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
        }
    }
}
