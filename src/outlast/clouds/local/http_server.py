"""A single-threaded HTTP server that can hold an answer back until a value changes (long polling).

One thread, so that no waiting client can miss a change, and because the shim must have no threads when it forks. No
request, however malformed, may crash it.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from outlast.clouds.local.peer_credentials import PeerCheck, RefusalLog, is_page

_HEAD_BYTES_MAX = 16 * 1024
_BODY_BYTES_MAX = 256 * 1024
_CONNECTIONS_MAX = 256
# The most connections accepted in a row before the others are served.
_ACCEPTED_AT_ONCE = 64
_IDLE_S = 120.0

_REASONS = {
    200: "OK",
    301: "Moved Permanently",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Payload Too Large",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class MetadataRequest(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    target: str = ""
    body: bytes = b""


class Reply(NamedTuple):
    """An answer. With `wait_s` it is held back until a reply to the same request has another etag."""

    status: int
    body: str | bytes = ""
    content_type: str = "text/html; charset=UTF-8"
    etag: str = ""
    location: str = ""
    wait_s: float | None = None


_TO_PAGES = Reply(403, "requests of web pages are refused; use the address 127.0.0.1\n")


class BadHead(ValueError):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Connection:
    """One client, with its unread input and its unsent output."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.received = b""
        self.unsent = b""
        self.closing = False
        self.waiting: tuple[MetadataRequest, str] | None = None
        self.deadline = time.monotonic() + _IDLE_S


class WebServer:
    """The server of one listener.

    With `peers` it serves only the user of this process, and closes all other connections at once; None is for a
    listener that only the machine reaches.
    """

    def __init__(
        self,
        listener: socket.socket,
        reply: Callable[[MetadataRequest], Reply],
        *,
        peers: PeerCheck | None,
        log: Callable[[str], object],
    ) -> None:
        listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self._listener = listener
        self._reply = reply
        self._peers = peers
        self._refusals = RefusalLog(log)
        self._connections: dict[int, _Connection] = {}

    def serve(self, timeout_s: float) -> list[object]:
        """Handle connections for that time; return the other registered files that are ready."""
        others: list[object] = []
        for key, events in self.selector.select(timeout_s):
            if key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _Connection):
                self._advance(key.data, events)
            else:
                others.append(key.fileobj)
        self._expire()
        return others

    def wake(self) -> None:
        """Answer the waiting clients whose value has changed."""
        for connection in list(self._connections.values()):
            if connection.waiting is not None:
                request, etag = connection.waiting
                reply = self._reply(request)
                if reply.etag != etag:
                    self._finish_waiting(connection, reply)

    def next_deadline(self) -> float | None:
        return min((connection.deadline for connection in self._connections.values()), default=None)

    def flush(self) -> None:
        """Send pending output to every client, once and without blocking."""
        for connection in list(self._connections.values()):
            self._send(connection)

    def _accept(self) -> None:
        for _turn in range(_ACCEPTED_AT_ONCE):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            # Refuse before counting: another user must not exhaust this user's connections.
            if self._is_refused(client) or len(self._connections) >= _CONNECTIONS_MAX:
                client.close()
            else:
                self._take(client)

    def _is_refused(self, client: socket.socket) -> bool:
        reason = self._peers.refusal(client) if self._peers is not None else ""
        if reason:
            self._refusals.add("peer", f"refused a connection to the metadata server: {reason}")
        return bool(reason)

    def _take(self, client: socket.socket) -> None:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client)
        self._connections[client.fileno()] = connection
        self.selector.register(client, selectors.EVENT_READ, connection)

    def _advance(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send(connection)
        if events & selectors.EVENT_READ and not connection.closing:
            try:
                received = connection.client.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                received = b""
            if not received or len(connection.received) > _HEAD_BYTES_MAX + _BODY_BYTES_MAX:
                self._close(connection)
                return
            connection.received += received
            connection.deadline = (
                max(connection.deadline, time.monotonic() + _IDLE_S) if not connection.waiting else connection.deadline
            )
            self._answer_all(connection)

    def _answer_all(self, connection: _Connection) -> None:
        """Answer the complete requests in order; a waiting one blocks those behind it."""
        try:
            while connection.waiting is None and not connection.closing:
                taken = _take_request(connection.received)
                if taken is None:
                    break
                request, connection.received, connection.closing = taken
                # Check again: the connection must still be open, and still belong to this user.
                if self._is_refused(connection.client):
                    self._close(connection)
                    return
                reply = self._to_page(request) or self._reply(request)
                if reply.wait_s is not None:
                    connection.waiting = (request, reply.etag)
                    connection.deadline = time.monotonic() + reply.wait_s
                else:
                    connection.unsent += _encode(reply, request, closing=connection.closing)
        except BadHead as error:
            connection.closing = True
            connection.unsent += _encode(Reply(error.status), None, closing=True)
        self._send(connection)

    def _to_page(self, request: MetadataRequest) -> Reply | None:
        if not is_page(request.headers):
            return None
        self._refusals.add("page", "refused a request of a web page to the metadata server")
        return _TO_PAGES

    def _finish_waiting(self, connection: _Connection, reply: Reply) -> None:
        assert connection.waiting is not None
        connection.unsent += _encode(reply, connection.waiting[0], closing=connection.closing)
        connection.waiting = None
        connection.deadline = time.monotonic() + _IDLE_S
        self._send(connection)
        if connection.received and not connection.closing:
            self._answer_all(connection)

    def _send(self, connection: _Connection) -> None:
        if connection.client.fileno() < 0:
            return
        try:
            while connection.unsent:
                sent = connection.client.send(connection.unsent)
                connection.unsent = connection.unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)
            return
        if connection.closing and not connection.unsent and connection.waiting is None:
            self._close(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self.selector.modify(connection.client, wanted, connection)

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [each for each in self._connections.values() if each.deadline <= now]:
            if connection.waiting is None:
                self._close(connection)
            else:
                self._finish_waiting(connection, self._reply(connection.waiting[0]))

    def _close(self, connection: _Connection) -> None:
        if self._connections.pop(connection.client.fileno(), None) is not None:
            self.selector.unregister(connection.client)
            connection.client.close()


def _take_request(received: bytes) -> tuple[MetadataRequest, bytes, bool] | None:
    """Return the first request, the rest, and whether to close after it; None while incomplete. Raises BadHead."""
    head, separator, rest = received.partition(b"\r\n\r\n")
    if not separator:
        if len(received) > _HEAD_BYTES_MAX:
            raise BadHead(431)
        return None
    if len(head) > _HEAD_BYTES_MAX:
        raise BadHead(431)
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith(("/", "http://")):
        raise BadHead(400)
    method, target, version = parts
    headers = _headers(lines)
    body_bytes = _body_bytes(headers)
    if len(rest) < body_bytes:
        return None
    keep_alive = headers.get("connection", "").lower()
    closing = keep_alive == "close" or (version == "HTTP/1.0" and keep_alive != "keep-alive")
    request = _request(method, target, headers)._replace(body=rest[:body_bytes])
    return request, rest[body_bytes:], closing


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadHead(400)
        headers[name.lower()] = value.strip()
    return headers


def _body_bytes(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadHead(501)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadHead(400)
    if len(length) > 9 or int(length) > _BODY_BYTES_MAX:
        raise BadHead(413)
    return int(length)


def _request(method: str, target: str, headers: dict[str, str]) -> MetadataRequest:
    if target.startswith("http://"):
        # The form that clients send to a proxy.
        target = "/" + target.removeprefix("http://").partition("/")[2]
    path, _, query = target.partition("?")
    try:
        values = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=64))
    except ValueError:
        raise BadHead(400) from None
    return MetadataRequest(method, unquote(path), values, headers, target)


def _encode(reply: Reply, request: MetadataRequest | None, *, closing: bool) -> bytes:
    body = reply.body if isinstance(reply.body, bytes) else reply.body.encode("utf-8", "replace")
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}",
        "Metadata-Flavor: Google",
        "Server: Metadata Server for VM",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(body)}",
    ]
    if reply.etag:
        lines.append(f"ETag: {reply.etag}")
    if reply.location:
        lines.append(f"Location: {reply.location}")
    if closing:
        lines.append("Connection: close")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("latin-1", "replace") + (b"" if request is not None and request.method == "HEAD" else body)
