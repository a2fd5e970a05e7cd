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
mod history;
pub(crate) mod metrics;
mod routes;
mod status;
mod steering;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::oneshot;

use access::Access;
pub(crate) use access::token;
pub use access::{Certificate, TlsFiles, UnusableFile};
use routes::Asked;

use crate::watched::Watched;
use baton_store::Store;

/// Where the endpoint is unless it is told: the first of these ports that is free.
const PORTS: Range<u16> = 7070..7170;

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
    #[error("--admin {address}: this address cannot be listened on; give another one, or none")]
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
        "there is no admin endpoint: nothing can be listened on at {}; give an address with --admin, or none",
        Ipv4Addr::LOCALHOST
    )]
    NoLoopback(#[source] io::Error),
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
        let AdminSettings { place, token_file, tls } = settings;
        if let Some(file) = token_file {
            access::token(file)?;
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

fn bind(place: AdminPlace) -> Result<Option<TcpListener>, AdminError> {
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
    /// Answers from now on.
    ///
    /// # Errors
    /// What the system says where it has no thread to give.
    pub fn start(
        Listening { listener, access, certificate }: Listening,
        watched: Arc<Watched>,
        store: Arc<dyn Store>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let routes = routes::all(Asked::about(watched, store, access));
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            runtime.block_on(async {
                // It was listened on before, with a runtime that is there: only a lack of memory could fail here.
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = connections::serve(listener, routes, certificate) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { stop, thread })
    }

    /// Answers nothing more. Whatever is under way is cut off.
    pub fn shutdown(self) {
        let _ = self.stop.send(());
        // One that panicked has nothing more to say here.
        let _ = self.thread.join();
    }
}
