//! What the exporter's thread does: one request after another, each bounded in time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Certificate, Client, ClientBuilder, StatusCode, redirect};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Exports;
use super::messages;
use super::settings::{CERTIFICATE, Collector, Settings};
use crate::admin::metrics;
use crate::telemetry::{Event, Log, SpanQueue, Waiting};
use crate::watched::Watched;
use baton_election::Time;
use baton_runtime::read_file;
use baton_store::clock::wall;

/// Spans that are sent together.
const TOGETHER: usize = 512;

/// A collector that does not take spans is asked again after a while, at the most after so long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The answer is read to its end, so that the connection can be used again, unless it is longer than this.
const LONGEST_ANSWER: usize = 64 << 10;

/// The longest file of certificates.
const LONGEST_CERTIFICATE: u64 = 1 << 20;

/// Sends traces and metrics.
pub(super) struct Sender {
    client: Client,
    settings: Settings,
    resource: Resource,
    queue: Arc<SpanQueue>,
    watched: Arc<Watched>,
    log: Log,
    began: Duration,
    /// Since when the collectors do not answer, and what was said of that.
    trouble: BTreeMap<&'static str, Time>,
    /// How long spans wait after a failure, and until when.
    pause: (Duration, Time),
}

/// What became of a request.
enum Sent {
    Taken,
    /// Not now.
    Later(String),
    /// And it would be no better another time.
    Refused(String),
}

/// What sends requests to collectors, which are certified by Mozilla's authorities and those in that file.
///
/// # Errors
/// Why the file cannot be used.
pub(super) fn client(certificate: Option<&Path>) -> anyhow::Result<Client> {
    let user_agent = concat!("baton/", env!("CARGO_PKG_VERSION"));
    // Headers may be secrets, which are for the collector that was named.
    let mut client = Client::builder().no_proxy().redirect(redirect::Policy::none()).user_agent(user_agent);
    if let Some(path) = certificate {
        let place = || format!("{CERTIFICATE}: {}", path.display());
        let text = read_file(path, LONGEST_CERTIFICATE).with_context(place)?;
        let certificates = Certificate::from_pem_bundle(&text).with_context(place)?;
        anyhow::ensure!(!certificates.is_empty(), "{}: the file contains no PEM certificate", place());
        client = certificates.into_iter().fold(client, ClientBuilder::add_root_certificate);
    }
    client.build().context("cannot create an HTTP client")
}

impl Sender {
    pub(super) fn new(exports: Exports, incarnation: &str, watched: Arc<Watched>, log: Log) -> Self {
        let Exports { settings, client, queue } = exports;
        let resource = messages::resource(&settings.resource, &watched.node, incarnation);
        let (began, trouble, pause) = (wall(), BTreeMap::new(), (Duration::ZERO, Time::default()));
        Self { client, settings, resource, queue, watched, log, began, trouble, pause }
    }

    /// Sends until it is told to stop, and then what there is, for so long at the most.
    pub(super) async fn run(mut self, mut stopped: oneshot::Receiver<()>, last: Duration) {
        let mut spans = interval(self.settings.traces_every);
        let mut samples = interval(self.settings.metrics_every);
        for ticks in [&mut spans, &mut samples] {
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first is at once, when there is nothing to be told.
            ticks.tick().await;
        }
        loop {
            let is_stopped = tokio::select! {
                biased;
                _ = &mut stopped => true,
                _ = spans.tick() => self.until(&mut stopped, Self::send_spans).await,
                _ = samples.tick() => self.until(&mut stopped, Self::send_metrics).await,
            };
            if is_stopped {
                break;
            }
        }
        let _ = timeout(last, async {
            self.pause = (Duration::ZERO, Time::default());
            self.send_spans().await;
            self.send_metrics().await;
        })
        .await;
        self.say_lost();
    }

    /// Sends, unless it is told to stop meanwhile: then the request is given up.
    async fn until(&mut self, stopped: &mut oneshot::Receiver<()>, send: impl AsyncFnOnce(&mut Self)) -> bool {
        tokio::select! {
            biased;
            _ = stopped => true,
            () = send(self) => false,
        }
    }

    async fn send_spans(&mut self) {
        let Some(collector) = self.settings.traces.clone() else { return };
        self.say_lost();
        while self.watched.clock.now() >= self.pause.1 {
            let mut batch = Batch { queue: Arc::clone(&self.queue), spans: self.queue.take(TOGETHER) };
            if batch.spans.is_empty() {
                return;
            }
            let message = messages::traces(self.resource.clone(), &batch.spans, &self.watched.node);
            let sent = self.send(&collector, message.encode_to_vec()).await;
            match &sent {
                Sent::Taken => drop(std::mem::take(&mut batch.spans)),
                Sent::Refused(_) => self.queue.lose(std::mem::take(&mut batch.spans).len()),
                // The batch goes back.
                Sent::Later(_) => {}
            }
            let longer = (self.pause.0 * 2).clamp(self.settings.traces_every, LONGEST_PAUSE);
            self.pause = match sent {
                Sent::Later(_) => (longer, self.watched.clock.now() + longer),
                _ => (Duration::ZERO, Time::default()),
            };
            self.told("traces", &collector, sent);
        }
    }

    async fn send_metrics(&mut self) {
        let Some(collector) = self.settings.metrics.clone() else { return };
        let families = metrics::families(&self.watched);
        let message = messages::metrics(self.resource.clone(), families, self.began, wall());
        // What did not arrive is in the next ones.
        let sent = self.send(&collector, message.encode_to_vec()).await;
        self.told("metrics", &collector, sent);
    }

    async fn send(&self, collector: &Collector, message: Vec<u8>) -> Sent {
        let request = self
            .client
            .post(collector.url.clone())
            .headers(collector.headers.clone())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .timeout(collector.timeout)
            .body(message);
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Sent::Later(format!("{:#}", anyhow::Error::new(error.without_url()))),
        };
        let status = response.status();
        let mut read = 0;
        while let Ok(Some(part)) = response.chunk().await
            && read < LONGEST_ANSWER
        {
            read += part.len();
        }
        match status {
            status if status.is_success() => Sent::Taken,
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Sent::Later(format!("the collector returned status {status}")),
            status => Sent::Refused(format!("the collector returned status {status}")),
        }
    }

    /// Says when a collector takes nothing any more, and when it does again.
    fn told(&mut self, what: &'static str, collector: &Collector, sent: Sent) {
        let now = self.watched.clock.now();
        match sent {
            Sent::Taken => {
                if let Some(since) = self.trouble.remove(what) {
                    let after_s = now.since(since).into();
                    self.log.emit(None, Event::CollectorRecovered { what, after_s });
                }
            }
            Sent::Later(error) | Sent::Refused(error) => {
                if let Entry::Vacant(entry) = self.trouble.entry(what) {
                    entry.insert(now);
                    let mut url = collector.url.clone();
                    // What may be secrets.
                    let _ = url.set_username("").and_then(|()| url.set_password(None));
                    url.set_query(None);
                    self.log.emit(None, Event::CollectorUnreachable { what, collector: url.to_string(), error });
                }
            }
        }
    }

    fn say_lost(&self) {
        let spans = self.queue.take_lost();
        if spans > 0 {
            self.log.emit(None, Event::SpansLost { spans });
        }
    }
}

/// Spans that are on their way. Unless they are taken or lost, they are put back, also by who gives the request up.
struct Batch {
    queue: Arc<SpanQueue>,
    spans: Vec<Waiting>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.queue.put_back(std::mem::take(&mut self.spans));
    }
}
