//! `wasi:http/types`: the resources that a guest builds and reads.
//!
//! Wraps wasmtime's implementation to limit the length of strings, and to count the memory that handles take in the
//! runner.

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::p2::{DynInputStream, DynOutputStream, DynPollable};
use wasmtime_wasi_http::p2::bindings::http::types;
use wasmtime_wasi_http::p2::{HeaderError, HeaderResult, HttpError, HttpResult};
use wasmtime_wasi_http::{FieldMap, WasiHttpCtxView};

use super::Http;
use super::limits::{AUTHORITY_BYTES, FIELD_BYTES, HEAD_BYTES, TRAILERS, WORD_BYTES};
use crate::runner::holdings::Holdings;
use crate::runner::weight::{BUFFER, FIELDS, of_field, of_fields};

pub(crate) fn link<T: Send + 'static>(
    linker: &mut Linker<T>,
    access: fn(&mut T) -> HttpAccess<'_>,
) -> wasmtime::Result<()> {
    types::add_to_linker::<T, Types>(linker, &types::LinkOptions::default(), access)
}

struct Types;

impl HasData for Types {
    type Data<'a> = HttpAccess<'a>;
}

pub(crate) struct HttpAccess<'a> {
    pub(crate) http: &'a mut Http,
    pub(crate) held: &'a mut Holdings,
}

impl HttpAccess<'_> {
    fn inner(&mut self) -> WasiHttpCtxView<'_> {
        self.http.view(&mut self.held.table)
    }

    /// Reserves memory for a change that adds `more` bytes of fields. Also reserves memory for a copy of the existing
    /// fields, since wasmtime copies a shared list before it changes the list.
    fn copy(&mut self, fields: &Resource<FieldMap>, more: usize) -> wasmtime::Result<()> {
        let copied = of_fields(self.held.table.get(fields)?);
        Ok(self.held.keep(copied + more)?)
    }

    /// Makes a change that may remove fields. A map never shrinks by itself, so this method rebuilds the map in two
    /// cases:
    ///
    /// - The capacity is much larger than needed.
    /// - Names have lost second or later values. The reported capacity does not count such values.
    fn shrinking(
        &mut self,
        fields: Resource<FieldMap>,
        change: impl FnOnce(&mut WasiHttpCtxView<'_>, Resource<FieldMap>) -> HeaderResult<()>,
    ) -> HeaderResult<()> {
        let handle = fields.rep();
        let fields_of = || Resource::<FieldMap>::new_borrow(handle);
        let further_values = |fields: &FieldMap| fields.len() - fields.keys_len();
        let before = further_values(self.held.table.get(&fields_of())?);
        change(&mut self.inner(), fields)?;
        let changed = self.held.table.get_mut(&fields_of())?;
        if further_values(changed) < before || changed.capacity() > 4 * changed.len() + 16 {
            let mut anew = FieldMap::new_mutable(FIELD_BYTES);
            for (name, value) in changed.iter() {
                anew.append_raw(name.clone(), value.clone())?;
            }
            *changed = anew;
        }
        Ok(())
    }

    /// Reserves memory for a string. Returns false if the string is longer than `longest`, or the memory limit is
    /// reached.
    fn keep_text(&mut self, text: &str, longest: usize) -> bool {
        text.len() <= longest && self.held.keep(text.len()).is_ok()
    }
}

/// Forwards calls to wasmtime's implementation. A call marked with `keeps` reserves memory first.
macro_rules! calls {
    ($trait:ident: $($name:ident($($argument:ident: $type:ty),*) -> $answer:ty $(, keeps $bytes:expr)?;)*) => {
        impl types::$trait for HttpAccess<'_> {$(
            fn $name(&mut self, $($argument: $type),*) -> wasmtime::Result<$answer> {
                $(self.held.keep($bytes)?;)?
                types::$trait::$name(&mut self.inner(), $($argument),*)
            }
        )*}
    };
}

impl types::Host for HttpAccess<'_> {
    fn convert_error_code(&mut self, error: HttpError) -> wasmtime::Result<types::ErrorCode> {
        self.inner().convert_error_code(error)
    }

    fn convert_header_error(&mut self, error: HeaderError) -> wasmtime::Result<types::HeaderError> {
        self.inner().convert_header_error(error)
    }

    fn http_error_code(&mut self, error: Resource<types::IoError>) -> wasmtime::Result<Option<types::ErrorCode>> {
        self.inner().http_error_code(error)
    }
}

impl types::HostFields for HttpAccess<'_> {
    fn new(&mut self) -> wasmtime::Result<Resource<FieldMap>> {
        self.held.keep(FIELDS)?;
        types::HostFields::new(&mut self.inner())
    }

    fn from_list(&mut self, entries: Vec<(String, Vec<u8>)>) -> HeaderResult<Resource<FieldMap>> {
        let weight = entries.iter().map(|(name, value)| of_field(name, value)).sum::<usize>();
        self.held.keep(FIELDS + weight).map_err(HeaderError::trap)?;
        self.inner().from_list(entries)
    }

    fn get(&mut self, fields: Resource<FieldMap>, name: String) -> wasmtime::Result<Vec<Vec<u8>>> {
        types::HostFields::get(&mut self.inner(), fields, name)
    }

    fn has(&mut self, fields: Resource<FieldMap>, name: String) -> wasmtime::Result<bool> {
        self.inner().has(fields, name)
    }

    fn set(&mut self, fields: Resource<FieldMap>, name: String, values: Vec<Vec<u8>>) -> HeaderResult<()> {
        let weight = values.iter().map(|value| of_field(&name, value)).sum();
        self.copy(&fields, weight).map_err(HeaderError::trap)?;
        self.shrinking(fields, |http, fields| types::HostFields::set(http, fields, name, values))
    }

    fn append(&mut self, fields: Resource<FieldMap>, name: String, value: Vec<u8>) -> HeaderResult<()> {
        self.copy(&fields, of_field(&name, &value)).map_err(HeaderError::trap)?;
        self.inner().append(fields, name, value)
    }

    fn delete(&mut self, fields: Resource<FieldMap>, name: String) -> HeaderResult<()> {
        self.copy(&fields, 0).map_err(HeaderError::trap)?;
        self.shrinking(fields, |http, fields| http.delete(fields, name))
    }

    fn entries(&mut self, fields: Resource<FieldMap>) -> wasmtime::Result<Vec<(String, Vec<u8>)>> {
        self.inner().entries(fields)
    }

    fn clone(&mut self, fields: Resource<FieldMap>) -> wasmtime::Result<Resource<FieldMap>> {
        types::HostFields::clone(&mut self.inner(), fields)
    }

    fn drop(&mut self, fields: Resource<FieldMap>) -> wasmtime::Result<()> {
        types::HostFields::drop(&mut self.inner(), fields)
    }
}

impl types::HostOutgoingRequest for HttpAccess<'_> {
    fn new(&mut self, headers: Resource<FieldMap>) -> wasmtime::Result<Resource<types::OutgoingRequest>> {
        types::HostOutgoingRequest::new(&mut self.inner(), headers)
    }

    fn method(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<types::Method> {
        types::HostOutgoingRequest::method(&mut self.inner(), request)
    }

    fn set_method(
        &mut self,
        request: Resource<types::OutgoingRequest>,
        method: types::Method,
    ) -> wasmtime::Result<Result<(), ()>> {
        let is_kept = match &method {
            types::Method::Other(text) => self.keep_text(text, WORD_BYTES),
            _ => true,
        };
        if is_kept { self.inner().set_method(request, method) } else { Ok(Err(())) }
    }

    fn path_with_query(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<Option<String>> {
        types::HostOutgoingRequest::path_with_query(&mut self.inner(), request)
    }

    fn set_path_with_query(
        &mut self,
        request: Resource<types::OutgoingRequest>,
        path: Option<String>,
    ) -> wasmtime::Result<Result<(), ()>> {
        let is_kept = path.as_ref().is_none_or(|path| self.keep_text(path, HEAD_BYTES));
        if is_kept { self.inner().set_path_with_query(request, path) } else { Ok(Err(())) }
    }

    fn scheme(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<Option<types::Scheme>> {
        types::HostOutgoingRequest::scheme(&mut self.inner(), request)
    }

    fn set_scheme(
        &mut self,
        request: Resource<types::OutgoingRequest>,
        scheme: Option<types::Scheme>,
    ) -> wasmtime::Result<Result<(), ()>> {
        let is_kept = match &scheme {
            Some(types::Scheme::Other(text)) => self.keep_text(text, WORD_BYTES),
            _ => true,
        };
        if is_kept { self.inner().set_scheme(request, scheme) } else { Ok(Err(())) }
    }

    fn authority(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<Option<String>> {
        types::HostOutgoingRequest::authority(&mut self.inner(), request)
    }

    fn set_authority(
        &mut self,
        request: Resource<types::OutgoingRequest>,
        authority: Option<String>,
    ) -> wasmtime::Result<Result<(), ()>> {
        let is_kept = authority.as_ref().is_none_or(|authority| self.keep_text(authority, AUTHORITY_BYTES));
        if is_kept { self.inner().set_authority(request, authority) } else { Ok(Err(())) }
    }

    fn headers(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<Resource<FieldMap>> {
        types::HostOutgoingRequest::headers(&mut self.inner(), request)
    }

    fn body(
        &mut self,
        request: Resource<types::OutgoingRequest>,
    ) -> wasmtime::Result<Result<Resource<types::OutgoingBody>, ()>> {
        self.held.keep(BUFFER)?;
        types::HostOutgoingRequest::body(&mut self.inner(), request)
    }

    fn drop(&mut self, request: Resource<types::OutgoingRequest>) -> wasmtime::Result<()> {
        types::HostOutgoingRequest::drop(&mut self.inner(), request)
    }
}

calls! { HostFutureIncomingResponse:
    subscribe(response: Resource<types::FutureIncomingResponse>) -> Resource<DynPollable>;
    get(response: Resource<types::FutureIncomingResponse>)
        -> Option<Result<Result<Resource<types::IncomingResponse>, types::ErrorCode>, ()>>;
    drop(response: Resource<types::FutureIncomingResponse>) -> ();
}

calls! { HostIncomingResponse:
    status(response: Resource<types::IncomingResponse>) -> types::StatusCode;
    headers(response: Resource<types::IncomingResponse>) -> Resource<FieldMap>;
    consume(response: Resource<types::IncomingResponse>) -> Result<Resource<types::IncomingBody>, ()>;
    drop(response: Resource<types::IncomingResponse>) -> ();
}

calls! { HostIncomingBody:
    stream(body: Resource<types::IncomingBody>) -> Result<Resource<DynInputStream>, ()>;
    finish(body: Resource<types::IncomingBody>) -> Resource<types::FutureTrailers>;
    drop(body: Resource<types::IncomingBody>) -> ();
}

calls! { HostFutureTrailers:
    subscribe(trailers: Resource<types::FutureTrailers>) -> Resource<DynPollable>;
    get(trailers: Resource<types::FutureTrailers>)
        -> Option<Result<Result<Option<Resource<FieldMap>>, types::ErrorCode>, ()>>;
    drop(trailers: Resource<types::FutureTrailers>) -> ();
}

calls! { HostRequestOptions:
    new() -> Resource<types::RequestOptions>;
    connect_timeout(options: Resource<types::RequestOptions>) -> Option<types::Duration>;
    set_connect_timeout(options: Resource<types::RequestOptions>, wait: Option<types::Duration>) -> Result<(), ()>;
    first_byte_timeout(options: Resource<types::RequestOptions>) -> Option<types::Duration>;
    set_first_byte_timeout(options: Resource<types::RequestOptions>, wait: Option<types::Duration>) -> Result<(), ()>;
    between_bytes_timeout(options: Resource<types::RequestOptions>) -> Option<types::Duration>;
    set_between_bytes_timeout(options: Resource<types::RequestOptions>, wait: Option<types::Duration>)
        -> Result<(), ()>;
    drop(options: Resource<types::RequestOptions>) -> ();
}

impl types::HostOutgoingBody for HttpAccess<'_> {
    fn write(
        &mut self,
        body: Resource<types::OutgoingBody>,
    ) -> wasmtime::Result<Result<Resource<DynOutputStream>, ()>> {
        self.inner().write(body)
    }

    fn finish(&mut self, body: Resource<types::OutgoingBody>, trailers: Option<Resource<FieldMap>>) -> HttpResult<()> {
        if let Some(trailers) = &trailers {
            // Limit the trailers' size: `finish` hands them to the task that sends the body, and their memory is then
            // no longer counted.
            let weight = of_fields(self.held.table.get(trailers).map_err(HttpError::trap)?);
            if weight > TRAILERS {
                let most = u32::try_from(TRAILERS).ok();
                return Err(types::ErrorCode::HttpRequestTrailerSectionSize(most).into());
            }
        }
        types::HostOutgoingBody::finish(&mut self.inner(), body, trailers)
    }

    fn drop(&mut self, body: Resource<types::OutgoingBody>) -> wasmtime::Result<()> {
        types::HostOutgoingBody::drop(&mut self.inner(), body)
    }
}

// Only a server needs the calls below. A guest can build responses, but it never has a request to answer.

calls! { HostOutgoingResponse:
    new(headers: Resource<FieldMap>) -> Resource<types::OutgoingResponse>;
    status_code(response: Resource<types::OutgoingResponse>) -> types::StatusCode;
    set_status_code(response: Resource<types::OutgoingResponse>, status: types::StatusCode) -> Result<(), ()>;
    headers(response: Resource<types::OutgoingResponse>) -> Resource<FieldMap>;
    body(response: Resource<types::OutgoingResponse>) -> Result<Resource<types::OutgoingBody>, ()>, keeps BUFFER;
    drop(response: Resource<types::OutgoingResponse>) -> ();
}

calls! { HostIncomingRequest:
    method(request: Resource<types::IncomingRequest>) -> types::Method;
    path_with_query(request: Resource<types::IncomingRequest>) -> Option<String>;
    scheme(request: Resource<types::IncomingRequest>) -> Option<types::Scheme>;
    authority(request: Resource<types::IncomingRequest>) -> Option<String>;
    headers(request: Resource<types::IncomingRequest>) -> Resource<FieldMap>;
    consume(request: Resource<types::IncomingRequest>) -> Result<Resource<types::IncomingBody>, ()>;
    drop(request: Resource<types::IncomingRequest>) -> ();
}

impl types::HostResponseOutparam for HttpAccess<'_> {
    fn set(
        &mut self,
        outparam: Resource<types::ResponseOutparam>,
        response: Result<Resource<types::OutgoingResponse>, types::ErrorCode>,
    ) -> wasmtime::Result<()> {
        types::HostResponseOutparam::set(&mut self.inner(), outparam, response)
    }

    fn send_informational(
        &mut self,
        outparam: Resource<types::ResponseOutparam>,
        status: u16,
        headers: Resource<FieldMap>,
    ) -> HttpResult<()> {
        self.inner().send_informational(outparam, status, headers)
    }

    fn drop(&mut self, outparam: Resource<types::ResponseOutparam>) -> wasmtime::Result<()> {
        types::HostResponseOutparam::drop(&mut self.inner(), outparam)
    }
}
