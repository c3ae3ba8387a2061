"""Amazon's clients at the XML API: as with Google, their `x-amz-` headers are treated as `x-goog-` headers.

A request with Amazon's form of a signature is from such a client. The signature itself is not checked: the token of the
endpoint protects it.
"""

from __future__ import annotations

import dataclasses
import functools

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.http_types import PIECE_BYTES, BodySource, HttpRequest, HttpResponse
from outlast_gcp_emulator.router import Handler

_AMAZON, _GOOGLE = "x-amz-", "x-goog-"
_SIGNED_LINKS = {"x-amz-signature", "awsaccesskeyid"}
_LINE_BYTES_MAX = 16 * 1024


def accepting_s3(handler: Handler) -> Handler:
    """Return a handler for clients of both kinds."""

    @functools.wraps(handler)
    def respond(request: HttpRequest) -> HttpResponse:
        if not _is_s3(request):
            return handler(request)
        response = handler(_to_google(request))
        response.headers |= {
            _AMAZON + name.removeprefix(_GOOGLE): value
            for name, value in response.headers.items()
            if name.startswith(_GOOGLE)
        }
        return response

    return respond


def _is_s3(request: HttpRequest) -> bool:
    signed = request.headers.get("authorization", "").startswith("AWS")
    return signed or not _SIGNED_LINKS.isdisjoint(name.lower() for name in request.query)


def _to_google(request: HttpRequest) -> HttpRequest:
    headers = dict(request.headers)
    for name, value in request.headers.items():
        if name.startswith(_AMAZON):
            headers.setdefault(_GOOGLE + name.removeprefix(_AMAZON), value)
    source = request.source
    if "x-amz-decoded-content-length" in headers:
        source = _AwsChunkedBody(source)
        codings = [coding.strip() for coding in headers.pop("content-encoding", "").split(",")]
        if rest := ",".join(coding for coding in codings if coding not in ("", "aws-chunked")):
            headers["content-encoding"] = rest
    return dataclasses.replace(request, headers=headers, source=source)


class _AwsChunkedBody:
    """A body in Amazon's chunk format: chunks may be signed, and trailing headers may follow."""

    def __init__(self, source: BodySource) -> None:
        self._source = source
        self._buffer = b""
        self._left = 0
        self._ended = False

    def read_piece(self, bytes_max: int) -> bytes:
        if not self._left and not self._ended:
            self._begin_chunk()
        if self._ended:
            while self._source.read_piece(PIECE_BYTES):
                pass  # trailing headers
            return b""
        if not self._buffer:
            self._read()
        wanted = min(bytes_max, self._left)
        piece, self._buffer = self._buffer[:wanted], self._buffer[wanted:]
        self._left -= len(piece)
        if not self._left and self._line():
            raise invalid("a chunk of the body is longer than its size")
        return piece

    def _begin_chunk(self) -> None:
        line = self._line()
        size = line.partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as problem:
            raise invalid(f"invalid chunk size: {line[:40]!r}") from problem
        self._ended = not self._left

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _LINE_BYTES_MAX:
                raise invalid("a chunk of the body has no size")
            self._read()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _read(self) -> None:
        piece = self._source.read_piece(PIECE_BYTES)
        if not piece:
            raise invalid("the body ends in the middle of a chunk")
        self._buffer += piece
