"""What the trainer logged on its way to the workspace: whole lines of a file, in pieces, in order.

The file belongs to the trainer. It is only read, so that a store that is slow or away never blocks the training.
"""

from __future__ import annotations

import math
import os
import stat
import threading
import time
from collections.abc import Callable

from outlast.errors import OutlastError
from outlast.runs.metrics import PIECE_BYTES, line_of, parsed

_LOOK_S = 0.1
# A line longer than this is no row of metrics.
_LINE_BYTES_MAX = PIECE_BYTES
# Pieces of a long attempt come more seldom: a hundredth of its age, so that they are not too many to read.
_SHARE = 0.01
_PAUSE_MAX_S = 10.0


class MetricsPump:
    """Follows a file in a thread and hands pieces of about 64 KiB to `write(number, body)`.

    The file may come late, be truncated, or be replaced; lines that are no rows are left out. Memory is bounded: what
    cannot be written yet stays in the file. One that is truncated and has grown past the old place before the next
    look is not recognised, and what it held up to there is missed.
    """

    def __init__(self, path: str, write: Callable[[int, bytes], None], *, every_s: float) -> None:
        self.step: int | None = None
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
        """A value that changes when something is logged, even while the store does not answer."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def stop(self) -> None:
        """The command has ended: take what it left, and no more of what others may still write."""
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
            # What the store does not take stays in the file.
            body = self._file.read() if len(self._buffer) < 2 * PIECE_BYTES else b""
            self._feed(body)
            if left is not None:
                left -= len(body)
            over = left is not None and (left <= 0 or not body)
            if over:
                self._feed(b"\n")  # a last line that was not ended may be whole
            now = time.monotonic()
            pause_s = max(self._every_s, min(_PAUSE_MAX_S, (now - began) * _SHARE))
            if self._buffer and (over or len(self._buffer) >= PIECE_BYTES or now >= flushed_at + pause_s):
                self._flush()
                flushed_at = time.monotonic()
            if over:
                return
            if not body:
                self._stop.wait(_LOOK_S)

    def _feed(self, body: bytes) -> None:
        if self._file.anew:
            # Another file: what was left of the one before has no end any more.
            self._file.anew, self._rest, self._skipping = False, b"", False
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
                self._buffer += line_of(row)

    def _flush(self) -> None:
        """In pieces of whole lines. What the store refuses for good stays for the next time."""
        while self._buffer:
            end = len(self._buffer)
            if end > PIECE_BYTES:
                end = self._buffer.rfind(b"\n", 0, PIECE_BYTES) + 1 or self._buffer.find(b"\n") + 1
            try:
                self._write(self._number, bytes(self._buffer[:end]))
            except OutlastError:
                return  # whoever writes is patient, and has said what is wrong
            self._number += 1
            del self._buffer[:end]


class _Followed:
    """A file by its name, whatever becomes of it. Reads on from where it stopped; an error is nothing to read."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Whether what was read last is of another file than what was read before, or of one that was emptied.
        self.anew = False
        self._handle = -1
        self._offset = 0

    def unread(self) -> int:
        """How much waits now."""
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
            self._offset, self.anew = 0, True
        body = os.pread(self._handle, PIECE_BYTES, self._offset)
        self._offset += len(body)
        return body

    def _is_replaced(self) -> bool:
        """Whether the name means another file than the one that is open. Its number is not given away while it is."""
        there = os.stat(self.path)
        if self._handle < 0:
            return True
        own = os.fstat(self._handle)
        return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino)

    def _open(self) -> None:
        # Not blocking: a pipe of that name has nobody at its other end.
        handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(f"{self.path} is no file")
        if self._handle >= 0:
            os.close(self._handle)
        self._handle, self._offset, self.anew = handle, 0, True
