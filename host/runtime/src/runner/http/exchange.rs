//! One request and its response on one connection, and the pool of idle connections.
//!
//! hyper splits a connection into a sender and a driver, which is a future that reads and writes the socket. Here, the
//! future that waits for a response's head also polls the driver. So a request needs one task, and a second task only
//! if the body arrives later. Nothing polls the driver of an idle connection, so the next request first checks that the
//! server has not closed the connection. This module does not use the pool in `hyper-util`, which starts a task for
//! each connection. That pool may also reuse a connection for a grant that allows fewer addresses.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use baton_election::Time;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use tokio::sync::OwnedSemaphorePermit;
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, WasiBody};

use super::connect::{Io, NotOpened, Signals};
use super::grant::{AddressReach, Origin};
use super::limits::{HEAD_BYTES, IDLE, IDLE_FOR, READ_AHEAD, Wait, Waits};
use super::{HttpShared, Server};

/// A request that a grant allows.
pub(super) struct Admitted {
    pub(super) request: Request<WasiBody>,
    pub(super) server: Arc<Server>,
    pub(super) reach: AddressReach,
    /// The permit for one request in flight.
    pub(super) place: OwnedSemaphorePermit,
    pub(super) waits: Waits,
}

/// A future that drives a connection after the response's head has arrived, until the whole response has arrived.
pub(super) type ConnectionDriver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends a request on an idle connection if there is one, or else on a new connection. Returns the response and, if its
/// body is incomplete, the future that drives the connection.
pub(super) async fn run(
    shared: Arc<HttpShared>,
    admitted: Admitted,
) -> Result<(Response<WasiBody>, Option<ConnectionDriver>), Error> {
    let Admitted { mut request, server, reach, place, waits, .. } = admitted;
    let origin = &server.origin;
    let place = Arc::new(place);
    if !request.body().is_end_stream() {
        // Keep the permit until the request's body is sent completely, perhaps after the response has arrived.
        let sending = Arc::clone(&place);
        let keeping = move |frame| {
            let _ = &sending;
            frame
        };
        request = request.map(|body| body.map_frame(keeping).boxed_unsync());
    }
    let mut kept = shared.idle.take(origin, reach, shared.clock.now());
    let (connection, response) = loop {
        let is_kept = kept.is_some();
        let mut connection = match kept.take() {
            Some(connection) => connection,
            // Box the future of `open`, which is large. Without the box, every request would move this future, although
            // most requests reuse a connection.
            None => Box::pin(open(&shared, origin, reach, waits)).await?,
        };
        connection.signals.set_in_flight(true);
        match connection.ask(request, &shared, waits.first_byte).await {
            Ok(response) => break (connection, response),
            // The server had closed the idle connection before any part of the request was sent: retry on another
            // connection.
            Err(Unanswered { unsent: Some(unsent), .. }) if is_kept => {
                request = unsent;
                kept = shared.idle.take(origin, reach, shared.clock.now());
            }
            Err(Unanswered { error, .. }) => return Err(error),
        }
    };
    let mut response = response;
    let_go_of_the_buffer(response.headers_mut());
    let place = (!response.is_end_stream()).then_some(place);
    let (held, longest) = (Arc::clone(&shared), waits.between_bytes);
    let response =
        response.map(|incoming| Arriving { incoming, shared: held, longest, wait: None, place }.boxed_unsync());
    let mut driven = Driven { connection, shared };
    // The body of a short response often arrives together with its head.
    if let Poll::Ready(is_usable) = poll_fn(|cx| Poll::Ready(driven.connection.poll_finished(cx))).await {
        driven.end(is_usable);
        return Ok((response, None));
    }
    let rest = async move {
        let is_usable = poll_fn(|cx| driven.connection.poll_finished(cx)).await;
        driven.end(is_usable);
    };
    Ok((response, Some(Box::pin(rest))))
}

/// Copies the header values into allocations of their own. hyper returns each value as a slice of its 64 KiB read
/// buffer, so a single value would keep the whole buffer in memory.
fn let_go_of_the_buffer(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        let is_sensitive = value.is_sensitive();
        // Cannot fail: the bytes come from a valid value.
        if let Ok(mut copied) = HeaderValue::from_bytes(value.as_bytes()) {
            copied.set_sensitive(is_sensitive);
            *value = copied;
        }
    }
}

/// A connection whose response is still arriving. [`Driven::end`] returns the connection to the pool if it is reusable.
struct Driven {
    connection: Box<Connection>,
    shared: Arc<HttpShared>,
}

impl Driven {
    fn end(self, is_usable: bool) {
        if is_usable {
            self.shared.idle.keep(self.connection, self.shared.clock.now());
        }
    }
}

async fn open(
    shared: &HttpShared,
    origin: &Origin,
    reach: AddressReach,
    waits: Waits,
) -> Result<Box<Connection>, Error> {
    let opening = async {
        let (stream, signals) = shared.connector.open(origin, reach, &shared.gate).await?;
        let handshake =
            http1::Builder::new().max_buf_size(READ_AHEAD).max_header_size(HEAD_BYTES).handshake(TokioIo::new(stream));
        let (sender, driver) = handshake.await.map_err(|error| shared.explain(&error))?;
        Ok((sender, driver, signals))
    };
    let mut wait = Wait::new(&shared.gate, &shared.clock, waits.connect);
    let opened = tokio::select! {
        biased;
        opened = opening => opened,
        () = poll_fn(|cx| wait.poll(cx, &shared.gate, &shared.clock)) => {
            return Err(shared.late(Error::ConnectionTimeout));
        }
    };
    let (sender, driver, signals) = opened.map_err(|not| match not {
        NotOpened::Failed(error) => error,
        NotOpened::OutOfReach(address) => shared.refuse_address(origin, address),
    })?;
    let origin = origin.clone();
    let idle_since = Time::default();
    Ok(Box::new(Connection { origin, reach, sender, driver, wait, signals, ended: false, idle_since }))
}

struct Unanswered {
    error: Error,
    /// The request, if no part of it was sent.
    unsent: Option<Request<WasiBody>>,
}

pub(super) struct Connection {
    origin: Origin,
    /// The addresses that the grants allow for the request that opened the connection.
    reach: AddressReach,
    sender: http1::SendRequest<WasiBody>,
    driver: http1::Connection<TokioIo<Box<dyn Io>>, WasiBody>,
    /// The timer for the current timeout: first for connecting, and then for each response.
    wait: Wait,
    signals: Signals,
    /// True once the driver has ended. An ended driver must not be polled.
    ended: bool,
    idle_since: Time,
}

impl Connection {
    /// Sends a request and waits for the response's head, for at most `longest`.
    async fn ask(
        &mut self,
        request: Request<WasiBody>,
        shared: &HttpShared,
        longest: Duration,
    ) -> Result<Response<Incoming>, Unanswered> {
        let Self { sender, driver, wait, ended, .. } = self;
        wait.restart(&shared.gate, &shared.clock, longest);
        let mut answer = pin!(sender.try_send_request(request));
        let failed = |error| Poll::Ready(Err(Unanswered { error, unsent: None }));
        poll_fn(|cx| {
            let driven = if *ended { Poll::Pending } else { Pin::new(&mut *driver).poll(cx) };
            *ended |= driven.is_ready();
            // Poll for the response even if the connection has ended: the last data may contain the whole response.
            match (answer.as_mut().poll(cx), driven) {
                (Poll::Ready(Ok(response)), _) => Poll::Ready(Ok(response)),
                (Poll::Ready(Err(mut error)), _) => {
                    let unsent = error.take_message();
                    Poll::Ready(Err(Unanswered { error: shared.explain(&error.into_error()), unsent }))
                }
                (Poll::Pending, Poll::Ready(Ok(()))) => failed(Error::ConnectionTerminated),
                (Poll::Pending, Poll::Ready(Err(error))) => failed(shared.explain(&error)),
                (Poll::Pending, Poll::Pending) => match wait.poll(cx, &shared.gate, &shared.clock) {
                    Poll::Ready(()) => failed(shared.late(Error::ConnectionReadTimeout)),
                    Poll::Pending => Poll::Pending,
                },
            }
        })
        .await
    }

    /// Drives the connection until the whole response has arrived. Returns true if the connection can be reused.
    fn poll_finished(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.ended || Pin::new(&mut self.driver).poll(cx).is_ready() {
            self.ended = true;
            return Poll::Ready(false);
        }
        self.sender.poll_ready(cx).map(|ready| ready.is_ok())
    }
}

#[derive(Default)]
pub(super) struct Idle(
    #[expect(clippy::vec_box, reason = "a connection is moved at each request, and is large")]
    Mutex<Vec<Box<Connection>>>,
);

impl Idle {
    /// Takes an open idle connection to this origin. Skips connections that were opened with another reach: the grant
    /// for one path of an origin may allow more addresses than the grant for another path.
    fn take(&self, origin: &Origin, reach: AddressReach, now: Time) -> Option<Box<Connection>> {
        loop {
            let mut connection = {
                let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                kept.retain(|connection| now.since(connection.idle_since) < IDLE_FOR);
                let at =
                    kept.iter().rposition(|connection| (&connection.origin, connection.reach) == (origin, reach))?;
                kept.swap_remove(at)
            };
            // Poll the connection to notice if the server has closed it. A correct server sends no data on an idle
            // connection, so no data is lost.
            connection.signals.ask_kernel();
            if connection.poll_finished(&mut Context::from_waker(Waker::noop())) == Poll::Ready(true) {
                return Some(connection);
            }
        }
    }

    /// Closes all idle connections gracefully.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn keep(&self, mut connection: Box<Connection>, now: Time) {
        connection.signals.set_in_flight(false);
        connection.idle_since = now;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == IDLE {
            kept.remove(0);
        }
        kept.push(connection);
    }
}

struct Arriving {
    incoming: Incoming,
    shared: Arc<HttpShared>,
    longest: Duration,
    wait: Option<Wait>,
    /// The request's permit, which is released once the whole body has arrived.
    place: Option<Arc<OwnedSemaphorePermit>>,
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => frame.map(|frame| {
                let mut frame = frame.map_err(|error| self.shared.explain(&error))?;
                if let Some(trailers) = frame.trailers_mut() {
                    let_go_of_the_buffer(trailers);
                }
                Ok(frame)
            }),
            Poll::Pending => {
                let Self { shared, longest, wait, .. } = &mut *self;
                let wait = wait.get_or_insert_with(|| Wait::new(&shared.gate, &shared.clock, *longest));
                std::task::ready!(wait.poll(cx, &shared.gate, &shared.clock));
                Some(Err(shared.late(Error::ConnectionReadTimeout)))
            }
        };
        self.wait = None;
        if !matches!(frame, Some(Ok(_))) || self.incoming.is_end_stream() {
            self.place = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::net::{Ipv4Addr, TcpListener};

    use super::super::{connect::Connector, tls};
    use super::*;
    use crate::runner::Lookups;
    use crate::wire::page::gate_for;
    use baton_base::clock::Clock;

    #[tokio::test]
    async fn connection_is_not_reused_for_a_grant_with_narrower_reach() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let clock = Clock::default();
        let now = clock.now();
        let (gate, _page) = gate_for(Duration::from_secs(3600));
        let uri = format!("http://127.0.0.1:{}/", listener.local_addr().unwrap().port()).parse().unwrap();
        let origin = Origin::of(&uri).unwrap();
        let connector = Connector::new(tls::connector(&[]).unwrap(), Lookups::nowhere());
        let Ok((stream, signals)) = connector.open(&origin, AddressReach::Private, &gate).await else { panic!() };
        let (mut sender, mut driver) = http1::Builder::new().handshake(TokioIo::new(stream)).await.unwrap();
        // The sender is ready for a request only after the driver has been polled once.
        assert!(poll_fn(|cx| Poll::Ready(Pin::new(&mut driver).poll(cx))).await.is_pending());
        poll_fn(|cx| sender.poll_ready(cx)).await.unwrap();
        let (ended, idle_since, reach) = (false, now, AddressReach::Private);
        let wait = Wait::new(&gate, &clock, Duration::from_secs(1));
        let idle = Idle::default();
        let kept = Connection { origin: origin.clone(), reach, sender, driver, wait, signals, ended, idle_since };
        idle.keep(Box::new(kept), now);
        assert!(idle.take(&origin, AddressReach::Public, now).is_none(), "it leads to a private address");
        assert!(idle.take(&origin, AddressReach::Private, now).is_some());
    }
}
