//! What the host is told of each request, where it exports traces: the runner itself reaches no collector.
//!
//! A request that its guest has not made part of a trace gets a `traceparent` (<https://www.w3.org/TR/trace-context/>), so
//! that what its server traces belongs to it. One that has a `traceparent` keeps it: that is the guest's own trace.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::Time;
use baton_store::clock::Clock;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::{Deserialize, Serialize};
use wasmtime_wasi_http::Error;

use super::super::output::{Allowance, Notice, Output};
use super::grant::Origin;
use super::limits::{AUTHORITY_BYTES, TRACED_A_SECOND, WORD_BYTES};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A request that a guest has made, and what became of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requested {
    /// The trace that its server was told of, or one of its own.
    pub trace: [u8; 16],
    /// Itself in that.
    pub span: [u8; 8],
    /// Its method.
    pub method: String,
    /// The server's name or address.
    pub host: String,
    /// The server's port.
    pub port: u16,
    /// How long it took until the head of the response was there, or it had failed.
    pub took: Duration,
    /// The status that the server answered.
    pub status: Option<u16>,
    /// What kind of failure there was instead.
    pub error: Option<String>,
}

impl Requested {
    /// Whether a runner could say this that nobody has taken over.
    pub(in super::super) fn is_plausible(&self) -> bool {
        let error = self.error.as_ref().map_or(0, String::len);
        self.method.len() <= WORD_BYTES && self.host.len() <= AUTHORITY_BYTES && error <= WORD_BYTES
    }
}

/// Watches the requests of an instance.
pub(super) struct Tracing {
    clock: Clock,
    output: Arc<dyn Output>,
    allowance: Mutex<Allowance>,
}

impl Tracing {
    pub(super) fn new(clock: &Clock, output: &Arc<dyn Output>) -> Self {
        let allowance = Mutex::new(Allowance::of(TRACED_A_SECOND, clock));
        Self { clock: clock.clone(), output: Arc::clone(output), allowance }
    }

    /// Watches a request that is about to be made, unless there are very many.
    pub(super) fn begin(&self, method: &Method, origin: &Origin, headers: &mut HeaderMap) -> Option<Traced> {
        if !self.allowance.lock().unwrap_or_else(PoisonError::into_inner).admits() {
            return None;
        }
        let (mut trace, mut span) = ([0; 16], [0; 8]);
        getrandom::fill(&mut trace).and_then(|()| getrandom::fill(&mut span)).ok()?;
        if !headers.contains_key(TRACEPARENT) {
            headers.insert(TRACEPARENT, traceparent(trace, span)?);
        }
        Some(Traced {
            output: Arc::clone(&self.output),
            clock: self.clock.clone(),
            began: self.clock.now(),
            requested: Requested {
                trace,
                span,
                method: method.as_str().to_owned(),
                host: origin.host.to_string(),
                port: origin.port,
                took: Duration::ZERO,
                status: None,
                error: Some("canceled".to_owned()),
            },
        })
    }
}

/// The header, which says that the trace is kept.
fn traceparent(trace: [u8; 16], span: [u8; 8]) -> Option<HeaderValue> {
    let value = format!("00-{:032x}-{:016x}-01", u128::from_be_bytes(trace), u64::from_be_bytes(span));
    HeaderValue::from_str(&value).ok()
}

/// A request under way. The host is told when it is dropped, which is without an answer where its guest gives it up.
pub(super) struct Traced {
    output: Arc<dyn Output>,
    clock: Clock,
    began: Time,
    requested: Requested,
}

impl Traced {
    /// The head of the response is there.
    pub(super) fn answered(mut self, status: http::StatusCode) {
        (self.requested.status, self.requested.error) = (Some(status.as_u16()), None);
    }

    /// There is no response.
    pub(super) fn failed(mut self, error: &Error) {
        let kind = format!("{error:?}");
        let kind = kind.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        self.requested.error = Some(kind.to_owned());
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.requested.took = self.clock.now().since(self.began);
        self.output.notice(Notice::Requested(&self.requested));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<Requested>>);

    impl Output for Told {
        fn notice(&self, notice: Notice<'_>) {
            if let Notice::Requested(requested) = notice {
                self.0.lock().unwrap().push(requested.clone());
            }
        }
    }

    #[test]
    fn each_request_is_told_of_with_the_trace_that_its_server_has() {
        let told = Arc::new(Told::default());
        let output: Arc<dyn Output> = Arc::clone(&told) as _;
        let tracing = Tracing::new(&Clock::default(), &output);
        let origin = Origin::of(&"http://example.com:81/secret?x".parse().unwrap()).unwrap();
        let begin = |headers: &mut HeaderMap| tracing.begin(&Method::PUT, &origin, headers).unwrap();
        let (mut none, mut own) = (HeaderMap::new(), HeaderMap::new());
        own.insert(TRACEPARENT, HeaderValue::from_static("the guest's"));
        begin(&mut none).answered(http::StatusCode::NOT_FOUND);
        begin(&mut own).failed(&Error::InternalError(Some("a secret".to_owned())));
        drop(begin(&mut HeaderMap::new()));
        assert_eq!(own[TRACEPARENT], "the guest's");
        let told = told.0.lock().unwrap();
        let [answered, failed, dropped] = &told[..] else { panic!("{told:?}") };
        assert_eq!(none[TRACEPARENT], traceparent(answered.trace, answered.span).unwrap());
        assert_eq!(none[TRACEPARENT].len(), 55);
        assert_ne!((answered.trace, answered.span), (failed.trace, failed.span));
        let what = |one: &Requested| (one.status, one.error.clone().unwrap_or_default());
        assert_eq!(what(answered), (Some(404), String::new()));
        assert_eq!(what(failed), (None, "InternalError".to_owned()));
        assert_eq!(what(dropped), (None, "canceled".to_owned()));
        assert_eq!((answered.method.as_str(), answered.host.as_str(), answered.port), ("PUT", "example.com", 81));
        assert!(told.iter().all(Requested::is_plausible));
    }

    #[test]
    fn of_very_many_requests_some_are_told_of() {
        let told = Arc::new(Told::default());
        let output: Arc<dyn Output> = Arc::clone(&told) as _;
        let tracing = Tracing::new(&Clock::default(), &output);
        let origin = Origin::of(&"http://example.com/".parse().unwrap()).unwrap();
        let traced = (0..100_000).filter_map(|_| tracing.begin(&Method::GET, &origin, &mut HeaderMap::new())).count();
        assert!((TRACED_A_SECOND as usize..50_000).contains(&traced), "{traced}");
    }
}
