//! HTTP for async coordinators. The requests, responses and bodies are those of the crate [`wstd`](wstd::http).
//!
//! A host lets a coordinator reach nothing unless `--allow-http` grants it. It adds `Baton-Election`,
//! `Baton-Term` and `Baton-Node` to each request by itself: have the receiver refuse a term lower than the
//! highest that it has seen.

use std::fmt;
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
    /// There is no response, or an invalid one. If the host gives a reason, as for a request that is not granted,
    /// [`downcast_ref`](Error::downcast_ref) finds it as [`NoResponse`].
    pub async fn send<B: Into<Body>>(&self, request: Request<B>) -> Result<Response<Body>, Error> {
        #[cfg(target_family = "wasm")]
        return self.client.send(request).await.map_err(|error| match error.downcast::<ErrorCode>() {
            Ok(code) => NoResponse(code).into(),
            Err(error) => error,
        });
        #[cfg(not(target_family = "wasm"))]
        return self.host.send(request).await;
    }

    /// Sends a GET request and reads the JSON of its response.
    ///
    /// # Errors
    /// There is no response, its status is not 2xx, or its body is not JSON of that type. The text names the URL.
    #[cfg(feature = "json")]
    pub async fn get_json<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<T, Error> {
        self.read_json(url).await.map_err(|error| error.context(format!("GET {url}")))
    }

    #[cfg(feature = "json")]
    async fn read_json<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<T, Error> {
        let mut response = self.send(Request::get(url).body(())?).await?;
        if !response.status().is_success() {
            return Err(Error::msg(response.status()));
        }
        response.body_mut().json().await
    }
}

/// The host's reason why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub struct NoResponse(
    /// The reason, as `wasi:http` has it.
    pub ErrorCode,
);

impl fmt::Display for NoResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ErrorCode::InternalError(Some(reason)) => f.write_str(reason),
            code => write!(f, "no response: {code:?}"),
        }
    }
}
