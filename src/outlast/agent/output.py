"""Copies the command's output to the workspace, masked and in pieces, together with the agent's own remarks."""

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

from outlast.runs.logs import PIECE_BYTES

_SHORTEST_SECRET = 4
_MASK = b"***"
# As much of the output as a traceback takes.
_TAIL_BYTES = 8192
_LAST_OUTPUT_S = 1.0
# A repeated remark is logged again only after this time.
_REPEAT_S = 600.0
_REMARKS_MAX = 200
# A remark waits this long for the end of the program's line; a longer line is a progress bar, or a prompt.
_LINE_ENDS_S = 2.0


def report(text: str) -> None:
    """Write a line to the serial console."""
    print(f"outlast: {text}", file=sys.stderr, flush=True)


class Mask:
    """Masks secrets in a stream. Holds back bytes that could be the start of one until more have come."""

    def __init__(self, secrets: Iterable[str]) -> None:
        lines = {line for secret in secrets for line in secret.splitlines() if len(line) >= _SHORTEST_SECRET}
        self._secrets = sorted((line.encode() for line in lines), key=len, reverse=True)
        self._held = b""

    def hide(self, body: bytes) -> bytes:
        """Mask secrets in complete text."""
        for secret in self._secrets:
            body = body.replace(secret, _MASK)
        return body

    def feed(self, body: bytes, *, last: bool = False) -> bytes:
        body = self.hide(self._held + body)
        keep = 0 if last else self._start_of_secret(body)
        self._held = body[len(body) - keep :]
        return body[: len(body) - keep]

    def _start_of_secret(self, body: bytes) -> int:
        """Return how many bytes at the end could be the start of a secret."""
        for length in range(min(len(body), max((len(s) for s in self._secrets), default=1) - 1), 0, -1):
            tail = body[-length:]
            if any(secret.startswith(tail) for secret in self._secrets):
                return length
        return 0


class Remarks:
    """The agent's own lines in the log of the run, limited in number and repetition."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._since = math.inf
        self._logged_at: dict[str, float] = {}

    def add(self, text: str) -> None:
        text = text.replace("\n", "\\n")
        with self._lock:
            now = self._clock()
            if now < self._logged_at.get(text, -math.inf) + _REPEAT_S or len(self._logged_at) > _REMARKS_MAX:
                return
            if len(self._logged_at) == _REMARKS_MAX:
                text = "further remarks are only on the machine's serial console"
            self._logged_at[text] = now
            self._since = min(self._since, now)
            self._lines.append(f"outlast: {text}\n".encode(errors="backslashreplace"))

    def take(self) -> bytes:
        """Return the lines that were not taken yet."""
        with self._lock:
            lines, self._lines, self._since = self._lines, [], math.inf
        return b"".join(lines)

    def waited_s(self) -> float:
        """Return how long the oldest line has waited; negative if there is none."""
        with self._lock:
            return self._clock() - self._since


class OutputPump:
    """Reads a pipe in a thread and passes pieces of at most 64 KiB to `write(number, body)`, with little delay.

    Blocks the program if the workspace is slower: nothing is dropped and memory stays bounded.
    """

    def __init__(
        self,
        pipe: IO[bytes],
        write: Callable[[int, bytes], None],
        *,
        mask: Mask,
        every_s: float,
        first: int = 1,
        remarks: Remarks | None = None,
    ) -> None:
        self._pipe = pipe
        self._remarks = remarks or Remarks()
        self._within_a_line = False
        self._write = write
        self._mask = mask
        self._every_s = every_s
        self._buffer = bytearray()
        self._tail = b""
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
                self._append(self._mask.feed(body))
            elif self._stop.is_set():
                break
            self._append_remarks()
            if self._buffer and (len(self._buffer) >= PIECE_BYTES or time.monotonic() >= flushed_at + self._every_s):
                self._flush()
                flushed_at = time.monotonic()
        self._append(self._mask.feed(b"", last=True))
        self._append_remarks(last=True)
        self._flush()

    def tail(self) -> str:
        """Return the end of the output, with secrets masked."""
        return self._tail.decode("utf-8", "replace")

    def _append(self, body: bytes) -> None:
        self._buffer += body
        self._tail = (self._tail + body)[-_TAIL_BYTES:]
        self._within_a_line = not body.endswith(b"\n") if body else self._within_a_line

    def _append_remarks(self, *, last: bool = False) -> None:
        if self._within_a_line and not last and self._remarks.waited_s() < _LINE_ENDS_S:
            return  # the rest of a long line may follow, and a program that reads the log needs it complete
        if remarks := self._mask.hide(self._remarks.take()):
            self._append(b"\n" + remarks if self._within_a_line else remarks)

    def _is_enough(self, handle: int) -> bool:
        """Return whether to stop reading: the command has ended, its output is read, and a moment has passed.

        A daemon that it left behind may write forever.
        """
        if not self._stop.is_set():
            return False
        if not self._leave_at:
            self._left, self._leave_at = _bytes_in(handle), time.monotonic() + _LAST_OUTPUT_S
        return self._left <= 0 and time.monotonic() > self._leave_at

    def _flush(self) -> None:
        while self._buffer:
            piece = bytes(self._buffer[:PIECE_BYTES])
            self._write(self._number, piece)
            self._number += 1
            del self._buffer[:PIECE_BYTES]

    def write_remarks(self) -> None:
        """Write the remarks that were added after the end of the output."""
        if not self._thread.is_alive():  # else the thread writes them
            self._append_remarks(last=True)
            self._flush()

    def finish(self, *, within_s: float) -> None:
        """Read the rest of the pipe without waiting for daemons that hold it open: the command has ended."""
        self._stop.set()
        self._thread.join(within_s)


def _bytes_in(handle: int) -> int:
    """Return the number of bytes that wait in a pipe."""
    count = fcntl.ioctl(handle, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)
