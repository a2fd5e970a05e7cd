//! Scheduled runs: the choice of the next run, and the time without an instance between two runs.
//!
//! A run repeats until it completes. The write that begins the run's term also records the run's due time as `begun`.
//! After the run has completed, and before the next term, the holder records the due time as `completed`. If a due time
//! is recorded only as `begun`, its run begins again.

use core::time::Duration;

use super::super::Context;
use super::super::record_writer::Purpose;
use super::{Holding, Stage};
use crate::port::Report;
use crate::record::Record;
use crate::schedule::{Missed, ScheduledRun};

/// Largest accepted difference between the nodes' clocks. If the recorded progress is further ahead than this, a clock
/// was wrong, and a change of the schedule sets the progress back.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(600);
/// Smallest backward step of the wall clock after which the holder chooses the next run again.
const CLOCK_STEP: Duration = Duration::from_secs(10);

enum NextActivity {
    Serve,
    /// Lead without an instance until this due time, if there is one.
    Wait(Option<Duration>),
}

impl Holding {
    /// Begins the next term. With a schedule, a term begins only for a run that is due, or to show the other nodes that
    /// this node leads now.
    pub(super) fn begin_next(&mut self, context: &mut Context) {
        match context.next_activity() {
            NextActivity::Wait(_) if self.has_begun && self.note_progress(context) => {}
            NextActivity::Wait(due) if self.has_begun => {
                context.report(Report::AwaitingRun { due });
                self.stage = Stage::Idle { due, since: context.now.wall };
            }
            NextActivity::Serve | NextActivity::Wait(_) => {
                self.claim(context);
                self.stage = Stage::Claiming;
            }
        }
    }

    /// Ends the current stage, so that this node chooses the next activity again now.
    pub(super) fn choose_again(&mut self, context: &Context) {
        self.stage = Stage::Resting { until: context.time() };
    }

    /// Chooses the next run again if the wall clock was set back, since the next due time may be earlier now.
    pub(super) fn watch_clock(&mut self, context: &Context) {
        if let Stage::Idle { since, .. } = self.stage
            && context.now.wall + CLOCK_STEP < since
        {
            self.choose_again(context);
        }
    }

    pub(super) fn schedule_changed(&mut self, context: &Context) {
        if matches!(self.stage, Stage::Idle { .. }) {
            self.choose_again(context);
        }
    }

    /// Writes the progress of the scheduled runs if it has changed since the last write. Returns true if it has
    /// changed. The holder then chooses the next activity again after the write.
    fn note_progress(&mut self, context: &Context) -> bool {
        let progress = &context.memory.progress;
        let Some(record) = self.writer.record().filter(|record| record.progress != *progress) else { return false };
        self.writer.want(Record { progress: progress.clone(), ..record.clone() }, Purpose::Note, context.time());
        self.stage = Stage::Noting { rest: Duration::ZERO };
        true
    }
}

impl Context {
    pub(super) fn unfinished_run(&self) -> Option<ScheduledRun> {
        self.settings.schedule.as_ref()?;
        self.memory.progress.as_ref()?.unfinished()
    }

    /// True if the holder that wrote the record may have had an instance. Between scheduled runs, a holder has none.
    pub(in super::super) fn may_have_served(&self, record: &Record) -> bool {
        let is_scheduled = self.settings.schedule.is_some();
        !is_scheduled || record.progress.as_ref().is_none_or(|progress| progress.unfinished().is_some())
    }

    pub(super) fn complete(&mut self, run: ScheduledRun) {
        let now = whole_seconds(self.now.wall);
        let skips = self.settings.schedule.as_ref().is_some_and(|schedule| schedule.missed == Missed::Skip);
        let progress = self.memory.progress.get_or_insert_default();
        progress.begun = progress.begun.max(run.due);
        progress.completed = progress.completed.max(run.due);
        if skips {
            // Due times that passed during the run count as missed.
            progress.from = progress.from.max(now);
        }
    }

    /// Chooses the next activity, and notes in the progress which run begins or is skipped.
    fn next_activity(&mut self) -> NextActivity {
        let Some(schedule) = self.settings.schedule.clone() else {
            self.memory
                .progress
                .iter_mut()
                .for_each(|progress| progress.change("", whole_seconds(self.now.wall), CLOCK_TOLERANCE));
            return NextActivity::Serve;
        };
        let (wall, trigger) = (self.now.wall, self.trigger);
        let progress = self.memory.progress.get_or_insert_default();
        progress.change(&schedule.text, whole_seconds(wall), CLOCK_TOLERANCE);
        if progress.unfinished().is_some() {
            return NextActivity::Serve;
        }
        let base = progress.base();
        let mut due = (schedule.latest)(&schedule.text, wall).filter(|due| *due > base);
        let is_late = |due: &Duration| wall.saturating_sub(*due) > schedule.missed_after;
        let skipped = due.take_if(|due| schedule.missed == Missed::Skip && is_late(due));
        if let Some(due) = skipped {
            progress.from = due;
        }
        // Accept a trigger up to `missed_after` in the future: the operator's clock may be ahead of this node's clock.
        let trigger = trigger.filter(|at| *at > base && *at <= wall + schedule.missed_after);
        let due = due.max(trigger);
        if let Some(due) = due {
            progress.begun = due;
        }
        let after_now = (schedule.next)(&schedule.text, wall);
        if let Some(due) = skipped {
            self.report(Report::RunSkipped { due });
        }
        if due.is_some() {
            return NextActivity::Serve;
        }
        match after_now {
            // The progress already includes the next due time on this clock: the clock of the node that began that run
            // was slightly faster. So wait for the due time after it.
            Some(due) if due == base => NextActivity::Wait((schedule.next)(&schedule.text, base)),
            Some(due) if due < base => {
                self.report(Report::ProgressAhead { recorded: base, due });
                NextActivity::Wait((schedule.next)(&schedule.text, base))
            }
            due => NextActivity::Wait(due),
        }
    }
}

/// Rounds down to whole seconds, because the stores save times in seconds.
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}
