//! The admin endpoint, for probes, load balancers, scrapers and operators.
//!
//! The endpoint has its own thread, so renewals never wait for requests, however many or slow the requests are. For
//! each request, the endpoint compares the clock with the deadline in the status that supervisors publish
//! ([`ElectionTracker`]). The response "this node leads" is therefore true when the endpoint creates it, even if the
//! supervisor hangs. The endpoint writes operators' calls (`steering`) to the store, as the steering commands do. This
//! host then reads the calls from the store.
//!
//! [`ElectionTracker`]: baton_node::telemetry::ElectionTracker
//!
//! Health, the leader and the metrics are for probes and scrapers. The endpoint serves them over plain HTTP to every
//! client that can reach the address. The module `access` decides which clients may do more.

mod access;
mod connections;
mod events;
mod history;
pub mod local_socket;
mod metrics;
mod modules;
mod page;
mod routes;
mod rows;
mod status;
mod steering;
mod streams;
mod url;
pub mod watched;

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
use routes::AdminState;
pub use rows::{ModuleRow, NodeRow, TermRow};
pub use url::{AdminUrl, InvalidAdminUrl};

use crate::watched::Watched;
use baton_store::{Store, StoreUrl};

/// The default ports. The endpoint uses the first free one.
const PORTS: Range<u16> = 7070..7170;

/// Niceness of the endpoint's thread, relative to the rest of the host.
const NICENESS: i32 = 10;

/// Time that the clients of streams get, at shutdown, to read the last entries. These entries report the shutdown.
const LAST_WORDS: Duration = Duration::from_millis(500);

const LAST_WORDS_POLL: Duration = Duration::from_millis(10);

/// The address of the endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdminPlace {
    /// The endpoint is disabled.
    Off,
    /// The loopback address with the first free port from 7070.
    Free,
    /// A fixed address.
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

/// The error returned when the endpoint cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The given address cannot be bound.
    #[error("--admin {address}: cannot listen on this address; give another address, or none")]
    Taken {
        /// The address.
        address: SocketAddr,
        /// The underlying I/O error.
        #[source]
        source: io::Error,
    },
    /// A file cannot be used.
    #[error(transparent)]
    File(#[from] UnusableFile),
    /// No loopback port can be bound.
    #[error(
        "cannot start the admin endpoint: no port of {} is free; give an address with --admin, or none",
        Ipv4Addr::LOCALHOST
    )]
    NoLoopback(#[source] io::Error),
}

impl AdminError {
    /// Returns true if the error may be temporary: the address is in use, or not available yet.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind::{AddrInUse, AddrNotAvailable};
        matches!(self, Self::Taken { source, .. } if [AddrInUse, AddrNotAvailable].contains(&source.kind()))
    }
}

/// The settings of the admin endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminSettings {
    /// The address.
    pub place: AdminPlace,
    /// File that contains the token, which clients on other machines need.
    pub token_file: Option<PathBuf>,
    /// The endpoint's certificate and key; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// URL to announce; `None` to announce the endpoint's own address.
    pub advertise: Option<AdminUrl>,
}

impl AdminSettings {
    /// Returns the URL to announce: the configured URL or, if there is none, the URL of this address. Only nodes on
    /// this machine can use a loopback or unspecified address. For such an address, returns `None` unless all nodes run
    /// on this machine.
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
        // Clients on this machine use plain HTTP, as probes do.
        let scheme = if self.tls.is_some() && !address.ip().is_loopback() { "https" } else { "http" };
        format!("{scheme}://{address}").parse().ok()
    }
}

/// Returns true if all nodes that use a store run on the same machine, and therefore share its loopback interface.
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

/// An endpoint that is bound to its address but does not serve requests yet.
pub struct BoundEndpoint {
    listener: TcpListener,
    access: Access,
    certificate: Option<Certificate>,
}

impl BoundEndpoint {
    /// Binds the address. Returns `None` if the settings disable the endpoint.
    ///
    /// # Errors
    /// [`AdminError`] if the address cannot be bound, or a file cannot be used.
    pub fn with(settings: &AdminSettings) -> Result<Option<Self>, AdminError> {
        let AdminSettings { place, token_file, tls, .. } = settings;
        if let Some(file) = token_file {
            token(TOKEN_FILE, file)?;
        }
        let certificate = tls.as_ref().map(Certificate::read).transpose()?;
        let access = Access { token_file: token_file.clone(), has_tls: certificate.is_some() };
        Ok(bind(*place)?.map(|listener| Self { listener, access, certificate }))
    }

    /// Returns the endpoint's certificate, or `None` without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.certificate.clone()
    }

    /// Returns the address.
    ///
    /// # Errors
    /// Never, for a bound socket.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Maximum number of connections that the kernel queues until they are accepted. With the standard library's limit of
/// 128, the kernel drops probes' connections while another client opens connections as fast as it can. A client whose
/// connection is dropped is delayed by a second.
const BACKLOG: i32 = 4096;

fn bind(place: AdminPlace) -> Result<Option<TcpListener>, AdminError> {
    let listener = listen(place)?;
    if let Some(listener) = &listener {
        // The socket is already listening: this call only changes its backlog.
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
        // If all ports in the range are taken, the system chooses a port.
        AdminPlace::Free => PORTS
            .into_iter()
            .find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .map_or_else(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)), Ok)
            .map(Some)
            .map_err(AdminError::NoLoopback),
    }
}

/// A running endpoint. Owns its thread.
#[derive(Debug)]
pub struct Admin {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Admin {
    /// Starts serving on the address and on the socket for the host's own user. Returns `None` if there is neither.
    ///
    /// # Errors
    /// The operating system's error if a thread cannot be started.
    pub fn start(
        listening: Option<BoundEndpoint>,
        socket: Option<UnixListener>,
        watched: Arc<Watched>,
        store: Arc<dyn Store>,
    ) -> io::Result<Option<Self>> {
        let (listener, access, certificate) = match listening {
            Some(BoundEndpoint { listener, access, certificate }) => (Some(listener), access, certificate),
            None if socket.is_none() => return Ok(None),
            None => (None, Access::default(), None),
        };
        listener.as_ref().map_or(Ok(()), |listener| listener.set_nonblocking(true))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let asked = AdminState::about(watched, store, access);
        let routes = routes::all(Arc::clone(&asked));
        let last_words = async move {
            // An error means that the sender was dropped. The endpoint ends in that case, too.
            let _ = stopped.await;
            asked.ends.store(true, Ordering::Relaxed);
            let streams_end = async {
                while asked.event_streams.are_open() || asked.log_streams.are_open() {
                    tokio::time::sleep(LAST_WORDS_POLL).await;
                }
            };
            let _ = tokio::time::timeout(LAST_WORDS, streams_end).await;
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            // Lower this thread's priority, so that requests get only the CPU time that renewals do not need. On Linux,
            // this call applies to this thread and to threads that it starts.
            let _ = nice(NICENESS);
            runtime.block_on(async {
                let listener = listener.map(tokio::net::TcpListener::from_std).transpose();
                let socket = socket.map(tokio::net::UnixListener::from_std).transpose();
                // Both sockets are already listening and the runtime exists, so this can fail only if memory runs out.
                let (Ok(listener), Ok(socket)) = (listener, socket) else { return };
                tokio::select! {
                    () = connections::serve(listener, socket, routes, certificate) => {}
                    () = last_words => {}
                }
            });
            // Do not wait for a blocking call that hangs, such as a file read: it cannot be interrupted.
            runtime.shutdown_background();
        })?;
        Ok(Some(Self { stop, thread }))
    }

    /// Stops the endpoint. Aborts requests immediately, and aborts streams after at most 500 ms.
    pub fn shutdown(self) {
        let _ = self.stop.send(());
        // A panic of the thread has already been reported.
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    fn error_at(address: SocketAddr) -> AdminError {
        let settings = AdminSettings { place: AdminPlace::At(address), token_file: None, tls: None, advertise: None };
        BoundEndpoint::with(&settings).err().unwrap()
    }

    #[test]
    fn address_in_use_or_not_available_may_pass() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(error_at(taken.local_addr().unwrap()).may_pass());
        // The address 192.0.2.1 does not exist on this machine. The error may pass, because a machine's own address is
        // also missing before its interface is up.
        assert!(error_at("192.0.2.1:7070".parse().unwrap()).may_pass());
        let source = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(!AdminError::Taken { address: taken.local_addr().unwrap(), source }.may_pass());
    }
}
