//! Sends traces and metrics to a collector of OpenTelemetry, over OTLP, if the environment names one. Without that there
//! is no thread, no queue and no client.
//!
//! A thread of its own does all of it. It reads what supervisors tell of themselves ([`Standing`](crate::telemetry::Standing))
//! and takes spans from a bounded queue, so nothing that renews, kills or gates waits for a collector, whatever that does.
//! Neither does the end of the host, but for [`LAST_WORDS`]. What a collector does not take in time is kept as long as there
//! is room, and then lost; how much was lost is told.
//!
//! A runner has no way to a collector: it tells the host of each request that its guest makes.

mod messages;
mod sender;
mod settings;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use reqwest::Client;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::config::Environment;
use crate::telemetry::{Log, SpanQueue};
use crate::watched::Watched;
use sender::Sender;
use settings::Settings;

/// How long the end of a host waits for a collector.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is to be exported, before it is.
pub(crate) struct Exports {
    settings: Settings,
    client: Client,
    queue: Arc<SpanQueue>,
}

impl Exports {
    /// What the environment asks for; none if that is nothing.
    ///
    /// # Errors
    /// Why nothing is exported though it is asked for.
    pub(crate) fn wanted(around: &Environment) -> anyhow::Result<Option<Self>> {
        let Some(settings) = Settings::of(around)? else { return Ok(None) };
        let client = sender::client(settings.certificate.as_deref())?;
        Ok(Some(Self { settings, client, queue: Arc::default() }))
    }

    /// Where spans are to go; none if nobody wants them.
    pub(crate) fn spans(&self) -> Option<Arc<SpanQueue>> {
        self.settings.traces.as_ref().map(|_| Arc::clone(&self.queue))
    }

    /// Sends from now on.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub(crate) fn start(self, incarnation: &str, watched: Arc<Watched>, log: Log) -> anyhow::Result<Exporter> {
        let sender = Sender::new(self, incarnation, watched, log);
        let runtime = Builder::new_current_thread().enable_all().thread_name("otlp").build()?;
        let ((stop, stopped), (ended, end)) = (oneshot::channel(), sync_channel(1));
        std::thread::Builder::new().name("otlp".into()).spawn(move || {
            runtime.block_on(sender.run(stopped, LAST_WORDS));
            // A name that is still looked up waits for the system, and nobody for that.
            runtime.shutdown_background();
            // Who waits may have given up.
            let _ = ended.send(());
        })?;
        Ok(Exporter { stop, end })
    }
}

/// The exporter at work: the owner of its thread.
pub(crate) struct Exporter {
    stop: oneshot::Sender<()>,
    end: Receiver<()>,
}

impl Exporter {
    /// Sends what there is, as far as that is taken at once, and nothing more. A thread that is late is left behind by
    /// the process. Blocks.
    pub(crate) fn shutdown(self) {
        let _ = self.stop.send(());
        let _ = self.end.recv_timeout(LAST_WORDS + Duration::from_millis(500));
    }
}
