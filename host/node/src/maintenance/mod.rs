//! Steps down before Azure freezes, reboots, redeploys, preempts or terminates this machine.
//!
//! Azure announces these events through its metadata service (Scheduled Events). While an event is pending, this node
//! is ineligible in all elections. The node steps down, and then acknowledges the event, so that Azure need not wait.
//! Baton's promises do not depend on these steps: after a freeze without an announcement, a leader finds that its term
//! is over.

mod document;
mod endpoint;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

pub use document::READER;
use document::ScheduledEvent;
pub use endpoint::{Endpoint, NoEndpoint};

use crate::telemetry::{ElectionTracker, Event, Log};

/// The file that contains the machine's chassis tag, and the value of that tag on all Azure machines.
const TAG: (&str, &str) = ("/sys/class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77");

const METADATA: &str = "http://169.254.169.254";

const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// Polling interval for planned events, as recommended by Azure.
const POLL: Duration = Duration::from_secs(1);

const AT_ONCE: usize = 16;

const STEP_DOWN_POLL: Duration = Duration::from_millis(50);

/// Time without a response from the metadata service after which the node reports an error and becomes eligible again.
/// When a machine first uses the service, Azure takes minutes to enable the service. A shorter time would cause a false
/// error.
const OUTAGE: Duration = Duration::from_secs(300);

/// The source of planned events, as set by `--scheduled-events`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ScheduledEvents {
    /// Azure's metadata service, if this is an Azure machine.
    #[default]
    Auto,
    /// The host does not poll planned events.
    Off,
    /// A metadata service at this address.
    At(Endpoint),
}

impl ScheduledEvents {
    /// Parses `auto`, `off` or a URL.
    ///
    /// # Errors
    /// [`NoEndpoint`] if `text` is anything else.
    pub fn new(text: &str) -> Result<Self, NoEndpoint> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            url => Endpoint::new(url).map(Self::At),
        }
    }

    /// Returns the metadata service to poll, if this machine has one.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        match self {
            Self::Off => None,
            Self::At(endpoint) => Some(endpoint.clone()),
            Self::Auto => {
                let tag = fs::read_to_string(TAG.0).unwrap_or_default();
                Endpoint::new(METADATA).ok().filter(|_| tag.trim() == TAG.1)
            }
        }
    }
}

impl fmt::Display for ScheduledEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::At(endpoint) => fmt::Display::fmt(endpoint, f),
        }
    }
}

/// The reason why this node is drained, which makes it ineligible in all elections. `None` if the node is not drained.
pub type Drained = Option<Arc<str>>;

/// Watches the planned events of this machine.
pub struct Maintenance {
    /// The metadata service.
    pub endpoint: Endpoint,
    /// The elections in which this node steps down.
    pub trackers: Vec<Arc<ElectionTracker>>,
    /// The channel to the supervisors of these elections.
    pub drained: watch::Sender<Drained>,
    /// The log to which events are written.
    pub log: Log,
}

impl Maintenance {
    /// Polls for planned events until the future is dropped.
    pub async fn watch(self) {
        // A Kubernetes node also runs other workloads, and this host must not acknowledge an event on their behalf.
        let may_acknowledge = std::env::var_os(IN_POD).is_none();
        let mut state = EventState::default();
        let machine = loop {
            match self.endpoint.machine().await {
                Ok(machine) => break machine,
                Err(error) => self.report_outage(&mut state, error),
            }
            sleep(POLL).await;
        };
        loop {
            match self.endpoint.planned().await {
                Ok(document) => {
                    (state.answered, state.has_complained) = (Instant::now(), false);
                    self.handle(&document.of(&machine), may_acknowledge, &mut state).await;
                }
                Err(error) => self.report_outage(&mut state, error),
            }
            sleep(POLL).await;
        }
    }

    async fn handle(&self, events: &[&ScheduledEvent], may_acknowledge: bool, state: &mut EventState) {
        state.forget_all_but(events);
        for event in events {
            if state.reported.insert(event.id.clone()) {
                self.log.emit(None, event.to_event());
            }
        }
        let Some(first) = events.first() else { return self.end_maintenance("the event is over") };
        let why: Arc<str> = first.why().into();
        self.drained.send_if_modified(|drained| {
            let is_news = drained.is_none();
            drained.get_or_insert(why);
            is_news
        });
        let to_acknowledge = |event: &&ScheduledEvent| {
            may_acknowledge && event.can_be_acknowledged() && !state.acknowledged.contains(&event.id)
        };
        let mut waiting: Vec<_> = events.iter().copied().filter(to_acknowledge).collect();
        // If the node has not stepped down yet, try again at the next poll, with the events that are planned by then.
        if waiting.is_empty() || !self.has_stepped_down().await {
            return;
        }
        // If an earlier acknowledgement of an event failed, acknowledge that event last, so that it does not delay the
        // others.
        waiting.sort_by_key(|event| state.refused.contains(&event.id));
        let mut answers = FuturesUnordered::new();
        for event in waiting.into_iter().take(AT_ONCE) {
            answers.push(async move { (event, self.endpoint.acknowledge(&event.id).await) });
        }
        while let Some((event, answer)) = answers.next().await {
            match answer {
                Ok(()) => {
                    self.log.emit(None, event.to_event_in("Acknowledged"));
                    state.acknowledged.insert(event.id.clone());
                }
                Err(error) => self.refused(state, event, &error),
            }
        }
    }

    /// Reports at most one failed acknowledgement per event. Azure starts the event later anyway.
    fn refused(&self, state: &mut EventState, event: &ScheduledEvent, error: &str) {
        if !state.refused.insert(event.id.clone()) {
            return;
        }
        let error = format!(
            "cannot acknowledge the event {} at {}: {error}; retrying. Azure begins the event at {} anyway, and this \
             node stays ineligible until then. Check what blocks POST from this host (a firewall, a metadata proxy)",
            event.id,
            self.endpoint,
            event.begins()
        );
        self.log.emit(None, Event::Error { error });
    }

    /// Waits for at most [`POLL`]. Returns true once this node leads no election and runs no instance.
    async fn has_stepped_down(&self) -> bool {
        let until = Instant::now() + POLL;
        loop {
            if self.trackers.iter().all(|tracker| tracker.view().is_drained) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            sleep(STEP_DOWN_POLL).await;
        }
    }

    fn report_outage(&self, state: &mut EventState, error: String) {
        if state.answered.elapsed() < OUTAGE || std::mem::replace(&mut state.has_complained, true) {
            return;
        }
        let error = format!(
            "cannot read the scheduled events of this machine at {}: {error}; retrying (--scheduled-events off stops \
             this)",
            self.endpoint
        );
        self.log.emit(None, Event::Error { error });
        self.end_maintenance("the scheduled events cannot be read");
    }

    fn end_maintenance(&self, reason: &str) {
        if self.drained.send_replace(None).is_some() {
            let (reason, status) = (reason.to_owned(), "Over");
            self.log.emit(None, Event::Maintenance { reason, id: None, status, not_before: None, description: None });
        }
    }
}

struct EventState {
    reported: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    /// Events whose failed acknowledgement has been reported.
    refused: BTreeSet<String>,
    answered: Instant,
    has_complained: bool,
}

impl EventState {
    fn forget_all_but(&mut self, events: &[&ScheduledEvent]) {
        let planned: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        for ids in [&mut self.reported, &mut self.acknowledged, &mut self.refused] {
            ids.retain(|id| planned.contains(id.as_str()));
        }
    }
}

impl Default for EventState {
    fn default() -> Self {
        let (reported, acknowledged, refused) = Default::default();
        Self { reported, acknowledged, refused, answered: Instant::now(), has_complained: false }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::fd::AsFd;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::{Format, Style};

    /// Refuses the acknowledgement of event A, as a firewall that blocks POST would do. Accepts all other
    /// acknowledgements.
    async fn refuse_event_a(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut request, mut piece) = (Vec::new(), [0; 4096]);
            while !request.ends_with(b"}]}") {
                let length = stream.read(&mut piece).await.unwrap();
                request.extend_from_slice(&piece[..length]);
            }
            let status = if request.ends_with(br#":"A"}]}"#) { "403 no" } else { "200 yes" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }

    #[tokio::test]
    async fn refused_acknowledgement_is_reported_once_and_delays_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let _serves = tokio::spawn(refuse_event_a(listener));
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere: Box<dyn AsFd + Send> = Box::new(fs::File::create("/dev/null").unwrap());
        let (log, writer) = Log::start(style, &NodeId::new("web-3").unwrap(), nowhere).unwrap();
        let maintenance =
            Maintenance { endpoint, trackers: Vec::new(), drained: watch::Sender::new(None), log: log.clone() };
        let mut state = EventState::default();
        for ids in [&["A", "B"][..], &["A", "B"], &["A", "C"], &["A"]] {
            let planned = document::freezes(ids, "web-3");
            maintenance.handle(&planned.of("web-3"), true, &mut state).await;
            assert_eq!(state.reported.len(), ids.len(), "events that are over are forgotten");
        }
        assert_eq!(state.refused, ["A".to_owned()].into());
        log.written().await;
        let events = log.events().since(0).said.iter().map(|line| line.json(true)).collect::<Vec<_>>();
        let of = |text: &str| events.iter().filter(|event| event.contains(text)).collect::<Vec<_>>();
        let (errors, taken) = (of("cannot acknowledge"), of("Acknowledged"));
        assert_eq!((errors.len(), taken.len()), (1, 2), "{events:?}");
        assert!(errors[0].contains("event A") && errors[0].contains("403") && errors[0].contains("POST"), "{errors:?}");
        assert!(taken[0].contains("\"B\"") && taken[1].contains("\"C\""), "{taken:?}");
        writer.shutdown(Duration::from_secs(10));
    }
}
