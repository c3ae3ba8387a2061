"""The HTTP/1.1 server: on loopback only, with one thread per connection and streamed bodies.

A client that launches a machine here runs programs as this user, so each request must pass three checks. Its connection
belongs to this user: checked on accept, at every request, and again at the end of the body. It is not from a web page.
It carries a token.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO, cast

from outlast.clouds.local.peer_credentials import PeerCheck, RefusalLog, is_page
from outlast_gcp_emulator.access import TokenCheck
from outlast_gcp_emulator.errors import ApiError
from outlast_gcp_emulator.faults import Reset
from outlast_gcp_emulator.http_types import (
    PIECE_BYTES,
    BodySource,
    BytesBody,
    Caller,
    FileSlice,
    HttpRequest,
    HttpResponse,
    error_response,
    parse_request,
)

# An unread body up to this size is read and dropped to keep the connection; a larger one closes it.
DRAIN_BYTES_MAX = 8 * 1024 * 1024
_LINE_BYTES_MAX = 8192
# More than an exabyte; a longer number is invalid.
_SIZE_DIGITS_MAX = 20
# Up to this size head and body are sent together.
_ONE_PIECE_BYTES = 64 * 1024


class _SizedBody:
    """A body with Content-Length. `check` runs before the last piece is returned, and may raise."""

    def __init__(self, stream: BinaryIO, length: int, check: Callable[[], None]) -> None:
        self._stream = stream
        self._left = length
        self._check = check

    def read_piece(self, bytes_max: int) -> bytes:
        if self._left == 0:
            return b""
        piece = self._stream.read(min(bytes_max, self._left))
        if not piece:
            raise ConnectionAbortedError(f"the client disconnected with {self._left} bytes missing")
        self._left -= len(piece)
        if self._left == 0:
            self._check()
        return piece


class _ChunkedBody:
    """A body with Transfer-Encoding: chunked. `check` runs before the end is returned, and may raise."""

    def __init__(self, stream: BinaryIO, check: Callable[[], None]) -> None:
        self._stream = stream
        self._check = check
        self._left = 0
        self._ended = False

    def read_piece(self, bytes_max: int) -> bytes:
        if self._left == 0 and not self._ended:
            self._next()
        if self._ended:
            return b""
        piece = self._stream.read(min(bytes_max, self._left))
        if not piece:
            raise ConnectionAbortedError("the client disconnected in the middle of a chunk")
        self._left -= len(piece)
        if self._left == 0 and self._stream.readline(_LINE_BYTES_MAX).strip():
            raise ConnectionAbortedError("a chunk is longer than its size")
        return piece

    def _next(self) -> None:
        line = self._stream.readline(_LINE_BYTES_MAX)
        size = line.partition(b";")[0].strip()
        if not size.isalnum() or len(size) > _SIZE_DIGITS_MAX or size.strip(b"0123456789abcdefABCDEF"):
            raise ConnectionAbortedError(f"invalid chunk size: {line!r}")
        self._left = int(size, 16)
        if self._left == 0:
            self._ended = True
            while self._stream.readline(_LINE_BYTES_MAX).strip():
                pass  # trailers
            self._check()


class _RequestHandler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server_version = "outlast"
    sys_version = ""
    disable_nagle_algorithm = True
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self.server.opened(self.connection)

    def finish(self) -> None:
        self.server.ended(self.connection)
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        # A client that disconnects is not an error.
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing; the router's `watch` callback receives the requests."""

    def serve(self) -> None:
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            caller, target = self._admit(headers)
            source = self._source()
            request = parse_request(self.command, target, headers, source, caller)
        except ApiError as error:
            self.close_connection = True
            self._send(error_response(error))
            return
        try:
            response = self.server.respond(request)
        except Reset:
            self._reset()
            return
        except ConnectionError:
            raise
        except OSError as problem:
            # The disk is full, or the folder is gone: maybe temporary, and nothing was changed.
            self._drain(source)
            message = f"the server cannot store data: {problem.strerror or problem}"
            self._send(error_response(ApiError(503, "backendError", message)))
            return
        except BaseException:
            # A bug: respond, and let the server print the traceback to stderr.
            self.close_connection = True
            message = "internal error in outlast; see the stderr of `outlast local serve`"
            self._send(error_response(ApiError(500, "internalError", message)))
            raise
        self._drain(source)
        self._send(response)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_OPTIONS = serve

    def _admit(self, headers: Mapping[str, str]) -> tuple[Caller, str]:
        """Return the sender of the request, and its target without a token. Raises ApiError and ConnectionError."""
        self._check_peer()
        if is_page(headers):
            self.server.refusals.add("page", "refused a request from a web page")
            raise ApiError(403, "forbidden", "this server rejects requests from web pages; use the address 127.0.0.1")
        try:
            return self.server.access.admit(self.path, headers)
        except ApiError:
            self.server.refusals.add("token", "refused a request without a valid token")
            raise

    def _check_peer(self) -> None:
        if self.server.is_refused(self.connection):
            raise ConnectionAbortedError("the connection does not belong to this user, or is closed")

    def _source(self) -> BodySource:
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return _ChunkedBody(cast(BinaryIO, self.rfile), self._check_peer)
        text = self.headers.get("Content-Length", "0").strip()
        if not text.isascii() or not text.isdigit() or len(text) > _SIZE_DIGITS_MAX:
            raise ApiError(400, "badRequest", f"Content-Length: expected a number of bytes, got `{text}`")
        return _SizedBody(cast(BinaryIO, self.rfile), int(text), self._check_peer) if int(text) else BytesBody()

    def _drain(self, source: BodySource) -> None:
        """Drop the unread rest of the body, which is not the next request."""
        left = DRAIN_BYTES_MAX
        while piece := source.read_piece(PIECE_BYTES):
            left -= len(piece)
            if left < 0:
                self.close_connection = True
                return

    def _reset(self) -> None:
        # Closing with this option makes the kernel send a reset instead of an orderly end.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.server.abort(self.connection)

    def _send(self, response: HttpResponse) -> None:
        body = response.body
        headers = dict(response.headers)
        in_chunks = not isinstance(body, bytes | FileSlice)
        if in_chunks:
            headers["Transfer-Encoding"] = "chunked"
        elif response.status not in (204, 304) and "Content-Length" not in headers:
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else cast(FileSlice, body).length)
        if self.close_connection:
            headers["Connection"] = "close"
        head = self._head(response.status, headers)
        bare = self.command == "HEAD" or response.status in (204, 304)
        if isinstance(body, FileSlice) and body.length <= _ONE_PIECE_BYTES and not bare:
            body = response.content()
        try:
            if bare or isinstance(body, bytes):
                self.connection.sendall(head + (b"" if bare else cast(bytes, body)))
            elif isinstance(body, FileSlice):
                self.connection.sendall(head)
                if body.length:
                    self.connection.sendfile(body.file, body.offset, body.length)
            else:
                self.connection.sendall(head)
                for piece in body:
                    self.connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.connection.sendall(b"0\r\n\r\n")
        finally:
            if isinstance(body, FileSlice):
                body.file.close()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        phrase = responses.get(status, "Unknown")
        lines = [f"HTTP/1.1 {status} {phrase}", f"Date: {self.date_time_string()}", "Server: outlast"]
        # An object name with a line break must not end a header.
        lines += [f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


class HttpServer(ThreadingHTTPServer):
    """Serves from `start` to `stop`. `log` receives refused requests and connections."""

    daemon_threads = True
    block_on_close = False
    # The kernel's maximum: connections of other users wait here, too, until they are closed.
    request_queue_size = socket.SOMAXCONN
    allow_reuse_address = True
    access: TokenCheck

    def __init__(
        self, port: int, respond: Callable[[HttpRequest], HttpResponse], *, log: Callable[[str], object]
    ) -> None:
        self.respond = respond
        self.refusals = RefusalLog(log)
        self._peers = PeerCheck()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _RequestHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether to accept a new connection. Connections of other users are closed without a thread."""
        return not self.is_refused(request)

    def is_refused(self, connection: socket.socket) -> bool:
        reason = self._peers.refusal(connection)
        if reason:
            self.refusals.add("peer", f"refused a connection: {reason}")
        return bool(reason)

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def ended(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)

    def abort(self, connection: socket.socket) -> None:
        self.ended(connection)
        connection.close()

    def shutdown_request(self, request: Any) -> None:
        # `shutdown` would end a socket in order that is to be reset.
        if request.fileno() != -1:
            super().shutdown_request(request)

    def start(self, access: TokenCheck) -> None:
        self.access = access
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def stop(self) -> None:
        """Stop listening and close the open connections, so that no client keeps using a stopped server."""
        self.shutdown()
        self.server_close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
