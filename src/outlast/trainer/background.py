"""The trainer's side of the saver process: copies the state, requests the write, reads the result later."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer.arena import Arena, available_bytes, is_scarce
from outlast.trainer.arrays import Blob
from outlast.trainer.files import after, aligned, piece_bytes

# Smaller states are copied so fast that preparing for them is not worth it.
_PREPARED_BYTES = 32 << 20
# Small states grow in it without another saver process; memory that is not used is not allocated.
_ARENA_BYTES_MIN = 4 << 20


class SaveFailed(OutlastError):
    """A save in the background failed; raised by the next call, or by `wait`."""


class BackgroundSaver:
    """Saves one state at a time. The caller waits only for the copy of its state."""

    def __init__(self, *, folder: str, rank: int, ranks: int, local: range, node: int, keep: int) -> None:
        self.folder = folder
        self.rank = rank
        self.ranks = ranks
        # The ranks that save to this folder; the first one publishes their checkpoints.
        self.local = local
        self.node = node
        self.keep = keep
        # Stored in the marker of each checkpoint, such as hyperparameters.
        self.notes: dict[str, Any] = {}
        self.took_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._arena: Arena | None = None
        self._pending = False
        self._failed = ""
        self._owner = os.getpid()

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        while self._pending and self._readable(0.0):
            self._read_response()
        return self._pending

    def save(
        self, step: int, stream: str, body: bytes | bytearray, buffers: list[Blob], *, metrics: Mapping[str, float]
    ) -> None:
        """Copy the state and request the write. `stream` is the name of the file for `body`."""
        self.wait()
        sizes = [buffer.nbytes for buffer in buffers]
        begins, end = aligned(sizes)
        begin, piece = after(end), piece_bytes(end)
        arena = self._room_for(begin + len(body))
        with arena.copy(begin + len(body), piece=piece) as copy:
            for at, buffer in zip(begins, buffers, strict=True):
                # One view at a time: that of a tensor on a device is a copy of it.
                copy.put(at, buffer.view())
            unchanged = [number for number in range(-(-end // piece)) if number not in copy.changed]
            copy.put(begin, memoryview(body))
        request = {
            "folder": self.folder,
            "step": step,
            "rank": self.rank,
            "ranks": self.ranks,
            "ranks_here": [self.local.start, self.local.stop],
            "node": self.node,
            "keep": self.keep,
            "extra": self.extra(metrics),
            "stream": stream,
            "body": len(body),
            "buffers": sizes,
            "unchanged": unchanged,
        }
        try:
            self._send(request, arena)
        except BaseException:
            arena.forget_state()
            raise
        # The next copy finds the memory mapped.
        arena.fill_in_background()

    def extra(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the additional fields of a checkpoint's marker."""
        return {"notes": self.notes, "metrics": {name: float(value) for name, value in metrics.items()}}

    def _send(self, request: dict[str, Any], arena: Arena) -> None:
        process = self._start(arena)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as problem:
            raise SaveFailed(
                "the saver process has died", hint="the system may have killed it for its memory"
            ) from problem
        self._pending = True

    def _start(self, arena: Arena) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            argv = [sys.executable, "-P", "-m", "outlast.trainer.saver", str(arena.handle), str(arena.size)]
            # A new session: a signal to the trainer's group must not end a save in progress.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, pass_fds=[arena.handle]
            )
        return self._process

    def prepare(self, size: int) -> None:
        """Allocate the memory for a state of this size in the background: the first save is as fast as later ones."""
        try:
            fits = _PREPARED_BYTES <= size < available_bytes() / 2
        except OSError:
            return  # not Linux
        if fits and self._arena is None:
            self._room_for(size).fill_in_background()

    def _release_if_scarce(self) -> None:
        """Return the memory of the last save to the system if others need it."""
        try:
            scarce = self._arena is not None and is_scarce(self._arena.size)
        except OSError:
            return  # not Linux
        if scarce:
            self._release()

    def _release(self) -> None:
        """End the saver process, which has the memory mapped, and free it."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):
                self._process.stdin.write(b"{}\n")
                self._process.stdin.close()
            self._process.wait()
            self._process = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _room_for(self, size: int) -> Arena:
        if self._arena is None or self._arena.size < size:
            self._release()
            self._arena = Arena(max(_ARENA_BYTES_MIN, size + size // 16))
        return self._arena

    def _readable(self, timeout_s: float) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def _read_response(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._pending = False
        if not line:
            self._failed = f"the saver process exited with {self._process.wait()}"
            return
        response = json.loads(line)
        self._failed = response.get("error", "")
        self.took_s = response.get("took_s", self.took_s)
        self._release_if_scarce()

    def check(self) -> None:
        """Raise SaveFailed if a save in the background has failed since the last call."""
        if not self.busy and self._failed:
            failed, self._failed = self._failed, ""
            raise SaveFailed(f"the last checkpoint was not saved: {failed}", hint="the previous one is still valid")

    def wait(self) -> None:
        """Wait for the save in progress. Raises SaveFailed."""
        while self._pending:
            self._read_response()
        self.check()

    def close(self) -> None:
        """Wait for the saver process to finish, and release its memory. A forked child leaves both alone."""
        if os.getpid() == self._owner:
            self._release()
