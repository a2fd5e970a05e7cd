//! The memory that an instance's handles take in the runner.
//!
//! This module measures the handles that a guest can make large: header fields, requests, responses, and handles with a
//! buffer. It leaves out two kinds of handles with a buffer. The stream of a body shares the body's buffer, and
//! [`Holdings`](crate::runner::holdings::Holdings) counts the streams of files. All other handles take a few hundred
//! bytes each, so the limit on their number is sufficient.

use std::any::Any;
use std::collections::HashSet;

use wasmtime::component::ResourceTable;
use wasmtime_wasi_http::p2::bindings::http::types::{Method, Scheme};
use wasmtime_wasi_http::p2::body::{HostFutureTrailers, HostIncomingBody};
use wasmtime_wasi_http::p2::types::{
    HostFutureIncomingResponse, HostIncomingResponse, HostOutgoingRequest, HostOutgoingResponse,
};
use wasmtime_wasi_http::{Error, FieldMap};

use crate::runner::listing::Listing;

/// Maximum buffer size for a handle that reads or writes ahead, in bytes.
pub(crate) const BUFFER: usize = 64 << 10;

/// Size of an empty list of fields, in bytes.
pub(crate) const FIELDS: usize = 512;

/// Size of a field in a list, without the text of its name and value, in bytes. An `http::HeaderMap` has entries of 104
/// bytes and an index, both of which grow by doubling. Name and value are separate allocations.
pub(crate) const FIELD: usize = 256;

/// Size of a map's entry, including its share of the index, in bytes.
const ROOM: usize = 112;
/// Overhead of a string's allocation, in bytes.
const TEXT: usize = 64;

/// Returns the size of all handles of a table, in bytes.
pub(crate) fn of_all(table: &mut ResourceTable) -> usize {
    let mut seen = HashSet::new();
    table.iter_mut().map(|handle| of(handle, &mut seen)).sum()
}

pub(crate) fn of_field(name: &str, value: &[u8]) -> usize {
    name.len() + value.len() + FIELD
}

pub(crate) fn of_fields(fields: &FieldMap) -> usize {
    of_map(fields)
}

/// Returns the size of a handle, in bytes. Several handles may share a list of fields. Lists in `seen` are left out,
/// since they were counted with another handle.
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
