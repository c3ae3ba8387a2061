"""Clients of Amazon's at the XML API, as Google takes them: what they say by `x-amz-` means what it says by `x-goog-`.

Whoever signs as Amazon does is one of them. The signature itself is not looked at: whoever reaches us may do all.
"""

from __future__ import annotations

import dataclasses
import functools

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.http_types import PIECE_BYTES, HttpAnswer, HttpRequest, Source
from outlast_gcp_emulator.router import Handler

_THEIRS, _GOOGLES = "x-amz-", "x-goog-"
_SIGNED_LINKS = {"x-amz-signature", "awsaccesskeyid"}
_LINE_BYTES_MAX = 16 * 1024


def taken(handler: Handler) -> Handler:
    """The handler, for clients of both kinds."""

    @functools.wraps(handler)
    def answer(request: HttpRequest) -> HttpAnswer:
        if not _is_amazons(request):
            return handler(request)
        told = handler(_translated(request))
        told.headers |= {
            _THEIRS + name.removeprefix(_GOOGLES): value
            for name, value in told.headers.items()
            if name.startswith(_GOOGLES)
        }
        return told

    return answer


def _is_amazons(request: HttpRequest) -> bool:
    signed = request.headers.get("authorization", "").startswith("AWS")
    return signed or not _SIGNED_LINKS.isdisjoint(name.lower() for name in request.query)


def _translated(request: HttpRequest) -> HttpRequest:
    headers = dict(request.headers)
    for name, value in request.headers.items():
        if name.startswith(_THEIRS):
            headers.setdefault(_GOOGLES + name.removeprefix(_THEIRS), value)
    source = request.source
    if "x-amz-decoded-content-length" in headers:
        source = _InChunks(source)
        codings = [one.strip() for one in headers.pop("content-encoding", "").split(",")]
        if rest := ",".join(one for one in codings if one not in ("", "aws-chunked")):
            headers["content-encoding"] = rest
    return dataclasses.replace(request, headers=headers, source=source)


class _InChunks:
    """A body in Amazon's own chunks, each of which may be signed, with more headers at its end."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._held = b""
        self._left = 0
        self._over = False

    def read_piece(self, bytes_max: int) -> bytes:
        if not self._left and not self._over:
            self._begin_chunk()
        if self._over:
            while self._source.read_piece(PIECE_BYTES):
                pass  # headers that come last
            return b""
        if not self._held:
            self._more()
        wanted = min(bytes_max, self._left)
        piece, self._held = self._held[:wanted], self._held[wanted:]
        self._left -= len(piece)
        if not self._left and self._line():
            raise invalid("a chunk of the body is longer than it says")
        return piece

    def _begin_chunk(self) -> None:
        line = self._line()
        size = line.partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as problem:
            raise invalid(f"a chunk of the body begins with {line[:40]!r}") from problem
        self._over = not self._left

    def _line(self) -> bytes:
        while b"\r\n" not in self._held:
            if len(self._held) > _LINE_BYTES_MAX:
                raise invalid("a chunk of the body begins with no length")
            self._more()
        line, _, self._held = self._held.partition(b"\r\n")
        return line

    def _more(self) -> None:
        piece = self._source.read_piece(PIECE_BYTES)
        if not piece:
            raise invalid("the body ends in the middle of a chunk")
        self._held += piece
