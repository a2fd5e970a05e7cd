//! A client for a machine's metadata service. The client uses plain HTTP without a proxy, to an address that only the
//! machine itself can reach.

use std::fmt;
use std::time::Duration;

use baton_base::address::without_user;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::document::{Document, Machine};

const MACHINE: &str = "/metadata/instance/compute?api-version=2021-02-01";
const PLANNED: &str = "/metadata/scheduledevents?api-version=2020-07-01";

const RESPONSE_WITHIN: Duration = Duration::from_secs(10);

/// Upper bound on the size of a response, in bytes. The description of an event takes less than 1 KB, and the
/// description of a machine takes a few KB.
const LONGEST: usize = 1 << 20;

/// The error returned when a value is not the address of a metadata service.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not auto, off or an address: write an address like http://169.254.169.254")]
pub struct NoEndpoint(String);

/// The address of the metadata service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint(String);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.0)
    }
}

impl Endpoint {
    /// Parses `http://HOST` or `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`NoEndpoint`] if `url` is anything else.
    pub fn new(url: &str) -> Result<Self, NoEndpoint> {
        let wrong = || NoEndpoint(without_user(url));
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let is_bare = uri.path_and_query().is_none_or(|path| path.as_str() == "/");
        if uri.scheme_str() != Some("http") || !is_bare {
            return Err(wrong());
        }
        Ok(Self(authority.to_string()))
    }

    pub(super) async fn machine(&self) -> Result<String, String> {
        self.ask::<Machine>(MACHINE).await.map(|machine| machine.name)
    }

    pub(super) async fn planned(&self) -> Result<Document, String> {
        self.ask(PLANNED).await
    }

    /// Acknowledges an event, so that Azure may start it immediately.
    pub(super) async fn acknowledge(&self, id: &str) -> Result<(), String> {
        let body = serde_json::json!({ "StartRequests": [{ "EventId": id }] }).to_string();
        self.send(Method::POST, PLANNED, body).await.map(drop)
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        let answer = self.send(Method::GET, path, String::new()).await?;
        serde_json::from_slice(&answer).map_err(|error| format!("its response is not in Azure's format: {error}"))
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Result<Bytes, String> {
        let answer = timeout(RESPONSE_WITHIN, self.exchange(method, path, body)).await;
        answer.unwrap_or_else(|_| Err(format!("no response within {RESPONSE_WITHIN:?}")))
    }

    async fn exchange(&self, method: Method, path: &str, body: String) -> Result<Bytes, String> {
        let mut request = Request::builder().method(&method).uri(path).header(HOST, &self.0).header("Metadata", "true");
        if method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
        let address = if self.has_port() { self.0.clone() } else { format!("{}:80", self.0) };
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        // The connection ends after this exchange. Ignore its error, since the exchange itself reports failures.
        let mut driven = JoinSet::new();
        driven.spawn(async move { drop(connection.await) });
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status();
        let answer = Limited::new(answer.into_body(), LONGEST).collect().await;
        let answer = answer.map_err(|error| format!("cannot read its response: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            return Err(format!("it responded with status {status}"));
        }
        Ok(answer)
    }

    fn has_port(&self) -> bool {
        self.0.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn endpoint_is_a_plain_http_address_without_a_path() {
        for (url, is) in
            [("http://169.254.169.254", "http://169.254.169.254"), ("http://127.0.0.1:80/", "http://127.0.0.1:80")]
        {
            assert_eq!(Endpoint::new(url).unwrap().to_string(), is);
        }
        for wrong in [
            "https://169.254.169.254",
            "169.254.169.254",
            "http://a/b",
            "http://a/?b",
            "on",
            "",
            "http://u:p@a",
            "http://",
        ] {
            let error = Endpoint::new(wrong).unwrap_err().to_string();
            assert!(error.contains("169.254.169.254"), "{error}");
        }
    }
}
