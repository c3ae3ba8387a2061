"""HTTP requests and responses as values, with streamed bodies."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from outlast_gcp_emulator.errors import ApiError, Dialect, invalid

PIECE_BYTES = 256 * 1024
JSON_BYTES_MAX = 32 * 1024 * 1024


class BodySource(Protocol):
    """The rest of a request body, piece by piece; empty at its end."""

    def read_piece(self, bytes_max: int) -> bytes:
        """Return the next bytes. Raises ConnectionError if the client disconnected early."""


class BytesBody:
    """A body in memory: a part of a batch, or an empty body."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    def read_piece(self, bytes_max: int) -> bytes:
        piece, self._data = self._data[:bytes_max], self._data[bytes_max:]
        return piece


class GzipBody:
    """A body that the client compressed."""

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self._state = zlib.decompressobj(wbits=31)

    def read_piece(self, bytes_max: int) -> bytes:
        while not self._state.eof:
            packed = self._state.unconsumed_tail or self._source.read_piece(PIECE_BYTES)
            if not packed:
                raise invalid("the gzip body is truncated")
            try:
                piece = self._state.decompress(packed, bytes_max)
            except zlib.error as problem:
                raise invalid(f"invalid gzip body: {problem}") from problem
            if piece:
                return piece
        return b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """The sender of a request: the owner of the endpoint, or one of its machines, by its name on the local cloud."""

    token: str = ""
    machine: str = ""
    # The part of the address before the path that contained the token.
    prefix: str = ""


@dataclass(kw_only=True, slots=True)
class HttpRequest:
    """One request. `path` is percent-encoded; `parts` are the path parameters of its route."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    # With names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    source: BodySource = field(default_factory=BytesBody)
    parts: Mapping[str, str] = field(default_factory=dict)
    # All values of each parameter; `query` has the last one.
    repeated: Mapping[str, list[str]] = field(default_factory=dict)
    # The body as JSON, after the first call of `json`.
    parsed: dict[str, Any] | None = None
    caller: Caller = field(default_factory=Caller)

    @property
    def base_url(self) -> str:
        """Return the address that the client used, for links in responses."""
        return f"http://{self.headers.get('host', '127.0.0.1')}{self.caller.prefix}"

    @property
    def access_url(self) -> str:
        """Return the address with the client's token in it, for programs that send no credentials."""
        return f"http://{self.headers.get('host', '127.0.0.1')}/{self.caller.token}"

    def pieces(self) -> Iterator[bytes]:
        """Read the body. Can be called once."""
        while piece := self.source.read_piece(PIECE_BYTES):
            yield piece

    def body(self, *, bytes_max: int = JSON_BYTES_MAX) -> bytes:
        """Read a small body completely. Raises ApiError if it is too large."""
        pieces, size = [], 0
        for piece in self.pieces():
            size += len(piece)
            if size > bytes_max:
                raise ApiError(413, "uploadTooLarge", f"the body has more than {bytes_max} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object, empty if the body is empty."""
        if self.parsed is None:
            self.parsed = json_object(self.body())
        return self.parsed

    def number(self, name: str) -> int | None:
        """Return a numeric query parameter."""
        return None if name not in self.query else parse_number(name, self.query[name])

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("accept-encoding", "")


def parse_request(
    method: str, target: str, headers: Mapping[str, str], source: BodySource, caller: Caller
) -> HttpRequest:
    """Build a request from its first line, its headers and its body. Raises ApiError."""
    split = urlsplit(target)
    try:
        repeated = parse_qs(split.query, keep_blank_values=True, strict_parsing=False, errors="strict")
        unquote(split.path, errors="strict")
    except ValueError as problem:
        raise invalid("the address is not UTF-8") from problem
    query = {name: values[-1] for name, values in repeated.items()}
    return HttpRequest(
        method=method, path=split.path, query=query, headers=headers, source=source, repeated=repeated, caller=caller
    )


def json_object(data: bytes) -> dict[str, Any]:
    if not data.strip():
        return {}
    try:
        value = json.loads(data)
    except ValueError as problem:
        raise ApiError(400, "parseError", "Parse Error") from problem
    # Google's clients in Go send null for an omitted resource, as in the copy of an object.
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, "parseError", "Parse Error: expected a JSON object")
    return value


def parse_number(name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise invalid(f"Invalid value for: {name}: expected a whole number, got `{text}`")
    return int(text)


@dataclass(kw_only=True, slots=True)
class FileSlice:
    """A part of an open file as a response body. The sender closes the file."""

    file: BinaryIO
    offset: int
    length: int


@dataclass(kw_only=True, slots=True)
class HttpResponse:
    """One response. A body that is an iterator is sent in chunks, because its length is unknown."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileSlice | Iterator[bytes] = b""

    def content(self) -> bytes:
        """Return the whole body, for batches, whose responses are small."""
        if isinstance(self.body, bytes):
            return self.body
        if isinstance(self.body, FileSlice):
            with self.body.file as file:
                file.seek(self.body.offset)
                return file.read(self.body.length)
        return b"".join(self.body)


def json_response(value: Mapping[str, Any], *, status: int = 200) -> HttpResponse:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return HttpResponse(status=status, headers={"Content-Type": "application/json; charset=UTF-8"}, body=body)


def empty_response(status: int = 204) -> HttpResponse:
    return HttpResponse(status=status)


def error_response(error: ApiError, dialect: Dialect = "json") -> HttpResponse:
    kind, body = error.body(dialect)
    return HttpResponse(status=error.status, headers={"Content-Type": kind, **error.headers}, body=body)


def compress_response(request: HttpRequest, response: HttpResponse) -> None:
    """Compress a long text response if the client accepts gzip."""
    body = response.body
    is_text = response.headers.get("Content-Type", "").startswith(("application/json", "application/xml"))
    if not isinstance(body, bytes) or len(body) <= 4096 or "Content-Encoding" in response.headers:
        return
    if is_text and request.accepts_gzip():
        response.body = gzip.compress(body, compresslevel=1)
        response.headers["Content-Encoding"] = "gzip"
