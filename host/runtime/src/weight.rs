//! What the handles of an instance take of the host's memory.
//!
//! Weighed are those that a guest can make large: header fields, requests, responses, and what has a buffer. A stream of a
//! body has none beside the body's, one of a file is counted by [`Holdings`](super::holdings::Holdings). The others are
//! of a few hundred bytes each, and the limit on handles bounds them.

use std::any::Any;
use std::collections::HashSet;

use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::p2::bindings::http::types::{Method, Scheme};
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};
use wasmtime_wasi_http::{Error, FieldMap};

use super::listing::Listing;

/// What anything that reads or writes ahead may have in its buffer, in bytes.
pub(super) const BUFFER: usize = 64 << 10;

/// What a list of fields takes without any field, in bytes.
pub(super) const FIELDS: usize = 512;

/// What one more field takes in its list beside its text, in bytes. An `http::HeaderMap` has entries of 104 and an index,
/// which grow by doubling, and name and value are allocations of their own.
pub(super) const FIELD: usize = 256;

/// Of that, what there is room for, and what each text takes beside its bytes.
const ROOM: usize = 112;
const TEXT: usize = 64;

/// What all handles of a table take, in bytes.
pub(super) fn of_all(table: &mut ResourceTable) -> usize {
    let mut seen = HashSet::new();
    table.iter_mut().map(|handle| of(handle, &mut seen)).sum()
}

/// What a field takes, in bytes.
pub(super) fn of_field(name: &str, value: &[u8]) -> usize {
    name.len() + value.len() + FIELD
}

/// What a list of fields takes, in bytes.
pub(super) fn of_fields(fields: &FieldMap) -> usize {
    of_map(fields)
}

/// What one handle takes. What several of them share, which is `seen`, weighs once.
fn of(handle: &dyn Any, seen: &mut HashSet<usize>) -> usize {
    let mut once = |fields: &FieldMap| {
        let map: &http::HeaderMap = fields;
        if seen.insert(std::ptr::from_ref(map).addr()) { of_fields(fields) } else { 0 }
    };
    if let Some(fields) = handle.downcast_ref() {
        once(fields)
    } else if let Some(request) = handle.downcast_ref() {
        let HostOutgoingRequest { method, scheme, authority, path_with_query, headers, body } = request;
        let method = if let Method::Other(text) = method { text.capacity() } else { 0 };
        let scheme = if let Some(Scheme::Other(text)) = scheme { text.capacity() } else { 0 };
        let texts = [authority, path_with_query].into_iter().flatten().map(String::capacity).sum::<usize>();
        once(headers) + method + scheme + texts + of_body(body.is_some())
    } else if let Some(HostIncomingResponse { headers, body, .. }) = handle.downcast_ref() {
        once(headers) + of_body(body.is_some())
    } else if let Some(HostOutgoingResponse { headers, body, .. }) = handle.downcast_ref() {
        once(headers) + of_body(body.is_some())
    } else if let Some(response) = handle.downcast_ref() {
        match response {
            HostFutureIncomingResponse::Pending(_) => BUFFER,
            HostFutureIncomingResponse::Ready(Ok((response, _))) => BUFFER + of_map(response.headers()),
            HostFutureIncomingResponse::Ready(Err(Error::InternalError(Some(why)))) => why.capacity(),
            HostFutureIncomingResponse::Ready(Err(_)) | HostFutureIncomingResponse::Consumed => 0,
        }
    } else if let Some(trailers) = handle.downcast_ref() {
        match trailers {
            HostFutureTrailers::Waiting(_) => BUFFER,
            HostFutureTrailers::Done(Ok(Some(trailers))) => of_map(trailers),
            HostFutureTrailers::Done(_) | HostFutureTrailers::Consumed => 0,
        }
    } else {
        of_body(handle.is::<HostIncomingBody>() || handle.is::<Listing>())
    }
}

fn of_body(has_buffer: bool) -> usize {
    if has_buffer { BUFFER } else { 0 }
}

fn of_map(map: &http::HeaderMap) -> usize {
    let further_values = map.len() - map.keys_len();
    let room = ROOM * (map.capacity() + 2 * further_values);
    let texts = map.keys().map(|name| name.as_str().len() + TEXT).sum::<usize>();
    FIELDS + room + texts + map.values().map(|value| value.len() + TEXT).sum::<usize>()
}
