//! Logs the reports of module followers.

use baton_modules::{FollowerReport, FollowerReportSink};

use std::sync::Arc;

use super::{ElectionTracker, Event, Log};

/// Sink for the reports of one follower.
pub struct FollowerLog {
    /// The election's log.
    pub log: Log,
    /// The state of this node in the election or, for a group, in each shard.
    pub trackers: Vec<Arc<ElectionTracker>>,
    /// The module source, as it appears in the log.
    pub source: String,
}

impl FollowerReportSink for FollowerLog {
    fn report(&self, report: FollowerReport) {
        let source = self.source.clone();
        if matches!(report, FollowerReport::NothingPushed { .. }) {
            self.trackers.iter().for_each(|tracker| tracker.set_awaits_push());
        }
        self.log.emit(
            None,
            match report {
                FollowerReport::NothingPushed { reason } => Event::Standby { reason, leader: None },
                FollowerReport::Pulling { module } => {
                    Event::Preparing { step: "fetching", module: module.to_string(), source }
                }
                FollowerReport::Compiling { module } => {
                    Event::Preparing { step: "compiling", module: module.to_string(), source }
                }
                FollowerReport::Ready { module, cached, took } => {
                    Event::ModuleReady { module: module.to_string(), source, cached, took_s: took.into() }
                }
                FollowerReport::Refused { module, error, instead } => {
                    let [module, instead] = [module, instead].map(|digest| digest.map(|digest| digest.to_string()));
                    Event::ModuleRefused { module, source, error, fallback: instead }
                }
                FollowerReport::Rejected { module, reason, instead } => {
                    let instead = instead.map(|digest| digest.to_string());
                    Event::VersionRejected { module: module.to_string(), reason, fallback: instead }
                }
                FollowerReport::Unreachable { error } => Event::Unreachable { what: source, error },
                FollowerReport::Reachable { after } => Event::Reachable { what: source, after_s: after.into() },
                FollowerReport::Error { error } => Event::Error { error },
            },
        );
    }
}
