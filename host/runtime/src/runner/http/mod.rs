//! Outgoing HTTP: `wasi:http/outgoing-handler`, for the servers that a coordinator was granted.
//!
//! Each request, and each write on its connection, is an effect that must pass the instance's gate. Three headers that
//! a guest cannot set identify the term. This code runs in the instance's runner, but the host does the DNS lookups.
//!
//! `types` and `handle` implement the interfaces. `grant` decides which requests are allowed, and `path` refuses
//! ambiguous paths. `headers` adds the term's headers, and `connect`, `tls` and `exchange` make the request. `limits`
//! defines the limits and timeouts.

mod connect;
mod exchange;
mod grant;
mod handle;
mod headers;
mod limits;
mod path;
mod tls;
mod types;
pub(crate) mod untrusted;

use std::collections::BTreeSet;
use std::fmt;
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use http::uri::Authority;
use http::{HeaderValue, Method, Request, Uri};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::{
    Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks,
};

use crate::runner::guest::TermContext;
use crate::runner::{Begun, Lookups};
use crate::wire::limits::{EffectKind, Tally};
use crate::wire::output::{Notice, Output};
use crate::wire::page::RunnerGate;
use crate::wire::protocol::Resolved;
use crate::wire::shared::SharedMemory;
use baton_base::clock::Clock;
use baton_base::gate::Refused;
use connect::Connector;
pub(crate) use connect::KEPT_BY_KERNEL;
use exchange::{Admitted, Idle};
use grant::Origin;
pub use grant::{Grant, GrantError, Grants};
pub(crate) use handle::link;
use headers::{Stamp, is_forbidden};
use limits::{BEFORE_DEADLINE, FIELD_BYTES, HEAD_BYTES, WRITE_AHEAD, Waits};
pub use tls::CaError;
pub(crate) use types::{HttpAccess, link as link_types};

/// Maximum number of origins whose refusals are reported in a term. Without a limit, a guest could cause any number of
/// reports by inventing origins.
const TOLD: usize = 32;

/// The HTTP permissions of a coordinator's instances.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HttpPolicy {
    grants: Grants,
    max_requests: usize,
    /// CA certificates (DER) that are trusted in addition to Mozilla's root certificates.
    certificates: Vec<Vec<u8>>,
}

impl HttpPolicy {
    /// Allows up to `max_requests` requests at a time to the granted servers. Servers are verified with Mozilla's root
    /// certificates and the CA certificates in the file `ca`.
    ///
    /// # Errors
    /// [`CaError`] if no certificates can be read from the file.
    pub fn new(grants: Grants, max_requests: usize, ca: Option<&Path>) -> Result<Self, CaError> {
        let certificates = ca.map(tls::certificates).transpose()?.unwrap_or_default();
        Ok(Self { grants, max_requests, certificates })
    }

    pub(crate) fn grants_anything(&self) -> bool {
        self.grants.iter().next().is_some()
    }

    pub(crate) fn may_ask(&self, host: &str) -> bool {
        self.grants.cover_host(host)
    }

    pub(crate) fn max_requests(&self) -> u64 {
        self.max_requests as u64
    }
}

/// The part of the HTTP client that does not depend on a term. The runner creates it in advance, before there is an
/// instance.
#[derive(Clone)]
pub(crate) struct Client {
    policy: Arc<HttpPolicy>,
    connector: Connector,
    begun: Begun,
}

impl Client {
    pub(crate) fn new(policy: &HttpPolicy, names: Lookups, begun: Begun) -> Result<Self, CaError> {
        let connector = Connector::new(tls::connector(&policy.certificates)?, names);
        Ok(Self { policy: Arc::new(policy.clone()), connector, begun })
    }
}

/// A guest's request that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RefusedRequest {
    /// The origin of the request; empty if the request was refused because too many others were in flight.
    pub origin: String,
    /// The reason for the refusal.
    pub reason: String,
    /// A line of `baton.toml` that would allow the request, and the equivalent flags; `None` if no grant would help.
    pub allow: Option<[String; 2]>,
}

pub(crate) struct Http {
    ctx: WasiHttpCtx,
    hooks: Hooks,
}

impl Http {
    pub(crate) fn new(
        client: &Client,
        term: &TermContext,
        output: Arc<dyn Output>,
        tally: &SharedMemory<Tally>,
    ) -> Self {
        let policy = Arc::clone(&client.policy);
        let shared = Arc::new(HttpShared {
            stamp: Stamp::new(&term.election, term.number, &term.node),
            places: Arc::new(Semaphore::new(policy.max_requests)),
            idle: Idle::default(),
            policy,
            connector: client.connector.clone(),
            gate: Arc::clone(&term.gate),
            clock: term.clock.clone(),
            told: Mutex::default(),
            last: Mutex::default(),
            tally: tally.clone(),
            output,
            begun: client.begun.clone(),
        });
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(FIELD_BYTES);
        Self { ctx, hooks: Hooks { shared, forbidden: Arc::new(is_forbidden) } }
    }

    /// Closes the idle connections gracefully. Otherwise the kernel would reset them when the process exits.
    pub(crate) fn finish(&self) {
        self.hooks.shared.idle.clear();
    }

    pub(crate) fn view<'a>(&'a mut self, table: &'a mut ResourceTable) -> WasiHttpCtxView<'a> {
        WasiHttpCtxView { hooks: &mut self.hooks, table, ctx: &mut self.ctx }
    }
}

struct Hooks {
    shared: Arc<HttpShared>,
    forbidden: ForbiddenHeaderFilter,
}

impl WasiHttpHooks for Hooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::clone(&self.forbidden)
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        WRITE_AHEAD
    }

    /// Wasmtime's own handler would call this method. The method is never called, since `handle` replaces that handler.
    fn send_request(
        &mut self,
        _: Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<Sent, Error>> + Send> {
        Box::new(ready(Err(Error::ConfigurationError)))
    }
}

type Sent = (http::Response<WasiBody>, Box<dyn Future<Output = Result<(), Error>> + Send>);

struct Server {
    origin: Origin,
    /// The value of the header `Host`.
    host: HeaderValue,
}

struct HttpShared {
    policy: Arc<HttpPolicy>,
    connector: Connector,
    gate: Arc<RunnerGate>,
    clock: Clock,
    stamp: Stamp,
    places: Arc<Semaphore>,
    idle: Idle,
    /// The origins whose refusals have been reported.
    told: Mutex<BTreeSet<String>>,
    /// Cache: the server of the last request, and the authority as the guest wrote it. Most guests send all requests to
    /// one server.
    last: Mutex<Option<(Authority, Arc<Server>)>>,
    tally: SharedMemory<Tally>,
    output: Arc<dyn Output>,
    begun: Begun,
}

impl HttpShared {
    fn server(&self, uri: &Uri) -> Result<Arc<Server>, Error> {
        let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, server)) = &*last
            && known == authority
            && uri.scheme_str() == Some(server.origin.scheme.name())
        {
            return Ok(Arc::clone(server));
        }
        let origin = Origin::of(uri).ok_or(Error::HttpRequestUriInvalid)?;
        let host = HeaderValue::from_str(&origin.authority()).map_err(|_| Error::HttpRequestUriInvalid)?;
        let server = Arc::new(Server { origin, host });
        *last = Some((authority.clone(), Arc::clone(&server)));
        Ok(server)
    }

    /// Checks that the guest may make this request, and adds the term's headers to it.
    fn admit(&self, mut request: Request<WasiBody>, waits: Waits) -> Result<Admitted, Error> {
        self.gate.pass(EffectKind::Request).map_err(internal_error)?;
        // Refuse CONNECT: it would turn the connection into a tunnel whose content is not checked.
        if request.method() == Method::CONNECT {
            return Err(Error::HttpRequestMethodInvalid);
        }
        let server = self.server(request.uri())?;
        let (origin, path) = (&server.origin, request.uri().path());
        let Some(reach) = self.policy.grants.reach(origin, path) else {
            let wanted = self.policy.grants.wanted(origin, path);
            let reason = match &wanted {
                Some(wanted) => format!("the coordinator was not granted requests to {wanted}"),
                None => format!(
                    "the path of a request to {origin} is too long, or a server could resolve it to a path outside the \
                     grant"
                ),
            };
            return Err(self.refuse(origin, reason, wanted));
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| self.refuse_place())?;
        self.tally.record_requests(self.policy.max_requests.saturating_sub(self.places.available_permits()) as u64);
        *request.uri_mut() = match request.uri().path_and_query() {
            None => Uri::default(),
            Some(target) if target.as_str().starts_with('/') => target.clone().into(),
            Some(target) => Uri::try_from(format!("/{target}")).map_err(|_| Error::HttpRequestUriInvalid)?,
        };
        self.stamp.put_on(request.headers_mut(), &server.host);
        Ok(Admitted { request, server, reach, place, waits })
    }

    /// Returns the error that the guest gets after a timeout: `error`, unless the deadline ended the wait.
    fn late(&self, error: Error) -> Error {
        match self.gate.remaining() {
            left if left > BEFORE_DEADLINE => error,
            _ => internal_error(
                "the term's deadline passed before the response: the host did not renew the lease in time",
            ),
        }
    }

    /// Returns the error that the guest gets after a failure on a connection.
    fn explain(&self, error: &hyper::Error) -> Error {
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut texts = Vec::new();
        while let Some(cause) = source {
            let io = cause.downcast_ref::<std::io::Error>();
            if let Some(refused) =
                io.and_then(std::io::Error::get_ref).and_then(|inner| inner.downcast_ref::<Refused>())
            {
                return internal_error(refused);
            }
            texts.push(cause.to_string());
            source = cause.source();
        }
        if error.is_parse_too_large() {
            Error::HttpResponseHeaderSectionSize(u32::try_from(HEAD_BYTES).ok())
        } else if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            Error::ConnectionTerminated
        } else if error.is_parse() {
            Error::HttpProtocolError
        } else {
            internal_error(texts.join(": "))
        }
    }

    fn refuse_address(&self, origin: &Origin, found: Resolved) -> Error {
        let address = found.address.ip();
        let reason = format!("{} resolves to {address}, which its grant does not allow", origin.host);
        let private =
            self.policy.grants.wanted_private(origin).filter(|_| grant::AddressReach::Private.includes(found));
        self.refuse(origin, reason, private)
    }

    fn refuse_place(&self) -> Error {
        let limit = self.policy.max_requests;
        let more = limit.saturating_mul(2);
        self.tell(RefusedRequest {
            origin: String::new(),
            reason: format!("the coordinator has {limit} requests in flight, which is the limit"),
            allow: Some([format!("max-requests = {more}"), format!("--max-requests {more}")]),
        })
    }

    fn refuse(&self, origin: &Origin, reason: String, wanted: Option<Grant>) -> Error {
        let allow = wanted.map(|grant| self.policy.grants.lines_with(&grant));
        self.tell(RefusedRequest { origin: origin.to_string(), reason, allow })
    }

    /// Reports a refusal, unless a refusal for the same origin was already reported. Returns the error that the guest
    /// gets.
    fn tell(&self, refused: RefusedRequest) -> Error {
        let mut told_of = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = told_of.len() < TOLD && told_of.insert(refused.origin.clone());
        drop(told_of);
        let allow = match &refused.allow {
            Some([_, flags]) => format!("use {flags} to allow it"),
            None => "no flag allows it".to_owned(),
        };
        let error = internal_error(format!("{}: {allow}", refused.reason));
        if is_new {
            self.output.notice(Notice::RefusedRequest(&refused));
        }
        error
    }
}

/// Returns the guest's error for a failure that has no code in `wasi:http`.
fn internal_error(why: impl fmt::Display) -> Error {
    Error::InternalError(Some(why.to_string()))
}
