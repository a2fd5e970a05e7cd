//! Requests to the store, sent concurrently and each with a timeout. The responses go back to the elector.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use baton_election::{Input, Op, Reply, RequestId, StoreError};
use baton_modules::PreparedVersion;
use baton_runtime::Launch;
use futures::FutureExt as _;
use tokio::time::timeout;

use super::Run;
use crate::telemetry::StoreOp;

impl Run {
    pub(super) fn request(&mut self, id: RequestId, op: Op, limit: Duration, within_quota: bool) {
        let (store, election) = (Arc::clone(&self.config.store), self.config.election.clone());
        if matches!(op, Op::Acquire { .. } | Op::Reclaim { .. })
            && let Err(reason) = self.config.quota.reserve(&election, !within_quota)
        {
            self.requests.spawn(std::future::ready(Input::NotSent { id, reason }));
            return;
        }
        let (tracker, clock) = (Arc::clone(&self.config.tracker), self.config.clock.clone());
        let (steering_watch, is_recall) = (Arc::clone(&self.config.steering_watch), matches!(op, Op::Recall));
        // These requests may lead to a new term. The term's instance would first read its state, so let the launcher
        // start that read now.
        let may_lead_to_a_term = matches!(op, Op::Survey | Op::Acquire { .. } | Op::Reclaim { .. });
        let launcher = may_lead_to_a_term.then(|| self.prepare_for_next_term());
        self.requests.spawn(async move {
            let (what, asked, sent) = (op.to_string(), StoreOp::from(&op), clock.now());
            let request = async {
                let answer = timeout(limit, store.request(&election, op)).await;
                (answer, clock.now().since(sent))
            };
            // The node must know the current steering commands before the elector requests the lease. So read them
            // during a recall (the search for the highest term), and after a survey that shows an unread version of the
            // steering object. If this read fails, the elector ignores the survey.
            let request = async {
                if is_recall {
                    return futures::join!(request, steering_watch.read_within(limit / 2)).0;
                }
                let (answer, took) = request.await;
                if let Ok(Ok(Reply::Surveyed { steering, .. })) = &answer
                    && !steering_watch.has_read(steering.as_ref())
                {
                    steering_watch.read_within(limit.saturating_sub(took)).await;
                }
                (answer, took)
            };
            // Catch panics, because the elector needs a response to every request. Catching is safe: the request shares
            // no state that a panic could leave inconsistent.
            let (result, took) = match AssertUnwindSafe(request).catch_unwind().await {
                Ok((Ok(result), took)) => (result, took),
                Ok((Err(_), took)) => {
                    let step = store.slow_step().map(|step| format!(": {step}")).unwrap_or_default();
                    (Err(StoreError::Unknown(format!("no response to the {what} within {limit:.1?}{step}"))), took)
                }
                Err(_) => {
                    let error = StoreError::Unknown(format!("the {what} panicked: a bug in the store's client"));
                    (Err(error), clock.now().since(sent))
                }
            };
            if let (Some(launcher), Err(_)) = (launcher, &result) {
                launcher.expects_none();
            }
            tracker.counts.asked(asked, &result, took);
            Input::Answer { id, result }
        });
    }

    fn prepare_for_next_term(&self) -> Arc<dyn Launch> {
        let planned = self.elector.plan().module.as_ref().and_then(|version| self.ready_modules.get(&version.digest));
        if let Some(PreparedVersion { module, .. }) = planned {
            self.config.launcher.expects(module);
        }
        Arc::clone(&self.config.launcher)
    }
}
