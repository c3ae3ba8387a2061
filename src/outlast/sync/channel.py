"""One connection to the receiver on a machine: sends frames, receives answers, and raises LinkLost when it breaks."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from outlast.errors import OutlastError, UsageError
from outlast.sync import receiver

_ANSWER_S = 60.0
_EXIT_S = 3.0
_NO_PYTHON = 127
# Reads exactly the program's bytes: the rest of stdin is for the program.
_LOADER = """\
import os
size, got = %d, b""
while len(got) < size:
    more = os.read(0, size - len(got))
    if not more:
        os._exit(1)
    got += more
exec(got)
"""


class LinkLost(OutlastError):
    """The connection broke. The machine may be gone, or may return at another address."""


class Channel:
    """The receiver, started by ssh. One thread reads its answers; one caller at a time sends."""

    def __init__(self, argv: Sequence[str], *, on_message: Callable[[dict[str, Any]], None]) -> None:
        """Start the receiver. A thread calls `on_message` with answers to `send`, and with `{}` at the end."""
        with open(receiver.__file__, "rb") as file:
            program = file.read()
        remote = f"command -v python3 >/dev/null || exit 127; exec python3 -IS -c {shlex.quote(_LOADER % len(program))}"
        self._process = subprocess.Popen(
            [*argv, "--", remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._on_message = on_message
        self._number = 0
        self._awaited: dict[int, _Answer] = {}
        self._stderr = b""
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read_answers, self._read_stderr)]
        for thread in self._threads:
            thread.start()
        self._write(program)

    def request(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises LinkLost, and UsageError if the receiver refuses."""
        answer = _Answer()
        number = self._number + 1
        self._awaited[number] = answer
        self.send(do, **fields)
        if not answer.arrived.wait(_ANSWER_S) or not answer.fields:
            raise LinkLost(self.why())
        if "refused" in answer.fields:
            raise UsageError(answer.fields["refused"], hint=answer.fields["hint"])
        return answer.fields

    def send(self, do: str, body: bytes = b"", **fields: Any) -> int:
        """Send a request without waiting. The answer goes to `on_message`, with the returned number as `n`."""
        self._number += 1
        header = json.dumps({"n": self._number, "do": do, "size": len(body), **fields}).encode("ascii")
        self._write(struct.pack(">I", len(header)) + header + body)
        return self._number

    def _write(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(body)
            self._process.stdin.flush()
        except (OSError, ValueError) as problem:
            raise LinkLost(self.why()) from problem

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # output of a login script
            answer = self._awaited.pop(message.get("n", 0), None)
            if answer is None:
                self._on_message(message)
            else:
                answer.set(message)
        self._process.wait()
        self._ended.set()
        for answer in list(self._awaited.values()):
            answer.set({})
        self._on_message({})

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr = (self._stderr + line)[-2000:]

    def why(self) -> str:
        """Return why the connection broke: ssh's error output, if any."""
        self._ended.wait(1.0)
        self._threads[1].join(1.0)
        return self._stderr.decode(errors="replace").strip() or "the connection was lost"

    @property
    def lacks_python(self) -> bool:
        return self._process.poll() == _NO_PYTHON

    def close(self) -> None:
        """Close stdin, on which the receiver exits, and wait for the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)


class _Answer:
    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.fields: dict[str, Any] = {}

    def set(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.arrived.set()
