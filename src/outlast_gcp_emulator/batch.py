"""Batches: many requests in one multipart/mixed body, answered in the same order. Any API may be in it."""

from __future__ import annotations

import secrets
from http.client import responses

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import Bytes, HttpAnswer, HttpRequest, request_of
from outlast_gcp_emulator.router import Handler

PARTS_MAX = 1000


def batch_handler(answer: Handler) -> Handler:
    """A handler that takes a batch apart and asks `answer` for each."""

    def handle(request: HttpRequest) -> HttpAnswer:
        parts = _split(request.body(), boundary_of(request.headers.get("content-type", "")))
        if len(parts) > PARTS_MAX:
            raise ApiError(413, "invalid", f"a batch has {PARTS_MAX} parts at most")
        boundary = f"batch_{secrets.token_hex(12)}"
        written = b"".join(_one(part, request, answer, boundary) for part in parts)
        kind = f"multipart/mixed; boundary={boundary}"
        return HttpAnswer(headers={"Content-Type": kind}, body=written + f"--{boundary}--\r\n".encode())

    return handle


def boundary_of(content_type: str) -> bytes:
    """What separates the parts of a multipart body."""
    for word in content_type.split(";")[1:]:
        name, _, value = word.strip().partition("=")
        if name.lower() == "boundary" and value:
            return value.strip("\"'").encode()
    raise invalid("the Content-Type names no boundary")


def _split(body: bytes, boundary: bytes) -> list[bytes]:
    pieces = body.split(b"--" + boundary)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise invalid("the multipart body ends too early")
    return [piece.lstrip(b"\r\n") for piece in pieces[1:-1]]


def split_head(text: bytes) -> tuple[bytes, bytes]:
    """Head and body at the first empty line; some clients end their lines with a bare newline."""
    ends = [(at, len(mark)) for mark in (b"\r\n\r\n", b"\n\n") if (at := text.find(mark)) >= 0]
    if not ends:
        return text, b""
    at, length = min(ends)
    return text[:at], text[at + length :]


def parse_headers(head: bytes) -> dict[str, str]:
    """Names in lower case."""
    lines = head.decode("utf-8", "replace").splitlines()
    pairs = [line.partition(":") for line in lines if ":" in line]
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _one(part: bytes, outer: HttpRequest, answer: Handler, boundary: str) -> bytes:
    head, inner = split_head(part)
    reply = _ask(inner.lstrip(b"\r\n"), outer, answer)
    body = reply.content()
    phrase = responses.get(reply.status, "Unknown")
    lines = [f"HTTP/1.1 {reply.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    name = parse_headers(head).get("content-id", "")
    named = f"Content-ID: {_response_id(name)}\r\n" if name else ""
    start = f"--{boundary}\r\nContent-Type: application/http\r\n{named}\r\n" + "\r\n".join(lines) + "\r\n\r\n"
    return start.encode() + body + b"\r\n"


def _inner(method: str, target: str, headers: dict[str, str], body: bytes, outer: HttpRequest) -> HttpRequest:
    """A part is sent by the sender of the batch, whatever its own headers say."""
    request = request_of(method, target, headers, Bytes(body), outer.caller)
    request.path = request.path.removeprefix(outer.caller.prefix)
    return request


def _response_id(name: str) -> str:
    return f"<response-{name[1:]}" if name.startswith("<") else f"response-{name}"


def _ask(text: bytes, outer: HttpRequest, answer: Handler) -> HttpAnswer:
    head, body = split_head(text)
    first, _, rest = head.partition(b"\n")
    argv = first.decode("utf-8", "replace").split()
    if len(argv) < 2:
        kind, told = invalid("a part of the batch is no request").body("json")
        return HttpAnswer(status=400, headers={"Content-Type": kind}, body=told)
    headers = {**parse_headers(rest), "host": outer.headers.get("host", "")}
    length = headers.get("content-length", "")
    if length.isdigit():
        body = body[: int(length)]
    headers.pop("accept-encoding", None)
    try:
        return answer(_inner(argv[0], argv[1], headers, body, outer))
    except ApiError as refused:
        kind, told = refused.body("json")
        return HttpAnswer(status=refused.status, headers={"Content-Type": kind}, body=told)
