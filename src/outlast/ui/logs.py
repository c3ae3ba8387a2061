"""Access to the output of attempts by windows: a log of 200 MB is neither sent nor kept in memory.

Chunks are written once and in order, so the index keeps only their sizes. Windows start and end at line ends where
possible.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import OrderedDict

import msgspec

from outlast.errors import Missing
from outlast.runs.logs import attempts_with_logs, piece_key
from outlast.store.bucket import Bucket

WINDOW_BYTES = 48 * 1024
_WINDOW_MAX = 256 * 1024
_HITS, _HIT_CHARS = 200, 300
# The time after which a search returns partial results.
_SEARCH_S = 0.8
_INDEXES = 64
# Rounds without new output after which the log of an ended attempt is complete.
_SILENT_ROUNDS = 20


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a log: the bytes from `begin` to `end` of `size`."""

    begin: int
    end: int
    size: int
    text: str


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    line: str


class LogMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The lines found so far, and where to continue; None at the end."""

    hits: tuple[Hit, ...]
    next: int | None
    size: int


class LogIndex:
    """The offsets of the chunks of one attempt's output. Only grows."""

    def __init__(self, bucket: Bucket, run: str, attempt: int) -> None:
        self.bucket = bucket
        self.run = run
        self.attempt = attempt
        # The end offset of each chunk.
        self.ends: list[int] = []
        self._lock = threading.Lock()
        self._listed = False
        self._silent = 0

    @property
    def quiet(self) -> bool:
        """Whether the attempt is over and its log complete."""
        return self._silent > _SILENT_ROUNDS

    def poll(self, *, over: bool) -> None:
        """Read new chunks, and count rounds without any after the end of the attempt."""
        before = self.size
        self._silent = self._silent + 1 if self.refresh() == before and over else 0

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    def refresh(self) -> int:
        """Read new chunks. Return the size."""
        with self._lock:
            if not self._listed:
                prefix = piece_key(self.run, self.attempt, 0).rpartition("/")[0] + "/"
                for number, entry in enumerate(self.bucket.list(prefix), 1):
                    if entry.key != piece_key(self.run, self.attempt, number):
                        break
                    self.ends.append(self.size + entry.bytes)
                self._listed = True
            while True:
                try:
                    entry = self.bucket.head(piece_key(self.run, self.attempt, len(self.ends) + 1))
                except Missing:
                    return self.size
                self.ends.append(self.size + entry.bytes)

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes between two offsets."""
        begin, end = max(0, begin), min(end, self.size)
        if end <= begin:
            return b""
        first = bisect.bisect_right(self.ends, begin)
        last = bisect.bisect_left(self.ends, end)
        start = self.ends[first - 1] if first else 0
        bodies = [self._piece(number) for number in range(first, last + 1)]
        return b"".join(bodies)[begin - start : end - start]

    def _piece(self, number: int) -> bytes:
        return self.bucket.get(piece_key(self.run, self.attempt, number + 1))

    def window(self, *, begin: int = -1, end: int = -1, limit: int = WINDOW_BYTES) -> Window:
        """Return a window from `begin`, or up to `end`, or the end of the log; cut at line ends."""
        limit = max(1, min(limit, _WINDOW_MAX))
        if begin < 0:
            end = min(end, self.size) if end >= 0 else self.size
            begin = max(0, end - limit)
            body = self.read(begin, end)
            cut = self._line_start(begin, body)
            return self._window(begin + cut, body[cut:])
        begin = min(begin, self.size)
        body = self.read(begin, begin + limit)
        start = self._line_start(begin, body)
        body, begin = body[start:], begin + start
        # A line longer than the window is shown in parts.
        whole = body.rfind(b"\n") + 1
        if begin + len(body) < self.size and whole:
            body = body[:whole]
        return self._window(begin, body)

    def _line_start(self, begin: int, body: bytes) -> int:
        """Return the number of bytes that belong to a line that started before."""
        if begin == 0 or self.read(begin - 1, begin) == b"\n":
            return 0
        found = body.find(b"\n") + 1
        return found if found < len(body) else 0

    def _window(self, begin: int, body: bytes) -> Window:
        return Window(begin=begin, end=begin + len(body), size=self.size, text=body.decode("utf-8", "replace"))

    def search(self, text: str, *, begin: int = 0) -> LogMatch:
        """Search lines for text, ignoring case, from an offset; limited in number and time."""
        wanted = text.casefold().encode()
        hits: list[Hit] = []
        give_up_at = time.monotonic() + _SEARCH_S
        at, size = min(begin, self.size), self.size
        first = bisect.bisect_right(self.ends, at)
        rest, rest_at = b"", at
        for number in range(first, len(self.ends)):
            start = self.ends[number - 1] if number else 0
            body = self._piece(number)
            body = rest + (body[rest_at - start :] if not rest and rest_at > start else body)
            cut = len(body) if number == len(self.ends) - 1 else body.rfind(b"\n") + 1
            hits += _hits(body[:cut], wanted, rest_at)
            rest, rest_at = body[cut:], rest_at + cut
            if len(hits) > _HITS:
                return LogMatch(hits=tuple(hits[:_HITS]), next=hits[_HITS].at, size=size)
            if time.monotonic() > give_up_at and number < len(self.ends) - 1:
                return LogMatch(hits=tuple(hits), next=rest_at, size=size)
        return LogMatch(hits=tuple(hits), next=None, size=size)


def _hits(body: bytes, wanted: bytes, offset: int) -> list[Hit]:
    low = body.lower() if body.isascii() else body.decode("utf-8", "replace").casefold().encode()
    if not wanted or wanted not in low:
        return []
    found, at = [], offset
    for line in body.splitlines(keepends=True):
        if wanted in line.decode("utf-8", "replace").casefold().encode():
            shown = line.decode("utf-8", "replace").rstrip("\r\n")
            found.append(Hit(at=at, line=shown[:_HIT_CHARS]))
        at += len(line)
    return found


class Logs:
    """The indexes in use, for all viewers."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._indexes: OrderedDict[tuple[str, int], LogIndex] = OrderedDict()
        self._lock = threading.Lock()

    def index(self, run: str, attempt: int) -> LogIndex:
        with self._lock:
            found = self._indexes.pop((run, attempt), None) or LogIndex(self.bucket, run, attempt)
            self._indexes[run, attempt] = found
            while len(self._indexes) > _INDEXES:
                self._indexes.popitem(last=False)
        return found

    def attempts(self, run: str) -> list[int]:
        return attempts_with_logs(self.bucket, run)
