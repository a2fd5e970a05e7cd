//! HTTP for async coordinators, with the requests, responses and bodies of the crate [`wstd`](wstd::http).
//!
//! A coordinator can reach only the servers that `--allow-http` permits. The host adds the headers `Baton-Election`,
//! `Baton-Term` and `Baton-Node` to each request. Servers should refuse any term below the highest that they have seen.

use std::fmt;
use std::time::Duration;

pub use wstd::http::error::ErrorCode;
pub use wstd::http::{
    Body, BodyExt, Error, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
};

use crate::host::Host;

/// An HTTP client, created by [`AsyncTerm::http`](crate::AsyncTerm::http).
///
/// In tests, the [harness](crate::testing::Harness::answer) answers the requests.
#[derive(Debug, Clone)]
pub struct Client {
    #[cfg_attr(target_family = "wasm", expect(dead_code, reason = "wstd calls the only host"))]
    host: Host,
    client: wstd::http::Client,
}

impl Client {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, client: wstd::http::Client::new() }
    }

    /// Sets the connect timeout, overriding the host's default.
    #[must_use]
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.client.set_connect_timeout(time);
        self
    }

    /// Sets the timeout for the first byte of the response, overriding the host's default.
    #[must_use]
    pub fn first_byte_timeout(mut self, time: Duration) -> Self {
        self.client.set_first_byte_timeout(time);
        self
    }

    /// Sets the timeout for each pause between bytes of the response, overriding the host's default.
    #[must_use]
    pub fn between_bytes_timeout(mut self, time: Duration) -> Self {
        self.client.set_between_bytes_timeout(time);
        self
    }

    /// Sends a request, and returns the response once its headers have arrived. A status such as 404 or 500 is not an
    /// error.
    ///
    /// With [`AsyncTerm::until_stop`](crate::AsyncTerm::until_stop), the request is canceled when the host asks this
    /// instance to stop.
    ///
    /// # Errors
    /// Returns an error if there is no response or the response is invalid. If the host gives a reason, for example
    /// that `--allow-http` does not permit the server, [`downcast_ref`](Error::downcast_ref) returns the reason as
    /// [`NoResponse`].
    pub async fn send<B: Into<Body>>(&self, request: Request<B>) -> Result<Response<Body>, Error> {
        #[cfg(target_family = "wasm")]
        return self.client.send(request).await.map_err(|error| match error.downcast::<ErrorCode>() {
            Ok(code) => NoResponse(code).into(),
            Err(error) => error,
        });
        #[cfg(not(target_family = "wasm"))]
        return self.host.send(request).await;
    }

    /// Sends a GET request and parses the response body as JSON.
    ///
    /// # Errors
    /// Returns an error if there is no response, its status is not 2xx, or its body is not JSON of this type. The error
    /// message includes the URL.
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

/// The host's reason why a request got no response.
#[derive(Debug, Clone, thiserror::Error)]
pub struct NoResponse(
    /// The reason, as `wasi:http` defines it.
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
