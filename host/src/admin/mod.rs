//! The admin endpoint: what probes, load balancers and scrapers ask a node.
//!
//! It has a thread of its own: a renewal waits for no request, however many there are or slow they arrive. It reads what
//! supervisors tell of themselves ([`Standing`](crate::telemetry::Standing)), and the clock: an answer that says "this node
//! leads" is true when it is made, whether the supervisor still turns or not. What operators ask of the nodes here
//! (`steering`) goes through the store, as that of commands does, and this host hears of it there.
//!
//! Health, the way to the leader and metrics are open to everyone who reaches the address, in plain HTTP: probes and
//! scrapers need them, and they tell who leads and what was counted. Who may see or do more is in `access`.

mod access;
mod connections;
mod events;
mod history;
pub(crate) mod metrics;
mod modules;
mod page;
mod routes;
mod status;
mod steering;
mod streams;
mod url;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::nice;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use access::Access;
pub use access::{Certificate, TOKEN_FILE, TlsFiles, UnusableFile, token};
use routes::Asked;
pub use url::{AdminUrl, InvalidAdminUrl};

use crate::watched::Watched;
use baton_store::{Store, StoreUrl};

/// Where the endpoint is unless it is told: the first of these ports that is free.
const PORTS: Range<u16> = 7070..7170;

/// How much less urgent than the rest of the host answers are, as a niceness.
const LESS_URGENT: i32 = 10;

/// How long those who read streams may take for what is left when the host ends: its end is the last that it says.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Whether they have, it is looked at so often.
const LOOK: Duration = Duration::from_millis(10);

/// Where the endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminPlace {
    /// Nowhere.
    Off,
    /// On the loopback, at the first free port from 7070 on.
    Free,
    /// At this address.
    At(SocketAddr),
}

impl fmt::Display for AdminPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("none"),
            Self::Free => write!(f, "{}:{} (or the next free port)", Ipv4Addr::LOCALHOST, PORTS.start),
            Self::At(address) => fmt::Display::fmt(address, f),
        }
    }
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address that was given cannot be had.
    #[error("--admin {address}: cannot listen on this address; give another address, or none")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] UnusableFile),
    /// None on the loopback can.
    #[error(
        "cannot start the admin endpoint: no port of {} is free; give an address with --admin, or none",
        Ipv4Addr::LOCALHOST
    )]
    NoLoopback(#[source] io::Error),
}

impl AdminError {
    /// Whether it says something about this machine at this moment, and nothing about the settings.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable};
        matches!(self, Self::Taken { source, .. } if [AddrInUse, AddrNotAvailable].contains(&source.kind()))
    }
}

/// How the endpoint is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminSettings {
    /// Where it is.
    pub place: AdminPlace,
    /// The file of the token that other machines need.
    pub token_file: Option<PathBuf>,
    /// The certificate that they know it by.
    pub tls: Option<TlsFiles>,
    /// Where others find it; none to tell them its own address, if that is of use to them.
    pub advertise: Option<AdminUrl>,
}

impl AdminSettings {
    /// What others are told: where they find the endpoint that has this address. None where that would be of no use: on
    /// the loopback of a machine that is not the store's, or on all addresses of a machine.
    #[must_use]
    pub fn advertised(&self, address: SocketAddr, store: &StoreUrl) -> Option<AdminUrl> {
        if let Some(url) = &self.advertise {
            return Some(url.clone());
        }
        let is_one_machine = is_of_one_machine(store);
        let (is_everywhere, is_here) = (address.ip().is_unspecified(), address.ip().is_loopback());
        let address = match is_everywhere || is_here {
            true if !is_one_machine => return None,
            true if is_everywhere => (Ipv4Addr::LOCALHOST, address.port()).into(),
            true | false => address,
        };
        // From this machine it is asked as probes ask.
        let scheme = if self.tls.is_some() && !address.ip().is_loopback() { "https" } else { "http" };
        format!("{scheme}://{address}").parse().ok()
    }
}

/// Whether all nodes of a store run on the machine that it is on, so that its loopback is theirs.
#[must_use]
pub fn is_of_one_machine(store: &StoreUrl) -> bool {
    match store {
        StoreUrl::Memory | StoreUrl::Sqlite(_) => true,
        StoreUrl::Azurite { address, .. } => {
            format!("http://{address}").parse().is_ok_and(|url: AdminUrl| url.is_private())
        }
        StoreUrl::Azure { .. } => false,
    }
}

/// An endpoint that answers nothing yet, and has its address.
pub struct Listening {
    listener: TcpListener,
    access: Access,
    certificate: Option<Certificate>,
}

impl Listening {
    /// Takes the address, so that nobody else has it; none if it is to be nowhere.
    ///
    /// # Errors
    /// [`AdminError`] where it cannot be had, or a file is not what it must be.
    pub fn with(settings: &AdminSettings) -> Result<Option<Self>, AdminError> {
        let AdminSettings { place, token_file, tls, .. } = settings;
        if let Some(file) = token_file {
            token(TOKEN_FILE, file)?;
        }
        let certificate = tls.as_ref().map(Certificate::read).transpose()?;
        let access = Access { token_file: token_file.clone(), has_tls: certificate.is_some() };
        Ok(bind(*place)?.map(|listener| Self { listener, access, certificate }))
    }

    /// The certificate by which it is known; none without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.certificate.clone()
    }

    /// The address.
    ///
    /// # Errors
    /// None that a listener could have.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Connections that the kernel keeps until they are accepted. With the 128 of the standard library, a client that opens
/// connections as fast as it can has those of probes dropped, which are tried again a second later.
const BACKLOG: i32 = 4096;

fn bind(place: AdminPlace) -> Result<Option<TcpListener>, AdminError> {
    let listener = listen(place)?;
    if let Some(listener) = &listener {
        // The socket listens already: this call only changes its backlog.
        let _ = rustix::net::listen(listener, BACKLOG);
    }
    Ok(listener)
}

fn listen(place: AdminPlace) -> Result<Option<TcpListener>, AdminError> {
    match place {
        AdminPlace::Off => Ok(None),
        AdminPlace::At(address) => {
            TcpListener::bind(address).map(Some).map_err(|source| AdminError::Taken { address, source })
        }
        // Where all are taken, any.
        AdminPlace::Free => PORTS
            .into_iter()
            .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .map_or_else(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)), Ok)
            .map(Some)
            .map_err(AdminError::NoLoopback),
    }
}

/// The endpoint at work: the owner of its thread.
#[derive(Debug)]
pub struct Admin {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Admin {
    /// Answers from now on, at the address and at the socket for the host's own user. None without both.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn start(
        listening: Option<Listening>,
        socket: Option<UnixListener>,
        watched: Arc<Watched>,
        store: Arc<dyn Store>,
    ) -> io::Result<Option<Self>> {
        let (listener, access, certificate) = match listening {
            Some(Listening { listener, access, certificate }) => (Some(listener), access, certificate),
            None if socket.is_none() => return Ok(None),
            None => (None, Access::default(), None),
        };
        listener.as_ref().map_or(Ok(()), |listener| listener.set_nonblocking(true))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let asked = Asked::about(watched, store, access);
        let routes = routes::all(Arc::clone(&asked));
        let last_words = async move {
            // Whoever sends it is gone where that fails: then it is the end, too.
            let _ = stopped.await;
            asked.ends.store(true, Ordering::Relaxed);
            let told = async {
                while asked.event_streams.are_open() || asked.log_streams.are_open() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            let _ = tokio::time::timeout(LAST_WORDS, told).await;
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            // Whoever asks has the processors that renewals leave. Linux takes it for this thread, and those that it starts.
            let _ = nice(LESS_URGENT);
            runtime.block_on(async {
                let listener = listener.map(tokio::net::TcpListener::from_std).transpose();
                let socket = socket.map(tokio::net::UnixListener::from_std).transpose();
                // Both listen already, and the runtime is there: only a lack of memory could fail here.
                let (Ok(listener), Ok(socket)) = (listener, socket) else { return };
                tokio::select! {
                    () = connections::serve(listener, socket, routes, certificate) => {}
                    () = last_words => {}
                }
            });
            // Nobody can end a file's reading or a name's lookup that hangs, and the end of the host waits for none.
            runtime.shutdown_background();
        })?;
        Ok(Some(Self { stop, thread }))
    }

    /// Answers nothing more. Whatever is under way is cut off, streams a moment later.
    pub fn shutdown(self) {
        let _ = self.stop.send(());
        // One that panicked has nothing more to say here.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn error_at(address: SocketAddr) -> AdminError {
        let settings = AdminSettings { place: AdminPlace::At(address), token_file: None, tls: None, advertise: None };
        Listening::with(&settings).err().unwrap()
    }

    #[test]
    fn an_address_that_cannot_be_had_now_is_no_wrong_setting() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(error_at(taken.local_addr().unwrap()).may_pass());
        // Of an interface that is not up yet.
        assert!(error_at("192.0.2.1:7070".parse().unwrap()).may_pass());
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!AdminError::Taken { address: taken.local_addr().unwrap(), source }.may_pass());
    }
}
