//! The part of the supervisor that starts an instance, tracks its state, and handles its end.

use std::sync::Arc;

use baton_base::gate::Deadline;
use baton_election::{End, Input, ModuleVersion, ScheduledRun, StopReason, Term, Time};
use baton_modules::PreparedVersion;
use baton_runtime::{Gone, InstanceEvent, InstanceHandle};
use baton_store::Digest;
use tokio::time::timeout;

use super::Run;
use super::output::{Replaced, TermOutput};
use crate::telemetry::{Event, LAST_LINES};
use crate::view::InstanceView;

/// The instance that is running or ending.
pub(super) struct Serving {
    pub handle: Box<dyn InstanceHandle>,
    term: Term,
    module: Digest,
    is_replaced: bool,
    is_stalled: bool,
    killed: Option<Time>,
}

impl Serving {
    pub(super) fn view(&self) -> InstanceView {
        InstanceView { term: self.term, module: self.module, is_killed: self.killed.is_some() }
    }
}

impl Run {
    pub(super) fn start(
        &mut self,
        term: Term,
        version: &ModuleVersion,
        run: Option<ScheduledRun>,
        deadline: Time,
        abort_at: Time,
    ) {
        // This lookup finds the module unless Baton has a bug: the elector knows only versions whose modules are in
        // `ready_modules`.
        let Some(PreparedVersion { module, .. }) = self.ready_modules.get(&version.digest) else {
            self.abort(&format!("cannot start module {}: it is not loaded, which is a bug in Baton", version.digest))
        };
        let digest = module.digest();
        let lines = Deadline::new(self.config.clock.clone(), deadline);
        let output = TermOutput {
            log: self.config.log.clone(),
            tracker: Arc::clone(&self.config.tracker),
            term,
            module: digest,
            replaces: self.replaced.take().filter(|replaced| replaced.module != digest),
            clock: self.config.clock.clone(),
            lines: lines.clone(),
        };
        self.lines = Some(lines);
        let handle = self.config.launcher.start(module, term, run, deadline, abort_at, Arc::new(output));
        self.serving =
            Some(Serving { handle, term, module: digest, is_replaced: false, is_stalled: false, killed: None });
    }

    pub(super) fn stop(&mut self, reason: StopReason, message: String, grace_ends: Time, next: Option<Term>) {
        let Some(serving) = &mut self.serving else { return };
        let left = grace_ends.since(self.config.clock.now()).min(serving.handle.remaining());
        serving.is_replaced = reason == StopReason::Replaced;
        let event = Event::stopping(reason, &message, left);
        if let Event::Stopping { reason, message, .. } = &event {
            self.config.tracker.terms.is_ending(&format!("{reason}: {message}"));
        }
        serving.handle.stop(reason, message, grace_ends, next);
        self.log(event);
    }

    pub(super) fn kill(&mut self, reason: String) {
        let Some(serving) = &mut self.serving else { return };
        // Kill first: no effect may pass the gate while the log line is being created.
        serving.handle.kill();
        serving.killed = Some(self.config.clock.now());
        self.log_kill(reason);
    }

    fn log_kill(&self, reason: String) {
        self.config.tracker.terms.is_ending(&reason);
        self.log(Event::Killed { reason });
    }

    pub(super) fn instance_event(&mut self, event: InstanceEvent) -> Option<Input> {
        match event {
            InstanceEvent::Begun => Some(Input::Begun),
            InstanceEvent::StepDown(reason) => {
                Some(Input::StepDown { reason: format!("the coordinator requested this: {reason}") })
            }
            InstanceEvent::Dying => Some(Input::Dying),
            InstanceEvent::Gone(Gone { end, backtrace }) => {
                if let Some(serving) = self.serving.take() {
                    self.ended(serving, &end, backtrace.as_deref());
                }
                self.after_last_lines(Input::Gone { end })
            }
        }
    }

    fn ended(&mut self, serving: Serving, end: &End, backtrace: Option<&str>) {
        let Serving { handle, term, module, is_replaced, mut killed, .. } = serving;
        let (now, tracker) = (self.config.clock.now(), &self.config.tracker);
        tracker.is_gone(term, handle.effects());
        self.replaced = is_replaced.then_some(Replaced { module, gone: now });
        if *end == End::Killed && killed.is_none() {
            self.log_kill("the deadline passed: the gate refused an effect, and the instance exited".to_owned());
            killed = Some(now);
        }
        let took = killed.map(|killed| now.since(killed));
        tracker.counts.ended(end.into(), took);
        let end = match (end, backtrace) {
            (End::Crashed(why), Some(backtrace)) => &End::Crashed(format!("{why}\n{}", backtrace.trim_end())),
            _ => end,
        };
        let event = Event::ended(term, end, took.unwrap_or_default(), handle.usage());
        if let Event::Ended { outcome, message, .. } = &event {
            tracker.terms.has_ended(*outcome, message.as_deref());
        }
        self.log(event);
    }

    /// Returns the input for an instance that has exited. If lines of the instance are still queued, returns `None`,
    /// and delivers the input once these lines have been written or dropped. If the log's reader keeps up, a term that
    /// ends in an orderly way therefore loses no lines.
    fn after_last_lines(&mut self, gone: Input) -> Option<Input> {
        // `self.lines` and this clone share one deadline. If the lease is lost while the lines wait to be written, the
        // supervisor ends the deadline, and the writer drops the lines.
        let Some(lines) = self.lines.clone().filter(|_| self.config.log.has_lines()) else { return Some(gone) };
        let written = self.config.log.written();
        self.requests.spawn(async move {
            // After this wait, end the lines' deadline, so that the writer drops and counts the lines that remain.
            let _ = timeout(LAST_LINES.min(lines.remaining()), written).await;
            lines.end();
            gone
        });
        None
    }

    pub(super) fn stalls_at(&self) -> Option<Time> {
        let serving = self.serving.as_ref().filter(|serving| !serving.is_stalled)?;
        Some(serving.handle.last_progress() + self.config.stall_after?)
    }

    pub(super) fn stall(&mut self) -> Option<Input> {
        let (stalls_at, stall_after) = (self.stalls_at()?, self.config.stall_after?);
        if self.config.clock.now() < stalls_at {
            return None;
        }
        self.serving.as_mut()?.is_stalled = true;
        Some(Input::Stalled { reason: format!("the coordinator made no progress for {stall_after:?}") })
    }
}
