//! The release of the lease: the last step of a holder.

use alloc::format;
use alloc::string::ToString;

use super::candidate::back_to_standby;
use super::record_writer::{Purpose, RecordWriter, WriteResult};
use super::timer::{Timer, Timers};
use super::{Context, Pending, RELEASE, Role, answered};
use crate::hint::Word;
use crate::port::{Input, Report};
use crate::record::{LeaseId, Record};
use crate::request::{Op, StoreError};
use crate::timing::Time;

/// A node that is giving up the lease: it marks the record as released, and then releases the lease. After a release
/// without the mark, the next holder would wait for the lease's full length. So if the record cannot be marked, the
/// node lets the lease expire, which takes less time. Once a release has been sent, the lease id is never used for
/// anything else.
#[derive(Debug, Clone, Hash)]
pub(super) struct Releasing {
    id: LeaseId,
    writer: RecordWriter,
    pending: Option<Pending>,
    next_try: Time,
    /// The earliest time at which the lease may have expired.
    until: Time,
    /// True if the host no longer waits for the release. A failed attempt is then not retried.
    hurried: bool,
    /// True if a release was sent and its outcome is unknown.
    in_doubt: bool,
}

impl Releasing {
    /// `last` is the record with the outcome of the last term, even if the store does not contain it yet.
    pub(super) fn new(
        context: &Context,
        id: LeaseId,
        mut writer: RecordWriter,
        last: Option<Record>,
        until: Time,
    ) -> Self {
        if !writer.is_marked() {
            let lease = context.settings.timing.lease();
            let record = last.unwrap_or_else(|| context.record_without_holder(None, lease));
            let progress = context.memory.progress.clone();
            writer.want(Record { released: true, progress, ..record }, Purpose::Note, context.time());
        }
        Self { id, writer, pending: None, next_try: Time::default(), until, hurried: false, in_doubt: false }
    }

    pub(super) fn timers(&self) -> Timers<3> {
        let waits = self.pending.is_some();
        Timers([
            (Timer::Record, self.writer.next_try()),
            (Timer::Release, (self.writer.is_marked() && !waits).then_some(self.next_try)),
            (Timer::RunOut, (!waits).then_some(self.until)),
        ])
    }

    fn is_due(&self, context: &Context, timer: Timer) -> bool {
        self.timers().is_due(timer, context.time())
    }

    pub(super) fn step(&mut self, context: &mut Context, input: Option<Input>) -> Option<Role> {
        match input {
            Some(Input::SkipGrace) => {
                self.hurried = true;
                self.next_try = context.time();
                self.writer.hurry(context.time());
            }
            Some(Input::Answer { id, result }) if answered(&mut self.pending, id).is_some() => match result {
                Ok(_) => {
                    context.store_answers(RELEASE);
                    context.tell(Word::GivesUp);
                    context.report(Report::Released);
                    return back_to_standby(context, "the lease was released".to_string());
                }
                // An earlier release succeeded, but its answer was lost.
                Err(StoreError::Lost(_)) if self.in_doubt => {
                    context.report(Report::Released);
                    return back_to_standby(context, "the lease was released".to_string());
                }
                Err(StoreError::Lost(why)) => return self.give_up(context, &why),
                Err(StoreError::Held | StoreError::Conflict) => {
                    return self.give_up(context, "the lease is no longer held");
                }
                Err(error) if self.hurried => {
                    context.tell(Word::GivesUp);
                    return self.give_up(context, &format!("the host shut down without a retry ({error})"));
                }
                Err(error @ (StoreError::Unknown(_) | StoreError::Misconfigured(_))) => {
                    context.tell(Word::GivesUp);
                    context.store_trouble(RELEASE, &error);
                    self.in_doubt |= matches!(error, StoreError::Unknown(_));
                    self.next_try = context.retry_at();
                }
            },
            Some(Input::Answer { id, result: Err(StoreError::Unknown(why) | StoreError::Misconfigured(why)) })
                if self.hurried && self.writer.awaits(id) =>
            {
                return self.give_up(context, &format!("the host shut down without a retry ({why})"));
            }
            Some(Input::Answer { id, result }) => match self.writer.answer(context, id, &result) {
                // A release has been sent. If it has already taken effect, the store refuses a superseded write. So the
                // refusal does not show that another node took the lease.
                WriteResult::Lost(_) if self.pending.is_some() => {}
                WriteResult::Lost(why) => return self.give_up(context, &why),
                WriteResult::Doubt => return self.give_up(context, "the lease is no longer held"),
                WriteResult::Written | WriteResult::None => {}
            },
            _ => {}
        }
        if self.is_due(context, Timer::RunOut) {
            return self.give_up(context, "the lease expired before this node could release it");
        }
        if self.is_due(context, Timer::Record) {
            self.writer.send(context, self.id);
        }
        if self.is_due(context, Timer::Release) {
            self.pending = Some(context.urgent(Op::Release { id: self.id }));
            // Announce the release before it is done, so that other nodes read the marked record in the meantime.
            context.tell(Word::GivesUp);
        }
        None
    }

    fn give_up(&self, context: &mut Context, reason: &str) -> Option<Role> {
        context.report(Report::NotReleased { reason: reason.to_string() });
        back_to_standby(context, format!("the lease was not released: {reason}"))
    }
}
