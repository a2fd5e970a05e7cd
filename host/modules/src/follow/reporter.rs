//! Reports a follower's conditions to operators. A lasting condition is reported only once.

use std::sync::Arc;

use baton_election::ElectionName;
use tokio::time::Instant;

use super::report::{FollowerReport, FollowerReportSink};
use crate::Preparation;
use baton_store::Digest;

pub(super) struct Reporter {
    sink: Arc<dyn FollowerReportSink>,
    election: ElectionName,
    unreachable_since: Option<Instant>,
    /// The current problem with the control object, if any.
    control: Option<String>,
    /// True if no module had ever been pushed at the last check.
    nothing: bool,
    /// Digest and serial of the newest version, if it is rejected.
    rejected: Option<(Digest, u64)>,
}

impl Reporter {
    pub fn new(sink: Arc<dyn FollowerReportSink>, election: ElectionName) -> Self {
        Self { sink, election, unreachable_since: None, control: None, nothing: false, rejected: None }
    }

    /// Returns a function that sends this report. The caller calls it only if the work takes a long time.
    pub fn later(&self, report: FollowerReport) -> impl FnOnce() + Send + use<> {
        let sink = Arc::clone(&self.sink);
        move || sink.report(report)
    }

    pub fn ready(&self, digest: Digest, Preparation { cached, took, .. }: &Preparation) {
        self.say(FollowerReport::Ready { module: digest, cached: *cached, took: *took });
    }

    pub fn refused(&self, digest: Option<Digest>, error: String, instead: Option<Digest>) {
        self.say(FollowerReport::Refused { module: digest, error, instead });
    }

    pub fn unreachable(&mut self, error: String) {
        if self.unreachable_since.is_none() {
            self.unreachable_since = Some(Instant::now());
            self.say(FollowerReport::Unreachable { error });
        }
    }

    pub fn reachable(&mut self) {
        if let Some(since) = self.unreachable_since.take() {
            self.say(FollowerReport::Reachable { after: since.elapsed() });
        }
    }

    pub fn control_is_wrong(&mut self, error: String) {
        if self.control.as_ref() != Some(&error) {
            self.error(error.clone());
            self.control = Some(error);
        }
    }

    pub fn control_is_right(&mut self) {
        self.control = None;
    }

    pub fn nothing_is_pushed(&mut self, is_so: bool) {
        if is_so && !std::mem::replace(&mut self.nothing, is_so) && self.control.is_none() {
            let reason = format!(
                "no module is published for this election yet: run `baton push MODULE {}` with this host's `--store`",
                self.election
            );
            self.say(FollowerReport::NothingPushed { reason });
        }
        self.nothing = is_so;
    }

    /// Reports that the newest version is rejected, unless the rejection has already been reported. `instead` is the
    /// version that can run instead.
    pub fn newest(&mut self, newest: (Digest, u64), rejection: Option<&str>, instead: Option<Digest>) {
        match rejection {
            None => self.rejected = None,
            Some(_) if self.rejected == Some(newest) => {}
            Some(reason) => {
                self.rejected = Some(newest);
                self.say(FollowerReport::Rejected { module: newest.0, reason: reason.to_owned(), instead });
            }
        }
    }

    /// Suppresses the report of this rejection, because the supervisor has already reported it.
    pub fn is_told_of(&mut self, rejected: (Digest, u64)) {
        self.rejected = Some(rejected);
    }

    pub fn error(&self, error: String) {
        self.say(FollowerReport::Error { error });
    }

    fn say(&self, report: FollowerReport) {
        self.sink.report(report);
    }
}
