"""Batches: many requests to any API in one multipart/mixed body, with responses in the same order."""

from __future__ import annotations

import secrets
from http.client import responses

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import BytesBody, HttpRequest, HttpResponse, error_response, parse_request
from outlast_gcp_emulator.router import Handler

PARTS_MAX = 1000


def batch_handler(respond: Handler) -> Handler:
    """Return a handler that splits a batch and passes each part to `respond`."""

    def handle(request: HttpRequest) -> HttpResponse:
        parts = _split(request.body(), boundary_of(request.headers.get("content-type", "")))
        if len(parts) > PARTS_MAX:
            raise ApiError(413, "invalid", f"a batch can have at most {PARTS_MAX} parts, got {len(parts)}")
        boundary = f"batch_{secrets.token_hex(12)}"
        written = b"".join(_part_response(part, request, respond, boundary) for part in parts)
        kind = f"multipart/mixed; boundary={boundary}"
        return HttpResponse(headers={"Content-Type": kind}, body=written + f"--{boundary}--\r\n".encode())

    return handle


def boundary_of(content_type: str) -> bytes:
    """Return the boundary of a multipart body. Raises ApiError without one."""
    for word in content_type.split(";")[1:]:
        name, _, value = word.strip().partition("=")
        if name.lower() == "boundary" and value:
            return value.strip("\"'").encode()
    raise invalid("the Content-Type of a multipart body needs a boundary")


def _split(body: bytes, boundary: bytes) -> list[bytes]:
    pieces = body.split(b"--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise invalid("the multipart body is truncated")
    return [piece.lstrip(b"\r\n") for piece in pieces[1:-1]]


def split_head(text: bytes) -> tuple[bytes, bytes]:
    """Split head and body at the first empty line. Some clients end lines with a bare newline."""
    ends = [(at, len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (at := text.find(mark)) >= 0]
    if not ends:
        return text, b""
    at, length = min(ends)
    return text[:at], text[at + length :]


def parse_headers(head: bytes) -> dict[str, str]:
    """Parse headers into a mapping with names in lower case."""
    lines = head.decode("utf-8", "replace").splitlines()
    pairs = [line.partition(":") for line in lines if ":" in line]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _part_response(part: bytes, outer: HttpRequest, respond: Handler, boundary: str) -> bytes:
    head, inner = split_head(part)
    response = _respond(inner.lstrip(b"\r\n"), outer, respond)
    body = response.content()
    phrase = responses.get(response.status, "Unknown")
    lines = [f"HTTP/1.1 {response.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    name = parse_headers(head).get("content-id", "")
    named = f"Content-ID: {_response_id(name)}\r\n" if name else ""
    start = f"--{boundary}\r\nContent-Type: application/http\r\n{named}\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    return start.encode() + body + b"\r\n"


def _inner(method: str, target: str, headers: dict[str, str], body: bytes, outer: HttpRequest) -> HttpRequest:
    """Build the request of a part. Its caller is the sender of the batch, whatever its headers contain."""
    request = parse_request(method, target, headers, BytesBody(body), outer.caller)
    request.path = request.path.removeprefix(outer.caller.prefix)
    return request


def _response_id(name: str) -> str:
    return f"<response-{name[1:]}" if name.startswith("<") else f"response-{name}"


def _respond(text: bytes, outer: HttpRequest, respond: Handler) -> HttpResponse:
    head, body = split_head(text)
    first, _, rest = head.partition(b"\n")
    words = first.decode("utf-8", "replace").split()
    if len(words) < 2:
        return error_response(invalid("a part of the batch is not an HTTP request"))
    headers = {**parse_headers(rest), "host": outer.headers.get("host", "")}
    length = headers.get("content-length", "")
    if length.isdigit():
        body = body[: int(length)]
    headers.pop("accept-encoding", None)
    try:
        return respond(_inner(words[0], words[1], headers, body, outer))
    except ApiError as error:
        return error_response(error)
