//! HTTP for async coordinators. The requests, responses and bodies are those of the crate [`wstd`](wstd::http).
//!
//! A host lets a coordinator reach nothing unless `--allow-http` grants it. It adds `Baton-Election`,
//! `Baton-Term` and `Baton-Node` to each request by itself: have the receiver refuse a term lower than the
//! highest that it has seen.

use std::time::Duration;

pub use wstd::http::error::ErrorCode;
pub use wstd::http::{
    Body, BodyExt, Error, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
};

use crate::host::Host;

/// Sends requests. Made by [`AsyncTerm::http`](crate::AsyncTerm::http).
///
/// In a test the requests go nowhere: the [harness](crate::testing::Harness::answer) answers them.
#[derive(Debug, Clone)]
pub struct Client {
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "there is but one host, and wstd knows it"))]
    host: Host,
    client: wstd::http::Client,
}

impl Client {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, client: wstd::http::Client::new() }
    }

    /// How long connecting may take; else the host decides.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.client.set_connect_timeout(time);
        self
    }

    /// How long the answer may take to begin; else the host decides.
    #[must_use]
    pub fn first_byte_timeout(mut self, time: Duration) -> Self {
        self.client.set_first_byte_timeout(time);
        self
    }

    /// How long the answer may pause; else the host decides.
    #[must_use]
    pub fn between_bytes_timeout(mut self, time: Duration) -> Self {
        self.client.set_between_bytes_timeout(time);
        self
    }

    /// Sends a request, and returns once the answer's head is there. Whatever the server says is an answer,
    /// 404 and 500 too.
    ///
    /// To be cut off by a stop, it is sent with [`AsyncTerm::until_stop`](crate::AsyncTerm::until_stop).
    ///
    /// # Errors
    /// That there is no answer, or none that HTTP allows; with an [`ErrorCode`] in it if the host said so, as
    /// where the request is not granted.
    pub async fn send<B: Into<Body>>(&self, request: Request<B>) -> Result<Response<Body>, Error> {
        #[cfg(target_family = "wasm")]
        return self.client.send(request).await;
        #[cfg(not(target_family = "wasm"))]
        return self.host.send(request).await;
    }
}
