"""Copies the metrics that the trainer logs from its file to the workspace, in pieces of complete lines.

The file is only read, so that a slow or unreachable store never blocks the training.
"""

from __future__ import annotations

import math
import os
import stat
import threading
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.runs.events import MetricRange
from outlast.runs.metrics import PIECE_BYTES, Row, line_of, parsed

_POLL_S = 0.1
# Longer lines are not metrics.
_LINE_BYTES_MAX = PIECE_BYTES
# The pause between pieces is this share of the attempt's age, so that a long attempt has not too many of them.
_PAUSE_SHARE = 0.01
_PAUSE_MAX_S = 10.0
# Events and heartbeats have the values of this many metrics.
_RANGES_MAX = 24


class MetricsPump:
    """Follows a file in a thread and passes pieces of about 64 KiB to `write(number, body)`.

    The file may be created late, truncated or replaced; invalid lines are skipped. Memory is bounded: lines that
    cannot be written yet stay in the file. If a truncated file grows past the old offset before the next read, the
    truncation is not noticed, and the lines before that offset are lost.
    """

    def __init__(self, path: str, write: Callable[[int, bytes], None], *, every_s: float) -> None:
        self.step: int | None = None
        # The last, lowest and highest value of each of the first metrics.
        self.ranges: dict[str, MetricRange] = {}
        self._path = path
        self._write = write
        self._every_s = every_s
        self._file = _Followed(path)
        self._rest = b""
        self._skipping = False
        self._buffer = bytearray()
        self._number = 1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def sign(self) -> object:
        """Return a value that changes when something is logged, even while the store is unreachable."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def stop(self) -> None:
        """Read the rest of the file as it is now, and no later lines: the command has ended."""
        self._stop.set()

    def finish(self, *, within_s: float) -> None:
        """Wait for the last piece."""
        self.stop()
        self._thread.join(within_s)

    def _run(self) -> None:
        began, flushed_at = time.monotonic(), -math.inf  # the first row goes out at once
        left: int | None = None
        while True:
            if self._stop.is_set() and left is None:
                left = self._file.unread()
            # Lines that the store does not accept yet stay in the file.
            body = self._file.read() if len(self._buffer) < 2 * PIECE_BYTES else b""
            self._feed(body)
            if left is not None:
                left -= len(body)
            over = left is not None and (left <= 0 or not body)
            if over:
                self._feed(b"\n")  # a last line without a line end may be complete
            now = time.monotonic()
            pause_s = max(self._every_s, min(_PAUSE_MAX_S, (now - began) * _PAUSE_SHARE))
            if self._buffer and (over or len(self._buffer) >= PIECE_BYTES or now >= flushed_at + pause_s):
                self._flush()
                flushed_at = time.monotonic()
            if over:
                return
            if not body:
                self._stop.wait(_POLL_S)

    def _feed(self, body: bytes) -> None:
        if self._file.restarted:
            # Another file: the unfinished line of the last one will never be completed.
            self._file.restarted, self._rest, self._skipping = False, b"", False
        if self._skipping:
            _, ended, body = body.partition(b"\n")
            self._skipping = not ended
        *lines, rest = (self._rest + body).split(b"\n")
        if len(rest) > _LINE_BYTES_MAX:
            rest, self._skipping = b"", True
        self._rest = rest
        for line in lines:
            row = parsed(line) if len(line) <= _LINE_BYTES_MAX else None
            if row is not None:
                self.step = row.step
                self._note_ranges(row)
                self._buffer += line_of(row)

    def _note_ranges(self, row: Row) -> None:
        ranges = dict(self.ranges)  # a new one: other threads read it
        for name, value in row.values.items():
            if name in ranges or len(ranges) < _RANGES_MAX:
                had = ranges.get(name, MetricRange(value, value, value))
                ranges[name] = MetricRange(value, min(had.low, value), max(had.high, value))
        self.ranges = ranges

    def _flush(self) -> None:
        """Write pieces of complete lines. A piece that the store refuses stays for the next time."""
        while self._buffer:
            end = len(self._buffer)
            if end > PIECE_BYTES:
                end = self._buffer.rfind(b"\n", 0, PIECE_BYTES) + 1 or self._buffer.find(b"\n") + 1
            try:
                self._write(self._number, bytes(self._buffer[:end]))
            except OutlastError:
                return  # `write` has retried and reported the error
            self._number += 1
            del self._buffer[:end]


class _Followed:
    """A file that is followed by its name. Each read continues after the last one; an error reads nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        # The last read began another file, or the same one after a truncation.
        self.restarted = False
        self._handle = -1
        self._offset = 0

    def unread(self) -> int:
        """Return the number of bytes that are not read yet."""
        here = max(0, os.fstat(self._handle).st_size - self._offset) if self._handle >= 0 else 0
        try:
            return here + (os.stat(self.path).st_size if self._is_replaced() else 0)
        except OSError:
            return here

    def read(self) -> bytes:
        try:
            body = self._read_on()
            if not body and self._is_replaced():
                self._open()
                body = self._read_on()
        except OSError:
            return b""
        return body

    def _read_on(self) -> bytes:
        if self._handle < 0:
            return b""
        if os.fstat(self._handle).st_size < self._offset:
            self._offset, self.restarted = 0, True
        body = os.pread(self._handle, PIECE_BYTES, self._offset)
        self._offset += len(body)
        return body

    def _is_replaced(self) -> bool:
        """Return whether the name refers to another file than the open one, whose inode cannot be reused meanwhile."""
        there = os.stat(self.path)
        if self._handle < 0:
            return True
        opened = os.fstat(self._handle)
        return (opened.st_dev, opened.st_ino) != (there.st_dev, there.st_ino)

    def _open(self) -> None:
        # Do not block: the path may be a pipe without a writer.
        handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(f"{self.path} is not a regular file")
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._offset, self.restarted = handle, 0, True
