"""The trainer's end of the saver: copy the state, order the write, hear of its end or of its failure later."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer.files import Arena, after, aligned, shared_folder


class SaveFailed(OutlastError):
    """A save in the background did not work; raised at the next call, or where it was waited for."""


class BackgroundSaver:
    """One save at a time. What the caller waits for is the copy of its state."""

    def __init__(self, *, folder: str, rank: int, ranks: int, keep: int) -> None:
        self.folder = folder
        self.rank = rank
        self.ranks = ranks
        self.keep = keep
        # What the marker of each checkpoint says besides: hyperparameters, mostly.
        self.notes: dict[str, Any] = {}
        self.took_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._arena: Arena | None = None
        self._pending = False
        self._failed = ""

    @property
    def busy(self) -> bool:
        """A save is being written; also takes note if it has ended."""
        while self._pending and self._readable(0.0):
            self._hear()
        return self._pending

    def save(
        self,
        step: int,
        stream: str,
        body: bytes | bytearray,
        buffers: list[memoryview],
        *,
        metrics: Mapping[str, float],
    ) -> None:
        """Copy and return; the rest happens in the saver. `stream` is the name of the file for `body`."""
        self.wait()
        sizes = [view.nbytes for view in buffers]
        begins, end = aligned(sizes)
        begin = after(end)
        arena = self._room_for(begin + len(body))
        for at, view in zip(begins, buffers, strict=True):
            arena.map[at : at + view.nbytes] = view.cast("B")
        arena.map[begin : begin + len(body)] = body
        order = {
            "folder": self.folder,
            "step": step,
            "rank": self.rank,
            "ranks": self.ranks,
            "keep": self.keep,
            "told": self.told(metrics),
            "arena": arena.path,
            "size": arena.size,
            "stream": stream,
            "body": len(body),
            "buffers": sizes,
        }
        self._order(order)

    def told(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """What the marker of a checkpoint says besides."""
        return {"notes": self.notes, "metrics": {name: float(value) for name, value in metrics.items()}}

    def _order(self, order: dict[str, Any]) -> None:
        process = self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError as problem:
            raise SaveFailed("the saver process is gone", hint="was it killed for its memory?") from problem
        self._pending = True

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            argv = [sys.executable, "-P", "-m", "outlast.trainer.saver"]
            # A session of its own: a signal to the trainer's group must not end a save that is under way.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        return self._process

    def _room_for(self, size: int) -> Arena:
        if self._arena is not None and self._arena.size >= size:
            return self._arena
        if self._arena is not None:
            self._arena.close(remove=True)
        room = max(4096, size + size // 16)
        path = os.path.join(shared_folder(room), f"outlast-{os.getpid()}-{self.rank}-{room}")
        self._arena = Arena(path, room, create=True)
        return self._arena

    def _readable(self, timeout_s: float) -> bool:
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def _hear(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self._pending = False
        if not line:
            self._failed = f"the saver process ended with {self._process.wait()}"
            return
        answer = json.loads(line)
        self._failed = answer.get("error", "")
        self.took_s = answer.get("took_s", self.took_s)

    def check(self) -> None:
        """Raise what went wrong in the background since the last call."""
        if not self.busy and self._failed:
            failed, self._failed = self._failed, ""
            raise SaveFailed(f"the last checkpoint was not saved: {failed}", hint="the one before it still holds")

    def wait(self) -> None:
        """Until nothing is under way. Raises SaveFailed."""
        while self._pending:
            self._hear()
        self.check()

    def close(self) -> None:
        """Let the saver finish, and go."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None
        if self._arena is not None:
            self._arena.close(remove=True)
            self._arena = None
