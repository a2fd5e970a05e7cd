//! An HTTP client that uses `wasi:http` directly.

use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{
    ErrorCode, Fields, FutureIncomingResponse, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest,
    RequestOptions, Scheme,
};
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

pub struct Answer {
    pub status: u16,
    pub location: Option<String>,
    pub body: String,
}

pub struct Upload {
    pub out: OutputStream,
    pub body: OutgoingBody,
    pub answer: FutureIncomingResponse,
}

pub fn get(url: &str, headers: Fields) -> Result<Answer, String> {
    finish(&begin(url, headers, None)?)
}

pub fn post(url: &str, headers: Fields, body: &[u8], trailers: Option<Fields>) -> Result<Answer, String> {
    let upload = upload(url, headers)?;
    upload.out.blocking_write_and_flush(body).map_err(describe)?;
    drop(upload.out);
    OutgoingBody::finish(upload.body, trailers).map_err(|code| code.to_string())?;
    finish(&upload.answer)
}

pub fn begin(url: &str, headers: Fields, options: Option<RequestOptions>) -> Result<FutureIncomingResponse, String> {
    handle(request(url, headers, &Method::Get)?, options).map_err(refusal)
}

pub fn upload(url: &str, headers: Fields) -> Result<Upload, String> {
    let request = request(url, headers, &Method::Post)?;
    let body = request.body().map_err(|()| "no body")?;
    let out = body.write().map_err(|()| "no stream")?;
    let answer = handle(request, None).map_err(refusal)?;
    Ok(Upload { out, body, answer })
}

fn refusal(code: ErrorCode) -> String {
    match code {
        ErrorCode::InternalError(Some(reason)) => reason,
        code => code.to_string(),
    }
}

pub fn head(answer: &FutureIncomingResponse) -> Result<IncomingResponse, ErrorCode> {
    loop {
        answer.subscribe().block();
        match answer.get() {
            Some(Ok(result)) => return result,
            Some(Err(())) => return Err(ErrorCode::InternalError(Some("taken twice".to_owned()))),
            None => {}
        }
    }
}

fn finish(answer: &FutureIncomingResponse) -> Result<Answer, String> {
    let response = head(answer).map_err(|code| code.to_string())?;
    let status = response.status();
    let location = || Some(String::from_utf8_lossy(response.headers().get("location").first()?).into_owned());
    let location = if (300..400).contains(&status) { location() } else { None };
    let body = response.consume().map_err(|()| "no body")?;
    let text = read(&body)?;
    Ok(Answer { status, location, body: text })
}

pub fn read(body: &IncomingBody) -> Result<String, String> {
    read_by(body, InputStream::blocking_read)
}

/// Reads the whole body. Polls the stream in a loop instead of blocking.
pub fn read_without_waiting(body: &IncomingBody) -> Result<String, String> {
    read_by(body, InputStream::read)
}

fn read_by(
    body: &IncomingBody,
    read: impl Fn(&InputStream, u64) -> Result<Vec<u8>, StreamError>,
) -> Result<String, String> {
    let stream = body.stream().map_err(|()| "no stream")?;
    let mut bytes = Vec::new();
    loop {
        match read(&stream, 1 << 16) {
            Ok(part) => bytes.extend(part),
            Err(StreamError::Closed) => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => return Err(describe(error)),
        }
    }
}

fn request(url: &str, headers: Fields, method: &Method) -> Result<OutgoingRequest, String> {
    let request = OutgoingRequest::new(headers);
    let (scheme, rest) = url.split_once("://").ok_or("no scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    if !matches!(method, Method::Get) {
        request.set_method(method).map_err(|()| "no method")?;
    }
    request.set_scheme(Some(&scheme)).map_err(|()| "no such scheme")?;
    request.set_authority(Some(authority)).map_err(|()| "no such authority")?;
    // wasmtime refuses a request without a path.
    request.set_path_with_query(Some(if path.is_empty() { "/" } else { path })).map_err(|()| "no such path")?;
    Ok(request)
}

fn describe(error: StreamError) -> String {
    match error {
        StreamError::Closed => "closed".to_owned(),
        StreamError::LastOperationFailed(error) => error.to_debug_string(),
    }
}
