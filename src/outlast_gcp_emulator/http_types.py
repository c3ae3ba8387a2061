"""Requests and answers as values, and bodies that need not fit into memory. Knows no socket, no route and no cloud."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from outlast_gcp_emulator.errors import ApiError, invalid

PIECE_BYTES = 256 * 1024
JSON_BYTES_MAX = 32 * 1024 * 1024


class Source(Protocol):
    """Where a body comes from: what is left of it, piece by piece; empty at its end."""

    def read_piece(self, bytes_max: int) -> bytes:
        """Raises ConnectionError when the sender left in the middle."""


class Bytes:
    """A body that is here already: a part of a batch, or none at all."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    def read_piece(self, bytes_max: int) -> bytes:
        piece, self._data = self._data[:bytes_max], self._data[bytes_max:]
        return piece


class Unzipped:
    """A body that was compressed for the way."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._state = zlib.decompressobj(wbits=31)

    def read_piece(self, bytes_max: int) -> bytes:
        while not self._state.eof:
            packed = self._state.unconsumed_tail or self._source.read_piece(PIECE_BYTES)
            if not packed:
                raise invalid("the gzip body ends too early")
            try:
                piece = self._state.decompress(packed, bytes_max)
            except zlib.error as problem:
                raise invalid(f"the body is no gzip: {problem}") from problem
            if piece:
                return piece
        return b""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who sends a request: the owner of the endpoint, or one of its machines, by its name on the local cloud."""

    token: str = ""
    machine: str = ""
    # What stood before the path, for a token that came in the address.
    prefix: str = ""


@dataclass(kw_only=True, slots=True)
class HttpRequest:
    """What a client asks. `path` is still percent-encoded; `parts` are the names that its route found in it."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    # Names in lower case.
    headers: Mapping[str, str] = field(default_factory=dict)
    source: Source = field(default_factory=Bytes)
    parts: Mapping[str, str] = field(default_factory=dict)
    # All values of every parameter; `query` has the last of each.
    repeated: Mapping[str, list[str]] = field(default_factory=dict)
    # The body as JSON, once somebody has read it.
    said: dict[str, Any] | None = None
    caller: Caller = field(default_factory=Caller)

    @property
    def base_url(self) -> str:
        """The address by which the client reached us, for links in answers."""
        return f"http://{self.headers.get('host', '127.0.0.1')}{self.caller.prefix}"

    @property
    def access_url(self) -> str:
        """The address with the client's token in it, for programs that will have no other way to present one."""
        return f"http://{self.headers.get('host', '127.0.0.1')}/{self.caller.token}"

    def pieces(self) -> Iterator[bytes]:
        """The body, once."""
        while piece := self.source.read_piece(PIECE_BYTES):
            yield piece

    def body(self, *, bytes_max: int = JSON_BYTES_MAX) -> bytes:
        """The whole of a small body."""
        pieces, size = [], 0
        for piece in self.pieces():
            size += len(piece)
            if size > bytes_max:
                raise ApiError(413, "uploadTooLarge", f"the body has more than {bytes_max} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one if there is none."""
        if self.said is None:
            self.said = json_object(self.body())
        return self.said

    def number(self, name: str) -> int | None:
        """A query parameter that is a number."""
        return None if name not in self.query else whole_number(name, self.query[name])

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    def accepts_gzip(self) -> bool:
        return "gzip" in self.headers.get("accept-encoding", "")


def request_of(method: str, target: str, headers: Mapping[str, str], source: Source, caller: Caller) -> HttpRequest:
    """A request from its first line, its headers and its body."""
    split = urlsplit(target)
    try:
        asked = parse_qs(split.query, keep_blank_values=True, strict_parsing=False, errors="strict")
        unquote(split.path, errors="strict")
    except ValueError as problem:
        raise invalid("the address is no UTF-8") from problem
    query = {name: values[-1] for name, values in asked.items()}
    return HttpRequest(
        method=method, path=split.path, query=query, headers=headers, source=source, repeated=asked, caller=caller
    )


def json_object(data: bytes) -> dict[str, Any]:
    if not data.strip():
        return {}
    try:
        value = json.loads(data)
    except ValueError as problem:
        raise ApiError(400, "parseError", "Parse Error") from problem
    # What Google's clients in Go send for a resource that they leave out, as of the copy of an object.
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, "parseError", "Parse Error: a JSON object is wanted")
    return value


def whole_number(name: str, text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise invalid(f"Invalid value for: {name}: `{text}` is no whole number")
    return int(text)


@dataclass(kw_only=True, slots=True)
class FileSlice:
    """A part of an open file as an answer's body; whoever sends it closes the file."""

    file: BinaryIO
    offset: int
    length: int


@dataclass(kw_only=True, slots=True)
class HttpAnswer:
    """What a client gets. A body that comes in pieces has no length beforehand and is sent in chunks."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | FileSlice | Iterator[bytes] = b""

    def content(self) -> bytes:
        """The whole body; for batches, whose answers are small."""
        if isinstance(self.body, bytes):
            return self.body
        if isinstance(self.body, FileSlice):
            with self.body.file as file:
                file.seek(self.body.offset)
                return file.read(self.body.length)
        return b"".join(self.body)


def json_answer(value: Mapping[str, Any], *, status: int = 200) -> HttpAnswer:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return HttpAnswer(status=status, headers={"Content-Type": "application/json; charset=UTF-8"}, body=body)


def empty_answer(status: int = 204) -> HttpAnswer:
    return HttpAnswer(status=status)


def zip_answer(request: HttpRequest, answer: HttpAnswer) -> None:
    """Compress an answer of words if the client wants it and it is worth it."""
    worth = isinstance(answer.body, bytes) and len(answer.body) > 4096 and "Content-Encoding" not in answer.headers
    argv = answer.headers.get("Content-Type", "").startswith(("application/json", "application/xml"))
    if worth and argv and request.accepts_gzip():
        assert isinstance(answer.body, bytes)
        answer.body = gzip.compress(answer.body, compresslevel=1)
        answer.headers["Content-Encoding"] = "gzip"
