//! A node's state, as probes, scrapers and the service manager see it. Any thread can read the state.

use std::sync::Arc;
use std::time::Duration;

use baton_base::clock::Clock;
use baton_base::gate::Watchdog;
use baton_election::ElectionName;
use baton_node::telemetry::{ElectionTracker, Event, Heartbeat, Log, Ring};
use baton_runtime::RunningInstances;
use baton_store::Labels;

/// Maximum age of the last heartbeat of a part of the host. A part with an older heartbeat counts as stuck.
const FRESH: Duration = Duration::from_secs(15);

/// Pause before the observer checks a late heartbeat again. When a suspended machine resumes, the observer may run
/// before the observed part of the host. The heartbeat is then late, although the part is not stuck.
pub const SECOND_LOOK: Duration = Duration::from_secs(1);

/// A node and its state.
pub struct Watched {
    /// The node's id.
    pub node: String,
    /// The node's labels.
    pub labels: Labels,
    /// The incarnation of the host.
    pub incarnation: String,
    /// The node's recent events.
    pub events: Arc<Ring>,
    /// The node's state in each election.
    pub trackers: Vec<Arc<ElectionTracker>>,
    /// The instances and the resources that they use.
    pub running: RunningInstances,
    /// The host's clock.
    pub clock: Clock,
    /// The watchdog, which ends the host if an instance does not exit in time.
    pub watchdog: Arc<Watchdog>,
    /// The heartbeat of the control runtime.
    pub heartbeat: Heartbeat,
    /// The log for changes that clients make through the admin endpoint; `None` if these changes are not logged.
    pub log: Option<Log>,
}

impl Watched {
    /// Logs a change that a client has made to an election through the admin endpoint.
    pub fn says(&self, election: &ElectionName, event: Event) {
        let tracker = self.trackers.iter().find(|tracker| tracker.election == *election);
        if let (Some(log), Some(tracker)) = (&self.log, tracker) {
            log.for_election(tracker).emit(None, event);
        }
    }

    /// Lists the parts of the host that have made no progress for too long.
    #[must_use]
    pub fn is_stuck(&self) -> Vec<String> {
        let now = self.clock.now();
        let supervisors = self
            .trackers
            .iter()
            .map(|tracker| (format!("the supervisor of {}", tracker.election), tracker.heartbeat.since(now)));
        let beats = [("the control runtime".to_owned(), self.heartbeat.since(now))];
        let mut stuck: Vec<String> = beats
            .into_iter()
            .chain(supervisors)
            .filter_map(|(what, since)| Some((what, since.filter(|since| *since > FRESH)?)))
            .map(|(what, since)| format!("{what} has made no progress for {} s", since.as_secs()))
            .collect();
        let late = self.watchdog.late(now);
        if late > FRESH {
            stuck.push(format!("the watchdog is {} s late", late.as_secs()));
        }
        stuck
    }

    /// Lists the requirements for a takeover that this node does not meet.
    #[must_use]
    pub fn lacks(&self) -> Vec<String> {
        let mut lacks = Vec::new();
        for tracker in &self.trackers {
            let election = &tracker.election;
            if !tracker.view().has_store {
                lacks.push(format!("{election}: the store has not answered yet"));
            }
            if !tracker.has_module() {
                lacks.push(format!("{election}: no module is ready yet"));
            }
        }
        lacks
    }
}

#[cfg(test)]
impl Watched {
    #[allow(clippy::unwrap_used, reason = "a test may panic")]
    pub(crate) fn of_nothing() -> Self {
        let clock = Clock::default();
        let election = baton_election::ElectionName::new("job").unwrap();
        let tracker = ElectionTracker::new(election, std::time::Duration::from_secs(15));
        let module = Some(baton_store::Digest::of(b""));
        tracker.publish(clock.now(), &baton_node::view::NodeView { module, ..Default::default() });
        Self {
            node: "web-3".to_owned(),
            labels: [("zone".to_owned(), "west".to_owned())].into(),
            incarnation: "00000000000000aa".to_owned(),
            events: Arc::new(Ring::of(1 << 20)),
            trackers: vec![Arc::new(tracker)],
            running: RunningInstances::default(),
            clock: clock.clone(),
            watchdog: Arc::new(Watchdog::start(clock, |_, _| {}).unwrap()),
            heartbeat: Heartbeat::default(),
            log: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_part_is_stuck_and_ended_part_is_not() {
        let watched = Watched::of_nothing();
        assert!(watched.is_stuck().is_empty(), "nothing has begun");
        let long_ago = baton_election::Time(Duration::from_nanos(1));
        let beats = [&watched.heartbeat, &watched.trackers[0].heartbeat];
        beats.iter().for_each(|beat| beat.beat(long_ago));
        let stuck = watched.is_stuck();
        let names =
            ["the control runtime has made no progress for ", "the supervisor of job has made no progress for "];
        assert!(stuck.len() == 2 && names.iter().zip(&stuck).all(|(name, one)| one.starts_with(name)), "{stuck:?}");
        beats[1].end();
        beats[0].beat(watched.clock.now());
        assert!(watched.is_stuck().is_empty());
    }
}
