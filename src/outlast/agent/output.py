"""The command's output on its way to the workspace: masked, cut into pieces, in order."""

from __future__ import annotations

import fcntl
import math
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable
from typing import IO

from outlast.workspace.logs import PIECE_BYTES

_SHORTEST_SECRET = 4
_MASK = b"***"
_LAST_WORDS_S = 1.0


class Mask:
    """Hides secrets in a stream. Holds back what could be the beginning of one until more has come."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line for secret in secrets for line in secret.splitlines() if len(line) >= _SHORTEST_SECRET}
        self._secrets = sorted((line.encode() for line in lines), key=len, reverse=True)
        self._held = b""

    def feed(self, body: bytes, *, last: bool = False) -> bytes:
        body = self._held + body
        for secret in self._secrets:
            body = body.replace(secret, _MASK)
        keep = 0 if last else self._beginning(body)
        self._held = body[len(body) - keep :]
        return body[: len(body) - keep]

    def _beginning(self, body: bytes) -> int:
        """How many bytes at the end could be the start of a secret."""
        for length in range(min(len(body), max((len(s) for s in self._secrets), default=1) - 1), 0, -1):
            tail = body[-length:]
            if any(secret.startswith(tail) for secret in self._secrets):
                return length
        return 0


class OutputPump:
    """Reads a pipe in a thread and hands pieces of at most 64 KiB to `write(number, body)`, soon after they came.

    Blocks the program when the workspace is slower than it: nothing is dropped and memory stays bounded.
    """

    def __init__(
        self,
        pipe: IO[bytes],
        write: Callable[[int, bytes], None],
        *,
        mask: Mask,
        every_s: float,
        first: int = 1,
    ) -> None:
        self._pipe = pipe
        self._write = write
        self._mask = mask
        self._every_s = every_s
        self._buffer = bytearray()
        self._number = first
        self._stop = threading.Event()
        self._left, self._leave_at = 0, 0.0
        self.last_output_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    @property
    def next_number(self) -> int:
        return self._number

    def _run(self) -> None:
        flushed_at = -math.inf  # the first line goes out at once
        handle = self._pipe.fileno()
        while not self._is_enough(handle):
            due_s = max(0.0, flushed_at + self._every_s - time.monotonic()) if self._buffer else 0.2
            readable = select.select([handle], [], [], due_s)[0]
            if readable:
                body = os.read(handle, PIECE_BYTES)
                if not body:
                    break
                self.last_output_at = time.monotonic()
                self._left -= len(body)
                self._buffer += self._mask.feed(body)
            elif self._stop.is_set():
                break
            if self._buffer and (len(self._buffer) >= PIECE_BYTES or time.monotonic() >= flushed_at + self._every_s):
                self._flush()
                flushed_at = time.monotonic()
        self._buffer += self._mask.feed(b"", last=True)
        self._flush()

    def _is_enough(self, handle: int) -> bool:
        """After the command's end: what it had written is taken, and what others say for a moment. A daemon that it
        left behind may go on for ever."""
        if not self._stop.is_set():
            return False
        if not self._leave_at:
            self._left, self._leave_at = _bytes_in(handle), time.monotonic() + _LAST_WORDS_S
        return self._left <= 0 and time.monotonic() > self._leave_at

    def _flush(self) -> None:
        while self._buffer:
            piece = bytes(self._buffer[:PIECE_BYTES])
            self._write(self._number, piece)
            self._number += 1
            del self._buffer[:PIECE_BYTES]

    def finish(self, *, within_s: float) -> None:
        """The command has ended: take what is still in the pipe, and do not wait for daemons that hold it open."""
        self._stop.set()
        self._thread.join(within_s)


def _bytes_in(handle: int) -> int:
    """How much waits in a pipe."""
    answer = fcntl.ioctl(handle, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)
