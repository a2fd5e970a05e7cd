//! Connections: found by name, opened to a checked address, and gated at each write.
//!
//! hyper speaks HTTP on them, but they are our own. What `wasmtime-wasi-http` does by default, and clients such as
//! `reqwest`, open their sockets themselves: below TLS no gate would see what is written, and what an instance has begun
//! when it is killed would be sent to its end by the kernel and not be reset.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use url::Host;
use wasmtime_wasi_http::Error;

use baton_store::address::kind;

use super::super::page::Gate;
use super::super::protocol::Resolved;
use super::super::runner::Lookups;
use super::grant::{Origin, Reach, Scheme};
use super::told;

/// What the kernel may keep of a connection, each way, in bytes: it makes twice as much of it. Left to itself it keeps some
/// megabytes of each, of its own memory, which no limit of the process counts.
pub(in super::super) const KEPT_BY_KERNEL: u32 = 128 << 10;

/// Opens connections.
#[derive(Clone)]
pub(super) struct Connector {
    tls: TlsConnector,
    names: Lookups,
}

/// Why a connection was not opened.
pub(super) enum NotOpened {
    /// The name has addresses, and none of them is within reach. This is one.
    OutOfReach(Resolved),
    /// For the guest.
    Failed(Error),
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A connection's bytes, encrypted or not.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// What is said to a connection by who uses it. Clones are of the same one.
#[derive(Clone, Debug)]
pub(super) struct Signals(Arc<Signalled>);

#[derive(Debug)]
struct Signalled {
    is_in_flight: AtomicBool,
    asks_kernel: AtomicBool,
}

impl Signals {
    /// Whether it is in the middle of something, as it is from the beginning. If it is when it is dropped, or the process is
    /// ended by force, the other side is told so by a reset, and what the kernel has not sent yet is never sent.
    pub(super) fn set_in_flight(&self, is_in_flight: bool) {
        self.0.is_in_flight.store(is_in_flight, Ordering::Release);
    }

    /// Has its next reads ask the kernel for what has come, until that has no more: where nobody has looked since the guest
    /// began to compute, nobody has heard of it yet.
    pub(super) fn ask_kernel(&self) {
        self.0.asks_kernel.store(true, Ordering::Release);
    }
}

impl Connector {
    pub(super) fn new(tls: TlsConnector, names: Lookups) -> Self {
        Self { tls, names }
    }

    /// Opens a connection to that origin, at an address that is within reach.
    ///
    /// # Errors
    /// [`NotOpened`] says why not.
    pub(super) async fn open(
        &self,
        origin: &Origin,
        reach: Reach,
        gate: &Arc<Gate>,
    ) -> Result<(Box<dyn Io>, Signals), NotOpened> {
        let addresses = self.addresses(origin, gate).await?;
        let mut not = match addresses.first() {
            Some(found) => NotOpened::OutOfReach(*found),
            None => Error::DestinationNotFound.into(),
        };
        for Resolved { address, .. } in addresses.into_iter().filter(|found| reach.includes(*found)) {
            match Gated::connect(address, gate).await {
                Ok((stream, signals)) => return Ok((self.secure(origin, stream).await?, signals)),
                Err(error) => not = error.into(),
            }
        }
        Err(not)
    }

    async fn secure(&self, origin: &Origin, stream: Gated) -> Result<Box<dyn Io>, Error> {
        let name = match (&origin.scheme, &origin.host) {
            (Scheme::Http, _) => return Ok(Box::new(stream)),
            (Scheme::Https, Host::Ipv4(address)) => ServerName::from(IpAddr::V4(*address)),
            (Scheme::Https, Host::Ipv6(address)) => ServerName::from(IpAddr::V6(*address)),
            (Scheme::Https, Host::Domain(name)) => {
                ServerName::try_from(name.clone()).map_err(|_| Error::HttpRequestUriInvalid)?
            }
        };
        match self.tls.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(told(format!("the TLS connection to {origin} failed: {error}"))),
        }
    }

    async fn addresses(&self, origin: &Origin, gate: &Gate) -> Result<Vec<Resolved>, Error> {
        let itself =
            |address: IpAddr| Ok(vec![Resolved { address: (address, origin.port).into(), kind: kind(address) }]);
        let name = match &origin.host {
            Host::Ipv4(address) => return itself((*address).into()),
            Host::Ipv6(address) => return itself((*address).into()),
            Host::Domain(name) => name,
        };
        gate.check().map_err(told)?;
        self.names
            .look_up(name, origin.port)
            .await
            .map_err(|why| Error::DnsError { rcode: Some(format!("{name}: {why}")), info_code: None })
    }
}

/// A failure of the system as the guest sees it.
fn connect_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        io::ErrorKind::TimedOut => Error::ConnectionTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Error::DestinationUnavailable,
        _ => told(format!("the connection failed: {error}")),
    }
}

/// A TCP connection whose writes pass the gate.
struct Gated {
    tcp: TcpStream,
    gate: Arc<Gate>,
    signals: Signals,
}

impl Gated {
    async fn connect(address: SocketAddr, gate: &Arc<Gate>) -> Result<(Self, Signals), Error> {
        gate.check().map_err(told)?;
        let tcp = Self::open(address).await.map_err(|error| connect_error(&error))?;
        // A head and a body that follow each other need not wait for acknowledgements.
        tcp.set_nodelay(true).map_err(|error| connect_error(&error))?;
        let signalled = Signalled { is_in_flight: AtomicBool::new(true), asks_kernel: AtomicBool::new(false) };
        let signals = Signals(Arc::new(signalled));
        Ok((Self { tcp, gate: Arc::clone(gate), signals: signals.clone() }, signals))
    }

    /// What becomes of it is decided now: a process that is ended by force does nothing more, and the kernel would go
    /// on to send what it has. So it is reset unless somebody has said otherwise.
    async fn open(address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_zero_linger()?;
        // Before it connects, since the window is agreed on then.
        socket.set_recv_buffer_size(KEPT_BY_KERNEL)?;
        socket.set_send_buffer_size(KEPT_BY_KERNEL)?;
        socket.connect(address).await
    }

    fn pass(&self) -> io::Result<()> {
        self.gate.check().map_err(|closed| io::Error::new(io::ErrorKind::PermissionDenied, closed))
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        if !self.signals.0.is_in_flight.load(Ordering::Acquire) && !self.gate.remaining().is_zero() {
            // It ends in order. Should this fail, it is reset: nobody waits for anything more on it.
            #[expect(deprecated, reason = "closing blocks with a time to linger, and this takes that away")]
            let _ = self.tcp.set_linger(None);
        }
    }
}

impl AsyncRead for Gated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.signals.0.asks_kernel.load(Ordering::Acquire) {
            let read = rustix::net::recv(&self.tcp, buffer.initialize_unfilled(), RecvFlags::empty());
            self.signals.0.asks_kernel.store(matches!(read, Ok((1.., _))), Ordering::Release);
            match read {
                Ok((read, _)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pass()?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pass()?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pass()?;
        let ended = Pin::new(&mut self.tcp).poll_shutdown(cx);
        if matches!(ended, Poll::Ready(Ok(()))) {
            // All was said, in order.
            self.signals.set_in_flight(false);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::future::poll_fn;
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};
    use std::task::Waker;
    use std::time::Duration;

    use futures::FutureExt as _;

    use super::super::super::page::{Page, gate_for};
    use super::*;

    /// A connection behind an open gate, and its other side.
    async fn connection() -> (Gated, Signals, Page, std::net::TcpStream, Arc<Gate>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (gate, page) = gate_for(Duration::from_secs(3600));
        let (gated, signals) = Gated::connect(listener.local_addr().unwrap(), &gate).await.unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (gated, signals, page, server, gate)
    }

    async fn write(gated: &mut Gated, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|cx| Pin::new(&mut *gated).poll_write(cx, bytes)).await
    }

    #[tokio::test]
    async fn each_write_and_the_end_pass_the_gate() {
        let (mut gated, _, page, mut server, gate) = connection().await;
        assert_eq!(write(&mut gated, b"before").await.unwrap(), 6);
        page.close();
        assert_eq!(write(&mut gated, b"after").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(poll_fn(|cx| Pin::new(&mut gated).poll_flush(cx)).await.is_err());
        assert!(poll_fn(|cx| Pin::new(&mut gated).poll_shutdown(cx)).await.is_err());
        server.set_nonblocking(true).unwrap();
        let mut read = [0; 64];
        assert_eq!(server.read(&mut read).unwrap(), 6);
        assert_eq!(server.read(&mut read).unwrap_err().kind(), ErrorKind::WouldBlock, "nothing more, and no end");
        assert!(Gated::connect(gated.tcp.peer_addr().unwrap(), &gate).await.is_err(), "nor a new connection");
    }

    #[tokio::test]
    async fn who_asks_the_kernel_reads_what_nobody_has_heard_of_yet() {
        let (mut gated, signals, _page, mut server, _gate) = connection().await;
        // Nothing is awaited from here on, so that nobody hears anything.
        let mut read = || {
            let mut space = [0; 8];
            let mut buffer = ReadBuf::new(&mut space);
            let read = Pin::new(&mut gated).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer);
            read.map(|read| (read.is_ok(), buffer.filled().to_vec()))
        };
        signals.ask_kernel();
        assert_eq!(read(), Poll::Pending);
        server.write_all(b"more than its room").unwrap();
        drop(server);
        let first = (0..).find_map(|_| {
            signals.ask_kernel();
            Some(read()).filter(Poll::is_ready)
        });
        assert_eq!(first, Some(Poll::Ready((true, b"more tha".to_vec()))));
        // It goes on to ask while there is something.
        let rest = [&b"n its ro"[..], b"om"].map(|bytes| Poll::Ready((true, bytes.to_vec())));
        assert_eq!([read(), read()], rest);
        let ended = (0..).find_map(|_| {
            signals.ask_kernel();
            Some(read()).filter(Poll::is_ready)
        });
        assert_eq!(ended, Some(Poll::Ready((true, Vec::new()))));
        assert_eq!(read(), Poll::Pending, "the end was all that was asked for");
    }

    #[tokio::test]
    async fn the_kernel_keeps_little_of_what_nobody_takes() {
        let (mut gated, _, _page, mut server, _gate) = connection().await;
        let (chunk, most) = (vec![0; 64 << 10], 1 << 20);
        // How much leaves without being taken: what both ends of the connection keep.
        let mut sent = 0;
        while let Some(written) = write(&mut gated, &chunk).now_or_never() {
            sent += written.unwrap();
        }
        assert!(sent < most, "{sent} bytes");
        // And how much arrives that is not read, from who keeps next to nothing.
        rustix::net::sockopt::set_socket_send_buffer_size(&server, 4096).unwrap();
        server.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut received = 0;
        while let Ok(written) = server.write(&chunk) {
            received += written;
        }
        assert!(received < most, "{received} bytes");
    }

    #[tokio::test]
    async fn what_is_in_flight_is_reset_and_what_is_not_ends() {
        for (is_in_flight, is_closed, is_reset) in
            [(true, false, true), (true, true, true), (false, true, true), (false, false, false)]
        {
            let (gated, signals, page, mut server, _gate) = connection().await;
            signals.set_in_flight(is_in_flight);
            if is_closed {
                page.close();
            }
            drop(gated);
            let ended = server.read(&mut [0; 64]);
            match is_reset {
                true => assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset),
                false => assert_eq!(ended.unwrap(), 0),
            }
        }
    }
}
