//! The links thread runs the hub, and restarts the hub after a failure. No thread that renews leases, kills instances
//! or gates effects waits for the links thread.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener as StdListener;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_base::jitter::{between, doubled};
use baton_election::ElectionName;
use baton_store::{ChangeNotifier, ObjectStore};
use futures::FutureExt as _;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use super::hub::{ElectionSinks, Hub, HubListeners};
use super::peer_addr::PeerListener;
use super::peers::Network;
use super::sockets;
use super::wire::LeaderMessage;
use super::{LinkEndpoint, LinkHandle, LinkSettings, Order, OrderKind, link};
use crate::telemetry::{ElectionTracker, Event, Log};

const RESTART_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Minimum lifetime of a successful hub. A successful hub resets the restart backoff.
const SUCCESS_AFTER: Duration = Duration::from_secs(60);
const ORDER_QUEUE: usize = 256;
const LISTENS_WITHIN: Duration = Duration::from_secs(5);
/// Time allowed at shutdown for sending the remaining messages.
const STOP_WITHIN: Duration = Duration::from_millis(500);
/// Maximum number of blocking threads. They resolve the names of peers and of the store, and open the links folder.
const THREADS: usize = 8;

/// The links of a host.
pub struct Links {
    node: String,
    incarnation: String,
    /// The folder with the sockets of this machine's hosts. `None` if links to hosts on this machine are disabled.
    folder: Option<PathBuf>,
    /// `None` if links to other machines are disabled. The store holds the announcements of the peers.
    peers: Option<(PeerListener, Arc<dyn ObjectStore>)>,
    max_links: usize,
    endpoints: Vec<LinkEndpoint>,
}

/// The links thread, which ends when the supervisors of all elections have ended, or soon after this handle is dropped.
pub struct LinksThread {
    stop: watch::Sender<bool>,
    /// Closed when the thread is about to end.
    works: watch::Receiver<()>,
}

impl Links {
    /// Creates the links for a host's incarnation, with at most `max_links` open at a time. If `folder` is set, it is
    /// the folder that contains the sockets of this machine's hosts. If `peers` is set, the host also links with other
    /// machines, and finds their addresses in the store.
    #[must_use]
    pub fn new(
        (node, incarnation): (&str, &str),
        folder: Option<PathBuf>,
        peers: Option<(PeerListener, Arc<dyn ObjectStore>)>,
        max_links: usize,
    ) -> Self {
        let (node, incarnation) = (node.to_owned(), incarnation.to_owned());
        Self { node, incarnation, folder, peers, max_links, endpoints: Vec::new() }
    }

    /// Returns the supervisor's handle to an election's links. `notifier` is notified of changes in the store.
    pub fn handle(
        &mut self,
        election: ElectionName,
        notifier: &ChangeNotifier,
        tracker: &Arc<ElectionTracker>,
        log: &Log,
    ) -> LinkHandle {
        if self.folder.is_none() && self.peers.is_none() {
            return LinkHandle::off();
        }
        let (handle, endpoint) = link(election, notifier.clone(), Arc::clone(tracker), log.clone());
        self.endpoints.push(endpoint);
        handle
    }

    /// Starts the thread. Returns `None` if no election has links.
    ///
    /// # Errors
    /// If the operating system refuses a resource.
    pub fn start(self, log: Log) -> io::Result<Option<LinksThread>> {
        if self.endpoints.is_empty() {
            return Ok(None);
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(THREADS).build()?;
        let (stop, mut stopped) = watch::channel(false);
        let (at_work, works) = watch::channel(());
        // The thread is not joined: if the store's disk hangs, the thread may block forever.
        std::thread::Builder::new().name("links".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = keep_linked(self, &log) => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
            drop(at_work);
            // Do not wait for a name that is still being resolved.
            runtime.shutdown_background();
        })?;
        Ok(Some(LinksThread { stop, works }))
    }
}

impl LinksThread {
    /// Waits briefly for the remaining messages to be sent, then ends the thread.
    pub async fn shutdown(mut self) {
        let _ = timeout(STOP_WITHIN, self.works.changed()).await;
    }
}

impl Drop for LinksThread {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

struct HubConfig {
    node: String,
    incarnation: String,
    folder: Option<PathBuf>,
    network: Option<(Arc<Network>, StdListener)>,
    max_links: usize,
}

/// Runs one hub after another, until the supervisors of all elections have ended.
async fn keep_linked(links: Links, log: &Log) {
    let Links { node, incarnation, folder, peers, max_links, endpoints } = links;
    let (orders, mut queue) = mpsc::channel(ORDER_QUEUE);
    let mut sinks = BTreeMap::new();
    let mut settings = Vec::new();
    let mut forwarders = JoinSet::new();
    for LinkEndpoint { election, settings: wanted, messages, hints, listened, notifier, tracker, log } in endpoints {
        settings.push((election.to_string(), wanted.clone()));
        forwarders.spawn(forward(election.to_string(), wanted, messages, notifier.finds(), orders.clone()));
        let sink = ElectionSinks { hints, listened, notifier, tracker, log, linked: None, unreachable: None };
        sinks.insert(election.to_string(), sink);
    }
    drop(orders);
    let network = peers.map(|(PeerListener { listener, identity, .. }, store)| {
        Network::new(identity, store, sinks.keys().cloned().collect()).map(|network| (Arc::new(network), listener))
    });
    let network = network.transpose().unwrap_or_else(|error| {
        log.emit(None, Event::Error { error: format!("there are no links with other machines: {error}") });
        None
    });
    let config = HubConfig { node, incarnation, folder, network, max_links };
    let mut failures = 0_u32;
    let mut logged = None;
    loop {
        let began = Instant::now();
        // Catching panics here is safe: a panic drops the hub with its state, and the sinks are reset below.
        let ended = AssertUnwindSafe(config.link(&settings, &mut queue, &mut sinks)).catch_unwind().await;
        let why = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "a bug in Baton: the links panicked".to_owned(),
        };
        sinks.values_mut().for_each(ElectionSinks::reset);
        if began.elapsed() >= SUCCESS_AFTER {
            (failures, logged) = (0, None);
        }
        if logged.as_ref() != Some(&why) {
            let error = format!("links are down, so this node polls the store more often: {why}");
            log.emit(None, Event::Error { error });
            logged = Some(why);
        }
        let wait = doubled(RESTART_BACKOFF, failures);
        failures = failures.saturating_add(1);
        sleep(between(wait / 2, wait)).await;
    }
}

impl HubConfig {
    /// Runs a hub until the supervisors of all elections have ended.
    ///
    /// # Errors
    /// If this host cannot listen.
    async fn link(
        &self,
        settings: &[(String, watch::Receiver<LinkSettings>)],
        orders: &mut mpsc::Receiver<Order>,
        sinks: &mut BTreeMap<String, ElectionSinks>,
    ) -> io::Result<()> {
        let (folder, local) = match self.folder.clone() {
            Some(folder) => {
                let incarnation = self.incarnation.clone();
                let listens = spawn_blocking(move || sockets::listen_in(&folder, &incarnation));
                let listening = timeout(LISTENS_WITHIN, listens).await.map_err(|_| {
                    let why = format!("the disk of the links folder did not respond within {LISTENS_WITHIN:?}");
                    io::Error::new(io::ErrorKind::TimedOut, why)
                })?;
                let (folder, listener) = listening.map_err(io::Error::other)??;
                (Some(Arc::new(folder)), Some(UnixListener::from_std(listener)?))
            }
            None => (None, None),
        };
        let network = match &self.network {
            Some((_, listener)) => {
                let listener = listener.try_clone()?;
                listener.set_nonblocking(true)?;
                Some(TcpListener::from_std(listener)?)
            }
            None => None,
        };
        let listeners = HubListeners { local, network };
        let network = self.network.as_ref().map(|(network, _)| Arc::clone(network));
        let (mut hub, events) = Hub::new((&self.node, &self.incarnation), folder, network, self.max_links, sinks);
        for (election, wanted) in settings {
            hub.handle_order(settings_order(election, &wanted.borrow()));
        }
        hub.run(events, orders, &listeners).await;
        Ok(())
    }
}

fn settings_order(election: &str, settings: &LinkSettings) -> Order {
    Order { election: election.to_owned(), kind: OrderKind::Settings(settings.clone()) }
}

/// Forwards three things to the hub: the supervisor's settings, the supervisor's messages, and the news that this host
/// has found a change in the store.
async fn forward(
    election: String,
    mut wanted: watch::Receiver<LinkSettings>,
    mut messages: mpsc::Receiver<LeaderMessage>,
    mut finds: watch::Receiver<u64>,
    orders: mpsc::Sender<Order>,
) {
    loop {
        let tell = |message| Order { election: election.clone(), kind: OrderKind::Tell(message) };
        let order = tokio::select! {
            biased;
            message = messages.recv() => match message {
                Some(message) => tell(message),
                // The supervisor has ended.
                None => return,
            },
            Ok(()) = wanted.changed() => settings_order(&election, &wanted.borrow_and_update()),
            Ok(()) = finds.changed() => tell(LeaderMessage::Look),
        };
        if orders.send(order).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::os::unix::fs::PermissionsExt as _;

    use baton_test_support::patience::Patience;

    use super::*;
    use crate::node::NodeId;
    use crate::telemetry::Format;

    #[test]
    fn host_that_cannot_listen_tries_again() {
        let store = tempfile::tempdir().unwrap();
        let folder = store.path().join("links");
        std::fs::create_dir(&folder).unwrap();
        let set_mode = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o755);
        let job = ElectionName::new("job").unwrap();
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        let tracker = Arc::new(ElectionTracker::new(job.clone(), Duration::from_secs(15)));
        let mut links = Links::new(("web-1", "a1"), Some(folder.clone()), None, 10);
        let _handle = links.handle(job, &tracker.notifier, &tracker, &log);
        let _thread = links.start(log).unwrap().unwrap();
        set_mode(0o700);
        let listens = || std::os::unix::net::UnixStream::connect(folder.join("a1")).ok();
        assert!(Patience::poll(Duration::from_millis(20), listens).is_ok());
    }
}
