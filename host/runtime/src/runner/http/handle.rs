//! `wasi:http/outgoing-handler`: starts the requests that a guest has built.
//!
//! Replaces the handler of `wasmtime-wasi-http`, so that a refused request needs no task, and a response that arrives
//! in one piece needs one task instead of two.

use std::sync::Arc;

use http::{Request, Uri};
use http_body_util::{BodyExt as _, Empty};
use tokio::task::LocalSet;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::runtime::AbortOnDropJoinHandle;
use wasmtime_wasi_http::p2::bindings::http::types;
use wasmtime_wasi_http::p2::types::{HostFutureIncomingResponse, HostOutgoingRequest};
use wasmtime_wasi_http::{Error, WasiBody};

use super::limits::{HEAD_BYTES, HEAD_LINES, Waits};
use super::{Http, exchange, internal_error};
use crate::runner::holdings::Holdings;
use crate::runner::weight::{BUFFER, FIELD, FIELDS};

/// A linker entry for this version matches an import of any version of WASI 0.2.
const INTERFACE: &str = "wasi:http/outgoing-handler@0.2.12";

/// Upper bound on the memory of a response in the runner (bytes): its head, and the buffer of its body.
const ANSWER: usize = BUFFER + FIELDS + HEAD_BYTES + HEAD_LINES * FIELD;

type Handled = Result<Resource<HostFutureIncomingResponse>, types::ErrorCode>;

pub(crate) fn link<T: 'static>(
    linker: &mut Linker<T>,
    parts: fn(&mut T) -> (&Http, &mut Holdings),
) -> wasmtime::Result<()> {
    type Asked = (Resource<HostOutgoingRequest>, Option<Resource<types::RequestOptions>>);
    linker.instance(INTERFACE)?.func_wrap(
        "handle",
        move |mut store: StoreContextMut<'_, T>, (request, options): Asked| -> wasmtime::Result<(Handled,)> {
            let (http, held) = parts(store.data_mut());
            let options = options.and_then(|options| held.table.get(&options).ok().copied());
            let asked = held.table.delete(request)?;
            let begun = held.keep(ANSWER).map_err(internal_error).and_then(|()| begin(http, asked, Waits::of(options)));
            Ok((match begun {
                Ok(begun) => Ok(held.table.push(begun)?),
                Err(refused) => Err(code(refused)),
            },))
        },
    )
}

/// Checks a request and starts it. If the request is invalid or not allowed, this function returns the error itself, as
/// `wasi:http` specifies. The future response must not carry the error: a guest that sends the body first would find
/// the body's stream closed, and would report the closed stream instead of the refusal.
fn begin(http: &Http, asked: HostOutgoingRequest, waits: Waits) -> Result<HostFutureIncomingResponse, Error> {
    let shared = &http.hooks.shared;
    let admitted = shared.admit(request_of(asked)?, waits)?;
    let run = exchange::run(Arc::clone(shared), admitted);
    let begun = shared.begun.clone();
    Ok(HostFutureIncomingResponse::Pending(shared.begun.begin(async move {
        let (response, rest) = run.await?;
        Ok((response, rest.map_or_else(nothing, |rest| begun.go_on(rest))))
    })))
}

/// Returns the error code for a refused request. All other codes concern connections, which a refused request does not
/// have.
fn code(refused: Error) -> types::ErrorCode {
    match refused {
        Error::HttpProtocolError => types::ErrorCode::HttpProtocolError,
        Error::HttpRequestBodySize(size) => types::ErrorCode::HttpRequestBodySize(size),
        Error::HttpRequestMethodInvalid => types::ErrorCode::HttpRequestMethodInvalid,
        Error::HttpRequestUriInvalid => types::ErrorCode::HttpRequestUriInvalid,
        Error::InternalError(reason) => types::ErrorCode::InternalError(reason),
        other => types::ErrorCode::InternalError(Some(other.to_string())),
    }
}

fn request_of(asked: HostOutgoingRequest) -> Result<Request<WasiBody>, Error> {
    let scheme = match asked.scheme {
        None | Some(types::Scheme::Https) => "https",
        Some(types::Scheme::Http) => "http",
        Some(types::Scheme::Other(_)) => return Err(Error::HttpProtocolError),
    };
    let path = asked.path_with_query.unwrap_or_default();
    let uri = Uri::builder()
        .scheme(scheme)
        .authority(asked.authority.unwrap_or_default())
        .path_and_query(if path.is_empty() { "/" } else { &path })
        .build()
        .map_err(|_| Error::HttpRequestUriInvalid)?;
    let has_body = asked.body.is_some();
    let body = asked.body.unwrap_or_else(|| Empty::new().map_err(|never| match never {}).boxed_unsync());
    let mut request = Request::new(body);
    *request.method_mut() = asked.method.try_into().map_err(|_| Error::HttpRequestMethodInvalid)?;
    *request.uri_mut() = uri;
    *request.headers_mut() = asked.headers.into();
    let length = request.headers().get(http::header::CONTENT_LENGTH);
    if !has_body && length.is_some_and(|length| length != "0") {
        return Err(Error::HttpRequestBodySize(Some(0)));
    }
    Ok(request)
}

/// Returns the handle of an empty task. The wasmtime type for a response requires a handle, even if the whole response
/// has arrived and no task is left.
fn nothing() -> AbortOnDropJoinHandle<()> {
    LocalSet::new().spawn_local(async {}).into()
}
