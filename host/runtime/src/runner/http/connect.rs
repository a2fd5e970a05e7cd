//! Opens connections to granted servers, and checks the gate on each write.
//!
//! This module opens the sockets itself, and hyper speaks HTTP over them. Clients such as `reqwest`, and the default
//! handler of `wasmtime-wasi-http`, open their own sockets. With such a client, the gate could not check each write of
//! encrypted data. After a kill, the kernel would also still send the data that it has buffered, instead of resetting
//! the connection.

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

use baton_base::address::kind;

use super::grant::{AddressReach, Origin, Scheme};
use super::internal_error;
use crate::runner::Lookups;
use crate::wire::page::RunnerGate;
use crate::wire::protocol::Resolved;

/// Size of the kernel's buffer for each direction of a connection (bytes); the kernel doubles this value. By default,
/// the buffers can grow to several megabytes, and no process limit includes this kernel memory.
pub(crate) const KEPT_BY_KERNEL: u32 = 128 << 10;

#[derive(Clone)]
pub(super) struct Connector {
    tls: TlsConnector,
    names: Lookups,
}

pub(super) enum NotOpened {
    /// The host name has addresses, but the grant covers none of them. Holds one of the addresses.
    OutOfReach(Resolved),
    Failed(Error),
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Flags with which the rest of the runner controls a connection. Clones share the flags.
#[derive(Clone, Debug)]
pub(super) struct Signals(Arc<Signalled>);

#[derive(Debug)]
struct Signalled {
    is_in_flight: AtomicBool,
    asks_kernel: AtomicBool,
}

impl Signals {
    /// Sets whether a request is in flight (initially true). If the connection is dropped while a request is in flight,
    /// the kernel resets the connection and discards the data that it has buffered. If the process is killed, the
    /// kernel does the same, whether or not a request is in flight.
    pub(super) fn set_in_flight(&self, is_in_flight: bool) {
        self.0.is_in_flight.store(is_in_flight, Ordering::Release);
    }

    /// Makes the next reads ask the kernel for data, until the kernel has no more. Otherwise, the runner could miss
    /// data that arrives while the guest computes, because nothing drives tokio's reactor during that time.
    pub(super) fn ask_kernel(&self) {
        self.0.asks_kernel.store(true, Ordering::Release);
    }
}

impl Connector {
    pub(super) fn new(tls: TlsConnector, names: Lookups) -> Self {
        Self { tls, names }
    }

    /// Opens a connection to an origin, using only addresses that `reach` includes.
    pub(super) async fn open(
        &self,
        origin: &Origin,
        reach: AddressReach,
        gate: &Arc<RunnerGate>,
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
            Err(error) => Err(internal_error(format!("the TLS connection to {origin} failed: {error}"))),
        }
    }

    async fn addresses(&self, origin: &Origin, gate: &RunnerGate) -> Result<Vec<Resolved>, Error> {
        let itself =
            |address: IpAddr| Ok(vec![Resolved { address: (address, origin.port).into(), kind: kind(address) }]);
        let name = match &origin.host {
            Host::Ipv4(address) => return itself((*address).into()),
            Host::Ipv6(address) => return itself((*address).into()),
            Host::Domain(name) => name,
        };
        gate.check().map_err(internal_error)?;
        self.names
            .look_up(name, origin.port)
            .await
            .map_err(|why| Error::DnsError { rcode: Some(format!("{name}: {why}")), info_code: None })
    }
}

fn connect_error(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Error::ConnectionRefused,
        io::ErrorKind::TimedOut => Error::ConnectionTimeout,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Error::DestinationUnavailable,
        _ => internal_error(format!("the connection failed: {error}")),
    }
}

/// A TCP connection whose writes must pass the gate.
struct Gated {
    tcp: TcpStream,
    gate: Arc<RunnerGate>,
    signals: Signals,
}

impl Gated {
    async fn connect(address: SocketAddr, gate: &Arc<RunnerGate>) -> Result<(Self, Signals), Error> {
        gate.check().map_err(internal_error)?;
        let tcp = Self::open(address).await.map_err(|error| connect_error(&error))?;
        // Disable Nagle's algorithm, which would delay a request's body until the request's head is acknowledged.
        tcp.set_nodelay(true).map_err(|error| connect_error(&error))?;
        let signalled = Signalled { is_in_flight: AtomicBool::new(true), asks_kernel: AtomicBool::new(false) };
        let signals = Signals(Arc::new(signalled));
        Ok((Self { tcp, gate: Arc::clone(gate), signals: signals.clone() }, signals))
    }

    /// Connects with a linger time of zero, so that closing the socket resets the connection. Otherwise, the kernel
    /// would still send the buffered data after a kill. The linger time must be set in advance, since a killed process
    /// cannot set it.
    async fn open(address: SocketAddr) -> io::Result<TcpStream> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_zero_linger()?;
        // Set the buffer sizes before connecting, since they determine the window scale that the TCP handshake
        // negotiates.
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
            // Turn lingering off, so that the connection is closed gracefully. If this call fails, the kernel resets
            // the connection, which loses no data, since no request is in flight.
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
            // The runner has closed its side of the connection after sending all data, so there is no need to reset the
            // connection.
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

    use super::*;
    use crate::wire::page::{Page, gate_for};

    async fn connection() -> (Gated, Signals, Page, std::net::TcpStream, Arc<RunnerGate>) {
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
    async fn writes_and_shutdown_fail_when_gate_is_closed() {
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
    async fn reads_ask_the_kernel_when_the_reactor_has_not_run() {
        let (mut gated, signals, _page, mut server, _gate) = connection().await;
        // The code below does not await anything, so the reactor does not run.
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
        // After a call to `ask_kernel`, reads keep asking the kernel until it has no more data.
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
    async fn kernel_buffers_stay_small_when_nobody_reads() {
        let (mut gated, _, _page, mut server, _gate) = connection().await;
        let (chunk, most) = (vec![0; 64 << 10], 1 << 20);
        // The server reads nothing. Count the bytes that the kernel buffers on both sides.
        let mut sent = 0;
        while let Some(written) = write(&mut gated, &chunk).now_or_never() {
            sent += written.unwrap();
        }
        assert!(sent < most, "{sent} bytes");
        // Now the client reads nothing. Count the bytes that the kernel buffers on the client's side: the server has
        // almost no send buffer.
        rustix::net::sockopt::set_socket_send_buffer_size(&server, 4096).unwrap();
        server.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut received = 0;
        while let Ok(written) = server.write(&chunk) {
            received += written;
        }
        assert!(received < most, "{received} bytes");
    }

    #[tokio::test]
    async fn drop_resets_connection_when_in_flight_or_gate_is_closed() {
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
