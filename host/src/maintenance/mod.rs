//! What Azure is about to do to the machine that this host runs on: it is frozen, rebooted, redeployed, preempted or
//! terminated. The machine is told of it before, by Scheduled Events of its metadata service. While there is such an event
//! this node takes part in no election: it steps down first, and then acknowledges the event, so that it need not be waited
//! for.
//!
//! Nothing rests on it: a machine that is frozen without a word wakes up without its term.

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

pub(crate) use document::READER;
use document::ScheduledEvent;
pub use endpoint::{Endpoint, NoEndpoint};

use crate::telemetry::{Event, Log, Standing};

/// By this tag of the chassis a machine of Azure is known.
const TAG: (&str, &str) = ("/sys/class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77");

/// Where a machine of Azure asks for its metadata.
const METADATA: &str = "http://169.254.169.254";

/// In a container of Kubernetes.
const IN_POD: &str = "KUBERNETES_SERVICE_HOST";

/// How often it is asked, as Azure advises.
const EVERY: Duration = Duration::from_secs(1);

/// How many events are acknowledged at a time.
const AT_ONCE: usize = 16;

/// How often it is looked at whether this node has stepped down.
const LOOK: Duration = Duration::from_millis(50);

/// The service is made for a machine that asks for the first time, which takes minutes. After so long without an answer
/// that is said, and a node that stays out for an event comes back.
const OUTAGE: Duration = Duration::from_secs(300);

/// Where to ask what is planned for this machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ScheduledEvents {
    /// Where Azure answers, if this machine is one of Azure.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// At this address.
    At(Endpoint),
}

impl ScheduledEvents {
    /// Reads `auto`, `off` or a URL.
    ///
    /// # Errors
    /// [`NoEndpoint`] for anything else.
    pub fn new(text: &str) -> Result<Self, NoEndpoint> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            url => Endpoint::new(url).map(Self::At),
        }
    }

    /// Who is to be asked; nobody on a machine that has nobody to ask.
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

/// Why this node stays out of its elections, for now; none while it takes part.
pub type Away = Option<Arc<str>>;

/// Watches what is planned for the machine.
pub struct Maintenance {
    /// Who is asked.
    pub endpoint: Endpoint,
    /// The elections that this node steps down from.
    pub standings: Vec<Arc<Standing>>,
    /// Tells their supervisors.
    pub away: watch::Sender<Away>,
    /// Where it tells what is planned.
    pub log: Log,
}

impl Maintenance {
    /// Watches for as long as it is polled.
    pub async fn watch(self) {
        // What else runs on a node of Kubernetes is not there for this host to speak for.
        let may_acknowledge = std::env::var_os(IN_POD).is_none();
        let mut seen = Seen::default();
        let machine = loop {
            match self.endpoint.machine().await {
                Ok(machine) => break machine,
                Err(error) => self.unanswered(&mut seen, error),
            }
            sleep(EVERY).await;
        };
        loop {
            match self.endpoint.planned().await {
                Ok(document) => {
                    (seen.answered, seen.has_complained) = (Instant::now(), false);
                    self.heed(&document.of(&machine), may_acknowledge, &mut seen).await;
                }
                Err(error) => self.unanswered(&mut seen, error),
            }
            sleep(EVERY).await;
        }
    }

    /// Steps down for what is planned, and acknowledges it then.
    async fn heed(&self, events: &[&ScheduledEvent], may_acknowledge: bool, seen: &mut Seen) {
        seen.forget_all_but(events);
        for event in events {
            if seen.said.insert(event.id.clone()) {
                self.log.emit(None, event.told());
            }
        }
        let Some(first) = events.first() else { return self.comes_back("the event is over") };
        let why: Arc<str> = first.why().into();
        self.away.send_if_modified(|away| {
            let is_news = away.is_none();
            away.get_or_insert(why);
            is_news
        });
        let to_acknowledge = |event: &&ScheduledEvent| {
            may_acknowledge && event.can_be_acknowledged() && !seen.acknowledged.contains(&event.id)
        };
        let mut waiting: Vec<_> = events.iter().copied().filter(to_acknowledge).collect();
        // It may be over before: then there is another to look at.
        if waiting.is_empty() || !self.has_stepped_down().await {
            return;
        }
        // One that is refused, or not answered, keeps none of the others waiting.
        waiting.sort_by_key(|event| seen.refused.contains(&event.id));
        let mut answers = FuturesUnordered::new();
        for event in waiting.into_iter().take(AT_ONCE) {
            answers.push(async move { (event, self.endpoint.acknowledge(&event.id).await) });
        }
        while let Some((event, answer)) = answers.next().await {
            match answer {
                Ok(()) => {
                    self.log.emit(None, Event::MaintenanceAcknowledged { id: event.id.clone() });
                    seen.acknowledged.insert(event.id.clone());
                }
                Err(error) => self.refused(seen, event, &error),
            }
        }
    }

    /// An acknowledgement was not taken: the event begins all the same, later.
    fn refused(&self, seen: &mut Seen, event: &ScheduledEvent, error: &str) {
        if !seen.refused.insert(event.id.clone()) {
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

    /// Waits until this node follows and runs nothing, for as long as it takes until the next look at what is planned.
    async fn has_stepped_down(&self) -> bool {
        let until = Instant::now() + EVERY;
        loop {
            if self.standings.iter().all(|standing| standing.known().is_out) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            sleep(LOOK).await;
        }
    }

    fn unanswered(&self, seen: &mut Seen, error: String) {
        if seen.answered.elapsed() < OUTAGE || std::mem::replace(&mut seen.has_complained, true) {
            return;
        }
        let error = format!(
            "cannot read the scheduled events of this machine at {}: {error}; retrying (--scheduled-events off stops \
             this)",
            self.endpoint
        );
        self.log.emit(None, Event::Error { error });
        self.comes_back("the scheduled events cannot be read");
    }

    fn comes_back(&self, reason: &str) {
        if self.away.send_replace(None).is_some() {
            self.log.emit(None, Event::MaintenanceOver { reason: reason.to_owned() });
        }
    }
}

/// What was seen so far of the events.
struct Seen {
    said: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    /// Those whose acknowledgement failed, which was said.
    refused: BTreeSet<String>,
    answered: Instant,
    has_complained: bool,
}

impl Seen {
    /// What is planned no more need not be known.
    fn forget_all_but(&mut self, events: &[&ScheduledEvent]) {
        let planned: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        for ids in [&mut self.said, &mut self.acknowledged, &mut self.refused] {
            ids.retain(|id| planned.contains(id.as_str()));
        }
    }
}

impl Default for Seen {
    fn default() -> Self {
        let (said, acknowledged, refused) = Default::default();
        Self { said, acknowledged, refused, answered: Instant::now(), has_complained: false }
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

    /// Answers each request, whose body it reads whole, by that status; refuses what speaks of the event A. Such is a
    /// firewall that lets readings through and nothing else.
    async fn refuses_a(listener: TcpListener) {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut asked, mut piece) = (Vec::new(), [0; 4096]);
            while !asked.ends_with(b"}]}") {
                let length = stream.read(&mut piece).await.unwrap();
                asked.extend_from_slice(&piece[..length]);
            }
            let status = if asked.ends_with(br#":"A"}]}"#) { "403 no" } else { "200 yes" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    }

    #[tokio::test]
    async fn an_acknowledgement_that_is_not_taken_is_said_once_and_holds_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let _serves = tokio::spawn(refuses_a(listener));
        let style = Style { format: Format::Json, terminal: false, colours: false };
        let nowhere: Box<dyn AsFd + Send> = Box::new(fs::File::create("/dev/null").unwrap());
        let (log, writer) = Log::start(style, &NodeId::new("web-3").unwrap(), nowhere).unwrap();
        let maintenance =
            Maintenance { endpoint, standings: Vec::new(), away: watch::Sender::new(None), log: log.clone() };
        let mut seen = Seen::default();
        for ids in [&["A", "B"][..], &["A", "B"], &["A", "C"], &["A"]] {
            let planned = document::freezes(ids, "web-3");
            maintenance.heed(&planned.of("web-3"), true, &mut seen).await;
            assert_eq!(seen.said.len(), ids.len(), "what is over is forgotten");
        }
        assert_eq!(seen.refused, ["A".to_owned()].into());
        log.written().await;
        let events = log.events().since(0).said.iter().map(|said| said.json(true)).collect::<Vec<_>>();
        let of = |text: &str| events.iter().filter(|event| event.contains(text)).collect::<Vec<_>>();
        let (errors, taken) = (of("cannot acknowledge"), of("maintenance_acknowledged"));
        assert_eq!((errors.len(), taken.len()), (1, 2), "{events:?}");
        assert!(errors[0].contains("event A") && errors[0].contains("403") && errors[0].contains("POST"), "{errors:?}");
        assert!(taken[0].contains("\"B\"") && taken[1].contains("\"C\""), "{taken:?}");
        writer.shutdown(Duration::from_secs(10));
    }
}
