//! The wait until another instance has ended, and the recall after it, which reads the highest term in the store.

use alloc::format;
use core::time::Duration;

use super::super::timer::Timer;
use super::super::{Context, POLL, RECALL, STANDBY_TIMEOUT, UNKNOWN_LEASE};
use super::{Holding, Stage};
use crate::port::Report;
use crate::request::{Op, Reply, StoreError};

/// A wait, under a lease that this node holds, until another instance has ended. `since` and `until` are times on the
/// clock of `Now::least`, because a faster clock could end the wait too early.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct Settling {
    pub(super) since: Duration,
    pub(super) until: Duration,
    /// See [`UncertainHolder::is_recalled`](super::super::candidate::UncertainHolder::is_recalled).
    pub(super) is_recalled: bool,
}

impl Settling {
    /// The time at which this node stops waiting for the recall's answer. `settled` is the time at which the recall
    /// begins. By the returned time, every possible lease has expired, and the store has had D to answer.
    pub(super) fn ends_by(&self, settled: Duration, lease: Duration) -> Duration {
        let any_lease = if self.is_recalled { Duration::ZERO } else { self.since + UNKNOWN_LEASE };
        any_lease.max(settled + lease)
    }
}

impl Holding {
    pub(super) fn recall_if_due(&mut self, context: &mut Context) {
        if self.is_due(context, Timer::Recall)
            && let Stage::Recalling { pending, .. } = &mut self.stage
        {
            // A recall may take longer than a renewal, so it does not get the short timeout of a renewal.
            *pending = Some(context.request(Op::Recall, STANDBY_TIMEOUT));
        }
    }

    /// Handles the answer to the recall after the wait. The answer covers every announced term that began during the
    /// wait. If no recall succeeds by `until`, this node never learns of such a term. This is safe: the term's lease
    /// has expired by then, and this node skips the term's number. If this node recalled the terms before the wait, and
    /// the store now refuses the recall (`Misconfigured`), this node proceeds at once and skips no numbers.
    pub(super) fn recalled(
        &mut self,
        context: &mut Context,
        settled: Settling,
        until: Duration,
        result: Result<Reply, StoreError>,
    ) {
        let now = context.now.least;
        self.stage = match result {
            Ok(Reply::Recalled(recalled)) => {
                context.store_answers(RECALL);
                let term = recalled.term;
                let is_news = term > context.memory.written_term;
                context.memory.note_recalled(&recalled);
                let gone_by = settled.since + UNKNOWN_LEASE;
                if is_news && now < gone_by {
                    let reason = format!("the length of the lease of term {term} is unknown");
                    context.report(Report::Settling { wait: gone_by - now, reason });
                    Stage::Settling(Settling { until: gone_by, is_recalled: true, ..settled })
                } else {
                    Stage::Resting { until: context.time() }
                }
            }
            Err(StoreError::Misconfigured(_)) if settled.is_recalled => Stage::Resting { until: context.time() },
            _ if now >= until => {
                context.memory.skip_unknown_terms(context.now.wall);
                // This node does not repeat the recall, so it would not notice that recalls work again. Treat the
                // trouble with recalls as over.
                context.trouble.take_if(|trouble| trouble.asked == RECALL);
                Stage::Resting { until: context.time() }
            }
            result => {
                if let Err(error) = &result {
                    context.store_trouble(RECALL, error);
                }
                let next_try = context.time() + context.jittered(POLL);
                Stage::Recalling { settled, pending: None, next_try, until }
            }
        };
    }
}
