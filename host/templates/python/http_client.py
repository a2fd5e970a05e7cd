"""HTTP through the host. The standard library's clients need sockets, which a coordinator does not have."""

import encodings.idna  # Without this codec, the standard library's clients hide the error about missing sockets.
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from componentize_py_types import Err, Ok
from wit_world.imports import outgoing_handler, poll, streams
from wit_world.imports.poll import Pollable
from wit_world.imports.types import Fields, Method_Other, OutgoingBody, OutgoingRequest, Scheme_Http, Scheme_Https

# Bytes: the maximum that the host accepts per write.
CHUNK = 4096


class RequestError(Exception):
    """The request got no response, or one that cannot be used."""


@dataclass
class Response:
    url: str
    status: int
    headers: list[tuple[str, bytes]]
    body: bytes

    def json(self):
        """The body's JSON. Fails if the status is not 2xx."""
        if not 200 <= self.status < 300:
            raise RequestError(f"{self.url}: HTTP status {self.status}")
        return json.loads(self.body)


def fetch(stop: Pollable, url: str, method: str, headers: dict[str, str], body: bytes) -> Response:
    """Sends a request and reads its response. Fails early when the host asks this instance to stop."""
    try:
        response = send(request_of(url, method, headers), body, stop)
        with response, response.headers() as fields, response.consume() as incoming, incoming.stream() as stream:
            return Response(url, response.status(), fields.entries(), read(stream, stop))
    except Err as error:
        reason = getattr(error.value, "value", None) or type(error.value).__name__.removeprefix("ErrorCode_")
        raise RequestError(f"{url}: {reason}") from None


def request_of(url: str, method: str, headers: dict[str, str]) -> OutgoingRequest:
    fields = Fields()
    for name, value in headers.items():
        fields.append(name, value.encode())
    parts = urlsplit(url)
    request = OutgoingRequest(fields)
    request.set_method(Method_Other(method))
    request.set_scheme(Scheme_Https() if parts.scheme == "https" else Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    return request


def send(request: OutgoingRequest, body: bytes, stop: Pollable):
    outgoing = request.body()
    with outgoing_handler.handle(request, None) as future:
        with outgoing.write() as stream:
            for start in range(0, len(body), CHUNK):
                stream.blocking_write_and_flush(body[start : start + CHUNK])
        OutgoingBody.finish(outgoing, None)
        wait(future, stop)
        match future.get():
            case Ok(Ok(response)):
                return response
            case Ok(Err() as error):
                raise error


def read(stream, stop: Pollable) -> bytes:
    content = b""
    while True:
        wait(stream, stop)
        try:
            content += stream.read(65536)
        except Err as error:
            if error.value == streams.StreamError_Closed():
                return content
            raise


def wait(source, stop: Pollable) -> None:
    with source.subscribe() as ready:
        if 0 in poll.poll([stop, ready]):
            raise RequestError("the host asks this instance to stop")
